// Byte counts: parsing what a user writes, printing what a user reads, and sizes that cannot wrap.
#ifndef HEADWAY_BASE_BYTES_H_
#define HEADWAY_BASE_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "headway/status.h"

namespace headway {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// "8MiB", "1.5GiB", "512k", "4096": binary units with or without the "iB"; "8MB" is decimal.
Result<int64_t> ParseBytes(std::string_view text);

// "8.0 MiB"; below 1 KiB "17 B".
std::string FormatBytes(int64_t bytes);

// a * b, false when the result does not fit or an operand is negative.
[[nodiscard]] bool CheckedMul(int64_t a, int64_t b, int64_t* result);

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t multiple) { return CeilDiv(a, multiple) * multiple; }

}  // namespace headway

#endif  // HEADWAY_BASE_BYTES_H_
