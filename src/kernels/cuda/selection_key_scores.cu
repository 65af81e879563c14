// Scores of blocks by the keys themselves.
#include <algorithm>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_by_keys.h"
#include "kernels/cuda/selection_weight.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kKeyWarps = 4;

static_assert(sizeof(SampleWork) <= 4096);

// The score of a block for a query head in each of the first lanes: a warp takes two slots at once,
// then a lane a query head. `logits` are the warp's own.
template <Rows kRows, int kGroup>
__device__ float BlockScore(const KeyWork& work, const KeyQueries<kGroup>& queries, int head,
                            int block, float (&logits)[kSelectSlotsMax][kGroup]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int slot = lane / kKeyLanes; slot < work.block_slots; slot += 2) {
    const auto key = KeyRow<kRows>::Of(work, head, int64_t{block} * work.block_slots + slot);
    EachLogit(work, queries, key, [&](int member, float logit) {
      if (lane % kKeyLanes == member) logits[slot][member] = logit;
    });
  }
  __syncwarp();
  float score = -INFINITY;
  if (lane < work.group) {
    float top = selection::kLeastLogit;
    for (int slot = 0; slot < work.block_slots; ++slot) top = fmaxf(top, logits[slot][lane]);
    uint64_t sum = 0;
    for (int slot = 0; slot < work.block_slots; ++slot) {
      sum += ShareWeightOf(top, logits[slot][lane]);
    }
    score = selection::MassScore(top, sum);
  }
  __syncwarp();
  return score;
}

// A warp takes a block at a time.
template <Rows kRows, int kGroup>
__global__ void __launch_bounds__(kKeyWarps* kWarp) Masses(const __grid_constant__ KeyWork work) {
  __shared__ KeyQueries<kGroup> queries;
  __shared__ float logits[kKeyWarps][kSelectSlotsMax][kGroup];
  __shared__ float maxima[kKeyWarps][kGroup];
  FollowPrevious();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int head = static_cast<int>(blockIdx.y);
  ClearSums(work.scratch, work.heads, work.group);
  queries.Load(work, head);
  __syncthreads();
  const int blocks = work.table.blocks;
  const int64_t first_query = int64_t{head} * work.group;
  float best = -INFINITY;
  for (int block = static_cast<int>(blockIdx.x) * kKeyWarps + warp; block < blocks;
       block += static_cast<int>(gridDim.x) * kKeyWarps) {
    const float score = BlockScore<kRows>(work, queries, head, block, logits[warp]);
    if (lane < work.group) work.scratch.scores[(first_query + lane) * blocks + block] = score;
    best = fmaxf(best, score);
  }
  if (lane < work.group) maxima[warp][lane] = best;
  __syncthreads();
  if (thread >= work.group) return;
  float top = maxima[0][thread];
  for (int i = 1; i < kKeyWarps; ++i) top = fmaxf(top, maxima[i][thread]);
  work.scratch.maxima[(first_query + thread) * SelectionScratch::kTilesMax + blockIdx.x] = top;
}

// A warp takes a listed block at a time, or a sampled one. Scores of the sample lie where maxima of
// tiles were.
template <Rows kRows, int kGroup>
__global__ void __launch_bounds__(kKeyWarps* kWarp)
    SampleMasses(const __grid_constant__ SampleWork work) {
  __shared__ KeyQueries<kGroup> queries;
  __shared__ float logits[kKeyWarps][kSelectSlotsMax][kGroup];
  static_assert(selection::kBoundSamples <= SelectionScratch::kTilesMax);
  FollowPrevious();
  const KeyWork& keys = work.keys;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head = static_cast<int>(blockIdx.y);
  queries.Load(keys, head);
  __syncthreads();
  const int listed = work.counts[head];
  const int all = listed + selection::SamplesOf(work.far_end - work.far_begin);
  const int64_t query = int64_t{head} * keys.group + lane;
  for (int i = static_cast<int>(blockIdx.x) * kKeyWarps + warp; i < all;
       i += static_cast<int>(gridDim.x) * kKeyWarps) {
    const int block =
        i < listed ? work.listed[head * work.capacity + i] : work.SampledBlock(head, i - listed);
    const float score = BlockScore<kRows>(keys, queries, head, block, logits[warp]);
    if (lane >= keys.group) continue;
    float* const to = i < listed
                          ? keys.scratch.scores + query * keys.table.blocks + i
                          : keys.scratch.maxima + query * SelectionScratch::kTilesMax + i - listed;
    *to = score;
  }
}

template <template <Rows, int> class Kernel, typename Work>
cudaError_t Launch(cudaStream_t stream, Rows rows, int group, const Work& work, dim3 grid) {
  const auto launch = [&](auto kernel) {
    return LaunchKernel(kernel, grid, kKeyWarps * kWarp, 0, stream, work);
  };
  return ForRows(rows, [&](auto tag) {
    constexpr Rows kRows = decltype(tag)::kRows;
    return launch(group <= 4 ? Kernel<kRows, 4>::kAt : Kernel<kRows, 16>::kAt);
  });
}

template <Rows kRows, int kGroup>
struct OfMasses {
  static constexpr auto kAt = &Masses<kRows, kGroup>;
};
template <Rows kRows, int kGroup>
struct OfSample {
  static constexpr auto kAt = &SampleMasses<kRows, kGroup>;
};
}  // namespace

cudaError_t ScoreMasses(cudaStream_t stream, Rows rows, const KeyWork& work, int tiles) {
  return Launch<OfMasses>(stream, rows, work.group, work,
                          dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(work.heads)));
}

cudaError_t ScoreSample(cudaStream_t stream, Rows rows, const SampleWork& work, int64_t blocks) {
  const int64_t most = std::max<int64_t>(1, int64_t{8} * Multiprocessors() / work.keys.heads);
  const int64_t tiles = std::min(most, CeilDiv(blocks + selection::kBoundSamples, kKeyWarps));
  return Launch<OfSample>(
      stream, rows, work.keys.group, work,
      dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(work.keys.heads)));
}

}  // namespace headway::cuda
