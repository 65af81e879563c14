#include "kv/store/session_keeper.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kv/step/summarize.h"
#include "kv/tiers/promotions.h"

namespace headway::kv {
namespace {

Status OfOtherTables() {
  return Status(StatusCode::kInvalidArgument,
                "KV store: the session is of what heads keep, and the heads of this store have one "
                "table");
}

}  // namespace

template <typename Visit>
Status SessionKeeper::VisitSlabs(const Sequence& sequence, Visit&& visit) {
  Status status;
  for (const PageTable& table : sequence.tables.all()) {
    table.ForEachSlab([&](int, int segment, SlabId id) {
      Slab& slab = (*cache_.slabs)[id];
      if (!status.ok() || slab.group >= GroupsInSession(slab.layer)) return;
      status = visit(slab, segment, table.PagesIn(segment));
    });
  }
  return status;
}

Status SessionKeeper::WriteSlabs(const Sequence& sequence) {
  int64_t slots = 0;
  Status status = VisitSlabs(sequence, [&](const Slab& slab, int, int pages) {
    slots += cache_.slabs->NeedsSlot(slab, pages);
    return OkStatus();
  });
  if (!status.ok()) return status;
  if (slots > cache_.disk.Room()) {
    return Status(StatusCode::kOutOfBudget,
                  "KV store: saving needs " + std::to_string(slots) + " more slabs of " +
                      FormatBytes(cache_.format.slab_bytes()) + " on disk, and there is room for " +
                      std::to_string(cache_.disk.Room()) + "; raise " +
                      cache_.disk.budget()->name() + " (" +
                      FormatBytes(cache_.disk.budget()->limit()) + ")");
  }
  status = VisitSlabs(
      sequence, [&](Slab& slab, int, int pages) { return cache_.slabs->KeepOnDisk(slab, pages); });
  // Also after an error: what was written is then known to be there or not.
  Fence written;
  written.Add(Lane::kDiskWrite, cache_.lanes.Soon(Lane::kDiskWrite));
  cache_.lanes.HostWait(written);
  cache_.disk.ReclaimAll();  // the manifest needs slots too
  // What a lane that failed has copied, now or before, is not what the manifest would say.
  return status.ok() ? cache_.LaneStatus() : status;
}

int SessionKeeper::GroupsInSession(int layer) const {
  const SessionHeads& heads = cache_.options.session_heads;
  if (heads.all == 0) return cache_.format.head_groups(layer);
  return static_cast<int>(heads.own[static_cast<size_t>(layer)].size());
}

int SessionKeeper::InSession(int layer, int group) const {
  const SessionHeads& heads = cache_.options.session_heads;
  if (heads.all == 0) return group;
  return heads.own[static_cast<size_t>(layer)][static_cast<size_t>(group)];
}

Result<Manifest> SessionKeeper::Write(SequenceId id, std::span<const TokenId> tokens,
                                      Manifest meta) {
  if (!cache_.disk.holds_session()) {
    return Status(StatusCode::kInvalidArgument, "KV store: there is no session to save to");
  }
  const Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) {
    return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
  }
  const bool kept = meta.kept.has_value();
  for (const PageTable& table : sequence->tables.all()) {
    if (kept || table.left_out() + table.kept_pages() == 0) continue;
    return Status(StatusCode::kInvalidArgument,
                  "KV store: what heads keep is saved with words that say how it was chosen");
  }
  const int64_t held = kept ? sequence->length : cache_.math.ClosedTokens(sequence->length);
  if (static_cast<int64_t>(tokens.size()) < held) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: " + std::to_string(tokens.size()) + " tokens are given for " +
                      std::to_string(held) + " that the sequence holds");
  }
  Status status = kept ? DescribeKept(*sequence, &*meta.kept) : OkStatus();
  if (status.ok()) status = WriteSlabs(*sequence);
  if (!status.ok()) return status;

  meta.format = SessionFormatOf(cache_.options);
  meta.tokens.assign(tokens.begin(), tokens.begin() + held);
  meta.slabs.clear();
  status = VisitSlabs(*sequence, [&](const Slab& slab, int segment, int pages) {
    DiskCopy& copy = *slab.disk;
    Status written = copy.Check(pages);
    if (!written.ok()) return written;
    const int group = InSession(slab.layer, slab.group);
    SavedSlab saved{slab.layer, group, segment, pages, copy.slot, {}};
    saved.checksums.assign(copy.checksums.begin(), copy.checksums.begin() + pages);
    meta.slabs.push_back(std::move(saved));
    return OkStatus();
  });
  if (!status.ok()) return status;
  // Even if the commit fails, a crash may bring its manifest back. Where none follows, pages that
  // replace these go to another slot for nothing.
  status = VisitSlabs(*sequence, [](const Slab& slab, int, int pages) {
    slab.disk->sealed = std::max(slab.disk->sealed, pages);
    return OkStatus();
  });
  if (!status.ok()) return status;
  return meta;
}

