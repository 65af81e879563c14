// Scores of chunks by the keys that stand for them.
#include <algorithm>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_by_keys.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kStageWarps = 4;
constexpr int kAtOnce = 4;  // queries that a key is multiplied with together

static_assert(sizeof(StageWork) <= 4096);

// The queries of a list, in shared memory [queries, head_dim], the last one perhaps several times.
__host__ __device__ inline int QueriesOf(int group, int rows) {
  const auto step = static_cast<int>(StageRowStep(group));
  return group * ((min(rows, static_cast<int>(kSelectRows)) + step - 1) / step);
}
__host__ __device__ inline int PaddedQueries(int queries) {
  return (queries + kAtOnce - 1) / kAtOnce * kAtOnce;
}

// All threads of a block; a barrier follows. Returns how many there are with those that repeat.
__device__ int LoadQueries(const StageWork& work, int list, float* queries) {
  const KeyWork& keys = work.keys;
  const int head_dim = keys.queries.head_dim;
  const int first_row = work.first_row + list / keys.heads * static_cast<int>(kSelectRows);
  const int count = QueriesOf(keys.group, work.rows - first_row);
  const int padded = PaddedQueries(count);
  const auto step = static_cast<int>(StageRowStep(keys.group));
  for (int i = static_cast<int>(threadIdx.x); i < padded * head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int query = min(i / head_dim, count - 1);
    const int64_t row = first_row + query / keys.group * step;
    const int64_t q_head = int64_t{list % keys.heads} * keys.group + query % keys.group;
    const int64_t at = row * work.q_stride + q_head * head_dim;
    const auto load = [&](int channel) { return LoadQ(keys.queries, at + channel); };
    queries[i] = keys.queries.turn.At(row, i % head_dim, load);
  }
  return padded;
}

__device__ int64_t PositionOf(const StageWork& work, int head, int64_t key) {
  const KeyWork& keys = work.keys;
  auto block = static_cast<int>(key / keys.block_slots);
  const int segment = keys.table.Index(head, block);  // which leaves the block's number within it
  return work.placed[segment].position + int64_t{block} * keys.block_slots + key % keys.block_slots;
}

// Channel `channel` of a key that is turned back by the angles of `position`.
template <Rows kRows>
__device__ float Unrotated(const StageWork& work, const KeyRow<kRows>& key, int64_t position,
                           int channel) {
  const float own = key.At(channel);
  if (channel >= work.rotary_dim) return own;
  const int half = work.rotary_dim / 2;
  const bool low = channel < half;
  const int pair = low ? channel : channel - half;
  const float other = key.At(low ? channel + half : pair);
  const selection::Pair angle = selection::AngleAt(position, __ldg(work.inv_freq + pair));
  const selection::Pair turned = selection::Rotated(
      low ? selection::Pair{own, other} : selection::Pair{other, own}, angle.x, -angle.y);
  return low ? turned.x : turned.y;
}

// The largest logit of a key for all queries, in all 16 lanes of the key, which is turned back by
// `back` positions more than its own; the whole warp calls this. A lane has channels that are
// kKeyLanes apart, at most kOfLane of them.
template <Rows kRows, int kOfLane>
__device__ float KeyScore(const StageWork& work, const float* queries, int count, int head,
                          int64_t key, int64_t back) {
  const int head_dim = work.keys.queries.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kKeyLanes;
  const auto row = KeyRow<kRows>::Of(work.keys, head, key);
  const int64_t position = work.rotary_dim > 0 ? PositionOf(work, head, key) + back : 0;
  float numbers[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int channel = lane + i * kKeyLanes;
    numbers[i] = channel < head_dim ? Unrotated(work, row, position, channel) : 0.0f;
  }
  float best = selection::kLeastLogit;
  for (int query = 0; query < count; query += kAtOnce) {
    float sums[kAtOnce] = {};
    const float* at = queries + query * head_dim + lane;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + i * kKeyLanes >= head_dim) break;
#pragma unroll
      for (int each = 0; each < kAtOnce; ++each) {
        sums[each] += at[each * head_dim + i * kKeyLanes] * numbers[i];
      }
    }
