#include "kv/session/slab_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "headway/refusal.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/slab_file_impl.h"

namespace headway::kv {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

SlabFile::Impl::~Impl() {
  if (!session || file == nullptr || share.process > 0) return;
  if (published) Trim();
  if (published) return;
  // Still locked, so that it is no other's; when it cannot be removed it is written over next time.
  const Status ignored = env->Remove(OpenPath());
  static_cast<void>(ignored);
}

Status SlabFile::Impl::Adopt(SavedSession saved) {
  std::vector<int64_t> used;
  const auto adopt = [&](int64_t slot, bool own) {
    used.push_back(slot);
    if (own) return slots.TakeAt(slot);
    slots.Leave(slot);
    return OkStatus();
  };
  const bool first = share.process == 0;
  for (const int64_t slot : saved.manifest_slots) {
    if (Status s = adopt(slot, first); !s.ok()) return s;
  }
  for (const SavedSlab& slab : saved.manifest.slabs) {
    if (Status s = adopt(slab.slot, !shared() || share.own(slab)); !s.ok()) return s;
  }
  slots.BeginCommit(used);
  slots.KeepNext();
  for (const int64_t slot : saved.manifest_slots) {
    if (first) slots.Give(slot);
  }
  manifest = std::move(saved.manifest);
  Protect(manifest.slabs, &protected_pages);
  kept_end = saved.superblock.slots;
  generation = saved.superblock.generation;
  side = saved.side;
  committed = published = directory_synced = true;
  return OkStatus();
}

Result<int64_t> SlabFile::Impl::Allocate() {
  const std::lock_guard<std::mutex> lock(mutex);
  Result<int64_t> slot = slots.Take();
  if (!slot.ok()) return slot.status();
  Status status = Grow(*slot);
  if (!status.ok()) {
    slots.Give(*slot);
    return status;
  }
  return slot;
}

Status SlabFile::Impl::Grow(int64_t slot) {
  if (shared()) return GrowShared(slot);
  const int64_t slab = format.slab_bytes();
  if (Offset(slot) + slab <= bytes) return OkStatus();
  const int64_t ahead = std::min({kGrowBytes, bytes, budget->available()}) / slab;
  const int64_t wanted = Offset(slot + std::max<int64_t>(1, ahead));
  Status status = file->Truncate(wanted);
  if (status.ok()) bytes = wanted;
  return status;
}

void SlabFile::Impl::Shrink() {
  if (shared()) return;  // others may use what is behind
  const std::lock_guard<std::mutex> lock(mutex);
  ShrinkTo(slots.End());
}

// What no manifest names has no more use: a full disk has the room back that a save has begun to
// take.
void SlabFile::Impl::Trim() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (shared()) {
    // The others have ended, or commit no more.
    const Result<int64_t> size = file->Size();
    if (size.ok()) bytes = *size;
  }
  ShrinkTo(kept_end);
}

void SlabFile::Impl::ShrinkTo(int64_t end) {
  const int64_t wanted = Offset(end);
  // A file longer than it need be is no failure.
  if (wanted < bytes && file->Truncate(wanted).ok()) bytes = wanted;
}

void SlabFile::Impl::CheckAccess(int64_t slot, int heads, int first, int count) {
  HEADWAY_CHECK(heads >= 1 && heads <= format.group_heads);
  HEADWAY_CHECK(first >= 0 && count >= 0 && first <= format.segment_pages - count);
  const std::lock_guard<std::mutex> lock(mutex);
  HEADWAY_CHECK(slots.Holds(slot));
}

void SlabFile::Impl::Protect(std::span<const SavedSlab> slabs, PagesOfSlots* protected_pages) {
  for (const SavedSlab& slab : slabs) {
    int32_t& pages = (*protected_pages)[slab.slot];
    pages = std::max(pages, slab.pages);
  }
}

Result<std::vector<int64_t>> SlabFile::Impl::AllocateMany(int64_t count) {
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < count; ++i) {
    Result<int64_t> slot = Allocate();
    if (!slot.ok()) {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const int64_t given : taken) slots.Give(given);
      return slot.status();
    }
    taken.push_back(*slot);
  }
  return taken;
}

// The superblock that points to the manifest written.
Result<Superblock> SlabFile::Impl::WriteManifest(const std::vector<std::byte>& encoded,
                                                 std::span<const int64_t> to) {
  const int64_t slab = format.slab_bytes();
  Result<ManifestParts> parts = LayOutManifest(env, encoded, to, slab);
  if (!parts.ok()) return parts.status();
  std::vector<IoPiece> pieces;
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t at = i * parts->stride;
    AppendPieces(parts->buffer.data() + at, std::min(parts->stride, parts->buffer.size() - at),
                 Offset(to[i]), &pieces);
  }
  Status status = file->Write(pieces);
  if (!status.ok()) return status;
  Superblock superblock;
  superblock.generation = generation;
  superblock.slab_bytes = slab;
  superblock.manifest_slot = to.front();
  superblock.manifest_bytes = static_cast<int64_t>(encoded.size());
  superblock.manifest_hash = XXH3_64bits(encoded.data(), encoded.size());
  return superblock;
}

