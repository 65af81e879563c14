// What attention on tiles computes from: queries, keys and values of a block, packed in bf16 as
// tiles take them, and the memory of a task. Included once a target by attention_amx.cc.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_AMX_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_AMX_PACK_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_AMX_PACK_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_AMX_PACK_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/lossless_expand-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using V = hn::Vec<D>;
using VU = hn::Vec<DU>;

constexpr int kVecs = 2;  // of 16 rows each
constexpr int kStrip = kVecs * kTileRows;
constexpr int64_t kStripStride = kStrip * sizeof(float);  // bytes from key to key, or dim to dim
// Keys taken together. K and V of a block, and what the three jobs in flight read and write, are 48
// KiB at head_dim 64: the L1 cache of processors with AMX.
constexpr int64_t kBlock = 64;
constexpr int64_t kSub = 32;  // keys that tiles take at once
constexpr int64_t kSubs = kBlock / kSub;
constexpr int64_t kTileElements = 512;  // bf16

// A larger maximum is adopted when a logit exceeds the old one by so much: until then weights are
// at most 2^8, which costs no precision, and sums need not be rescaled.
constexpr float kMaxSlack = 8.0f;

// Strips of a task: the more, the less the packing of V weighs; but their Q and O^T must stay in
// the L2 cache (2 MiB a core on processors with AMX).
constexpr int64_t kStripBytesMax = kMiB;
constexpr int64_t kTaskStripsMax = 16;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// head_dim in tiles: of 32 for K and Q, where it is summed over, of 16 for V and O.
struct Dims {
  explicit Dims(int64_t head_dim)
      : head_dim(head_dim), chunks(CeilDiv(head_dim, 32)), groups(CeilDiv(head_dim, 16)) {}
  int64_t head_dim;
  int64_t chunks;
  int64_t groups;

  int64_t QBytes() const { return kVecs * chunks * kTileElements * 2; }
  int64_t OBytes() const { return groups * kTileRows * kStripStride; }
  int64_t StripBytes() const { return QBytes() + OBytes() + 4 * kStrip * int64_t{sizeof(float)}; }
  int64_t KBytes() const { return kBlock * chunks * 64; }
  int64_t VBytes() const { return groups * kSubs * kTileElements * 2; }
};

struct Strip {
  uint16_t* q;     // [kVecs, chunks]: tiles [16 pairs of dims, 16 rows, 2], scaled
  float* o;        // [groups * 16, kStrip], not normalised
  float* max;      // [kStrip] that weights refer to, times log2(e); -inf before any key
  float* sum;      // [kStrip] of the weights 2^(logit - max), as rounded to bf16
  int32_t* begin;  // [kStrip]: the keys that each row sees
  int32_t* end;

  StripKeys keys() const { return {begin, end, kStrip}; }
};

struct Scratch {
  Scratch(std::byte* data, int64_t head_dim) : dims(head_dim) {
    k = reinterpret_cast<uint16_t*>(data);
    data += dims.KBytes();
    v = reinterpret_cast<uint16_t*>(data);
    data += dims.VBytes();
    s = reinterpret_cast<float*>(data);
    data += kBlock * kStripStride;
    for (uint32_t*& buffer : p) {
      buffer = reinterpret_cast<uint32_t*>(data);
      data += kBlock / 2 * kStripStride;
    }
    rows = reinterpret_cast<float*>(data);
    data += kTileRows * dims.groups * kTileRows * int64_t{sizeof(float)};
    expanded = reinterpret_cast<uint16_t*>(data);
    data += dims.KBytes();
    strips = data;
  }

  static int64_t Bytes(int64_t head_dim, int64_t strip_count) {
    const Dims dims(head_dim);
    return 2 * dims.KBytes() + dims.VBytes() + 2 * kBlock * kStripStride +
           kTileRows * dims.groups * kTileRows * int64_t{sizeof(float)} +
           strip_count * dims.StripBytes();
  }

  Strip At(int64_t index) const {
    std::byte* at = strips + index * dims.StripBytes();
    auto* o = reinterpret_cast<float*>(at + dims.QBytes());
    auto* max = reinterpret_cast<float*>(at + dims.QBytes() + dims.OBytes());
    auto* begin = reinterpret_cast<int32_t*>(max + 2 * kStrip);
    return {reinterpret_cast<uint16_t*>(at), o, max, max + kStrip, begin, begin + kStrip};
  }

  Dims dims;
  uint16_t* k;  // [kBlock, chunks * 32]
  uint16_t* v;  // [groups, kSubs]: tiles [16 dims, 32 keys]
  float* s;  // [kBlock, kStrip]: logits of a strip; the next strip's take the place of those done
  uint32_t* p[2];  // [kBlock / 2, kStrip]: weights of a strip in bf16, pairs of keys interleaved
  float* rows;     // [16, groups * 16]: part of a strip's output
  uint16_t* expanded;  // [kBlock, head_dim]: values of lossless pages
  std::byte* strips;
};