Status SessionKeeper::Commit(const Manifest& manifest) {
  const std::vector<SavedSlab> before = cache_.disk.file().manifest().slabs;
  if (Status s = cache_.disk.file().Commit(manifest); !s.ok()) return s;
  if (!std::exchange(restored_, true)) {
    // The session that was there is replaced without having been restored.
    for (const SavedSlab& slab : before) cache_.disk.file().Free(slab.slot);
  }
  return OkStatus();
}

Status SessionKeeper::DescribeKept(const Sequence& sequence, SavedKept* kept) {
  kept->positions.clear();
  if (cache_.options.tables != PageTables::Sharing::kGroup) return OfOtherTables();
  for (const PageTable& table : sequence.tables.all()) {
    if (table.left_out() + table.kept_pages() != kept->ClosedPages(cache_.format.page.page_slots)) {
      return Status(StatusCode::kInvalidArgument,
                    "KV store: the sequence does not keep tokens of a prompt of " +
                        std::to_string(kept->from));
    }
    const std::span<const int32_t> positions = table.positions();
    kept->positions.emplace_back(positions.begin(), positions.end());
  }
  kept->open.resize(static_cast<size_t>(OpenPageBytes(cache_.format, sequence.length)));
  const Status status = CopyOpenPages(sequence, OpenPagesTo::kSession, kept->open.data());
  if (!status.ok() || cache_.options.session_heads.all == 0) return status;
  LayerHeads saved;
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    std::vector<int>& groups = saved.emplace_back(static_cast<size_t>(GroupsInSession(layer)));
    std::iota(groups.begin(), groups.end(), 0);
  }
  *kept = PartOfKept(*kept, cache_.format.kv_heads, saved);
  return OkStatus();
}

Status SessionKeeper::CopyOpenPages(const Sequence& sequence, OpenPagesTo to, std::byte* bytes) {
  const int64_t slots = sequence.length % cache_.math.slots();
  if (slots == 0) return OkStatus();
  const OpenPages& pages = cache_.buffers->of(SlabKind::kKeysValues);
  const int place = sequences_.PlaceOf(sequence);
  const auto width = static_cast<size_t>(slots * pages.layout().slot_bytes);
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    cache_.lanes.Wait(Lane::kCompute, cache_.buffers->open_fence(place, layer));
  }
  std::byte* const open = pages.Open(place, 0, 0);
  const auto stride = static_cast<size_t>(pages.open_row_stride());
  const size_t rows = static_cast<size_t>(cache_.format.layers * pages.layout().open_rows);
  if (to == OpenPagesTo::kSession) {
    cache_.compute->Copy2D(bytes, width, open, stride, width, rows);
  } else {
    cache_.compute->Copy2D(open, stride, bytes, width, width, rows);
  }
  return cache_.compute->Synchronize();
}

