// Attention of blocks of rows to what they list, on tensor cores: the order of work of
// attention_prefill.cu, whose tiles of keys are gathered, 8 slots at a time. Codes pass through
// shared memory of their own and are decoded there; keys of blocks that are moved are rotated where
// they lie in shared memory.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_TILES_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_TILES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/bytes.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/exact_angle.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_attend_rows.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/page_codec.h"
#include "kernels/selection.h"

namespace headway::cuda {

inline constexpr int kTileStrips = kTileKeys / 8;
inline constexpr int kFoundStrips = 64;  // whose places are found at once
inline constexpr int kFoundTiles = kFoundStrips / kTileStrips;

// Codes and parameters of a tile of keys and values, strip by strip, as pages have them.
template <Rows kRows, int kD>
struct CodedTile {
  static constexpr int kStripBytes = kD * BytesOfEight(kRows);
  static constexpr int kGroups = (kD + static_cast<int>(kValueGroup) - 1) / int{kValueGroup};
  alignas(16) std::byte k[kTileStrips][kStripBytes];
  std::byte v[kTileStrips][kStripBytes];
  std::byte key_params[kTileStrips][4 * kD];
  uint16_t value_params[kTileStrips][kGroups][2][8];
};
template <int kD>
struct CodedTile<Rows::kLossless, kD> {
  static constexpr int kStripBytes = kD * BytesOfEight(Rows::kLossless);
  alignas(16) std::byte k[kTileStrips][kStripBytes];
  std::byte v[kTileStrips][kStripBytes];
  uint8_t floors[kTileStrips][2][8];  // of K, then of V; escapes stay where they are
};
struct NoCodes {};

template <Rows kRows, int kD>
struct ListedShared {
  alignas(16) uint16_t q[Tile<kD>::kRows * Tile<kD>::kStride];
  uint16_t k[kTileKeys * Tile<kD>::kStride];
  uint16_t v[kTileKeys * Tile<kD>::kStride];
  ListedStrip strips[2][kFoundStrips];
  float2 angles[kTileStrips][kD / 2];
  std::conditional_t<IsEncoded(kRows), CodedTile<kRows, kD>, NoCodes> codes;

  __device__ const ListedStrip& Strip(int index) const {
    return strips[index / kFoundStrips % 2][index % kFoundStrips];
  }
};

// The places of strips [kFoundStrips * batch, ..): the first threads find one each.
template <Rows kRows, int kD>
__device__ void FindStrips(const ListedWork& work, const RowList& list, int head, int batch,
                           ListedShared<kRows, kD>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kFoundStrips) return;
  shared.strips[batch % 2][thread] =
      FindListedStrip<kRows>(work, list, head, batch * kFoundStrips + thread);
}

// Starts the way of a tile's rows of K or V into shared memory; zeros stand for strips that are not
// there and for elements from head_dim on.
enum class Half : uint8_t { kKeys, kValues };
template <Half kHalf, Rows kRows, int kD>
__device__ void StartListed(const ListedWork& work, const ListedShared<kRows, kD>& shared, int tile,
                            uint16_t* to) {
  constexpr int kChunks = kD / kChunk;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    const ListedStrip& strip = shared.Strip(tile * kTileStrips + row / 8);
    const bool valid = strip.k != nullptr && column < work.head_dim;
    const std::byte* first = kHalf == Half::kKeys ? strip.k : strip.V();
    const void* from = valid ? first + (row % 8 * work.head_dim + column) * 2 : work.q;
    CopyAsync(to + row * Tile<kD>::kStride + column, from, valid);
  }
}

// Starts the way of 16 bytes, which lie on 4 if not on 16; zeros where there are none.
__device__ inline void CopyPiece(void* to, const std::byte* from, const void* anywhere,
                                 bool aligned) {
  const bool valid = from != nullptr;
  const auto* const piece = valid ? from : static_cast<const std::byte*>(anywhere);
  if (aligned) return CopyAsync(to, piece, valid);
#pragma unroll
  for (int word = 0; word < 16; word += 4) {
    CopyWordAsync(static_cast<std::byte*>(to) + word, piece + word, valid);
  }
}

// Starts the way of the floors of a tile's rows into shared memory.
template <int kD>
__device__ void StartParams(const ListedWork& work, ListedShared<Rows::kLossless, kD>& shared,
                            int tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileStrips * 4; i += kTileThreads) {
    const int strip = i / 4;
    const bool of_keys = i % 4 < 2;
    const ListedStrip& from = shared.Strip(tile * kTileStrips + strip);
    const bool valid = from.k != nullptr;
    const auto half = LosslessHalf::Of(from.params, of_keys, work.page_slots, work.head_dim);
    const std::byte* floors =
        half.params + lossless::FloorsAt(half.entries) + from.slot + i % 2 * 4;
    CopyWordAsync(&shared.codes.floors[strip][of_keys ? 0 : 1][i % 2 * 4],
                  valid ? static_cast<const void*>(floors) : work.q, valid);
  }
}

