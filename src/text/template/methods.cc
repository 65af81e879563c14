// Methods of str, list, tuple and dict.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/format.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/template/text_search.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

// --- list, tuple, dict ---

Value ListIndex(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "index", {"/value", "!start", "!stop"}, 1);
  if (!bound.ok()) return {};
  const std::vector<Value>& items = self.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(rt, items[i], bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  return rt.Fail("the value is not in the list");
}

Value ListCount(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "count", {"/value"}, 1);
  if (!bound.ok()) return {};
  return Value::Int(std::count_if(self.items().begin(), self.items().end(),
                                  [&](const Value& item) { return Equal(rt, item, bound[0]); }));
}

Value Copy(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "copy", {}, 0);
  return self;  // which nothing can change
}

Value DictGet(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "get", {"/key", "/default"}, 1);
  if (!bound.ok() || !CheckKey(rt, bound[0])) return {};
  const Value* value = self.entries().Find(rt, bound[0]);
  return value != nullptr ? *value : bound.Or(1, Value::None());
}

template <DictPart kPart>
Value DictParts(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "dict method", {}, 0);
  return Value::Of(std::make_shared<DictView>(self, kPart));
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
Value MapText(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "str method", {}, 0);
  const std::string& text = Scan(rt, self);
  return rt.failed() ? Value() : Like(rt, self, kMap(text));
}

// isalpha and the like: no empty text, and every character.
template <bool (*kTest)(char32_t)>
Value EveryChar(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "str method", {}, 0);
  const std::string& text = Scan(rt, self);
  if (rt.failed()) return {};
  for (size_t i = 0; i < text.size();) {
    if (!kTest(NextCharacter(text, &i))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

// islower and isupper: a letter of the case, and none of the other.
template <bool (*kIs)(char32_t), bool (*kIsNot)(char32_t)>
Value HasCase(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "str method", {}, 0);
  const std::string& text = Scan(rt, self);
  bool found = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCharacter(text, &i);
    if (kIsNot(c)) return Value::Bool(false);
    found = found || kIs(c);
  }
  return Value::Bool(found);
}

template <Sides kSides>
Value StripMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "strip", {"/chars"}, 0);
  return bound.ok() ? StripChars(rt, self, bound.Or(0, Value::None()), kSides) : Value();
}

template <bool kPrefix>
Value RemoveAffix(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kPrefix ? "removeprefix" : "removesuffix", {"/affix"}, 1);
  std::string_view affix;
  if (!bound.ok() || !TextArgument(rt, bound[0], &affix)) return {};
  std::string_view text = self.text();
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return Like(rt, self, text);
}

template <bool kLast>
Value FindMethodOf(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kLast ? "rfind" : "find", {"/sub", "!start", "!end"}, 1);
  std::string_view needle;
  if (!bound.ok() || !TextArgument(rt, bound[0], &needle)) return {};
  const std::string_view text = Scan(rt, self);
  const size_t found = kLast ? FindLastText(rt, text, needle) : FindText(text, needle);
  return Value::Int(found == text.npos ? -1 : CountChars(text.substr(0, found)));
}

Value CountMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "count", {"/sub", "!start", "!end"}, 1);
  std::string_view needle;
  if (!bound.ok() || !TextArgument(rt, bound[0], &needle)) return {};
  const std::string_view text = Scan(rt, self);
  if (needle.empty()) return Value::Int(CountChars(text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = FindText(text, needle, at)) != text.npos; at += needle.size()) ++count;
  return Value::Int(count);
}

template <bool kStart>
Value AffixMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kStart ? "startswith" : "endswith", {"/affix", "!start", "!end"}, 1);
  if (!bound.ok()) return {};
  const std::string_view text = Scan(rt, self);
  const std::vector<Value> one = {bound[0]};
  for (const Value& affix : bound[0].tuple() ? bound[0].items() : one) {
    std::string_view part;
    if (!rt.Charge(1) || !TextArgument(rt, affix, &part)) return {};
    if (kStart ? text.starts_with(part) : text.ends_with(part)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value JoinMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "join", {"/iterable"}, 1);
  if (!bound.ok()) return {};
  const std::shared_ptr<Iterator> iterator = Iterate(rt, bound[0]);
  if (iterator == nullptr) return {};
  std::string joined;
  Value item;
  for (bool first = true; iterator->Next(rt, &item); first = false) {
    if (!item.string()) {
      return rt.Fail(fmt::format("join() needs strings, not '{}'", TypeName(item)));
    }
    if (!first) joined += self.text();
    joined += self.markup() ? Escape(rt, item).text() : item.text();
    if (!rt.CheckSize(static_cast<int64_t>(joined.size()))) return {};
  }
  return Like(rt, self, joined);
}

