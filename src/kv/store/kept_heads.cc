#include "kv/store/kept_heads.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace headway::kv {
namespace {

Status NoSuchSequence(SequenceId id) {
  return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
}

}  // namespace

// All heads of all layers are asked for between two steps.
KeptHeads::KeptHeads(Cache* cache, Sequences* sequences) : cache_(*cache), sequences_(*sequences) {
  const CacheFormat& format = cache_.format;
  places_.resize(static_cast<size_t>(format.layers));
  for (int layer = 0; layer < format.layers; ++layer) {
    std::vector<HeadPlace>& places = places_[static_cast<size_t>(layer)];
    for (int group = 0; group < format.head_groups(layer); ++group) {
      for (const HeadRun& run : format.Runs(layer, group)) {
        const auto end = static_cast<size_t>(run.head + run.heads);
        if (places.size() < end) places.resize(end);
        for (int i = 0; i < run.heads; ++i) {
          places[static_cast<size_t>(run.head + i)] = {group, {run.head + i, 1, run.index + i}};
        }
      }
    }
  }
}

const KeptHeads::HeadPlace& KeptHeads::PlaceOf(int layer, int head) const {
  const std::vector<HeadPlace>& places = places_[static_cast<size_t>(layer)];
  const auto at = static_cast<size_t>(head);
  HEADWAY_CHECK(at < places.size() && places[at].group >= 0);  // else it streams, or is no head
  return places[at];
}

Result<std::vector<KeyRun>> KeptHeads::KeysOf(SequenceId id, int layer, int head, int64_t from) {
  const Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  const HeadPlace& place = PlaceOf(layer, head);
  const PageTable& table = sequence->tables.of(layer, place.group);
  std::vector<KeyRun> runs;
  const auto segment_of_from = static_cast<int>(from / cache_.format.segment_tokens());
  for (int segment = std::max(table.first_kept(), segment_of_from); segment < table.segments();
       ++segment) {
    const Slab& slab = (*cache_.slabs)[table.slab(place.group, segment)];
    if (slab.tier == Tier::kDisk || slab.kind != SlabKind::kKeysValues) {
      return Status(StatusCode::kUnsupported,
                    "KV store: tokens are kept of keys in memory, and some are elsewhere");
    }
    cache_.lanes.Wait(Lane::kCompute, slab.written);
    KeyRun& run = runs.emplace_back();
    run.pages = PagesOf(RunIn(cache_.format, slab.data, 0, table.PagesIn(segment)), place.run);
    run.position = table.PositionOf(int64_t{segment} * cache_.format.segment_pages);
  }
  KeyRun& tail = runs.emplace_back();
  tail.pages = OpenPageOf(id, layer, head);
  if (!table.grows()) tail.pages.count = 0;
  tail.position = cache_.math.ClosedTokens(sequence->length);
  return runs;
}

void KeptHeads::FinishKeys(SequenceId id, int layer, int head) {
  const Sequence* sequence = sequences_.Find(id);
  HEADWAY_CHECK(sequence != nullptr);
  const int group = PlaceOf(layer, head).group;
  const PageTable& table = sequence->tables.of(layer, group);
  const int64_t done = cache_.lanes.Soon(Lane::kCompute);
  for (int segment = table.first_kept(); segment < table.segments(); ++segment) {
    (*cache_.slabs)[table.slab(group, segment)].used.Add(Lane::kCompute, done);
  }
}

Result<SequenceId> KeptHeads::Create(int64_t length) {
  HEADWAY_CHECK(cache_.options.tables == PageTables::Sharing::kGroup);
  Result<SequenceId> made = sequences_.Create(0);
  if (!made.ok()) return made;
  Sequence& sequence = *sequences_.Find(*made);
  sequence.length = length;
  for (PageTable& table : sequence.tables.all()) table.Keep({}, cache_.math.ClosedPages(length));
  return made;
}

Status KeptHeads::Keep(SequenceId id, int layer, int head, KeptTokens tokens,
                       const ClosedRows& rows) {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  const int group = PlaceOf(layer, head).group;
  HEADWAY_CHECK(cache_.format.HeadsIn(layer, group) == 1);
  PageTable& table = sequence->tables.of(layer, group);
  HEADWAY_CHECK(table.pages() == 0);
  const int64_t pages = std::ssize(tokens.positions) / cache_.math.slots();
  const int segments = cache_.math.Segments(pages);
  if (Status s = cache_.slabs->CheckRoom(kKind, segments); !s.ok()) return s;
  Fence computed;
  computed.Add(Lane::kCompute, cache_.lanes.Mark(Lane::kCompute));
  cache_.lanes.Wait(Lane::kDeviceToHost, computed);
  Fence copied;
  for (int segment = 0; segment < segments; ++segment) {
    Result<SlabId> made = cache_.slabs->New(kKind, layer, group, segment);
    if (!made.ok()) return made.status();
    table.Exchange(group, segment, *made);
    Slab& slab = (*cache_.slabs)[*made];
    const int64_t first = int64_t{segment} * cache_.format.segment_pages;
    slab.pages = static_cast<int>(std::min<int64_t>(cache_.format.segment_pages, pages - first));
    ClosedRows part = rows;
    part.rows += first * cache_.format.closed_stride();
    if (part.params != nullptr) part.params += first * cache_.format.param_stride();
    slab.written.Join(cache_.mover->Append(cache_.slabs->PagesOf(slab, 0, slab.pages), part,
                                           slab.place(), slab.behind()));
    copied.Join(slab.written);
  }
  if (!tokens.grows) sequence->tables.SomeMayNotGrow();
  table.Keep(std::move(tokens.positions), cache_.math.ClosedPages(sequence->length), tokens.grows);
  cache_.lanes.Wait(Lane::kCompute, copied);
  return OkStatus();
}

PageRun KeptHeads::OpenPageOf(SequenceId id, int layer, int head) {
  constexpr SlabKind kKind = SlabKind::kKeysValues;
  const Sequence* sequence = sequences_.Find(id);
  HEADWAY_CHECK(sequence != nullptr);
  const CacheFormat& format = cache_.format;
  const HeadPlace place = PlaceOf(layer, head);
  const int at = sequences_.PlaceOf(*sequence);
  cache_.lanes.Wait(Lane::kCompute, cache_.buffers->open_fence(at, layer));
  const OpenPages& open = cache_.buffers->of(kKind);
  const int row = FirstRow(format, layer, place.group) + place.run.index;
  PageRun run;
  run.k = open.Open(at, layer, row);
  run.v = open.Open(at, layer, row + format.HeadsIn(layer, place.group));
  run.page_stride = format.page_stride();
  run.head_stride = open.open_row_stride();
  run.count = sequence->length % cache_.math.slots();
  return run;
}

}  // namespace headway::kv
