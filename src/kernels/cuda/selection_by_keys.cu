// The calls of a choice by keys, and which chunks survive a stage.
#include "kernels/cuda/selection_by_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"

namespace headway::cuda {
namespace {

constexpr int kKeepThreads = 1024;
constexpr int kKeepWarps = kKeepThreads / kWarp;
static_assert(kKeepWarps == kWarp);

struct KeepWork {
  Chunks chunks;
  const uint32_t* orders;  // [lists, order_stride]
  int64_t order_stride;
  int32_t kept;              // at least 1, at most chunks.count
  CandidateLists survivors;  // of those that are kept; without blocks: they are listed
  int32_t blocks;
  int32_t* listed;
  int64_t capacity;
  int32_t* counts;
};

// The least order that is kept, and how many of it.
struct Least {
  uint32_t order;
  uint32_t quota;
};

// Byte by byte from the highest: how often each is there among those that begin like the least one.
__device__ Least FindLeast(const uint32_t* orders, int count, int kept) {
  constexpr int kBytes = 256;
  constexpr int kOfLane = kBytes / kWarp;
  __shared__ uint32_t histogram[kBytes];
  __shared__ Least found;
  const int thread = static_cast<int>(threadIdx.x);
  Least least = {0, static_cast<uint32_t>(kept)};
  uint32_t known = 0;  // bits of it
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < kBytes) histogram[thread] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += kKeepThreads) {
      const uint32_t order = orders[i];
      if ((order & known) == least.order) atomicAdd(&histogram[order >> shift & 0xFF], 1u);
    }
    __syncthreads();
    if (thread < kWarp) {
      // Lane 0 has the greatest bytes.
      const int top = kBytes - 1 - thread * kOfLane;
      uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) own += histogram[top - i];
      uint32_t before = own;
#pragma unroll
      for (int apart = 1; apart < kWarp; apart *= 2) {
        const uint32_t others = __shfl_up_sync(kAllLanes, before, apart);
        if (thread >= apart) before += others;
      }
      before -= own;
      for (int i = 0; i < kOfLane; ++i) {
        const uint32_t here = histogram[top - i];
        if (before < least.quota && least.quota <= before + here) {
          found = {least.order | static_cast<uint32_t>(top - i) << shift, least.quota - before};
        }
        before += here;
      }
    }
    __syncthreads();
    least = found;
    known |= 0xFFu << shift;
    __syncthreads();
  }
  return least;
}

// Numbers of threads before this one with a greater order than the least one, and with that order;
// and of all. Has barriers.
struct Ranks {
  int greater;
  int equal;
  int all_greater;
  int all_equal;
};
__device__ Ranks RankOf(bool greater, bool equal) {
  __shared__ int of_warps[kKeepWarps];  // of both, 16 bits each
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned are_greater = __ballot_sync(kAllLanes, greater);
  const unsigned are_equal = __ballot_sync(kAllLanes, equal);
  if (lane == 0) of_warps[warp] = __popc(are_greater) | __popc(are_equal) << 16;
  __syncthreads();
  const int own = of_warps[lane];
  int sum = own;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const int before = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane >= apart) sum += before;
  }
  const int all = __shfl_sync(kAllLanes, sum, kWarp - 1);
  const int before = __shfl_sync(kAllLanes, sum - own, warp);
  __syncthreads();
  const unsigned lower = (1u << lane) - 1u;
  return {(before & 0xFFFF) + __popc(are_greater & lower),
          (before >> 16) + __popc(are_equal & lower), all & 0xFFFF, all >> 16};
}

// Adds the first `missing` far blocks that are not among the `there` ones of a list, one thread.
__device__ void Fill(int32_t* list, int there, int missing, int far_begin) {
  int chosen = 0;  // of those that are passed
  int block = far_begin;
  for (int left = missing; left > 0; ++block) {
    if (chosen < there && list[chosen] == block) {
      ++chosen;
    } else {
      --left;
    }
  }
  for (int i = there - 1; i >= chosen; --i) list[i + missing] = list[i];
  for (int i = 0; i < block - far_begin; ++i) list[i] = far_begin + i;
}