int64_t MaxStrips(int64_t head_dim) {
  return std::clamp<int64_t>(kStripBytesMax / Dims(head_dim).StripBytes(), 1, kTaskStripsMax);
}

int64_t ScratchBytes(int64_t head_dim) { return Scratch::Bytes(head_dim, MaxStrips(head_dim)); }

// ---- Packing ----

// m[i][j] becomes m[j][i].
HWY_INLINE void Transpose(__m512i (&m)[16]) {
  __m512i quads[4][4];  // quads[i][k]: 128-bit block b has column 4 b + k of rows 4 i to 4 i + 3
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_unpacklo_epi32(m[4 * i], m[4 * i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(m[4 * i], m[4 * i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(m[4 * i + 2], m[4 * i + 3]);
    const __m512i e = _mm512_unpackhi_epi32(m[4 * i + 2], m[4 * i + 3]);
    quads[i][0] = _mm512_unpacklo_epi64(a, c);
    quads[i][1] = _mm512_unpackhi_epi64(a, c);
    quads[i][2] = _mm512_unpacklo_epi64(b, e);
    quads[i][3] = _mm512_unpackhi_epi64(b, e);
  }
  for (int k = 0; k < 4; ++k) {
    const __m512i low01 = _mm512_shuffle_i32x4(quads[0][k], quads[1][k], 0x44);
    const __m512i low23 = _mm512_shuffle_i32x4(quads[2][k], quads[3][k], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(quads[0][k], quads[1][k], 0xEE);
    const __m512i high23 = _mm512_shuffle_i32x4(quads[2][k], quads[3][k], 0xEE);
    m[k] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    m[4 + k] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    m[8 + k] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    m[12 + k] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

// The first `count` of 16 lanes.
__mmask16 FirstLanes(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

// f32 to bf16, to nearest even, in the low halves of the lanes.
HWY_INLINE __m512i RoundToBF16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000)), 16);
}

// Rows [first_row, first_row + rows) of the item as tiles; those of the strip beyond are 0.
void PackQueries(const AttentionTask& task, int64_t first_row, int64_t rows, const Dims& dims,
                 uint16_t* q) {
  const __m512 scale = _mm512_set1_ps(LogitScale(*task.params).q);
  for (int64_t vec = 0; vec < kVecs; ++vec) {
    for (int64_t chunk = 0; chunk < dims.chunks; ++chunk) {
      __m512i m[16];
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t in_strip = vec * kTileRows + r;
        m[r] = _mm512_setzero_si512();
        if (in_strip >= rows) continue;
        const int64_t row = first_row + in_strip;
        const float* from = static_cast<const float*>(task.item->q) +
                            row / task.group * task.item->q_stride +
                            row % task.group * dims.head_dim + chunk * 32;
        const int64_t left = dims.head_dim - chunk * 32;
        const __m512 low = _mm512_maskz_loadu_ps(FirstLanes(left), from);
        const __m512 high = _mm512_maskz_loadu_ps(FirstLanes(left - 16), from + 16);
        const __m256i low16 = _mm512_cvtepi32_epi16(RoundToBF16(_mm512_mul_ps(low, scale)));
        const __m256i high16 = _mm512_cvtepi32_epi16(RoundToBF16(_mm512_mul_ps(high, scale)));
        m[r] = _mm512_inserti64x4(_mm512_castsi256_si512(low16), high16, 1);
      }
      Transpose(m);
      uint16_t* tile = q + (vec * dims.chunks + chunk) * kTileElements;
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 32, m[i]);
    }
  }
}

// The first `count` of 32 elements.
__mmask32 FirstElements(int64_t count) {
  return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(count, 0, 32)) - 1);
}

// Keys [first, first + count) of a run, padded with zeros to whole tiles of dims, become those of
// the block from key `at` on.
void PackKeys(const PageFormat& format, const PageRun& run, Span keys, const Scratch& scratch,
              int64_t at) {
  const auto [first, count] = keys;
  const Dims& dims = scratch.dims;
  uint16_t* to = scratch.k + at * dims.chunks * 32;
  if (IsLossless(format, run)) {
    const ExpandedRows rows = {to, dims.chunks * 32};
    ExpandRows(format, run, Half::kKeys, {first, count}, rows);
    for (int64_t key = 0; key < count; ++key) {
      std::fill(rows.At(key) + dims.head_dim, rows.At(key + 1), uint16_t{0});
    }
    return;
  }
  RowCursor cursor(format, run, run.k, first);
  for (int64_t key = 0; key < count; ++key) {
    if (key > 0) cursor.Advance();
    for (int64_t dim = 0; dim < dims.chunks * 32; dim += 32, to += 32) {
      const __mmask32 there = FirstElements(dims.head_dim - dim);
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(there, cursor.row() + dim * 2));
    }
  }
}

