// Methods of str.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/format.h"
#include "text/template/methods.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/template/text_search.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

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
  if (!value.string()) {
    if (value.undefined()) {
      rt.FailUndefined(value);
    } else {
      rt.Fail(fmt::format("a string is needed, not '{}'", TypeName(value)));
    }
    return false;
  }
  *text = value.text();
  return true;
}

// The argument as an int, or a default when it is not given.
bool IntArgument(Runtime& rt, const Bound& bound, size_t i, int64_t fallback, int64_t* value) {
  *value = fallback;
  return !bound.has(i) || AsIndex(rt, bound[i], value);
}

template <std::string (*kMap)(std::string_view)>
Value MapText(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "str method", {}, 0);
  const std::string& text = Scan(rt, self);
  if (!bound.ok() || rt.failed()) return {};
  return Like(rt, self, kMap(text));
}

// isalpha and the like: no empty text, and every character.
template <bool (*kTest)(char32_t)>
Value EveryChar(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "str method", {}, 0);
  const std::string& text = Scan(rt, self);
  if (!bound.ok() || rt.failed()) return {};
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    if (!kTest(CharAt(text, i))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

Value IsPrintableText(Runtime& rt, const Value& self, const Args& args) {
  return self.text().empty() ? Value::Bool(true) : EveryChar<unicode::IsPrintable>(rt, self, args);
}

Value IsAsciiText(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "isascii", {}, 0);
  const std::string& text = Scan(rt, self);
  return Value::Bool(
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }));
}

template <bool kUpper>
Value HasCase(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kUpper ? "isupper" : "islower", {}, 0);
  if (!bound.ok()) return {};
  return Value::Bool(kUpper ? IsUpperText(Scan(rt, self)) : IsLowerText(Scan(rt, self)));
}

// --- strip, removeprefix, removesuffix ---

template <bool kLeft, bool kRight>
Value StripMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "strip", {"/chars"}, 0);
  if (!bound.ok()) return {};
  return StripChars(rt, self, bound.Or(0, Value::None()), kLeft, kRight);
}

template <bool kPrefix>
Value RemoveAffix(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "removeprefix", {"/affix"}, 1);
  std::string_view affix;
  if (!bound.ok() || !TextArgument(rt, bound[0], &affix)) return {};
  std::string_view text = self.text();
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return Like(rt, self, text);
}

// --- find, count, startswith ---

// The part of the text that optional start and end arguments choose, and where it begins: in bytes,
// and in characters.
struct Part {
  std::string_view text;
  int64_t first_char = 0;
  bool valid = false;  // false for a start beyond the end
};

bool PartArgument(Runtime& rt, const Value& value, int64_t fallback, int64_t length, int64_t* at) {
  *at = fallback;
  if (value.missing() || value.none()) return true;
  if (!AsIndex(rt, value, at)) return false;
  if (*at < 0) *at = std::max<int64_t>(0, *at + length);
  return true;
}

bool TakePart(Runtime& rt, const Value& self, const Value& start, const Value& end, Part* part) {
  const std::string& text = Scan(rt, self);
  const int64_t length = CountChars(text);
  int64_t first = 0;
  int64_t last = 0;
  if (!PartArgument(rt, start, 0, length, &first) ||
      !PartArgument(rt, end, length, length, &last)) {
    return false;
  }
  last = std::min(last, length);
  part->first_char = first;
  part->valid = first <= last;
  if (!part->valid) return true;
  const size_t begin = CharOffset(text, first);
  part->text = std::string_view(text).substr(begin);
  part->text = part->text.substr(0, CharOffset(part->text, last - first));
  return true;
}

// Last place of the needle; pays for the naive search.
size_t FindLast(Runtime& rt, std::string_view text, std::string_view needle) {
  if (needle.size() > text.size()) return std::string_view::npos;
  const auto places = static_cast<int64_t>(text.size() - needle.size() + 1);
  constexpr int64_t kComparedPerStep = 1024;
  if (!rt.Charge(places * static_cast<int64_t>(needle.size()) / kComparedPerStep)) {
    return std::string_view::npos;
  }
  return text.rfind(needle);
}

