// DiskTier: the slots of a slab file in the order of the lanes, and what is known of a slab's copy
// on disk.
#ifndef HEADWAY_KV_TIERS_DISK_TIER_H_
#define HEADWAY_KV_TIERS_DISK_TIER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/budget.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/session/slab_file.h"

namespace headway::kv {

// A slab's pages in a slot. The disk lanes fill in checksums and errors, each for its own pages,
// which the events between lanes order; the rest belongs to the thread that calls the store.
class DiskCopy {
 public:
  DiskCopy(int64_t slot_index, int segment_pages)
      : slot(slot_index), checksums(static_cast<size_t>(segment_pages)) {}

  const int64_t slot;
  int pages = 0;   // written, or on their way
  int sealed = 0;  // pages that a manifest named when it was committed: never written again
  std::vector<uint64_t> checksums;  // [segment_pages], of the first `pages`

  // Of a write that failed.
  void Fail(int first_page, Status status);
  // Why one of the first `count` pages is not there.
  Status Check(int count) const;
  // Forgets failures behind the first `count` pages, which are to be written anew.
  void Cut(int count);

 private:
  mutable std::mutex mutex_;
  int first_bad_ = std::numeric_limits<int>::max();
  Status status_;
};

class DiskTier {
 public:
  // `file` may be null: there is no disk tier then.
  DiskTier(std::shared_ptr<SlabFile> file, Budget* budget, Lanes* lanes, const CacheFormat& format)
      : file_(std::move(file)), budget_(budget), lanes_(lanes), format_(format) {}

  bool present() const { return file_ != nullptr; }
  bool holds_session() const { return file_ != nullptr && file_->is_session(); }
  SlabFile& file() { return *file_; }
  // Any write has failed since the store was made: copies are worth checking.
  bool has_failed() const { return has_failed_; }
  void set_has_failed() { has_failed_ = true; }
  Budget* budget() const { return budget_; }

  // Slots that Take can still give, as far as the budget says.
  int64_t Room() const;
  Result<std::shared_ptr<DiskCopy>> Take();
  // The slot is free once `used` is passed.
  void Give(std::shared_ptr<DiskCopy> copy, const Fence& used);
  // Frees the slots that were given and whose fence is passed.
  void Reclaim();
  // Frees all that were given; waits for them.
  void ReclaimAll();

 private:
  struct Retired {
    int64_t slot;
    Fence used;
  };

  std::shared_ptr<SlabFile> file_;
  Budget* const budget_;
  Lanes* const lanes_;
  const CacheFormat& format_;
  std::vector<Retired> retired_;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_DISK_TIER_H_
