// Attention of many queries: flash attention over strips of rows and blocks of keys, in f32.
//
// Everything is transposed, rows lie along the vectors: S^T [keys, rows] = K Q^T, then O^T [dims,
// rows] += V^T P^T. So K and V are read as they lie in pages (only converted to f32, once for all
// rows of a task), the maximum and sum of a row are lanes of a vector, P^T is the operand of the
// second product in the layout that the first one wrote it, and one inner loop serves both.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/page_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_strips.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_strips_load-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

// ---- The two products ----
//
// Functions with an inner loop are not inlined: among others' variables the compiler runs out of
// vector registers and reloads operands in the loop.

// c[i][j] += sum over k < steps of a(i, k) * b[k * kStrip + j], where a(i, k) is a[i + k * stride]
// or, with kRowMajor, a[i * stride + k].
template <bool kRowMajor>
HWY_INLINE void MultiplyTile(const float* HWY_RESTRICT a, int64_t stride,
                             const float* HWY_RESTRICT b, int64_t steps, V (&c)[kTile][kVecs]) {
  const D d;
  for (int64_t k = 0; k < steps; ++k) {
    const V b0 = hn::Load(d, b);
    const V b1 = hn::Load(d, b + kLanes);
    const V b2 = hn::Load(d, b + 2 * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      const V ai = hn::Set(d, kRowMajor ? a[i * stride] : a[i]);
      c[i][0] = hn::MulAdd(ai, b0, c[i][0]);
      c[i][1] = hn::MulAdd(ai, b1, c[i][1]);
      c[i][2] = hn::MulAdd(ai, b2, c[i][2]);
    }
    a += kRowMajor ? 1 : stride;
    b += kStrip;
  }
}

// Logits of keys [begin, end) of the block, begin a multiple of kTile: written to scratch.s, and
// their maximum over the keys, [kVecs], returned in `max`. Up to kTile - 1 keys beyond `end` are
// computed too, from whatever rows scratch.k has there.
HWY_NOINLINE void ScoreKeys(const Scratch& scratch, const float* q, int64_t begin, int64_t end,
                            V (&max)[kVecs]) {
  const D d;
  V m[kVecs];  // a copy, so that it stays in registers
  for (int j = 0; j < kVecs; ++j) m[j] = hn::Set(d, -kInfinity);
  for (int64_t key = begin; key < end; key += kTile) {
    V c[kTile][kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kVecs; ++j) c[i][j] = hn::Zero(d);
    }
    MultiplyTile<true>(scratch.k + key * scratch.dim, scratch.dim, q, scratch.dim, c);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kVecs; ++j) {
        hn::Store(c[i][j], d, scratch.s + (key + i) * kStrip + j * kLanes);
        m[j] = hn::Max(m[j], c[i][j]);
      }
    }
  }
  for (int j = 0; j < kVecs; ++j) max[j] = m[j];
}

// strip.o = strip.o * alpha + V^T P^T over keys [begin, end) of the block.
HWY_NOINLINE void AddValues(const Scratch& scratch, const Strip& strip, const V (&alpha)[kVecs],
                            int64_t begin, int64_t end) {
  const D d;
  for (int64_t dim = 0; dim < scratch.dim; dim += kTile) {
    float* o = strip.o + dim * kStrip;
    V c[kTile][kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kVecs; ++j) {
        c[i][j] = hn::Mul(hn::Load(d, o + i * kStrip + j * kLanes), alpha[j]);
      }
    }
    MultiplyTile<false>(scratch.v + begin * scratch.dim + dim, scratch.dim,
                        scratch.s + begin * kStrip, end - begin, c);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      for (int j = 0; j < kVecs; ++j) hn::Store(c[i][j], d, o + i * kStrip + j * kLanes);
    }
  }
}

// ---- Softmax ----

// Turns the logits of keys [begin, end) into 2^(logit - max), where max is the larger of the
// strip's and `block_max`, and updates the strip's maximum and sum. `alpha` is what the sums over
// earlier keys are worth under the new maximum.
HWY_NOINLINE void Exponentiate(const Scratch& scratch, const Strip& strip, int64_t begin,
                               int64_t end, const V (&block_max)[kVecs], V (&alpha)[kVecs]) {
  const D d;
  V base[kVecs];
  V sum[kVecs];
  for (int j = 0; j < kVecs; ++j) {
    const V before = hn::Load(d, strip.max + j * kLanes);
    const V max = hn::Max(before, block_max[j]);
    hn::Store(max, d, strip.max + j * kLanes);
    // A row that has seen no key yet: any finite base gives 2^(-inf - base) = 0 and no NaN.
    base[j] = hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, -kInfinity)), max);
    alpha[j] = Exp2(d, hn::Sub(before, base[j]));
    sum[j] = hn::Mul(hn::Load(d, strip.sum + j * kLanes), alpha[j]);
  }
  for (int64_t key = begin; key < end; ++key) {
    float* at = scratch.s + key * kStrip;
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      const V p = Exp2(d, hn::Sub(hn::Load(d, at + j * kLanes), base[j]));
      hn::Store(p, d, at + j * kLanes);
      sum[j] = hn::Add(sum[j], p);
    }
  }
  for (int j = 0; j < kVecs; ++j) hn::Store(sum[j], d, strip.sum + j * kLanes);
}