// Never touches the superblock that counts. The first commit writes both, so that no single damage
// makes the file unrecognisable.
Status SlabFile::Impl::WriteSuperblock(const Superblock& next, AlignedBuffer* block) {
  EncodeSuperblock(next, block->data());
  std::vector<IoPiece> pieces;
  for (const int to : {0, 1}) {
    if (committed && to == side) continue;
    pieces.push_back(
        {block->data(), kSuperblockBytes, to * static_cast<int64_t>(kSuperblockBytes)});
  }
  Status status = file->Write(pieces);
  if (!status.ok()) return status;
  return Sync();
}

// The system forgets what it could not write when it reports so: a later sync that succeeds says
// nothing about it. After one failure this file is not committed to again.
Status SlabFile::Impl::CheckSynced() const {
  if (!sync_failed) return OkStatus();
  return Status(StatusCode::kIo, "cannot save to " + path +
                                     ": writing to its disk failed before; what was saved until "
                                     "then is kept");
}

Status SlabFile::Impl::Sync() {
  Status status = file->Sync();
  sync_failed = !status.ok();
  return status;
}

Status SlabFile::Impl::Publish() {
  if (!published) {
    if (replaces == nullptr && env->Exists(path)) {
      return Status(StatusCode::kInvalidArgument,
                    Refusal{{path + " has come to exist meanwhile; give another ", Option::kSession,
                             " file"}});
    }
    Status status = env->Rename(OpenPath(), path);
    if (!status.ok()) return status;
    published = true;
    replaces.reset();
  }
  if (!directory_synced) {
    Status status = env->SyncDirectory(DirectoryOf(path));
    if (!status.ok()) return status;
    directory_synced = true;
  }
  return OkStatus();
}

Status SlabFile::Impl::Commit(const Manifest& next) {
  HEADWAY_CHECK(session);
  HEADWAY_CHECK(SameFormat(next.format, format));
  const std::lock_guard<std::mutex> commit_lock(commit_mutex);
  outcome = CommitOutcome::kNotBegun;
  if (Status s = CheckSynced(); !s.ok()) return s;
  Status status = CheckManifest(next, kMaxSlots);
  if (!status.ok()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot save to {}: {}", path, status.message()));
  }
  const std::vector<std::byte> encoded = EncodeManifest(next);
  if (encoded.size() > kMaxManifestBytes) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("cannot save to {}: its description takes {}, {} is the most", path,
                              FormatBytes(static_cast<int64_t>(encoded.size())),
                              FormatBytes(kMaxManifestBytes)));
  }
  Result<std::vector<int64_t>> manifest_slots =
      AllocateMany(ManifestSlots(static_cast<int64_t>(encoded.size()), format.slab_bytes()));
  if (!manifest_slots.ok()) return manifest_slots.status();

  const Ending ending{*this};
  int64_t end = 0;
  {
    std::vector<int64_t> used = *manifest_slots;
    for (const SavedSlab& slab : next.slabs) used.push_back(slab.slot);
    end = *std::max_element(used.begin(), used.end()) + 1;
    const std::lock_guard<std::mutex> lock(mutex);
    slots.BeginCommit(used);
    for (const int64_t slot : *manifest_slots) slots.Give(slot);
  }
  const auto abandon = [this](const Status& why) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      slots.Abandon();
    }
    Shrink();
    return why;
  };
  ++generation;
  Result<Superblock> superblock = WriteManifest(encoded, *manifest_slots);
  if (!superblock.ok()) return abandon(superblock.status());
  superblock->slots = end;
  Result<AlignedBuffer> block = AlignedBuffer::Allocate(env, kSuperblockBytes);
  if (!block.ok()) return abandon(block.status());
  if (Status s = Sync(); !s.ok()) return abandon(s);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    slots.KeepBoth();
    kept_end = std::max(kept_end, end);
    Protect(next.slabs, &protected_pages);
  }
  outcome = CommitOutcome::kUnknown;
  status = WriteSuperblock(*superblock, &*block);
  if (!status.ok()) return abandon(status);
  outcome = CommitOutcome::kDone;
  side = committed ? 1 - side : 0;
  committed = true;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    slots.KeepNext();
    kept_end = end;
    protected_pages.clear();
    Protect(next.slabs, &protected_pages);
  }
  manifest = next;
  Shrink();
  return Publish();
}

SlabFile::SlabFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SlabFile::~SlabFile() = default;

Result<std::unique_ptr<SlabFile>> SlabFile::CreateTemporary(Env* env, const std::string& directory,
                                                            const CacheFormat& format,
                                                            Budget* budget) {
  Status status = CheckFormat(format);
  if (!status.ok()) return status;
  auto impl = std::make_unique<Impl>(env, directory, format, budget, SlabFileKind::kTemporary);
  Result<std::unique_ptr<File>> file = env->Open(directory, OpenMode::kTemporary, FileIo::kDirect);
  if (!file.ok()) {
    return file.status().Within({}, {"; give another ", Option::kDiskPath});
  }
  impl->file = std::move(*file);
  return std::unique_ptr<SlabFile>(new SlabFile(std::move(impl)));
}

