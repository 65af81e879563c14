// ScoreWeight (kernels/scoring.h) of a vector of numbers. Included once a target.
#if defined(HEADWAY_KERNELS_CPU_SCORE_WEIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_SCORE_WEIGHT_INL_H_
#undef HEADWAY_KERNELS_CPU_SCORE_WEIGHT_INL_H_
#else
#define HEADWAY_KERNELS_CPU_SCORE_WEIGHT_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/scoring.h"

HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// NaN counts as infinity.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> ScoreWeights(D d, hn::Vec<D> below) {
  const hn::RebindToUnsigned<D> words;
  const hn::Repartition<uint32_t, D> halves;
  using W = hn::Vec<decltype(words)>;
  // The low half of each word times a number of at most 32 bits.
  const auto times = [&](W word, W number) HWY_ATTR {
    return hn::MulEven(hn::BitCast(halves, word), hn::BitCast(halves, number));
  };
  const auto end = hn::Set(d, kScoreEnd);
  const auto reached = hn::IfThenElse(hn::Lt(below, end), below, end);
  const W steps = hn::BitCast(words, hn::Add(reached, hn::Set(d, kScoreRounder)));
  const W exponent = times(steps, hn::Set(words, kScoreLog2E));
  const W y = hn::ShiftRight<kScoreProductBits - 32>(exponent);
  W power = hn::Set(words, kPower6);
  for (const uint64_t term : {kPower5, kPower4, kPower3, kPower2, kPower1, uint64_t{1} << 32}) {
    power = hn::Sub(hn::Set(words, term), hn::ShiftRight<32>(times(power, y)));
  }
  return hn::Shr(hn::ShiftLeft<kWeightBits - 32>(power),
                 hn::ShiftRight<kScoreProductBits>(exponent));
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();

#endif  // HEADWAY_KERNELS_CPU_SCORE_WEIGHT_INL_H_
