// Attention of blocks of rows to what they list, on GPUs whose products read shared memory
// (wgmma.h): plain pages of 128 elements a head. Two warp groups have 64 rows each and share tiles
// of 128 keys; logits of a tile become weights while the values of the one before are added (the
// order of work of Shah et al., "FlashAttention-3", 2024, algorithm 2). A third one gathers keys
// and values, 8 slots at a time, and rotates keys of blocks that are moved.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/selection.h"

namespace headway::cuda {
namespace {

constexpr int kD = 128;
constexpr int kWideRows = 128;
constexpr int kWideKeys = 128;
constexpr int kWideStrips = kWideKeys / 8;
constexpr int kAttending = 2 * kWarpGroup;  // threads; those behind them bring
constexpr int kWideThreads = kAttending + kWarpGroup;
// Registers of threads: 504 of three, as many as they begin with.
constexpr int kAttendingRegisters = 216;
constexpr int kBringingRegisters = 72;
constexpr int kPlaces = kD / kChunk;              // of 16 bytes, in a row
constexpr int kTilePlaces = kSwizzledRowBytes / 16;
constexpr int kTileBytes = kWideKeys * kSwizzledRowBytes;
constexpr int kFound = 4;  // tiles whose strips have been found
static_assert(kWideRows == kWideKeys);

// Rows of 128 elements, as two tiles side by side.
struct alignas(1024) WideTile {
  std::byte halves[2][kTileBytes];

  __device__ std::byte* At(int row, int place) {
    return halves[place / kTilePlaces] + SwizzledAt(row, place % kTilePlaces);
  }
};

__device__ int WideTilesOf(const ListedWork& work, const RowList& list) {
  return (list.Strips(work) + kWideStrips - 1) / kWideStrips;
}

struct WideShared {
  WideTile q;
  WideTile k[2];
  WideTile v[2];
  // Of strips; null: there are none.
  const std::byte* keys[kFound][kWideStrips];
  const std::byte* values[kFound][kWideStrips];
  int32_t shifts[kFound][kWideStrips];
  float2 angles[kWideStrips][kD / 2];  // of the strips' blocks, in their order
};

// The threads that bring: 16 bytes of each eighth row are a thread's.
struct Bringer {
  int thread;
  int row;
  int place;

  __device__ static Bringer Me() {
    const int thread = static_cast<int>(threadIdx.x) - kAttending;
    return {thread, thread / kPlaces, thread % kPlaces};
  }
  static constexpr int kStep = kWarpGroup / kPlaces;  // rows
  static_assert(kStep == 8);  // so that rows of all strips are at one place
  // Waits for the others.
  __device__ static void Meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWarpGroup) : "memory"); }
};

__device__ void StartWideQueries(const ListedWork& work, int head, int first_row, int end_row,
                                 WideTile& to) {
  const Bringer me = Bringer::Me();
  const auto* const q = static_cast<const uint16_t*>(work.q) + me.place * kChunk;
  for (int row = me.row; row < kWideRows; row += Bringer::kStep) {
    const bool valid = first_row + row < end_row;
    const int at = valid ? first_row + row : 0;
    const int token = at / work.group;
    const int query_head = head * work.group + at - token * work.group;
    CopyAsync(to.At(row, me.place), q + token * work.q_stride + int64_t{query_head} * kD, valid);
  }
}

// Starts the way of a tile's keys or values; zeros stand for strips that are not there.
__device__ void StartStrips(const void* anywhere, const std::byte* const (&strips)[kWideStrips],
                            WideTile& to) {
  const Bringer me = Bringer::Me();
  const int at = (me.row * kPlaces + me.place) * 16;
#pragma unroll
  for (int i = 0; i < kWideStrips; ++i) {
    const bool valid = strips[i] != nullptr;
    CopyAsync(to.At(i * 8 + me.row, me.place), valid ? strips[i] + at : anywhere, valid);
  }
}

// Where the strips of a tile lie: a thread finds one.
template <Rows kRows>
__device__ void FindWideStrips(const ListedWork& work, const RowList& list, int head, int tile,
                               WideShared& shared) {
  const int i = Bringer::Me().thread;
  if (i >= kWideStrips) return;
  const ListedStrip strip = FindListedStrip<kRows>(work, list, head, tile * kWideStrips + i);
  shared.keys[tile % kFound][i] = strip.k;
  shared.values[tile % kFound][i] = strip.k == nullptr ? nullptr : strip.V();
  shared.shifts[tile % kFound][i] = strip.shift;
}

