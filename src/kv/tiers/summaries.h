// Summaries: the memory for summaries of closed pages, a frame for each slab of keys and values,
// always on the device, wherever the slab lies; and for sketches of their keys, on the device or in
// host memory that it reads in place. Only the compute lane reads and writes frames.
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
  // A slab's frames. Without a summary there is no sketch, and with one there is where the format
  // has sketches.
  struct Frames {
    std::byte* summary = nullptr;
    std::byte* sketch = nullptr;
  };

  // Where sketches lie, and what bounds them there.
  struct SketchHome {
    Tier tier = Tier::kDevice;  // or kHost
    Budget* budget = nullptr;
  };

  // `poison` may be null. All outlive the summaries.
  Summaries(const CacheFormat& format, Lanes* lanes, Device* device, Budget* budget,
            const SketchHome& sketches, Poison* poison)
      : format_(format),
        lanes_(lanes),
        pool_(Tier::kDevice, device, budget, format.summary_bytes(), poison),
        sketches_(sketches.tier, device, sketches.budget, format.sketch_bytes(), poison) {}

  // Makes memory for that many slabs now.
  Status Preallocate(int64_t slabs);
  // Those for a slab of a layer. None where the layer has no use for them, or a budget no room:
  // such a slab is always read whole.
  Frames Take(int layer);
  void Give(const Frames& frames);
  void Copy(const Frames& to, const Frames& from);

 private:
  // Null where the budget has no room.
  std::byte* TakeOf(FramePool& pool);

  const CacheFormat& format_;
  Lanes* const lanes_;
  FramePool pool_;
  FramePool sketches_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_SUMMARIES_H_
