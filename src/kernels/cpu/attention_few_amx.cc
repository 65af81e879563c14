// Attention of one token (decode) to bf16 pages on AMX tiles. Its arithmetic takes a fraction of
// the time that memory needs to deliver K and V, so what counts is that lines of the memory are
// asked for all the time and in their order.
//
// S [keys, rows] = K q^T takes rows of K as tiles as they lie in pages. O [rows, dims] += P V wants
// pairs of rows of V interleaved, which leaves O's columns in an order of their own (InOrder).
// Numbers of f32 that meet tiles, q and P, are cut into bf16 parts, each what the ones before left:
// three parts of q are all of it, two of P are it to 2^-16. A q that is bf16 has one part.
//
// Keys go in blocks of kBlock counted from the item's first, each in four tiles of 16: so bits
// depend on neither pages nor threads. Tiles that end early or cross pages are copied and padded.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_few_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/bf16-inl.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/lossless_expand-inl.h"
#include "kernels/cpu/transpose-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int64_t kBlock = 64;  // keys
constexpr int64_t kTiles = kBlock / kTileRows;
constexpr int64_t kPairs = kTiles / 2;  // P and V go by 32 keys
constexpr int64_t kChunk = kFewChunk;   // elements of head_dim in a row of a tile
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
constexpr int kQueryParts = 3;
constexpr int64_t kSumStride = kTileRows * sizeof(float);  // bytes between rows of S

// A larger maximum is adopted when a logit exceeds the old one by so much: until then weights are
// at most 2^8, which costs no precision, and sums need not be rescaled.
constexpr float kMaxSlack = 8.0f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Scratch {
  Scratch(std::byte* data, int64_t dim) : head_dim(dim), chunks(dim / kChunk), q(data) {
    p = q + kQueryParts * chunks * kTileBytes;
    v = p + 2 * kPairs * kTileBytes;
    k_rows = v + 2 * kPairs * kTileBytes;
    v_rows = k_rows + kBlock * dim * 2;
    s = reinterpret_cast<float*>(v_rows + kBlock * dim * 2);
    sums = s + kBlock * kTileRows;
    max = sums + kTileRows * kTileRows;
    o = max + kTileRows;
    row = o + kTileRows * dim;
  }
  // Of any head_dim, so that it need not be one that goes this way.
  static int64_t Bytes(int64_t dim) {
    const int64_t floats = (kBlock + kTileRows + 1) * kTileRows + (kTileRows + 1) * dim;
    return kQueryParts * CeilDiv(dim, kChunk) * kTileBytes + 4 * kPairs * kTileBytes +
           4 * kBlock * dim + floats * int64_t{sizeof(float)};
  }

  int64_t head_dim;
  int64_t chunks;
  std::byte* q;       // [chunks, kQueryParts]: tiles [16 pairs of dims, 16 rows, 2]
  std::byte* p;       // [2 parts, kPairs]: tiles [16 rows, 32 keys]
  std::byte* v;       // [kPairs, 2]: tiles [16 pairs of keys, 16 dims, 2] of a chunk
  std::byte* k_rows;  // [kBlock, head_dim] bf16: where tiles cannot be read in place
  std::byte* v_rows;
  float* s;     // [kBlock, 16 rows]: q · k
  float* sums;  // [16 rows, 16]: sums of the weights 2^(logit - max), key i in lane i % 16
  float* max;   // [16 rows] that weights refer to, times log2(e); -inf before any key
  float* o;     // [16 rows, head_dim], not normalised, in the order of the tiles
  float* row;   // [head_dim]
};

// K or V of a block: the first of 16 rows, which lie next to each other, of each tile.
struct TileRows {
  const std::byte* first[kTiles];
};

// The same as RowsOf for lossless pages.
TileRows ExpandTiles(const AttentionTask& task, Half half, Span keys, std::byte* to) {
  const int64_t dim = task.format->head_dim;
  const int64_t there = RoundUp(CeilDiv(keys.count, kTileRows), 2) * kTileRows;
  const ExpandedRows expanded = {reinterpret_cast<uint16_t*>(to), dim};
  ExpandRows(*task.format, task.item->keys.pages, half, keys, expanded);
  std::fill(expanded.At(keys.count), expanded.At(there), uint16_t{0});
  TileRows rows;
  for (int64_t tile = 0; tile * kTileRows < there; ++tile) {
    rows.first[tile] = to + tile * kTileRows * dim * 2;
  }
  return rows;
}