// Angles of a tile's blocks.
__device__ void FindWideAngles(const ListedWork& work, int tile, WideShared& shared) {
  const int of_block = work.block_slots / 8;
  const int half = work.rotary_dim / 2;
  for (int i = Bringer::Me().thread; i < kWideStrips / of_block * half; i += kWarpGroup) {
    const int block = i / half;
    const int pair = i - block * half;
    const int32_t shift = shared.shifts[tile % kFound][block * of_block];
    shared.angles[block][pair] = ExactAngle(shift, __ldg(work.inv_freq + pair));
  }
}

// Rotates 16 bytes of the lower channels of keys with their others.
template <DType kType>
__device__ void RotatePiece(std::byte* low_at, std::byte* high_at, const float2* angles) {
  uint4 low = *reinterpret_cast<uint4*>(low_at);
  uint4 high = *reinterpret_cast<uint4*>(high_at);
  uint32_t* const lows[4] = {&low.x, &low.y, &low.z, &low.w};
  uint32_t* const highs[4] = {&high.x, &high.y, &high.z, &high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = UnpackPair<kType>(*lows[i]);
    const float2 y = UnpackPair<kType>(*highs[i]);
    const float2 first = angles[2 * i];
    const float2 second = angles[2 * i + 1];
    *lows[i] = PackPair<kType>(x.x * first.x - y.x * first.y, x.y * second.x - y.y * second.y);
    *highs[i] = PackPair<kType>(y.x * first.x + x.x * first.y, y.y * second.x + x.y * second.y);
  }
  *reinterpret_cast<uint4*>(low_at) = low;
  *reinterpret_cast<uint4*>(high_at) = high;
}

// Rotates the keys of a tile whose blocks move.
template <DType kType>
__device__ void RotateKeys(const ListedWork& work, int tile, WideShared& shared) {
  const int of_block = work.block_slots / 8;
  const int places = work.rotary_dim / 2 / kChunk;
  WideTile& keys = shared.k[tile % 2];
  for (int i = Bringer::Me().thread; i < kWideKeys * places; i += kWarpGroup) {
    const int row = i / places;
    const int place = i - row * places;
    if (shared.shifts[tile % kFound][row / 8] == 0) continue;
    RotatePiece<kType>(keys.At(row, place), keys.At(row, places + place),
                       shared.angles[row / 8 / of_block] + place * kChunk);
  }
}

// Brings queries and all that a list has. Behind the barrier of all threads before a tile's
// products, the tile's keys and the values of the one before are there, and nobody needs those
// before them any more.
template <DType kType, Rows kRows>
__device__ void BringAll(const ListedWork& work, const RowList& list, int head, int first_row,
                         int end_row, WideShared& shared) {
  const int tiles = WideTilesOf(work, list);
  const bool moves = work.inv_freq != nullptr;
  StartWideQueries(work, head, first_row, end_row, shared.q);
  FindWideStrips<kRows>(work, list, head, 0, shared);
  Bringer::Meet();
  for (int tile = 0; tile <= tiles; ++tile) {
    // Between the barriers before the tile behind which these keys stand and before this one.
    if (tile > 0) {
      StartStrips(work.q, shared.values[(tile - 1) % kFound], shared.v[(tile - 1) % 2]);
    }
    if (tile < tiles) StartStrips(work.q, shared.keys[tile % kFound], shared.k[tile % 2]);
    FindWideStrips<kRows>(work, list, head, tile + 1, shared);
    const bool rotate = moves && tile < tiles;
    if (rotate) FindWideAngles(work, tile, shared);
    WaitForCopies();
    if (rotate) {
      Bringer::Meet();
      RotateKeys<kType>(work, tile, shared);
    }
    ShowToProducts();
    __syncthreads();
  }
}

using WideStates = RowStates<kD, 1, kWideStrips>;

// Behind it the compiler takes a sum for another one: products that go on by themselves change it.
__device__ void MayChange(WideSum& sum) {
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (float& x : sum[n]) asm volatile("" : "+f"(x)::"memory");
  }
}

