// Attention of few queries (decode): K and V are read once, as they come from memory, and every row
// of queries uses what is loaded. Bound by memory bandwidth while rows are few.
//
// Rows go through in groups of kRows = 8 (AVX-512 only), 4, 2 or 1. A vector of logits holds kRows
// rows x kKeys keys, kRows * kKeys being its lanes: lane r * kKeys + k. Logits keep that layout
// through softmax, and the product with V broadcasts them one at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/page_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_few.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/load-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU = hn::ScalableTag<uint32_t>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);
// Keys taken together: K, then V. Alternating between them this often keeps the memory busy with
// one while the other is computed on.
constexpr int64_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The most rows that still leave the product with V a pair of vectors a row in registers.
constexpr int kGroupMax = kLanes / 2;
static_assert(kFewRowsMax % kGroupMax == 0);

constexpr int kLine = 64;  // bytes of a line of a cache

// Elements of a row of K, V, q or o are taken in vectors; bf16 and int4 in pairs of vectors, the
// first of which has the even elements and the second the odd: that is two operations for both,
// where order kept takes a shuffle each. q and o are held in that order.
//
// How rows are read: Pair gives two vectors from element `index` on, Single the vector `index` /
// kLanes of a row of `dim` elements behind the last pair.
template <DType kDType>
struct Plain {
  static constexpr bool kPairs = kDType == DType::kBF16;
  static constexpr bool kCoded = false;
  static constexpr int64_t Bytes(int64_t count) {
    return EncodedBytes(Encoding::kNone, kDType, count);
  }

  static HWY_INLINE void Pair(const std::byte* row, int64_t index, V& first, V& second) {
    const D d;
    if constexpr (kPairs) {
      const DU du;
      const auto bits =
          hn::LoadU(du, reinterpret_cast<const uint32_t*>(row + index * int64_t{sizeof(uint16_t)}));
      first = hn::BitCast(d, hn::ShiftLeft<16>(bits));
      second = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xFFFF0000u)));
    } else {
      first = LoadF32<kDType>(d, row, index);
      second = LoadF32<kDType>(d, row, index + kLanes);
    }
  }
  static HWY_INLINE V Single(const std::byte* row, int64_t index, int64_t dim) {
    const D d;
    if (index + kLanes <= dim) return LoadF32<kDType>(d, row, index);
    return LoadF32Tail<kDType>(d, row, index, dim - index);
  }
};

// Codes; their scales and zeros do not touch the rows: those of K go into the queries of a page
// and into its logits, those of V into the weights of a token and once a page into the output.
template <Encoding kEncoding>
struct Coded {
  static constexpr bool kPairs = kEncoding == Encoding::kInt4;
  static constexpr bool kCoded = true;
  static constexpr float kUnit = kCodeUnit<kEncoding>;
  static constexpr int64_t Bytes(int64_t count) {
    return EncodedBytes(kEncoding, DType::kF32, count);
  }

  static HWY_INLINE void Pair(const std::byte* row, int64_t index, V& first, V& second) {
    const D d;
    if constexpr (kPairs) {
      const DI di;
      const hn::Rebind<uint8_t, D> d8;
      const auto codes =
          hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row) + index / 2));
      first = hn::ConvertTo(d, hn::And(codes, hn::Set(di, 0xF)));
      second = hn::ConvertTo(d, hn::ShiftRight<4>(codes));
    } else {
      first = LoadCodes<kEncoding>(d, row, index);
      second = LoadCodes<kEncoding>(d, row, index + kLanes);
    }
  }
  static HWY_INLINE V Single(const std::byte* row, int64_t index, int64_t dim) {
    const D d;
    if (index + kLanes <= dim) return LoadCodes<kEncoding>(d, row, index);
    return LoadCodesTail<kEncoding>(d, row, index, dim - index);
  }
  // Two vectors of a channel's parameters, in the order of Pair.
  static HWY_INLINE void ParamPair(const std::byte* params, int64_t index, V& first, V& second) {
    const D d;
    if constexpr (kPairs) {
      Plain<DType::kBF16>::Pair(params, index, first, second);
    } else {
      first = LoadF32<DType::kBF16>(d, params, index);
      second = LoadF32<DType::kBF16>(d, params, index + kLanes);
    }
  }
};

