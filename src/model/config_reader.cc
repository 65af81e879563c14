#include "model/config_reader.h"

#include <fmt/format.h>

#include "base/json/json.h"

namespace headway {

namespace {

std::string Shown(const nlohmann::json& value) {
  // A list or an object may be nested so deep that printing it would exhaust the stack.
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return Printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace

const nlohmann::json* ConfigReader::Find(const char* key) const {
  auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::HasKey(const char* key) const { return object_.contains(key); }

int64_t ConfigReader::Int(const char* key, int64_t low, int64_t high,
                          std::optional<int64_t> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(fmt::format("no {}", key));
    return fallback.value_or(low);
  }
  // As unsigned, what exceeds int64 would turn negative.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    Fail(fmt::format("{} is {}, not a whole number from {} to {}", key, Shown(*value), low, high));
    return low;
  }
  return value->get<int64_t>();
}

double ConfigReader::Number(const char* key, double low, double high,
                            std::optional<double> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Fail(fmt::format("no {}", key));
    return fallback.value_or(low);
  }
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    Fail(fmt::format("{} is {}, not a number from {} to {}", key, Shown(*value), low, high));
    return low;
  }
  return value->get<double>();
}

std::optional<double> ConfigReader::MaybeNumber(const char* key, double low, double high) {
  if (Find(key) == nullptr) return std::nullopt;
  return Number(key, low, high, std::nullopt);
}

bool ConfigReader::Bool(const char* key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(fmt::format("{} is neither true nor false", key));
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::String(const char* key, const char* fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Fail(fmt::format("{} is not a string", key));
    return fallback;
  }
  return value->get<std::string>();
}

void ConfigReader::Fail(const std::string& what, StatusCode code) {
  if (status_.ok()) status_ = Status(code, fmt::format("{}: {}", where_, what));
}

void ConfigReader::Adopt(const Status& status) {
  if (status_.ok()) status_ = status;
}

}  // namespace headway