// Begins logits = q · k. `rows` are the warp group's.
template <DType kType>
__device__ void BeginLogits(const WideTile& q, const WideTile& k, int row, WideSum& logits) {
  const auto rows = static_cast<uint32_t>(__cvta_generic_to_shared(q.halves[0])) +
                    static_cast<uint32_t>(row * kSwizzledRowBytes);
  const auto keys = static_cast<uint32_t>(__cvta_generic_to_shared(k.halves[0]));
  MayChange(logits);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kD / 16; ++step) {
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

// Weights of a tile's logits, as factors of the values.
template <DType kType>
__device__ void PackAll(const WideSum& logits, uint32_t (&weights)[kWideKeys / 16][4]) {
#pragma unroll
  for (int step = 0; step < kWideKeys / 16; ++step) {
    PackWeights<kType>(logits[2 * step], logits[2 * step + 1], weights[step]);
  }
}

// The states of a warp group's 64 rows from `row` on, of all that a list has.
template <DType kType>
__device__ void AttendToAll(const ListedWork& work, const RowList& list, int row,
                            const WideShared& shared, WideStates& state) {
  const float scale = work.scale * kLog2E;
  const int strips = list.Strips(work);
  const int tiles = WideTilesOf(work, list);
  WideSum& logits = state.logits[0];
  WideSum& sum = state.sum[0];
  uint32_t weights[kWideKeys / 16][4];
  float keep[1][2];
  __syncthreads();
  BeginLogits<kType>(shared.q, shared.k[0], row, logits);
  WaitForProducts<0>();
  MayChange(logits);
  if (tiles == 1) HideStrips(strips, state);
  WeighLogits(scale, state, keep);
  PackAll<kType>(logits, weights);
  for (int tile = 1; tile < tiles; ++tile) {
    __syncthreads();
    BeginLogits<kType>(shared.q, shared.k[tile % 2], row, logits);
    BeginValues<kType>(weights, shared.v[(tile - 1) % 2], sum);
    WaitForProducts<1>();
    MayChange(logits);
    if (tile + 1 == tiles) HideStrips(strips - tile * kWideStrips, state);
    WeighLogits(scale, state, keep);
    WaitForProducts<0>();
    MayChange(sum);
    KeepSums(keep, state);
    PackAll<kType>(logits, weights);
  }
  __syncthreads();
  BeginValues<kType>(weights, shared.v[(tiles - 1) % 2], sum);
  WaitForProducts<0>();
  MayChange(sum);
}

// Grid: tiles of rows of a block of rows, heads, blocks of rows.
template <DType kType, Rows kRows>
__global__ void __launch_bounds__(kWideThreads, 1)
    AttendListedWide(const __grid_constant__ ListedWork work) {
  FollowPrevious();
  extern __shared__ std::byte memory[];
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  auto& shared = *reinterpret_cast<WideShared*>(memory + (0u - address) % alignof(WideShared));
  const int head = static_cast<int>(blockIdx.y);
  const int row_block = static_cast<int>(blockIdx.z);
  constexpr int kBlockRows = static_cast<int>(kSelectRows);
  const int end_row = min(work.rows, (row_block + 1) * kBlockRows * work.group);
  const int first_row =
      row_block * kBlockRows * work.group + static_cast<int>(blockIdx.x) * kWideRows;
  if (first_row >= end_row) return;
  const RowList list = RowList::Of(work, row_block, head);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kAttending) {
    GiveRegisters<kBringingRegisters>();
    if (list.count > 0) BringAll<kType, kRows>(work, list, head, first_row, end_row, shared);
    return;
  }
  TakeRegisters<kAttendingRegisters>();
  WideStates state;
  ClearStates(state);
  if (list.count > 0) {
    AttendToAll<kType>(work, list, thread / kWarpGroup * 64, shared, state);
  }
  Finish<kType>(work, head, first_row + thread / kWarp * 16 + thread % kWarp / 4, end_row,
                work.scale, state);
}

}  // namespace

bool TakesWideTiles(const ListedWork& work) {
  int device = 0;
  int major = 0;
  return work.head_dim == kD && work.rotary_dim % (2 * kChunk) == 0 &&
         kWideKeys % work.block_slots == 0 && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

template <DType kType>
cudaError_t LaunchWideTiles(cudaStream_t stream, const ListedWork& work) {
  constexpr auto kKernel =
      AttendListedWide<kType, kType == DType::kBF16 ? Rows::kBF16 : Rows::kF16>;
  constexpr int kBytes = sizeof(WideShared) + alignof(WideShared);
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t block_rows = kSelectRows * work.group;
  const dim3 grid(
      static_cast<unsigned>(CeilDiv(std::min<int64_t>(block_rows, work.rows), int64_t{kWideRows})),
      static_cast<unsigned>(work.heads), static_cast<unsigned>(CeilDiv(work.rows, block_rows)));
  return LaunchKernel(kKernel, grid, kWideThreads, kBytes, stream, work);
}
template cudaError_t LaunchWideTiles<DType::kBF16>(cudaStream_t stream, const ListedWork& work);
template cudaError_t LaunchWideTiles<DType::kF16>(cudaStream_t stream, const ListedWork& work);

}  // namespace headway::cuda
