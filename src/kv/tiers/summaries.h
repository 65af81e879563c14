// Summaries: the memory for summaries of closed pages, a frame for each slab of keys and values,
// always on the device, wherever the slab lies. Only the compute lane reads and writes frames.
#ifndef HEADWAY_KV_TIERS_SUMMARIES_H_
#define HEADWAY_KV_TIERS_SUMMARIES_H_

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/tiers/frame_pool.h"
#include "kv/tiers/poison.h"

namespace headway::kv {

class Summaries {
 public:
  // `poison` may be null. All outlive the summaries.
  Summaries(const CacheFormat& format, Lanes* lanes, Device* device, Budget* budget, Poison* poison)
      : format_(format),
        lanes_(lanes),
        pool_(Tier::kDevice, device, budget, format.summary_bytes(), poison) {}

  // Makes memory for that many frames now.
  Status Preallocate(int64_t frames) { return pool_.Preallocate(frames); }
  // A frame for a slab of a layer. Null where the layer has no use for one, or the budget no room:
  // such a slab is always read whole.
  std::byte* Take(int layer);
  void Give(std::byte* frame);
  void Copy(std::byte* to, const std::byte* from);

 private:
  const CacheFormat& format_;
  Lanes* const lanes_;
  FramePool pool_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_SUMMARIES_H_