Status SessionKeeper::RestoreKept(const SavedKept& kept, Sequence* sequence) {
  const int slots = cache_.format.page.page_slots;
  size_t next = 0;
  for (PageTable& table : sequence->tables.all()) {
    const int64_t pages = kept.PagesOf(next, sequence->length, slots);
    table.Keep(kept.positions[next], kept.ClosedPages(slots));
    table.Resize(cache_.math.Segments(pages), ReleaserOf(*cache_.slabs));
    table.set_pages(pages);
    ++next;
  }
  std::vector<std::byte> open = kept.open;
  return CopyOpenPages(*sequence, OpenPagesTo::kSequence, open.data());
}

Result<SequenceId> SessionKeeper::Restore() {
  if (!cache_.disk.holds_session() || restored_) {
    return Status(StatusCode::kInvalidArgument,
                  restored_ ? "KV store: the session was restored or replaced already"
                            : "KV store: there is no session to restore");
  }
  const Manifest& manifest = cache_.disk.file().manifest();
  if (manifest.kept.has_value() && cache_.options.tables != PageTables::Sharing::kGroup) {
    return OfOtherTables();
  }
  const auto length = static_cast<int64_t>(manifest.tokens.size());
  // Where each layer's slabs begin; the manifest's own rules leave none out behind that.
  std::vector<int> first(static_cast<size_t>(cache_.format.layers),
                         cache_.math.Segments(cache_.math.ClosedPages(length)));
  for (const SavedSlab& saved : manifest.slabs) {
    int& segment = first[static_cast<size_t>(saved.layer)];
    segment = std::min(segment, saved.segment);
  }
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    const int begin = first[static_cast<size_t>(layer)];
    if (begin > 0 && begin > cache_.math.FirstKept(layer, length)) {
      return Status(StatusCode::kNotFound,
                    "KV store: the session has let go of pages that the sliding window of layer " +
                        std::to_string(layer) + " needs; delete it to start anew");
    }
  }
  Result<SequenceId> made = sequences_.Create(0);
  if (!made.ok()) return made;
  Sequence& sequence = *sequences_.Find(*made);
  sequence.length = length;
  if (manifest.kept.has_value()) {
    const SessionHeads& heads = cache_.options.session_heads;
    const Status s = RestoreKept(
        heads.all == 0 ? *manifest.kept
                       : PartOfKept(*manifest.kept, heads.all, heads.own, cache_.format.kv_heads),
        &sequence);
    if (!s.ok()) {
      sequences_.DropSequence(sequence);
      return s;
    }
  } else {
    ResizeTables(first, &sequence);
  }
  if (Status s = AdoptSlabs(manifest, &sequence); !s.ok()) {
    sequences_.DropSequence(sequence);
    return s;
  }
  return made;
}

void SessionKeeper::ResizeTables(std::span<const int> first, Sequence* sequence) {
  const int64_t pages = cache_.math.ClosedPages(sequence->length);
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    for (PageTable& table : sequence->tables.of_layer(layer)) {
      table.Resize(cache_.math.Segments(pages), ReleaserOf(*cache_.slabs));
      table.set_pages(pages);
      table.FreeBefore(first[static_cast<size_t>(layer)], ReleaserOf(*cache_.slabs));
    }
  }
}

Status SessionKeeper::AdoptSlabs(const Manifest& manifest, Sequence* sequence) {
  const CacheFormat& format = cache_.format;
  // [layers, head groups of the session]: those of the store.
  std::vector<std::map<int, int>> groups(static_cast<size_t>(format.layers));
  for (int layer = 0; layer < format.layers; ++layer) {
    for (int group = 0; group < GroupsInSession(layer); ++group) {
      groups[static_cast<size_t>(layer)][InSession(layer, group)] = group;
    }
  }
  for (const SavedSlab& saved : manifest.slabs) {
    const std::map<int, int>& of_layer = groups[static_cast<size_t>(saved.layer)];
    const auto own = of_layer.find(saved.group);
    if (own == of_layer.end()) continue;  // another store's
    const int group = own->second;
    auto copy = std::make_shared<DiskCopy>(saved.slot, cache_.format.segment_pages);
    copy->pages = copy->sealed = saved.pages;
    std::copy(saved.checksums.begin(), saved.checksums.end(), copy->checksums.begin());
    sequence->tables.of(saved.layer, group)
        .Exchange(group, saved.segment,
                  cache_.slabs->Adopt(saved.layer, group, saved.segment, std::move(copy)));
  }
  restored_ = true;
  return AdoptZeros(sequence);
}

