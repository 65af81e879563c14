#include "text/template/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

constexpr int64_t kMaxNumber = 1000;  // width and precision
constexpr std::string_view kIntTypes = "dxXo";
constexpr std::string_view kFloatTypes = "eEfFgG";

// How one value is to be written; the fields of both formatting languages.
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=' (between sign and digits); 0 for the type's own
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

bool Refuse(Runtime& rt, std::string_view what) {
  rt.Fail(StatusCode::kUnsupported, fmt::format("Headway does not have {} in formats", what));
  return false;
}

// Reads digits at *at; false when the number is absurd.
bool ReadNumber(Runtime& rt, std::string_view text, size_t* at, int64_t* number) {
  *number = 0;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
    *number = *number * 10 + (text[*at] - '0');
    if (*number <= kMaxNumber) continue;
    rt.Fail(fmt::format("a width or precision of a format is over {}", kMaxNumber));
    return false;
  }
  return true;
}

// sign and body, padded to the width.
std::string Padded(const std::string& sign, const std::string& body, const Spec& spec,
                   char own_align) {
  const int64_t pad = std::max<int64_t>(0, spec.width - CountChars(sign) - CountChars(body));
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
  return result;
}

bool FormatText(Runtime& rt, std::string_view text, const Spec& spec, std::string* out) {
  if (spec.type != 0 && spec.type != 's') {
    rt.Fail(fmt::format("unknown format code '{}' for a str", spec.type));
    return false;
  }
  if (spec.precision >= 0) text = text.substr(0, CharOffset(text, spec.precision));
  *out += Padded("", std::string(text), spec, '<');
  return rt.CheckSize(static_cast<int64_t>(out->size()));
}

bool FormatNumber(Runtime& rt, const Value& value, const Spec& spec, std::string* out) {
  const bool whole = kIntTypes.find(spec.type) != std::string_view::npos;
  std::string body;
  std::string sign;
  bool negative = false;
  if (whole || (spec.type == 0 && value.integral())) {
    if (!value.integral() || spec.precision >= 0) {
      rt.Fail(fmt::format("a format wants an int without a precision, not '{}'", TypeName(value)));
      return false;
    }
    negative = value.integer() < 0;
    const auto bits = static_cast<uint64_t>(value.integer());
    const char type[] = {'{', ':', spec.type == 0 ? 'd' : spec.type, '}', 0};
    body = fmt::format(fmt::runtime(type), negative ? 0 - bits : bits);
    if (spec.alternate && spec.type != 'd') sign = std::string("0") + spec.type;
  } else if (spec.type != 0 && kFloatTypes.find(spec.type) == std::string_view::npos) {
    rt.Fail(fmt::format("unknown format code '{}' for a number", spec.type));
    return false;
  } else {
    const double real = value.AsDouble();
    if (spec.alternate) return Refuse(rt, "'#' for floats");
    if (spec.type == 0 && spec.precision >= 0) return Refuse(rt, "a precision without a type");
    negative = std::signbit(real) && !std::isnan(real);
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    const char type[] = {'{', ':', '.', '{', '}', spec.type, '}', 0};
    body = spec.type == 0 ? FloatRepr(std::abs(real))
                          : fmt::format(fmt::runtime(type), std::abs(real), precision);
  }
  if (negative) {
    sign.insert(0, "-");
  } else if (spec.sign != '-') {
    sign.insert(0, 1, spec.sign);
  }
  *out += Padded(sign, body, spec, '>');
  return rt.CheckSize(static_cast<int64_t>(out->size()));
}

// --- "..." % values ---

