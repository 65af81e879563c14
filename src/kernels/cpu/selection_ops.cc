// Summaries and scores of blocks. Products and sums of floats are rounded one by one: the file is
// compiled without contraction.
#include "kernels/cpu/selection_ops.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selection_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/score_weight-inl.h"
#include "kernels/cpu/selection-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

// --- Summaries

// A summary's two rows before they are codes, and the largest bits of their sizes.
struct Rows {
  alignas(HWY_MAX_BYTES) float first[kHeadDimMax];
  alignas(HWY_MAX_BYTES) float second[kHeadDimMax];
  uint32_t first_size = 0;
  uint32_t second_size = 0;
};

HWY_INLINE hn::Vec<DU> Sizes(V v) {
  const DU du;
  return hn::And(hn::BitCast(du, v), hn::Set(du, 0x7FFFFFFFu));
}

template <DType kDType>
void Moments(const std::byte* keys, int64_t row_bytes, int64_t dim, int slots, Rows& rows) {
  const D d;
  const DU du;
  const V share = hn::Set(d, 1.0f / static_cast<float>(slots));
  auto first_size = hn::Zero(du);
  auto second_size = hn::Zero(du);
  for (int64_t i = 0; i < dim; i += kLanes) {
    V sum = hn::Zero(d);
    for (int64_t slot = 0; slot < slots; ++slot) {
      sum = hn::Add(sum, LoadKeys<kDType>(keys + slot * row_bytes, i, dim));
    }
    const V mean = hn::Mul(sum, share);
    V squares = hn::Zero(d);
    for (int64_t slot = 0; slot < slots; ++slot) {
      const V off = hn::Sub(LoadKeys<kDType>(keys + slot * row_bytes, i, dim), mean);
      squares = hn::Add(squares, hn::Mul(off, off));
    }
    const V variance = hn::Mul(squares, share);
    first_size = hn::Max(first_size, Sizes(mean));
    second_size = hn::Max(second_size, Sizes(variance));
    hn::Store(mean, d, rows.first + i);
    hn::Store(variance, d, rows.second + i);
  }
  rows.first_size = hn::GetLane(hn::MaxOfLanes(du, first_size));
  rows.second_size = hn::GetLane(hn::MaxOfLanes(du, second_size));
}

template <DType kDType>
void Boxes(const std::byte* keys, int64_t row_bytes, int64_t dim, int slots, Rows& rows) {
  const D d;
  const DU du;
  auto size = hn::Zero(du);
  for (int64_t i = 0; i < dim; i += kLanes) {
    V least = LoadKeys<kDType>(keys, i, dim);
    V greatest = least;
    size = hn::Max(size, Sizes(least));
    for (int64_t slot = 1; slot < slots; ++slot) {
      const V key = LoadKeys<kDType>(keys + slot * row_bytes, i, dim);
      size = hn::Max(size, Sizes(key));
      least = hn::IfThenElse(hn::Lt(key, least), key, least);
      greatest = hn::IfThenElse(hn::Lt(greatest, key), key, greatest);
    }
    hn::Store(least, d, rows.first + i);
    hn::Store(greatest, d, rows.second + i);
  }
  rows.first_size = rows.second_size = hn::GetLane(hn::MaxOfLanes(du, size));
}