#pragma unroll
    for (float& sum : sums) {
      // Of both lanes the same sum: as SumOfLanes adds them.
#pragma unroll
      for (int apart = kKeyLanes / 2; apart > 0; apart /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, apart);
      }
      best = fmaxf(best, selection::LogitOf(sum, work.keys.queries.scale));
    }
  }
  return best;
}

// A warp takes a chunk at a time, half of it a key.
template <Rows kRows, int kOfLane>
__global__ void __launch_bounds__(kStageWarps* kWarp)
    ScoreChunksOf(const __grid_constant__ StageWork work) {
  extern __shared__ float queries[];
  FollowPrevious();
  const KeyWork& keys = work.keys;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int list = static_cast<int>(blockIdx.y);
  const int head = list % keys.heads;
  const int count = LoadQueries(work, list, queries);
  const int there = work.chunks.There(list);
  __syncthreads();
  uint32_t* orders = work.orders + list * work.order_stride;
  for (int i = static_cast<int>(blockIdx.x) * kStageWarps + warp; i < work.chunks.count;
       i += static_cast<int>(gridDim.x) * kStageWarps) {
    const int begin = work.chunks.Begin(list, i);
    const int end = min(work.chunks.far_end, begin + work.chunks.blocks);
    // Blocks have several slots, and a chunk several keys, or none.
    selection::KeyRange range = {int64_t{begin} * keys.block_slots,
                                 int64_t{end} * keys.block_slots};
    const bool is_first = lane < kKeyLanes;
    const int64_t back = selection::PositionsBack(work.positions, there - i, is_first);
    uint32_t order = 0;
    while (range.count() > 1) {
      const int64_t key = is_first ? range.First().Middle() : range.Second().Middle();
      const float mine = KeyScore<kRows, kOfLane>(work, queries, count, head, key, back);
      const float other = __shfl_xor_sync(kAllLanes, mine, kKeyLanes);
      const float first = is_first ? mine : other;
      const float second = is_first ? other : mine;
      range = second > first ? range.Second() : range.First();
      order = selection::OrderOf(fmaxf(first, second));
    }
    if (lane == 0) orders[i] = order;
  }
}

template <Rows kRows, int kOfLane>
cudaError_t Launch(cudaStream_t stream, dim3 grid, size_t shared, const StageWork& work) {
  constexpr auto kKernel = ScoreChunksOf<kRows, kOfLane>;
  const cudaError_t error = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  return LaunchKernel(kKernel, grid, kStageWarps * kWarp, shared, stream, work);
}

}  // namespace

cudaError_t ScoreChunks(cudaStream_t stream, Rows rows, const StageWork& work) {
  // Descents wait for memory: several blocks of threads a multiprocessor.
  const int64_t most = std::max<int64_t>(1, int64_t{8} * Multiprocessors() / work.lists);
  const int64_t tiles = std::min(most, CeilDiv(work.chunks.count, kStageWarps));
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(work.lists));
  const int head_dim = work.keys.queries.head_dim;
  const size_t shared =
      static_cast<size_t>(PaddedQueries(QueriesOf(work.keys.group, work.rows)) * head_dim) *
      sizeof(float);
  return ForRows(rows, [&](auto tag) {
    constexpr Rows kRows = decltype(tag)::kRows;
    return head_dim <= 4 * kKeyLanes   ? Launch<kRows, 4>(stream, grid, shared, work)
           : head_dim <= 8 * kKeyLanes ? Launch<kRows, 8>(stream, grid, shared, work)
                                       : Launch<kRows, 16>(stream, grid, shared, work);
  });
}

}  // namespace headway::cuda