// Flags, width, precision and type behind a '%' at *at.
bool ReadPercent(Runtime& rt, std::string_view text, size_t* at, Spec* spec) {
  bool zero = false;
  bool left = false;
  for (; *at < text.size() && std::string_view("-+ #0").find(text[*at]) != text.npos; ++*at) {
    const char c = text[*at];
    left = left || c == '-';
    zero = zero || c == '0';
    spec->alternate = spec->alternate || c == '#';
    if (c == '+' || (c == ' ' && spec->sign != '+')) spec->sign = c;
  }
  spec->align = left ? '<' : '>';
  if (zero && !left) {
    spec->align = '=';
    spec->fill = "0";
  }
  if (!ReadNumber(rt, text, at, &spec->width)) return false;
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    if (!ReadNumber(rt, text, at, &spec->precision)) return false;
  }
  if (*at >= text.size()) {
    rt.Fail("incomplete format");
    return false;
  }
  spec->type = text[(*at)++];
  if (spec->type == 'i' || spec->type == 'u') spec->type = 'd';
  const bool known = std::string_view("sr%").find(spec->type) != text.npos ||
                     kIntTypes.find(spec->type) != text.npos ||
                     kFloatTypes.find(spec->type) != text.npos;
  return known || Refuse(rt, fmt::format("'%{}'", spec->type));
}

bool PercentOne(Runtime& rt, const Value& given, bool markup, Spec spec, std::string* out) {
  Value value = given;
  if (spec.type == 's' || spec.type == 'r') {
    std::string shown;
    if (spec.type == 's') {
      AppendStr(rt, value, &shown);
    } else {
      AppendRepr(rt, value, &shown);
    }
    value = rt.Str(std::move(shown), value.markup() && spec.type == 's');
    if (markup) value = Escape(rt, value);
    if (rt.failed()) return false;
    spec.type = 's';
    spec.fill = " ";
    if (spec.align == '=') spec.align = '>';
    return FormatText(rt, value.text(), spec, out);
  }
  if (!value.number()) {
    if (value.undefined()) rt.FailUndefined(value);
    rt.Fail(fmt::format("%{} needs a number, not '{}'", spec.type, TypeName(value)));
    return false;
  }
  if (spec.type == 'd' && !value.integral()) {
    if (!(std::abs(value.real()) < 0x1p63)) return Refuse(rt, "ints beyond 64 bits");
    value = Value::Int(static_cast<int64_t>(value.real()));
  }
  return FormatNumber(rt, value, spec, out);
}

// --- "...".format(...) ---

// The specification of a field: [[fill]align][sign][#][0][width][.precision][type].
bool ReadSpec(Runtime& rt, std::string_view text, Spec* spec) {
  constexpr std::string_view kAligns = "<>^=";
  size_t at = text.empty() ? 0 : CharBytes(text, 0);
  if (at < text.size() && kAligns.find(text[at]) != text.npos) {
    spec->fill = text.substr(0, at);
    spec->align = text[at++];
  } else {
    at = 0;
    if (!text.empty() && kAligns.find(text[0]) != text.npos) spec->align = text[at++];
  }
  const auto take = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != text.npos ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec->sign = sign;
  spec->alternate = take("#") != 0;
  if (take("0") != 0 && spec->align == 0) {
    spec->align = '=';
    spec->fill = "0";
  }
  if (!ReadNumber(rt, text, &at, &spec->width)) return false;
  if (take(".") != 0 && !ReadNumber(rt, text, &at, &spec->precision)) return false;
  spec->type = take("sdxXoeEfFgG");
  return at == text.size() || Refuse(rt, fmt::format("the specification '{}'", text));
}

struct Numbering {
  size_t next = 0;     // of the fields without a number
  bool given = false;  // a field has a number
};

