// Encoding lossless pages, a row of K or V at a time: the bytes that lossless_codec.h defines.
#include <cstring>

#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/lossless_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/lossless_encode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D8 = hn::ScalableTag<uint8_t>;
using D32 = hn::Repartition<uint32_t, D8>;
using D64 = hn::Repartition<uint64_t, D8>;
using V8 = hn::Vec<D8>;
constexpr int64_t kLanes = HWY_MAX_BYTES;  // numbers taken at once

// Calls visit(i) for the first of kLanes numbers each; the last lanes are full, too, and so some of
// theirs may come twice. `dim` is at least kLanes.
template <class Visit>
HWY_INLINE void OverLanes(int64_t dim, const Visit& visit) {
  for (int64_t i = 0; i + kLanes <= dim; i += kLanes) visit(i);
  if (dim % kLanes != 0) visit(dim - kLanes);
}

// The largest upper 7 bits of an exponent in a row.
HWY_INLINE int LargestTop(const uint8_t* numbers, int64_t dim) {
  const D8 d8;
  const D32 d32;
  V8 largest = hn::Zero(d8);
  OverLanes(dim, [&](int64_t i) HWY_ATTR {
    V8 low, high;
    hn::LoadInterleaved2(d8, numbers + 2 * i, low, high);
    largest = hn::Max(largest, hn::And(high, hn::Set(d8, uint8_t{0x7F})));
  });
  auto words = hn::BitCast(d32, largest);
  largest = hn::Max(largest, hn::BitCast(d8, hn::ShiftRight<16>(words)));
  largest = hn::Max(largest, hn::BitCast(d8, hn::ShiftRight<8>(hn::BitCast(d32, largest))));
  words = hn::And(hn::BitCast(d32, largest), hn::Set(d32, 0x7Fu));
  return static_cast<int>(hn::GetLane(hn::MaxOfLanes(d32, words)));
}

// The codes of a row of this floor; whether one of its numbers escapes.
HWY_INLINE bool EncodeRow(const uint8_t* numbers, int64_t dim, int floor, uint8_t* row) {
  const D8 d8;
  const D64 d64;
  const hn::Rebind<uint32_t, D64> d32_of_64;
  const V8 floors = hn::Set(d8, static_cast<uint8_t>(floor));
  bool escapes = false;
  OverLanes(dim, [&](int64_t i) HWY_ATTR {
    V8 low, high;
    hn::LoadInterleaved2(d8, numbers + 2 * i, low, high);
    hn::StoreU(low, d8, row + i);
    const V8 tops = hn::And(high, hn::Set(d8, uint8_t{0x7F}));
    escapes = escapes || !hn::AllFalse(d8, hn::Lt(tops, floors));
    // Bytes of four numbers, then of four others, that are turned into the gaps of the first.
    const auto bytes =
        hn::Or(hn::SaturatedSub(tops, floors), hn::And(high, hn::Set(d8, uint8_t{0x80})));
    const auto turned = hn::RotateRight<28>(hn::BitCast(D32(), bytes));
    const auto words =
        hn::Or(hn::BitCast(d64, bytes), hn::ShiftRight<32>(hn::BitCast(d64, turned)));
    hn::StoreU(hn::TruncateTo(d32_of_64, words), d32_of_64,
               reinterpret_cast<uint32_t*>(row + dim + i / 2));
  });
  return escapes;
}

bool EncodeHalf(const PageFormat& format, const std::byte* page, std::byte* codes,
                std::byte* params) {
  const int64_t dim = format.head_dim;
  if (dim < kLanes) return lossless::EncodeHalf(format, page, codes, params);
  lossless::HalfParams half(format, params);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const auto* numbers = reinterpret_cast<const uint8_t*>(page) + slot * dim * 2;
    const int floor = lossless::FloorOf(2 * LargestTop(numbers, dim));
    half.SetFloor(slot, floor);
    auto* row = reinterpret_cast<uint8_t*>(codes) + slot * dim * 3 / 2;
    if (!EncodeRow(numbers, dim, floor, row)) continue;
    for (int64_t i = 0; i < dim; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, numbers + 2 * i, sizeof(bits));
      if (lossless::Escapes(bits, floor)) half.Escape(slot * dim + i, bits);
    }
  }
  if (!half.fits()) lossless::MakeUnfit(format, codes, params);
  return half.fits();
}

}  // namespace

extern const EncodeHalfFunction kEncodeHalf;
const EncodeHalfFunction kEncodeHalf = EncodeHalf;

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

EncodeHalfFunction LosslessEncoderFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kEncodeHalf : N_AVX3::kEncodeHalf;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