// A block of threads takes a list.
__global__ void __launch_bounds__(kKeepThreads) Keep(const __grid_constant__ KeepWork work) {
  FollowPrevious();
  const int list = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const Chunks& chunks = work.chunks;
  const uint32_t* orders = work.orders + list * work.order_stride;
  const Least least = FindLeast(orders, chunks.count, work.kept);
  const bool listing = work.survivors.blocks == nullptr;
  int32_t* listed = work.listed + list * work.capacity;
  int32_t* to =
      listing ? listed + chunks.far_begin : work.survivors.blocks + list * work.survivors.capacity;
  int greater = 0;
  int equal = 0;
  for (int begin = 0; begin < chunks.count; begin += kKeepThreads) {
    const int i = begin + thread;
    const uint32_t order = i < chunks.count ? orders[i] : 0;
    const bool is_greater = i < chunks.count && order > least.order;
    const bool is_equal = i < chunks.count && order == least.order;
    const Ranks ranks = RankOf(is_greater, is_equal);
    const auto quota = static_cast<int>(least.quota);
    const int ties = equal + ranks.equal;
    if (is_greater || (is_equal && ties < quota)) {
      const int at = greater + ranks.greater + min(ties, quota);
      // Those that are not there are the last ones.
      if (order != 0) to[at] = chunks.Begin(list, i);
    }
    greater += ranks.all_greater;
    equal += ranks.all_equal;
  }
  const int there = least.order == 0 ? greater : work.kept;
  if (!listing) {
    if (thread == 0) work.survivors.counts[list] = there;
    return;
  }
  __syncthreads();
  if (thread == 0 && there < work.kept) Fill(to, there, work.kept - there, chunks.far_begin);
  for (int i = thread; i < chunks.far_begin; i += kKeepThreads) listed[i] = i;
  for (int i = chunks.far_end + thread; i < work.blocks; i += kKeepThreads) {
    to[work.kept + i - chunks.far_end] = i;
  }
  if (thread == 0) {
    work.counts[list] = chunks.far_begin + work.kept + work.blocks - chunks.far_end;
  }
}

// Some lists, and what their stages are made in.
struct StageLists {
  uint32_t* orders;
  int64_t order_stride;
  std::array<CandidateLists, kChunkStages> survivors;
  int first_stage;
};

// Stage after stage from the first one on, each in two launches.
cudaError_t ListByStages(cudaStream_t stream, Rows rows, StageWork stage, const StageLists& lists,
                         const SelectionBudget& budget, const ListWork& list) {
  const int64_t far = budget.far_end - budget.far_begin;
  stage.chunks.far_begin = list.far_begin;
  stage.chunks.far_end = list.far_end;
  stage.orders = lists.orders;
  stage.order_stride = lists.order_stride;
  KeepWork keep = {};
  keep.orders = lists.orders;
  keep.order_stride = lists.order_stride;
  keep.blocks = list.blocks;
  keep.listed = list.listed;
  keep.capacity = list.capacity;
  keep.counts = list.counts;
  int64_t before = 0;  // survivors
  const auto run = [&](ChunkStage of, const CandidateLists& to) {
    Chunks& chunks = stage.chunks;
    const int64_t all = CeilDiv(far, of.blocks);
    chunks.blocks = static_cast<int32_t>(of.blocks);
    chunks.count = static_cast<int32_t>(chunks.survivors.blocks == nullptr
                                            ? all
                                            : std::min(all, before * (chunks.parent / of.blocks)));
    keep.chunks = chunks;
    keep.kept = static_cast<int32_t>(std::min<int64_t>(of.kept, chunks.count));
    keep.survivors = to;
    const cudaError_t error = ScoreChunks(stream, rows, stage);
    if (error != cudaSuccess) return error;
    return LaunchKernel(Keep, dim3(static_cast<unsigned>(stage.lists)), kKeepThreads, 0, stream,
                        keep);
  };
  for (size_t i = 0; i < budget.stages.size(); ++i) {
    const ChunkStage& each = budget.stages[i];
    if (each.blocks == 0) continue;
    if (static_cast<int>(i) >= lists.first_stage) {
      const cudaError_t error = run(each, lists.survivors[i]);
      if (error != cudaSuccess) return error;
    }
    before = budget.Survivors(each);
    stage.chunks.parent = static_cast<int32_t>(each.blocks);
    stage.chunks.survivors = lists.survivors[i];
  }
  return run({.blocks = 1, .kept = list.far_blocks}, {});
}

// The lists of one row, which the caller keeps.
cudaError_t ListOfRow(cudaStream_t stream, Rows rows, StageWork stage, const SelectItem& item,
                      const ListWork& list) {
  stage.lists = list.heads;
  const StageLists lists = {reinterpret_cast<uint32_t*>(list.scratch.scores),
                            int64_t{list.group} * list.blocks, item.survivors, item.first_stage};
  return ListByStages(stream, rows, stage, lists, item.budget, list);
}