// Whether the rows of the task's keys are read in pairs.
bool InPairs(const AttentionTask& task) {
  return task.item->keys.pages.params != nullptr ? task.format->encoding == Encoding::kInt4
                                                 : task.format->dtype == DType::kBF16;
}

// to = from * factor, rows of `dim`: from their order into that of Pair and Single, and back.
void Shuffle(bool in_pairs, int64_t dim, const float* from, float factor, float* to) {
  const D d;
  const V factors = hn::Set(d, factor);
  int64_t i = 0;
  for (; in_pairs && i + 2 * kLanes <= dim; i += 2 * kLanes) {
    V even;
    V odd;
    hn::LoadInterleaved2(d, from + i, even, odd);
    hn::StoreU(hn::Mul(even, factors), d, to + i);
    hn::StoreU(hn::Mul(odd, factors), d, to + i + kLanes);
  }
  for (; i < dim; ++i) to[i] = from[i] * factor;
}
void Unshuffle(bool in_pairs, int64_t dim, const float* from, float factor, float* to) {
  const D d;
  const V factors = hn::Set(d, factor);
  int64_t i = 0;
  for (; in_pairs && i + 2 * kLanes <= dim; i += 2 * kLanes) {
    hn::StoreInterleaved2(hn::Mul(hn::LoadU(d, from + i), factors),
                          hn::Mul(hn::LoadU(d, from + i + kLanes), factors), d, to + i);
  }
  for (; i < dim; ++i) to[i] = from[i] * factor;
}

struct Scratch {
  Scratch(std::byte* data, int64_t head_dim)
      : dim(RoundUp(head_dim, kLanes)),
        q(reinterpret_cast<float*>(data)),
        o(q + kFewRowsMax * dim),
        s(o + kFewRowsMax * dim),
        row(s + kFewRowsMax * kBlock),
        max(row + dim),
        sum(max + kFewRowsMax),
        alpha(sum + kFewRowsMax),
        begin(reinterpret_cast<int32_t*>(alpha + kFewRowsMax)),
        end(begin + kFewRowsMax),
        page_q(reinterpret_cast<float*>(end + kFewRowsMax)),
        page_weights(page_q + kGroupMax * dim),
        token_scales(page_weights + kGroupMax * kBlock),
        token_zeros(token_scales + kBlock),
        bias(token_zeros + kBlock) {}

  static int64_t Bytes(int64_t head_dim) {
    const int64_t dim = RoundUp(head_dim, kLanes);
    return int64_t{sizeof(float)} * (kFewRowsMax * (2 * dim + kBlock + 5) + dim +
                                     kGroupMax * (dim + kBlock) + 2 * kBlock + kLanes);
  }

  int64_t dim;   // padded
  float* q;      // [kFewRowsMax, dim], scaled, shuffled; rows that are not there are 0
  float* o;      // [kFewRowsMax, dim], not normalised, shuffled
  float* s;      // [kFewRowsMax * kBlock]: for each group of rows its vectors of logits
  float* row;    // [dim]
  float* max;    // [kFewRowsMax] of the logits so far, times log2(e)
  float* sum;    // [kFewRowsMax] of 2^(logit - max)
  float* alpha;  // [kFewRowsMax]: what sums over earlier keys are worth under the new maximum
  int32_t* begin;
  int32_t* end;  // [kFewRowsMax]: the keys that each row sees
  // Of encoded pages, for the piece at hand:
  float* page_q;        // [kGroupMax, dim]: q times the page's scales
  float* page_weights;  // as `s`: weights times the scales of a value group
  float* token_scales;  // [kBlock] of a value group
  float* token_zeros;   // [kBlock]
  float* bias;          // [kLanes]: of the lanes of logits, or of the rows' outputs
};