// ---- A strip from its first block to its last ----

// Rows past the task's end repeat the last row's keys with a query of zeros: harmless, never
// stored.
void FillRows(const AttentionTask& task, int64_t first_row, int64_t rows, const Scratch& scratch,
              const Strip& strip) {
  const LogitScale scale(*task.params);
  const int64_t head_dim = task.format->head_dim;
  std::memset(strip.q, 0, static_cast<size_t>(scratch.dim * kStrip) * sizeof(float));
  VisibleKeys seen;
  for (int64_t r = 0; r < kStrip; ++r) {
    if (r < rows) {
      const int64_t token = (first_row + r) / task.group;
      const int64_t head = (first_row + r) % task.group;
      const float* q =
          static_cast<const float*>(task.item->q) + token * task.item->q_stride + head * head_dim;
      for (int64_t i = 0; i < head_dim; ++i) strip.q[i * kStrip + r] = q[i] * scale.q;
      if (r == 0 || head == 0) seen = KeysSeenBy(*task.params, *task.item, token);
    }
    strip.begin[r] = seen.begin;
    strip.end[r] = seen.end;
  }
}

void StartStrip(const Scratch& scratch, const Strip& strip) {
  std::memset(strip.o, 0, static_cast<size_t>(scratch.dim * kStrip) * sizeof(float));
  std::fill_n(strip.max, kStrip, -kInfinity);
  std::fill_n(strip.sum, kStrip, 0.0f);
}

// Keys [begin, end) of a block whose first key is the item's key `first`.
struct SeenKeys {
  SeenKeys(const Strip& strip, int64_t first, int64_t count)
      : first(first),
        begin(std::max(strip.keys().begin - first, int64_t{0}) / kTile * kTile),
        end(std::min(strip.keys().end - first, count)) {}

  int64_t first;
  int64_t begin, end;  // from the begin of a tile on, those that a row of the strip sees
};

// The logits of the strip against these keys, of which there are some, are in scratch.s then.
void ScoreBlock(const Scratch& scratch, const Strip& strip, float softcap, const SeenKeys& block,
                V (&max)[kVecs]) {
  const StripKeys keys = strip.keys();
  const auto [first, begin, end] = block;
  ScoreKeys(scratch, strip.q, begin, end, max);
  const bool all_see_all = keys.common_begin <= first + begin && first + end <= keys.common_end &&
                           (end - begin) % kTile == 0;
  if (softcap != 0 || !all_see_all) {
    FinishLogits<kVecs>(scratch.s, strip.begin, strip.end, softcap, first, begin, end, max);
  }
}

void StoreStrip(const AttentionTask& task, int64_t first_row, int64_t rows, const Scratch& scratch,
                const Strip& strip) {
  const int64_t head_dim = task.format->head_dim;
  for (int64_t r = 0; r < rows; ++r) {
    const float sum = strip.sum[r];
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t i = 0; i < head_dim; ++i) scratch.row[i] = strip.o[i * kStrip + r] * inverse;
    StoreState(task, first_row + r, scratch.row, LogSumOf(strip.max[r], sum));
  }
}

// Begins all strips of a task; returns their number.
int64_t StartStrips(const AttentionTask& task, const Scratch& scratch) {
  const int64_t strips = CeilDiv(task.rows, kStrip);
  for (int64_t i = 0; i < strips; ++i) {
    const Strip strip = scratch.At(i);
    FillRows(task, task.first_row + i * kStrip, std::min<int64_t>(kStrip, task.rows - i * kStrip),
             scratch, strip);
    StartStrip(scratch, strip);
  }
  return strips;
}

