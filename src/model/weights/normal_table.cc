#include "model/weights/normal_table.h"

#include <cstring>

#include "base/half.h"
#include "base/random.h"

namespace headway {

namespace {
constexpr size_t kEntries = size_t{1} << 16;
}  // namespace

NormalTable::NormalTable(DType dtype, float deviation)
    : dtype_(dtype), bytes_(kEntries * DTypeBytes(dtype)) {
  Random random(1);
  for (size_t i = 0; i < kEntries; ++i) {
    StoreFloat(bytes_.data(), static_cast<int64_t>(i), dtype, deviation * random.Normal());
  }
}

void NormalTable::Fill(uint64_t seed, std::byte* to, int64_t count) const {
  const size_t width = DTypeBytes(dtype_);
  Random random(seed);
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i, bits >>= 16) {
    if (i % 4 == 0) bits = random.Next();
    const std::byte* entry = bytes_.data() + (bits & 0xFFFFu) * width;
    if (width == 2) {
      std::memcpy(to + i * 2, entry, 2);
    } else {
      std::memcpy(to + i * 4, entry, 4);
    }
  }
}

}  // namespace headway
