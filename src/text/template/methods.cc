// Methods of str and dict, and the filters that make text or read it, which are methods that take
// other values too.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/text_operations.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

// --- dict ---

Value DictGet(Runtime& rt, const Value& self, const Arguments& args) {
  if (!CheckKey(rt, args[0])) return {};
  const Value* value = self.entries().Find(rt, args[0]);
  return value != nullptr ? *value : args.Or(1, Value::None());
}

template <ItemsKind kPart>
Value DictParts(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return MakeItems(rt, kPart, PartsOf(rt, self.entries(), kPart));
}

// --- str ---

// The text of `self`, its reading paid for.
const std::string& Scan(Runtime& rt, const Value& self) {
  rt.ChargeScan(self.text());
  return self.text();
}

// A string of the same kind as `self`: Markup stays Markup.
Value Like(Runtime& rt, const Value& self, std::string_view text) {
  return rt.Str(std::string(text), self.markup());
}

// Fails unless the value is a string.
std::string_view TextOf(Runtime& rt, const Value& value) {
  if (value.string()) return value.text();
  if (value.undefined()) rt.FailUndefined(value);
  rt.Fail("a string is needed, not '{}'", TypeName(value));
  return {};
}

// jinja2's soft_str: str(), but Markup stays Markup.
Value SoftStr(Runtime& rt, const Value& value) { return value.string() ? value : ToStr(rt, value); }

template <std::string (*kMap)(std::string_view)>
Value MapText(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : Like(rt, text, kMap(Scan(rt, text)));
}

// isalpha and the like: no empty text, and every character.
template <bool (*kTest)(char32_t)>
Value EveryChar(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const std::string& text = Scan(rt, self);
  for (size_t i = 0; i < text.size();) {
    if (!kTest(NextCharacter(text, &i))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

template <Sides kSides>
Value StripText(Runtime& rt, const Value& self, const Arguments& args) {
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : StripChars(rt, text, args.Or(0, Value::None()), kSides);
}

template <bool kLast>
Value FindMethodOf(Runtime& rt, const Value& self, const Arguments& args) {
  const std::string_view needle = TextOf(rt, args[0]);
  const std::string_view text = Scan(rt, self);
  const size_t found = kLast ? FindLastText(rt, text, needle) : FindText(text, needle);
  return Value::Int(found == text.npos ? -1 : CountChars(text.substr(0, found)));
}

template <Sides kSide>
Value AffixMethod(Runtime& rt, const Value& self, const Arguments& args) {
  const std::string_view text = Scan(rt, self);
  const std::vector<Value> one = {args[0]};
  for (const Value& affix : args[0].tuple() ? args[0].items() : one) {
    const std::string_view part = TextOf(rt, affix);
    if (!rt.Charge(1)) return {};
    const bool there = kSide == Sides::kLeft ? text.starts_with(part) : text.ends_with(part);
    if (there) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value JoinMethod(Runtime& rt, const Value& self, const Arguments& args) {
  std::string joined;
  bool first = true;
  for (const Value& item : Drain(rt, args[0])) {
    TextOf(rt, item);
    const Value text = self.markup() ? Escape(rt, item) : item;
    if (rt.failed()) return {};
    if (!first) joined += self.text();
    first = false;
    joined += text.text();
    if (!rt.CheckSize(joined.size())) return {};
  }
  return Like(rt, self, joined);
}

Value ReplaceMethod(Runtime& rt, const Value& self, const Arguments& args) {
  const std::string_view old = TextOf(rt, args[0]);
  const int64_t count = args.Int(rt, 2, -1);
  const Value escaped = self.markup() ? Escape(rt, args[1]) : args[1];
  const std::string_view replacement = TextOf(rt, escaped);
  return rt.failed() ? Value() : ReplaceText(rt, self, old, replacement, count);
}

Value SplitMethod(Runtime& rt, const Value& self, const Arguments& args) {
  const int64_t max_split = args.Int(rt, 1, -1);
  std::string_view separator;
  if (args.given(0)) {
    separator = TextOf(rt, args[0]);
    if (separator.empty()) return rt.Fail("split() needs a separator that is not empty");
  }
  std::vector<Value> items;
  for (const std::string_view part : SplitText(rt, Scan(rt, self), separator, max_split)) {
    items.push_back(Like(rt, self, part));
  }
  return rt.List(std::move(items));
}

Value FormatMethod(Runtime& rt, const Value& self, const Arguments& args) {
  return FormatBraces(rt, self, args.all());
}

// --- filters ---

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
  const Value title = MapText<TitleWords>(rt, self, args);
  return rt.failed() ? Value() : rt.Str(title.text());  // joined anew: no Markup
}

Value ReplaceFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const int64_t count = args.given(2) ? args.Int(rt, 2, -1) : -1;
  const Value text = ToStr(rt, self);
  const Value old = ToStr(rt, args[0]);
  const Value replacement = ToStr(rt, args[1]);
  if (rt.failed()) return {};
  return ReplaceText(rt, text, old.text(), replacement.text(), count);
}

Value FormatFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (!args.all().named.empty()) return rt.Refuse("Headway does not have names in formats");
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : FormatPercent(rt, text, rt.Tuple(args.all().positional));
}

// The indention of a level: a text, or the number of its spaces.
std::string ReadIndent(Runtime& rt, const Value& given) {
  if (given.string()) return given.text();
  const auto width = static_cast<size_t>(std::max<int64_t>(0, AsInt(rt, given)));
  return rt.CheckSize(width) ? std::string(width, ' ') : "";
}

Value IndentFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (!self.string()) return rt.Fail("indent needs a string, not '{}'", TypeName(self));
  const std::string indention = ReadIndent(rt, args.Or(0, Value::Int(4)));
  const bool blank = Truthy(args[2]);
  rt.ChargeScan(self.text());
  // With a newline more, a text that ends with one has an empty last line, which is kept.
  const std::string text = self.text() + "\n";
  std::string result = Truthy(args[1]) ? indention : "";
  bool begun = false;
  for (const std::string_view line : SplitLines(text)) {
    if (begun) result += '\n';
    if (begun && (blank || !line.empty())) result += indention;
    begun = true;
    result += line;
    if (!rt.CheckSize(result.size())) return {};
  }
  return rt.Str(std::move(result), self.markup());
}

Value SafeFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const Value text = ToStr(rt, self);
  return rt.failed() ? Value() : rt.Str(text.text(), true);
}

