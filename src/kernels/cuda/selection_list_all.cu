// Lists that no scores are needed for.
#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"

// Compiled without contraction of products and sums, as what it includes.
namespace headway::cuda {
namespace {

constexpr int kListThreads = 512;

__global__ void __launch_bounds__(kListThreads)
    AllBut(const __grid_constant__ ListWork work, int32_t skip_begin, int32_t skip_end) {
  FollowPrevious();
  const int count = work.blocks - (skip_end - skip_begin);
  const int64_t head = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x) * kListThreads + static_cast<int>(threadIdx.x);
  if (i == 0) work.counts[head] = count;
  if (work.clear_tops != 0 && blockIdx.x == 0 && blockIdx.y == 0)
    ClearTops(work.scratch, work.heads * work.group);
  if (i < count) {
    work.listed[head * work.capacity + i] = i < skip_begin ? i : i + skip_end - skip_begin;
  }
}

}  // namespace

cudaError_t ListAllBut(cudaStream_t stream, const ListWork& work, int32_t skip_begin,
                       int32_t skip_end) {
  const int64_t most = std::max<int64_t>(1, work.blocks);
  return LaunchKernel(
      AllBut,
      dim3(static_cast<unsigned>(CeilDiv(most, kListThreads)), static_cast<unsigned>(work.heads)),
      kListThreads, 0, stream, work, skip_begin, skip_end);
}

}  // namespace headway::cuda
