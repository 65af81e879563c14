#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace headway {
namespace {

// Bytes of a unit in lower case: a letter alone or with "ib" is a power of 1024, with "b" of 1000.
// 0 when it is none.
int64_t UnitBytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgtp").find(unit.front()) + 1;
  if (power == 0) return 0;
  const std::string_view rest = unit.substr(1);
  if (!rest.empty() && rest != "ib" && rest != "b") return 0;
  const int64_t base = rest == "b" ? 1000 : 1024;
  int64_t bytes = 1;
  for (size_t i = 0; i < power; ++i) bytes *= base;
  return bytes;
}

std::string_view Strip(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool IsNumberChar(char c) { return (c >= '0' && c <= '9') || c == '.'; }

Status Malformed(std::string_view text) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("'{}' is not a size; write for example 512MiB, 1.5GiB or 4096", text));
}

}  // namespace

Result<int64_t> ParseBytes(std::string_view text) {
  const std::string_view stripped = Strip(text);
  size_t digits = 0;
  while (digits < stripped.size() && IsNumberChar(stripped[digits])) ++digits;
  const std::string_view number = stripped.substr(0, digits);
  const std::string_view suffix = Strip(stripped.substr(digits));
  if (suffix.size() > 3) return Malformed(text);
  std::string unit(suffix);
  for (char& c : unit) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const int64_t unit_bytes = UnitBytes(unit);
  if (unit_bytes == 0) return Malformed(text);

  const Status too_large(StatusCode::kInvalidArgument,
                         fmt::format("'{}' is larger than any size that Headway can count", text));
  // Whole numbers go the exact way: a double holds no more than 53 bits.
  int64_t whole = 0;
  const char* end = number.data() + number.size();
  const auto as_int = std::from_chars(number.data(), end, whole);
  if (as_int.ptr == end && as_int.ec == std::errc::result_out_of_range) return too_large;
  if (as_int.ptr == end && as_int.ec == std::errc()) {
    int64_t bytes = 0;
    if (!CheckedMul(whole, unit_bytes, &bytes)) return too_large;
    return bytes;
  }
  double value = 0.0;
  const auto as_double = std::from_chars(number.data(), end, value);
  if (as_double.ptr != end || as_double.ec != std::errc()) return Malformed(text);
  const double bytes = std::floor(value * static_cast<double>(unit_bytes));
  if (!(bytes < 0x1p63)) return too_large;
  return static_cast<int64_t>(bytes);
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024.0;
  size_t unit = 0;
  // 1023.95 would print as "1024.0": the next unit takes over from there.
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

bool CheckedMul(int64_t a, int64_t b, int64_t* result) {
  return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, result);
}

}  // namespace headway
