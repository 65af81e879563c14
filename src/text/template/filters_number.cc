// Filters on numbers.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "text/template/filters.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

Value AbsFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "abs", {}, 0);
  if (self.integral()) return self.integer() < 0 ? Negate(rt, self) : Value::Int(self.integer());
  if (self.is(Kind::kFloat)) return Value::Float(std::abs(self.real()));
  return rt.Fail(fmt::format("abs needs a number, not '{}'", TypeName(self)));
}

// --- int and float ---

enum class Parsed { kOk, kNotANumber, kTooLarge };

// A decimal number as Python reads it: with white space around it, and underscores between digits.
template <typename T>
Parsed Parse(std::string_view given, T* value) {
  given = unicode::Strip(given);
  if (given.starts_with('+') && given.size() > 1 && given[1] != '-') given.remove_prefix(1);
  std::string text;
  const auto digit = [&](size_t at) {
    return at < given.size() && given[at] >= '0' && given[at] <= '9';
  };
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) text += given[i];
  }
  if (text.empty() || text.back() == ')') return Parsed::kNotANumber;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) {
    return Parsed::kNotANumber;
  }
  return error == std::errc() ? Parsed::kOk : Parsed::kTooLarge;
}

Value FloatToInt(Runtime& rt, double real, const Value& fallback) {
  if (std::isnan(real)) return fallback;
  if (std::abs(real) < 0x1p63) return Value::Int(static_cast<int64_t>(real));
  return rt.Fail(StatusCode::kUnsupported, "an integer does not fit in 64 bits");
}

Value IntFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "int", {"default", "!base"}, 0);
  if (!bound.ok()) return {};
  const Value fallback = bound.Or(0, Value::Int(0));
  if (self.integral()) return Value::Int(self.integer());
  if (self.undefined()) return rt.FailUndefined(self);
  if (self.is(Kind::kFloat)) return FloatToInt(rt, self.real(), fallback);
  if (!self.string()) return fallback;
  int64_t value = 0;
  double real = 0.0;
  const Parsed parsed = Parse(self.text(), &value);
  if (parsed == Parsed::kOk) return Value::Int(value);
  if (parsed == Parsed::kTooLarge) return FloatToInt(rt, INFINITY, fallback);
  // So that "42.23"|int is 42.
  const bool finite = Parse(self.text(), &real) == Parsed::kOk && std::isfinite(real);
  return finite ? FloatToInt(rt, real, fallback) : fallback;
}

Value FloatFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "float", {"default"}, 0);
  if (!bound.ok()) return {};
  if (self.number()) return Value::Float(self.AsDouble());
  if (self.undefined()) return rt.FailUndefined(self);
  double value = 0.0;
  if (self.string() && Parse(self.text(), &value) == Parsed::kOk) return Value::Float(value);
  return bound.Or(0, Value::Float(0.0));
}

Value RoundFilter(Runtime& rt, const Value& self, const Args& args) {
  constexpr int64_t kMaxDigits = 323;  // beyond which a double does not change
  const Bound bound(rt, args, "round", {"precision", "!method"}, 0);
  int64_t precision = 0;
  if (!bound.ok() || (bound.has(0) && !AsIndex(rt, bound[0], &precision))) return {};
  if (!self.number()) return rt.Fail(fmt::format("round needs a number, not '{}'", TypeName(self)));
  if (precision < 0) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not round to tens and hundreds");
  }
  if (self.integral()) return Value::Int(self.integer());
  if (!std::isfinite(self.real()) || precision > kMaxDigits) return self;
  const std::string digits = fmt::format("{:.{}f}", self.real(), static_cast<int>(precision));
  return Value::Float(std::strtod(digits.c_str(), nullptr));
}

constexpr NamedFunction kFilters[] = {
    {"abs", AbsFilter}, {"float", FloatFilter}, {"int", IntFilter}, {"round", RoundFilter}};

}  // namespace

std::span<const NamedFunction> NumberFilters() { return kFilters; }

}  // namespace headway::jinja
