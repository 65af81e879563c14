// Attention of few queries (decode, with drafts too) to bf16 pages on AMX tiles. Its arithmetic
// takes a fraction of the time that memory needs to deliver K and V, so what counts is that lines
// of the memory are asked for all the time and in their order.
//
// Rows go through in one band of 16 or two: as many as a tile has, so that two take what is loaded
// of K and V together.
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

#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_few_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_few_amx_load-inl.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/transpose-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

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
HWY_NOINLINE void ScoreBand(Tiles& tiles, const Scratch& scratch, const TileRows& k, int64_t keys,
                            int parts, Ahead ahead) {
  const int64_t row_bytes = scratch.head_dim * 2;
  const bool whole = keys > 2 * kTileRows;  // else the second half has no tile
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
    const std::byte* q = scratch.QueryTiles(chunk, 0);
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
  float* const s = scratch.SumTiles(0);
  tiles.template Store<0>(s, kSumStride);
  tiles.template Store<1>(s + 1 * kTileRows * kTileRows, kSumStride);
  tiles.template Store<2>(s + 2 * kTileRows * kTileRows, kSumStride);
  tiles.template Store<3>(s + 3 * kTileRows * kTileRows, kSumStride);
}

// The same of two bands, half of the block at once: sums are tiles 0 to 3, those of the second band
// behind those of the first.
template <class Tiles>
HWY_NOINLINE void ScoreBands(Tiles& tiles, const Scratch& scratch, const TileRows& k, int64_t keys,
                             int parts, Ahead& ahead) {
  const int64_t row_bytes = scratch.head_dim * 2;
  for (int64_t tile = 0; tile * kTileRows < keys; tile += 2) {
    tiles.template Zero<0>();
    tiles.template Zero<1>();
    tiles.template Zero<2>();
    tiles.template Zero<3>();
    for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
      const int64_t at = chunk * kTileRowBytes;
      tiles.template Load<4>(k.first[tile] + at, row_bytes);
      tiles.template Load<5>(k.first[tile + 1] + at, row_bytes);
      for (int part = 0; part < parts; ++part) {
        tiles.template Load<6>(scratch.QueryTiles(chunk, 0) + part * kTileBytes, kTileRowBytes);
        tiles.template Load<7>(scratch.QueryTiles(chunk, 1) + part * kTileBytes, kTileRowBytes);
        tiles.template MultiplyAdd<0, 4, 6>();
        tiles.template MultiplyAdd<1, 5, 6>();
        tiles.template MultiplyAdd<2, 4, 7>();
        tiles.template MultiplyAdd<3, 5, 7>();
      }
      ahead.Step();
    }
    float* const first = scratch.SumTiles(0) + tile * kTileRows * kTileRows;
    float* const second = scratch.SumTiles(1) + tile * kTileRows * kTileRows;
    tiles.template Store<0>(first, kSumStride);
    tiles.template Store<1>(first + kTileRows * kTileRows, kSumStride);
    tiles.template Store<2>(second, kSumStride);
    tiles.template Store<3>(second + kTileRows * kTileRows, kSumStride);
  }
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

// The keys of a block that a row sees, a bit each.
uint64_t BitsOf(const VisibleKeys& seen, int64_t key, int64_t keys) {
  const int64_t begin = std::clamp<int64_t>(seen.begin - key, 0, keys);
  const int64_t end = std::clamp<int64_t>(seen.end - key, 0, keys);
  if (begin >= end) return 0;
  return (~uint64_t{0} << begin) & (~uint64_t{0} >> (kBlock - end));
}

