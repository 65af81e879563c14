// Filters that make text or read it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/template/filters.h"
#include "text/template/operators.h"
#include "text/template/print.h"
#include "text/template/runtime.h"
#include "text/template/text_operations.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

// jinja2's soft_str: str(), but Markup stays Markup.
Value SoftStr(Runtime& rt, const Value& value) { return value.string() ? value : ToStr(rt, value); }

template <std::string (*kMap)(std::string_view)>
Value MapTextFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const Value text = SoftStr(rt, self);
  if (rt.failed()) return {};
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  return rt.Str(kMap(text.text()), text.markup());
}

// Every run of other characters begins with a capital; the runs are cut at these, not at Unicode's
// word boundaries.
std::string TitleWords(std::string_view text) {
  std::string out;
  size_t begin = 0;  // of the run
  const auto finish_run = [&](size_t end) {
    if (begin == end) return;
    const size_t first = CharBytes(text, begin);
    out += unicode::ToUpper(text.substr(begin, first));
    out += unicode::ToLower(text.substr(begin + first, end - begin - first));
  };
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = NextCharacter(text, &i);
    const bool cut = c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (!cut && !unicode::IsSpace(c)) continue;
    finish_run(at);
    out += text.substr(at, i - at);
    begin = i;
  }
  finish_run(text.size());
  return out;
}

Value TitleFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const Value title = MapTextFilter<TitleWords>(rt, self, args);
  return rt.failed() ? Value() : rt.Str(title.text());  // joined anew: no Markup
}

Value TrimFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : StripChars(rt, text, args.Or(0, Value::None()), Sides::kBoth);
}

Value ReplaceFilter(Runtime& rt, const Value& self, const Arguments& args) {
  int64_t count = -1;
  if (args.given(2) && !AsIndex(rt, args[2], &count)) return {};
  const Value text = ToStr(rt, self);
  const Value old = ToStr(rt, args[0]);
  const Value replacement = ToStr(rt, args[1]);
  if (rt.failed()) return {};
  return ReplaceText(rt, text, old.text(), replacement.text(), count);
}

Value FormatFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (!args.all().named.empty()) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not have names in formats");
  }
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : FormatPercent(rt, text, rt.Tuple(args.all().positional));
}

// The indention of a level: a text, or the number of its spaces.
bool ReadIndent(Runtime& rt, const Value& given, std::string* indent) {
  if (given.string()) {
    *indent = given.text();
    return true;
  }
  int64_t width = 0;
  if (!AsIndex(rt, given, &width) || !rt.CheckSize(width)) return false;
  indent->assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  return true;
}

Value IndentFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (!self.string()) {
    return rt.Fail(fmt::format("indent needs a string, not '{}'", TypeName(self)));
  }
  std::string indention;
  if (!ReadIndent(rt, args.Or(0, Value::Int(4)), &indention)) return {};
  const bool blank = Truthy(args[2]);
  rt.Charge(static_cast<int64_t>(self.text().size()) / kScanBytesPerStep);
  // With a newline more, a text that ends with one has an empty last line, which is kept.
  const std::string text = self.text() + "\n";
  std::string result = Truthy(args[1]) ? indention : "";
  bool begun = false;
  for (const std::string_view line : SplitLines(text)) {
    if (begun) result += '\n';
    if (begun && (blank || !line.empty())) result += indention;
    begun = true;
    result += line;
    if (!rt.CheckSize(static_cast<int64_t>(result.size()))) return {};
  }
  return rt.Str(std::move(result), self.markup());
}

Value JoinFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const Value separator = ToStr(rt, args[0]);
  std::string joined;
  bool first = true;
  for (const Value& item : Drain(rt, self)) {
    if (!first) AppendStr(rt, separator, &joined);
    first = false;
    AppendStr(rt, AttributeAt(rt, item, args[1]), &joined);
    if (rt.failed()) return {};
  }
  return rt.Str(std::move(joined));
}

Value StringFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return SoftStr(rt, self);
}

Value SafeFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const Value text = ToStr(rt, self);
  return rt.failed() ? Value() : rt.Str(text.text(), true);
}

Value EscapeFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return Escape(rt, self);
}

// tojson as Transformers defines it: json.dumps without ASCII or HTML escapes by default.
Value ToJsonFilter(Runtime& rt, const Value& self, const Arguments& args) {
  JsonStyle style{.ascii = Truthy(args[0]), .sort_keys = Truthy(args[3])};
  if (args.given(1)) {
    if (!ReadIndent(rt, args[1], &style.indent.emplace())) return {};
    style.item_separator.assign(1, ',');
  }
  if (args.given(2)) {
    const std::vector<Value> parts = Drain(rt, args[2]);
    if (parts.size() != 2 || !parts[0].string() || !parts[1].string()) {
      return rt.Fail("tojson needs two strings as separators");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  std::string text;
  AppendJson(rt, self, style, &text);
  return rt.failed() ? Value() : rt.Str(std::move(text));
}

// A decimal number with white space around it; false when the text is none, or too large.
template <typename T>
bool ParseNumber(Runtime& rt, std::string_view text, T* value) {
  text = unicode::Strip(text);
  if (text.find('_') != text.npos) {
    rt.Fail(StatusCode::kUnsupported, "Headway has numbers in decimal alone, without underscores");
  }
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

Value IntFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const Value fallback = args.Or(0, Value::Int(0));
  if (self.undefined()) return rt.FailUndefined(self);
  if (self.integral()) return Value::Int(self.integer());
  int64_t value = 0;
  if (self.string() && ParseNumber(rt, self.text(), &value)) return Value::Int(value);
  // So that "42.23"|int is 42.
  double real = self.is(Kind::kFloat) ? self.real() : NAN;
  const bool read = self.is(Kind::kFloat) || (self.string() && ParseNumber(rt, self.text(), &real));
  if (!read || std::isnan(real) || (self.string() && std::isinf(real))) return fallback;
  if (std::abs(real) < 0x1p63) return Value::Int(static_cast<int64_t>(real));
  return rt.Fail(StatusCode::kUnsupported, "an integer does not fit in 64 bits");
}

Value FloatFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (self.number()) return Value::Float(self.AsDouble());
  double value = 0.0;
  if (self.string() && ParseNumber(rt, self.text(), &value)) return Value::Float(value);
  return args.Or(0, Value::Float(0.0));
}

constexpr NamedFunction kFilters[] = {
    {"capitalize", MapTextFilter<unicode::Capitalize>},
    {"e", EscapeFilter},
    {"escape", EscapeFilter},
    {"float", FloatFilter, 0, {"default"}},
    {"format", FormatFilter, 0, {"*"}},
    {"indent", IndentFilter, 0, {"width", "first", "blank"}},
    {"int", IntFilter, 0, {"default", "!base"}},
    {"join", JoinFilter, 0, {"d", "attribute"}},
    {"lower", MapTextFilter<unicode::ToLower>},
    {"replace", ReplaceFilter, 2, {"old", "new", "count"}},
    {"safe", SafeFilter},
    {"string", StringFilter},
    {"title", TitleFilter},
    {"tojson", ToJsonFilter, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", TrimFilter, 0, {"chars"}},
    {"upper", MapTextFilter<unicode::ToUpper>},
};

}  // namespace

std::span<const NamedFunction> TextFilters() { return kFilters; }

}  // namespace headway::jinja