// Keys [key, key + keys) of the run; tiles that they fill in part end with zeros, and an odd number
// of tiles is followed by one of zeros.
HWY_INLINE TileRows RowsOf(const AttentionTask& task, Half half, int64_t key, int64_t keys,
                           std::byte* copies) {
  const PageRun& run = task.item->keys.pages;
  if (IsLossless(*task.format, run)) return ExpandTiles(task, half, {key, keys}, copies);
  TileRows rows;
  RowCursor cursor(*task.format, run, half == Half::kKeys ? run.k : run.v, key);
  const int64_t row_bytes = cursor.row_bytes();
  for (int64_t tile = 0; tile < RoundUp(CeilDiv(keys, kTileRows), 2); ++tile) {
    const int64_t there = std::clamp<int64_t>(keys - tile * kTileRows, 0, kTileRows);
    const bool last = (tile + 1) * kTileRows >= keys;
    if (there == kTileRows && cursor.adjacent() >= kTileRows) {
      rows.first[tile] = cursor.row();
      if (!last) cursor.Advance(kTileRows);
      continue;
    }
    std::byte* to = copies + tile * kTileRows * row_bytes;
    rows.first[tile] = to;
    for (int64_t i = 0; i < there; ++i, to += row_bytes) {
      std::memcpy(to, cursor.row(), static_cast<size_t>(row_bytes));
      if (i + 1 < there || !last) cursor.Advance();
    }
    std::memset(to, 0, static_cast<size_t>((kTileRows - there) * row_bytes));
  }
  return rows;
}

// Asks the memory for K or V of a block a little at a time, in the order of its lines: a burst
// would fill the buffers that loads need, and the processor's own prefetching follows an order, but
// runs too short a way ahead to hide all of the memory's latency.
class Ahead {
 public:
  // Keys [key, key + kBlock) of the run, as far as there are any before `end`.
  Ahead(const AttentionTask& task, const std::byte* pages, int64_t key, int64_t end)
      : task_(task), pages_(pages), key_(key), end_(std::min(end, key + kBlock)) {
    NextTile();
  }
  // 1 KiB of it: as much as a tile that is loaded meanwhile.
  HWY_INLINE void Step() {
    if (left_ == 0) return;
#pragma GCC unroll 16
    for (int64_t line = 0; line < kTileBytes; line += kTileRowBytes) {
      // To the second level: the first has too few buffers for lines under way to the memory.
      _mm_prefetch(reinterpret_cast<const char*>(at_ + line), _MM_HINT_T1);
    }
    at_ += kTileBytes;
    if (--left_ == 0) NextTile();
  }
  void All() {
    while (left_ > 0) Step();
  }

 private:
  void NextTile() {
    if (key_ >= end_) return;
    at_ = RowCursor(*task_.format, task_.item->keys.pages, pages_, key_).row();
    const int64_t row_bytes = RowBytes(*task_.format, task_.item->keys.pages);
    left_ = CeilDiv(kTileRows * row_bytes, kTileBytes);
    key_ += kTileRows;
  }

  const AttentionTask& task_;
  const std::byte* const pages_;
  int64_t key_;
  const int64_t end_;
  const std::byte* at_ = nullptr;
  int64_t left_ = 0;  // steps of the tile at hand
};

// Stores 32 numbers as bf16; what that leaves of them remains in `low` and `high`.
template <class Convert>
HWY_INLINE void TakePart(V& low, V& high, std::byte* to) {
  const D d;
  Convert::ToBF16(low, high, to);
  low = hn::Sub(low, LoadF32<DType::kBF16>(d, to, 0));
  high = hn::Sub(high, LoadF32<DType::kBF16>(d, to, kTileRows));
}

