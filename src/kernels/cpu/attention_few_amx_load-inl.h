// Memory of a task of few queries on AMX tiles, keys and values as tiles take them, and queries cut
// into parts. Included once a target by attention_few_amx.cc.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_FEW_AMX_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_FEW_AMX_LOAD_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_FEW_AMX_LOAD_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_FEW_AMX_LOAD_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
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

constexpr int64_t kBlock = 64;                  // keys
constexpr int64_t kTiles = kBlock / kTileRows;  // of keys
constexpr int kBandsMax = kFewRowsMax / kTileRows;
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
    p = q + kBandsMax * kQueryParts * chunks * kTileBytes;
    v = p + kBandsMax * 2 * kPairs * kTileBytes;
    k_rows = v + 2 * kPairs * kTileBytes;
    v_rows = k_rows + kBlock * dim * 2;
    s = reinterpret_cast<float*>(v_rows + kBlock * dim * 2);
    sums = s + kBandsMax * kBlock * kTileRows;
    max = sums + kFewRowsMax * kTileRows;
    o = max + kFewRowsMax;
    row = o + kFewRowsMax * dim;
  }
  // Of any head_dim, so that it need not be one that goes this way.
  static int64_t Bytes(int64_t dim) {
    const int64_t floats =
        (kBandsMax * kBlock + kFewRowsMax) * kTileRows + kFewRowsMax + (kFewRowsMax + 1) * dim;
    const int64_t tiles =
        kBandsMax * (kQueryParts * CeilDiv(dim, kChunk) + 2 * kPairs) + 2 * kPairs;
    return tiles * kTileBytes + 4 * kBlock * dim + floats * int64_t{sizeof(float)};
  }
  std::byte* QueryTiles(int64_t chunk, int band) const {
    return q + (chunk * kBandsMax + band) * kQueryParts * kTileBytes;
  }
  std::byte* WeightTiles(int band) const { return p + band * 2 * kPairs * kTileBytes; }
  float* SumTiles(int64_t band) const { return s + band * kBlock * kTileRows; }

  int64_t head_dim;
  int64_t chunks;
  std::byte* q;       // [chunks, bands, kQueryParts]: tiles [16 pairs of dims, 16 rows, 2]
  std::byte* p;       // [bands, 2 parts, kPairs]: tiles [16 rows, 32 keys]
  std::byte* v;       // [kPairs, 2]: tiles [16 pairs of keys, 16 dims, 2] of a chunk
  std::byte* k_rows;  // [kBlock, head_dim] bf16: where tiles cannot be read in place
  std::byte* v_rows;
  float* s;     // [bands, kBlock, 16 rows]: q · k
  float* sums;  // [rows, 16]: sums of the weights 2^(logit - max), key i in lane i % 16
  float* max;   // [rows] that weights refer to, times log2(e); -inf before any key
  float* o;     // [rows, head_dim], not normalised, in the order of the tiles
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
int PackQueries(const AttentionTask& task, int bands, const Scratch& scratch) {
  const D d;
  bool rest = false;
  const auto pack = [&](int64_t chunk, int band) HWY_ATTR {
    const int64_t first = int64_t{band} * kTileRows;
    const int64_t rows = std::min<int64_t>(task.rows - first, kTileRows);
    V low[kTileRows];
    V high[kTileRows];
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = QueryOf(task, first + r) + chunk * kChunk;
      low[r] = hn::LoadU(d, from);
      high[r] = hn::LoadU(d, from + kTileRows);
    }
    for (int part = 0; part < kQueryParts; ++part) {
      std::byte* tile = scratch.QueryTiles(chunk, band) + part * kTileBytes;
      V m[kTileRows];
      for (int64_t r = 0; r < kTileRows; ++r) {
        m[r] = hn::Zero(d);
        if (r >= rows) continue;
        TakePart<Convert>(low[r], high[r], tile);
        m[r] = V{_mm512_load_ps(tile)};
        if (part > 0) continue;
        const auto zeros = hn::And(hn::Eq(low[r], hn::Zero(d)), hn::Eq(high[r], hn::Zero(d)));
        rest = rest || !hn::AllTrue(d, zeros);
      }
      Transpose(m);
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_store_ps(tile + i * kTileRowBytes, m[i].raw);
    }
  };
  for (int64_t chunk = 0; chunk < scratch.chunks; ++chunk) {
    for (int band = 0; band < bands; ++band) pack(chunk, band);
  }
  return rest ? kQueryParts : 1;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_FEW_AMX_LOAD_INL_H_
