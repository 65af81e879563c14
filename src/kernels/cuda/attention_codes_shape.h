// The sizes of the kernel behind attention_codes.h, and what it has in shared memory and registers.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_CODES_SHAPE_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_CODES_SHAPE_H_

#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/attention_codes_unpack.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/warp.h"

namespace headway::cuda {

// Shared memory of a processor; the host need not know.
#if __CUDA_ARCH__ >= 900
inline constexpr int kSharedBytes = 228 << 10;
#elif __CUDA_ARCH__ == 800
inline constexpr int kSharedBytes = 164 << 10;
#else
inline constexpr int kSharedBytes = 100 << 10;
#endif

// kDim is head_dim rounded up to a size that is compiled; kTiles × 8 queries are done at a time.
template <Encoding kEncoding, int kDim, int kTiles>
struct CodesShape {
  using Codes = Code<kEncoding>;
  static constexpr int kWarps = 4;
  static constexpr int kQueries = kTiles * 8;
  static constexpr int kRowBytes = kDim * Codes::kBits / 8;
  static constexpr int kPieces = kRowBytes / 16;  // of 16 bytes, in a row
  // Keys of a page that a warp takes at a time: row r of its lanes 4 r + c has keys r * kRowKeys
  // and on, of which key b is in tile b / 2 of 16 keys.
  static constexpr int kChunk = kTiles > 1 || kDim > 128 ? 32 : 64;
  static constexpr int kRowKeys = kChunk / 8;
  static constexpr int kKeyTiles = kChunk / 16;
  static constexpr int kGroups = kDim / 64;               // of channels of V
  static constexpr int kCodes = 32 / Codes::kBits;        // in a word
  static constexpr int kPairs = kCodes / 2;               // of f16
  static constexpr int kGroupPieces = kPieces / kGroups;  // of V, in a group
  static constexpr int kDims = kDim;
  static constexpr int kQueryTiles = kTiles;
  // Registers of lane 4 r + c.
  using Scores = float[kKeyTiles][kTiles][4];
  using Rows = float[kTiles][2];                // of queries 2c and 2c + 1 of each tile
  using Scaled = SplitPair[kTiles][2][kPairs];  // q ∘ scale of two pieces
  using Weights = SplitPair[kTiles][2];         // p scale of a tile of keys
  // o[m]: rows r and r + 8 of matrix m are two neighbouring channels of a group.
  using GroupOutputs = float[4][kTiles][4];
  __device__ static float Power(float x) { return Exp2(x); }

  // What a warp has of a chunk: rows of codes, and scales, then zeros.
  struct Stage {
    uint4 k[kChunk * kPieces];
    uint4 v[kChunk * kPieces];
    uint16_t k_params[2][kDim];
    uint16_t v_params[2][kGroups][kChunk];
  };
  struct Shared {
    union {
      Stage stages[kWarps];
      WarpStates<kDim, kWarps, 8> states;  // when all is read
    };
    float4 queries[kTiles][kPieces][kCodes / 4][kWarp];
    float query_factor[kQueries];
    KeyRange ranges[kQueries];  // of the tokens
    KeyRange seen[kQueries];
  };
  // Blocks on a processor, as far as registers and shared memory go.
  static constexpr int kFit = static_cast<int>((kSharedBytes >> 10) / (sizeof(Shared) / 1024 + 2));
  static constexpr int kMost = kTiles > 1 || kDim > 128 ? 2 : 3;
  static constexpr int kBlocks = kFit < 1 ? 1 : kFit < kMost ? kFit : kMost;

  // Where a piece of a key's row is. Turned, so that the same piece of keys that matrices take
  // together lies in other banks each.
  __device__ static int Unit(int key, int piece) {
    return (key * kPieces + piece) ^ (key / kRowKeys);
  }
  // Where a lane's row of the matrices of pieces `piece` and the next one of tile `tile` is: first
  // those of its even keys b, then those of the odd ones. lane_unit: LaneUnit, its part of that.
  __device__ static int LaneUnit(int lane) {
    return Unit(lane % 8 * kRowKeys + lane / 8 % 2, lane / 16);
  }
  __device__ static int UnitAt(int lane_unit, int tile, int piece) {
    const int apart = tile * 2 * kPieces + piece;
    return (lane_unit ^ (apart & 7)) + (apart & ~7);
  }
};

// Units of q̂ = q ∘ scale and of p scale, so that f16 holds the largest, less than 4 and 2 of them:
// then numbers 2^-15 of that keep 22 bits, in q̂ even a sixteenth of them.
inline constexpr float kQueryUnit = 8192.0f;
inline constexpr float kWeightUnit = 4096.0f;

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_CODES_SHAPE_H_
