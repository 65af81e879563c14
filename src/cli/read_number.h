// A number of a command line.
#ifndef HEADWAY_CLI_READ_NUMBER_H_
#define HEADWAY_CLI_READ_NUMBER_H_

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <type_traits>

#include "headway/status.h"

namespace headway::cli {

// From `low` to `high`; kInvalidArgument says so for another text.
template <typename T>
Status ReadNumber(const std::string& text, T low, T high, T* target) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  // A NaN is in no range.
  if (at == end && error == std::errc() && value >= low && value <= high) {
    *target = value;
    return OkStatus();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("'{}' is not a {} from {} to {}", text,
                            std::is_floating_point_v<T> ? "number" : "whole number", low, high));
}

}  // namespace headway::cli

#endif  // HEADWAY_CLI_READ_NUMBER_H_
