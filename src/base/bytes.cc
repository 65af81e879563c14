#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace headway {
namespace {

struct Unit {
  std::string_view name;  // lower case
  double bytes;
};

constexpr double kDecimal = 1000.0;

constexpr std::array<Unit, 16> kUnits = {{
    {"", 1.0},
    {"b", 1.0},
    {"k", 0x1p10},
    {"kib", 0x1p10},
    {"kb", kDecimal},
    {"m", 0x1p20},
    {"mib", 0x1p20},
    {"mb", kDecimal* kDecimal},
    {"g", 0x1p30},
    {"gib", 0x1p30},
    {"gb", kDecimal* kDecimal* kDecimal},
    {"t", 0x1p40},
    {"tib", 0x1p40},
    {"tb", kDecimal* kDecimal* kDecimal* kDecimal},
    {"p", 0x1p50},
    {"pib", 0x1p50},
}};

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
  const Unit* found = nullptr;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == unit) found = &candidate;
  }
  if (found == nullptr) return Malformed(text);

  const Status too_large(StatusCode::kInvalidArgument,
                         fmt::format("'{}' is larger than any size that Headway can count", text));
  // Whole numbers go the exact way: a double holds no more than 53 bits.
  int64_t whole = 0;
  const char* end = number.data() + number.size();
  const auto as_int = std::from_chars(number.data(), end, whole);
  if (as_int.ptr == end && as_int.ec == std::errc::result_out_of_range) return too_large;
  if (as_int.ptr == end && as_int.ec == std::errc()) {
    int64_t bytes = 0;
    if (!CheckedMul(whole, static_cast<int64_t>(found->bytes), &bytes)) return too_large;
    return bytes;
  }
  double value = 0.0;
  const auto as_double = std::from_chars(number.data(), end, value);
  if (as_double.ptr != end || as_double.ec != std::errc()) return Malformed(text);
  const double bytes = std::floor(value * found->bytes);
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

bool CheckedAdd(int64_t a, int64_t b, int64_t* result) {
  return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, result);
}

}  // namespace headway
