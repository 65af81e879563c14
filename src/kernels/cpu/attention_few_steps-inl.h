// The steps of attention of few queries on a block of keys: scores, softmax, values. Included once
// a target by attention_few.cc.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_FEW_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_FEW_STEPS_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_FEW_STEPS_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_FEW_STEPS_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/attention_few_load-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

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
          if constexpr (F::kExpanded) {
            Ahead(piece.value_codes + F::CodeBytes(rows[k] - run.k + F::Bytes(i)));
          } else {
            Ahead(rows[k] + to_values + F::Bytes(i));
            if constexpr (F::Bytes(2 * kLanes) > kLine) {
              Ahead(rows[k] + to_values + F::Bytes(i + kLanes));
            }
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
    const std::byte* next = piece.template AheadOfValues<F>(cursor, dim_begin);
    const int64_t next_bytes = F::kExpanded ? row_bytes / 4 * 3 : row_bytes;
    if (page_end < piece.keys) cursor.Advance(page_end - key);
    for (; key < page_end; ++key, row += row_bytes, next += next_bytes) {
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_FEW_STEPS_INL_H_
