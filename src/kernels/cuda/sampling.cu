#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/warp.h"
#include "kernels/sampling.h"

// Every kernel takes a piece of a row of logits per block; the block of a row that is last to
// finish draws the conclusion for the row. What blocks add up are integers, so their order does not
// matter.
//
//   Largest      the largest logit, the first bad one; ends greedy rows
//   Select       three digits, most significant first, of the logit at which top-k, then top-p,
//   cuts Draw         the sums of what stays, and the token at which they pass the draw
namespace headway::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kEach = 4;  // logits of a thread
constexpr int kBlockLogits = kThreads * kEach;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Digits of a 32-bit key.
constexpr int kDigits = 3;
constexpr int kBins = 1 << 11;
constexpr int kBinsEach = kBins / kThreads;
__host__ __device__ constexpr int DigitShift(int digit) {
  return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}

// What is known of a row between kernels.
struct RowState {
  unsigned long long best;  // the largest of key << 32 | ~token
  uint32_t first_bad;       // the largest of ~token
  uint32_t blocks_done;
  uint32_t ended;
  float largest;
  uint32_t prefix;  // digits of the cut so far
  uint64_t wanted;  // tokens, or weight, that the cut must still give
  uint32_t cut;     // keys below are dropped
  uint32_t at_cut;  // tokens with the key `cut` that stay, the lowest
  unsigned long long bins[kBins];
};
static_assert(kBlockLogits == kSampleBlockLogits && sizeof(RowState) == kSampleRowBytes,
              "SampleMemoryBytes counts them");

struct Row {
  const float* logits;
  Sampled* result;
  RowState* state;
  uint64_t* weights;  // [blocks]: of what stays above the cut
  uint64_t* equals;   // [blocks]: tokens at the cut
  uint64_t draw;
  uint64_t least;  // weight that min_p keeps
  int32_t vocab;
  int32_t top_k;  // 0: off
  float scale;    // of SampleWeight; 0: greedy
  float top_p;
};
struct Rows {
  Row rows[kSampleRowsMax];
};
static_assert(sizeof(Rows) <= 4096);

// Keys order as logits do; -0 has the key of 0.
__device__ uint32_t KeyOf(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

__device__ float LogitOf(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

__device__ int BlocksOf(const Row& row) { return (row.vocab + kBlockLogits - 1) / kBlockLogits; }

// Calls use(token, logit) for the logits of the block.
template <typename Use>
__device__ void ForLogits(const Row& row, const Use& use) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int token =
        static_cast<int>(blockIdx.x) * kBlockLogits + i * kThreads + static_cast<int>(threadIdx.x);
    if (token < row.vocab) use(token, row.logits[token]);
  }
}

// Whether this block is the last of its row to get here; then it sees what the others wrote.
__device__ bool IsLast(const Row& row) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(&row.state->blocks_done, 1u) + 1 == static_cast<uint32_t>(BlocksOf(row));
    if (last) row.state->blocks_done = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// What the threads before this one hold, and all. Ends with a barrier.
struct Scanned {
  uint64_t before;
  uint64_t all;
};
__device__ Scanned Scan(uint64_t own) {
  __shared__ uint64_t sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  Scanned result{sum - own, 0};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) result.before += sums[i];
    result.all += sums[i];
  }
  __syncthreads();
  return result;
}

