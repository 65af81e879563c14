// A session's file that several processes write.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "headway/refusal.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/slab_file_impl.h"

namespace headway::kv {
namespace {

constexpr size_t kBlockBytes = kDirectAlignment;

constexpr char kOnWhatAllHave[] = " file: give one on a file system that all of them have";

Status NotShared(const std::string& path, const std::string& how) {
  return Status(
      StatusCode::kInvalidArgument,
      Refusal{{path + " is " + how + " than the first rank's: ranks in processes share one ",
               Option::kSession, kOnWhatAllHave}});
}

}  // namespace

// The last bytes of a slot that this process will use: all processes' slots are there then as far
// as a manifest may say, and nobody needs to know how long the file is.
Status SlabFile::Impl::GrowShared(int64_t slot) {
  const int64_t slab = format.slab_bytes();
  if (Offset(slot) + slab <= bytes) return OkStatus();
  const int64_t ahead = std::min({kGrowBytes, bytes, budget->available()}) / slab / share.processes;
  const int64_t end = Offset(slot + std::max<int64_t>(0, ahead - 1) * share.processes) + slab;
  Result<AlignedBuffer> zeros = AlignedBuffer::Allocate(env, kBlockBytes);
  if (!zeros.ok()) return zeros.status();
  const IoPiece piece{zeros->data(), kBlockBytes, end - static_cast<int64_t>(kBlockBytes)};
  Status status = file->Write({&piece, 1});
  if (status.ok()) bytes = end;
  return status;
}

Result<SessionMark> SlabFile::Invite() {
  Impl& impl = *impl_;
  HEADWAY_CHECK(impl.shared() && impl.share.process == 0);
  if (Status s = impl.file->ShareLock(); !s.ok()) {
    // The lock that it had may be gone: the file may be another one's, who is not to lose its end.
    impl.file.reset();
    return s;
  }
  // Behind all that is named; no process writes before the others have read it.
  const int64_t at = impl.Offset(impl.slots.End());
  const int64_t times[] = {impl.env->WallNanos(), impl.env->NowNanos()};
  const SessionMark mark{!impl.published, at, XXH3_64bits(times, sizeof(times)), impl.generation};
  Result<AlignedBuffer> block = AlignedBuffer::Allocate(impl.env, kBlockBytes);
  if (!block.ok()) return block.status();
  std::memcpy(block->data(), &mark.value, sizeof(mark.value));
  const IoPiece piece{block->data(), kBlockBytes, at};
  if (Status s = impl.file->Write({&piece, 1}); !s.ok()) return s;
  if (Status s = impl.file->Sync(); !s.ok()) return s;
  return mark;
}

Result<std::unique_ptr<SlabFile>> SlabFile::Join(Env* env, const std::string& name,
                                                 const SessionMark& mark, const CacheFormat& format,
                                                 Budget* budget, const SlabFileShare& share) {
  HEADWAY_CHECK(share.process > 0);
  const Result<std::string> path = env->FollowLinks(name);
  if (!path.ok()) return path.status();
  auto impl = std::make_unique<Impl>(env, *path, format, budget, SlabFileKind::kSession, share);
  impl->published = !mark.temporary;
  Result<std::unique_ptr<File>> file =
      env->Open(impl->OpenPath(), OpenMode::kShared, FileIo::kDirect);
  if (!file.ok()) {
    return UnderOwnName(file.status(), *path)
        .Within({}, {"; ranks in processes share one ", Option::kSession, kOnWhatAllHave});
  }
  impl->file = std::move(*file);
  Result<AlignedBuffer> block = AlignedBuffer::Allocate(env, kBlockBytes);
  if (!block.ok()) return block.status();
  const IoPiece piece{block->data(), kBlockBytes, mark.offset};
  const Status read = impl->file->Read({&piece, 1});
  if (!read.ok() && read.code() != StatusCode::kCorrupt) return read;
  if (!read.ok() || std::memcmp(block->data(), &mark.value, sizeof(mark.value)) != 0) {
    return NotShared(*path, "another file");
  }
  if (mark.temporary) return std::unique_ptr<SlabFile>(new SlabFile(std::move(impl)));
  Result<SavedSession> saved = ReadSession(env, impl->file.get(), *path);
  if (!saved.ok()) return saved.status();
  const Superblock& superblock = saved->superblock;
  if (superblock.generation != mark.generation || !SameFormat(saved->manifest.format, format)) {
    return NotShared(*path, "in another state");
  }
  impl->bytes = impl->Offset(superblock.slots);
  if (Status s = impl->Adopt(std::move(*saved)); !s.ok()) return s;
  return std::unique_ptr<SlabFile>(new SlabFile(std::move(impl)));
}

Status SlabFile::Offer(const Manifest& part) {
  Impl& impl = *impl_;
  const std::lock_guard<std::mutex> commit_lock(impl.commit_mutex);
  if (Status s = impl.CheckSynced(); !s.ok()) return s;
  if (Status s = impl.Sync(); !s.ok()) return s;
  std::vector<int64_t> used;
  for (const SavedSlab& slab : part.slabs) used.push_back(slab.slot);
  const std::lock_guard<std::mutex> lock(impl.mutex);
  // What takes memory first: an offer is made, or it is not.
  Impl::Offered offered{{}, impl.protected_pages};
  Impl::Protect(part.slabs, &offered.after);
  PagesOfSlots both = impl.protected_pages;
  Impl::Protect(part.slabs, &both);
  impl.slots.BeginCommit(used);
  impl.slots.KeepBoth();
  impl.protected_pages = std::move(both);
  impl.offered = std::move(offered);
  return OkStatus();
}

void SlabFile::Settle(CommitOutcome outcome) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!impl_->offered.has_value()) return;
  switch (outcome) {
    case CommitOutcome::kNotBegun:
      impl_->slots.Undo();
      impl_->protected_pages = std::move(impl_->offered->before);
      break;
    case CommitOutcome::kUnknown:
      impl_->slots.Abandon();
      break;
    case CommitOutcome::kDone:
      impl_->slots.KeepNext();
      impl_->protected_pages = std::move(impl_->offered->after);
      break;
  }
  impl_->offered.reset();
}

Result<std::unique_ptr<SessionClaim>> SlabFile::Release(std::unique_ptr<SlabFile> file) {
  Impl& impl = *file->impl_;
  HEADWAY_CHECK(impl.published);
  impl.Trim();
  std::unique_ptr<SessionClaim> claim(new SessionClaim(impl.env, impl.path));
  claim->session_ = std::move(impl.file);
  Result<SavedSession> saved = ReadSession(impl.env, claim->session_.get(), impl.path);
  if (!saved.ok()) return saved.status();
  claim->saved_ = std::move(*saved);
  return claim;
}

}  // namespace headway::kv