// On disk, where the others are: what brings these up, or streams them, does so with zeros.
Status SessionKeeper::AdoptZeros(Sequence* sequence) {
  std::vector<SlabId> zeros;
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    for (int group = GroupsInSession(layer); group < cache_.format.head_groups(layer); ++group) {
      PageTable& table = sequence->tables.of(layer, group);
      for (int segment = table.first_kept(); segment < table.segments(); ++segment) {
        Result<SlabId> slab = cache_.slabs->NewZeros(layer, group, segment, table.PagesIn(segment));
        if (!slab.ok()) return slab.status();
        table.Exchange(group, segment, *slab);
        zeros.push_back(*slab);
      }
    }
  }
  for (const SlabId id : zeros) {
    const Slab& slab = (*cache_.slabs)[id];
    cache_.lanes.HostWait(slab.written);
    if (Status s = slab.disk->Check(slab.pages); !s.ok()) return s;
  }
  return OkStatus();
}

Status SessionKeeper::BringUpSegment(std::span<const SlabId> slabs, int64_t position,
                                     const SlotAngles& angles) {
  Promotions promotions(&cache_.lanes, &*cache_.mover, &*cache_.slabs);
  Status status;
  for (const SlabId id : slabs) {
    const Result<Slabs::Vacancy> vacancy = cache_.slabs->VacancyInMemory((*cache_.slabs)[id]);
    status = vacancy.status();
    if (!status.ok()) break;
    promotions.Begin(id, *vacancy);
  }
  std::vector<SlabId> up;
  const Status read = promotions.End(&up);
  SummarizeSegment(cache_, up, position, angles);
  return status.ok() ? read : status;
}

Status SessionKeeper::BringUp(SequenceId id, const SlotAngles& angles, WithoutRoom rest,
                              const UpProgress& progress) {
  const Sequence* sequence = sequences_.Find(id);
  if (sequence == nullptr) {
    return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
  }
  std::vector<std::vector<SlabId>> segments;
  for (const PageTable& table : sequence->tables.all()) {
    segments.resize(std::max(segments.size(), static_cast<size_t>(table.segments())));
    table.ForEachSlab([&](int, int segment, SlabId slab) {
      if ((*cache_.slabs)[slab].tier != Tier::kDisk) return;
      segments[static_cast<size_t>(segment)].push_back(slab);
    });
  }
  const int64_t tokens = cache_.format.segment_tokens();
  const int64_t total = tokens * std::count_if(segments.begin(), segments.end(),
                                               [](const auto& slabs) { return !slabs.empty(); });
  // The newest first: the device is for keys that every step reads.
  Status status;
  bool room = true;
  int64_t done = 0;
  for (size_t i = segments.size(); status.ok() && i-- > 0;) {
    if (segments[i].empty()) continue;
    if (!progress(done, total)) {
      status = Status(StatusCode::kCancelled, "cancelled");
      break;
    }
    if (room) {
      status = BringUpSegment(segments[i], static_cast<int64_t>(i) * tokens, angles);
      room = status.code() != StatusCode::kOutOfBudget;
    }
    if (!room && rest == WithoutRoom::kStays) {
      const bool lists = cache_.listed_pages != nullptr;
      status = lists ? reads_.SummarizeOnDisk(segments[i]) : OkStatus();
    }
    done += tokens;
  }
  if (!status.ok()) return status;
  if (total > 0) progress(done, total);  // there is nothing left to cancel
  return cache_.LaneStatus();
}

}  // namespace headway::kv
