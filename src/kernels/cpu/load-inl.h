// Loads that turn any weight or page dtype into vectors of f32. Included once a target, between
// HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE's files, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_LOAD_INL_H_
#undef HEADWAY_KERNELS_CPU_LOAD_INL_H_
#else
#define HEADWAY_KERNELS_CPU_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "base/types.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of f32 from Lanes(d) elements that begin `index` elements behind `data`, which needs no
// alignment.
template <DType kDType, class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const std::byte* data, int64_t index) {
  if constexpr (kDType == DType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(data) + index);
  } else if constexpr (kDType == DType::kF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(data) + index));
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(data) + index);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
}

// The same where only `count` < Lanes(d) elements are there; the other lanes are 0.
template <DType kDType, class D>
HWY_INLINE hn::Vec<D> LoadF32Tail(D d, const std::byte* data, int64_t index, int64_t count) {
  HWY_ALIGN std::byte padded[HWY_MAX_BYTES] = {};
  std::memcpy(padded, data + static_cast<size_t>(index) * DTypeBytes(kDType),
              static_cast<size_t>(count) * DTypeBytes(kDType));
  return LoadF32<kDType>(d, padded, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();

#endif  // HEADWAY_KERNELS_CPU_LOAD_INL_H_
