// The eight tile registers of AMX (16 rows of 64 bytes each) as a class, and the same as plain
// code, so that the attention on tiles runs in tests on processors without them.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_TILES_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_TILES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace headway::cpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// What the current thread's tiles hold. One object at a time a thread.
class AmxTiles {
 public:
  AmxTiles() {
    // Intel SDM vol. 1, 18.3: palette 1 and every tile at its full size.
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof(config) == 64);
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = kTileRowBytes;
      config.rows[i] = kTileRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // 16 rows of 64 bytes, `stride` bytes apart.
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // c [16, 16] f32 += a [16, 32] bf16 * b [32, 16] bf16, b stored as [16, 16, 2]: pairs of its rows
  // interleaved.
  template <int kC, int kA, int kB>
  void MultiplyAdd() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

class EmulatedTiles {
 public:
  template <int kTile>
  void Zero() {
    tiles_[kTile] = {};
  }
  template <int kTile>
  void Load(const void* from, int64_t stride) {
    for (int row = 0; row < kTileRows; ++row) {
      std::memcpy(tiles_[kTile].data() + row * kTileRowBytes,
                  static_cast<const std::byte*>(from) + row * stride, kTileRowBytes);
    }
  }
  template <int kTile>
  void Store(void* to, int64_t stride) {
    for (int row = 0; row < kTileRows; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride,
                  tiles_[kTile].data() + row * kTileRowBytes, kTileRowBytes);
    }
  }
  template <int kC, int kA, int kB>
  void MultiplyAdd() {
    for (int m = 0; m < kTileRows; ++m) {
      for (int k = 0; k < kTileRows; ++k) {
        for (int n = 0; n < kTileRows; ++n) {
          float c = Get<float>(kC, m * kTileRows + n);
          for (int i = 0; i < 2; ++i) {
            const float a = ToFloat(BF16{Get<uint16_t>(kA, (m * kTileRows + k) * 2 + i)});
            const float b = ToFloat(BF16{Get<uint16_t>(kB, (k * kTileRows + n) * 2 + i)});
            c += a * b;
          }
          std::memcpy(tiles_[kC].data() + (m * kTileRows + n) * 4, &c, sizeof(c));
        }
      }
    }
  }

 private:
  template <typename T>
  T Get(int tile, int index) const {
    T value;
    std::memcpy(&value, tiles_[static_cast<size_t>(tile)].data() + index * int{sizeof(T)},
                sizeof(T));
    return value;
  }

  alignas(64) std::array<std::array<std::byte, kTileRows * kTileRowBytes>, 8> tiles_;
};

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_TILES_H_
