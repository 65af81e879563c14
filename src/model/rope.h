// The frequencies of rotary position embedding, for every way of stretching them that Headway
// knows.
#ifndef HEADWAY_MODEL_ROPE_H_
#define HEADWAY_MODEL_ROPE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "model/rope_config.h"
#include "model/self_extend.h"

namespace headway {

// What Kernels::RopeAngles takes. A cache of rotated keys fits a prompt only if the frequencies are
// equal: compare, or compare hashes where one side is in a file.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [rotary_dim / 2]; empty: nothing rotates
  float scale = 1.0f;           // of cos and sin: yarn's attention factor
  RopeProduct product = RopeProduct::kRounded;
  SelfExtend extend;  // by which far keys are rotated on as they are attended to

  int rotary_dim() const { return 2 * static_cast<int>(inv_freq.size()); }
  uint64_t Hash() const;
  bool operator==(const RopeFrequencies&) const = default;
};

// The angles of these positions, into cos and sin [positions, rotary_dim / 2]. The item points into
// `rope`.
inline RopeAnglesItem AnglesOf(const RopeFrequencies& rope, std::span<const int32_t> positions,
                               float* cos, float* sin) {
  return {.positions = positions,
          .inv_freq = rope.inv_freq.data(),
          .rotary_dim = rope.rotary_dim(),
          .scale = rope.scale,
          .product = rope.product,
          .cos = cos,
          .sin = sin};
}

// The same for rotating on what is rotated already: without the factor that keys have, if they have
// one (yarn).
inline RopeAnglesItem TurnAngles(const RopeFrequencies& rope, std::span<const int32_t> positions,
                                 float* cos, float* sin) {
  RopeAnglesItem item = AnglesOf(rope, positions, cos, sin);
  item.scale = RopeAnglesItem{}.scale;
  item.product = RopeProduct::kExact;
  return item;
}

// `total_length` is the length of the whole prompt in tokens, cached prefix included, without the
// tokens to be generated. Only `dynamic` depends on it: Transformers chooses the same frequencies
// when it prefills that prompt, but then changes them again while it generates, under keys that
// are already rotated; here they stay what the prompt made them.
RopeFrequencies ComputeRope(const RopeConfig& config, int head_dim, int64_t total_length);

}  // namespace headway

#endif  // HEADWAY_MODEL_ROPE_H_
