// Attention of blocks of rows to what they list, on GPUs whose products read shared memory
// (wgmma.h): plain pages of 128 elements a head. Two warp groups have 64 rows each and share tiles
// of 128 keys: while one makes weights of its logits, products are the other's (as of Shah et al.,
// "FlashAttention-3", 2024, section 3.1). Two more gather tiles of
// keys and of values ahead, 8 slots at a time, and rotate keys of blocks that are moved. The
// longest lists come first, so that all multiprocessors end at about the same time.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mbarrier.h"
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
constexpr int kBringing = 2 * kWarpGroup;
constexpr int kWideThreads = kAttending + kBringing;
// Registers of a thread of each: 256 of two, as many as they begin with.
constexpr int kAttendingRegisters = 200;
constexpr int kBringingRegisters = 56;
constexpr int kPlaces = kD / kChunk;  // of 16 bytes, in a row
constexpr int kTilePlaces = kSwizzledRowBytes / 16;
constexpr int kTileBytes = kWideKeys * kSwizzledRowBytes;
constexpr int kFoundTiles = 4;  // whose strips are found at once
constexpr int kWideFound = kFoundTiles * kWideStrips;
// Tiles of keys and of values that there is room for: two that products read, and others that are
// there or on their way.
constexpr int kRing = 5;
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

// Lists end with a full tile: which strip of the first tile is the first of the list.
__device__ int FirstStrip(const ListedWork& work, const RowList& list) {
  return WideTilesOf(work, list) * kWideStrips - list.Strips(work);
}

struct WideShared {
  WideTile q;
  WideTile ring[kRing];
  float2 angles[kWideStrips][kD / 2];  // of the strips' blocks, in their order
  // Of strips, by the tiles that are found at once; null: there are none.
  const std::byte* keys[2][kWideFound];
  const std::byte* values[2][kWideFound];
  int32_t shifts[2][kWideFound];
  Barrier full[kRing];   // a tile is there
  Barrier empty[kRing];  // products have read it

  // The first strip of a tile, of one of the arrays above.
  static __device__ int First(int tile) { return tile % kFoundTiles * kWideStrips; }
  static __device__ int Batch(int tile) { return tile / kFoundTiles % 2; }
};

// A place of the ring, and which turn of its barriers is at hand. Tiles pass in the order in which
// they are needed: the first keys; then keys and the values before these; the last values.
struct RingAt {
  int place = 0;
  int parity = 0;

  __device__ void Next() {
    if (++place < kRing) return;
    place = 0;
    parity ^= 1;
  }
};

// The threads that bring: 16 bytes of each 16th row are a thread's.
struct Bringer {
  int thread;
  int row;
  int place;