// The argument that a field names.
bool FindField(Runtime& rt, std::string_view name, const Args& args, Numbering* numbering,
               Value* value) {
  const bool number = name.find_first_not_of("0123456789") == name.npos;
  size_t index = 0;
  if (name.empty()) {
    index = numbering->next++;
  } else if (number) {
    numbering->given = true;
    int64_t given = 0;
    size_t at = 0;
    if (!ReadNumber(rt, name, &at, &given)) return false;
    index = static_cast<size_t>(given);
  } else {
    for (const auto& [key, named] : args.named) {
      if (key != name) continue;
      *value = named;
      return true;
    }
    if (name.find_first_of(".[!") != name.npos) {
      return Refuse(rt, fmt::format("the field '{}'", name));
    }
    rt.Fail(fmt::format("format() has no argument '{}'", name));
    return false;
  }
  if (numbering->given && numbering->next > 0) {
    rt.Fail("a format has fields with and without numbers");
    return false;
  }
  if (index >= args.positional.size()) {
    rt.Fail(fmt::format("format() has no argument {}", index));
    return false;
  }
  *value = args.positional[index];
  return true;
}

bool FormatField(Runtime& rt, const Value& value, bool markup, std::string_view text,
                 std::string* out) {
  Spec spec;
  if (!ReadSpec(rt, text, &spec)) return false;
  if (value.number() && !text.empty()) return FormatNumber(rt, value, spec, out);
  if (!text.empty() && !value.string()) {
    rt.Fail(fmt::format("a '{}' takes no specification in a format", TypeName(value)));
    return false;
  }
  const Value shown = markup ? Escape(rt, value) : ToStr(rt, value);
  return !rt.failed() && FormatText(rt, shown.text(), spec, out);
}

}  // namespace

Value FormatPercent(Runtime& rt, const Value& text_value, const Value& values) {
  const std::string& text = text_value.text();
  rt.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep);
  const std::vector<Value> one = {values};
  const std::vector<Value>& arguments = values.tuple() ? values.items() : one;
  size_t next = 0;
  std::string out;
  for (size_t i = 0; i < text.size() && !rt.failed();) {
    const char c = text[i++];
    Spec spec;
    if (c != '%') {
      out += c;
    } else if (i < text.size() && text[i] == '(') {
      Refuse(rt, "names");
    } else if (!ReadPercent(rt, text, &i, &spec)) {
      return {};
    } else if (spec.type == '%') {
      out += '%';
    } else if (next >= arguments.size()) {
      return rt.Fail("not enough arguments for format string");
    } else if (!PercentOne(rt, arguments[next++], text_value.markup(), spec, &out)) {
      return {};
    }
  }
  // What looks like a mapping may be left over.
  const bool mapping = values.dict() || values.list() || values.undefined();
  if (next < arguments.size() && !mapping) {
    return rt.Fail("not all arguments were converted by the format");
  }
  return rt.Str(std::move(out), text_value.markup());
}

Value FormatBraces(Runtime& rt, const Value& text_value, const Args& args) {
  const std::string_view text = text_value.text();
  rt.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep);
  Numbering numbering;
  std::string out;
  for (size_t i = 0; i < text.size() && !rt.failed();) {
    const char c = text[i++];
    const bool doubled = i < text.size() && text[i] == c;
    if ((c != '{' && c != '}') || doubled) {
      out += c;
      if (c == '{' || c == '}') ++i;
      continue;
    }
    const size_t end = text.find_first_of("{}", i);
    if (c == '}' || end == text.npos) return rt.Fail("a format has a single brace");
    if (text[end] == '{') Refuse(rt, "a field within a field");
    const std::string_view field = text.substr(i, end - i);
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    Value value;
    if (rt.failed() || !FindField(rt, field.substr(0, colon), args, &numbering, &value) ||
        !FormatField(rt, value, text_value.markup(), spec, &out)) {
      return {};
    }
    i = end + 1;
  }
  return rt.Str(std::move(out), text_value.markup());
}

Value Escape(Runtime& rt, const Value& value) {
  if (value.markup()) return value;
  const Value text = ToStr(rt, value);
  if (rt.failed()) return {};
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string escaped;
  for (const char c : text.text()) {
    const size_t at = kSpecial.find(c);
    if (at == kSpecial.npos) {
      escaped += c;
    } else {
      escaped += kNames[at];
    }
  }
  return rt.Str(std::move(escaped), true);
}

}  // namespace headway::jinja