// [kLanes] sums of the lanes of kLanes vectors, in their order.
HWY_INLINE V SumsOfVectors(const V (&v)[kLanes]) {
  const D d;
  const hn::Repartition<uint64_t, D> d64;
  V quads[kLanes / 4];  // each block of 4 lanes: that block's share of the sums of 4 vectors
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / 4; ++i) {
    const V a = hn::Add(hn::InterleaveLower(d, v[4 * i], v[4 * i + 1]),
                        hn::InterleaveUpper(d, v[4 * i], v[4 * i + 1]));
    const V b = hn::Add(hn::InterleaveLower(d, v[4 * i + 2], v[4 * i + 3]),
                        hn::InterleaveUpper(d, v[4 * i + 2], v[4 * i + 3]));
    const auto a64 = hn::BitCast(d64, a);
    const auto b64 = hn::BitCast(d64, b);
    quads[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a64, b64)),
                       hn::BitCast(d, hn::InterleaveUpper(d64, a64, b64)));
  }
  V even = quads[0];
  V odd = quads[1];
#if HWY_TARGET == HWY_AVX3
  even = hn::Add(hn::ConcatLowerLower(d, quads[2], quads[0]),
                 hn::ConcatUpperUpper(d, quads[2], quads[0]));
  odd = hn::Add(hn::ConcatLowerLower(d, quads[3], quads[1]),
                hn::ConcatUpperUpper(d, quads[3], quads[1]));
#endif
  return hn::Add(hn::OddEvenBlocks(odd, even),
                 hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd)));
}

// Some rows and some keys of the item.
struct Piece {
  const AttentionTask& task;
  const Scratch& scratch;
  int64_t first_row;           // of the group
  int64_t first_key;           // of the item's
  int64_t keys;                // at most kBlock
  const std::byte* next_keys;  // the page of K behind the item, or null

  float* s() const { return scratch.s + first_row * kBlock; }

  // The row of K at the slot of the next page that `values`, on V, is at; behind the last page in
  // that which this thread reads next, or of V itself.
  const std::byte* KeysBehind(const RowCursor& values) const {
    const PageRun& run = task.item->keys.pages;
    if (!values.on_last_page()) return values.row() + (run.k - run.v) + run.page_stride;
    return next_keys == nullptr ? values.row() : next_keys + (values.row() - values.page());
  }
};

// The rows of the next keys, of which `left` > 0 are there; the last repeated for those that are
// not.
template <int kKeys>
HWY_INLINE void NextRows(RowCursor& cursor, int64_t left, const std::byte* (&rows)[kKeys]) {
  if (cursor.adjacent() >= kKeys && left >= kKeys) {
    for (int k = 0; k < kKeys; ++k) rows[k] = cursor.row() + k * cursor.row_bytes();
    if (left > kKeys) cursor.Advance(kKeys);
    return;
  }
  for (int k = 0; k < kKeys; ++k) {
    rows[k] = cursor.row();
    if (k + 1 < left) cursor.Advance();
  }
}

// Asks the memory for what is needed half a block on, the values of the keys at hand or the keys
// behind the values at hand: the processor's own prefetching runs too short a way ahead to hide all
// of the memory's latency, and ends with each page. A line at a time among the arithmetic: a burst
// of them would fill the buffers that loads need.
HWY_INLINE void Ahead(const std::byte* row) { hwy::Prefetch(row); }

// The parameters of the page that an encoded piece lies in.
const std::byte* ParamsOf(const Piece& piece) {
  const PageRun& run = piece.task.item->keys.pages;
  return run.params + (run.first_slot + piece.first_key) / piece.task.format->page_slots *
                          run.params_page_stride;
}

