// Attention to listed blocks, by the definition: see ref_selection.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/page_codec.h"
#include "kernels/ref/ref_selection.h"

namespace headway::ref {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

struct KeyValue {
  std::vector<double> k;
  std::vector<double> v;
};

// Slot `slot` of a block, as numbers.
KeyValue LoadSlot(const PageFormat& format, const BlockedKeys& keys, const BlockPlace& place,
                  int64_t slot) {
  const auto dim = static_cast<size_t>(format.head_dim);
  const int64_t page = slot / format.page_slots;
  const int64_t in_page = slot % format.page_slots;
  const std::byte* k =
      place.segment->slab + place.head * keys.head_stride + page * keys.page_stride;
  const std::byte* v = k + keys.v_offset;
  KeyValue row{std::vector<double>(dim), std::vector<double>(dim)};
  if (format.encoding != Encoding::kNone) {
    const std::byte* params = place.segment->slab + keys.params_offset +
                              place.head * keys.params_head_stride + page * keys.params_page_stride;
    DecodeKeyRow(format, k, params, in_page, row.k.data());
    DecodeValueRow(format, v, params, in_page, row.v.data());
    return row;
  }
  for (size_t i = 0; i < dim; ++i) {
    const int64_t element = in_page * format.head_dim + static_cast<int64_t>(i);
    row.k[i] = LoadAsFloat(k, element, format.dtype);
    row.v[i] = LoadAsFloat(v, element, format.dtype);
  }
  return row;
}

// Rotates a key on by `shift` positions.
void Move(const BlockMove& move, int64_t shift, std::vector<double>& key) {
  const auto half = static_cast<size_t>(move.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(shift) * double{move.inv_freq[i]};
    const double low = key[i];
    const double high = key[i + half];
    key[i] = low * std::cos(angle) - high * std::sin(angle);
    key[i + half] = high * std::cos(angle) + low * std::sin(angle);
  }
}

// The state of one query: output, normalised, and the log of the sum of exponentials.
struct State {
  std::vector<double> o;
  double lse = kNoKeys;
};

State AttendRow(const std::vector<KeyValue>& rows, const float* q, int head_dim, float scale) {
  State state{std::vector<double>(static_cast<size_t>(head_dim), 0.0), kNoKeys};
  if (rows.empty()) return state;
  std::vector<double> logits;
  double max = kNoKeys;
  for (const KeyValue& row : rows) {
    double dot = 0;
    for (size_t i = 0; i < row.k.size(); ++i) dot += double{q[i]} * row.k[i];
    logits.push_back(dot * double{scale});
    max = std::isnan(max) || max > logits.back() ? max : logits.back();
  }
  double sum = 0;
  for (size_t key = 0; key < rows.size(); ++key) {
    const double weight = std::exp(logits[key] - max);
    sum += weight;
    for (size_t i = 0; i < state.o.size(); ++i) state.o[i] += weight * rows[key].v[i];
  }
  for (double& value : state.o) value /= sum;
  state.lse = max + std::log(sum);
  return state;
}

// Merges a state of other keys, which is not read where it has none.
void MergeInto(State& state, const float* o, double lse) {
  if (lse == kNoKeys) return;
  const double max = std::isnan(state.lse) || state.lse > lse ? state.lse : lse;
  const double weight = state.lse == kNoKeys ? 0.0 : std::exp(state.lse - max);
  const double other = std::exp(lse - max);
  for (size_t i = 0; i < state.o.size(); ++i) {
    state.o[i] = (state.o[i] * weight + double{o[i]} * other) / (weight + other);
  }
  state.lse = max + std::log(weight + other);
}

void Store(const State& state, float* o, float* lse) {
  for (size_t i = 0; i < state.o.size(); ++i) o[i] = static_cast<float>(state.o[i]);
  *lse = static_cast<float>(state.lse);
}

// A call and one of its items.
struct Attention {
  const PageFormat& format;
  int block_slots;
  int group;
  float scale;
  const AttendBlocksItem& item;
};

// Keys and values of the listed blocks [begin, end) of a head and a block of rows.
std::vector<KeyValue> ListedRows(const Attention& call, int64_t row_block, int64_t head,
                                 int64_t begin, int64_t end) {
  const AttendBlocksItem& item = call.item;
  const int64_t list = row_block * item.keys.heads + head;
  std::vector<KeyValue> rows;
  for (int64_t i = begin; i < end; ++i) {
    const BlockPlace place = PlaceOf(item.keys, head, item.blocks[list * item.capacity + i]);
    const int64_t to = item.move.To(item.counts[list] - i, call.block_slots);
    const int64_t shift = to - (place.segment->position + place.block * call.block_slots);
    for (int64_t slot = 0; slot < call.block_slots; ++slot) {
      rows.push_back(
          LoadSlot(call.format, item.keys, place, place.block * call.block_slots + slot));
      if (item.move.inv_freq != nullptr) Move(item.move, shift, rows.back().k);
    }
  }
  return rows;
}

void AttendParts(const Attention& call) {
  const AttendBlocksItem& item = call.item;
  const int dim = call.format.head_dim;
  HEADWAY_CHECK(item.split > 0 && item.split % call.block_slots == 0 && !item.merge);
  HEADWAY_CHECK(item.parts >= CeilDiv(item.capacity * call.block_slots, item.split));
  const int64_t part_blocks = item.split / call.block_slots;
  for (int64_t head = 0; head < item.keys.heads; ++head) {
    for (int64_t part = 0; part < item.parts; ++part) {
      const int64_t begin = part * part_blocks;
      const int64_t end = std::min<int64_t>(begin + part_blocks, item.counts[head]);
      const std::vector<KeyValue> rows = ListedRows(call, 0, head, begin, end);
      for (int64_t row = head * call.group; row < (head + 1) * call.group; ++row) {
        float* lse = item.lse + part * item.lse_part_stride + row;
        if (rows.empty()) {
          *lse = -std::numeric_limits<float>::infinity();
          continue;
        }
        Store(AttendRow(rows, static_cast<const float*>(item.q) + row * dim, dim, call.scale),
              item.o + part * item.o_part_stride + row * dim, lse);
      }
    }
  }
}

void AttendRowBlock(const Attention& call, int64_t row_block, int64_t head) {
  const AttendBlocksItem& item = call.item;
  const int dim = call.format.head_dim;
  const std::vector<KeyValue> rows =
      ListedRows(call, row_block, head, 0, item.counts[row_block * item.keys.heads + head]);
  const int64_t end = std::min(item.rows, (row_block + 1) * kSelectRows);
  for (int64_t row = row_block * kSelectRows; row < end; ++row) {
    for (int64_t q_head = head * call.group; q_head < (head + 1) * call.group; ++q_head) {
      State state =
          AttendRow(rows, static_cast<const float*>(item.q) + row * item.q_stride + q_head * dim,
                    dim, call.scale);
      float* o = item.o + row * item.o_stride + q_head * dim;
      float* lse = item.lse + row * item.lse_stride + q_head;
      if (item.merge) MergeInto(state, o, double{*lse});
      Store(state, o, lse);
    }
  }
}

}  // namespace

void AttendBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const AttendBlocksItem> items) {
  HEADWAY_CHECK(SelectionFits(format, summary, group));
  for (const AttendBlocksItem& item : items) {
    if (item.attended) continue;
    const Attention call = {format, summary.block_slots, group, scale, item};
    if (item.rows == 1) {
      AttendParts(call);
      continue;
    }
    for (int64_t block = 0; block < CeilDiv(item.rows, kSelectRows); ++block) {
      for (int64_t head = 0; head < item.keys.heads; ++head) AttendRowBlock(call, block, head);
    }
  }
}

}  // namespace headway::ref
