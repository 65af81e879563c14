// Lines of a BlockCache for what decode lists, brought ahead of attention: where several blocks of
// threads attend to a part of a list, each with some of a group's query heads, none of them may
// bring its blocks.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_lines.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {
namespace {

constexpr int kWarps = 16;

// Blocks of threads take parts in turn.
template <Rows kRows>
__global__ void __launch_bounds__(kWarps* kWarp) Bring(const __grid_constant__ AttendWork work) {
  __shared__ PartLines lines;
  FollowPrevious();
  for (int unit = static_cast<int>(blockIdx.x);; unit += static_cast<int>(gridDim.x)) {
    const PartOf part = FindPart(work, unit);
    if (part.head < 0) break;
    if (part.IsOpen()) continue;
    const int blocks = BlocksOf(work, part);
    lines.Bring<kRows, kWarps>(work, part, blocks);
    lines.Save<kWarps>(work, part, blocks);
  }
}

}  // namespace

cudaError_t BringBlocks(cudaStream_t stream, Rows rows, const AttendWork& work) {
  const int64_t parts = int64_t{work.heads} * work.parts;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(parts, Multiprocessors()));
  return ForRows(rows, [&](auto tag) {
    return LaunchKernel(Bring<decltype(tag)::kRows>, grid, kWarps * kWarp, 0, stream, work);
  });
}

}  // namespace headway::cuda
