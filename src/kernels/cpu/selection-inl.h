// What summaries, scores and sketches share: loads of keys and codes, and sums of products of codes
// of 8 and 16 bits. Included once a target, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_SELECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_SELECTION_INL_H_
#undef HEADWAY_KERNELS_CPU_SELECTION_INL_H_
#else
#define HEADWAY_KERNELS_CPU_SELECTION_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/selection_key_math.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU = hn::ScalableTag<uint32_t>;
using V = hn::Vec<D>;

using D4 = hn::Full128<int32_t>;
using F4 = hn::Full128<float>;

constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);
constexpr int kHeadDimMax = 256;  // of SelectionFits

// Channels of a key from `index` on; those behind its last one are 0.
template <DType kDType>
HWY_INLINE V LoadKeys(const std::byte* row, int64_t index, int64_t dim) {
  const D d;
  return index + kLanes <= dim ? LoadF32<kDType>(d, row, index)
                               : LoadF32Tail<kDType>(d, row, index, dim - index);
}

static_assert(selection::kDotLanes % kLanes == 0);

// The product of a query and a key, both padded with zeros to whole kDotLanes, the key aligned: the
// last four lanes of selection::SumOfLanes.
HWY_INLINE hn::Vec<F4> LastLanes(const float* q, const float* key, int64_t padded_dim) {
  const D d;
  const hn::Full256<float> d8;
  const F4 d4;
  constexpr int kVectors = selection::kDotLanes / kLanes;
  V lanes[kVectors];
  for (V& sum : lanes) sum = hn::Zero(d);
  for (int64_t i = 0; i < padded_dim; i += selection::kDotLanes) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = i + v * kLanes;
      lanes[v] = hn::Add(lanes[v], hn::Mul(hn::LoadU(d, q + at), hn::Load(d, key + at)));
    }
  }
#if HWY_TARGET == HWY_AVX3
  const auto eight = hn::Add(hn::LowerHalf(d8, lanes[0]), hn::UpperHalf(d8, lanes[0]));
#else
  const auto eight = hn::Add(lanes[0], lanes[1]);
#endif
  return hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
}

HWY_INLINE float Dot(const float* q, const float* key, int64_t padded_dim) {
  alignas(16) float four[4];
  hn::Store(LastLanes(q, key, padded_dim), F4(), four);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// The same of four queries.
HWY_INLINE hn::Vec<F4> Dots(const float* q, const float* key, int64_t padded_dim) {
  const F4 d;
  const hn::Repartition<double, F4> pairs;
  const auto a = LastLanes(q, key, padded_dim), b = LastLanes(q + padded_dim, key, padded_dim);
  const auto c = LastLanes(q + 2 * padded_dim, key, padded_dim);
  const auto e = LastLanes(q + 3 * padded_dim, key, padded_dim);
  const auto ab =
      hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce =
      hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)),
                 hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
}

using D16 = hn::ScalableTag<int16_t>;
using V16 = hn::Vec<D16>;
constexpr int kLanes16 = HWY_MAX_BYTES / sizeof(int16_t);

template <class Code>
HWY_INLINE V16 LoadCodes16(const std::byte* row, int64_t index, int64_t dim) {
  const D16 d;
  const hn::Rebind<Code, D16> codes;
  const auto* at = reinterpret_cast<const Code*>(row) + index;
  if (index + kLanes16 <= dim) return hn::PromoteTo(d, hn::LoadU(codes, at));
  alignas(HWY_MAX_BYTES) Code padded[kLanes16] = {};
  std::memcpy(padded, at, static_cast<size_t>(dim - index));
  return hn::PromoteTo(d, hn::Load(codes, padded));
}

// The sums of the lanes of four vectors.
HWY_INLINE hn::Vec<D4> SumsOf(const hn::Vec<DI> (&v)[4]) {
  const D4 d;
  const hn::Repartition<int64_t, D4> d64;
  hn::Vec<D4> part[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const hn::Half<DI> half;
    const auto folded = hn::Add(hn::LowerHalf(half, v[i]), hn::UpperHalf(half, v[i]));
#if HWY_TARGET == HWY_AVX3
    part[i] = hn::Add(hn::LowerHalf(d, folded), hn::UpperHalf(d, folded));
#else
    part[i] = folded;
#endif
  }
  const auto a = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, part[0], part[1]),
                                          hn::InterleaveUpper(d, part[0], part[1])));
  const auto b = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, part[2], part[3]),
                                          hn::InterleaveUpper(d, part[2], part[3])));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a, b)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, a, b)));
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_SELECTION_INL_H_
