// Methods of list, tuple and dict, and splitting and stripping of str.
#include "text/template/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/template/text_search.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

Value ListIndex(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "index", {"/value", "/start", "/stop"}, 1);
  if (!bound.ok()) return {};
  const std::vector<Value>& items = self.items();
  const auto length = static_cast<int64_t>(items.size());
  int64_t start = 0;
  int64_t stop = length;
  if (bound.has(1) && !AsIndex(rt, bound[1], &start)) return {};
  if (bound.has(2) && !AsIndex(rt, bound[2], &stop)) return {};
  if (start < 0) start = std::max<int64_t>(0, start + length);
  if (stop < 0) stop = std::max<int64_t>(0, stop + length);
  for (int64_t i = start; i < std::min(stop, length); ++i) {
    if (Equal(rt, items[static_cast<size_t>(i)], bound[0])) return Value::Int(i);
  }
  return rt.Fail("the value is not in the list");
}

Value ListCount(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "count", {"/value"}, 1);
  if (!bound.ok()) return {};
  int64_t count = 0;
  for (const Value& item : self.items()) count += Equal(rt, item, bound[0]) ? 1 : 0;
  return Value::Int(count);
}

Value RangeCount(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "count", {"/value"}, 1);
  return bound.ok() ? Value::Int(Contains(rt, self, bound[0]) ? 1 : 0) : Value();
}

Value RangeIndex(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "index", {"/value"}, 1);
  if (!bound.ok()) return {};
  int64_t index = 0;
  for (const Value& item : Drain(rt, self)) {
    if (Equal(rt, item, bound[0])) return Value::Int(index);
    ++index;
  }
  return rt.Fail("the value is not in the range");
}

Value Copy(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "copy", {}, 0);
  return self;  // which nothing can change
}

Value DictGet(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "get", {"/key", "/default"}, 1);
  size_t hash = 0;
  if (!bound.ok()) return {};
  if (!Hash(bound[0], &hash)) {
    return rt.Fail(fmt::format("unhashable type: '{}'", TypeName(bound[0])));
  }
  const Value* value = self.entries().Find(rt, bound[0]);
  return value != nullptr ? *value : bound.Or(1, Value::None());
}

template <DictPart kPart>
Value DictParts(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "dict method", {}, 0);
  return Value::Of(std::make_shared<DictView>(self, kPart));
}

constexpr NamedFunction kListMethods[] = {
    {"copy", Copy},
    {"count", ListCount},
    {"index", ListIndex},
};
constexpr NamedFunction kTupleMethods[] = {
    {"count", ListCount},
    {"index", ListIndex},
};
constexpr NamedFunction kDictMethods[] = {
    {"copy", Copy},
    {"fromkeys", nullptr},
    {"get", DictGet},
    {"items", DictParts<DictPart::kItems>},
    {"keys", DictParts<DictPart::kKeys>},
    {"values", DictParts<DictPart::kValues>},
};
constexpr NamedFunction kRangeMethods[] = {
    {"count", RangeCount},
    {"index", RangeIndex},
};
constexpr NamedFunction kNumberMethods[] = {
    {"as_integer_ratio", nullptr}, {"bit_count", nullptr},   {"bit_length", nullptr},
    {"conjugate", nullptr},        {"denominator", nullptr}, {"from_bytes", nullptr},
    {"fromhex", nullptr},          {"hex", nullptr},         {"imag", nullptr},
    {"is_integer", nullptr},       {"numerator", nullptr},   {"real", nullptr},
    {"to_bytes", nullptr},
};

std::span<const NamedFunction> MethodsOf(const Value& self) {
  if (self.string()) return TextMethods();
  if (self.list()) return kListMethods;
  if (self.tuple()) return kTupleMethods;
  if (self.dict()) return kDictMethods;
  if (self.number()) return kNumberMethods;
  if (self.As<Range>() != nullptr) return kRangeMethods;
  return {};
}

bool InSet(std::string_view set, std::string_view character) {
  for (size_t i = 0; i < set.size(); i += CharBytes(set, i)) {
    if (set.substr(i, CharBytes(set, i)) == character) return true;
  }
  return false;
}

// --- split ---

struct SplitArguments {
  bool white_space = true;
  std::string_view separator;
  int64_t max_split = -1;
};

bool ReadSplit(Runtime& rt, const Bound& bound, SplitArguments* split) {
  if (!bound.ok()) return false;
  if (bound.has(1) && !AsIndex(rt, bound[1], &split->max_split)) return false;
  if (!bound.has(0) || bound[0].none()) return true;
  split->white_space = false;
  if (!bound[0].string() || bound[0].text().empty()) {
    rt.Fail("split() needs a separator that is a string, not empty");
    return false;
  }
  split->separator = bound[0].text();
  return true;
}

