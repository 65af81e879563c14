// What the threads of selection_prefill_wide.cu share, and those of them that bring: a ring of
// tiles of keys and of values, gathered ahead of products, 8 slots at a time; keys of blocks that
// are moved are rotated there.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_WIDE_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_WIDE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/wgmma.h"

namespace headway::cuda {

inline constexpr int kWideDim = 128;
inline constexpr int kWideRows = 128;
inline constexpr int kWideKeys = 128;
inline constexpr int kWideStrips = kWideKeys / 8;
inline constexpr int kAttending = 2 * kWarpGroup;  // threads; those behind them bring
inline constexpr int kBringing = 2 * kWarpGroup;
inline constexpr int kWideThreads = kAttending + kBringing;
// Registers of a thread of each: 256 of two, as many as they begin with.
inline constexpr int kAttendingRegisters = 200;
inline constexpr int kBringingRegisters = 56;
inline constexpr int kPlaces = kWideDim / kChunk;  // of 16 bytes, in a row
inline constexpr int kTilePlaces = kSwizzledRowBytes / 16;
inline constexpr int kTileBytes = kWideKeys * kSwizzledRowBytes;
inline constexpr int kWideFoundTiles = 4;  // whose strips are found at once
inline constexpr int kWideFound = kWideFoundTiles * kWideStrips;
// Tiles of keys and of values that there is room for: those that products read, two of each warp
// group, perhaps the same, and others that are there or on their way.
inline constexpr int kRing = 5;
static_assert(kWideRows == kWideKeys);

// Rows of 128 elements, as two tiles side by side.
struct alignas(1024) WideTile {
  std::byte halves[2][kTileBytes];

  __device__ std::byte* At(int row, int place) {
    return halves[place / kTilePlaces] + SwizzledAt(row, place % kTilePlaces);
  }
};

__device__ inline int WideTilesOf(const ListedWork& work, const RowList& list) {
  return (list.Strips(work) + kWideStrips - 1) / kWideStrips;
}

// Lists end with a full tile: which strip of the first tile is the first of the list.
__device__ inline int FirstStrip(const ListedWork& work, const RowList& list) {
  return WideTilesOf(work, list) * kWideStrips - list.Strips(work);
}

struct WideShared {
  WideTile q;
  WideTile ring[kRing];
  float2 angles[kWideStrips][kWideDim / 2];  // of the strips' blocks, in their order
  // Of strips, by the tiles that are found at once; null: there are none.
  const std::byte* keys[2][kWideFound];
  const std::byte* values[2][kWideFound];
  int32_t shifts[2][kWideFound];
  Barrier full[kRing];   // a tile is there
  Barrier empty[kRing];  // products have read it

  // The first strip of a tile, of one of the arrays above.
  static __device__ int First(int tile) { return tile % kWideFoundTiles * kWideStrips; }
  static __device__ int Batch(int tile) { return tile / kWideFoundTiles % 2; }
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

__device__ inline void StartWideQueries(const ListedWork& work, int head, int first_row,
                                        int end_row, WideTile& to) {
  const Bringer me = Bringer::Me();
  const auto* const q = static_cast<const uint16_t*>(work.q) + me.place * kChunk;
  for (int row = me.row; row < kWideRows; row += Bringer::kStep) {
    const bool valid = first_row + row < end_row;
    const int at = valid ? first_row + row : 0;
    const int token = at / work.group;
    const int query_head = head * work.group + at - token * work.group;
    CopyAsync(to.At(row, me.place), q + token * work.q_stride + int64_t{query_head} * kWideDim,
              valid);
  }
}

// Starts the way of a tile's keys or values; zeros stand for strips that are not there.
__device__ inline void StartStrips(const void* anywhere, const std::byte* const* strips,
                                   WideTile& to) {
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
__device__ inline void FindWideStrips(const ListedWork& work, const RowList& list, int head,
                                      int tile, int listed, WideShared& shared) {
  const int i = Bringer::Me().thread;
  if (i >= kWideFound) return;
  const int index = tile * kWideStrips + i - FirstStrip(work, list);
  const ListedStrip strip = FindListedStrip<kRows>(work, list, head, index, listed);
  const int batch = WideShared::Batch(tile);
  shared.keys[batch][i] = strip.k;
  shared.values[batch][i] = strip.k == nullptr ? nullptr : strip.V();
  shared.shifts[batch][i] = strip.shift;
}
__device__ inline int ListedFrom(const ListedWork& work, const RowList& list, int tile) {
  const int i = Bringer::Me().thread;
  const int index = tile * kWideStrips + i - FirstStrip(work, list);
  return i < kWideFound && index >= 0 ? ListedAt(work, list, index) : -1;
}

// Angles of a tile's blocks.
__device__ inline void FindWideAngles(const ListedWork& work, const int32_t* shifts,
                                      WideShared& shared) {
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
__device__ inline void RotatePiece(std::byte* low_at, std::byte* high_at, const float2* angles) {
  uint4 low = *reinterpret_cast<uint4*>(low_at);
  uint4 high = *reinterpret_cast<uint4*>(high_at);
  uint32_t* const lows[4] = {&low.x, &low.y, &low.z, &low.w};
  uint32_t* const highs[4] = {&high.x, &high.y, &high.z, &high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    RotatePairs<kType>(angles + 2 * i, *lows[i], *highs[i]);
  }
  *reinterpret_cast<uint4*>(low_at) = low;
  *reinterpret_cast<uint4*>(high_at) = high;
}

// Rotates the keys of a tile whose blocks move.
template <DType kType>
__device__ inline void RotateKeys(const ListedWork& work, const int32_t* shifts, WideShared& shared,
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
template <DType kType>
class Bringing {
 public:
  __device__ Bringing(const ListedWork& work, const RowList& list, int head, WideShared& shared)
      : work_(work), list_(list), head_(head), shared_(shared) {}

  __device__ void All(int first_row, int end_row) {
    const int tiles = WideTilesOf(work_, list_);
    const bool moves = work_.inv_freq != nullptr;
    StartWideQueries(work_, head_, first_row, end_row, shared_.q);
    FindWideStrips<kPlainRowsOf<kType>>(work_, list_, head_, 0, ListedFrom(work_, list_, 0),
                                        shared_);
    int listed = -1;  // of the next batch, asked for a tile before it is needed
    int last = 0;     // the place of the keys before
    for (int tile = 0; tile <= tiles; ++tile) {
      // A batch of strips is there, and nobody needs the one before it any more.
      if (tile % kWideFoundTiles <= 1) Bringer::Meet();
      const int place = next_.place;
      if (tile < tiles) Start(shared_.keys, tile, /*come=*/!moves);
      GroupCopies();
      if (moves && tile > 0) Rotate(tile - 1, shared_.ring[last], shared_.full[last]);
      last = place;
      if (tile > 0) Start(shared_.values, tile - 1, /*come=*/true);
      GroupCopies();
      if (tile % kWideFoundTiles == 0) listed = ListedFrom(work_, list_, tile + kWideFoundTiles);
      if (tile % kWideFoundTiles == 1) {
        FindWideStrips<kPlainRowsOf<kType>>(work_, list_, head_, tile + kWideFoundTiles - 1, listed,
                                            shared_);
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

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_WIDE_H_
