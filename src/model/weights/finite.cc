#include "model/weights/finite.h"

#include <cstring>

namespace headway {

namespace {

// True when an element has the exponent of infinities and NaNs. No early exit: the loop is one
// that compilers turn into vector code.
template <typename Bits>
bool HasExponent(const std::byte* data, int64_t count, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    found |= static_cast<Bits>((bits & exponent) == exponent);
  }
  return found != 0;
}

}  // namespace

bool HasNonFinite(const std::byte* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return HasExponent<uint32_t>(data, count, 0x7F800000u);
    case DType::kF16:
      return HasExponent<uint16_t>(data, count, 0x7C00u);
    case DType::kBF16:
      return HasExponent<uint16_t>(data, count, 0x7F80u);
  }
  return false;
}

}  // namespace headway
