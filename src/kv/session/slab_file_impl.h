// The inside of a SlabFile: its file, its slots, and what was committed.
#ifndef HEADWAY_KV_SESSION_SLAB_FILE_IMPL_H_
#define HEADWAY_KV_SESSION_SLAB_FILE_IMPL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/session_layout.h"
#include "kv/session/slab_file.h"
#include "kv/session/slab_pieces.h"
#include "kv/session/slot_table.h"

namespace headway::kv {

// A file that grows doubles up to this much at a time: writes behind its end are slow, and one at a
// time.
inline constexpr int64_t kGrowBytes = 64 * kMiB;

// By slot, how many of its first pages.
using PagesOfSlots = std::unordered_map<int64_t, int32_t>;

struct SlabFile::Impl {
  Impl(Env* env_in, std::string path_in, const CacheFormat& format_in, Budget* budget_in,
       SlabFileKind kind, SlabFileShare share_in = {})
      : env(env_in),
        path(std::move(path_in)),
        format(format_in),
        session(kind == SlabFileKind::kSession),
        share(std::move(share_in)),
        first_slot(session ? kFirstSlotOffset : 0),
        budget(budget_in),
        slots(budget_in, format_in.slab_bytes(), {share.process, share.processes}) {}
  ~Impl();

  // At the end of a commit, also where it throws: slots that no manifest names are free again.
  struct Ending {
    ~Ending() {
      const std::lock_guard<std::mutex> lock(impl.mutex);
      impl.slots.Abandon();
    }
    Impl& impl;
  };

  bool shared() const { return share.processes > 1; }
  int64_t Offset(int64_t slot) const { return first_slot + slot * format.slab_bytes(); }
  std::string OpenPath() const { return published ? path : TemporarySessionName(path); }
  Status Adopt(SavedSession saved);
  Result<int64_t> Allocate();
  Status Grow(int64_t slot);
  // Where other processes write, too: nothing of theirs is cut off.
  Status GrowShared(int64_t slot);
  void Shrink();
  void Trim();
  void ShrinkTo(int64_t end);
  void CheckAccess(int64_t slot, int heads, int first, int count);
  Status Damaged(int page, int64_t slot) const {
    return DamagedPage(path, session ? SlabFileKind::kSession : SlabFileKind::kTemporary, page,
                       slot);
  }
  // Of pages that a crash may bring back, from now on.
  static void Protect(std::span<const SavedSlab> slabs, PagesOfSlots* protected_pages);

  Result<std::vector<int64_t>> AllocateMany(int64_t count);
  Result<Superblock> WriteManifest(const std::vector<std::byte>& bytes,
                                   std::span<const int64_t> to);
  Status WriteSuperblock(const Superblock& next, AlignedBuffer* block);
  // What an earlier Sync that failed means for a save.
  Status CheckSynced() const;
  Status Sync();
  Status Publish();
  Status Commit(const Manifest& next);

  Env* const env;
  const std::string path;  // of a temporary file: its directory
  const CacheFormat format;
  const bool session;
  const SlabFileShare share;
  const int64_t first_slot;  // where slot 0 begins in the file
  Budget* const budget;
  Reservation header;
  std::unique_ptr<File> file;
  std::unique_ptr<File> replaces;  // the session that the first commit replaces, still locked
  bool published = false;          // under its own name
  bool directory_synced = false;   // and for good

  mutable std::mutex mutex;  // of what follows
  SlotTable slots;
  int64_t bytes = 0;             // of the file; of one that is shared, at least
  int64_t kept_end = 0;          // one past the highest slot that a crash may bring back
  PagesOfSlots protected_pages;  // which must not be written
  // What another process's commit, until it is settled, makes of them, and what they were before.
  struct Offered {
    PagesOfSlots after, before;
  };
  std::optional<Offered> offered;

  std::mutex commit_mutex;  // of what follows
  Manifest manifest;
  uint64_t generation = 0;  // of the last attempt to commit
  int side = 1;             // of the superblock that counts; the other is written next
  bool committed = false;
  bool sync_failed = false;
  CommitOutcome outcome = CommitOutcome::kNotBegun;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SLAB_FILE_IMPL_H_