// The same of the parameters of codes.
template <int kD, Rows kRows>
__device__ void StartParams(const ListedWork& work, ListedShared<kRows, kD>& shared, int tile) {
  using Codes = CodedTile<kRows, kD>;
  Codes& codes = shared.codes;
  const int thread = static_cast<int>(threadIdx.x);
  const bool aligned = work.params_aligned != 0;
  constexpr int kParamPieces = 4 * kD / 16;
  for (int i = thread; i < kTileStrips * kParamPieces; i += kTileThreads) {
    const int strip = i / kParamPieces;
    const int at = i % kParamPieces * 16;
    const ListedStrip& from = shared.Strip(tile * kTileStrips + strip);
    const bool valid = from.k != nullptr && at < 4 * work.head_dim;
    CopyPiece(codes.key_params[strip] + at, valid ? from.params + at : nullptr, work.q, aligned);
  }
  const int groups = (work.head_dim + int{kValueGroup} - 1) / int{kValueGroup};
  for (int i = thread; i < kTileStrips * 2 * Codes::kGroups; i += kTileThreads) {
    const int strip = i / (2 * Codes::kGroups);
    const int group = i / 2 % Codes::kGroups;
    const int row = i % 2 * groups + group;  // scales of all groups, then zeros
    const ListedStrip& from = shared.Strip(tile * kTileStrips + strip);
    const bool valid = from.k != nullptr && group < groups;
    const std::byte* piece =
        from.params + 4 * work.head_dim + (row * work.page_slots + from.slot) * 2;
    CopyPiece(codes.value_params[strip][group][i % 2], valid ? piece : nullptr, work.q, aligned);
  }
}

// Starts the way of a tile's codes and parameters into shared memory.
template <Rows kRows, int kD>
__device__ void StartCodes(const ListedWork& work, ListedShared<kRows, kD>& shared, int tile) {
  using Codes = CodedTile<kRows, kD>;
  Codes& codes = shared.codes;
  constexpr int kCodePieces = Codes::kStripBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < kTileStrips * kCodePieces; i += kTileThreads) {
    const int strip = i / kCodePieces;
    const int at = i % kCodePieces * 16;
    const ListedStrip& from = shared.Strip(tile * kTileStrips + strip);
    const bool valid = from.k != nullptr && at < work.head_dim * BytesOfEight(kRows);
    CopyPiece(codes.k[strip] + at, valid ? from.k + at : nullptr, work.q, true);
    CopyPiece(codes.v[strip] + at, valid ? from.V() + at : nullptr, work.q, true);
  }
  StartParams<kD>(work, shared, tile);
}