template <DType kDType>
void Pair(const std::byte* keys, int64_t row_bytes, int64_t dim, int slots, Rows& rows) {
  const D d;
  const DU du;
  const V share = hn::Set(d, 1.0f / static_cast<float>(slots));
  alignas(HWY_MAX_BYTES) float mean[kHeadDimMax] = {};
  alignas(HWY_MAX_BYTES) float key[kHeadDimMax] = {};
  for (int64_t i = 0; i < dim; i += kLanes) {
    V sum = hn::Zero(d);
    for (int64_t slot = 0; slot < slots; ++slot) {
      sum = hn::Add(sum, LoadKeys<kDType>(keys + slot * row_bytes, i, dim));
    }
    hn::Store(hn::Mul(sum, share), d, mean + i);
  }
  const auto load = [&](int64_t slot, float* row) HWY_ATTR {
    for (int64_t i = 0; i < dim; i += kLanes) {
      hn::Store(LoadKeys<kDType>(keys + slot * row_bytes, i, dim), d, row + i);
    }
  };
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float logits[2] = {kNone, kNone};  // of those that stand for the others so far
  int64_t slots_of[2] = {0, 0};
  for (int64_t slot = 0; slot < slots; ++slot) {
    load(slot, key);
    const float dot = Dot(mean, key, RoundUp(dim, int64_t{selection::kDotLanes}));
    const float logit = selection::LogitOf(dot, 1.0f);
    if (logit > logits[0]) {
      logits[1] = std::exchange(logits[0], logit);
      slots_of[1] = std::exchange(slots_of[0], slot);
    } else if (logit > logits[1]) {
      logits[1] = logit;
      slots_of[1] = slot;
    }
  }
  load(slots_of[0], rows.first);
  load(slots_of[1], rows.second);
  auto size = hn::Zero(du);
  for (int64_t i = 0; i < dim; i += kLanes) {
    size = hn::Max(size, Sizes(hn::Load(d, rows.first + i)));
    size = hn::Max(size, Sizes(hn::Load(d, rows.second + i)));
  }
  rows.first_size = rows.second_size = hn::GetLane(hn::MaxOfLanes(du, size));
}

// Returns the row's scale.
template <class Code>
float StoreCodes(const float* row, uint32_t size, float levels, int64_t dim, std::byte* to) {
  const D d;
  const DI di;
  const hn::Rebind<Code, D> codes;
  const selection::RowScale scale = selection::ScaleOf(std::bit_cast<float>(size), levels);
  if (scale.scale == 0.0f) {
    std::memset(to, 0, static_cast<size_t>(dim));
    return 0.0f;
  }
  // As selection::Nearest.
  const V rounder = hn::Set(d, 0x1.8p23f);
  const V inverse = hn::Set(d, scale.inverse);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const V rounded = hn::Add(hn::Mul(hn::Load(d, row + i), inverse), rounder);
    const auto nearest = hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, rounder));
    alignas(HWY_MAX_BYTES) Code vector[kLanes];
    hn::Store(hn::DemoteTo(codes, nearest), codes, vector);
    std::memcpy(to + i, vector, static_cast<size_t>(std::min<int64_t>(kLanes, dim - i)));
  }
  return scale.scale;
}

template <DType kDType>
void SummarizeAs(const PageFormat& format, SummaryKind kind, const std::byte* keys, int slots,
                 std::byte* codes, float* scales) {
  const int64_t dim = format.head_dim;
  const auto row_bytes = dim * static_cast<int64_t>(DTypeBytes(kDType));
  Rows rows;
  if (kind == SummaryKind::kMoments) {
    Moments<kDType>(keys, row_bytes, dim, slots, rows);
    scales[1] = StoreCodes<uint8_t>(rows.second, rows.second_size, selection::kVarianceLevels, dim,
                                    codes + dim);
  } else {
    (kind == SummaryKind::kBoxes ? Boxes<kDType> : Pair<kDType>)(keys, row_bytes, dim, slots, rows);
    scales[1] = StoreCodes<int8_t>(rows.second, rows.second_size, selection::kSignedLevels, dim,
                                   codes + dim);
  }
  scales[0] = StoreCodes<int8_t>(rows.first, rows.first_size, selection::kSignedLevels, dim, codes);
}

void Summarize(const PageFormat& format, SummaryKind kind, const std::byte* keys, int slots,
               std::byte* codes, float* scales) {
  switch (format.dtype) {
    case DType::kF32:
      return SummarizeAs<DType::kF32>(format, kind, keys, slots, codes, scales);
    case DType::kF16:
      return SummarizeAs<DType::kF16>(format, kind, keys, slots, codes, scales);
    case DType::kBF16:
      return SummarizeAs<DType::kBF16>(format, kind, keys, slots, codes, scales);
  }
}

// --- Scores