template <bool kLast, bool kMust>
Value FindMethodOf(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "find", {"/sub", "/start", "/end"}, 1);
  std::string_view needle;
  Part part;
  if (!bound.ok() || !TextArgument(rt, bound[0], &needle) ||
      !TakePart(rt, self, bound[1], bound[2], &part)) {
    return {};
  }
  size_t found = std::string_view::npos;
  if (part.valid) found = kLast ? FindLast(rt, part.text, needle) : FindText(part.text, needle);
  if (found == std::string_view::npos) {
    return kMust ? rt.Fail("substring not found") : Value::Int(-1);
  }
  return Value::Int(part.first_char + CountChars(part.text.substr(0, found)));
}

Value CountMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "count", {"/sub", "/start", "/end"}, 1);
  std::string_view needle;
  Part part;
  if (!bound.ok() || !TextArgument(rt, bound[0], &needle) ||
      !TakePart(rt, self, bound[1], bound[2], &part)) {
    return {};
  }
  if (!part.valid) return Value::Int(0);
  if (needle.empty()) return Value::Int(CountChars(part.text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = FindText(part.text, needle, at)) != std::string_view::npos;) {
    ++count;
    at += needle.size();
  }
  return Value::Int(count);
}

template <bool kStart>
Value AffixMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kStart ? "startswith" : "endswith", {"/affix", "/start", "/end"}, 1);
  Part part;
  if (!bound.ok() || !TakePart(rt, self, bound[1], bound[2], &part)) return {};
  const std::vector<Value> one = {bound[0]};
  const std::vector<Value>& affixes = bound[0].tuple() ? bound[0].items() : one;
  for (const Value& affix : affixes) {
    std::string_view text;
    if (!rt.Charge(1) || !TextArgument(rt, affix, &text)) return {};
    if (part.valid && (kStart ? part.text.starts_with(text) : part.text.ends_with(text))) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

// --- join, replace, splitlines, partition ---

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
  if (!bound.ok() || !TextArgument(rt, bound[0], &old) || !IntArgument(rt, bound, 2, -1, &count)) {
    return {};
  }
  const Value escaped = self.markup() ? Escape(rt, bound[1]) : bound[1];
  if (rt.failed() || !TextArgument(rt, escaped, &replacement)) return {};
  std::string result;
  if (!ReplaceText(Scan(rt, self), old, replacement, count, rt.max_output(), &result)) {
    rt.CheckSize(static_cast<int64_t>(result.size()));
  }
  return Like(rt, self, result);
}

Value SplitLinesMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "splitlines", {"keepends"}, 0);
  if (!bound.ok()) return {};
  int64_t keep_ends = 0;
  if (!IntArgument(rt, bound, 0, 0, &keep_ends)) return {};
  std::vector<Value> lines;
  for (const std::string_view line : SplitLines(Scan(rt, self), keep_ends != 0)) {
    lines.push_back(Like(rt, self, line));
    if (rt.failed()) return {};
  }
  return rt.List(std::move(lines));
}

template <bool kLast>
Value PartitionMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "partition", {"/sep"}, 1);
  std::string_view separator;
  if (!bound.ok() || !TextArgument(rt, bound[0], &separator)) return {};
  if (separator.empty()) return rt.Fail("empty separator");
  const std::string_view text = Scan(rt, self);
  const size_t found = kLast ? FindLast(rt, text, separator) : FindText(text, separator);
  if (found == std::string_view::npos) {
    const Value nothing = Like(rt, self, "");
    if (kLast) return rt.Tuple({nothing, nothing, Like(rt, self, text)});
    return rt.Tuple({Like(rt, self, text), nothing, nothing});
  }
  return rt.Tuple({Like(rt, self, text.substr(0, found)), Like(rt, self, separator),
                   Like(rt, self, text.substr(found + separator.size()))});
}

// --- center, ljust, rjust, zfill ---

