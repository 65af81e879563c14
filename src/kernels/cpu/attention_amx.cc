// Attention of many queries on AMX tiles: bf16 products, f32 sums and softmax.
//
// As in attention_strips.cc rows of queries lie along the vectors: S^T [keys, rows] = K Q^T, so
// that rows of K are tile operands as they lie in pages, then O^T [dims, rows] += V^T P^T, P^T
// rounded to bf16. V^T is packed once a block of keys and serves all strips of the task.
//
// The tile unit works beside the vector units, in the order of the program: so the products of one
// strip are issued between the exponentials of another. While strip j goes through softmax, strip
// j + 1 gets its logits and strip j - 1 its weighted values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_amx_pack-inl.h"
#include "kernels/cpu/attention_math-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

// ---- One strip against one block ----

struct Job {
  Strip strip;
  int64_t first = 0;      // key of the block
  int64_t sub_begin = 0;  // the strip's part of the block, in units of kSub keys
  int64_t sub_end = 0;
  float* s = nullptr;
  uint32_t* p = nullptr;
};

// s = K Q^T for the keys of one sub.
template <class Tiles>
HWY_INLINE void ScoreSub(Tiles& tiles, const Scratch& scratch, const Job& job, int64_t sub) {
  if (sub < job.sub_begin || sub >= job.sub_end) return;
  const int64_t chunks = scratch.dims.chunks;
  const int64_t k_stride = chunks * 64;
  const uint16_t* k = scratch.k + sub * kSub * chunks * 32;
  const uint16_t* q = job.strip.q;
  tiles.template Zero<0>();
  tiles.template Zero<1>();
  tiles.template Zero<2>();
  tiles.template Zero<3>();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    tiles.template Load<4>(k + chunk * 32, k_stride);
    tiles.template Load<6>(q + chunk * kTileElements, kTileRowBytes);
    tiles.template MultiplyAdd<0, 4, 6>();
    tiles.template Load<7>(q + (chunks + chunk) * kTileElements, kTileRowBytes);
    tiles.template MultiplyAdd<1, 4, 7>();
    tiles.template Load<5>(k + (16 * chunks + chunk) * 32, k_stride);
    tiles.template MultiplyAdd<2, 5, 6>();
    tiles.template MultiplyAdd<3, 5, 7>();
  }
  float* s = job.s + sub * kSub * kStrip;
  tiles.template Store<0>(s, kStripStride);
  tiles.template Store<1>(s + 16, kStripStride);
  tiles.template Store<2>(s + 16 * kStrip, kStripStride);
  tiles.template Store<3>(s + 16 * kStrip + 16, kStripStride);
}

// O^T += V^T P^T for the 32 dims of groups 2 * pair and 2 * pair + 1, or the last group alone.
template <class Tiles>
HWY_INLINE void AddValues(Tiles& tiles, const Scratch& scratch, const Job& job, int64_t pair) {
  const int64_t group = 2 * pair;
  const bool both = group + 1 < scratch.dims.groups;
  float* o = job.strip.o + group * kTileRows * kStrip;
  tiles.template Load<0>(o, kStripStride);
  tiles.template Load<1>(o + 16, kStripStride);
  if (both) {
    tiles.template Load<2>(o + 16 * kStrip, kStripStride);
    tiles.template Load<3>(o + 16 * kStrip + 16, kStripStride);
  }
  for (int64_t sub = job.sub_begin; sub < job.sub_end; ++sub) {
    const uint16_t* v = scratch.v + (group * kSubs + sub) * kTileElements;
    const uint32_t* p = job.p + sub * (kSub / 2) * kStrip;
    tiles.template Load<4>(v, kTileRowBytes);
    tiles.template Load<6>(p, kStripStride);
    tiles.template MultiplyAdd<0, 4, 6>();
    tiles.template Load<7>(p + 16, kStripStride);
    tiles.template MultiplyAdd<1, 4, 7>();
    if (both) {
      tiles.template Load<5>(v + kSubs * kTileElements, kTileRowBytes);
      tiles.template MultiplyAdd<2, 5, 6>();
      tiles.template MultiplyAdd<3, 5, 7>();
    }
  }
  tiles.template Store<0>(o, kStripStride);
  tiles.template Store<1>(o + 16, kStripStride);
  if (both) {
    tiles.template Store<2>(o + 16 * kStrip, kStripStride);
    tiles.template Store<3>(o + 16 * kStrip + 16, kStripStride);
  }
}

