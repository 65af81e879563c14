// Attention of blocks of rows to what they list, on GPUs whose products read shared memory
// (wgmma.h): plain pages of 128 elements a head. Two warp groups have 64 rows each and share tiles
// of 128 keys: while one makes weights of its logits, products are the other's (as of Shah et al.,
// "FlashAttention-3", 2024, section 3.1). Two more bring tiles (selection_prefill_wide.h). The
// longest lists come first, so that all multiprocessors end at about the same time.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/selection_prefill_wide.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/selection.h"

namespace headway::cuda {
namespace {

using WideStates = RowStates<kWideDim, 1, kWideStrips>;

// Behind it the compiler takes a sum for another one: products that go on by themselves change it.
__device__ void MayChange(WideSum& sum) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (float& x : sum[n]) asm volatile("" : "+f"(x)::"memory");
  }
}

// Begins logits = q · k, of the warp group's rows from `row` on.
template <DType kType>
__device__ void BeginLogits(const WideTile& q, const WideTile& k, int row, WideSum& logits) {
  const auto rows = static_cast<uint32_t>(__cvta_generic_to_shared(q.halves[0])) +
                    static_cast<uint32_t>(row * kSwizzledRowBytes);
  const auto keys = static_cast<uint32_t>(__cvta_generic_to_shared(k.halves[0]));
  MayChange(logits);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kWideDim / 16; ++step) {
    const int at = step / 4 * kTileBytes + step % 4 * 32;
    Multiply<kType>(logits, TileOf(rows + at, kTileBytes), TileOf(keys + at, kTileBytes),
                    /*add=*/step > 0);
  }
  GroupProducts();
}

// Begins sum += weights · v.
template <DType kType>
__device__ void BeginValues(const uint32_t (&weights)[kWideKeys / 16][4], const WideTile& v,
                            WideSum& sum) {
  const auto values = static_cast<uint32_t>(__cvta_generic_to_shared(v.halves[0]));
  MayChange(sum);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kWideKeys / 16; ++step) {
    MultiplyAddWide<kType>(sum, weights[step],
                           TileOf(values + step * 16 * kSwizzledRowBytes, kTileBytes));
  }
  GroupProducts();
}

// Hides the logits of the first strips of a tile.
__device__ void HideFirst(int strips, WideSum& logits) {
#pragma unroll
  for (int n = 0; n < kWideStrips; ++n) {
    if (n >= strips) continue;
#pragma unroll
    for (float& logit : logits[n]) logit = kNoKeys;
  }
}

// Weights of a tile's logits, as factors of the values.
template <DType kType>
__device__ void PackAll(const WideSum& logits, uint32_t (&weights)[kWideKeys / 16][4]) {
#pragma unroll
  for (int step = 0; step < kWideKeys / 16; ++step) {
    PackWeights<kType>(logits[2 * step], logits[2 * step + 1], weights[step]);
  }
}

// What products read of the ring.
class Reading {
 public:
  __device__ explicit Reading(WideShared& shared) : shared_(shared) {}

  // The place of the next tile, which is there.
  __device__ int Take() {
    const int place = next_.place;
    shared_.full[place].Wait(next_.parity);
    ShowToProducts();
    next_.Next();
    return place;
  }
  // This warp has read it.
  __device__ void Leave(int place) {
    __syncwarp();
    shared_.empty[place].ArriveIf(threadIdx.x % kWarp == 0);
  }

 private:
  WideShared& shared_;
  RingAt next_;
};

// Warp groups begin products by turns, so that each makes its weights while the other's products
// are made.
struct Turns {
  int group;  // 0 begins

  __device__ void Wait() const {
    asm volatile("bar.sync %0, %1;" ::"r"(kFirst + group), "n"(kAttending) : "memory");
  }
  __device__ void Pass() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(kFirst + 1 - group), "n"(kAttending) : "memory");
  }

 private:
  static constexpr int kFirst = 2;
};

// The states of a warp group's 64 rows, of all that a list has.
template <DType kType>
__device__ void AttendToAll(const ListedWork& work, const RowList& list, int group,
                            WideShared& shared, WideStates& state) {
  const float scale = work.scale * kLog2E;
  const int tiles = WideTilesOf(work, list);
  const int row = group * 64;
  const Turns turns = {group};
  Reading reading(shared);
  WideSum& logits = state.logits[0];
  WideSum& sum = state.sum[0];
  uint32_t weights[kWideKeys / 16][4];
  if (group == 1) turns.Pass();
  int keys = reading.Take();
  BeginLogits<kType>(shared.q, shared.ring[keys], row, logits);
  WaitForProducts<0>();
  MayChange(logits);
  reading.Leave(keys);
  HideFirst(FirstStrip(work, list), logits);
  Weigh(scale, state);
  PackAll<kType>(logits, weights);
  for (int tile = 1; tile < tiles; ++tile) {
    keys = reading.Take();
    turns.Wait();
    BeginLogits<kType>(shared.q, shared.ring[keys], row, logits);
    const int values = reading.Take();
    BeginValues<kType>(weights, shared.ring[values], sum);
    turns.Pass();
    WaitForProducts<0>();
    MayChange(logits);
    MayChange(sum);
    reading.Leave(keys);
    reading.Leave(values);
    Weigh(scale, state);
    PackAll<kType>(logits, weights);
  }
  if (group == 0) turns.Wait();  // nobody passes a turn that nobody takes
  BeginValues<kType>(weights, shared.ring[reading.Take()], sum);
  WaitForProducts<0>();
  MayChange(sum);
}