void SplitLeft(Runtime& rt, std::string_view text, const SplitArguments& split,
               std::vector<std::string_view>* parts) {
  int64_t left = split.max_split;
  if (split.white_space) text = unicode::StripLeft(text);
  while (rt.Charge(1)) {
    if (split.white_space && text.empty()) return;
    size_t end = 0;
    if (left != 0 && split.white_space) {
      while (end < text.size() && !unicode::IsSpace(CharAt(text, end))) end += CharBytes(text, end);
    } else if (left != 0) {
      end = FindText(text, split.separator);
    }
    if (left == 0 || end >= text.size()) {
      parts->push_back(text);
      return;
    }
    parts->push_back(text.substr(0, end));
    text.remove_prefix(end + split.separator.size());
    if (split.white_space) text = unicode::StripLeft(text);
    --left;
  }
}

void SplitRight(Runtime& rt, std::string_view text, const SplitArguments& split,
                std::vector<std::string_view>* parts) {
  constexpr int64_t kComparedPerStep = 1024;
  int64_t left = split.max_split;
  if (split.white_space) text = unicode::StripRight(text);
  while (rt.Charge(1)) {
    if (split.white_space && text.empty()) break;
    size_t begin = std::string_view::npos;  // of the last part
    if (left != 0 && split.white_space) {
      begin = text.size();
      while (begin > 0 && !unicode::IsSpace(CharAt(text, PreviousOffset(text, begin)))) {
        begin = PreviousOffset(text, begin);
      }
      if (begin == 0) begin = std::string_view::npos;
    } else if (left != 0) {
      const size_t found = text.rfind(split.separator);
      if (found != std::string_view::npos) begin = found + split.separator.size();
      const auto looked_at =
          static_cast<int64_t>(found == std::string_view::npos ? text.size() : text.size() - found);
      rt.Charge(looked_at * static_cast<int64_t>(split.separator.size()) / kComparedPerStep);
    }
    if (begin == std::string_view::npos) {
      parts->push_back(text);
      break;
    }
    parts->push_back(text.substr(begin));
    text = text.substr(0, begin - split.separator.size());
    if (split.white_space) text = unicode::StripRight(text);
    --left;
  }
  std::reverse(parts->begin(), parts->end());
}

Value Split(Runtime& rt, const Value& self, const Args& args, bool from_right) {
  const Bound bound(rt, args, "split", {"sep", "maxsplit"}, 0);
  SplitArguments split;
  if (!ReadSplit(rt, bound, &split)) return {};
  const std::string& text = self.text();
  if (!rt.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep)) return {};
  std::vector<std::string_view> parts;
  if (from_right) {
    SplitRight(rt, text, split, &parts);
  } else {
    SplitLeft(rt, text, split, &parts);
  }
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(rt.Str(std::string(part), self.markup()));
    if (rt.failed()) return {};
  }
  return rt.List(std::move(items));
}

}  // namespace

const NamedFunction* FindMethod(const Value& self, std::string_view name) {
  for (const NamedFunction& method : MethodsOf(self)) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

Value SplitMethod(Runtime& rt, const Value& self, const Args& args) {
  return Split(rt, self, args, false);
}

Value RightSplitMethod(Runtime& rt, const Value& self, const Args& args) {
  return Split(rt, self, args, true);
}

Value StripChars(Runtime& rt, const Value& self, const Value& chars, bool left, bool right) {
  std::string_view text = self.text();
  if (chars.none()) {
    if (left) text = unicode::StripLeft(text);
    if (right) text = unicode::StripRight(text);
    return rt.Str(std::string(text), self.markup());
  }
  if (!chars.string()) return rt.Fail("strip() needs none or a string");
  const std::string& set = chars.text();
  // Every character is compared with the whole set.
  const int64_t cost = 1 + static_cast<int64_t>(set.size()) / kScanBytesPerStep;
  while (left && !text.empty() && rt.Charge(cost)) {
    const size_t bytes = CharBytes(text, 0);
    if (!InSet(set, text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty() && rt.Charge(cost)) {
    const size_t before = PreviousOffset(text, text.size());
    if (!InSet(set, text.substr(before))) break;
    text = text.substr(0, before);
  }
  return rt.Str(std::string(text), self.markup());
}

bool IsLowerText(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    if (unicode::IsUpper(c)) return false;
    cased = cased || unicode::IsLower(c);
  }
  return cased;
}

bool IsUpperText(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    if (unicode::IsLower(c)) return false;
    cased = cased || unicode::IsUpper(c);
  }
  return cased;
}

}  // namespace headway::jinja