// q · (zero + scale * code) = q · zero + (q * scale) · code: what depends on the page alone.
template <class F, int kRows>
HWY_NOINLINE void PrepareQueries(const Piece& piece) {
  constexpr int kKeys = kLanes / kRows;
  const D d;
  const Scratch& scratch = piece.scratch;
  const int64_t dim = piece.task.format->head_dim;
  const float* q = scratch.q + piece.first_row * scratch.dim;
  const std::byte* scales = ParamsOf(piece);
  const std::byte* zeros = scales + dim * int64_t{sizeof(uint16_t)};
  const V unit = hn::Set(d, F::kUnit);
  V sums[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(d);
  const auto take = [&](int64_t i, V scale, V zero) HWY_ATTR {
    scale = hn::Mul(scale, unit);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V qi = hn::Load(d, q + r * scratch.dim + i);
      hn::Store(hn::Mul(qi, scale), d, scratch.page_q + r * scratch.dim + i);
      sums[r] = hn::MulAdd(qi, zero, sums[r]);
    }
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    V scale[2];
    V zero[2];
    F::ParamPair(scales, i, scale[0], scale[1]);
    F::ParamPair(zeros, i, zero[0], zero[1]);
    take(i, scale[0], zero[0]);
    take(i + kLanes, scale[1], zero[1]);
  }
  for (; i < dim; i += kLanes) {
    take(i, Plain<DType::kBF16>::Single(scales, i, dim),
         Plain<DType::kBF16>::Single(zeros, i, dim));
  }
  for (int r = 0; r < kRows; ++r) {
    std::fill_n(scratch.bias + r * kKeys, kKeys, hn::GetLane(hn::SumOfLanes(d, sums[r])));
  }
}

// kLanes / kRows numbers, once for each row of a vector of logits; up to kLanes are read.
template <int kRows>
HWY_INLINE V OfEachRow(const float* keys) {
  const D d;
  constexpr int kKeys = kLanes / kRows;
  if constexpr (kKeys == kLanes) {
    return hn::LoadU(d, keys);
  } else if constexpr (kKeys == 8) {
    const V v = hn::LoadU(d, keys);
    return hn::ConcatLowerLower(d, v, v);
  } else if constexpr (kKeys == 4) {
    return hn::LoadDup128(d, keys);
  } else {
    static_assert(kKeys == 2);
    const hn::Repartition<uint64_t, D> d64;
    uint64_t two = 0;
    std::memcpy(&two, keys, sizeof(two));
    return hn::BitCast(d, hn::Set(d64, two));
  }
}

