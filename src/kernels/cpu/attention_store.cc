// Encoding keys and values into pages.
#include <cstring>

#include "base/half.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_store.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using D16 = hn::Rebind<uint16_t, D>;

// As ToBF16 of base/half.h: the upper half, rounded by adding just under half a unit in its last
// place, or just half when that is odd; NaN stays NaN.
void StoreBF16(const float* from, int64_t count, uint16_t* to) {
  const D d;
  const DU du;
  const D16 d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(chosen)), d16, to + i);
  }
  for (; i < count; ++i) to[i] = ToBF16(from[i]).bits;
}

void StoreF16(const float* from, int64_t count, uint16_t* to) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < count; ++i) to[i] = ToF16(from[i]).bits;
}

void StoreRow(const float* from, int64_t count, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return StoreF16(from, count, reinterpret_cast<uint16_t*>(to));
    case DType::kBF16:
      return StoreBF16(from, count, reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace

extern const StoreRowFunction kStoreRow;
const StoreRowFunction kStoreRow = StoreRow;

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

StoreRowFunction StoreRowFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kStoreRow : N_AVX3::kStoreRow;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
