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

// What a half's lists hold so far.
struct Escaped {
  std::byte* params;
  int64_t entries;
  int64_t count = 0;

  void Clear() {
    std::memset(params, 0xFF, static_cast<size_t>(ExponentsAt(entries)));
    std::memset(params + ExponentsAt(entries), 0, static_cast<size_t>(entries));
  }
  void Add(int64_t position, uint16_t bits) {
    if (count < entries) {
      Store(params, count, static_cast<uint16_t>(position));
      params[ExponentsAt(entries) + count] = static_cast<std::byte>(ExponentOf(bits));
    }
    ++count;
  }
};

}  // namespace

bool EncodeHalf(const PageFormat& format, const std::byte* page, std::byte* codes,
                std::byte* params) {
  HEADWAY_CHECK(Takes(format));
  const int64_t dim = format.head_dim;
  const int64_t row_bytes = dim * 3 / 2;
  Escaped escaped = {params, EscapeEntries(format.page_slots, dim)};
  std::byte* floors = params + FloorsAt(escaped.entries);
  escaped.Clear();
  std::fill(floors, params + HalfParamBytes(format.page_slots, dim), std::byte{0});
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const std::byte* numbers = page + slot * dim * 2;
    const int floor = EncodeRow(dim, numbers, codes + slot * row_bytes);
    floors[slot] = static_cast<std::byte>(floor);
    for (int64_t i = 0; i < dim; ++i) {
      const auto bits = Load<uint16_t>(numbers, i);
      if (Escapes(bits, floor)) escaped.Add(slot * dim + i, bits);
    }
  }
  if (escaped.count <= escaped.entries) return true;
  escaped.Clear();
  Store(params, 0, kUnfit);
  const std::vector<uint16_t> nothing(static_cast<size_t>(dim), kUnfitBits);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const auto* numbers = reinterpret_cast<const std::byte*>(nothing.data());
    floors[slot] = static_cast<std::byte>(EncodeRow(dim, numbers, codes + slot * row_bytes));
  }
  return false;
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
