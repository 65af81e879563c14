// Filters on numbers.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "text/template/filters.h"
#include "text/template/format.h"
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

// What reading a number may come to.
enum class Parsed { kOk, kNotANumber, kTooLarge };

// Digits without the underscores that Python allows between two of them; false for others.
bool DropUnderscores(std::string_view text, std::string* digits) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      *digits += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<uint8_t>(text[at])) != 0;
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return false;
  }
  return true;
}

Parsed ParseInt(std::string_view text, int64_t base, int64_t* value) {
  text = unicode::Strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(std::tolower(static_cast<uint8_t>(text[1])));
    const int64_t named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  std::string digits;
  if (text.empty() || !DropUnderscores(text, &digits)) return Parsed::kNotANumber;
  if (base == 0) {
    // Only zeros may begin with a zero.
    if (digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      return Parsed::kNotANumber;
    }
    base = 10;
  }
  uint64_t magnitude = 0;
  const auto end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, magnitude, static_cast<int>(base));
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return Parsed::kNotANumber;
  const uint64_t limit = uint64_t{1} << 63;
  if (result.ec != std::errc() || magnitude > limit || (magnitude == limit && !negative)) {
    return Parsed::kTooLarge;
  }
  *value = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
  return Parsed::kOk;
}

bool ParseFloat(std::string_view text, double* value) {
  text = unicode::Strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits;
  if (!DropUnderscores(text, &digits)) return false;
  const std::string lower = unicode::ToLower(digits);
  if (lower == "inf" || lower == "infinity") {
    *value = INFINITY;
  } else if (lower == "nan") {
    *value = NAN;
  } else {
    if (lower.empty() || lower.find_first_not_of("0123456789.e+-") != std::string::npos) {
      return false;
    }
    const auto end = lower.data() + lower.size();
    const auto result = std::from_chars(lower.data(), end, *value);
    if (result.ptr != end || result.ec == std::errc::invalid_argument) return false;
    if (result.ec == std::errc::result_out_of_range) {
      // from_chars does not say on which side; strtod does.
      *value = std::strtod(lower.c_str(), nullptr);
    }
  }
  if (negative) *value = -*value;
  return true;
}

// int(float); a float that is no finite number is `kTooLarge` (infinite) or `kNotANumber`.
Parsed FloatToInt(double real, int64_t* value) {
  if (std::isnan(real)) return Parsed::kNotANumber;
  if (std::abs(real) >= 0x1p63) return Parsed::kTooLarge;
  *value = static_cast<int64_t>(real);
  return Parsed::kOk;
}

Value IntFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "int", {"default", "base"}, 0);
  int64_t base = 10;
  if (!bound.ok() || (bound.has(1) && !AsIndex(rt, bound[1], &base))) return {};
  const Value fallback = bound.Or(0, Value::Int(0));
  if (self.integral()) return Value::Int(self.integer());
  if (self.undefined()) return rt.FailUndefined(self);
  int64_t value = 0;
  Parsed parsed = Parsed::kNotANumber;
  if (self.is(Kind::kFloat)) {
    if (std::isinf(self.real())) return rt.Fail("cannot convert infinity to an int");
    parsed = FloatToInt(self.real(), &value);
  } else if (self.string()) {
    if (base < 0 || base == 1 || base > 36) return fallback;
    parsed = ParseInt(self.text(), base, &value);
    double real = 0.0;
    if (parsed == Parsed::kNotANumber && ParseFloat(self.text(), &real) && std::isfinite(real)) {
      parsed = FloatToInt(real, &value);  // so that "42.23"|int is 42
    }
  }
  if (parsed == Parsed::kTooLarge) {
    return rt.Fail(StatusCode::kUnsupported, "an integer does not fit in 64 bits");
  }
  return parsed == Parsed::kOk ? Value::Int(value) : fallback;
}

Value FloatFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "float", {"default"}, 0);
  if (!bound.ok()) return {};
  if (self.number()) return Value::Float(self.AsDouble());
  if (self.undefined()) return rt.FailUndefined(self);
  double value = 0.0;
  if (self.string() && ParseFloat(self.text(), &value)) return Value::Float(value);
  return bound.Or(0, Value::Float(0.0));
}

// --- round ---

Value RoundInt(Runtime& rt, int64_t value, int64_t precision) {
  constexpr int64_t kDigits = 18;  // of any power of ten in 64 bits
  if (precision >= 0) return Value::Int(value);
  if (-precision > kDigits) return Value::Int(0);
  int64_t unit = 1;
  for (int64_t i = 0; i < -precision; ++i) unit *= 10;
  int64_t quotient = value / unit;
  const int64_t twice = 2 * std::abs(value % unit);
  // Half goes to the even neighbour.
  if (twice > unit || (twice == unit && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
  return Binary(rt, BinaryOp::kMul, Value::Int(quotient), Value::Int(unit));
}

double RoundDouble(double value, int64_t precision) {
  constexpr int64_t kMaxDigits = 323;  // beyond which a double does not change
  if (!std::isfinite(value) || precision > kMaxDigits) return value;
  if (precision < -kMaxDigits) return std::copysign(0.0, value);
  if (precision >= 0) return std::strtod(FixedDigits(value, precision).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / unit) * unit;
}

Value RoundTowards(Runtime& rt, const Value& self, int64_t precision, bool up) {
  // func(value * 10**precision) / 10**precision, of which the first is an int in Python.
  const Value unit = Binary(rt, BinaryOp::kPow, Value::Int(10), Value::Int(precision));
  const Value scaled = Binary(rt, BinaryOp::kMul, self, unit);
  if (rt.failed()) return {};
  Value whole = scaled;
  if (scaled.is(Kind::kFloat)) {
    int64_t value = 0;
    const double real = up ? std::ceil(scaled.real()) : std::floor(scaled.real());
    if (FloatToInt(real, &value) != Parsed::kOk) return rt.Fail("a float is too large to round");
    whole = Value::Int(value);
  }
  return Binary(rt, BinaryOp::kDiv, whole, unit);
}

Value RoundFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "round", {"precision", "method"}, 0);
  int64_t precision = 0;
  if (!bound.ok() || (bound.has(0) && !AsIndex(rt, bound[0], &precision))) return {};
  const Value method = bound.Or(1, Value::Constant("common"));
  const std::string name = method.string() ? method.text() : "";
  if (name != "common" && name != "ceil" && name != "floor") {
    return rt.Fail("method must be common, ceil or floor");
  }
  if (!self.number()) return rt.Fail(fmt::format("round needs a number, not '{}'", TypeName(self)));
  if (name != "common") return RoundTowards(rt, self, precision, name == "ceil");
  if (self.integral()) return RoundInt(rt, self.integer(), precision);
  return Value::Float(RoundDouble(self.real(), precision));
}

constexpr NamedFunction kFilters[] = {
    {"abs", AbsFilter}, {"filesizeformat", nullptr}, {"float", FloatFilter},
    {"int", IntFilter}, {"round", RoundFilter},
};

}  // namespace

std::span<const NamedFunction> NumberFilters() { return kFilters; }

}  // namespace headway::jinja