// sum of p * (zero + scale * code) = sum of p * zero + sum of (p * scale) * code, for the values
// of group `group`: what depends on the tokens alone.
template <class F, int kRows>
HWY_NOINLINE void PrepareWeights(const Piece& piece, int64_t group) {
  constexpr int kKeys = kLanes / kRows;
  const D d;
  const Scratch& scratch = piece.scratch;
  const PageFormat& format = *piece.task.format;
  const int64_t slot =
      (piece.task.item->keys.pages.first_slot + piece.first_key) % format.page_slots;
  const std::byte* scales = ParamsOf(piece) + KeyParamBytes(format);
  const std::byte* zeros =
      scales + ValueGroups(format) * format.page_slots * int64_t{sizeof(uint16_t)};
  const int64_t first = group * format.page_slots + slot;
  const V unit = hn::Set(d, F::kUnit);
  for (int64_t key = 0; key < RoundUp(piece.keys, kLanes); key += kLanes) {
    const V scale = Plain<DType::kBF16>::Single(scales, first + key, first + piece.keys);
    hn::Store(hn::Mul(scale, unit), d, scratch.token_scales + key);
    hn::Store(Plain<DType::kBF16>::Single(zeros, first + key, first + piece.keys), d,
              scratch.token_zeros + key);
  }
  V sum = hn::Zero(d);
  const float* p = piece.s();
  float* to = scratch.page_weights;
  for (int64_t key = 0; key < piece.keys; key += kKeys, p += kLanes, to += kLanes) {
    const V weight = hn::Load(d, p);
    hn::Store(hn::Mul(weight, OfEachRow<kRows>(scratch.token_scales + key)), d, to);
    sum = hn::MulAdd(weight, OfEachRow<kRows>(scratch.token_zeros + key), sum);
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(sum, d, lanes);
  for (int r = 0; r < kRows; ++r) {
    scratch.bias[r] = 0;
    for (int k = 0; k < kKeys; ++k) scratch.bias[r] += lanes[r * kKeys + k];
  }
}

// Products of a group's queries with the piece's keys; anything in lanes beyond the last key.
template <class F, int kRows>
HWY_NOINLINE void Score(const Piece& piece) {
  constexpr int kKeys = kLanes / kRows;
  // Rows of keys that are read side by side: as many streams as memory serves well.
  constexpr int kSide = std::min(kKeys, 4);
  const D d;
  const Scratch& scratch = piece.scratch;
  const PageRun& run = piece.task.item->keys.pages;
  const int64_t dim = piece.task.format->head_dim;
  const float* q = F::kCoded ? scratch.page_q : scratch.q + piece.first_row * scratch.dim;
  RowCursor cursor(*piece.task.format, run, run.k, piece.first_key);
  const int64_t to_values = run.v - run.k;
  float* s = piece.s();
  for (int64_t key = 0; key < piece.keys; key += kKeys, s += kLanes) {
    V sums[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = hn::Zero(d);
#pragma GCC unroll 4
    for (int side = 0; side < kKeys; side += kSide) {
      const std::byte* rows[kSide];
      if (side > 0 && key + side >= piece.keys) break;
      NextRows(cursor, piece.keys - key - side, rows);
      int64_t i = 0;
      for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
#pragma GCC unroll 4
        for (int k = 0; k < kSide; ++k) {
          V first;
          V second;
          Ahead(rows[k] + to_values + F::Bytes(i));
          if constexpr (F::Bytes(2 * kLanes) > kLine) {
            Ahead(rows[k] + to_values + F::Bytes(i + kLanes));
          }
          F::Pair(rows[k], i, first, second);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const float* qr = q + r * scratch.dim + i;
            V& sum = sums[r * kKeys + side + k];
            sum = hn::MulAdd(first, hn::Load(d, qr), sum);
            sum = hn::MulAdd(second, hn::Load(d, qr + kLanes), sum);
          }
        }
      }
      for (; i < dim; i += kLanes) {
#pragma GCC unroll 4
        for (int k = 0; k < kSide; ++k) {
          const V single = F::Single(rows[k], i, dim);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            V& sum = sums[r * kKeys + side + k];
            sum = hn::MulAdd(single, hn::Load(d, q + r * scratch.dim + i), sum);
          }
        }
      }
    }
    V logits = SumsOfVectors(sums);
    if constexpr (F::kCoded) logits = hn::Add(logits, hn::Load(d, scratch.bias));
    hn::Store(logits, d, s);
  }
}

// The number of each row, for all its lanes of a vector of logits.
template <int kRows>
HWY_INLINE V ToLanes(const float* rows) {
  const D d;
  if constexpr (kRows == 1) return hn::Set(d, rows[0]);
  HWY_ALIGN float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = rows[i / (kLanes / kRows)];
  return hn::Load(d, lanes);
}
template <int kRows>
HWY_INLINE void FromLanes(V v, float* rows) {
  const D d;
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, d, lanes);
  for (int r = 0; r < kRows; ++r) rows[r] = lanes[r * (kLanes / kRows)];
}

// The sum, or whatever `op` makes of two, of the lanes of each row, in all of them.
template <int kRows, class Op>
HWY_INLINE V OverKeys(V v, const Op& op) {
  constexpr int kKeys = kLanes / kRows;
  const D d;
  v = op(v, hn::Shuffle2301(v));
  if constexpr (kKeys >= 4) v = op(v, hn::Shuffle1032(v));
  if constexpr (kKeys >= 8) v = op(v, hn::SwapAdjacentBlocks(v));
  if constexpr (kKeys >= 16) v = op(v, hn::ConcatLowerUpper(d, v, v));
  return v;
}

