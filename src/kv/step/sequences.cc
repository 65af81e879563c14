#include "kv/step/sequences.h"

#include <algorithm>
#include <string>
#include <utility>

namespace headway::kv {
namespace {

Status NoSuchSequence(SequenceId id) {
  return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
}

}  // namespace

const Sequence* Sequences::Find(SequenceId id) const {
  if (id < 0) return nullptr;
  for (const Sequence& sequence : sequences_) {
    if (sequence.id == id) return &sequence;
  }
  return nullptr;
}

Sequence* Sequences::Find(SequenceId id) {
  return const_cast<Sequence*>(std::as_const(*this).Find(id));
}

int Sequences::FreePlace() const {
  for (const Sequence& sequence : sequences_) {
    if (sequence.id < 0) return PlaceOf(sequence);
  }
  return -1;
}

void Sequences::Begin(Sequence& sequence) {
  sequence.id = next_id_++;
  sequence.length = 0;
  sequence.drafts = 0;
  sequence.x_segments = 0;
  sequence.tables = PageTables(cache_.format, cache_.options.tables);
  sequence.ahead.clear();
  sequence.recent_first = cache_.streaming_pages.sink();
  sequence.recent_area = 0;
}

void Sequences::Cut(Sequence& sequence, int64_t tokens) {
  const int64_t closed = cache_.math.ClosedPages(tokens);
  for (PageTable& table : sequence.tables.all()) {
    const int64_t pages = std::max<int64_t>(0, closed - table.left_out());
    const int segments = cache_.math.Segments(pages);
    table.Resize(std::min(segments, table.segments()), ReleaserOf(*cache_.slabs));
    table.set_pages(std::min(pages, table.pages()));
    if (tokens == 0) table.Keep({}, 0);
    const int last = table.segments() - 1;
    for (int group = table.groups().first; last >= 0 && group < table.groups().last; ++group) {
      const SlabId id = table.slab(group, last);
      if (id != kNoSlab && (*cache_.slabs)[id].refs == 1)
        cache_.slabs->Cut(id, table.PagesIn(last));
    }
  }
  sequence.recent_first =
      std::min(sequence.recent_first, std::max(cache_.streaming_pages.sink(), closed));
  sequence.length = tokens;
  sequence.ahead.clear();
  sequence.drafts = 0;
}

void Sequences::DropReserved(Sequence* sequence) {
  for (PageTable& table : sequence->tables.all()) {
    table.Resize(cache_.math.Segments(table.pages()), ReleaserOf(*cache_.slabs));
  }
}

Status Sequences::Reserve(Sequence* sequence, int64_t tokens) {
  const int segments = cache_.math.Segments(cache_.math.ClosedPages(tokens));
  for (int segment = 0; segment < segments; ++segment) {
    for (int layer = 0; layer < cache_.format.layers; ++layer) {
      for (int group = 0; group < cache_.format.head_groups(layer); ++group) {
        PageTable& table = sequence->tables.of(layer, group);
        if (segment < table.segments() && table.slab(group, segment) != kNoSlab) continue;
        const Result<SlabId> made =
            cache_.slabs->New(sequence->KindOf(segment), layer, group, segment);
        if (!made.ok()) return made.status();
        table.Exchange(group, segment, *made);
      }
    }
  }
  return OkStatus();
}

Status Sequences::BeginStretch(SequenceId id, int64_t tokens) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  if (!cache_.slabs->Demotes(SlabKind::kKeysValues)) {
    if (Status s = Reserve(sequence, sequence->length + tokens); !s.ok()) {
      DropReserved(sequence);
      return s;
    }
  }
  sequence->ahead.assign(static_cast<size_t>(cache_.format.layers), 0);
  return OkStatus();
}

void Sequences::GiveUpStretches() {
  for (Sequence& sequence : sequences_) {
    if (sequence.id < 0 || sequence.ahead.empty()) continue;
    const bool begun = std::any_of(sequence.ahead.begin(), sequence.ahead.end(),
                                   [](int64_t ahead) { return ahead > 0; });
    if (begun) Cut(sequence, cache_.math.ClosedTokens(sequence.length));
    sequence.ahead.clear();
    DropReserved(&sequence);
  }
}

void Sequences::DropSequence(Sequence& sequence) {
  Cut(sequence, 0);
  sequence.id = -1;
  if (cache_.poison == nullptr) return;
  // One fence for the whole place: the poison waits for the last reader of any layer.
  Fence used;
  used.Add(Lane::kCompute, cache_.lanes.Soon(Lane::kCompute));
  const int place = PlaceOf(sequence);
  for (int layer = 0; layer < cache_.format.layers; ++layer)
    used.Join(cache_.buffers->open_fence(place, layer));
  for (const SlabKind kind : kAllSlabKinds) {
    if (!Of(cache_.layouts, kind).kept) continue;
    const OpenPages& pages = cache_.buffers->of(kind);
    cache_.poison->Fill(pages.Open(place, 0, 0), pages.open_place_bytes(), &used);
  }
  if (cache_.streaming->place_bytes() > 0) {
    cache_.poison->Fill(cache_.streaming->Place(place), cache_.streaming->place_bytes(), &used);
  }
  for (int layer = 0; layer < cache_.format.layers; ++layer)
    cache_.buffers->open_fence(place, layer).Join(used);
}