// Settles the maximum that the job's weights refer to, once its logits are there.
HWY_NOINLINE void BeginSoftmax(const Scratch& scratch, const Job& job, float softcap) {
  const D d;
  const int64_t from = job.sub_begin * kSub;
  const int64_t to = job.sub_end * kSub;
  const StripKeys keys = job.strip.keys();
  V max[kVecs];
  if (softcap != 0 || keys.common_begin > job.first + from || job.first + to > keys.common_end) {
    FinishLogits<kVecs>(job.s, job.strip.begin, job.strip.end, softcap, job.first, from, to, max);
  } else {
    max[0] = max[1] = hn::Set(d, -kInfinity);
    for (int64_t key = from; key < to; ++key) {
      max[0] = hn::Max(max[0], hn::Load(d, job.s + key * kStrip));
      max[1] = hn::Max(max[1], hn::Load(d, job.s + key * kStrip + 16));
    }
  }
  bool exceeded = false;
  V before[kVecs];
  for (int j = 0; j < kVecs; ++j) {
    before[j] = hn::Load(d, job.strip.max + j * 16);
    const auto over = hn::Gt(max[j], hn::Add(before[j], hn::Set(d, kMaxSlack)));
    exceeded = exceeded || !hn::AllFalse(d, over);
  }
  if (!exceeded) return;
  for (int j = 0; j < kVecs; ++j) {
    const V after = hn::Max(before[j], max[j]);
    hn::Store(after, d, job.strip.max + j * 16);
    const V base = hn::IfThenZeroElse(hn::Eq(after, hn::Set(d, -kInfinity)), after);
    const V alpha = Exp2(d, hn::Sub(before[j], base));
    float* sum = job.strip.sum + j * 16;
    hn::Store(hn::Mul(hn::Load(d, sum), alpha), d, sum);
    for (int64_t dim = 0; dim < scratch.dims.groups * kTileRows; ++dim) {
      float* o = job.strip.o + dim * kStrip + j * 16;
      hn::Store(hn::Mul(hn::Load(d, o), alpha), d, o);
    }
  }
}

// 2^x plus half a unit of its last place as bf16, so that cutting off the lower 16 bits rounds: the
// polynomial's values lie in [1, 2), where that half is 2^-8. Relative error before: 8.6e-5.
HWY_INLINE V Exp2ForBF16(V x) {
  const D d;
  constexpr int kFloor = 1;
  const V r{_mm512_reduce_ps(x.raw, kFloor)};
  V p = hn::Set(d, 0x1.3baaa6p-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.d2378ap-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.63e658p-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f + 0x1p-8f));
  return V{_mm512_scalef_ps(p.raw, x.raw)};
}

// sum plus both numbers of each pair of bf16.
HWY_INLINE V AddPairs(const AmxTiles&, V sum, VU pairs) {
  const VU ones = hn::Set(DU(), 0x3F803F80u);
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(pairs.raw), "v"(ones.raw));
  return sum;
}
HWY_INLINE V AddPairs(const EmulatedTiles&, V sum, VU pairs) {
  const D d;
  const V even = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
  const V odd = hn::BitCast(d, hn::And(pairs, hn::Set(DU(), 0xFFFF0000u)));
  return hn::Add(sum, hn::Add(even, odd));
}