__global__ void __launch_bounds__(kThreads) Largest(const __grid_constant__ Rows rows) {
  FollowPrevious();
  const Row& row = rows.rows[blockIdx.y];
  if (static_cast<int>(blockIdx.x) >= BlocksOf(row)) return;
  RowState& state = *row.state;
  uint64_t best = 0;
  uint32_t bad = 0;
  ForLogits(row, [&](int token, float logit) {
    const uint32_t backwards = ~static_cast<uint32_t>(token);
    if (!(logit < kInfinity)) bad = max(bad, backwards);
    const uint64_t mine = static_cast<uint64_t>(KeyOf(logit)) << 32 | backwards;
    best = mine > best ? mine : best;
  });
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, best, distance);
    best = other > best ? other : best;
  }
  bad = __reduce_max_sync(kAllLanes, bad);
  if (threadIdx.x % kWarp == 0) {
    atomicMax(&state.best, static_cast<unsigned long long>(best));
    if (bad != 0) atomicMax(&state.first_bad, bad);
  }
  if (!IsLast(row) || threadIdx.x != 0) return;
  best = __ldcg(&state.best);
  bad = __ldcg(&state.first_bad);
  state.best = 0;
  state.first_bad = 0;
  const auto token = static_cast<int>(~static_cast<uint32_t>(bad != 0 ? bad : best));
  const float logit = row.logits[token];
  state.largest = logit;
  state.ended = bad != 0 || logit == -kInfinity || row.scale == 0.0f ? 1 : 0;
  if (state.ended != 0) *row.result = {token, logit};
  state.cut = 0;
  state.at_cut = std::numeric_limits<uint32_t>::max();
}

// Adds up tokens, or with kWeigh their weights, by a digit of their keys, among the keys that begin
// with the digits found so far; finds the digit at which the sum from above reaches what is wanted.
template <bool kWeigh>
__global__ void __launch_bounds__(kThreads) Select(const __grid_constant__ Rows rows, int digit) {
  FollowPrevious();
  // Weights have 41 bits: added up in two halves, for which a block of them leaves room.
  constexpr int kHalf = 20;
  __shared__ uint32_t low[kBins];
  __shared__ uint32_t high[kWeigh ? kBins : 1];
  const Row& row = rows.rows[blockIdx.y];
  const bool wanted_here = kWeigh ? row.top_p < 1.0f : row.top_k > 0 && row.top_k < row.vocab;
  if (static_cast<int>(blockIdx.x) >= BlocksOf(row) || row.scale == 0.0f || !wanted_here) return;
  RowState& state = *row.state;
  if (state.ended != 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  for (int bin = thread; bin < kBins; bin += kThreads) {
    low[bin] = 0;
    if (kWeigh) high[bin] = 0;
  }
  const uint32_t prefix = digit == 0 ? 0 : state.prefix;
  const uint32_t cut = state.cut;  // of top-k
  const float largest = state.largest;
  const int shift = DigitShift(digit);
  __syncthreads();
  ForLogits(row, [&](int, float logit) {
    const uint32_t key = KeyOf(logit);
    if (digit != 0 && key >> DigitShift(digit - 1) != prefix) return;
    const uint32_t bin = key >> shift & (digit == 2 ? kBins / 2 - 1 : kBins - 1);
    if (!kWeigh) {
      atomicAdd(&low[bin], 1u);
    } else if (key >= cut) {
      const uint64_t weight = SampleWeight(largest - logit, row.scale);
      if (weight == 0) return;
      atomicAdd(&low[bin], static_cast<uint32_t>(weight & ((1u << kHalf) - 1)));
      atomicAdd(&high[bin], static_cast<uint32_t>(weight >> kHalf));
    }
  });
  __syncthreads();
  for (int bin = thread; bin < kBins; bin += kThreads) {
    const uint64_t sum =
        low[bin] + (kWeigh ? static_cast<uint64_t>(high[bin]) << kHalf : uint64_t{0});
    if (sum != 0) atomicAdd(&state.bins[bin], static_cast<unsigned long long>(sum));
  }
  if (!IsLast(row)) return;

  // Thread t has bins from above: kBins - 1 - t * kBinsEach and down.
  uint64_t sums[kBinsEach];
  uint64_t own = 0;
  const int top = kBins - 1 - thread * kBinsEach;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    sums[i] = __ldcg(&state.bins[top - i]);
    own += sums[i];
    state.bins[top - i] = 0;
  }
  const Scanned scanned = Scan(own);
  uint64_t wanted = state.wanted;
  if (digit == 0) {
    wanted = kWeigh ? WantedWeight(row.top_p, scanned.all) : static_cast<uint64_t>(row.top_k);
  }
  __syncthreads();  // all have read what one changes
  uint64_t sum = scanned.before;
  if (sum >= wanted || sum + own < wanted) return;
  int bin = 0;
  while (sum + sums[bin] < wanted) sum += sums[bin++];
  const uint32_t found = prefix << (digit == 2 ? 10 : 11) | static_cast<uint32_t>(top - bin);
  state.prefix = found;
  state.wanted = wanted - sum;
  if (digit + 1 < kDigits) return;
  state.cut = found;
  if (kWeigh) {
    const uint64_t weight = SampleWeight(largest - LogitOf(found), row.scale);
    state.at_cut = static_cast<uint32_t>((wanted - sum + weight - 1) / weight);
  }
}

