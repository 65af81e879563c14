// Sketches and masses of blocks. Products and sums of floats are rounded one by one: the file is
// compiled without contraction.
#include "kernels/cpu/selection_sketch_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/selection_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selection_sketch_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/score_weight-inl.h"
#include "kernels/cpu/selection-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int kSlotsMax = 64;  // of SelectionFits
constexpr int kRowsMax = 4;    // query heads at once

float StepOf(const float* scales) {
  return selection::SketchStep(std::sqrt(selection::LargestVariance(scales[1])));
}

// As selection::SizesOf, of a block's channels.
struct Sizes {
  alignas(HWY_MAX_BYTES) int16_t near[kHeadDimMax];
  alignas(HWY_MAX_BYTES) int16_t far[kHeadDimMax];

  Sizes(const std::byte* variances, int64_t dim) {
    const D d;
    const DI di;
    const hn::Rebind<uint8_t, D> bytes;
    const hn::Rebind<int16_t, D> halves;
    alignas(HWY_MAX_BYTES) uint8_t padded[kHeadDimMax] = {};
    std::memcpy(padded, variances, static_cast<size_t>(dim));
    constexpr float kFar = selection::kSketchLevels / selection::kVarianceRoot;
    constexpr float kNear = kFar * (selection::kSketchNear / selection::kSketchFar);
    const V rounder = hn::Set(d, 0x1.8p23f);  // as selection::Nearest
    for (int64_t i = 0; i < RoundUp(dim, kLanes16); i += kLanes) {
      const V root = hn::Sqrt(hn::ConvertTo(d, hn::PromoteTo(di, hn::Load(bytes, padded + i))));
      const auto size = [&](float factor) HWY_ATTR {
        const V rounded = hn::Add(hn::Mul(root, hn::Set(d, factor)), rounder);
        const auto nearest = hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, rounder));
        return hn::DemoteTo(halves, hn::Max(nearest, hn::Set(di, 1)));
      };
      hn::Store(size(kNear), halves, near + i);
      hn::Store(size(kFar), halves, far + i);
    }
  }
};

// --- Sketches

template <DType kDType>
void SketchAs(const PageFormat& format, const std::byte* keys, int slots, const std::byte* codes,
              const float* scales, std::byte* sketch) {
  const D d;
  const DI di;
  const hn::Rebind<int8_t, D> codes8;
  const hn::Rebind<int16_t, D> halves;
  const hn::Rebind<uint8_t, D> bytes;
  const int64_t dim = format.head_dim;
  const auto row_bytes = dim * static_cast<int64_t>(DTypeBytes(kDType));
  const Sizes sizes(codes + dim, dim);
  alignas(HWY_MAX_BYTES) int8_t means[kHeadDimMax] = {};
  std::memcpy(means, codes, static_cast<size_t>(dim));
  const V scale0 = hn::Set(d, scales[0]);
  const V half_step = hn::Set(d, 0.5f * StepOf(scales));
  for (int64_t i = 0; i < dim; i += kLanes) {
    const V mean =
        hn::Mul(scale0, hn::ConvertTo(d, hn::PromoteTo(di, hn::Load(codes8, means + i))));
    const auto both = hn::Add(hn::PromoteTo(di, hn::Load(halves, sizes.near + i)),
                              hn::PromoteTo(di, hn::Load(halves, sizes.far + i)));
    const V middle = hn::Mul(hn::ConvertTo(d, both), half_step);
    const auto store = [&](hn::Vec<DI> bits, std::byte* to) HWY_ATTR {
      alignas(HWY_MAX_BYTES) uint8_t vector[kLanes];
      hn::Store(hn::DemoteTo(bytes, bits), bytes, vector);
      std::memcpy(to + i, vector, static_cast<size_t>(std::min<int64_t>(kLanes, dim - i)));
    };
    for (int first = 0; first < slots; first += 8) {
      auto signs = hn::Zero(di);
      auto distances = hn::Zero(di);
      for (int slot = 0; slot < 8; ++slot) {
        const V off = hn::Sub(LoadKeys<kDType>(keys + (first + slot) * row_bytes, i, dim), mean);
        const auto bit = hn::Set(di, 1 << slot);
        const auto below = hn::RebindMask(di, hn::Lt(off, hn::Zero(d)));
        const auto far = hn::RebindMask(di, hn::Gt(hn::Abs(off), middle));
        signs = hn::Or(signs, hn::IfThenElseZero(below, bit));
        distances = hn::Or(distances, hn::IfThenElseZero(far, bit));
      }
      std::byte* rows = sketch + first / 8 * 2 * dim;
      store(signs, rows);
      store(distances, rows + dim);
    }
  }
}