Value Padded(Runtime& rt, const Value& self, int64_t left, int64_t right, std::string_view fill) {
  const auto fill_bytes = static_cast<int64_t>(fill.size());
  const auto size = static_cast<int64_t>(self.text().size());
  if (left + right > rt.max_output() && !rt.CheckSize(rt.max_output() + 1)) return {};
  if (!rt.CheckSize(size + (left + right) * fill_bytes)) return {};
  std::string text;
  for (int64_t i = 0; i < left; ++i) text += fill;
  text += self.text();
  for (int64_t i = 0; i < right; ++i) text += fill;
  return Like(rt, self, text);
}

enum class Justify { kLeft, kCenter, kRight };

template <Justify kJustify>
Value JustifyMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "center", {"/width", "/fillchar"}, 1);
  int64_t width = 0;
  if (!bound.ok() || !AsIndex(rt, bound[0], &width)) return {};
  std::string_view fill = " ";
  if (bound.has(1) && !TextArgument(rt, bound[1], &fill)) return {};
  if (CountChars(fill) != 1)
    return rt.Fail("the fill character must be exactly one character long");
  const int64_t pad = std::max<int64_t>(0, width - CountChars(Scan(rt, self)));
  if (kJustify == Justify::kLeft) return Padded(rt, self, 0, pad, fill);
  if (kJustify == Justify::kRight) return Padded(rt, self, pad, 0, fill);
  const int64_t left = CenterLeft(pad, width);
  return Padded(rt, self, left, pad - left, fill);
}

Value ZfillMethod(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "zfill", {"/width"}, 1);
  int64_t width = 0;
  if (!bound.ok() || !AsIndex(rt, bound[0], &width)) return {};
  const std::string& text = Scan(rt, self);
  const int64_t pad = width - CountChars(text);
  if (pad <= 0) return Like(rt, self, text);
  const Value padded = Padded(rt, self, pad, 0, "0");
  if (rt.failed() || text.empty() || (text[0] != '+' && text[0] != '-')) return padded;
  return Like(rt, self, text[0] + std::string(static_cast<size_t>(pad), '0') + text.substr(1));
}

Value FormatMethod(Runtime& rt, const Value& self, const Args& args) {
  return FormatBraces(rt, self, args);
}

constexpr NamedFunction kMethods[] = {
    {"capitalize", MapText<unicode::Capitalize>},
    {"casefold", nullptr},
    {"center", JustifyMethod<Justify::kCenter>},
    {"count", CountMethod},
    {"encode", nullptr},
    {"endswith", AffixMethod<false>},
    {"expandtabs", nullptr},
    {"find", FindMethodOf<false, false>},
    {"format", FormatMethod},
    {"format_map", nullptr},
    {"index", FindMethodOf<false, true>},
    {"isalnum", EveryChar<unicode::IsAlnum>},
    {"isalpha", EveryChar<unicode::IsAlpha>},
    {"isascii", IsAsciiText},
    {"isdecimal", EveryChar<unicode::IsDecimal>},
    {"isdigit", EveryChar<unicode::IsDigit>},
    {"isidentifier", nullptr},
    {"islower", HasCase<false>},
    {"isnumeric", nullptr},
    {"isprintable", IsPrintableText},
    {"isspace", EveryChar<unicode::IsSpace>},
    {"istitle", nullptr},
    {"isupper", HasCase<true>},
    {"join", JoinMethod},
    {"ljust", JustifyMethod<Justify::kLeft>},
    {"lower", MapText<unicode::ToLower>},
    {"lstrip", StripMethod<true, false>},
    {"maketrans", nullptr},
    {"partition", PartitionMethod<false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethodOf<true, false>},
    {"rindex", FindMethodOf<true, true>},
    {"rjust", JustifyMethod<Justify::kRight>},
    {"rpartition", PartitionMethod<true>},
    {"rsplit", RightSplitMethod},
    {"rstrip", StripMethod<false, true>},
    {"split", SplitMethod},
    {"splitlines", SplitLinesMethod},
    {"startswith", AffixMethod<true>},
    {"strip", StripMethod<true, true>},
    {"swapcase", MapText<unicode::SwapCase>},
    {"title", MapText<unicode::TitleCase>},
    {"translate", nullptr},
    {"upper", MapText<unicode::ToUpper>},
    {"zfill", ZfillMethod},
};

}  // namespace

std::span<const NamedFunction> TextMethods() { return kMethods; }

}  // namespace headway::jinja
