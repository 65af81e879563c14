// Methods of str and dict.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
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
  return MakeView(rt, self, kPart);
}

// --- str ---

// The text of `self`, its reading paid for.
const std::string& Scan(Runtime& rt, const Value& self) {
  rt.Charge(static_cast<int64_t>(self.text().size()) / kScanBytesPerStep);
  return self.text();
}

// A string of the same kind as `self`: Markup stays Markup.
Value Like(Runtime& rt, const Value& self, std::string_view text) {
  return rt.Str(std::string(text), self.markup());
}

bool TextArgument(Runtime& rt, const Value& value, std::string_view* text) {
  if (value.string()) {
    *text = value.text();
    return true;
  }
  if (value.undefined()) rt.FailUndefined(value);
  rt.Fail(fmt::format("a string is needed, not '{}'", TypeName(value)));
  return false;
}

template <std::string (*kMap)(std::string_view)>
Value MapText(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return Like(rt, self, kMap(Scan(rt, self)));
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
Value StripMethod(Runtime& rt, const Value& self, const Arguments& args) {
  return StripChars(rt, self, args.Or(0, Value::None()), kSides);
}

template <bool kLast>
Value FindMethodOf(Runtime& rt, const Value& self, const Arguments& args) {
  std::string_view needle;
  if (!TextArgument(rt, args[0], &needle)) return {};
  const std::string_view text = Scan(rt, self);
  const size_t found = kLast ? FindLastText(rt, text, needle) : FindText(text, needle);
  return Value::Int(found == text.npos ? -1 : CountChars(text.substr(0, found)));
}

template <Sides kSide>
Value AffixMethod(Runtime& rt, const Value& self, const Arguments& args) {
  const std::string_view text = Scan(rt, self);
  const std::vector<Value> one = {args[0]};
  for (const Value& affix : args[0].tuple() ? args[0].items() : one) {
    std::string_view part;
    if (!rt.Charge(1) || !TextArgument(rt, affix, &part)) return {};
    const bool there = kSide == Sides::kLeft ? text.starts_with(part) : text.ends_with(part);
    if (there) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value JoinMethod(Runtime& rt, const Value& self, const Arguments& args) {
  std::string joined;
  bool first = true;
  for (const Value& item : Drain(rt, args[0])) {
    std::string_view part;
    const Value text = self.markup() ? Escape(rt, item) : item;
    if (!TextArgument(rt, item, &part) || rt.failed()) return {};
    if (!first) joined += self.text();
    first = false;
    joined += text.text();
    if (!rt.CheckSize(static_cast<int64_t>(joined.size()))) return {};
  }
  return Like(rt, self, joined);
}

Value ReplaceMethod(Runtime& rt, const Value& self, const Arguments& args) {
  std::string_view old;
  std::string_view replacement;
  int64_t count = -1;
  if (!TextArgument(rt, args[0], &old)) return {};
  if (args.has(2) && !AsIndex(rt, args[2], &count)) return {};
  const Value escaped = self.markup() ? Escape(rt, args[1]) : args[1];
  if (rt.failed() || !TextArgument(rt, escaped, &replacement)) return {};
  return ReplaceText(rt, self, old, replacement, count);
}

Value PartsOf(Runtime& rt, const Value& self, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(Like(rt, self, part));
  return rt.List(std::move(items));
}

Value SplitMethod(Runtime& rt, const Value& self, const Arguments& args) {
  std::string_view separator;
  int64_t max_split = -1;
  if (args.has(1) && !AsIndex(rt, args[1], &max_split)) return {};
  if (args.given(0)) {
    if (!TextArgument(rt, args[0], &separator)) return {};
    if (separator.empty()) return rt.Fail("split() needs a separator that is not empty");
  }
  return PartsOf(rt, self, SplitText(rt, Scan(rt, self), separator, max_split));
}

Value FormatMethod(Runtime& rt, const Value& self, const Arguments& args) {
  return FormatBraces(rt, self, args.all());
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
    {"lstrip", StripMethod<Sides::kLeft>, 0, {"chars"}},
    {"replace", ReplaceMethod, 2, {"old", "new", "count"}},
    {"rfind", FindMethodOf<true>, 1, {"sub", "!start", "!end"}},
    {"rstrip", StripMethod<Sides::kRight>, 0, {"chars"}},
    {"split", SplitMethod, 0, {"sep", "maxsplit"}},
    {"startswith", AffixMethod<Sides::kLeft>, 1, {"prefix", "!start", "!end"}},
    {"strip", StripMethod<Sides::kBoth>, 0, {"chars"}},
    {"title", MapText<unicode::TitleCase>},
    {"upper", MapText<unicode::ToUpper>},
};
constexpr NamedFunction kDictMethods[] = {
    {"get", DictGet, 1, {"key", "default"}},
    {"items", DictParts<ItemsKind::kPairs>},
    {"keys", DictParts<ItemsKind::kKeys>},
    {"values", DictParts<ItemsKind::kValues>},
};

// Methods that Python has and Headway does not, which are refused by name.
constexpr std::string_view kOtherTextMethods[] = {
    "casefold",  "center",       "count",        "encode",    "expandtabs",   "format_map",
    "index",     "isalnum",      "isascii",      "isdecimal", "isidentifier", "islower",
    "isnumeric", "isprintable",  "istitle",      "isupper",   "ljust",        "maketrans",
    "partition", "removeprefix", "removesuffix", "rindex",    "rjust",        "rpartition",
    "rsplit",    "splitlines",   "swapcase",     "translate", "zfill"};
constexpr std::string_view kOtherListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kOtherDictMethods[] = {"copy", "fromkeys"};
constexpr std::string_view kOtherNumberMethods[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
constexpr std::string_view kOtherRangeMethods[] = {"count", "index", "start", "step", "stop"};

std::span<const NamedFunction> MethodsOf(const Value& self) {
  if (self.string()) return kTextMethods;
  if (self.dict()) return kDictMethods;
  return {};
}

std::span<const std::string_view> OtherMethodsOf(const Value& self) {
  if (self.string()) return kOtherTextMethods;
  if (self.sequence()) return kOtherListMethods;
  if (self.dict()) return kOtherDictMethods;
  if (self.number()) return kOtherNumberMethods;
  const auto* items = self.As<Items>();
  if (items != nullptr && items->range()) return kOtherRangeMethods;
  return {};
}

}  // namespace

NamedFunction FindMethod(const Value& self, std::string_view name) {
  if (const NamedFunction* method = FindNamed(MethodsOf(self), name)) return *method;
  const std::span<const std::string_view> others = OtherMethodsOf(self);
  const auto other = std::find(others.begin(), others.end(), name);
  return {other == others.end() ? "" : *other, nullptr};
}

}  // namespace headway::jinja