void Sketch(const PageFormat& format, const std::byte* keys, int slots, const std::byte* codes,
            const float* scales, std::byte* sketch) {
  switch (format.dtype) {
    case DType::kF32:
      return SketchAs<DType::kF32>(format, keys, slots, codes, scales, sketch);
    case DType::kF16:
      return SketchAs<DType::kF16>(format, keys, slots, codes, scales, sketch);
    case DType::kBF16:
      return SketchAs<DType::kBF16>(format, keys, slots, codes, scales, sketch);
  }
}

// --- Masses

// Logits of a block for up to four query heads, [slots, 4], and the largest for each.
struct Logits {
  alignas(HWY_MAX_BYTES) float of[kSlotsMax * kRowsMax];
  // Twice, for vectors of eight.
  alignas(HWY_MAX_BYTES) float tops[2 * kRowsMax];
};

template <int kRows>
void FindLogits(const SketchTask& task, const Sizes& sizes, int first_row, Logits& logits) {
  const D16 d16;
  const DI di;
  const F4 d4;
  const int64_t dim = task.head_dim;
  const int64_t query_row = QueryRow(task.head_dim);
  const int16_t* queries = task.queries + first_row * 2 * query_row;
  alignas(16) float of_rows[kRowsMax] = {};
  for (int r = 0; r < kRows; ++r) of_rows[r] = task.factors[first_row + r].first;
  const auto factors = hn::Load(d4, of_rows);
  // The sums of a row of codes, as terms of logits.
  const auto term = [&](float scale, const auto& codes_at) HWY_ATTR {
    hn::Vec<DI> sums[4];
    auto unused = hn::Zero(di);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) sums[r] = hn::Zero(di);
    for (int64_t i = 0; i < dim; i += kLanes16) {
      const V16 codes = codes_at(i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums[r] = hn::ReorderWidenMulAccumulate(
            di, codes, hn::LoadU(d16, queries + r * 2 * query_row + i), sums[r], unused);
      }
    }
    return hn::Mul(factors, hn::Mul(hn::Set(d4, scale), hn::ConvertTo(d4, SumsOf(sums))));
  };
  const auto mean = term(
      task.scales[0], [&](int64_t i) HWY_ATTR { return LoadCodes16<int8_t>(task.codes, i, dim); });
  const float step = StepOf(task.scales);
  auto top = hn::Set(d4, -std::numeric_limits<float>::infinity());
  for (int slot = 0; slot < task.block_slots; ++slot) {
    const std::byte* rows = task.sketch + slot / 8 * 2 * dim;
    const V16 bit = hn::Set(d16, static_cast<int16_t>(1 << slot % 8));
    const auto off = term(step, [&](int64_t i) HWY_ATTR {
      const auto below = hn::TestBit(LoadCodes16<uint8_t>(rows, i, dim), bit);
      const auto far = hn::TestBit(LoadCodes16<uint8_t>(rows + dim, i, dim), bit);
      const V16 size =
          hn::IfThenElse(far, hn::Load(d16, sizes.far + i), hn::Load(d16, sizes.near + i));
      return hn::IfThenElse(below, hn::Neg(size), size);
    });
    const auto logit = hn::Add(mean, off);
    top = hn::IfThenElse(hn::Gt(logit, top), logit, top);
    hn::Store(logit, d4, logits.of + slot * kRowsMax);
  }
  hn::Store(top, d4, logits.tops);
  hn::Store(top, d4, logits.tops + kRowsMax);
}

