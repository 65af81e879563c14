// Compiled without contraction: products of scales and codes are exact in f32, and each sum is
// rounded once.
#include "kernels/decoded_rows.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "base/fp8.h"
#include "base/half.h"
#include "kernels/lossless_codec.h"

namespace headway {
namespace {

constexpr std::array<float, 256> kE4M3 = [] {
  std::array<float, 256> numbers = {};
  for (size_t code = 0; code < numbers.size(); ++code) {
    numbers[code] = E4M3ToFloat(static_cast<uint8_t>(code));
  }
  return numbers;
}();

// Elements [begin, begin + codes.size()) of a row of codes; `begin` is even.
void LoadCodes(Encoding encoding, const uint8_t* row, int64_t begin, std::span<float> codes) {
  const auto count = std::ssize(codes);
  switch (encoding) {
    case Encoding::kInt8:
      for (int64_t i = 0; i < count; ++i) codes[static_cast<size_t>(i)] = row[begin + i];
      return;
    case Encoding::kFp8E4M3:
      for (int64_t i = 0; i < count; ++i) codes[static_cast<size_t>(i)] = kE4M3[row[begin + i]];
      return;
    case Encoding::kInt4:
      for (int64_t i = 0; i < count; i += 2) {
        const uint8_t pair = row[(begin + i) / 2];
        codes[static_cast<size_t>(i)] = static_cast<float>(pair & 0xF);
        codes[static_cast<size_t>(i) + 1] = static_cast<float>(pair >> 4);
      }
      return;
    case Encoding::kNone:
    case Encoding::kLossless:
      break;
  }
  HEADWAY_CHECK(false);
}

float ParamAt(const std::byte* params, int64_t index) {
  return LoadAsFloat(params, index, DType::kBF16);
}

void Store(DType dtype, std::span<const float> numbers, int64_t begin, std::byte* row) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    StoreFloat(row, begin + static_cast<int64_t>(i), dtype, numbers[i]);
  }
}

// apply(begin, codes) makes numbers of the codes of each group of values, [begin, begin + size).
template <typename Apply>
void DecodeRow(const PageFormat& format, const std::byte* codes, int64_t slot, std::byte* row,
               const Apply& apply) {
  const auto* of_row = reinterpret_cast<const uint8_t*>(codes) +
                       slot * EncodedBytes(format.encoding, format.dtype, format.head_dim);
  std::array<float, kValueGroup> numbers;
  for (int64_t begin = 0; begin < format.head_dim; begin += kValueGroup) {
    const std::span<float> some(
        numbers.data(), static_cast<size_t>(std::min(kValueGroup, format.head_dim - begin)));
    LoadCodes(format.encoding, of_row, begin, some);
    apply(begin, some);
    Store(format.dtype, some, begin, row);
  }
}

}  // namespace

void DecodeKeySlot(const PageFormat& format, const std::byte* codes, const std::byte* params,
                   int64_t slot, std::byte* row) {
  if (format.encoding == Encoding::kLossless) {
    return lossless::DecodeRow(format, codes, params, slot, reinterpret_cast<uint16_t*>(row));
  }
  DecodeRow(format, codes, slot, row, [&](int64_t begin, std::span<float> numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int64_t channel = begin + static_cast<int64_t>(i);
      numbers[i] =
          ParamAt(params, format.head_dim + channel) + ParamAt(params, channel) * numbers[i];
    }
  });
}

void DecodeValueSlot(const PageFormat& format, const std::byte* codes, const std::byte* params,
                     int64_t slot, std::byte* row) {
  const std::byte* of_values = params + KeyParamBytes(format);
  if (format.encoding == Encoding::kLossless) {
    return lossless::DecodeRow(format, codes, of_values, slot, reinterpret_cast<uint16_t*>(row));
  }
  const int64_t zeros = ValueGroups(format) * format.page_slots;
  DecodeRow(format, codes, slot, row, [&](int64_t begin, std::span<float> numbers) {
    const int64_t group = begin / kValueGroup * format.page_slots + slot;
    const float scale = ParamAt(of_values, group), zero = ParamAt(of_values, zeros + group);
    for (float& number : numbers) number = zero + scale * number;
  });
}

}  // namespace headway
