// Poison: a test aid that finds out who reads memory that was freed.
#ifndef HEADWAY_KV_TIERS_POISON_H_
#define HEADWAY_KV_TIERS_POISON_H_

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"

namespace headway::kv {

// Overwrites memory that is free with 0xFF bytes (a NaN in every dtype), in the order of the lanes,
// so that a kernel or copy that still reads it is found out.
class Poison {
 public:
  static Result<std::unique_ptr<Poison>> Create(Device* device, Lanes* lanes, int64_t bytes);

  // `used` is the fence of the memory; the poison waits for it and joins it. At most the bytes of
  // Create.
  void Fill(std::byte* memory, int64_t bytes, Fence* used);

 private:
  explicit Poison(Lanes* lanes) : lanes_(lanes) {}

  Lanes* const lanes_;
  Budget budget_{"poison", kUnlimited};  // a test aid: the store's budgets stay what they are
  std::unique_ptr<Buffer> source_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_POISON_H_
