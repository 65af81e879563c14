#include "text/template/format.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/utf8.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

bool IsDigitChar(char c) { return c >= '0' && c <= '9'; }

// Reads digits at *at; false when the number is absurd.
bool ReadNumber(Runtime& rt, std::string_view text, size_t* at, int64_t* number) {
  *number = 0;
  while (*at < text.size() && IsDigitChar(text[*at])) {
    *number = *number * 10 + (text[*at] - '0');
    ++*at;
    if (*number > rt.max_output()) {
      rt.Fail("a width or precision of a format is too large");
      return false;
    }
  }
  return true;
}

// repr() with every character beyond ASCII escaped.
std::string AsciiRepr(Runtime& rt, const Value& value) {
  std::string repr;
  AppendRepr(rt, value, &repr);
  std::string ascii;
  for (size_t i = 0; i < repr.size(); i += CharBytes(repr, i)) {
    const auto c = static_cast<uint32_t>(CharAt(repr, i));
    if (c < 0x80) {
      ascii += static_cast<char>(c);
    } else {
      ascii += c < 0x100     ? fmt::format("\\x{:02x}", c)
               : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                             : fmt::format("\\U{:08x}", c);
    }
  }
  return ascii;
}

// --- "..." % values ---

// The values of one % operation: a tuple's items, or one value, or a mapping.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : values_(values) {}

  bool Next(Runtime& rt, Value* value) {
    const size_t size = values_.tuple() ? values_.items().size() : 1;
    if (next_ >= size) {
      rt.Fail("not enough arguments for format string");
      return false;
    }
    *value = values_.tuple() ? values_.items()[next_] : values_;
    ++next_;
    return true;
  }

  bool Named(Runtime& rt, std::string_view name, Value* value) {
    if (!values_.dict()) {
      rt.Fail("format requires a mapping");
      return false;
    }
    const Value* found = values_.entries().FindText(name);
    if (found == nullptr) {
      rt.Fail(fmt::format("the mapping of a format has no '{}'", name));
      return false;
    }
    *value = *found;
    next_ = 1;
    return true;
  }

  // Values that no conversion used are an error, except of what looks like a mapping.
  bool LeftOver() const {
    if (values_.tuple()) return next_ < values_.items().size();
    const bool mapping =
        values_.dict() || values_.list() || values_.undefined() || values_.As<Range>() != nullptr;
    return next_ == 0 && !mapping;
  }

 private:
  const Value values_;
  size_t next_ = 0;
};

void ReadPercentFlags(std::string_view text, size_t* at, FormatSpec* spec) {
  bool zero = false;
  bool left = false;
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (c == '-') {
      left = true;
    } else if (c == '+' || (c == ' ' && spec->sign != '+')) {
      spec->sign = c;
    } else if (c == '#') {
      spec->alternate = true;
    } else if (c == '0') {
      zero = true;
    } else if (c != ' ') {
      break;
    }
  }
  spec->align = left ? '<' : '>';
  if (zero && !left) {
    spec->align = '=';
    spec->fill = "0";
  }
}

bool ReadPercentNumber(Runtime& rt, std::string_view text, PercentValues* values, size_t* at,
                       int64_t* number) {
  if (*at >= text.size() || text[*at] != '*') return ReadNumber(rt, text, at, number);
  ++*at;
  Value value;
  if (!values->Next(rt, &value) || !AsIndex(rt, value, number)) return false;
  if (std::abs(*number) > rt.max_output()) {
    rt.Fail("a width or precision of a format is too large");
    return false;
  }
  return true;
}

Value PercentText(Runtime& rt, const Value& value, bool markup, FormatSpec spec) {
  std::string shown;
  if (spec.type == 's') {
    AppendStr(rt, value, &shown);
  } else if (spec.type == 'r') {
    AppendRepr(rt, value, &shown);
  } else {
    shown = AsciiRepr(rt, value);
  }
  Value text = rt.Str(std::move(shown), value.markup() && spec.type == 's');
  if (markup) text = Escape(rt, text);
  if (rt.failed()) return {};
  spec.type = 's';
  if (spec.align == '=') spec.align = '>';
  spec.fill = " ";
  return FormatText(rt, text.text(), spec);
}