// Returns the parts of q that are not all zero: 1 or kQueryParts.
template <class Convert>
int PackQueries(const AttentionTask& task, const Scratch& scratch) {
  const D d;
  const auto* q = static_cast<const float*>(task.item->q);
  bool rest = false;
  for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
    V low[kTileRows];
    V high[kTileRows];
    for (int64_t r = 0; r < task.rows; ++r) {
      const float* from = q + r * scratch.head_dim + chunk * kChunk;
      low[r] = hn::LoadU(d, from);
      high[r] = hn::LoadU(d, from + kTileRows);
    }
    for (int part = 0; part < kQueryParts; ++part) {
      std::byte* tile = scratch.q + (chunk * kQueryParts + part) * kTileBytes;
      V m[kTileRows];
      for (int64_t r = 0; r < kTileRows; ++r) {
        m[r] = hn::Zero(d);
        if (r >= task.rows) continue;
        TakePart<Convert>(low[r], high[r], tile);
        m[r] = V{_mm512_load_ps(tile)};
        if (part > 0) continue;
        const auto zeros = hn::And(hn::Eq(low[r], hn::Zero(d)), hn::Eq(high[r], hn::Zero(d)));
        rest = rest || !hn::AllTrue(d, zeros);
      }
      Transpose(m);
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_ps(tile + i * kTileRowBytes, m[i].raw);
    }
  }
  return rest ? kQueryParts : 1;
}

// Tile kSum += a tile of K times the parts of q, which are tiles 5 to 7.
template <int kSum, class Tiles>
HWY_INLINE void AddProducts(Tiles& tiles, const std::byte* k, int64_t row_bytes, int parts) {
  tiles.template Load<4>(k, row_bytes);
  tiles.template MultiplyAdd<kSum, 4, 5>();
  if (parts == 1) return;
  tiles.template MultiplyAdd<kSum, 4, 6>();
  tiles.template MultiplyAdd<kSum, 4, 7>();
}

template <class Tiles>
HWY_NOINLINE void Score(Tiles& tiles, const Scratch& scratch, const TileRows& k, int64_t keys,
                        int parts, Ahead ahead) {
  const int64_t row_bytes = scratch.head_dim * 2;
  const bool whole = keys > 2 * kTileRows;  // else the second half has no tile
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
    const std::byte* q = scratch.q + chunk * kQueryParts * kTileBytes;
    const int64_t at = chunk * kTileRowBytes;
    tiles.template Load<5>(q, kTileRowBytes);
    if (parts > 1) {
      tiles.template Load<6>(q + kTileBytes, kTileRowBytes);
      tiles.template Load<7>(q + 2 * kTileBytes, kTileRowBytes);
    }
    AddProducts<0>(tiles, k.first[0] + at, row_bytes, parts);
    ahead.Step();
    AddProducts<1>(tiles, k.first[1] + at, row_bytes, parts);
    ahead.Step();
    if (whole) {
      AddProducts<2>(tiles, k.first[2] + at, row_bytes, parts);
      ahead.Step();
      AddProducts<3>(tiles, k.first[3] + at, row_bytes, parts);
      ahead.Step();
    }
  }
  tiles.template Store<0>(scratch.s, kSumStride);
  tiles.template Store<1>(scratch.s + 1 * kTileRows * kTileRows, kSumStride);
  tiles.template Store<2>(scratch.s + 2 * kTileRows * kTileRows, kSumStride);
  tiles.template Store<3>(scratch.s + 3 * kTileRows * kTileRows, kSumStride);
}

// Sums of `row` under another maximum, and the weights' base from now on.
HWY_NOINLINE void Rescale(const Scratch& scratch, int64_t row, float max) {
  const D d;
  const float before = scratch.max[row];
  scratch.max[row] = max;
  const V alpha = Exp2(d, hn::Set(d, before - max));
  float* sums = scratch.sums + row * kTileRows;
  hn::Store(hn::Mul(hn::Load(d, sums), alpha), d, sums);
  float* o = scratch.o + row * scratch.head_dim;
  for (int64_t i = 0; i < scratch.head_dim; i += kTileRows) {
    hn::Store(hn::Mul(hn::Load(d, o + i), alpha), d, o + i);
  }
}

// m[i] becomes query first_row + i of S for the 16 keys of a tile.
HWY_INLINE void LoadQueries(const float* s, int64_t first_row, V (&m)[4]) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    // Block b: four queries of key 4 b + i.
    const float* at = s + i * kTileRows + first_row;
    __m512 v = _mm512_castps128_ps512(_mm_load_ps(at));
    v = _mm512_mask_broadcast_f32x4(v, 0x00F0, _mm_load_ps(at + 4 * kTileRows));
    v = _mm512_mask_broadcast_f32x4(v, 0x0F00, _mm_load_ps(at + 8 * kTileRows));
    v = _mm512_mask_broadcast_f32x4(v, 0xF000, _mm_load_ps(at + 12 * kTileRows));
    m[i] = V{v};
  }
  TransposeInBlocks(m);
}