// Logits to 2^(logit - max), 0 for keys that a row does not see; the rows' max, sum and alpha.
template <int kRows>
HWY_NOINLINE void Exponentiate(const Piece& piece) {
  constexpr int kKeys = kLanes / kRows;
  const D d;
  const DI di;
  const Scratch& scratch = piece.scratch;
  const V none = hn::Set(d, -kInfinity);
  // Of the piece's keys; small enough to be exact.
  float begin_of[kRows];
  float end_of[kRows];
  for (int r = 0; r < kRows; ++r) {
    begin_of[r] = static_cast<float>(
        std::clamp<int64_t>(scratch.begin[piece.first_row + r] - piece.first_key, 0, piece.keys));
    end_of[r] = static_cast<float>(
        std::clamp<int64_t>(scratch.end[piece.first_row + r] - piece.first_key, 0, piece.keys));
  }
  const V begin = ToLanes<kRows>(begin_of);
  const V end = ToLanes<kRows>(end_of);
  V key = hn::ConvertTo(d, hn::And(hn::Iota(di, 0), hn::Set(di, kKeys - 1)));
  float* const s = piece.s();
  const int64_t size = CeilDiv(piece.keys, kKeys) * kLanes;
  V max = none;
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto seen = hn::And(hn::Ge(key, begin), hn::Lt(key, end));
    const V logit = hn::IfThenElse(seen, hn::Load(d, s + i), none);
    hn::Store(logit, d, s + i);
    max = hn::Max(max, logit);
    key = hn::Add(key, hn::Set(d, kKeys));
  }
  max = OverKeys<kRows>(max, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  const V before = ToLanes<kRows>(scratch.max + piece.first_row);
  const V after = hn::Max(before, max);
  FromLanes<kRows>(after, scratch.max + piece.first_row);
  // A row that has seen no key yet: any finite base gives 2^(-inf - base) = 0 and no NaN.
  const V base = hn::IfThenZeroElse(hn::Eq(after, none), after);
  const V alpha = Exp2(d, hn::Sub(before, base));
  FromLanes<kRows>(alpha, scratch.alpha + piece.first_row);
  V sum = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    const V p = Exp2(d, hn::Sub(hn::Load(d, s + i), base));
    hn::Store(p, d, s + i);
    sum = hn::Add(sum, p);
  }
  sum = OverKeys<kRows>(sum, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
  const V total = hn::MulAdd(ToLanes<kRows>(scratch.sum + piece.first_row), alpha, sum);
  FromLanes<kRows>(total, scratch.sum + piece.first_row);
}

