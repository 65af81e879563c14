// What eviction asks of queries that are not rotated, of keys and of values.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/eviction.h"
#include "kernels/cpu/key_tile.h"

namespace headway::cpu {
namespace {

// Rows of products, whose sums stay in a core's cache as queries go by.
constexpr int64_t kMomentsGrain = 32;

// Keys [first, first + count) of the tile, for all query heads.
void TileExpectedLogits(const KeyLogitsCall& call, const ExpectedLogitsItem& item,
                        const KeyTile& tile, int64_t first, int64_t count) {
  const int64_t dim = call.format.head_dim;
  for (int64_t head = 0; head < call.group; ++head) {
    std::array<float, kTileKeys> variances = {};
    for (int64_t i = 0; i < dim; ++i) {
      const std::array<float, kTileKeys> sums =
          tile.Products(item.covariance + (head * dim + i) * dim);
      const float* const elements = tile.Elements(i);
      for (size_t key = 0; key < kTileKeys; ++key) variances[key] += sums[key] * elements[key];
    }
    const std::array<float, kTileKeys> means = tile.Products(item.mean + head * dim);
    float* const logits = item.logits + head * item.stride + first;
    for (int64_t key = 0; key < count; ++key) {
      const auto at = static_cast<size_t>(key);
      logits[key] = call.scale * (means[at] + call.scale * variances[at] / 2);
    }
  }
}

// The Euclidean norms of `count` rows of the tile.
void TileNorms(const KeyTile& tile, int64_t head_dim, int64_t count, float* norms) {
  std::array<float, kTileKeys> sums = {};
  for (int64_t i = 0; i < head_dim; ++i) {
    const float* const elements = tile.Elements(i);
    for (size_t key = 0; key < kTileKeys; ++key) sums[key] += elements[key] * elements[key];
  }
  for (int64_t key = 0; key < count; ++key) norms[key] = std::sqrt(sums[static_cast<size_t>(key)]);
}

// Values [begin, end) of the item. A row of the weight, of which the group's heads have a part
// each, is read once for all of them.
void PieceOfProjectedNorms(const Elementwise& code, const KeyLogitsCall& call,
                           const ProjectedNormsItem& item, int64_t begin, int64_t end) {
  const int64_t dim = call.format.head_dim;
  std::vector<KeyTile> tiles;
  OverTiles({code, call.format, item.values, item.values.v}, begin, end,
            [&](const KeyTile& tile, int64_t, int64_t) { tiles.push_back(tile); });
  std::vector<float> row(static_cast<size_t>(call.group * dim));
  std::fill(item.norms + begin, item.norms + end, 0.0f);
  for (int64_t out = 0; out < item.weight.out; ++out) {
    const int64_t first = out * item.weight.in + item.first_column;
    code.to_f32(item.weight.data + first * static_cast<int64_t>(DTypeBytes(item.weight.dtype)),
                item.weight.dtype, call.group * dim, row.data());
    int64_t slot = begin;
    for (const KeyTile& tile : tiles) {
      const int64_t count = std::min(kTileKeys, end - slot);
      for (int64_t head = 0; head < call.group; ++head) {
        const std::array<float, kTileKeys> sums = tile.Products(row.data() + head * dim);
        for (int64_t key = 0; key < count; ++key) {
          item.norms[slot + key] += std::abs(sums[static_cast<size_t>(key)]);
        }
      }
      slot += count;
    }
  }
  for (int64_t slot = begin; slot < end; ++slot) {
    item.norms[slot] /= static_cast<float>(call.group);
  }
}

}  // namespace

void QueryMoments(ThreadPool& pool, const QueryShape& shape,
                  std::span<const QueryMomentsItem> items) {
  const int64_t dim = shape.head_dim;
  OverPieces(
      pool, items, kMomentsGrain, [&](const QueryMomentsItem&) { return shape.heads * dim; },
      [&](const QueryMomentsItem& item, int64_t begin, int64_t end) {
        if (!item.adds) {
          std::fill(item.sums + begin, item.sums + end, 0.0f);
          std::fill(item.products + begin * dim, item.products + end * dim, 0.0f);
        }
        for (int64_t row = 0; row < item.rows; ++row) {
          const float* const q = static_cast<const float*>(item.q) + row * item.q_stride;
          for (int64_t at = begin; at < end; ++at) {
            const float* const head = q + at / dim * dim;
            float* const products = item.products + at * dim;
            item.sums[at] += q[at];
            for (int64_t j = 0; j < dim; ++j) products[j] += q[at] * head[j];
          }
        }
      });
}

void ExpectedLogits(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
                    std::span<const ExpectedLogitsItem> items) {
  OverPieces(
      pool, items, kKeysGrain, [](const ExpectedLogitsItem& item) { return item.keys.pages.count; },
      [&](const ExpectedLogitsItem& item, int64_t begin, int64_t end) {
        OverTiles({code, call.format, item.keys.pages, item.keys.pages.k}, begin, end,
                  [&](const KeyTile& tile, int64_t first, int64_t count) {
                    TileExpectedLogits(call, item, tile, first, count);
                  });
      });
}

void ValueNorms(ThreadPool& pool, const Elementwise& code, const PageFormat& format,
                std::span<const ValueNormsItem> items) {
  OverPieces(
      pool, items, kKeysGrain, [](const ValueNormsItem& item) { return item.values.count; },
      [&](const ValueNormsItem& item, int64_t begin, int64_t end) {
        OverTiles({code, format, item.values, item.values.v}, begin, end,
                  [&](const KeyTile& tile, int64_t first, int64_t count) {
                    TileNorms(tile, format.head_dim, count, item.norms + first);
                  });
      });
}

void ProjectedNorms(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
                    std::span<const ProjectedNormsItem> items) {
  OverPieces(
      pool, items, kKeysGrain, [](const ProjectedNormsItem& item) { return item.values.count; },
      [&](const ProjectedNormsItem& item, int64_t begin, int64_t end) {
        PieceOfProjectedNorms(code, call, item, begin, end);
      });
}

}  // namespace headway::cpu
