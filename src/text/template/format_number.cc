// Numbers and texts by a FormatSpec.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/utf8.h"
#include "text/template/format.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

std::string ToChars(double value, std::chars_format format, int64_t precision) {
  // The largest double has 309 digits before the point.
  char buffer[kMaxPrecision + 400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format,
                                 static_cast<int>(std::min(precision, kMaxPrecision)));
  return std::string(buffer, end.ptr);
}

// `general` digits as %g, but never without a point: what Python writes for a float with a
// precision and no type.
std::string ShortDigits(double value, int64_t precision) {
  precision = std::max<int64_t>(precision, 1);
  std::string digits = ToChars(value, std::chars_format::scientific, precision - 1);
  const size_t e = digits.find('e');
  const int exponent = std::atoi(digits.c_str() + e + 1);
  std::string result;
  if (exponent < -4 || exponent + 1 > precision - 1) {
    result = digits.substr(0, e);
    if (result.find('.') != std::string::npos) {
      result.erase(result.find_last_not_of('0') + 1);
      if (result.back() == '.') result.pop_back();
    }
    return result + digits.substr(e);
  }
  result = ToChars(value, std::chars_format::general, precision);
  return result.find('.') == std::string::npos ? result + ".0" : result;
}

std::string Grouped(const std::string& digits, char separator, size_t every) {
  // Only the digits before a point or an exponent.
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string result;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % every == 0) result += separator;
    result += digits[i];
  }
  return result + digits.substr(whole);
}

// sign + prefix + body, padded to the width.
Value Finish(Runtime& rt, const std::string& sign, const std::string& body, const FormatSpec& spec,
             char own_align) {
  const int64_t length = CountChars(sign) + CountChars(body);
  const int64_t pad = std::max<int64_t>(0, spec.width - length);
  if (pad > rt.max_output() && !rt.CheckSize(rt.max_output() + 1)) return {};
  if (!rt.CheckSize(pad * static_cast<int64_t>(spec.fill.size()))) return {};
  const char align = spec.align == 0 ? own_align : spec.align;
  const int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
  const int64_t middle = align == '=' ? pad : 0;
  std::string result;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) result += spec.fill;
  };
  fill(left);
  result += sign;
  fill(middle);
  result += body;
  fill(pad - left - middle);
  return rt.Str(std::move(result));
}

std::string SignOf(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

Value FailType(Runtime& rt, char type, std::string_view of) {
  return rt.Fail(fmt::format("unknown format code '{}' for {}", std::string(1, type), of));
}

std::string FloatBody(double value, const FormatSpec& spec) {
  const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case 'e':
    case 'E':
      return ToChars(value, std::chars_format::scientific, precision);
    case 'f':
    case 'F':
      return ToChars(value, std::chars_format::fixed, precision);
    case '%':
      return ToChars(value * 100, std::chars_format::fixed, precision) + "%";
    default:
      return ToChars(value, std::chars_format::general, std::max<int64_t>(precision, 1));
  }
}

}  // namespace

std::string FixedDigits(double value, int64_t precision) {
  return ToChars(value, std::chars_format::fixed, precision);
}

Value FormatInt(Runtime& rt, int64_t value, const FormatSpec& spec) {
  const char type = spec.type == 0 ? 'd' : spec.type;
  if (std::string_view("eEfFgG%").find(type) != std::string_view::npos) {
    return FormatFloat(rt, static_cast<double>(value), spec);
  }
  const bool negative = value < 0;
  const uint64_t magnitude =
      negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits;
  std::string prefix;
  switch (type) {
    case 'd':
    case 'i':
    case 'u':
      digits = fmt::format("{}", magnitude);
      break;
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      break;
    default:
      return FailType(rt, type, "an int");
  }
  if (spec.alternate && std::string_view("xXob").find(type) != std::string_view::npos) {
    prefix = std::string("0") + type;
  }
  if (spec.precision > 0) {  // "%.5d": at least so many digits
    const int64_t missing = spec.precision - static_cast<int64_t>(digits.size());
    if (!rt.CheckSize(missing)) return {};
    if (missing > 0) digits.insert(0, static_cast<size_t>(missing), '0');
  }
  if (spec.grouping != 0) digits = Grouped(digits, spec.grouping, type == 'd' ? 3 : 4);
  return Finish(rt, SignOf(negative, spec.sign) + prefix, digits, spec, '>');
}

Value FormatFloat(Runtime& rt, double value, const FormatSpec& spec) {
  if (spec.precision > kMaxPrecision) return rt.Fail("the precision of a format is too large");
  if (spec.alternate) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not have '#' in formats of floats");
  }
  if (spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) == std::string_view::npos) {
    return FailType(rt, spec.type, "a float");
  }
  const double magnitude = std::abs(value);
  std::string body;
  if (!std::isfinite(value)) {
    body = std::isnan(value) ? "nan" : "inf";
    if (spec.type == '%') body += '%';
  } else if (spec.type == 0 && spec.precision >= 0) {
    body = ShortDigits(magnitude, spec.precision);
  } else if (spec.type == 0) {
    std::string repr;
    AppendRepr(rt, Value::Float(magnitude), &repr);
    body = repr;
  } else {
    body = FloatBody(magnitude, spec);
  }
  if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G') body = unicode::ToUpper(body);
  if (spec.grouping != 0) body = Grouped(body, spec.grouping, 3);
  return Finish(rt, SignOf(std::signbit(value) && !std::isnan(value), spec.sign), body, spec, '>');
}

Value FormatText(Runtime& rt, std::string_view text, const FormatSpec& spec) {
  if (spec.type != 0 && spec.type != 's') return FailType(rt, spec.type, "a str");
  if (spec.precision >= 0) text = text.substr(0, CharOffset(text, spec.precision));
  return Finish(rt, "", std::string(text), spec, '<');
}

}  // namespace headway::jinja
