#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/warp.h"
#include "kernels/scoring.h"

// Several blocks share a row of logits. Largest finds the largest logit of each block's share,
// Weights that of the row and the sum of the weights: integers, so that the blocks' order does not
// matter.
namespace headway::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Logits of a block where that makes no more than kScoreBlocksMax: four loads of a thread.
constexpr int64_t kBlockLogits = kThreads * 16;
static_assert(kScoreBlocksMax == kWarp, "each lane reads the largest logit of a block");

struct Row {
  const float* logits;
  Scored* result;
  int32_t vocab;
  int32_t target;
};
struct Rows {
  Row rows[kScoreRowsMax];
};
static_assert(sizeof(Rows) <= 4000);

// Calls use(logit) for this thread's share of the row: four at a time from a multiple of 16 bytes
// on, and what lies before and behind these.
template <typename Use>
__device__ void ForLogits(const Row& row, const Use& use) {
  const int before = static_cast<int>((16 - reinterpret_cast<uintptr_t>(row.logits) % 16) % 16 / 4);
  const int first = min(row.vocab, before);
  const int fours = (row.vocab - first) / 4;
  const int thread = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const auto* vectors = reinterpret_cast<const float4*>(row.logits + first);
#pragma unroll 4
  for (int i = thread; i < fours; i += static_cast<int>(gridDim.x) * kThreads) {
    const float4 logits = vectors[i];
    use(logits.x);
    use(logits.y);
    use(logits.z);
    use(logits.w);
  }
  if (thread < row.vocab - 4 * fours) {
    use(row.logits[thread < first ? thread : thread + 4 * fours]);
  }
}

// `own` of all threads of a warp together, in each.
template <typename Number, typename Join>
__device__ Number OverWarp(Number own, const Join& join) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    own = join(own, __shfl_xor_sync(kAllLanes, own, distance));
  }
  return own;
}

// The same of a block, in thread 0.
template <typename Number, typename Join>
__device__ Number OverBlock(Number own, const Join& join) {
  __shared__ Number of_warps[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  own = OverWarp(own, join);
  if (thread % kWarp == 0) of_warps[thread / kWarp] = own;
  __syncthreads();
  for (int warp = 1; thread == 0 && warp < kWarps; ++warp) own = join(own, of_warps[warp]);
  return own;
}

__device__ float LargerOf(float a, float b) { return fmaxf(a, b); }

// largest [rows, kScoreBlocksMax]; +infinity stands for NaN, too.
__global__ void __launch_bounds__(kThreads)
    Largest(const __grid_constant__ Rows rows, float* largest) {
  FollowPrevious();
  const Row& row = rows.rows[blockIdx.y];
  float own = -kInfinity;
  ForLogits(row, [&](float logit) { own = LargerOf(own, logit < kInfinity ? logit : kInfinity); });
  own = OverBlock(own, LargerOf);
  if (threadIdx.x != 0) return;
  largest[blockIdx.y * kScoreBlocksMax + blockIdx.x] = own;
  if (blockIdx.x == 0) *row.result = {};
}

__global__ void __launch_bounds__(kThreads)
    Weights(const __grid_constant__ Rows rows, const float* largest_of) {
  FollowPrevious();
  const Row& row = rows.rows[blockIdx.y];
  const unsigned lane = threadIdx.x % kWarp;
  const float mine =
      lane < gridDim.x ? largest_of[blockIdx.y * kScoreBlocksMax + lane] : -kInfinity;
  const float largest = OverWarp(mine, LargerOf);
  if (!(fabsf(largest) < kInfinity)) return;
  const auto top = static_cast<double>(largest);
  uint64_t sum = 0;
  ForLogits(row, [&](float logit) { sum += ScoreWeight(top - static_cast<double>(logit)); });
  sum = OverBlock(sum, [](uint64_t a, uint64_t b) { return a + b; });
  if (threadIdx.x != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.result->sum),
            static_cast<unsigned long long>(sum));
  if (blockIdx.x != 0) return;
  row.result->largest = largest;
  row.result->target = row.logits[row.target];
}

}  // namespace

cudaError_t Score(cudaStream_t stream, std::span<const ScoreItem> items, std::byte* memory) {
  if (items.empty()) return cudaSuccess;
  if (static_cast<int64_t>(items.size()) > kScoreRowsMax) return cudaErrorInvalidValue;
  Rows rows = {};
  int64_t blocks = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    const ScoreItem& item = items[i];
    if (item.vocab > std::numeric_limits<int32_t>::max() / 2 || item.target < 0 ||
        item.target >= item.vocab) {
      return cudaErrorInvalidValue;
    }
    rows.rows[i] = {item.logits, item.result, static_cast<int32_t>(item.vocab), item.target};
    blocks = std::max(blocks, CeilDiv(item.vocab, kBlockLogits));
  }
  const dim3 grid(static_cast<unsigned>(std::min(blocks, kScoreBlocksMax)),
                  static_cast<unsigned>(items.size()));
  auto* largest = reinterpret_cast<float*>(memory);
  const cudaError_t error = LaunchKernel(Largest, grid, kThreads, 0, stream, rows, largest);
  if (error != cudaSuccess) return error;
  return LaunchKernel(Weights, grid, kThreads, 0, stream, rows, largest);
}

}  // namespace headway::cuda