// o = o * alpha + P V for kVecs vectors of dims from `dim_begin` on.
template <class F, int kRows, int kVecs>
HWY_NOINLINE void AddValues(const Piece& piece, int64_t dim_begin) {
  constexpr int kKeys = kLanes / kRows;
  const D d;
  const Scratch& scratch = piece.scratch;
  const PageRun& run = piece.task.item->keys.pages;
  float* o = scratch.o + piece.first_row * scratch.dim + dim_begin;
  V sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const V alpha = hn::Set(d, scratch.alpha[piece.first_row + r]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = hn::Mul(hn::Load(d, o + r * scratch.dim + v * kLanes), alpha);
      if constexpr (F::kCoded) sums[r][v] = hn::Add(sums[r][v], hn::Set(d, scratch.bias[r]));
    }
  }
  RowCursor cursor(*piece.task.format, run, run.v, piece.first_key);
  const int64_t row_bytes = cursor.row_bytes();
  const float* const weights = F::kCoded ? scratch.page_weights : piece.s();
  for (int64_t key = 0; key < piece.keys;) {
    const int64_t page_end = key + std::min(cursor.adjacent(), piece.keys - key);
    const std::byte* row = cursor.row();
    const std::byte* next = piece.KeysBehind(cursor) + F::Bytes(dim_begin);
    if (page_end < piece.keys) cursor.Advance(page_end - key);
    for (; key < page_end; ++key, row += row_bytes, next += row_bytes) {
#pragma GCC unroll 8
      for (int64_t at = 0; at < F::Bytes(kVecs * kLanes); at += kLine) Ahead(next + at);
      V values[kVecs];
      if constexpr (kVecs == 1) {
        values[0] = F::Single(row, dim_begin, piece.task.format->head_dim);
      } else {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; v += 2) {
          F::Pair(row, dim_begin + v * kLanes, values[v], values[v + 1]);
        }
      }
      const float* p = weights + key / kKeys * kLanes + key % kKeys;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(d, p[r * kKeys]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sums[r][v] = hn::MulAdd(weight, values[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      hn::Store(sums[r][v], d, o + r * scratch.dim + v * kLanes);
    }
  }
}

template <class F, int kRows>
void AttendPiece(const Piece& piece) {
  if constexpr (F::kCoded) PrepareQueries<F, kRows>(piece);
  Score<F, kRows>(piece);
  Exponentiate<kRows>(piece);
  // As many vectors at once as leave room for the rows' sums in registers; of encoded pages, no
  // more than a value group has.
  constexpr int kInGroup = F::kCoded ? kValueGroup / kLanes : kLanes;
  constexpr int kVecsMax = std::min({kLanes / kRows, 8, kInGroup});
  const int64_t dim = piece.task.format->head_dim;
  const auto begin = [&](int64_t i) HWY_ATTR {
    if constexpr (F::kCoded) {
      if (i % kValueGroup == 0) PrepareWeights<F, kRows>(piece, i / kValueGroup);
    }
  };
  int64_t i = 0;
  for (; i + kVecsMax * kLanes <= dim; i += kVecsMax * kLanes) {
    begin(i);
    AddValues<F, kRows, kVecsMax>(piece, i);
  }
  if constexpr (kVecsMax > 4) {
    for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
      begin(i);
      AddValues<F, kRows, 4>(piece, i);
    }
  }
  if constexpr (kVecsMax > 2) {
    for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
      begin(i);
      AddValues<F, kRows, 2>(piece, i);
    }
  }
  for (; i < dim; i += kLanes) {
    begin(i);
    AddValues<F, kRows, 1>(piece, i);
  }
}

// Rows to take together of the `rows` that are left: a row of zeros too many costs less than
// another pass over the keys.
int64_t GroupOf(int64_t rows) {
  if (rows >= 6 && kGroupMax == 8) return 8;
  return rows >= 3 ? 4 : rows;
}

template <class F>
void AttendGroup(const Piece& piece, int64_t group) {
  switch (group) {
    case kGroupMax:
      return AttendPiece<F, kGroupMax>(piece);
#if HWY_TARGET == HWY_AVX3
    case 4:
      return AttendPiece<F, 4>(piece);
#endif
    case 2:
      return AttendPiece<F, 2>(piece);
    default:
      return AttendPiece<F, 1>(piece);
  }
}

void AttendRows(const Piece& piece, int64_t group) {
  const bool encoded = piece.task.item->keys.pages.params != nullptr;
  switch (encoded ? piece.task.format->encoding : Encoding::kNone) {
    case Encoding::kInt8:
      return AttendGroup<Coded<Encoding::kInt8>>(piece, group);
    case Encoding::kFp8E4M3:
      return AttendGroup<Coded<Encoding::kFp8E4M3>>(piece, group);
    case Encoding::kInt4:
      return AttendGroup<Coded<Encoding::kInt4>>(piece, group);
    case Encoding::kNone:
      break;
  }
  switch (piece.task.format->dtype) {
    case DType::kF32:
      return AttendGroup<Plain<DType::kF32>>(piece, group);
    case DType::kF16:
      return AttendGroup<Plain<DType::kF16>>(piece, group);
    case DType::kBF16:
      return AttendGroup<Plain<DType::kBF16>>(piece, group);
  }
}

