// Products of bytes on tensor cores, and how lanes read the bytes: sums of integers have one result
// in any order, so that a lane may take 8 or 16 neighbouring bytes of a row, as whatever channels
// the product has there, as long as the other factor's bytes are dealt out alike.
#ifndef HEADWAY_KERNELS_CUDA_CODE_PRODUCTS_H_
#define HEADWAY_KERNELS_CUDA_CODE_PRODUCTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/memory.h"

namespace headway::cuda {

enum class Signs : uint8_t { kSigned, kUnsigned };

// sums [16, 8] += a [16, 32] · b [32, 8], of bytes.
template <Signs kA, Signs kB>
__device__ void MultiplyBytes(int32_t (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define HEADWAY_MMA(A, B)                                                    \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." A "." B                       \
      ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (kA == Signs::kSigned && kB == Signs::kSigned) {
    HEADWAY_MMA("s8", "s8");
  } else if constexpr (kA == Signs::kSigned) {
    HEADWAY_MMA("s8", "u8");
  } else if constexpr (kB == Signs::kSigned) {
    HEADWAY_MMA("u8", "s8");
  } else {
    HEADWAY_MMA("u8", "u8");
  }
#undef HEADWAY_MMA
}

// Byte of a row of codes at which word `word` of a lane lies, where lanes take `kLoad` bytes.
template <int kLoad>
__device__ constexpr int CodeWordAt(int word, int lane_of_row) {
  constexpr int kWords = kLoad / 4;
  return word / kWords * 4 * kLoad + lane_of_row * kLoad + word % kWords * 4;
}

// kLoad bytes in shared memory, aligned to so many.
template <int kLoad>
struct SharedWords {
  uint32_t words[kLoad / 4];

  __device__ explicit SharedWords(const uint8_t* from) {
    if constexpr (kLoad == 16) {
      const uint4 some = *reinterpret_cast<const uint4*>(from);
      words[0] = some.x;
      words[1] = some.y;
      words[2] = some.z;
      words[3] = some.w;
    } else {
      const uint2 some = *reinterpret_cast<const uint2*>(from);
      words[0] = some.x;
      words[1] = some.y;
    }
  }
};

// kLoad bytes of codes as they are read, and the words that they are.
template <int kLoad>
__device__ auto LoadCodes(const std::byte* at) {
  if constexpr (kLoad == 16) {
    return LoadStreaming(at);
  } else {
    return __ldcg(reinterpret_cast<const uint2*>(at));
  }
}
__device__ inline void TakeWords(const uint4& some, uint32_t* words) {
  words[0] = some.x;
  words[1] = some.y;
  words[2] = some.z;
  words[3] = some.w;
}
__device__ inline void TakeWords(const uint2& some, uint32_t* words) {
  words[0] = some.x;
  words[1] = some.y;
}

// A lane's words of one row of codes; those behind the head's dimension are 0, and all of no row.
template <int kLoad, int kWords>
__device__ void LoadCodeWords(const std::byte* row, int head_dim, int lane_of_row,
                              uint32_t (&words)[kWords]) {
#pragma unroll
  for (int word = 0; word < kWords; word += kLoad / 4) {
    const int at = CodeWordAt<kLoad>(word, lane_of_row);
    const bool there = row != nullptr && at < head_dim;
    TakeWords(there ? LoadCodes<kLoad>(row + at) : decltype(LoadCodes<kLoad>(row)){}, words + word);
  }
}

// The same of a row that is there, where what lies behind the head's dimension is multiplied by 0:
// no load depends on anything.
template <int kLoad, int kWords>
__device__ void LoadRowWords(const std::byte* row, int head_dim, int lane_of_row,
                             uint32_t (&words)[kWords]) {
#pragma unroll
  for (int word = 0; word < kWords; word += kLoad / 4) {
    const int at = min(CodeWordAt<kLoad>(word, lane_of_row), head_dim - kLoad);
    TakeWords(LoadCodes<kLoad>(row + at), words + word);
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_CODE_PRODUCTS_H_