// P of four rows from their S, 0 for keys that they do not see: a bit of `seen` for each that they
// do.
template <class Convert>
HWY_NOINLINE void Exponentiate(const Scratch& scratch, int64_t first_row, const uint64_t* seen,
                               float scale) {
  const D d;
  const auto band = static_cast<int>(first_row / kTileRows);
  const int64_t in_band = first_row % kTileRows;
  const float* const s = scratch.SumTiles(band);
  V logits[kTiles][4];
#pragma GCC unroll 4
  for (int64_t tile = 0; tile < kTiles; ++tile) {
    LoadQueries(s + tile * kTileRows * kTileRows, in_band, logits[tile]);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const hn::Mask<D> there{static_cast<__mmask16>(seen[r] >> (tile * kTileRows))};
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
      std::byte* to = scratch.WeightTiles(band) + pair * kTileBytes + (in_band + r) * kTileRowBytes;
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

// O += P V, of one band.
template <class Tiles>
HWY_NOINLINE void AddValuesToBand(Tiles& tiles, const Scratch& scratch, const TileRows& v,
                                  int64_t keys, Ahead ahead) {
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

// The same of two bands: tiles 0 to 3 are O, those of the second band behind those of the first.
// What is stored is not read at once, which would wait for it: 32 keys of a chunk are interleaved
// before those in front of them are multiplied.
template <class Tiles>
HWY_NOINLINE void AddValuesToBands(Tiles& tiles, const Scratch& scratch, const TileRows& v,
                                   int64_t keys, Ahead ahead) {
  const int64_t row_bytes = scratch.head_dim * 2;
  const auto o_stride = scratch.head_dim * static_cast<int64_t>(sizeof(float));
  const int64_t pairs = CeilDiv(keys, 2 * kTileRows);
  const int64_t steps = scratch.chunks * pairs;
  const auto interleave = [&](int64_t step) HWY_ATTR {
    Interleave(v.first + step % pairs * 2, step / pairs * kTileRowBytes, row_bytes,
               scratch.v + step % 2 * 2 * kTileBytes);
  };
  interleave(0);
  for (int64_t step = 0; step < steps; ++step) {
    float* const o = scratch.o + step / pairs * kChunk;
    float* const o_second = o + kTileRows * scratch.head_dim;
    ahead.Step();
    if (step + 1 < steps) interleave(step + 1);
    ahead.Step();
    const int64_t pair = step % pairs;
    if (pair == 0) {
      tiles.template Load<0>(o, o_stride);
      tiles.template Load<1>(o + kTileRows, o_stride);
      tiles.template Load<2>(o_second, o_stride);
      tiles.template Load<3>(o_second + kTileRows, o_stride);
    }
    const std::byte* const values = scratch.v + step % 2 * 2 * kTileBytes;
    tiles.template Load<4>(values, kTileRowBytes);
    tiles.template Load<5>(values + kTileBytes, kTileRowBytes);
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t at = (part * kPairs + pair) * kTileBytes;
      tiles.template Load<6>(scratch.WeightTiles(0) + at, kTileRowBytes);
      tiles.template Load<7>(scratch.WeightTiles(1) + at, kTileRowBytes);
      tiles.template MultiplyAdd<0, 6, 4>();
      tiles.template MultiplyAdd<1, 6, 5>();
      tiles.template MultiplyAdd<2, 7, 4>();
      tiles.template MultiplyAdd<3, 7, 5>();
    }
    if (pair + 1 < pairs) continue;
    tiles.template Store<0>(o, o_stride);
    tiles.template Store<1>(o + kTileRows, o_stride);
    tiles.template Store<2>(o_second, o_stride);
    tiles.template Store<3>(o_second + kTileRows, o_stride);
  }
}

// Interleaving goes by 128 bits: of each 8 dims of a chunk the first tile has the first 4, and the
// second the others.
void InOrder(const float* o, int64_t head_dim, float factor, float* to) {
  const hn::CappedTag<float, 4> four;
  const auto by = hn::Set(four, factor);
  for (const float* end = o + head_dim; o < end; o += kChunk) {
    for (int64_t i = 0; i < kTileRows; i += 4, to += 8) {
      hn::Store(hn::Mul(hn::Load(four, o + i), by), four, to);
      hn::Store(hn::Mul(hn::Load(four, o + kTileRows + i), by), four, to + 4);
    }
  }
}

// The keys that rows see. Rows are in the order of their positions: the first sees the earliest
// keys, the last the latest.
struct SeenByRows {
  explicit SeenByRows(const AttentionTask& task) {
    for (int64_t row = 0; row < kFewRowsMax; ++row) {
      const bool again = row % task.group != 0;
      of[row] = row >= task.rows ? VisibleKeys{}
                : again          ? of[row - 1]
                                 : KeysSeenBy(*task.params, *task.item, row / task.group);
    }
  }
  VisibleKeys of[kFewRowsMax];
};

template <class Tiles, class Convert>
void AttendRows(const AttentionTask& task, std::byte* data) {
  HEADWAY_CHECK(task.rows <= kFewRowsMax && task.format->head_dim % kChunk == 0);
  const D d;
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  const PageRun& run = task.item->keys.pages;
  const SeenByRows seen(task);
  const VisibleKeys first = seen.of[0];
  const VisibleKeys last = seen.of[task.rows - 1];
  const int64_t begin = first.begin;
  const int64_t end = last.end;
  const float scale = LogitScale(*task.params).q;
  if (begin < end) {
    Ahead(task, run.k, begin, end).All();
    Ahead(task, run.v, begin, end).All();
  }
  const int bands = task.rows > kTileRows ? 2 : 1;
  const int parts = PackQueries<Convert>(task, bands, scratch);
  // Rows that are not there stay 0.
  std::memset(scratch.p, 0, static_cast<size_t>(bands) * 2 * kPairs * kTileBytes);
  std::fill_n(scratch.o, bands * kTileRows * scratch.head_dim, 0.0f);
  std::fill_n(scratch.sums, bands * kTileRows * kTileRows, 0.0f);
  std::fill_n(scratch.max, bands * kTileRows, -kInfinity);
  Tiles tiles;
  for (int64_t key = begin; key < end;) {
    const int64_t next = std::min<int64_t>(end, (key / kBlock + 1) * kBlock);
    const int64_t keys = next - key;
    const TileRows k = RowsOf(task, Half::kKeys, key, keys, scratch.k_rows);
    Ahead keys_ahead(task, run.k, next, end);
    if (bands == 1) {
      ScoreBand(tiles, scratch, k, keys, parts, keys_ahead);
    } else {
      ScoreBands(tiles, scratch, k, keys, parts, keys_ahead);
    }
    const bool by_all = key >= last.begin && next <= first.end;
    uint64_t bits[4];
    std::fill_n(bits, 4, ~uint64_t{0} >> (kBlock - keys));
    for (int64_t row = 0; row < task.rows; row += 4) {
      for (int r = 0; r < 4 && !by_all; ++r) bits[r] = BitsOf(seen.of[row + r], key, keys);
      Exponentiate<Convert>(scratch, row, bits, scale);
      if (bands > 1) keys_ahead.Step();
    }
    const TileRows v = RowsOf(task, Half::kValues, key, keys, scratch.v_rows);
    const Ahead values_ahead(task, run.v, next, end);
    if (bands == 1) {
      AddValuesToBand(tiles, scratch, v, keys, values_ahead);
    } else {
      AddValuesToBands(tiles, scratch, v, keys, values_ahead);
    }
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
                                    .attend = AttendRows<AmxTiles, ConvertByInstruction>,
                                    .attend_runs = nullptr};
extern const AttentionFewOps kEmulatedAmxFewOps;
const AttentionFewOps kEmulatedAmxFewOps = {.scratch_bytes = Scratch::Bytes,
                                            .attend = AttendRows<EmulatedTiles, ConvertByRounding>,
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