// Of more rows, as many blocks of rows at a time as a grid has room for.
cudaError_t ListOfRows(cudaStream_t stream, Rows rows, StageWork stage, const SelectItem& item,
                       const ListWork& list) {
  constexpr int64_t kGridMax = 65535;
  const SelectionBudget& budget = item.budget;
  const int64_t at_once = std::min(item.row_blocks(), kGridMax / list.heads);
  const int64_t all = at_once * list.heads;
  StageLists lists = {};
  auto* at = reinterpret_cast<int32_t*>(item.scratch) +
             RoundUp(std::ssize(item.keys.segments) * int64_t{sizeof(SegmentPlace)}, 256) /
                 int64_t{sizeof(int32_t)};
  lists.order_stride = budget.StageEntries();
  for (size_t i = 0; i < budget.stages.size(); ++i) {
    const int64_t capacity = budget.Survivors(budget.stages[i]);
    lists.survivors[i] = {at, capacity, at + all * capacity};
    at += all * (capacity + 1);
    lists.order_stride -= capacity;
  }
  lists.orders = reinterpret_cast<uint32_t*>(at);
  for (int64_t first = 0; first < item.row_blocks(); first += at_once) {
    const int64_t before = first * list.heads;
    stage.first_row = static_cast<int32_t>(first * kSelectRows);
    stage.lists = static_cast<int32_t>(std::min(at_once, item.row_blocks() - first) * list.heads);
    ListWork some = list;
    some.listed = list.listed + before * list.capacity;
    some.counts = list.counts + before;
    const cudaError_t error = ListByStages(stream, rows, stage, lists, budget, some);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Each stage's chunks are cut into those of the next, what is kept holds what is listed, and there
// is room for it.
bool TakesStages(const SelectItem& item) {
  const SelectionBudget& budget = item.budget;
  if (budget.share != BudgetShare::kHead || budget.top_p != 0 ||
      (item.rows > 1 && item.first_stage != 0) ||
      item.rows > std::numeric_limits<int32_t>::max() / 2) {
    return false;
  }
  int64_t before = 0;
  for (size_t i = 0; i < budget.stages.size(); ++i) {
    const ChunkStage& stage = budget.stages[i];
    if (stage.blocks == 0) continue;
    if (stage.blocks < 2 || before % stage.blocks != 0 || before == stage.blocks ||
        stage.kept < CeilDiv(budget.far_blocks, stage.blocks) ||
        (item.rows == 1 && item.survivors[i].capacity < budget.Survivors(stage))) {
      return false;
    }
    before = stage.blocks;
  }
  return true;
}

// Places have room for these, too, behind what a table has of them.
PlacedSegment* PlacedBehind(const std::byte** places, const BlockedKeys& keys) {
  constexpr int64_t kOfTable = sizeof(const std::byte*) + sizeof(uint32_t);
  static_assert(kOfTable + sizeof(PlacedSegment) < sizeof(SegmentPlace));
  const int64_t table = RoundUp(std::ssize(keys.segments) * kOfTable, alignof(PlacedSegment));
  return reinterpret_cast<PlacedSegment*>(reinterpret_cast<std::byte*>(places) + table);
}

}  // namespace

cudaError_t MakeKeyWork(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                        const SelectionScratch& scratch, KeyWork& work) {
  const BlockedKeys& keys = item.keys;
  work.queries = {
      item.q, {}, static_cast<int32_t>(shape.activation), shape.format.head_dim, shape.scale};
  work.scratch = scratch;
  work.page_stride = keys.page_stride;
  work.head_stride = keys.head_stride;
  work.params_offset = keys.params_offset;
  work.params_page_stride = keys.params_page_stride;
  work.params_head_stride = keys.params_head_stride;
  work.heads = keys.heads;
  work.group = shape.group;
  work.block_slots = shape.summary.block_slots;
  work.page_slots = shape.format.page_slots;
  return MakeTable(stream, keys, &SegmentPlace::slab, scratch.places, work.table);
}

cudaError_t SelectByKeys(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                         const ListWork& list) {
  StageWork stage = {};
  KeyWork& work = stage.keys;
  // Rows leave the scratch memory of one row to what they make.
  SelectionScratch scratch = list.scratch;
  if (item.rows > 1) scratch.places = reinterpret_cast<const std::byte**>(item.scratch);
  cudaError_t error = MakeKeyWork(stream, shape, item, scratch, work);
  if (error != cudaSuccess) return error;
  const Rows rows = RowsOf(shape.format);
  if (shape.summary.kind == SummaryKind::kMasses) {
    ListWork best = list;
    best.score_tiles = static_cast<int32_t>(
        std::min<int64_t>(SelectionScratch::kTilesMax, CeilDiv(item.keys.blocks, 16)));
    error = ScoreMasses(stream, rows, work, best.score_tiles);
    return error == cudaSuccess ? ListBest(stream, Look::kAll, best) : error;
  }
  if (!TakesStages(item)) return cudaErrorInvalidValue;
  work.queries.turn = RowTurn::On(item.turn);
  stage.q_stride = item.q_stride;
  stage.rows = static_cast<int32_t>(item.rows);
  if (item.rotated.rotary_dim > 0) {
    stage.inv_freq = item.rotated.inv_freq;
    stage.rotary_dim = item.rotated.rotary_dim;
    stage.positions = item.rotated.positions;
    PlacedSegment* const placed = PlacedBehind(scratch.places, item.keys);
    stage.placed = placed;
    error = PlaceSegments(stream, item.keys, placed);
    if (error != cudaSuccess) return error;
  }
  return item.rows == 1 ? ListOfRow(stream, rows, stage, item, list)
                        : ListOfRows(stream, rows, stage, item, list);
}

}  // namespace headway::cuda
