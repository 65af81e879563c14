// What attention of few queries reads: rows of K and V in any dtype or encoding, and the memory of
// a task. Included once a target by attention_few.cc, after load-inl.h.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_FEW_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_FEW_LOAD_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_FEW_LOAD_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_FEW_LOAD_INL_H_
#endif

#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/lossless_expand-inl.h"
#include "kernels/page_codec.h"

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
  static constexpr bool kExpanded = false;
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

// Rows of lossless pages, which a block at a time are expanded beside the caches' memory: read
// there, they take the plain rows' way. What is asked of the memory ahead of time are codes.
struct Expanded : Plain<DType::kBF16> {
  static constexpr bool kExpanded = true;
  // Of codes, for so many bytes of rows.
  static constexpr int64_t CodeBytes(int64_t bytes) { return bytes / 4 * 3; }
};

// Codes; their scales and zeros do not touch the rows: those of K go into the queries of a page
// and into its logits, those of V into the weights of a token and once a page into the output.
template <Encoding kEncoding>
struct Coded {
  static constexpr bool kPairs = kEncoding == Encoding::kInt4;
  static constexpr bool kCoded = true;
  static constexpr bool kExpanded = false;
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
  const PageRun& run = task.item->keys.pages;
  return HoldsBF16(*task.format, run) ||
         (run.params != nullptr && task.format->encoding == Encoding::kInt4);
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
        bias(token_zeros + kBlock),
        k_rows(reinterpret_cast<uint16_t*>(bias + kLanes)),
        v_rows(k_rows + kBlock * dim) {}

  static int64_t Bytes(int64_t head_dim) {
    const int64_t dim = RoundUp(head_dim, kLanes);
    return int64_t{sizeof(float)} *
           (kFewRowsMax * (2 * dim + kBlock + 5) + dim + kGroupMax * (dim + kBlock) + 2 * kBlock +
            kLanes + kBlock * dim);
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
  // Of lossless pages, for the block at hand:
  uint16_t* k_rows;  // [kBlock, head_dim] bf16
  uint16_t* v_rows;
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
  // Where the task's rows are expanded ones: whose, where the codes of their values lie, and those
  // of the next keys.
  const AttentionTask* lossless = nullptr;
  const std::byte* value_codes = nullptr;
  const std::byte* next_codes = nullptr;

  float* s() const { return scratch.s + first_row * kBlock; }

  // The row of K at the slot of the next page that `values`, on V, is at; behind the last page in
  // that which this thread reads next, or of V itself.
  const std::byte* KeysBehind(const RowCursor& values) const {
    const PageRun& run = task.item->keys.pages;
    if (!values.on_last_page()) return values.row() + (run.k - run.v) + run.page_stride;
    return next_keys == nullptr ? values.row() : next_keys + (values.row() - values.page());
  }
  // What to ask the memory for while values from element `dim` on are read there.
  template <class F>
  const std::byte* AheadOfValues(const RowCursor& values, int64_t dim) const {
    if constexpr (F::kExpanded) {
      return next_codes + F::CodeBytes(values.row() - values.page() + F::Bytes(dim));
    } else {
      return KeysBehind(values) + F::Bytes(dim);
    }
  }
};

// The piece's rows of K, or V, in place of those of the group before.
void Expand(const Piece& piece, Half half) {
  const AttentionTask& task = *piece.lossless;
  const Scratch& scratch = piece.scratch;
  ExpandRows(*task.format, task.item->keys.pages, half, {piece.first_key, piece.keys},
             {half == Half::kKeys ? scratch.k_rows : scratch.v_rows, task.format->head_dim});
}

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_FEW_LOAD_INL_H_
