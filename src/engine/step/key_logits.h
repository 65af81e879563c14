// KeyLogits: the products of queries with keys of which some lie in encoded pages. Such pages are
// decoded first, a part of them at a time.
#ifndef HEADWAY_ENGINE_STEP_KEY_LOGITS_H_
#define HEADWAY_ENGINE_STEP_KEY_LOGITS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"

namespace headway {

class KeyLogits {
 public:
  // Bytes of device memory for keys of so many tokens at most; 0 where pages are not encoded. Pure.
  static int64_t Bytes(const PageFormat& page, int64_t tokens);
  // `memory` has so many bytes, for so many tokens; all outlives it.
  KeyLogits(Kernels& kernels, Stream& compute, const PageFormat& page, std::byte* memory,
            int64_t tokens);

  // Enqueues Kernels::KeyLogits. What keys are decoded to is overwritten by the next call.
  void Run(int group, float scale, std::span<const KeyLogitsItem> items);

 private:
  void AddDecoded(const KeyLogitsItem& item, int group, float scale);
  void Flush(int group, float scale);

  Kernels& kernels_;
  Stream& compute_;
  const PageFormat page_;
  std::byte* const memory_;
  const int64_t pages_;
  int64_t taken_ = 0;  // pages
  std::vector<GatherSlotsItem> gathers_;
  std::vector<KeyLogitsItem> logits_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_KEY_LOGITS_H_