Value PercentInt(Runtime& rt, const Value& value, const FormatSpec& spec) {
  const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
  if (value.integral()) return FormatInt(rt, value.integer(), spec);
  if (decimal && value.is(Kind::kFloat) && std::abs(value.real()) < 0x1p63) {
    return FormatInt(rt, static_cast<int64_t>(value.real()), spec);
  }
  if (value.undefined()) return rt.FailUndefined(value);
  return rt.Fail(fmt::format("%{} needs a number, not '{}'", spec.type, TypeName(value)));
}

Value PercentChar(Runtime& rt, const Value& value, FormatSpec spec) {
  if (!value.string() || CountChars(value.text()) != 1) {
    return rt.Fail(StatusCode::kUnsupported, "%c needs a string of one character");
  }
  spec.type = 's';
  spec.fill = " ";
  if (spec.align == '=') spec.align = '>';
  return FormatText(rt, value.text(), spec);
}

Value PercentOne(Runtime& rt, const Value& value, bool markup, FormatSpec spec) {
  switch (spec.type) {
    case 's':
    case 'r':
    case 'a':
      return PercentText(rt, value, markup, spec);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      return PercentInt(rt, value, spec);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.number()) return rt.Fail("a float is needed by a format");
      return FormatFloat(rt, value.AsDouble(), spec);
    case 'c':
      return PercentChar(rt, value, spec);
    default:
      return rt.Fail("unsupported format character");
  }
}

// The conversion after a '%' at *at; appends what it writes.
bool Convert(Runtime& rt, std::string_view text, bool markup, PercentValues* values, size_t* at,
             std::string* out) {
  std::optional<Value> named;
  if (*at < text.size() && text[*at] == '(') {
    const size_t end = text.find(')', *at);
    if (end == std::string_view::npos) return !rt.Fail("incomplete format key").undefined();
    named.emplace();
    if (!values->Named(rt, text.substr(*at + 1, end - *at - 1), &*named)) return false;
    *at = end + 1;
  }
  FormatSpec spec;
  ReadPercentFlags(text, at, &spec);
  if (!ReadPercentNumber(rt, text, values, at, &spec.width)) return false;
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = -spec.width;
  }
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    if (!ReadPercentNumber(rt, text, values, at, &spec.precision)) return false;
    if (spec.precision < 0) spec.precision = 0;
  }
  while (*at < text.size() && (text[*at] == 'h' || text[*at] == 'l' || text[*at] == 'L')) ++*at;
  if (*at >= text.size()) {
    rt.Fail("incomplete format");
    return false;
  }
  spec.type = text[(*at)++];
  if (spec.type == '%') {
    *out += '%';
    return true;
  }
  Value value;
  if (named.has_value()) {
    value = *named;
  } else if (!values->Next(rt, &value)) {
    return false;
  }
  const Value written = PercentOne(rt, value, markup, spec);
  if (rt.failed()) return false;
  *out += written.text();
  return rt.CheckSize(static_cast<int64_t>(out->size()));
}

}  // namespace

Value FormatPercent(Runtime& rt, const Value& text_value, const Value& values) {
  const std::string& text = text_value.text();
  rt.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep);
  PercentValues arguments(values);
  std::string out;
  for (size_t i = 0; i < text.size() && !rt.failed();) {
    const char c = text[i++];
    if (c != '%') {
      out += c;
    } else if (!Convert(rt, text, text_value.markup(), &arguments, &i, &out)) {
      return {};
    }
  }
  if (arguments.LeftOver()) return rt.Fail("not all arguments were converted by the format");
  return rt.Str(std::move(out), text_value.markup());
}

Value Escape(Runtime& rt, const Value& value) {
  if (value.markup()) return value;
  const Value text = ToStr(rt, value);
  if (rt.failed()) return {};
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  std::string escaped;
  for (const char c : text.text()) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      default:
        escaped += c;
    }
  }
  return rt.Str(std::move(escaped), true);
}

}  // namespace headway::jinja