// All strips against keys [first, first + count), which are loaded.
void AttendBlock(const AttentionTask& task, const Scratch& scratch, int64_t strips, int64_t first,
                 int64_t count) {
  for (int64_t i = 0; i < strips; ++i) {
    const Strip strip = scratch.At(i);
    const SeenKeys keys(strip, first, count);
    if (keys.begin >= keys.end) continue;
    V max[kVecs];
    V alpha[kVecs];
    ScoreBlock(scratch, strip, task.params->softcap, keys, max);
    Exponentiate(scratch, strip, keys.begin, keys.end, max, alpha);
    AddValues(scratch, strip, alpha, keys.begin, keys.end);
  }
}

void StoreStrips(const AttentionTask& task, const Scratch& scratch, int64_t strips) {
  for (int64_t i = 0; i < strips; ++i) {
    StoreStrip(task, task.first_row + i * kStrip, std::min<int64_t>(kStrip, task.rows - i * kStrip),
               scratch, scratch.At(i));
  }
}

void AttendStrips(const AttentionTask& task, std::byte* data) {
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  const int64_t strips = StartStrips(task, scratch);
  int64_t begin = task.item->keys.pages.count;
  int64_t end = 0;
  for (int64_t i = 0; i < strips; ++i) {
    begin = std::min(begin, scratch.At(i).keys().begin);
    end = std::max(end, scratch.At(i).keys().end);
  }
  for (int64_t first = begin / kKeyBlock * kKeyBlock; first < end; first += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, end - first);
    LoadKeys(task, first, count, scratch);
    LoadValues(task, first, count, scratch);
    AttendBlock(task, scratch, strips, first, count);
  }
  StoreStrips(task, scratch, strips);
}

void AttendStripRuns(const AttentionTask& task, PageRuns& runs, std::byte* data) {
  const FlushDenormals flush;
  const Scratch scratch(data, task.format->head_dim);
  const int64_t strips = StartStrips(task, scratch);
  for (int64_t i = 0; i < strips; ++i) {
    std::fill_n(scratch.At(i).begin, kStrip, 0);
    std::fill_n(scratch.At(i).end, kStrip, std::numeric_limits<int32_t>::max());
  }
  BlocksOfRuns blocks(runs);
  while (const int64_t count = LoadRuns(*task.format, blocks, scratch)) {
    AttendBlock(task, scratch, strips, 0, count);
  }
  StoreStrips(task, scratch, strips);
}

// ---- The mass of keys ----

// strip.max becomes what to subtract from the rows' logits: +inf for rows that add nothing.
void StartMass(const AttentionTask& task, int64_t first_row, int64_t rows, const Strip& strip) {
  for (int64_t r = 0; r < kStrip; ++r) {
    const float lse = r < rows ? task.partial_lse[first_row + r] : -kInfinity;
    strip.max[r] = lse == -kInfinity ? kInfinity : static_cast<float>(lse / kLn2);
  }
}

void AddKeyMass(const AttentionTask& task, int64_t block, std::byte* data) {
  const FlushDenormals flush;
  const D d;
  const Scratch scratch(data, task.format->head_dim);
  const Strip strip = scratch.At(0);
  const int64_t first = block * kKeyBlock;
  const int64_t count = std::min(kKeyBlock, task.item->keys.pages.count - first);
  LoadKeys(task, first, count, scratch);
  for (int64_t row = 0; row < task.rows; row += kStrip) {
    const int64_t rows = std::min<int64_t>(kStrip, task.rows - row);
    FillRows(task, row, rows, scratch, strip);
    StartMass(task, row, rows, strip);
    const SeenKeys keys(strip, first, count);
    if (keys.begin >= keys.end) continue;
    V max[kVecs];
    ScoreBlock(scratch, strip, task.params->softcap, keys, max);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      V sum = hn::Zero(d);
      for (int j = 0; j < kVecs; ++j) {
        const V s = hn::Load(d, scratch.s + key * kStrip + j * kLanes);
        sum = hn::Add(sum, Exp2(d, hn::Sub(s, hn::Load(d, strip.max + j * kLanes))));
      }
      task.item->key_mass[first + key] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

}  // namespace

extern const AttentionStripOps kAttentionStripOps;
const AttentionStripOps kAttentionStripOps = {.strip_rows = kStrip,
                                              .max_strips = MaxStrips,
                                              .scratch_bytes = ScratchBytes,
                                              .attend = AttendStrips,
                                              .attend_runs = AttendStripRuns};
extern const AddKeyMassFunction kAddKeyMass;
const AddKeyMassFunction kAddKeyMass = AddKeyMass;

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const AttentionStripOps& AttentionStripOpsFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kAttentionStripOps : N_AVX3::kAttentionStripOps;
}

AddKeyMassFunction AddKeyMassFor(Isa isa) {
  return isa == Isa::kAvx2 ? N_AVX2::kAddKeyMass : N_AVX3::kAddKeyMass;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