// Weights of the keys of one sub, from their logits.
template <class Tiles>
HWY_INLINE void ExponentiateSub(const Tiles& tiles, const Job& job, int64_t sub) {
  if (sub < job.sub_begin || sub >= job.sub_end) return;
  const D d;
  const DU du;
  constexpr __mmask32 kOddWords = 0xAAAAAAAAu;
  for (int j = 0; j < kVecs; ++j) {
    const V max = hn::Load(d, job.strip.max + j * 16);
    // A row that has seen no key yet: any finite base gives 2^(-inf - base) = 0 and no NaN.
    const V base = hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, -kInfinity)), max);
    V sum = hn::Load(d, job.strip.sum + j * 16);
    const float* s = job.s + sub * kSub * kStrip + j * 16;
    uint32_t* p = job.p + sub * (kSub / 2) * kStrip + j * 16;
    for (int64_t i = 0; i < kSub / 2; ++i, s += 2 * kStrip, p += kStrip) {
      const V even = Exp2ForBF16(hn::Sub(hn::Load(d, s), base));
      const V odd = Exp2ForBF16(hn::Sub(hn::Load(d, s + kStrip), base));
      const VU low = hn::ShiftRight<16>(hn::BitCast(du, even));
      const VU pairs{_mm512_mask_mov_epi16(low.raw, kOddWords, hn::BitCast(du, odd).raw)};
      hn::Store(pairs, du, p);
      sum = AddPairs(tiles, sum, pairs);
    }
    hn::Store(sum, d, job.strip.sum + j * 16);
  }
}

// ---- A task ----

void StartStrip(const AttentionTask& task, int64_t first_row, int64_t rows, const Dims& dims,
                const Strip& strip) {
  PackQueries(task, first_row, rows, dims, strip.q);
  std::memset(strip.o, 0, static_cast<size_t>(dims.OBytes()));
  std::fill_n(strip.max, kStrip, -kInfinity);
  std::fill_n(strip.sum, kStrip, 0.0f);
  // Rows past the task's end repeat the last row's keys: harmless, never stored.
  VisibleKeys seen;
  for (int64_t r = 0; r < kStrip; ++r) {
    const int64_t row = first_row + r;
    if (r == 0 || (r < rows && row % task.group == 0)) {
      seen = KeysSeenBy(*task.params, *task.item, row / task.group);
    }
    strip.begin[r] = seen.begin;
    strip.end[r] = seen.end;
  }
}

void StoreStrip(const AttentionTask& task, int64_t first_row, int64_t rows, const Scratch& scratch,
                const Strip& strip) {
  const int64_t stride = scratch.dims.groups * kTileRows;
  for (int64_t vec = 0; vec * kTileRows < rows; ++vec) {
    for (int64_t group = 0; group < scratch.dims.groups; ++group) {
      __m512i m[16];
      for (int64_t i = 0; i < 16; ++i) {
        m[i] = _mm512_load_si512(strip.o + (group * 16 + i) * kStrip + vec * 16);
      }
      Transpose(m);
      for (int64_t r = 0; r < 16; ++r) {
        _mm512_store_si512(scratch.rows + r * stride + group * 16, m[r]);
      }
    }
    for (int64_t r = vec * kTileRows; r < std::min<int64_t>(rows, (vec + 1) * kTileRows); ++r) {
      float* o = scratch.rows + r % kTileRows * stride;
      const float sum = strip.sum[r];
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      for (int64_t i = 0; i < stride; ++i) o[i] *= inverse;
      StoreState(task, first_row + r, o, LogSumOf(strip.max[r], sum));
    }
  }
}

// All strips against one block, `count` keys of it: see the top of the file.
template <class Tiles>
void AttendBlock(Tiles& tiles, const AttentionTask& task, const Scratch& scratch, int64_t strips,
                 int64_t first, int64_t count) {
  Job jobs[kTaskStripsMax];
  int64_t n = 0;
  for (int64_t i = 0; i < strips; ++i) {
    const Strip strip = scratch.At(i);
    const int64_t begin = std::max(strip.keys().begin - first, int64_t{0});
    const int64_t end = std::min(strip.keys().end - first, count);
    if (begin >= end) continue;
    jobs[n] = {strip, first, begin / kSub, CeilDiv(end, kSub), scratch.s, scratch.p[n % 2]};
    ++n;
  }
  const int64_t pairs = CeilDiv(scratch.dims.groups, 2);
  for (int64_t sub = 0; n > 0 && sub < kSubs; ++sub) ScoreSub(tiles, scratch, jobs[0], sub);
  for (int64_t j = 0; j <= n && n > 0; ++j) {
    if (j < n) BeginSoftmax(scratch, jobs[j], task.params->softcap);
    for (int64_t sub = 0; sub < kSubs; ++sub) {
      if (j < n) ExponentiateSub(tiles, jobs[j], sub);
      if (j + 1 < n) ScoreSub(tiles, scratch, jobs[j + 1], sub);
      for (int64_t pair = pairs * sub / kSubs; j > 0 && pair < pairs * (sub + 1) / kSubs; ++pair) {
        AddValues(tiles, scratch, jobs[j - 1], pair);
      }
    }
  }
}

