// Rows of lossless pages as the rows of bf16 that they are: whatever attends to those attends to
// these with the same bits. Included once a target.
#if defined(HEADWAY_KERNELS_CPU_LOSSLESS_EXPAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_LOSSLESS_EXPAND_INL_H_
#undef HEADWAY_KERNELS_CPU_LOSSLESS_EXPAND_INL_H_
#else
#define HEADWAY_KERNELS_CPU_LOSSLESS_EXPAND_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/lossless_codec.h"
#include "kernels/page_codec.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D8 = hn::ScalableTag<uint8_t>;
using D32 = hn::ScalableTag<uint32_t>;
using V8 = hn::Vec<D8>;
constexpr int64_t kExpandLanes = HWY_MAX_BYTES;  // numbers expanded at once

// Numbers [index, index + kExpandLanes) of a row without its escapes; `floors` are the row's.
// Bytes are interleaved in blocks of 16, so halves of blocks are taken in such an order that those
// of the numbers end up in theirs.
HWY_INLINE void ExpandLanes(const uint8_t* row, int64_t dim, int64_t index, V8 floors,
                            uint16_t* to) {
  const D8 d8;
  const D32 d32;
  const hn::Repartition<uint64_t, D8> d64;
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr uint64_t kHalves[] = {0, 4, 1, 5, 2, 6, 3, 7};
  alignas(64) static constexpr uint32_t kTwice[] = {0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7};
#else
  alignas(32) static constexpr uint64_t kHalves[] = {0, 2, 1, 3};
  alignas(32) static constexpr uint32_t kTwice[] = {0, 0, 2, 2, 1, 1, 3, 3};
#endif
  const auto low = hn::BitCast(
      d8, hn::TableLookupLanes(hn::LoadU(d64, reinterpret_cast<const uint64_t*>(row + index)),
                               hn::SetTableIndices(d64, kHalves)));
  const hn::Half<D32> d32_half;
  const auto words = hn::ZeroExtendVector(
      d32, hn::LoadU(d32_half, reinterpret_cast<const uint32_t*>(row + dim + index / 2)));
  const auto twice = hn::TableLookupLanes(words, hn::SetTableIndices(d32, kTwice));
  const auto tops =
      hn::And(hn::OddEven(hn::RotateRight<4>(twice), twice), hn::Set(d32, lossless::kTopMask));
  const V8 high = hn::Add(hn::BitCast(d8, tops), floors);
  auto* bytes = reinterpret_cast<uint8_t*>(to + index);
  hn::StoreU(hn::InterleaveLower(d8, low, high), d8, bytes);
  hn::StoreU(hn::InterleaveUpper(d8, low, high), d8, bytes + kExpandLanes);
}

// A row without its escapes.
HWY_INLINE void ExpandRow(const uint8_t* row, int64_t dim, uint8_t floor, uint16_t* to) {
  if (dim < kExpandLanes) {
    for (int64_t i = 0; i < dim; ++i) {
      uint32_t tops = 0;
      std::memcpy(&tops, row + dim + i / 8 * int64_t{sizeof(tops)}, sizeof(tops));
      to[i] = lossless::BitsOf(row[i], tops, floor, static_cast<int>(i % 8));
    }
    return;
  }
  const V8 floors = hn::Set(D8(), floor);
  for (int64_t i = 0; i + kExpandLanes <= dim; i += kExpandLanes) {
    ExpandLanes(row, dim, i, floors, to);
  }
  // Some of these twice, so that the last lanes are full.
  if (dim % kExpandLanes != 0) ExpandLanes(row, dim, dim - kExpandLanes, floors, to);
}

// Neighbouring slots of a page, or keys of a run.
struct Span {
  int64_t first;
  int64_t count;
};
// Where rows go, `stride` numbers apart.
struct ExpandedRows {
  uint16_t* first;
  int64_t stride;

  uint16_t* At(int64_t row) const { return first + row * stride; }
};

// Slots of a page; `params` are those of its half.
inline void ExpandSlots(const PageFormat& format, const std::byte* codes, const std::byte* params,
                        Span slots, ExpandedRows to) {
  const int64_t dim = format.head_dim;
  const int64_t entries = lossless::EscapeEntries(format.page_slots, dim);
  const auto* positions = reinterpret_cast<const uint16_t*>(params);
  const auto* exponents = reinterpret_cast<const uint8_t*>(params) + lossless::ExponentsAt(entries);
  const uint8_t* floors = reinterpret_cast<const uint8_t*>(params) + lossless::FloorsAt(entries);
  const auto* row = reinterpret_cast<const uint8_t*>(codes) + slots.first * dim * 3 / 2;
  for (int64_t i = 0; i < slots.count; ++i) {
    ExpandRow(row + i * dim * 3 / 2, dim, floors[slots.first + i], to.At(i));
  }
  // What does not fit has no further entries.
  for (int64_t e = 0; e < entries && positions[e] < lossless::kUnfit; ++e) {
    const int64_t at = positions[e] - slots.first * dim;
    if (at < 0 || at >= slots.count * dim) continue;
    uint16_t& number = to.At(at / dim)[at % dim];
    number = lossless::WithExponent(number, exponents[e]);
  }
}

// K, or V, of some keys of the run.
enum class Half { kKeys, kValues };
inline void ExpandRows(const PageFormat& format, const PageRun& run, Half half, Span keys,
                       ExpandedRows to) {
  const std::byte* codes = half == Half::kKeys ? run.k : run.v;
  const std::byte* params = run.params + (half == Half::kKeys ? 0 : KeyParamBytes(format));
  for (int64_t done = 0; done < keys.count;) {
    const int64_t slot = run.first_slot + keys.first + done;
    const int64_t page = slot / format.page_slots;
    const int64_t in_page = slot % format.page_slots;
    const int64_t rows = std::min(keys.count - done, format.page_slots - in_page);
    ExpandSlots(format, codes + page * run.page_stride, params + page * run.params_page_stride,
                {in_page, rows}, {to.At(done), to.stride});
    done += rows;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_LOSSLESS_EXPAND_INL_H_