template <Value (*kConvert)(Runtime&, const Value&)>
Value Converted(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return kConvert(rt, self);
}

// tojson as Transformers defines it: json.dumps without ASCII or HTML escapes by default.
Value ToJsonFilter(Runtime& rt, const Value& self, const Arguments& args) {
  JsonStyle style{.ascii = Truthy(args[0]), .sort_keys = Truthy(args[3])};
  if (args.given(1)) {
    style.indent = ReadIndent(rt, args[1]);
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
bool ParseNumber(Runtime& rt, const Value& self, T* value) {
  if (!self.string()) return false;
  std::string_view text = unicode::Strip(self.text());
  if (text.find('_') != text.npos) {
    rt.Refuse("Headway has numbers in decimal alone, without underscores");
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
  if (ParseNumber(rt, self, &value)) return Value::Int(value);
  // So that "42.23"|int is 42.
  double real = self.is(Kind::kFloat) ? self.real() : NAN;
  if (self.string() && (!ParseNumber(rt, self, &real) || std::isinf(real))) return fallback;
  if (std::isnan(real)) return fallback;
  return std::abs(real) < 0x1p63 ? Value::Int(static_cast<int64_t>(real)) : rt.FailTooLarge();
}

Value FloatFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (self.number()) return Value::Float(self.AsDouble());
  double value = 0.0;
  return ParseNumber(rt, self, &value) ? Value::Float(value) : args.Or(0, Value::Float(0.0));
}

// --- tables ---

constexpr NamedFunction kTextMethods[] = {
    {"capitalize", MapText<unicode::Capitalize>},
    {"endswith", AffixMethod<Sides::kRight>, 1, {"suffix", "!start", "!end"}},
    {"find", FindMethodOf<false>, 1, {"sub", "!start", "!end"}},
    {"format", FormatMethod, 0, {"*"}},
    {"isalpha", EveryChar<unicode::IsAlpha>},
    {"isdigit", EveryChar<unicode::IsDigit>},
    {"isspace", EveryChar<unicode::IsSpace>},
    {"join", JoinMethod, 1, {"iterable"}},
    {"lower", MapText<unicode::ToLower>},
    {"lstrip", StripText<Sides::kLeft>, 0, {"chars"}},
    {"replace", ReplaceMethod, 2, {"old", "new", "count"}},
    {"rfind", FindMethodOf<true>, 1, {"sub", "!start", "!end"}},
    {"rstrip", StripText<Sides::kRight>, 0, {"chars"}},
    {"split", SplitMethod, 0, {"sep", "maxsplit"}},
    {"startswith", AffixMethod<Sides::kLeft>, 1, {"prefix", "!start", "!end"}},
    {"strip", StripText<Sides::kBoth>, 0, {"chars"}},
    {"title", MapText<unicode::TitleCase>},
    {"upper", MapText<unicode::ToUpper>},
};
constexpr NamedFunction kDictMethods[] = {
    {"get", DictGet, 1, {"key", "default"}},
    {"items", DictParts<ItemsKind::kPairs>},
    {"keys", DictParts<ItemsKind::kKeys>},
    {"values", DictParts<ItemsKind::kValues>},
};

constexpr NamedFunction kFilters[] = {
    {"capitalize", MapText<unicode::Capitalize>},
    {"e", Converted<Escape>},
    {"escape", Converted<Escape>},
    {"float", FloatFilter, 0, {"default"}},
    {"format", FormatFilter, 0, {"*"}},
    {"indent", IndentFilter, 0, {"width", "first", "blank"}},
    {"int", IntFilter, 0, {"default", "!base"}},
    {"lower", MapText<unicode::ToLower>},
    {"replace", ReplaceFilter, 2, {"old", "new", "count"}},
    {"safe", SafeFilter},
    {"string", Converted<SoftStr>},
    {"title", TitleFilter},
    {"tojson", ToJsonFilter, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", StripText<Sides::kBoth>, 0, {"chars"}},
    {"upper", MapText<unicode::ToUpper>},
};

// Methods that Python has and Headway does not, which are refused by name.
constexpr std::string_view kOtherTextMethods =
    "casefold center count encode expandtabs format_map index isalnum isascii isdecimal "
    "isidentifier islower isnumeric isprintable istitle isupper ljust maketrans partition "
    "removeprefix removesuffix rindex rjust rpartition rsplit splitlines swapcase translate zfill";
constexpr std::string_view kOtherNumberMethods =
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag "
    "is_integer numerator real to_bytes";

std::string_view OtherMethodsOf(const Value& self) {
  if (self.string()) return kOtherTextMethods;
  if (self.sequence()) return "copy count index";
  if (self.dict()) return "copy fromkeys";
  if (self.number()) return kOtherNumberMethods;
  const auto* items = self.As<Items>();
  return items != nullptr && items->range() ? "count index start step stop" : "";
}

}  // namespace

std::span<const NamedFunction> TextFilters() { return kFilters; }

NamedFunction FindMethod(const Value& self, std::string_view name) {
  const NamedFunction* method = self.string() ? FindNamed(kTextMethods, name)
                                : self.dict() ? FindNamed(kDictMethods, name)
                                              : nullptr;
  if (method != nullptr) return *method;
  for (std::string_view rest = OtherMethodsOf(self); !rest.empty();) {
    const std::string_view other = rest.substr(0, rest.find(' '));
    if (other == name) return {other, nullptr};
    rest.remove_prefix(std::min(other.size() + 1, rest.size()));
  }
  return {"", nullptr};
}

}  // namespace headway::jinja
