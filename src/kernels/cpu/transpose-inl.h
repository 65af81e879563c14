// Transposition of a square of floats in registers. Included once a target, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_TRANSPOSE_INL_H_
#undef HEADWAY_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define HEADWAY_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kLanes = static_cast<int>(HWY_LANES(float));

// Transposes each 4×4 block: block b of m[i] becomes (m[0], m[1], m[2], m[3])[4 b + i].
HWY_INLINE void TransposeInBlocks(hn::Vec<hn::ScalableTag<float>>* m) {
  const hn::ScalableTag<float> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, m[0], m[1]));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, m[2], m[3]));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, m[0], m[1]));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, m[2], m[3]));
  m[0] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
  m[1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
  m[2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
  m[3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
}

// Transposes kLanes × kLanes floats: first within blocks of four, then the blocks.
HWY_INLINE void Transpose(hn::Vec<hn::ScalableTag<float>>* m) {
  using V = hn::Vec<hn::ScalableTag<float>>;
  const hn::ScalableTag<float> d;
  for (int i = 0; i < kLanes; i += 4) TransposeInBlocks(m + i);
#if HWY_TARGET == HWY_AVX2
  for (int i = 0; i < 4; ++i) {
    const V low = m[i];
    const V high = m[4 + i];
    m[i] = hn::ConcatLowerLower(d, high, low);
    m[4 + i] = hn::ConcatUpperUpper(d, high, low);
  }
#else
  for (int i = 0; i < 4; ++i) {
    const V lower02 = hn::ConcatLowerLower(d, m[8 + i], m[i]);
    const V lower13 = hn::ConcatLowerLower(d, m[12 + i], m[4 + i]);
    const V upper02 = hn::ConcatUpperUpper(d, m[8 + i], m[i]);
    const V upper13 = hn::ConcatUpperUpper(d, m[12 + i], m[4 + i]);
    m[i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(lower13), lower02);
    m[4 + i] = hn::OddEvenBlocks(lower13, hn::SwapAdjacentBlocks(lower02));
    m[8 + i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(upper13), upper02);
    m[12 + i] = hn::OddEvenBlocks(upper13, hn::SwapAdjacentBlocks(upper02));
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_TRANSPOSE_INL_H_
