#include "kernels/cpu/eviction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace headway::cpu {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// Keys whose products are summed side by side: a sum of each is in order, and vectors hold several.
constexpr int64_t kTileKeys = 32;
// Keys, columns and slots that are handed to a thread at once.
constexpr int64_t kKeysGrain = 16 * kTileKeys;
constexpr int64_t kColumnsGrain = 1024;
constexpr int64_t kSlotsGrain = 64;

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

// A tile of keys, transposed: [head_dim, kTileKeys].
class KeyTile {
 public:
  explicit KeyTile(int64_t head_dim)
      : row_(static_cast<size_t>(head_dim)),
        keys_(static_cast<size_t>(head_dim * kTileKeys), 0.0f) {}

  void Load(const Elementwise& code, const PageFormat& format, const PageRun& run, int64_t first,
            int64_t count) {
    for (int64_t key = 0; key < count; ++key) {
      code.to_f32(run.k + SlotOffset(format, run, 0, first + key), format.dtype, format.head_dim,
                  row_.data());
      for (size_t i = 0; i < row_.size(); ++i) {
        keys_[i * kTileKeys + static_cast<size_t>(key)] = row_[i];
      }
    }
  }

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

// Keys [first, first + count) of the tile, for all queries.
void TileLogits(const KeyLogitsCall& call, const KeyLogitsItem& item, const KeyTile& tile,
                int64_t first, int64_t count) {
  for (int64_t row = 0; row < item.rows * call.group; ++row) {
    const float* q = static_cast<const float*>(item.q) + row / call.group * item.q_stride +
                     row % call.group * call.format.head_dim;
    const std::array<float, kTileKeys> sums = tile.Products(q);
    float* logits = item.logits + row * item.stride + first;
    const int64_t last = item.q_position + row / call.group - item.keys.position - first;
    for (int64_t key = 0; key < count; ++key) {
      logits[key] = key <= last ? sums[static_cast<size_t>(key)] * call.scale : kUnseen;
    }
  }
}

}  // namespace

void KeyLogits(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
               std::span<const KeyLogitsItem> items) {
  OverPieces(
      pool, items, kKeysGrain, [](const KeyLogitsItem& item) { return item.keys.pages.count; },
      [&](const KeyLogitsItem& item, int64_t begin, int64_t end) {
        KeyTile tile(call.format.head_dim);
        for (int64_t first = begin; first < end; first += kTileKeys) {
          const int64_t count = std::min(kTileKeys, end - first);
          tile.Load(code, call.format, item.keys.pages, first, count);
          TileLogits(call, item, tile, first, count);
        }
      });
}

void KeyWeights(ThreadPool& pool, std::span<const KeyWeightsItem> items) {
  OverPieces(
      pool, items, 1, [](const KeyWeightsItem& item) { return item.rows; },
      [](const KeyWeightsItem& item, int64_t row, int64_t) {
        const float* logits = item.logits + row * item.stride;
        const float top = *std::max_element(logits, logits + item.columns);
        double total = 0.0;
        for (int64_t i = 0; i < item.columns; ++i) total += double{std::exp(logits[i] - top)};
        item.row_lse[row] = static_cast<float>(top + std::log(total));
      });
  OverPieces(
      pool, items, kColumnsGrain, [](const KeyWeightsItem& item) { return item.columns; },
      [](const KeyWeightsItem& item, int64_t begin, int64_t end) {
        std::array<float, kColumnsGrain> sums = {};
        if (item.max != nullptr) std::fill(item.max + begin, item.max + end, 0.0f);
        for (int64_t row = 0; row < item.rows; ++row) {
          const float* logits = item.logits + row * item.stride;
          for (int64_t i = begin; i < end; ++i) {
            const float weight = std::exp(logits[i] - item.row_lse[row]);
            sums[static_cast<size_t>(i - begin)] += weight;
            if (item.max != nullptr) item.max[i] = std::max(item.max[i], weight);
          }
        }
        for (int64_t i = begin; i < end; ++i) {
          float& there = item.sum[item.average.SlotOf(i)];
          there = item.average.Join(i, there, sums[static_cast<size_t>(i - begin)]);
        }
      });
}

void GatherSlots(ThreadPool& pool, const PageFormat& format,
                 std::span<const GatherSlotsItem> items) {
  const size_t row_bytes = static_cast<size_t>(format.head_dim) * DTypeBytes(format.dtype);
  OverPieces(
      pool, items, kSlotsGrain, [](const GatherSlotsItem& item) { return item.count; },
      [&](const GatherSlotsItem& item, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(item.to.k + SlotOffset(format, item.to, 0, i),
                      item.from.k + SlotOffset(format, item.from, 0, item.slots[i]), row_bytes);
          std::memcpy(item.to.v + SlotOffset(format, item.to, 0, i),
                      item.from.v + SlotOffset(format, item.from, 0, item.slots[i]), row_bytes);
        }
      });
}

}  // namespace headway::cpu