// The weight of a token above the cut that min_p keeps.
__device__ uint64_t KeptWeight(const Row& row, float largest, float logit) {
  const uint64_t weight = SampleWeight(largest - logit, row.scale);
  return weight < row.least ? 0 : weight;
}

__global__ void __launch_bounds__(kThreads) Draw(const __grid_constant__ Rows rows) {
  FollowPrevious();
  const Row& row = rows.rows[blockIdx.y];
  const int blocks = BlocksOf(row);
  if (static_cast<int>(blockIdx.x) >= blocks || row.scale == 0.0f) return;
  const RowState& state = *row.state;
  if (state.ended != 0) return;
  const float largest = state.largest;
  const uint32_t cut = state.cut;
  const uint64_t at_cut = state.at_cut;
  uint64_t weights = 0;
  uint64_t equals = 0;
  ForLogits(row, [&](int, float logit) {
    const uint32_t key = KeyOf(logit);
    if (key > cut) weights += KeptWeight(row, largest, logit);
    if (key == cut) ++equals;
  });
  weights = Scan(weights).all;
  equals = Scan(equals).all;
  if (threadIdx.x == 0) {
    row.weights[blockIdx.x] = weights;
    row.equals[blockIdx.x] = equals;
  }
  if (!IsLast(row)) return;

  // Cut 0 is the key of no number: nothing equals it.
  const uint64_t cut_weight = cut == 0 ? 0 : KeptWeight(row, largest, LogitOf(cut));
  // Of `count` tokens at the cut behind `before` others, so many stay.
  const auto stay = [&](uint64_t before, uint64_t count) {
    return before >= at_cut ? 0 : min(count, at_cut - before);
  };
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t total = 0;
  uint64_t seen = 0;  // tokens at the cut
  for (int first = 0; first < blocks; first += kThreads) {
    const int block = first + thread;
    const uint64_t count = block < blocks ? __ldcg(&row.equals[block]) : 0;
    const Scanned scanned = Scan(count);
    const uint64_t before = seen + scanned.before;
    uint64_t weight = 0;
    if (block < blocks) {
      weight = __ldcg(&row.weights[block]) + stay(before, count) * cut_weight;
      row.weights[block] = weight;  // this thread's alone from here on
      row.equals[block] = before;
    }
    seen += scanned.all;
    total += Scan(weight).all;
  }
  const uint64_t target = __umul64hi(row.draw, total);

  // The block, then the token, whose weights pass the target.
  __shared__ int chosen;
  __shared__ uint64_t chosen_sum;
  uint64_t sum = 0;
  for (int first = 0; first < blocks; first += kThreads) {
    const int block = first + thread;
    const uint64_t weight = block < blocks ? row.weights[block] : 0;
    const Scanned scanned = Scan(weight);
    const uint64_t before = sum + scanned.before;
    if (before <= target && target < before + weight) {
      chosen = block;
      chosen_sum = before;
    }
    sum += scanned.all;
  }
  __syncthreads();
  const int first = chosen * kBlockLogits + thread * kEach;
  // Written by another thread of this block, before the barriers since.
  const uint64_t equals_before = __ldcg(&row.equals[chosen]);
  uint64_t own[kEach] = {};
  float logits[kEach];
  uint64_t count = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= row.vocab) break;
    logits[i] = row.logits[first + i];
    count += KeyOf(logits[i]) == cut ? 1 : 0;
  }
  uint64_t nth = equals_before + Scan(count).before;
  uint64_t weight = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= row.vocab) break;
    const uint32_t key = KeyOf(logits[i]);
    if (key > cut) own[i] = KeptWeight(row, largest, logits[i]);
    if (key == cut) own[i] = stay(nth++, 1) * cut_weight;
    weight += own[i];
  }
  uint64_t before = chosen_sum + Scan(weight).before;
  if (before > target || target >= before + weight) return;
  int i = 0;
  while (before + own[i] <= target) before += own[i++];
  *row.result = {first + i, row.logits[first + i]};
}