// The factors of four query heads, those that are not there 0.
struct Factors {
  Factors(const ScoreTask& task, int first_row, int rows) {
    alignas(16) float of_first[4] = {};
    alignas(16) float of_second[4] = {};
    for (int r = 0; r < rows; ++r) {
      of_first[r] = task.factors[first_row + r].first;
      of_second[r] = task.factors[first_row + r].second;
    }
    first = hn::Load(F4(), of_first);
    second = hn::Load(F4(), of_second);
  }
  hn::Vec<F4> first;
  hn::Vec<F4> second;
};

// As selection::MomentScore and BoxScore.
template <bool kBoxes>
HWY_INLINE hn::Vec<F4> ScoresOf(const Factors& factors, const float* scales,
                                const hn::Vec<DI> (&first)[4], const hn::Vec<DI> (&second)[4]) {
  const F4 d;
  const auto term = [&](hn::Vec<F4> factor, float scale, hn::Vec<D4> sum) HWY_ATTR {
    return hn::Mul(factor, hn::Mul(hn::Set(d, scale), hn::ConvertTo(d, sum)));
  };
  if constexpr (kBoxes) {
    return term(factors.first, scales[0], hn::Add(SumsOf(first), SumsOf(second)));
  } else {
    return hn::Add(term(factors.first, scales[0], SumsOf(first)),
                   term(factors.second, scales[1], SumsOf(second)));
  }
}

// Scores for kRows query heads; Second is the type of the second row's codes.
template <class Second, int kRows>
void ScoreRows(const ScoreTask& task, int first_row) {
  const D16 d16;
  const DI di;
  const F4 d4;
  const int64_t dim = task.head_dim;
  const int64_t query_row = QueryRow(task.head_dim);
  const int16_t* queries = task.queries + first_row * 2 * query_row;
  const std::byte* codes = task.codes;
  const Factors factors(task, first_row, kRows);
  auto largest = hn::Neg(hn::Inf(d4));
  alignas(16) float scores[4];
  for (int64_t block = 0; block < task.blocks; ++block, codes += 2 * dim) {
    hn::Vec<DI> first[4];
    hn::Vec<DI> second[4];
    auto unused = hn::Zero(di);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) first[r] = second[r] = hn::Zero(di);
    for (int64_t i = 0; i < dim; i += kLanes16) {
      const V16 row0 = LoadCodes16<int8_t>(codes, i, dim);
      const V16 row1 = LoadCodes16<Second>(codes + dim, i, dim);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int16_t* q = queries + r * 2 * query_row + i;
        first[r] = hn::ReorderWidenMulAccumulate(di, row0, hn::LoadU(d16, q), first[r], unused);
        second[r] = hn::ReorderWidenMulAccumulate(di, row1, hn::LoadU(d16, q + query_row),
                                                  second[r], unused);
      }
    }
    const auto score =
        ScoresOf<std::is_signed_v<Second>>(factors, task.scales + 2 * block, first, second);
    largest = hn::IfThenElse(hn::Gt(score, largest), score, largest);
    hn::Store(score, d4, scores);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      task.scores[(first_row + r) * task.score_stride + block] = scores[r];
    }
  }
  hn::Store(largest, d4, scores);
  for (int r = 0; r < kRows; ++r) {
    float& all = task.largest[first_row + r];
    all = std::max(all, scores[r]);
  }
}

template <class Second>
void ScoreAs(const ScoreTask& task) {
  int row = 0;
  for (; row + 4 <= task.group; row += 4) ScoreRows<Second, 4>(task, row);
  switch (task.group - row) {
    case 3:
      return ScoreRows<Second, 3>(task, row);
    case 2:
      return ScoreRows<Second, 2>(task, row);
    case 1:
      return ScoreRows<Second, 1>(task, row);
    default:
      return;
  }
}

void Score(const ScoreTask& task) {
  task.kind == SummaryKind::kMoments ? ScoreAs<uint8_t>(task) : ScoreAs<int8_t>(task);
}

// --- Shares and worth