// As selection::ShareWeight.
template <class DD, class VF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DD>> ShareWeights(DD d, VF largest, VF scores) {
  const auto below = hn::PromoteTo(d, hn::Sub(largest, scores));
  return hn::ShiftRight<kWeightBits - selection::kShareBits>(ScoreWeights(d, below));
}

template <int kRows>
void LookAtRows(const SketchTask& task, const Sizes& sizes, int first_row) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> floats;
  const hn::RebindToUnsigned<decltype(d)> words;
  constexpr int kWords = HWY_MAX_BYTES / sizeof(uint64_t);
  static_assert(kWords == kRowsMax || kWords == 2 * kRowsMax);
  Logits logits;
  FindLogits<kRows>(task, sizes, first_row, logits);
  const auto tops = hn::Load(floats, logits.tops);
  auto sums = hn::Zero(words);
  for (int i = 0; i < task.block_slots * kRowsMax; i += kWords) {
    sums = hn::Add(sums, ShareWeights(d, tops, hn::Load(floats, logits.of + i)));
  }
  alignas(HWY_MAX_BYTES) uint64_t of_lanes[kWords];
  hn::Store(sums, words, of_lanes);
  for (int r = 0; r < kRows; ++r) {
    uint64_t sum = of_lanes[r];
    if constexpr (kWords > kRowsMax) sum += of_lanes[r + kRowsMax];
    const int64_t at = (first_row + r) * task.stride;
    task.tops[at] = logits.tops[r];
    task.masses[at] = selection::MassOf(sum);
    float& largest = task.largest[first_row + r];
    largest = std::max(largest, logits.tops[r]);
  }
}

void Look(const SketchTask& task) {
  const Sizes sizes(task.codes + task.head_dim, task.head_dim);
  int row = 0;
  for (; row + kRowsMax <= task.group; row += kRowsMax) {
    LookAtRows<kRowsMax>(task, sizes, row);
  }
  switch (task.group - row) {
    case 3:
      return LookAtRows<3>(task, sizes, row);
    case 2:
      return LookAtRows<2>(task, sizes, row);
    case 1:
      return LookAtRows<1>(task, sizes, row);
    default:
      return;
  }
}

uint64_t WeighMasses(float* tops, const uint32_t* masses, int64_t count, float largest) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> floats;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<uint32_t, decltype(d)> narrow;
  const hn::Repartition<uint32_t, decltype(d)> halves;
  const auto top = hn::Set(floats, largest);
  // Added to its bits, a whole number below 2^52 makes 2^52 and that number.
  const auto whole = hn::Set(d, 0x1p52);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(words);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto share = ShareWeights(d, top, hn::LoadU(floats, tops + i));
    const auto mass = hn::PromoteTo(words, hn::LoadU(narrow, masses + i));
    // As selection::MassWeight.
    const auto weight =
        hn::ShiftRight<31>(hn::MulEven(hn::BitCast(halves, mass), hn::BitCast(halves, share)));
    sum = hn::Add(sum, weight);
    const auto number = hn::Sub(hn::BitCast(d, hn::Or(weight, hn::BitCast(words, whole))), whole);
    hn::StoreU(hn::DemoteTo(floats, number), floats, tops + i);
  }
  uint64_t result = hn::GetLane(hn::SumOfLanes(words, sum));
  for (; i < count; ++i) {
    const uint32_t weight =
        selection::MassWeight(masses[i], selection::ShareWeight(largest, tops[i]));
    result += weight;
    tops[i] = static_cast<float>(weight);
  }
  return result;
}

}  // namespace

extern const SketchOps kSketchOps;
const SketchOps kSketchOps = {.sketch = Sketch, .look = Look, .weigh = WeighMasses};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const SketchOps& SketchOpsFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kSketchOps : N_AVX3::kSketchOps;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
