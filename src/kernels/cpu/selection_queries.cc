// Products and sums of floats are rounded one by one: the file is compiled without contraction.
#include "kernels/cpu/selection_queries.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/half.h"
#include "kernels/cpu/selection_ops.h"
#include "kernels/page_codec.h"

namespace headway::cpu {
namespace {

constexpr size_t kHeadDimMax = 256;  // of SelectionFits

enum class Turn : uint8_t { kOn, kBack };

void Rotate(const RopeTable& table, int64_t row, Turn turn, float* x) {
  const int64_t half = table.rotary_dim / 2;
  const float* cos = table.cos + row * half;
  const float* sin = table.sin + row * half;
  for (int64_t i = 0; i < half; ++i) {
    const selection::Pair turned =
        selection::Rotated({x[i], x[i + half]}, cos[i], turn == Turn::kOn ? sin[i] : -sin[i]);
    x[i] = turned.x;
    x[i + half] = turned.y;
  }
}

// Codes of x, which are then given to `store` one by one; returns their scale.
template <class Store>
float CodeRow(int head_dim, const float* x, const Store& store) {
  uint32_t size = 0;
  for (int i = 0; i < head_dim; ++i) size = std::max(size, selection::SizeBits(x[i]));
  const selection::RowScale row =
      selection::ScaleOf(std::bit_cast<float>(size), selection::kQueryLevels);
  if (row.scale == 0.0f) return 0.0f;
  for (int i = 0; i < head_dim; ++i) store(i, selection::Nearest(x[i] * row.inverse));
  return row.scale;
}

}  // namespace

selection::QueryFactors CodeQuery(SummaryKind kind, const PooledRows& rows, int head_dim,
                                  float scale, int16_t* codes) {
  std::array<float, kHeadDimMax> mean = {}, squares = {}, turned;
  for (int64_t row = 0; row < rows.rows; ++row) {
    std::copy_n(rows.q + row * rows.stride, head_dim, turned.data());
    Rotate(rows.turn, row, Turn::kOn, turned.data());
    for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
      mean[i] += turned[i];
      squares[i] += turned[i] * turned[i];
    }
  }
  const float share = 1.0f / static_cast<float>(rows.rows);
  for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
    mean[i] *= share;
    squares[i] *= share;
  }
  int16_t* second = codes + QueryRow(head_dim);
  std::fill_n(codes, 2 * QueryRow(head_dim), int16_t{0});
  if (kind == SummaryKind::kBoxes) {
    // q times the least where q is negative, and q times the greatest elsewhere: the larger one.
    const float q_scale = CodeRow(head_dim, mean.data(), [&](int i, int32_t code) {
      (code < 0 ? codes : second)[i] = static_cast<int16_t>(code);
    });
    return selection::MomentFactors(q_scale, 0.0f, scale);
  }
  const float q_scale = CodeRow(
      head_dim, mean.data(), [&](int i, int32_t code) { codes[i] = static_cast<int16_t>(code); });
  if (kind == SummaryKind::kPairs) {
    std::copy_n(codes, head_dim, second);
    return selection::MomentFactors(q_scale, 0.0f, 0.5f * scale);
  }
  const float square_scale = CodeRow(head_dim, squares.data(), [&](int i, int32_t code) {
    second[i] = static_cast<int16_t>(code);
  });
  return selection::MomentFactors(q_scale, square_scale, scale);
}

void TurnQuery(const PooledRows& rows, int head_dim, float* to) {
  std::copy_n(rows.q, head_dim, to);
  Rotate(rows.turn, 0, Turn::kOn, to);
}

void TurnKeysBack(const PageFormat& format, const PageSlots& slots, const RopeTable& table,
                  int64_t row, float* to) {
  for (int64_t i = 0; i < slots.count; ++i, to += format.head_dim) {
    const int64_t slot = slots.first + i;
    if (slots.params != nullptr) {
      std::array<double, kHeadDimMax> exact;
      DecodeKeyRow(format, slots.page, slots.params, slot, exact.data());
      std::copy_n(exact.data(), format.head_dim, to);  // rounded here
    } else {
      for (int64_t channel = 0; channel < format.head_dim; ++channel) {
        to[channel] = LoadAsFloat(slots.page, slot * format.head_dim + channel, format.dtype);
      }
    }
    Rotate(table, row + i, Turn::kBack, to);
  }
}

}  // namespace headway::cpu