uint64_t Weigh(float* scores, int64_t count, float largest) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> floats;
  const hn::RebindToUnsigned<decltype(d)> words;
  const auto top = hn::Set(floats, largest);
  // Added to its bits, a whole number below 2^52 makes 2^52 and that number.
  const auto whole = hn::Set(d, 0x1p52);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(words);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto below = hn::PromoteTo(d, hn::Sub(top, hn::LoadU(floats, scores + i)));
    const auto weight = hn::ShiftRight<kWeightBits - selection::kShareBits>(ScoreWeights(d, below));
    sum = hn::Add(sum, weight);
    const auto number = hn::Sub(hn::BitCast(d, hn::Or(weight, hn::BitCast(words, whole))), whole);
    hn::StoreU(hn::DemoteTo(floats, number), floats, scores + i);
  }
  uint64_t result = hn::GetLane(hn::SumOfLanes(words, sum));
  for (; i < count; ++i) {
    const uint32_t weight = selection::ShareWeight(largest, scores[i]);
    result += weight;
    scores[i] = static_cast<float>(weight);
  }
  return result;
}

void Worth(const WorthTask& task) {
  const D d;
  const DI di;
  const DU du;
  const hn::Rebind<uint16_t, D> d16;
  constexpr int kShift = 23 - selection::kWorthSteps;
  const auto least = hn::Set(di, static_cast<int32_t>(selection::kLeastWorth));
  int64_t i = 0;
  for (; i + kLanes <= task.count; i += kLanes) {
    V worth = hn::Zero(d);
    for (int64_t row = 0; row < task.group * task.pools;) {
      V best = hn::Zero(d);
      for (const int64_t end = row + task.pools; row < end; ++row) {
        const V weight = hn::LoadU(d, task.weights + row * task.weight_stride + i);
        const V share = hn::Div(weight, hn::Set(d, task.sums[row]));
        best = hn::IfThenElse(hn::Gt(share, best), share, best);
      }
      worth = hn::Add(worth, best);
    }
    const auto bits = hn::BitCast(di, hn::ShiftRight<kShift>(hn::BitCast(du, worth)));
    const auto code = hn::Sub(hn::Max(bits, least), least);
    hn::StoreU(hn::DemoteTo(d16, hn::Min(code, hn::Set(di, selection::kWorthCodes - 1))), d16,
               task.codes + i);
  }
  for (; i < task.count; ++i) {
    float worth = 0.0f;
    for (int64_t row = 0; row < task.group * task.pools;) {
      float best = 0.0f;
      for (const int64_t end = row + task.pools; row < end; ++row) {
        best = std::max(best, task.weights[row * task.weight_stride + i] / task.sums[row]);
      }
      worth += best;
    }
    task.codes[i] = static_cast<uint16_t>(selection::WorthCode(worth));
  }
}

// --- Angles

// Of up to a hundred million radians, which are reduced in f64.
void Angles(const BlockMove& move, int64_t shift, float* cos, float* sin) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> floats;
  constexpr size_t kDoubles = HWY_MAX_BYTES / sizeof(double);
  const auto half = static_cast<size_t>(move.rotary_dim / 2);
  const auto by = hn::Set(d, static_cast<double>(shift));
  constexpr double kTurn = 2 * std::numbers::pi;
  for (size_t i = 0; i < half; i += kDoubles) {
    const size_t bytes = std::min(kDoubles, half - i) * sizeof(float);
    alignas(HWY_MAX_BYTES) float lanes[kDoubles] = {};
    std::memcpy(lanes, move.inv_freq + i, bytes);
    const auto angle = hn::Mul(by, hn::PromoteTo(d, hn::Load(floats, lanes)));
    const auto turns = hn::Round(hn::Mul(angle, hn::Set(d, 1 / kTurn)));
    const auto rest = hn::DemoteTo(floats, hn::NegMulAdd(turns, hn::Set(d, kTurn), angle));
    hn::Store(hn::Cos(floats, rest), floats, lanes);
    std::memcpy(cos + i, lanes, bytes);
    hn::Store(hn::Sin(floats, rest), floats, lanes);
    std::memcpy(sin + i, lanes, bytes);
  }
}

}  // namespace

extern const SelectionOps kSelectionOps;
const SelectionOps kSelectionOps = {
    .summarize = Summarize, .score = Score, .weigh = Weigh, .worth = Worth, .angles = Angles};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const SelectionOps& SelectionOpsFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kSelectionOps : N_AVX3::kSelectionOps;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