// Eight neighbouring codes in shared memory, as numbers.
template <Rows kRows>
__device__ void WidenCodes(const std::byte* from, float (&x)[8]) {
  Eight<kRows> eight;
#pragma unroll
  for (int i = 0; i < Eight<kRows>::kWords; ++i) {
    eight.words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
  eight.Widen(x);
}

template <DType kType>
__device__ void StoreEight(uint16_t* to, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(PackPair<kType>(x[0], x[1]), PackPair<kType>(x[2], x[3]),
                 PackPair<kType>(x[4], x[5]), PackPair<kType>(x[6], x[7]));
}

// The numbers from 8 * `index` on of a row of K or of V.
template <int kD>
__device__ uint4 LosslessEight(const ListedWork& work,
                               const ListedShared<Rows::kLossless, kD>& shared, int tile, int row,
                               int index, bool of_keys) {
  const int strip = row / 8;
  const std::byte* const codes = (of_keys ? shared.codes.k : shared.codes.v)[strip] +
                                 row % 8 * (work.head_dim / 8 * BytesOfEight(Rows::kLossless));
  const auto* low = reinterpret_cast<const uint32_t*>(codes) + 2 * index;
  const LosslessPiece piece = {make_uint2(low[0], low[1]),
                               reinterpret_cast<const uint32_t*>(codes + work.head_dim)[index]};
  const ListedStrip& from = shared.Strip(tile * kTileStrips + strip);
  if (from.k == nullptr) return make_uint4(0, 0, 0, 0);
  return LosslessNumbers(piece, InFourBytes(shared.codes.floors[strip][of_keys ? 0 : 1][row % 8]),
                         LosslessHalf::Of(from.params, of_keys, work.page_slots, work.head_dim),
                         (from.slot + row % 8) * work.head_dim + index * 8);
}

// Codes of a tile become rows of K and V. Codes and parameters that are not there are zeros, and so
// is what becomes of them.
template <DType kType, int kD>
__device__ void DecodeTile(const ListedWork& work, int tile,
                           ListedShared<Rows::kLossless, kD>& shared) {
  constexpr int kChunks = kD / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int index = i % kChunks;
    const bool there = index * kChunk < work.head_dim;
    const int at = row * Tile<kD>::kStride + index * kChunk;
    for (const bool of_keys : {true, false}) {
      *reinterpret_cast<uint4*>((of_keys ? shared.k : shared.v) + at) =
          there ? LosslessEight(work, shared, tile, row, index, of_keys) : make_uint4(0, 0, 0, 0);
    }
  }
}
template <DType kType, Rows kRows, int kD>
__device__ void DecodeTile(const ListedWork& work, int /*tile*/, ListedShared<kRows, kD>& shared) {
  constexpr int kChunks = kD / kChunk;
  const auto& codes = shared.codes;
  const int row_bytes = work.head_dim / 8 * BytesOfEight(kRows);
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int strip = row / 8;
    const int chunk = i % kChunks;
    float k[8] = {};
    float v[8] = {};
    if (chunk * kChunk < work.head_dim) {
      const int at = row % 8 * row_bytes + chunk * BytesOfEight(kRows);
      WidenCodes<kRows>(codes.k[strip] + at, k);
      WidenCodes<kRows>(codes.v[strip] + at, v);
      const std::byte* of_keys = codes.key_params[strip] + chunk * 16;
      const uint4 scales = *reinterpret_cast<const uint4*>(of_keys);
      const uint4 zeros = *reinterpret_cast<const uint4*>(of_keys + 2 * work.head_dim);
      const KeyParams params = {{scales.x, scales.y, scales.z, scales.w},
                                {zeros.x, zeros.y, zeros.z, zeros.w}};
      params.Decode(k);
      const auto& of_values = codes.value_params[strip][chunk * kChunk / int{kValueGroup}];
      const float by = WidenBF16(of_values[0][row % 8]);
      const float from = WidenBF16(of_values[1][row % 8]);
#pragma unroll
      for (float& x : v) x = fmaf(by, x, from);
    }
    StoreEight<kType>(shared.k + row * Tile<kD>::kStride + chunk * kChunk, k);
    StoreEight<kType>(shared.v + row * Tile<kD>::kStride + chunk * kChunk, v);
  }
}

// The first strip of a tile that lies in the block of strip `strip` of it: both share angles.
__device__ inline int FirstOfBlock(const ListedWork& work, int tile, int strip) {
  const int of_block = work.block_slots / 8;
  const int in_block = (tile * kTileStrips + strip) % of_block;
  return max(strip - in_block, 0);
}

// Angles of the blocks of a tile that move: a warp takes a strip.
template <Rows kRows, int kD>
__device__ void FindAngles(const ListedWork& work, int tile, ListedShared<kRows, kD>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int strip = static_cast<int>(threadIdx.x) / kWarp; strip < kTileStrips;
       strip += kTileWarps) {
    const int32_t shift = shared.Strip(tile * kTileStrips + strip).shift;
    if (shift == 0 || FirstOfBlock(work, tile, strip) != strip) continue;
    for (int i = lane; i < work.rotary_dim / 2; i += kWarp) {
      shared.angles[strip][i] = ExactAngle(shift, __ldg(work.inv_freq + i));
    }
  }
}

// Rotates the keys of a tile whose blocks move: a warp takes a row, a lane two pairs of channels.
template <DType kType, Rows kRows, int kD>
__device__ void RotateTile(const ListedWork& work, int tile, ListedShared<kRows, kD>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int half = work.rotary_dim / 2;
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < kTileKeys; row += kTileWarps) {
    if (shared.Strip(tile * kTileStrips + row / 8).shift == 0) continue;
    const auto& angles = shared.angles[FirstOfBlock(work, tile, row / 8)];
    uint16_t* const key = shared.k + row * Tile<kD>::kStride;
    for (int i = 2 * lane; i < half; i += 2 * kWarp) {
      auto* const low = reinterpret_cast<uint32_t*>(key + i);
      auto* const high = reinterpret_cast<uint32_t*>(key + half + i);
      RotatePairs<kType>(&angles[i], *low, *high);
    }
  }
}

// Hides the strips of the last tile that are not there.
template <int kD>
__device__ void HideStrips(int strips, RowStates<kD>& state) {
#pragma unroll
  for (int t = 0; t < Tile<kD>::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kTileStrips; ++n) {
      if (n < strips) continue;
#pragma unroll
      for (float& logit : state.logits[t][n]) logit = kNoKeys;
    }
  }
}