Result<std::unique_ptr<SlabFile>> SlabFile::CreateSession(std::unique_ptr<SessionClaim> claim,
                                                          const CacheFormat& format, Budget* budget,
                                                          const SlabFileShare& share) {
  Status status = CheckFormat(format);
  if (!status.ok()) return status;
  if (claim->temporary_ == nullptr) status = claim->OpenTemporary();
  if (!status.ok()) return status;
  auto impl = std::make_unique<Impl>(claim->env_, claim->path_, format, budget,
                                     SlabFileKind::kSession, share);
  Result<Reservation> header = budget->Reserve(kFirstSlotOffset, "slab file");
  if (!header.ok()) return header.status();
  impl->header = std::move(*header);
  impl->file = std::move(claim->temporary_);
  impl->replaces = std::move(claim->session_);
  return std::unique_ptr<SlabFile>(new SlabFile(std::move(impl)));
}

Result<std::unique_ptr<SlabFile>> SlabFile::OpenSession(std::unique_ptr<SessionClaim> claim,
                                                        Budget* budget,
                                                        const SlabFileShare& share) {
  HEADWAY_CHECK(claim->exists());
  Result<Reservation> header = budget->Reserve(kFirstSlotOffset, "slab file");
  if (!header.ok()) return header.status();
  Result<int64_t> size = claim->session_->Size();
  if (!size.ok()) return size.status();
  auto impl = std::make_unique<Impl>(claim->env_, claim->path_, claim->manifest().format, budget,
                                     SlabFileKind::kSession, share);
  impl->header = std::move(*header);
  impl->file = std::move(claim->session_);
  impl->bytes = *size;
  Status status = impl->Adopt(std::move(claim->saved_));
  if (!status.ok()) return status;
  return std::unique_ptr<SlabFile>(new SlabFile(std::move(impl)));
}

bool SlabFile::is_session() const { return impl_->session; }
const CacheFormat& SlabFile::format() const { return impl_->format; }
const Manifest& SlabFile::manifest() const { return impl_->manifest; }
bool SlabFile::direct() const { return impl_->file->direct(); }

int64_t SlabFile::file_bytes() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->bytes;
}

Result<int64_t> SlabFile::Allocate() { return impl_->Allocate(); }

void SlabFile::Free(int64_t slot) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->slots.IsOthers(slot)) impl_->slots.Give(slot);
}

Result<std::vector<uint64_t>> SlabFile::WritePages(int64_t slot, int heads, int first, int count,
                                                   const std::byte* slab) {
  impl_->CheckAccess(slot, heads, first, count);
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    const auto kept = impl_->protected_pages.find(slot);
    HEADWAY_CHECK(kept == impl_->protected_pages.end() || first >= kept->second);
  }
  std::vector<IoPiece> pieces;
  AppendSlabPieces(impl_->format, {heads, first, count, first}, impl_->Offset(slot),
                   const_cast<std::byte*>(slab), &pieces);  // a write only reads
  Status status = impl_->file->Write(pieces);
  if (!status.ok()) return status;
  std::vector<uint64_t> checksums;
  checksums.reserve(static_cast<size_t>(count));
  for (int page = first; page < first + count; ++page) {
    checksums.push_back(PageChecksum(impl_->format, heads, page, slab));
  }
  return checksums;
}

Status SlabFile::ReadPages(int64_t slot, int heads, std::span<const uint64_t> checksums,
                           std::byte* slab) {
  const int count = static_cast<int>(checksums.size());
  impl_->CheckAccess(slot, heads, 0, count);
  std::vector<IoPiece> pieces;
  AppendSlabPieces(impl_->format, {heads, 0, count, 0}, impl_->Offset(slot), slab, &pieces);
  Status status = impl_->file->Read(pieces);
  if (!status.ok()) return status;
  for (int page = 0; page < count; ++page) {
    if (PageChecksum(impl_->format, heads, page, slab) != checksums[static_cast<size_t>(page)]) {
      return impl_->Damaged(page, slot);
    }
  }
  return OkStatus();
}

Status SlabFile::ReadEach(std::span<const PageRead> pages) {
  std::vector<IoPiece> pieces;
  for (const PageRead& read : pages) {
    impl_->CheckAccess(read.slot, read.heads, read.page, 1);
    AppendSlabPieces(impl_->format, {read.heads, read.page, 1, read.to}, impl_->Offset(read.slot),
                     read.slab, &pieces);
  }
  Status status = impl_->file->Read(pieces);
  if (!status.ok()) return status;
  for (const PageRead& read : pages) {
    if (PageChecksum(impl_->format, read.heads, read.to, read.slab) != *read.checksum) {
      return impl_->Damaged(read.page, read.slot);
    }
  }
  return OkStatus();
}

Status SlabFile::Commit(const Manifest& manifest) { return impl_->Commit(manifest); }

CommitOutcome SlabFile::TakeOutcome() {
  const std::lock_guard<std::mutex> lock(impl_->commit_mutex);
  return std::exchange(impl_->outcome, CommitOutcome::kNotBegun);
}

}  // namespace headway::kv