// P of four rows from their S, 0 for keys past the last.
template <class Convert>
HWY_NOINLINE void Exponentiate(const Scratch& scratch, int64_t first_row, int64_t keys,
                               float scale) {
  const D d;
  V logits[kTiles][4];
#pragma GCC unroll 4
  for (int64_t tile = 0; tile < kTiles; ++tile) {
    LoadQueries(scratch.s + tile * kTileRows * kTileRows, first_row, logits[tile]);
    const auto left = std::clamp<int64_t>(keys - tile * kTileRows, 0, kTileRows);
    const auto there = hn::FirstN(d, static_cast<size_t>(left));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      logits[tile][r] = hn::IfThenElse(there, hn::Mul(logits[tile][r], hn::Set(d, scale)),
                                       hn::Set(d, -kInfinity));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_row + r;
    const V max = hn::Max(hn::Max(logits[0][r], logits[1][r]), hn::Max(logits[2][r], logits[3][r]));
    const V limit = hn::Set(d, scratch.max[row] + kMaxSlack);
    if (!hn::AllFalse(d, hn::Gt(max, limit))) {
      Rescale(scratch, row, hn::GetLane(hn::MaxOfLanes(d, max)));
    }
    // A row that has seen no finite logit: any base gives 2^(-inf - base) = 0 and no NaN.
    const float base = scratch.max[row];
    const V offset = hn::Set(d, base == -kInfinity ? 0.0f : base);
    float* sums = scratch.sums + row * kTileRows;
    V sum = hn::Load(d, sums);
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
      V low = Exp2(d, hn::Sub(logits[2 * pair][r], offset));
      V high = Exp2(d, hn::Sub(logits[2 * pair + 1][r], offset));
      sum = hn::Add(sum, hn::Add(low, high));
      std::byte* to = scratch.p + pair * kTileBytes + row * kTileRowBytes;
      TakePart<Convert>(low, high, to);
      Convert::ToBF16(low, high, to + kPairs * kTileBytes);
    }
    hn::Store(sum, d, sums);
  }
}

// 32 rows of V, a chunk of their dims, as two tiles: see InOrder.
HWY_INLINE void Interleave(const std::byte* const* rows, int64_t at, int64_t row_bytes,
                           std::byte* to) {
#pragma GCC unroll 2
  for (int64_t tile = 0; tile < 2; ++tile) {
    const std::byte* from = rows[tile] + at;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows / 2; ++i, from += 2 * row_bytes, to += kTileRowBytes) {
      const __m512i even = _mm512_loadu_si512(from);
      const __m512i odd = _mm512_loadu_si512(from + row_bytes);
      _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(to + kTileBytes, _mm512_unpackhi_epi16(even, odd));
    }
  }
}

// O += P V.
template <class Tiles>
HWY_NOINLINE void AddValues(Tiles& tiles, const Scratch& scratch, const TileRows& v, int64_t keys,
                            Ahead ahead) {
  const int64_t row_bytes = scratch.head_dim * 2;
  const auto o_stride = scratch.head_dim * static_cast<int64_t>(sizeof(float));
  const bool whole = keys > 2 * kTileRows;
  const std::byte* p = scratch.p;
  tiles.template Load<4>(p, kTileRowBytes);
  tiles.template Load<5>(p + kPairs * kTileBytes, kTileRowBytes);
  tiles.template Load<6>(p + kTileBytes, kTileRowBytes);
  tiles.template Load<7>(p + (kPairs + 1) * kTileBytes, kTileRowBytes);
  for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
    float* o = scratch.o + chunk * kChunk;
    std::byte* to = scratch.v;
    Interleave(v.first, chunk * kTileRowBytes, row_bytes, to);
    ahead.Step();
    ahead.Step();
    if (whole) {
      Interleave(v.first + 2, chunk * kTileRowBytes, row_bytes, to + 2 * kTileBytes);
      ahead.Step();
      ahead.Step();
    }
    tiles.template Load<0>(o, o_stride);
    tiles.template Load<1>(o + kTileRows, o_stride);
    tiles.template Load<2>(to, kTileRowBytes);
    tiles.template MultiplyAdd<0, 4, 2>();
    tiles.template MultiplyAdd<0, 5, 2>();
    tiles.template Load<3>(to + kTileBytes, kTileRowBytes);
    tiles.template MultiplyAdd<1, 4, 3>();
    tiles.template MultiplyAdd<1, 5, 3>();
    if (whole) {
      tiles.template Load<2>(to + 2 * kTileBytes, kTileRowBytes);
      tiles.template MultiplyAdd<0, 6, 2>();
      tiles.template MultiplyAdd<0, 7, 2>();
      tiles.template Load<3>(to + 3 * kTileBytes, kTileRowBytes);
      tiles.template MultiplyAdd<1, 6, 3>();
      tiles.template MultiplyAdd<1, 7, 3>();
    }
    tiles.template Store<0>(o, o_stride);
    tiles.template Store<1>(o + kTileRows, o_stride);
  }
}