// Begins all strips of a task; returns their number.
int64_t StartStrips(const AttentionTask& task, const Scratch& scratch) {
  const int64_t strips = CeilDiv(task.rows, kStrip);
  for (int64_t i = 0; i < strips; ++i) {
    StartStrip(task, task.first_row + i * kStrip, std::min<int64_t>(kStrip, task.rows - i * kStrip),
               scratch.dims, scratch.At(i));
  }
  return strips;
}

void StoreStrips(const AttentionTask& task, const Scratch& scratch, int64_t strips) {
  for (int64_t i = 0; i < strips; ++i) {
    StoreStrip(task, task.first_row + i * kStrip, std::min<int64_t>(kStrip, task.rows - i * kStrip),
               scratch, scratch.At(i));
  }
}

template <class Tiles>
void Attend(const AttentionTask& task, std::byte* data) {
  const FlushDenormals flush;
  Tiles tiles;
  const Scratch scratch(data, task.format->head_dim);
  const int64_t strips = StartStrips(task, scratch);
  const PageRun& run = task.item->keys.pages;
  int64_t begin = run.count;
  int64_t end = 0;
  for (int64_t i = 0; i < strips; ++i) {
    begin = std::min(begin, scratch.At(i).keys().begin);
    end = std::max(end, scratch.At(i).keys().end);
  }
  for (int64_t first = begin / kBlock * kBlock; first < end; first += kBlock) {
    const Span keys = {first, std::min(kBlock, end - first)};
    PackKeys(*task.format, run, keys, scratch, 0);
    ValueRows values;
    FindValues(*task.format, run, keys, scratch, 0, values);
    PackValues(values, keys.count, scratch);
    AttendBlock(tiles, task, scratch, strips, first, keys.count);
  }
  StoreStrips(task, scratch, strips);
}

void AttendRuns(const AttentionTask& task, PageRuns& runs, std::byte* data) {
  const FlushDenormals flush;
  AmxTiles tiles;
  const Scratch scratch(data, task.format->head_dim);
  const int64_t strips = StartStrips(task, scratch);
  BlocksOfRuns blocks(runs);
  int64_t seen = 0;  // keys of a block that rows see; what is behind them may be anything
  while (const int64_t count = PackRuns(*task.format, blocks, scratch)) {
    for (int64_t i = 0; count != seen && i < strips; ++i) {
      std::fill_n(scratch.At(i).begin, kStrip, 0);
      std::fill_n(scratch.At(i).end, kStrip, static_cast<int32_t>(count));
    }
    seen = count;
    AttendBlock(tiles, task, scratch, strips, 0, count);
  }
  StoreStrips(task, scratch, strips);
}

}  // namespace

extern const AttentionStripOps kAmxOps;
const AttentionStripOps kAmxOps = {.strip_rows = kStrip,
                                   .max_strips = MaxStrips,
                                   .scratch_bytes = ScratchBytes,
                                   .attend = Attend<AmxTiles>,
                                   .attend_runs = AttendRuns};
extern const AttentionStripOps kEmulatedAmxOps;
const AttentionStripOps kEmulatedAmxOps = {.strip_rows = kStrip,
                                           .max_strips = MaxStrips,
                                           .scratch_bytes = ScratchBytes,
                                           .attend = Attend<EmulatedTiles>,
                                           .attend_runs = nullptr};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const AttentionStripOps& AttentionAmxOps() { return N_AVX3::kAmxOps; }
const AttentionStripOps& AttentionEmulatedAmxOps() { return N_AVX3::kEmulatedAmxOps; }

}  // namespace headway::cpu
#endif  // HWY_ONCE
