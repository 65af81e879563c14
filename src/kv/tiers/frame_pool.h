// FramePool: slab-sized pieces of device or host memory. The pool grows by blocks as frames are
// asked for; what it has never moves and is never given back before the pool is destroyed.
#ifndef HEADWAY_KV_TIERS_FRAME_POOL_H_
#define HEADWAY_KV_TIERS_FRAME_POOL_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/types.h"
#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/tiers/poison.h"

namespace headway::kv {

class FramePool {
 public:
  // `tier` is kDevice or kHost. `poison` may be null. All outlive the pool.
  FramePool(Tier tier, Device* device, Budget* budget, int64_t frame_bytes, Poison* poison)
      : tier_(tier), device_(device), budget_(budget), frame_bytes_(frame_bytes), poison_(poison) {}

  // Frames that Take can still give, as far as the budget says.
  int64_t Room() const;
  // Makes memory for that many frames now.
  Status Preallocate(int64_t frames);
  // The same, and from then on Take gives them by turns, whoever has them: for measuring copies of
  // more data than there is memory. What they hold is meaningless.
  Status PreallocateAliased(int64_t frames);
  // A frame; the first to write to it waits for `used`.
  Result<std::byte*> Take(Fence* used);
  // Takes the frame back, to be written to once `used` is passed.
  void Give(std::byte* frame, Fence used);

  const Budget& budget() const { return *budget_; }

 private:
  Status Grow(int64_t frames);

  const Tier tier_;
  Device* const device_;
  Budget* const budget_;
  const int64_t frame_bytes_;
  Poison* const poison_;
  std::vector<std::unique_ptr<Buffer>> blocks_;
  bool aliased_ = false;
  size_t next_alias_ = 0;
  std::vector<std::pair<std::byte*, Fence>> free_;  // the last one given is the next one taken
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_FRAME_POOL_H_
