#include "kernels/cpu/eviction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/cpu/key_tile.h"
#include "kernels/decoded_rows.h"

namespace headway::cpu {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// Columns and slots that are handed to a thread at once.
constexpr int64_t kColumnsGrain = 1024;
constexpr int64_t kSlotsGrain = 64;

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

// Slot `taken` of a run; `v` may be null.
void CopySlot(const PageFormat& format, const PageRun& from, int64_t taken, std::byte* k,
              std::byte* v) {
  const size_t row_bytes = static_cast<size_t>(format.head_dim) * DTypeBytes(format.dtype);
  const int64_t at = SlotOffset(format, from, 0, taken);
  std::memcpy(k, from.k + at, row_bytes);
  if (v != nullptr) std::memcpy(v, from.v + at, row_bytes);
}

// The same of a run in the format's encoding.
void DecodeSlot(const PageFormat& format, const PageRun& from, int64_t taken, std::byte* k,
                std::byte* v) {
  const int64_t at = from.first_slot + taken, page = at / format.page_slots;
  const int64_t slot = at % format.page_slots;
  const std::byte* const params = from.params + page * from.params_page_stride;
  DecodeKeySlot(format, from.k + page * from.page_stride, params, slot, k);
  if (v != nullptr) DecodeValueSlot(format, from.v + page * from.page_stride, params, slot, v);
}

}  // namespace

void KeyLogits(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
               std::span<const KeyLogitsItem> items) {
  OverPieces(
      pool, items, kKeysGrain, [](const KeyLogitsItem& item) { return item.keys.pages.count; },
      [&](const KeyLogitsItem& item, int64_t begin, int64_t end) {
        OverTiles({code, call.format, item.keys.pages, item.keys.pages.k}, begin, end,
                  [&](const KeyTile& tile, int64_t first, int64_t count) {
                    TileLogits(call, item, tile, first, count);
                  });
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
        if (item.max != nullptr && !item.raises) {
          std::fill(item.max + begin, item.max + end, 0.0f);
        }
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
  OverPieces(
      pool, items, kSlotsGrain, [](const GatherSlotsItem& item) { return item.count; },
      [&](const GatherSlotsItem& item, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t taken = item.slots == nullptr ? i : item.slots[i];
          const int64_t to = SlotOffset(format, item.to, 0, i);
          std::byte* const v = item.to.v == nullptr ? nullptr : item.to.v + to;
          if (item.from.params == nullptr) {
            CopySlot(format, item.from, taken, item.to.k + to, v);
          } else {
            DecodeSlot(format, item.from, taken, item.to.k + to, v);
          }
        }
      });
}

}  // namespace headway::cpu