Result<SequenceId> Sequences::Create(int x_segments) {
  if (x_segments < 0 || (x_segments > 0 && !cache_.format.keeps_x())) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: " + std::to_string(x_segments) +
                      " segments of a sequence cannot keep what they are recomputed from");
  }
  const int place = FreePlace();
  if (place < 0) {
    return Status(StatusCode::kOutOfBudget,
                  "KV store: all " + std::to_string(cache_.options.max_sequences) +
                      " sequences are in use; drop one, or make the store for more");
  }
  Sequence& sequence = sequences_[static_cast<size_t>(place)];
  Begin(sequence);
  sequence.x_segments = x_segments;
  return sequence.id;
}

Result<SequenceId> Sequences::Fork(SequenceId id) {
  if (Find(id) == nullptr) return NoSuchSequence(id);
  Result<SequenceId> made = Create(0);
  if (!made.ok()) return made;
  const Sequence& from = *Find(id);
  Sequence& to = *Find(*made);
  to.length = from.length;
  to.x_segments = from.x_segments;
  to.tables = from.tables;
  to.recent_first = from.recent_first;
  to.recent_area = from.recent_area;
  for (const PageTable& table : to.tables.all()) {
    table.ForEachSlab([&](int, int, SlabId slab) { cache_.slabs->AddRef(slab); });
  }
  const int64_t open = from.length % cache_.math.slots();
  const int64_t streaming_bytes = cache_.streaming->place_bytes();
  if (open == 0 && streaming_bytes == 0) return made;
  StepBuffers& buffers = *cache_.buffers;
  const int from_place = PlaceOf(from), to_place = PlaceOf(to);
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    cache_.lanes.Wait(Lane::kCompute, buffers.open_fence(from_place, layer));
    cache_.lanes.Wait(Lane::kCompute, buffers.open_fence(to_place, layer));
  }
  for (const SlabKind kind : kAllSlabKinds) {
    if (!to.Keeps(kind)) continue;
    const OpenPages& pages = buffers.of(kind);
    cache_.compute->Copy(pages.Open(to_place, 0, 0), pages.Open(from_place, 0, 0),
                         static_cast<size_t>(pages.open_place_bytes()));
  }
  if (streaming_bytes > 0) {
    cache_.compute->Copy(cache_.streaming->Place(to_place), cache_.streaming->Place(from_place),
                         static_cast<size_t>(streaming_bytes));
  }
  return made;
}

Result<int64_t> Sequences::Truncate(SequenceId id, int64_t tokens) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  if (tokens < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: a sequence cannot be truncated to " + std::to_string(tokens));
  }
  const int64_t keep = cache_.math.ClosedTokens(std::min(tokens, sequence->length));
  const int segments = cache_.math.Segments(cache_.math.ClosedPages(keep));
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    const int needed = cache_.math.FirstKept(layer, keep);
    for (const PageTable& table : sequence->tables.of_layer(layer)) {
      if (needed >= segments || needed >= table.first_kept()) continue;
      return Status(StatusCode::kNotFound,
                    "KV store: the first " + std::to_string(keep) +
                        " tokens cannot be gone back to: the sliding window of layer " +
                        std::to_string(layer) + " has let go of pages that they need");
    }
  }
  const int64_t pages = cache_.math.ClosedPages(keep);
  for (const PageTable& table : sequence->tables.all()) {
    if (keep == 0 || table.left_out() == 0 || pages >= table.left_out() + table.kept_pages())
      continue;
    return Status(StatusCode::kNotFound,
                  "KV store: the first " + std::to_string(keep) +
                      " tokens cannot be gone back to: eviction has let go of some that they need");
  }
  const int64_t needed = cache_.streaming_pages.FirstVisible(keep);
  if (cache_.streaming->place_bytes() > 0 && needed < pages && needed < sequence->recent_first) {
    return Status(StatusCode::kNotFound,
                  "KV store: the first " + std::to_string(keep) +
                      " tokens cannot be gone back to: the streaming heads have let go of pages "
                      "that they need");
  }
  Cut(*sequence, keep);
  return keep;
}

Status Sequences::TakeBack(SequenceId id, int64_t tokens) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  if (tokens < 0 || tokens > sequence->drafts) {
    return Status(StatusCode::kInvalidArgument, "KV store: " + std::to_string(tokens) +
                                                    " tokens cannot be taken back, of " +
                                                    std::to_string(sequence->drafts) + " drafts");
  }
  // They are in the open page: what is written next goes over them.
  sequence->length -= tokens;
  sequence->drafts -= tokens;
  return OkStatus();
}

int64_t Sequences::StreamingPagesOf(const Sequence& sequence) const {
  const int64_t closed = cache_.math.ClosedPages(sequence.length);
  return std::min(closed, cache_.streaming_pages.sink()) +
         std::max<int64_t>(0, closed - sequence.recent_first);
}

int64_t Sequences::StreamingBytes() const {
  const auto used = [](const Sequence& sequence) { return sequence.id >= 0; };
  return cache_.streaming->place_bytes() *
         std::count_if(sequences_.begin(), sequences_.end(), used);
}

int64_t Sequences::StreamingTokenBytes() const {
  int64_t pages = 0;  // of each streaming head
  for (const Sequence& sequence : sequences_) {
    if (sequence.id >= 0) pages += StreamingPagesOf(sequence);
  }
  return 2 * cache_.format.pattern.StreamingHeads() * pages *
         static_cast<int64_t>(cache_.format.page.bytes());
}

}  // namespace headway::kv
