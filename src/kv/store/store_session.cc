// Saving a sequence of a Store to its session file, and restoring it.
#include <utility>

#include "base/bytes.h"
#include "kv/store/store.h"
#include "kv/store/store_impl.h"

namespace headway::kv {

template <typename Visit>
Status Store::Impl::VisitSlabs(const Sequence& sequence, Visit&& visit) {
  Status status;
  for (const PageTable& table : sequence.tables.all()) {
    table.ForEachSlab([&](int, int segment, SlabId id) {
      if (status.ok()) status = visit((*slabs)[id], segment, table.PagesIn(segment));
    });
  }
  return status;
}

Status Store::Impl::WriteSlabs(const Sequence& sequence) {
  int64_t slots = 0;
  Status status = VisitSlabs(sequence, [&](const Slab& slab, int, int pages) {
    slots += slabs->NeedsSlot(slab, pages);
    return OkStatus();
  });
  if (!status.ok()) return status;
  if (slots > disk.Room()) {
    return Status(StatusCode::kOutOfBudget,
                  "KV store: saving needs " + std::to_string(slots) + " more slabs of " +
                      FormatBytes(format.slab_bytes()) + " on disk, and there is room for " +
                      std::to_string(disk.Room()) + "; raise " + disk.budget()->name() + " (" +
                      FormatBytes(disk.budget()->limit()) + ")");
  }
  status = VisitSlabs(sequence,
                      [&](Slab& slab, int, int pages) { return slabs->KeepOnDisk(slab, pages); });
  // Also after an error: what was written is then known to be there or not.
  Fence written;
  written.Add(Lane::kDiskWrite, lanes.Soon(Lane::kDiskWrite));
  lanes.HostWait(written);
  disk.Reclaim(/*wait=*/true);  // the manifest needs slots too
  // What a lane that failed has copied, now or before, is not what the manifest would say.
  return status.ok() ? LaneStatus() : status;
}

Status Store::Save(SequenceId id, std::span<const TokenId> tokens, Manifest meta) {
  Impl& impl = *impl_;
  Status status = impl.RefuseInStep("a session cannot be saved");
  if (!status.ok()) return status;
  if (!impl.is_session) {
    return Status(StatusCode::kInvalidArgument, "KV store: there is no session to save to");
  }
  const Sequence* sequence = impl.Find(id);
  if (sequence == nullptr) {
    return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
  }
  const int64_t closed = impl.math.ClosedTokens(sequence->length);
  if (static_cast<int64_t>(tokens.size()) < closed) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: " + std::to_string(tokens.size()) + " tokens are given for " +
                      std::to_string(closed) + " that the sequence holds");
  }
  status = impl.WriteSlabs(*sequence);
  if (!status.ok()) return status;

  const std::vector<SavedSlab> before = impl.disk.file().manifest().slabs;
  meta.format = impl.format;
  meta.tokens.assign(tokens.begin(), tokens.begin() + closed);
  meta.slabs.clear();
  status = impl.VisitSlabs(*sequence, [&](const Slab& slab, int segment, int pages) {
    DiskCopy& copy = *slab.disk;
    Status written = copy.Check(pages);
    if (!written.ok()) return written;
    SavedSlab saved{slab.layer, slab.group, segment, pages, copy.slot, {}};
    saved.checksums.assign(copy.checksums.begin(), copy.checksums.begin() + pages);
    meta.slabs.push_back(std::move(saved));
    return OkStatus();
  });
  if (!status.ok()) return status;
  // Even if the commit fails, a crash may bring its manifest back.
  status = impl.VisitSlabs(*sequence, [](const Slab& slab, int, int pages) {
    slab.disk->sealed = std::max(slab.disk->sealed, pages);
    return OkStatus();
  });
  if (status.ok()) status = impl.disk.file().Commit(meta);
  if (!status.ok()) return status;
  if (!std::exchange(impl.restored, true)) {
    // The session that was there is replaced without having been restored.
    for (const SavedSlab& slab : before) impl.disk.file().Free(slab.slot);
  }
  return OkStatus();
}

Result<SequenceId> Store::Restore() {
  Impl& impl = *impl_;
  Status status = impl.RefuseInStep("a session cannot be restored");
  if (!status.ok()) return status;
  if (!impl.is_session || impl.restored) {
    return Status(StatusCode::kInvalidArgument,
                  impl.restored ? "KV store: the session was restored or replaced already"
                                : "KV store: there is no session to restore");
  }
  const Manifest& manifest = impl.disk.file().manifest();
  const auto length = static_cast<int64_t>(manifest.tokens.size());
  // Where each layer's slabs begin; the manifest's own rules leave none out behind that.
  std::vector<int> first(static_cast<size_t>(impl.format.layers),
                         impl.math.Segments(impl.math.ClosedPages(length)));
  for (const SavedSlab& saved : manifest.slabs) {
    int& segment = first[static_cast<size_t>(saved.layer)];
    segment = std::min(segment, saved.segment);
  }
  for (int layer = 0; layer < impl.format.layers; ++layer) {
    const int begin = first[static_cast<size_t>(layer)];
    if (begin > 0 && begin > impl.math.FirstKept(layer, length)) {
      return Status(StatusCode::kNotFound,
                    "KV store: the session has let go of pages that the sliding window of layer " +
                        std::to_string(layer) + " needs; delete it to start anew");
    }
  }
  Result<SequenceId> made = CreateSequence();
  if (!made.ok()) return made;
  Sequence& sequence = *impl.Find(*made);
  sequence.length = length;
  const int64_t pages = impl.math.ClosedPages(length);
  for (int layer = 0; layer < impl.format.layers; ++layer) {
    for (PageTable& table : sequence.tables.of_layer(layer)) {
      table.Resize(impl.math.Segments(pages), impl.Releaser());
      table.set_pages(pages);
      table.FreeBefore(first[static_cast<size_t>(layer)], impl.Releaser());
    }
  }
  for (const SavedSlab& saved : manifest.slabs) {
    auto copy = std::make_shared<DiskCopy>(saved.slot, impl.format.segment_pages);
    copy->pages = copy->sealed = saved.pages;
    std::copy(saved.checksums.begin(), saved.checksums.end(), copy->checksums.begin());
    sequence.tables.of(saved.layer, saved.group)
        .Exchange(saved.group, saved.segment,
                  impl.slabs->Adopt(saved.layer, saved.group, std::move(copy)));
  }
  impl.restored = true;
  return made;
}

}  // namespace headway::kv