// Kernels here let none behind them start before they end: those are compiled for other GPUs, too,
// perhaps for none that overlaps kernels, and then do not wait.

// Which lists come first: the longest. They are counted by their tiles, of which few have more than
// there are counters.
constexpr int kLengths = 1024;
__global__ void __launch_bounds__(kLengths)
    OrderLists(const __grid_constant__ ListedWork work, int32_t* order, int lists) {
  WaitForPrevious();
  __shared__ int first[kLengths];  // place in the order, of lists of each length
  __shared__ int of_warps[kLengths / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const auto length_of = [&work](int list) {
    const RowList one = {nullptr, __ldcg(work.counts + list)};
    return kLengths - 1 - min(WideTilesOf(work, one), kLengths - 1);
  };
  first[thread] = 0;
  __syncthreads();
  for (int list = thread; list < lists; list += kLengths) atomicAdd(&first[length_of(list)], 1);
  __syncthreads();
  const int mine = first[thread];
  int before = mine;  // and those of the warp's lanes before
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (thread % kWarp >= step) before += other;
  }
  if (thread % kWarp == kWarp - 1) of_warps[thread / kWarp] = before;
  __syncthreads();
  for (int warp = 0; warp < thread / kWarp; ++warp) before += of_warps[warp];
  first[thread] = before - mine;
  __syncthreads();
  for (int list = thread; list < lists; list += kLengths) {
    order[atomicAdd(&first[length_of(list)], 1)] = list;
  }
}

// Grid: `row_tiles` tiles of the rows of each list, lists in their order.
template <DType kType>
__global__ void __launch_bounds__(kWideThreads, 1)
    AttendListedWide(const __grid_constant__ ListedWork work, const int32_t* order, int row_tiles) {
  WaitForPrevious();
  extern __shared__ std::byte memory[];
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  auto& shared = *reinterpret_cast<WideShared*>(memory + (0u - address) % alignof(WideShared));
  const int place = static_cast<int>(blockIdx.x) / row_tiles;
  const int row_tile = static_cast<int>(blockIdx.x) - place * row_tiles;
  const int number = __ldcg(order + place);
  const int row_block = number / work.heads;
  const int head = number - row_block * work.heads;
  constexpr int kBlockRows = static_cast<int>(kSelectRows);
  const int end_row = min(work.rows, (row_block + 1) * kBlockRows * work.group);
  const int first_row = row_block * kBlockRows * work.group + row_tile * kWideRows;
  if (first_row >= end_row) return;
  const RowList list = RowList::Of(work, row_block, head);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kRing) {
    shared.full[thread].Begin(kBringing);
    shared.empty[thread].Begin(kAttending / kWarp);
  }
  __syncthreads();
  if (thread >= kAttending) {
    GiveRegisters<kBringingRegisters>();
    if (list.count > 0) {
      Bringing<kType>(work, list, head, shared).All(first_row, end_row);
    }
    return;
  }
  TakeRegisters<kAttendingRegisters>();
  WideStates state;
  ClearStates(state);
  if (list.count > 0) {
    AttendToAll<kType>(work, list, thread / kWarpGroup, shared, state);
  }
  Finish<kType>(work, head, first_row + thread / kWarp * 16 + thread % kWarp / 4, end_row,
                work.scale, state);
}

}  // namespace

bool TakesWideTiles(const ListedWork& work) {
  int device = 0;
  int major = 0;
  int minor = 0;
  return work.head_dim == kWideDim && work.rotary_dim % (2 * kChunk) == 0 &&
         kWideKeys % work.block_slots == 0 && work.rows / work.group <= kWideRowsMost &&
         cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

template <DType kType>
cudaError_t LaunchWideTiles(cudaStream_t stream, const ListedWork& work, int32_t* order) {
  constexpr auto kKernel = AttendListedWide<kType>;
  constexpr int kBytes = sizeof(WideShared) + alignof(WideShared);
  cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t block_rows = kSelectRows * work.group;
  const auto lists = static_cast<int>(CeilDiv(work.rows, block_rows) * work.heads);
  error = LaunchKernel(OrderLists, 1, kLengths, 0, stream, work, order, lists);
  if (error != cudaSuccess) return error;
  const auto row_tiles =
      static_cast<int>(CeilDiv(std::min<int64_t>(block_rows, work.rows), int64_t{kWideRows}));
  return LaunchKernel(kKernel, static_cast<unsigned>(lists * row_tiles), kWideThreads, kBytes,
                      stream, work, order, row_tiles);
}
template cudaError_t LaunchWideTiles<DType::kBF16>(cudaStream_t stream, const ListedWork& work,
                                                   int32_t* order);
template cudaError_t LaunchWideTiles<DType::kF16>(cudaStream_t stream, const ListedWork& work,
                                                  int32_t* order);

}  // namespace headway::cuda