  __device__ static Bringer Me() {
    const int thread = static_cast<int>(threadIdx.x) - kAttending;
    return {thread, thread / kPlaces, thread % kPlaces};
  }
  static constexpr int kStep = kBringing / kPlaces;  // rows
  static_assert(kStep % 8 == 0);  // so that its rows of all strips are at one place
  // Waits for the others.
  __device__ static void Meet() { asm volatile("bar.sync 1, %0;" ::"n"(kBringing) : "memory"); }
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
__device__ void StartStrips(const void* anywhere, const std::byte* const* strips, WideTile& to) {
  const Bringer me = Bringer::Me();
  const int at = (me.row % 8 * kPlaces + me.place) * 16;
#pragma unroll
  for (int i = 0; i < kWideKeys / Bringer::kStep; ++i) {
    const int row = i * Bringer::kStep + me.row;
    const std::byte* const strip = strips[row / 8];
    const bool valid = strip != nullptr;
    CopyAsync(to.At(row, me.place), valid ? strip + at : anywhere, valid);
  }
}

// Where the strips of some tiles from `tile` on lie: a thread finds one, `listed` being its block.
template <Rows kRows>
__device__ void FindWideStrips(const ListedWork& work, const RowList& list, int head, int tile,
                               int listed, WideShared& shared) {
  const int i = Bringer::Me().thread;
  if (i >= kWideFound) return;
  const int index = tile * kWideStrips + i - FirstStrip(work, list);
  const ListedStrip strip = FindListedStrip<kRows>(work, list, head, index, listed);
  const int batch = WideShared::Batch(tile);
  shared.keys[batch][i] = strip.k;
  shared.values[batch][i] = strip.k == nullptr ? nullptr : strip.V();
  shared.shifts[batch][i] = strip.shift;
}
__device__ int ListedFrom(const ListedWork& work, const RowList& list, int tile) {
  const int i = Bringer::Me().thread;
  const int index = tile * kWideStrips + i - FirstStrip(work, list);
  return i < kWideFound && index >= 0 ? ListedAt(work, list, index) : -1;
}

// Angles of a tile's blocks.
__device__ void FindWideAngles(const ListedWork& work, const int32_t* shifts, WideShared& shared) {
  const int of_block = work.block_slots / 8;
  const int half = work.rotary_dim / 2;
  for (int i = Bringer::Me().thread; i < kWideStrips / of_block * half; i += kBringing) {
    const int block = i / half;
    const int pair = i - block * half;
    shared.angles[block][pair] = ExactAngle(shifts[block * of_block], __ldg(work.inv_freq + pair));
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
__device__ void RotateKeys(const ListedWork& work, const int32_t* shifts, WideShared& shared,
                           WideTile& keys) {
  Bringer::Meet();  // nobody needs the angles before these any more
  FindWideAngles(work, shifts, shared);
  Bringer::Meet();  // angles and keys are there
  const int of_block = work.block_slots / 8;
  const int places = work.rotary_dim / 2 / kChunk;
  for (int i = Bringer::Me().thread; i < kWideKeys * places; i += kBringing) {
    const int row = i / places;
    const int place = i - row * places;
    if (shifts[row / 8] == 0) continue;
    RotatePiece<kType>(keys.At(row, place), keys.At(row, places + place),
                       shared.angles[row / 8 / of_block] + place * kChunk);
  }
}

// Brings queries and all that a list has.
template <DType kType, Rows kRows>
class Bringing {
 public:
  __device__ Bringing(const ListedWork& work, const RowList& list, int head, WideShared& shared)
      : work_(work), list_(list), head_(head), shared_(shared) {}

  __device__ void All(int first_row, int end_row) {
    const int tiles = WideTilesOf(work_, list_);
    const bool moves = work_.inv_freq != nullptr;
    StartWideQueries(work_, head_, first_row, end_row, shared_.q);
    FindWideStrips<kRows>(work_, list_, head_, 0, ListedFrom(work_, list_, 0), shared_);
    int listed = -1;  // of the next batch, asked for a tile before it is needed
    int last = 0;     // the place of the keys before
    for (int tile = 0; tile <= tiles; ++tile) {
      // A batch of strips is there, and nobody needs the one before it any more.
      if (tile % kFoundTiles <= 1) Bringer::Meet();
      const int place = next_.place;
      if (tile < tiles) Start(shared_.keys, tile, /*come=*/!moves);
      GroupCopies();
      if (moves && tile > 0) Rotate(tile - 1, shared_.ring[last], shared_.full[last]);
      last = place;
      if (tile > 0) Start(shared_.values, tile - 1, /*come=*/true);
      GroupCopies();
      if (tile % kFoundTiles == 0) listed = ListedFrom(work_, list_, tile + kFoundTiles);
      if (tile % kFoundTiles == 1) {
        FindWideStrips<kRows>(work_, list_, head_, tile + kFoundTiles - 1, listed, shared_);
      }
    }
  }

 private:
  // With `come` the tile is there when it has come.
  __device__ void Start(const std::byte* const (&strips)[2][kWideFound], int tile, bool come) {
    shared_.empty[next_.place].Wait(next_.parity ^ 1);
    StartStrips(work_.q, strips[WideShared::Batch(tile)] + WideShared::First(tile),
                shared_.ring[next_.place]);
    if (come) shared_.full[next_.place].ArriveWhenCopied();
    next_.Next();
  }
  // Keys that came before two groups of copies.
  __device__ void Rotate(int tile, WideTile& keys, Barrier& full) {
    WaitForCopiesButNewest<2>();
    RotateKeys<kType>(work_, shared_.shifts[WideShared::Batch(tile)] + WideShared::First(tile),
                      shared_, keys);
    full.Arrive();
  }

  const ListedWork& work_;
  const RowList& list_;
  const int head_;
  WideShared& shared_;
  RingAt next_;
};

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

// Which lists come first: the longest. They are counted by their tiles, of which few have more than
// there are counters.
constexpr int kLengths = 1024;
__global__ void __launch_bounds__(kLengths)
    OrderLists(const __grid_constant__ ListedWork work, int32_t* order, int lists) {
  FollowPrevious();
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
template <DType kType, Rows kRows>
__global__ void __launch_bounds__(kWideThreads, 1)
    AttendListedWide(const __grid_constant__ ListedWork work, const int32_t* order, int row_tiles) {
  FollowPrevious();
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
      Bringing<kType, kRows>(work, list, head, shared).All(first_row, end_row);
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
  return work.head_dim == kD && work.rotary_dim % (2 * kChunk) == 0 &&
         kWideKeys % work.block_slots == 0 && work.rows / work.group <= kWideRowsMost &&
         cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

template <DType kType>
cudaError_t LaunchWideTiles(cudaStream_t stream, const ListedWork& work, int32_t* order) {
  constexpr auto kKernel = AttendListedWide < kType,
                 kType == DType::kBF16 ? Rows::kBF16 : Rows::kF16 > ;
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
