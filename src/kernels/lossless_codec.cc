#include "kernels/lossless_codec.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace headway::lossless {
namespace {

template <typename T>
T Load(const std::byte* from, int64_t index) {
  T value = 0;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}
template <typename T>
void Store(std::byte* to, int64_t index, T value) {
  std::memcpy(to + index * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
}

// The codes of a row whose numbers are given; returns its floor.
int EncodeRow(int64_t dim, const std::byte* numbers, std::byte* row) {
  int largest = 0;
  for (int64_t i = 0; i < dim; ++i) {
    largest = std::max(largest, ExponentOf(Load<uint16_t>(numbers, i)));
  }
  const int floor = FloorOf(largest);
  for (int64_t word = 0; word < dim / 8; ++word) {
    uint32_t tops = 0;
    for (int j = 0; j < 8; ++j) {
      const auto bits = Load<uint16_t>(numbers, word * 8 + j);
      row[word * 8 + j] = static_cast<std::byte>(bits & 0xFF);
      tops |= TopOf(bits, floor, j);
    }
    Store(row + dim, word, tops);
  }
  return floor;
}

}  // namespace

HalfParams::HalfParams(const PageFormat& format, std::byte* params)
    : params_(params), entries_(EscapeEntries(format.page_slots, format.head_dim)) {
  std::byte* const exponents = params + ExponentsAt(entries_);
  std::fill(params, exponents, std::byte{0xFF});
  std::fill(exponents, params + HalfParamBytes(format.page_slots, format.head_dim), std::byte{0});
}

void HalfParams::Escape(int64_t position, uint16_t bits) {
  if (escapes_ < entries_) {
    Store(params_, escapes_, static_cast<uint16_t>(position));
    params_[ExponentsAt(entries_) + escapes_] = static_cast<std::byte>(ExponentOf(bits));
  }
  ++escapes_;
}

bool EncodeHalf(const PageFormat& format, const std::byte* page, std::byte* codes,
                std::byte* params) {
  HEADWAY_CHECK(Takes(format));
  const int64_t dim = format.head_dim;
  const int64_t row_bytes = dim * 3 / 2;
  HalfParams half(format, params);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const std::byte* numbers = page + slot * dim * 2;
    const int floor = EncodeRow(dim, numbers, codes + slot * row_bytes);
    half.SetFloor(slot, floor);
    for (int64_t i = 0; i < dim; ++i) {
      const auto bits = Load<uint16_t>(numbers, i);
      if (Escapes(bits, floor)) half.Escape(slot * dim + i, bits);
    }
  }
  if (half.fits()) return true;
  MakeUnfit(format, codes, params);
  return false;
}

void MakeUnfit(const PageFormat& format, std::byte* codes, std::byte* params) {
  const int64_t dim = format.head_dim;
  HalfParams half(format, params);
  Store(params, 0, kUnfit);
  const std::vector<uint16_t> nothing(static_cast<size_t>(dim), kUnfitBits);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const auto* numbers = reinterpret_cast<const std::byte*>(nothing.data());
    half.SetFloor(slot, EncodeRow(dim, numbers, codes + slot * dim * 3 / 2));
  }
}

void DecodeRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
               int64_t slot, uint16_t* row) {
  const int64_t dim = format.head_dim;
  const int64_t entries = EscapeEntries(format.page_slots, dim);
  const std::byte* of_row = codes + slot * dim * 3 / 2;
  const auto floor = static_cast<int>(params[FloorsAt(entries) + slot]);
  for (int64_t i = 0; i < dim; ++i) {
    row[i] = BitsOf(static_cast<uint8_t>(of_row[i]), Load<uint32_t>(of_row + dim, i / 8), floor,
                    static_cast<int>(i % 8));
  }
  for (int64_t e = 0; e < entries; ++e) {
    const int64_t i = Load<uint16_t>(params, e) - slot * dim;
    if (i < 0 || i >= dim) continue;
    row[i] = WithExponent(row[i], static_cast<int>(params[ExponentsAt(entries) + e]));
  }
}

}  // namespace headway::lossless