void FillRows(const AttentionTask& task, const Scratch& scratch) {
  const LogitScale scale(*task.params);
  const bool in_pairs = InPairs(task);
  const int64_t dim = task.format->head_dim;
  int64_t rows = 0;  // with those of zeros
  while (rows < task.rows) rows += GroupOf(task.rows - rows);
  std::fill_n(scratch.o, rows * scratch.dim, 0.0f);
  std::fill_n(scratch.max, rows, -kInfinity);
  std::fill_n(scratch.sum, rows, 0.0f);
  VisibleKeys seen;
  for (int64_t r = 0; r < rows; ++r) {
    float* const to = scratch.q + r * scratch.dim;
    if (r < task.rows) {
      const int64_t token = r / task.group;
      const int64_t head = r % task.group;
      const float* q =
          static_cast<const float*>(task.item->q) + token * task.item->q_stride + head * dim;
      Shuffle(in_pairs, dim, q, scale.q, to);
      std::fill(to + dim, to + scratch.dim, 0.0f);
      if (head == 0) seen = KeysSeenBy(*task.params, *task.item, token);
    } else {
      std::fill_n(to, scratch.dim, 0.0f);
    }
    scratch.begin[r] = seen.begin;
    scratch.end[r] = seen.end;
  }
}

// Where the piece that `key` begins ends at the latest: at a multiple of kBlock keys, those of
// encoded pages counted from the start of their page, which has parameters of its own.
int64_t NextBound(const AttentionTask& task, int64_t key) {
  const PageRun& run = task.item->keys.pages;
  if (run.params == nullptr) return (key / kBlock + 1) * kBlock;
  const int64_t slots = task.format->page_slots;
  const int64_t slot = (run.first_slot + key) % slots;
  return key - slot + std::min((slot / kBlock + 1) * kBlock, slots);
}

// The page of the first key that an item's first row sees.
const std::byte* FirstPage(const AttentionTask& task, const AttentionItem& item) {
  const PageRun& run = item.keys.pages;
  const int64_t slot = run.first_slot + KeysSeenBy(*task.params, item, 0).begin;
  return run.k + slot / task.format->page_slots * run.page_stride;
}

void AttendFew(const AttentionTask& task, std::byte* data) {
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  FillRows(task, scratch);
  // Rows are in the order of their positions: the first sees the earliest keys, the last the
  // latest.
  const int64_t begin = scratch.begin[0];
  const int64_t end = scratch.end[task.rows - 1];
  const std::byte* next_keys = task.next == nullptr ? nullptr : FirstPage(task, *task.next);
  for (int64_t key = begin; key < end;) {
    const int64_t next = std::min(end, NextBound(task, key));
    for (int64_t row = 0; row < task.rows;) {
      const int64_t group = GroupOf(task.rows - row);
      const Piece piece = {task, scratch, row, key, next - key, next_keys};
      AttendRows(piece, group);
      row += group;
    }
    key = next;
  }
  const bool in_pairs = InPairs(task);
  for (int64_t r = 0; r < task.rows; ++r) {
    const float sum = scratch.sum[r];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    Unshuffle(in_pairs, task.format->head_dim, scratch.o + r * scratch.dim, inverse, scratch.row);
    StoreState(task, r, scratch.row, LogSumOf(scratch.max[r], sum));
  }
}

}  // namespace

extern const AttentionFewOps kAttentionFewOps;
const AttentionFewOps kAttentionFewOps = {.scratch_bytes = Scratch::Bytes, .attend = AttendFew};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const AttentionFewOps& AttentionFewOpsFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kAttentionFewOps : N_AVX3::kAttentionFewOps;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
