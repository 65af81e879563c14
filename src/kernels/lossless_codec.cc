#include "kernels/lossless_codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace headway::lossless {
namespace {

uint16_t Load16(const std::byte* from, int64_t index) {
  uint16_t value = 0;
  std::memcpy(&value, from + 2 * index, sizeof(value));
  return value;
}

void Store16(std::byte* to, int64_t index, uint16_t value) {
  std::memcpy(to + 2 * index, &value, sizeof(value));
}

int BaseOf(const PageFormat& format, const std::byte* page, int64_t slot) {
  int base = 0;
  for (int64_t i = 0; i < format.head_dim; ++i) {
    base = std::max(base, ExponentOf(Load16(page, slot * format.head_dim + i)));
  }
  return base;
}

}  // namespace

bool EncodeHalf(const PageFormat& format, const std::byte* page, std::byte* codes,
                std::byte* params) {
  HEADWAY_CHECK(Takes(format));
  const int64_t dim = format.head_dim;
  const int64_t entries = EscapeEntries(format.page_slots, dim);
  int64_t escapes = 0;
  std::memset(params, 0xFF, static_cast<size_t>(ExponentsAt(entries)));
  std::memset(params + ExponentsAt(entries), 0,
              static_cast<size_t>(HalfParamBytes(format.page_slots, dim) - ExponentsAt(entries)));
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const int base = BaseOf(format, page, slot);
    params[BasesAt(entries) + slot] = static_cast<std::byte>(base);
    std::byte* row = codes + slot * dim * 3 / 2;
    for (int64_t i = 0; i < dim; ++i) {
      const int64_t position = slot * dim + i;
      const uint16_t bits = Load16(page, position);
      const int exponent = ExponentOf(bits);
      row[i] = static_cast<std::byte>(CodeOf(bits));
      std::byte& pair = row[dim + i / 2];
      const int distance = DistanceOf(exponent, base);
      pair = i % 2 == 0 ? static_cast<std::byte>(distance)
                        : pair | static_cast<std::byte>(distance << 4);
      if (!Escapes(exponent, base)) continue;
      if (escapes < entries) {
        Store16(params, escapes, static_cast<uint16_t>(position));
        params[ExponentsAt(entries) + escapes] = static_cast<std::byte>(exponent);
      }
      ++escapes;
    }
  }
  if (escapes <= entries) return true;
  std::memset(params, 0xFF, static_cast<size_t>(ExponentsAt(entries)));
  std::memset(params + ExponentsAt(entries), 0, static_cast<size_t>(entries));
  Store16(params, 0, kUnfit);
  return false;
}

void DecodeRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
               int64_t slot, uint16_t* row) {
  const int64_t dim = format.head_dim;
  const int64_t entries = EscapeEntries(format.page_slots, dim);
  if (Load16(params, 0) == kUnfit) {
    std::fill_n(row, dim, kUnfitBits);
    return;
  }
  const auto* of_row = reinterpret_cast<const uint8_t*>(codes) + slot * dim * 3 / 2;
  const auto base = static_cast<int>(params[BasesAt(entries) + slot]);
  for (int64_t i = 0; i < dim; ++i) {
    const int distance = of_row[dim + i / 2] >> (i % 2 * 4) & 0xF;
    // Of damaged parameters the difference may be below 0; its low 8 bits are an exponent.
    row[i] = BitsOf(of_row[i], (base - distance) & 0xFF);
  }
  for (int64_t e = 0; e < entries; ++e) {
    const int64_t i = Load16(params, e) - slot * dim;
    if (i < 0 || i >= dim) continue;
    row[i] = BitsOf(of_row[i], static_cast<int>(params[ExponentsAt(entries) + e]));
  }
}

}  // namespace headway::lossless