__global__ void __launch_bounds__(kThreads)
    ApplyPenalties(float* logits, int64_t vocab, float repetition, const TokenPenalty* penalties,
                   int64_t count) {
  FollowPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const TokenPenalty penalty = penalties[i];
  if (penalty.token < 0 || penalty.token >= vocab) return;
  // Rounded after each operation, as on the host.
  const float logit = logits[penalty.token];
  const float scaled = logit > 0.0f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
  logits[penalty.token] = __fsub_rn(scaled, penalty.subtract);
}

int64_t BlockCount(int64_t vocab) { return CeilDiv(vocab, kBlockLogits); }

}  // namespace

cudaError_t Penalise(cudaStream_t stream, const SampleItem& item, const TokenPenalty* penalties,
                     int64_t count) {
  if (count == 0) return cudaSuccess;
  return LaunchKernel(ApplyPenalties, static_cast<unsigned>(CeilDiv(count, kThreads)), kThreads, 0,
                      stream, item.logits, item.vocab, item.repetition_penalty, penalties, count);
}

cudaError_t Sample(cudaStream_t stream, std::span<const SampleItem> items, std::byte* memory) {
  if (items.empty()) return cudaSuccess;
  if (static_cast<int64_t>(items.size()) > kSampleRowsMax) return cudaErrorInvalidValue;
  Rows rows = {};
  auto* states = reinterpret_cast<RowState*>(memory);
  auto* sums = reinterpret_cast<uint64_t*>(states + kSampleRowsMax);
  unsigned blocks = 0;
  bool draws = false;
  bool by_count = false;
  bool by_weight = false;
  for (size_t i = 0; i < items.size(); ++i) {
    const SampleItem& item = items[i];
    if (item.vocab < 1 || item.vocab > std::numeric_limits<int32_t>::max() / 2) {
      return cudaErrorInvalidValue;
    }
    const int64_t count = BlockCount(item.vocab);
    const bool greedy = item.temperature == 0.0f;
    rows.rows[i] = {.logits = item.logits,
                    .result = item.result,
                    .state = states + i,
                    .weights = sums,
                    .equals = sums + count,
                    .draw = item.draw,
                    .least = LeastWeight(item.min_p),
                    .vocab = static_cast<int32_t>(item.vocab),
                    .top_k = item.top_k,
                    .scale = greedy ? 0.0f : WeightScale(item.temperature),
                    .top_p = item.top_p};
    sums += 2 * count;
    blocks = blocks > count ? blocks : static_cast<unsigned>(count);
    draws |= !greedy;
    by_count |= !greedy && item.top_k > 0 && item.top_k < item.vocab;
    by_weight |= !greedy && item.top_p < 1.0f;
  }
  const dim3 grid(blocks, static_cast<unsigned>(items.size()));
  cudaError_t error = LaunchKernel(Largest, grid, kThreads, 0, stream, rows);
  for (int digit = 0; by_count && digit < kDigits && error == cudaSuccess; ++digit) {
    error = LaunchKernel(Select<false>, grid, kThreads, 0, stream, rows, digit);
  }
  for (int digit = 0; by_weight && digit < kDigits && error == cudaSuccess; ++digit) {
    error = LaunchKernel(Select<true>, grid, kThreads, 0, stream, rows, digit);
  }
  if (draws && error == cudaSuccess) {
    error = LaunchKernel(Draw, grid, kThreads, 0, stream, rows);
  }
  return error;
}

}  // namespace headway::cuda
