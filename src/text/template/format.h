// Formatting: "..." % values, "...".format(values), and HTML escaping.
#ifndef HEADWAY_TEXT_TEMPLATE_FORMAT_H_
#define HEADWAY_TEXT_TEMPLATE_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "text/template/value.h"

namespace headway::jinja {

// text % values.
Value FormatPercent(Runtime& rt, const Value& text, const Value& values);
// text.format(...).
Value FormatBraces(Runtime& rt, const Value& text, const Args& args);

// jinja2's escape(): Markup of str(value) with &, <, >, ' and " replaced; Markup as it is.
Value Escape(Runtime& rt, const Value& value);

// How one number or text is to be written; the fields of both formatting languages.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;          // '<', '>', '^', '=' (between sign and digits); 0 for the type's own
  char sign = '-';         // '+', ' ' or '-'
  bool alternate = false;  // '#'
  char grouping = 0;       // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Each fails for a type that it does not know; `type` is one that takes such numbers.
Value FormatInt(Runtime& rt, int64_t value, const FormatSpec& spec);
Value FormatFloat(Runtime& rt, double value, const FormatSpec& spec);
Value FormatText(Runtime& rt, std::string_view text, const FormatSpec& spec);

// Digits after the point as C's "%.*f" writes them, for any precision up to kMaxPrecision.
inline constexpr int64_t kMaxPrecision = 1000;
std::string FixedDigits(double value, int64_t precision);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_FORMAT_H_