// Grid: tiles of rows of a block of rows, heads, blocks of rows.
template <DType kType, Rows kRows, int kD>
__global__ void __launch_bounds__(kTileThreads, 2)
    AttendListed(const __grid_constant__ ListedWork work) {
  FollowPrevious();
  constexpr int kStride = Tile<kD>::kStride;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ListedShared<kRows, kD>*>(memory);
  const int head = static_cast<int>(blockIdx.y);
  const int row_block = static_cast<int>(blockIdx.z);
  constexpr int kBlockRows = static_cast<int>(kSelectRows);
  const int end_row = min(work.rows, (row_block + 1) * kBlockRows * work.group);
  const int first_row =
      row_block * kBlockRows * work.group + static_cast<int>(blockIdx.x) * Tile<kD>::kRows;
  if (first_row >= end_row) return;
  const RowList list = RowList::Of(work, row_block, head);
  const int strips = list.Strips(work);
  const int tiles = (strips + kTileStrips - 1) / kTileStrips;

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Tile<kD>::kWarpRows;
  const bool moves = work.inv_freq != nullptr;
  RowStates<kD> state;
  ClearStates(state);
  StartQueries<kD>(work, head, first_row, end_row, shared.q);
  FindStrips(work, list, head, 0, shared);
  __syncthreads();
  if constexpr (IsEncoded(kRows)) {
    StartCodes(work, shared, 0);
  } else {
    StartListed<Half::kKeys>(work, shared, 0, shared.k);
  }
  if (moves) FindAngles(work, 0, shared);
  for (int tile = 0; tile < tiles; ++tile) {
    WaitForCopies();
    __syncthreads();  // these keys and angles are there, and nobody needs the last values any more
    if (tile % kFoundTiles == 0) FindStrips(work, list, head, tile / kFoundTiles + 1, shared);
    if constexpr (IsEncoded(kRows)) {
      DecodeTile<kType>(work, tile, shared);
      __syncthreads();  // the numbers are there, and nobody needs the codes any more
      if (tile + 1 < tiles) StartCodes(work, shared, tile + 1);
    } else {
      StartListed<Half::kValues>(work, shared, tile, shared.v);
    }
    if (moves) {
      RotateTile<kType>(work, tile, shared);
      __syncthreads();
    }
    Logits<kType>(shared.q + warp_row * kStride, shared.k, state);
    if constexpr (!IsEncoded(kRows)) {
      WaitForCopies();
      __syncthreads();  // these values are there, and nobody needs these keys any more
      if (tile + 1 < tiles) StartListed<Half::kKeys>(work, shared, tile + 1, shared.k);
    }
    if (moves && tile + 1 < tiles) FindAngles(work, tile + 1, shared);
    if (tile + 1 == tiles) HideStrips(strips - tile * kTileStrips, state);
    Weigh(work.scale * kLog2E, state);
    AddValues<kType>(shared.v, state);
  }
  WaitForCopies();
  Finish<kType>(work, head, first_row + warp_row + lane / 4, end_row, work.scale, state);
}

template <DType kType, Rows kRows, int kD>
cudaError_t LaunchListedTilesOf(cudaStream_t stream, const ListedWork& work) {
  constexpr auto kKernel = AttendListed<kType, kRows, kD>;
  constexpr int kBytes = sizeof(ListedShared<kRows, kD>);
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t block_rows = kSelectRows * work.group;
  const dim3 grid(static_cast<unsigned>(
                      CeilDiv(std::min<int64_t>(block_rows, work.rows), int64_t{Tile<kD>::kRows})),
                  static_cast<unsigned>(work.heads),
                  static_cast<unsigned>(CeilDiv(work.rows, block_rows)));
  return LaunchKernel(kKernel, grid, kTileThreads, kBytes, stream, work);
}

template <DType kType, Rows kRows>
cudaError_t LaunchListedTiles(cudaStream_t stream, const ListedWork& work) {
  if (work.head_dim <= 64) return LaunchListedTilesOf<kType, kRows, 64>(stream, work);
  if (work.head_dim <= 128) return LaunchListedTilesOf<kType, kRows, 128>(stream, work);
  return LaunchListedTilesOf<kType, kRows, 256>(stream, work);
}

template <Rows kRows>
int64_t ListedTileBytes(int head_dim) {
  if (head_dim <= 64) return sizeof(ListedShared<kRows, 64>);
  if (head_dim <= 128) return sizeof(ListedShared<kRows, 128>);
  return sizeof(ListedShared<kRows, 256>);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_PREFILL_TILES_H_
