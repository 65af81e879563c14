// The arithmetic of budgets that bound an error (SelectionBudget::bound), shared by host and
// device: integers, sums of integers, and single rounded operations in one order, so that every
// implementation lists the same blocks. Compiled without contraction of products and sums. The
// derivation is in docs/decisions/selection.md.
//
// A KV head's core are its near blocks and the first far ones of its order; the other far blocks
// are its tail. A block's mass is the sum of the exponentials of its keys' logits, which are
// computed for the core, and for a sample of the far blocks that knows nothing of the query. A
// longer list leaves out the unread part of the tail. What it leaves out is at most `epsilon` of
// all mass where unread - epsilon * tail <= epsilon * core, and the left side is a sum over the
// tail, which the sample estimates.
#ifndef HEADWAY_KERNELS_SELECTION_BOUND_H_
#define HEADWAY_KERNELS_SELECTION_BOUND_H_

#include <cstdint>

#include "kernels/selection.h"

namespace headway::selection {

// --- The sample: the far blocks are cut into so many strata of neighbours, of lengths that differ
// by one at most, and each gives one of its blocks, each of which is as likely as the others.
inline constexpr int kBoundSamples = 64;
constexpr int SamplesOf(int64_t far) {
  return far < kBoundSamples ? static_cast<int>(far) : kBoundSamples;
}

// The mixing function of splitmix64.
constexpr uint64_t MixedBits(uint64_t bits) {
  bits += 0x9E3779B97F4A7C15u;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

struct SampledBlock {
  int64_t block = 0;    // of the far blocks, counted from the first
  int64_t stratum = 1;  // blocks that it stands for
};
constexpr SampledBlock SampleOf(uint64_t seed, int head, int sample, int64_t far) {
  const int samples = SamplesOf(far);
  const int64_t begin = far * sample / samples;
  const int64_t stratum = far * (sample + 1) / samples - begin;
  const uint64_t number =
      static_cast<uint64_t>(head) * kBoundSamples + static_cast<uint64_t>(sample);
  const uint64_t bits = MixedBits(seed ^ MixedBits(number)) >> 32;
  return {begin + static_cast<int64_t>(bits * static_cast<uint64_t>(stratum) >> 32), stratum};
}

// --- The lists that are tried: those of the budget's far blocks, and each a quarter longer than
// the one before, up to half of the far blocks; behind them comes the list of all. So at least half
// of the sample says what a list leaves out. A list ends with the last block of a code of worth.
constexpr int64_t LongerList(int64_t blocks) { return blocks + (blocks + 3) / 4; }
constexpr int64_t LongestList(int64_t far) { return far / 2; }

// --- Masses: ShareWeights to the largest of the core and the sample. Those of sampled blocks are
// rounded up, so that none is 0, and multiplied with what they stand for.
constexpr uint64_t SampledMass(uint32_t weight, int64_t stratum) {
  return (uint64_t{weight} + 1) * static_cast<uint64_t>(stratum);
}
// Those of some sampled blocks, in their order.
struct SampledSum {
  uint64_t mass = 0;
  double squares = 0.0;

  constexpr void Add(uint64_t sampled) {
    const auto number = static_cast<double>(sampled);
    mass += sampled;
    squares += number * number;
  }
};

// Whether a list that leaves out `unread` of the sampled tail is long enough: whether the estimate
// of unread - epsilon * tail is so many of its standard deviations below epsilon * core.
constexpr bool BoundHolds(const MassBound& bound, int64_t far, uint64_t core,
                          const SampledSum& tail, const SampledSum& unread) {
  const double epsilon = bound.epsilon;
  const double estimate =
      static_cast<double>(unread.mass) - epsilon * static_cast<double>(tail.mass);
  const double room = epsilon * static_cast<double>(core) - estimate;
  if (!(room >= 0.0)) return false;
  const int samples = SamplesOf(far);
  if (far == samples) return true;  // nothing is estimated
  // Each sampled block adds (1 - epsilon) times its mass if it is unread, and -epsilon times if it
  // is read; those of the core add nothing.
  const double squares = (1.0 - 2.0 * epsilon) * unread.squares + epsilon * epsilon * tail.squares;
  const double spread = squares - estimate * estimate / samples;
  const double variance = spread * (static_cast<double>(samples) / (samples - 1));
  return bound.deviations * bound.deviations * variance <= room * room;
}

}  // namespace headway::selection

#endif  // HEADWAY_KERNELS_SELECTION_BOUND_H_