Value ReplaceMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "replace", {"/old", "/new", "/count"}, 2);
  std::string_view old;
  std::string_view replacement;
  int64_t count = -1;
  if (!bound.ok() || !TextArgument(rt, bound[0], &old)) return {};
  if (bound.has(2) && !AsIndex(rt, bound[2], &count)) return {};
  const Value escaped = self.markup() ? Escape(rt, bound[1]) : bound[1];
  if (rt.failed() || !TextArgument(rt, escaped, &replacement)) return {};
  return ReplaceText(rt, self, old, replacement, count);
}

Value PartsOf(Runtime& rt, const Value& self, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(Like(rt, self, part));
    if (rt.failed()) return {};
  }
  return rt.List(std::move(items));
}

template <SplitFrom kFrom>
Value SplitMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "split", {"sep", "maxsplit"}, 0);
  std::string_view separator;
  int64_t max_split = -1;
  if (!bound.ok() || (bound.has(1) && !AsIndex(rt, bound[1], &max_split))) return {};
  if (bound.has(0) && !bound[0].none()) {
    if (!bound[0].string() || bound[0].text().empty()) {
      return rt.Fail("split() needs a separator that is a string, not empty");
    }
    separator = bound[0].text();
  }
  return PartsOf(rt, self, SplitText(rt, Scan(rt, self), separator, max_split, kFrom));
}

Value SplitLinesMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "splitlines", {"keepends"}, 0);
  int64_t keep_ends = 0;
  if (!bound.ok() || (bound.has(0) && !AsIndex(rt, bound[0], &keep_ends))) return {};
  return PartsOf(rt, self, SplitLines(Scan(rt, self), keep_ends != 0));
}

Value FormatMethod(Runtime& rt, const Value& self, const Args& args) {
  return FormatBraces(rt, self, args);
}

// --- tables ---

constexpr NamedFunction kTextMethods[] = {
    {"capitalize", MapText<unicode::Capitalize>},
    {"count", CountMethod},
    {"endswith", AffixMethod<false>},
    {"find", FindMethodOf<false>},
    {"format", FormatMethod},
    {"isalnum", EveryChar<unicode::IsAlnum>},
    {"isalpha", EveryChar<unicode::IsAlpha>},
    {"isdigit", EveryChar<unicode::IsDigit>},
    {"islower", HasCase<unicode::IsLower, unicode::IsUpper>},
    {"isspace", EveryChar<unicode::IsSpace>},
    {"isupper", HasCase<unicode::IsUpper, unicode::IsLower>},
    {"join", JoinMethod},
    {"lower", MapText<unicode::ToLower>},
    {"lstrip", StripMethod<Sides::kLeft>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethodOf<true>},
    {"rsplit", SplitMethod<SplitFrom::kRight>},
    {"rstrip", StripMethod<Sides::kRight>},
    {"split", SplitMethod<SplitFrom::kLeft>},
    {"splitlines", SplitLinesMethod},
    {"startswith", AffixMethod<true>},
    {"strip", StripMethod<Sides::kBoth>},
    {"title", MapText<unicode::TitleCase>},
    {"upper", MapText<unicode::ToUpper>},
};
constexpr NamedFunction kListMethods[] = {
    {"copy", Copy}, {"count", ListCount}, {"index", ListIndex}};
constexpr NamedFunction kDictMethods[] = {{"copy", Copy},
                                          {"get", DictGet},
                                          {"items", DictParts<DictPart::kItems>},
                                          {"keys", DictParts<DictPart::kKeys>},
                                          {"values", DictParts<DictPart::kValues>}};

// Methods that Python has and Headway does not, which are refused by name.
constexpr std::string_view kOtherTextMethods[] = {
    "casefold",  "center",    "encode",       "expandtabs", "format_map",  "index",     "isascii",
    "isdecimal", "isnumeric", "isidentifier", "istitle",    "isprintable", "ljust",     "maketrans",
    "partition", "rindex",    "rjust",        "rpartition", "swapcase",    "translate", "zfill"};
constexpr std::string_view kOtherDictMethods[] = {"fromkeys"};
constexpr std::string_view kOtherNumberMethods[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

constexpr std::string_view kOtherRangeMethods[] = {"count", "index", "start", "step", "stop"};

std::span<const NamedFunction> MethodsOf(const Value& self) {
  if (self.string()) return kTextMethods;
  if (self.list()) return kListMethods;
  if (self.tuple()) return std::span(kListMethods).subspan(1);  // no copy()
  if (self.dict()) return kDictMethods;
  return {};
}

}  // namespace

NamedFunction FindMethod(const Value& self, std::string_view name) {
  if (const NamedFunction* method = FindNamed(MethodsOf(self), name)) return *method;
  std::span<const std::string_view> others;
  if (self.string()) others = kOtherTextMethods;
  if (self.dict()) others = kOtherDictMethods;
  if (self.number()) others = kOtherNumberMethods;
  if (self.As<Range>() != nullptr) others = kOtherRangeMethods;
  const auto other = std::find(others.begin(), others.end(), name);
  return {other == others.end() ? "" : *other, nullptr};
}

}  // namespace headway::jinja
