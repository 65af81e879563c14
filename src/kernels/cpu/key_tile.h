// Tiles of keys or values for products with many rows of f32, and pieces of them for threads.
#ifndef HEADWAY_KERNELS_CPU_KEY_TILE_H_
#define HEADWAY_KERNELS_CPU_KEY_TILE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/pages.h"

namespace headway::cpu {

// Keys whose products are summed side by side: a sum of each is in order, and vectors hold several.
inline constexpr int64_t kTileKeys = 32;
// Keys that are handed to a thread at once.
inline constexpr int64_t kKeysGrain = 16 * kTileKeys;

// fn(item, begin, end) over pieces of [0, count_of(item)) of every item.
template <typename Item, typename CountOf, typename Fn>
void OverPieces(ThreadPool& pool, std::span<const Item> items, int64_t grain,
                const CountOf& count_of, const Fn& fn) {
  struct Piece {
    const Item* item;
    int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (const Item& item : items) {
    const int64_t count = count_of(item);
    for (int64_t begin = 0; begin < count; begin += grain) {
      pieces.push_back({&item, begin, std::min(begin + grain, count)});
    }
  }
  pool.Run(static_cast<int64_t>(pieces.size()), 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      fn(*piece.item, piece.begin, piece.end);
    }
  });
}

// Rows of a run of one head that lie in one of its planes.
struct TiledRows {
  const Elementwise& code;
  const PageFormat& format;
  const PageRun& run;
  const std::byte* plane;  // the run's k or v
};

// A tile of rows, transposed: [head_dim, kTileKeys].
class KeyTile {
 public:
  explicit KeyTile(int64_t head_dim)
      : row_(static_cast<size_t>(head_dim)),
        keys_(static_cast<size_t>(head_dim * kTileKeys), 0.0f) {}

  void Load(const TiledRows& from, int64_t first, int64_t count) {
    for (int64_t key = 0; key < count; ++key) {
      from.code.to_f32(from.plane + SlotOffset(from.format, from.run, 0, first + key),
                       from.format.dtype, from.format.head_dim, row_.data());
      for (size_t i = 0; i < row_.size(); ++i) {
        keys_[i * kTileKeys + static_cast<size_t>(key)] = row_[i];
      }
    }
  }

  // Element `i` of all rows.
  const float* Elements(int64_t i) const { return keys_.data() + i * kTileKeys; }
  std::array<float, kTileKeys> Products(const float* q) const {
    std::array<float, kTileKeys> sums = {};
    const float* keys = keys_.data();
    for (size_t i = 0; i < row_.size(); ++i, keys += kTileKeys) {
      for (size_t key = 0; key < kTileKeys; ++key) sums[key] += q[i] * keys[key];
    }
    return sums;
  }

 private:
  std::vector<float> row_, keys_;
};

// fn(tile, first, count) for tiles of the slots [begin, end).
template <typename Fn>
void OverTiles(const TiledRows& rows, int64_t begin, int64_t end, const Fn& fn) {
  KeyTile tile(rows.format.head_dim);
  for (int64_t first = begin; first < end; first += kTileKeys) {
    const int64_t count = std::min(kTileKeys, end - first);
    tile.Load(rows, first, count);
    fn(tile, first, count);
  }
}

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_KEY_TILE_H_
