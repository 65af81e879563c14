// Random: seeded numbers that are the same on every machine and in every version, for the sampler
// and for tests. xoshiro256** (Blackman and Vigna, 2018), its state filled by splitmix64.
#ifndef HEADWAY_BASE_RANDOM_H_
#define HEADWAY_BASE_RANDOM_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/check.h"

namespace headway {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9E3779B97F4A7C15u;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      word = z ^ (z >> 31);
    }
  }

  // 64 random bits.
  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // In [0, 1), a multiple of 2^-53.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Mean 0, variance 1 (Box and Muller, 1958; the second value of each pair is not kept, so that a
  // call always draws two numbers).
  float Normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * Uniform()));
  }

  // In [0, n), each as likely as the others; n > 0.
  int64_t Below(int64_t n) {
    HEADWAY_CHECK(n > 0);
    const auto range = static_cast<uint64_t>(n);
    // The first 2^64 mod n values are one too many for some remainders: draw again.
    const uint64_t surplus = (0 - range) % range;
    uint64_t bits = Next();
    while (bits < surplus) bits = Next();
    return static_cast<int64_t>(bits % range);
  }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace headway

#endif  // HEADWAY_BASE_RANDOM_H_