// Interleaving goes by 128 bits: of each 8 dims of a chunk the first tile has the first 4, and the
// second the others.
void InOrder(const float* o, int64_t head_dim, float factor, float* to) {
  for (int64_t chunk = 0; chunk < head_dim; chunk += kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) {
      to[chunk + i] = o[chunk + i % 8 / 4 * kTileRows + i / 8 * 4 + i % 4] * factor;
    }
  }
}

template <class Tiles, class Convert>
void AttendToken(const AttentionTask& task, std::byte* data) {
  HEADWAY_CHECK(task.item->tokens == 1 && task.rows <= kTileRows &&
                task.format->head_dim % kChunk == 0);
  const D d;
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  const PageRun& run = task.item->keys.pages;
  const auto [begin, end] = KeysSeenBy(*task.params, *task.item, 0);
  const float scale = LogitScale(*task.params).q;
  if (begin < end) {
    Ahead(task, run.k, begin, end).All();
    Ahead(task, run.v, begin, end).All();
  }
  const int parts = PackQueries<Convert>(task, scratch);
  std::memset(scratch.p, 0, 2 * kPairs * kTileBytes);  // rows that are not there stay 0
  std::fill_n(scratch.o, kTileRows * scratch.head_dim, 0.0f);
  std::fill_n(scratch.sums, kTileRows * kTileRows, 0.0f);
  std::fill_n(scratch.max, kTileRows, -kInfinity);
  Tiles tiles;
  for (int64_t key = begin; key < end;) {
    const int64_t next = std::min<int64_t>(end, (key / kBlock + 1) * kBlock);
    const int64_t keys = next - key;
    const TileRows k = RowsOf(task, Half::kKeys, key, keys, scratch.k_rows);
    Score(tiles, scratch, k, keys, parts, Ahead(task, run.k, next, end));
    for (int64_t row = 0; row < task.rows; row += 4) {
      Exponentiate<Convert>(scratch, row, keys, scale);
    }
    const TileRows v = RowsOf(task, Half::kValues, key, keys, scratch.v_rows);
    AddValues(tiles, scratch, v, keys, Ahead(task, run.v, next, end));
    key = next;
  }
  for (int64_t r = 0; r < task.rows; ++r) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, scratch.sums + r * kTileRows)));
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    InOrder(scratch.o + r * scratch.head_dim, scratch.head_dim, inverse, scratch.row);
    StoreState(task, r, scratch.row, LogSumOf(scratch.max[r], sum));
  }
}

}  // namespace

extern const AttentionFewOps kAmxFewOps;
const AttentionFewOps kAmxFewOps = {.scratch_bytes = Scratch::Bytes,
                                    .attend = AttendToken<AmxTiles, ConvertByInstruction>,
                                    .attend_runs = nullptr};
extern const AttentionFewOps kEmulatedAmxFewOps;
const AttentionFewOps kEmulatedAmxFewOps = {.scratch_bytes = Scratch::Bytes,
                                            .attend = AttendToken<EmulatedTiles, ConvertByRounding>,
                                            .attend_runs = nullptr};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const AttentionFewOps& AttentionAmxFewOps() { return N_AVX3::kAmxFewOps; }
const AttentionFewOps& AttentionEmulatedAmxFewOps() { return N_AVX3::kEmulatedAmxFewOps; }

}  // namespace headway::cpu
#endif  // HWY_ONCE