// Where the values of a block's keys lie.
using ValueRows = const std::byte* [kBlock];

// Those of the same keys.
void FindValues(const PageFormat& format, const PageRun& run, Span keys, const Scratch& scratch,
                int64_t at, ValueRows& rows) {
  const auto [first, count] = keys;
  if (IsLossless(format, run)) {
    const ExpandedRows to = {scratch.expanded + at * scratch.dims.head_dim, scratch.dims.head_dim};
    ExpandRows(format, run, Half::kValues, {first, count}, to);
    for (int64_t key = 0; key < count; ++key) {
      rows[at + key] = reinterpret_cast<const std::byte*>(to.At(key));
    }
    return;
  }
  RowCursor cursor(format, run, run.v, first);
  for (int64_t key = 0; key < count; ++key) {
    if (key > 0) cursor.Advance();
    rows[at + key] = cursor.row();
  }
}

// The values of a block of `count` keys, transposed; those that complete the last kSub are 0.
void PackValues(ValueRows& rows, int64_t count, const Scratch& scratch) {
  alignas(64) static constexpr std::byte kZeros[64] = {};
  for (int64_t key = count; key < RoundUp(count, kSub); ++key) rows[key] = nullptr;
  for (int64_t sub = 0; sub < CeilDiv(count, kSub); ++sub) {
    for (int64_t dim = 0; dim < scratch.dims.groups * 16; dim += 32) {
      const __mmask32 dims = FirstElements(scratch.dims.head_dim - dim);
      const auto load = [&](int64_t key) HWY_ATTR {
        const std::byte* row = rows[sub * kSub + key];
        return _mm512_maskz_loadu_epi16(dims, row == nullptr ? kZeros : row + dim * 2);
      };
      // Interleaved pairs of keys: the lower and the upper half of each 128 bits, so dims 0 to 3 or
      // 4 to 7 of each 8.
      for (int64_t half = 0; half < 2; ++half) {
        __m512i m[16];  // [pair of keys][dim]
        for (int64_t i = 0; i < 16; ++i) {
          const __m512i even = load(2 * i);
          const __m512i odd = load(2 * i + 1);
          m[i] = half == 0 ? _mm512_unpacklo_epi16(even, odd) : _mm512_unpackhi_epi16(even, odd);
        }
        Transpose(m);
        for (int64_t i = 0; i < 16; ++i) {
          const int64_t at = dim + i / 4 * 8 + half * 4 + i % 4;
          if (at >= scratch.dims.groups * 16) continue;
          uint16_t* tile = scratch.v + (at / 16 * kSubs + sub) * kTileElements;
          _mm512_store_si512(tile + at % 16 * 32, m[i]);
        }
      }
    }
  }
}

// 16 bf16 as f32, 0 from those on that are not there.
HWY_INLINE __m512 LoadBF16(__mmask16 there, const uint16_t* from) {
  const __m256i bits = _mm256_maskz_loadu_epi16(there, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Rotates packed keys on, in f32, rounded to bf16 again.
void TurnKeys(const RopeTable& turn, int64_t count, int64_t stride, uint16_t* k) {
  const int64_t half = turn.rotary_dim / 2;
  for (int64_t key = 0; half > 0 && key < count; ++key, k += stride) {
    for (int64_t i = 0; i < half; i += 16) {
      const __mmask16 there = FirstLanes(half - i);
      const __m512 cos = _mm512_maskz_loadu_ps(there, turn.cos + i);
      const __m512 sin = _mm512_maskz_loadu_ps(there, turn.sin + i);
      const __m512 x = LoadBF16(there, k + i), y = LoadBF16(there, k + half + i);
      const __m512 low = _mm512_fmsub_ps(x, cos, _mm512_mul_ps(y, sin));
      const __m512 high = _mm512_fmadd_ps(y, cos, _mm512_mul_ps(x, sin));
      _mm256_mask_storeu_epi16(k + i, there, _mm512_cvtepi32_epi16(RoundToBF16(low)));
      _mm256_mask_storeu_epi16(k + half + i, there, _mm512_cvtepi32_epi16(RoundToBF16(high)));
    }
  }
}

// The keys and values of the next block of runs; returns their number.
int64_t PackRuns(const PageFormat& format, BlocksOfRuns& blocks, const Scratch& scratch) {
  ValueRows rows;
  const int64_t stride = scratch.dims.chunks * 32;
  const int64_t count = blocks.Next(
      kBlock, [&](const RunOfPage& run, int64_t first, int64_t keys, int64_t at) HWY_ATTR {
        PackKeys(format, run.pages, {first, keys}, scratch, at);
        TurnKeys(run.turn, keys, stride, scratch.k + at * stride);
        FindValues(format, run.pages, {first, keys}, scratch, at, rows);
      });
  if (count > 0) PackValues(rows, count, scratch);
  return count;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_AMX_PACK_INL_H_
