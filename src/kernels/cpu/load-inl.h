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

#include "base/fp8.h"
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

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Codes of a closed page, in their order, as numbers times 1 / kCodeUnit.
template <Encoding kEncoding, class D>
HWY_INLINE hn::Vec<D> LoadCodes(D d, const std::byte* row, int64_t index) {
  static_assert(kEncoding != Encoding::kNone);
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> di;
  if constexpr (kEncoding == Encoding::kInt8) {
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + index)));
  } else if constexpr (kEncoding == Encoding::kFp8E4M3) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto bits = hn::PromoteTo(d16, hn::LoadU(d8, codes + index));
    const auto sign = hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, uint16_t{0x80})));
    const auto rest = hn::ShiftLeft<7>(hn::And(bits, hn::Set(d16, uint16_t{0x7F})));
    return hn::PromoteTo(d, hn::BitCast(df16, hn::Or(sign, rest)));
  } else {
    const hn::Repartition<uint64_t, decltype(d8)> d64;
    uint64_t bytes = 0;
    std::memcpy(&bytes, codes + index / 2, hn::MaxLanes(d) / 2);
    const auto pairs = hn::BitCast(d8, hn::Set(d64, bytes));
    const auto twice = hn::PromoteTo(di, hn::InterleaveLower(d8, pairs, pairs));
    const auto even = hn::And(twice, hn::Set(di, 0xF));
    return hn::ConvertTo(d, hn::OddEven(hn::ShiftRight<4>(twice), even));
  }
}
template <Encoding kEncoding>
constexpr float kCodeUnit = kEncoding == Encoding::kFp8E4M3 ? kE4M3OverF16 : 1.0f;

// The same where only `count` < Lanes(d) codes are there; the other lanes are 0.
template <Encoding kEncoding, class D>
HWY_INLINE hn::Vec<D> LoadCodesTail(D d, const std::byte* row, int64_t index, int64_t count) {
  HWY_ALIGN std::byte padded[HWY_MAX_BYTES] = {};
  std::memcpy(padded, row + EncodedBytes(kEncoding, DType::kF32, index),
              static_cast<size_t>(EncodedBytes(kEncoding, DType::kF32, count)));
  return LoadCodes<kEncoding>(d, padded, 0);
}
#endif  // HWY_AVX2 || HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();

#endif  // HEADWAY_KERNELS_CPU_LOAD_INL_H_
