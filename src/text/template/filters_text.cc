// Filters on text.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/template/filters.h"
#include "text/template/format.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/template/text_search.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

template <std::string (*kMap)(std::string_view)>
Value MapFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "filter", {}, 0);
  const Value text = SoftStr(rt, self);
  if (!bound.ok() || rt.failed()) return {};
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  return rt.Str(kMap(text.text()), text.markup());
}

// Every run of other characters begins with a capital; the runs are cut at these, not at Unicode's
// word boundaries.
std::string TitleWords(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto is_cut = [&](size_t at) {
      const char32_t c = CharAt(text, at);
      return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || unicode::IsSpace(c);
    };
    size_t end = i;
    while (end < text.size() && is_cut(end)) end += CharBytes(text, end);
    out += text.substr(i, end - i);
    i = end;
    while (end < text.size() && !is_cut(end)) end += CharBytes(text, end);
    if (end == i) break;
    const size_t first = CharBytes(text, i);
    out += unicode::ToUpper(text.substr(i, first));
    out += unicode::ToLower(text.substr(i + first, end - i - first));
    i = end;
  }
  return out;
}

Value TitleFilter(Runtime& rt, const Value& self, const Args& args) {
  const Value title = MapFilter<TitleWords>(rt, self, args);
  return rt.failed() ? Value() : rt.Str(title.text());  // joined anew: no Markup
}

Value TrimFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "trim", {"chars"}, 0);
  const Value text = SoftStr(rt, self);
  if (!bound.ok() || rt.failed()) return {};
  return StripChars(rt, text, bound.Or(0, Value::None()), Sides::kBoth);
}

Value ReplaceFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "replace", {"old", "new", "count"}, 2);
  if (!bound.ok()) return {};
  int64_t count = -1;
  if (bound.has(2) && !bound[2].none() && !AsIndex(rt, bound[2], &count)) return {};
  const Value text = ToStr(rt, self);
  const Value old = ToStr(rt, bound[0]);
  const Value replacement = ToStr(rt, bound[1]);
  if (rt.failed()) return {};
  return ReplaceText(rt, text, old.text(), replacement.text(), count);
}

Value FormatFilter(Runtime& rt, const Value& self, const Args& args) {
  if (!args.named.empty()) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not have names in formats");
  }
  const Value text = SoftStr(rt, self);
  return rt.failed() ? Value() : FormatPercent(rt, text, rt.Tuple(args.positional));
}

Value IndentFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "indent", {"width", "first", "blank"}, 0);
  if (!bound.ok()) return {};
  if (!self.string()) {
    if (self.undefined()) return rt.FailUndefined(self);
    return rt.Fail(fmt::format("indent needs a string, not '{}'", TypeName(self)));
  }
  std::string indention = "    ";
  if (bound.has(0) && bound[0].string()) {
    indention = bound[0].text();
  } else if (bound.has(0)) {
    int64_t width = 0;
    if (!AsIndex(rt, bound[0], &width) || !rt.CheckSize(width)) return {};
    indention.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  }
  const bool first = Truthy(bound[1]);
  const bool blank = Truthy(bound[2]);
  rt.Charge(static_cast<int64_t>(self.text().size()) / kScanBytesPerStep);
  // With a newline more, a text that ends with one has an empty last line, which is kept.
  const std::string text = self.text() + "\n";
  std::string result = first ? indention : "";
  bool begun = false;
  for (const std::string_view line : SplitLines(text, false)) {
    if (begun) result += '\n';
    if (begun && (blank || !line.empty())) result += indention;
    begun = true;
    result += line;
    if (!rt.CheckSize(static_cast<int64_t>(result.size()))) return {};
  }
  return rt.Str(std::move(result), self.markup());
}

Value JoinFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "join", {"d", "attribute"}, 0);
  if (!bound.ok()) return {};
  const Value separator = bound.has(0) ? ToStr(rt, bound[0]) : rt.Str("");
  const AttributePath path(rt, bound[1]);
  const std::shared_ptr<Iterator> iterator = Iterate(rt, self);
  if (rt.failed()) return {};
  std::string joined;
  Value item;
  for (bool first = true; iterator->Next(rt, &item); first = false) {
    if (!first) AppendStr(rt, separator, &joined);
    AppendStr(rt, path.Get(rt, item, Value::None()), &joined);
    if (rt.failed()) return {};
  }
  return rt.Str(std::move(joined));
}

Value StringFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "string", {}, 0);
  return SoftStr(rt, self);
}

Value SafeFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "safe", {}, 0);
  const Value text = ToStr(rt, self);
  return rt.failed() ? Value() : rt.Str(text.text(), true);
}

Value EscapeFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "escape", {}, 0);
  return Escape(rt, self);
}

constexpr NamedFunction kFilters[] = {
    {"capitalize", MapFilter<unicode::Capitalize>},
    {"e", EscapeFilter},
    {"escape", EscapeFilter},
    {"format", FormatFilter},
    {"indent", IndentFilter},
    {"join", JoinFilter},
    {"lower", MapFilter<unicode::ToLower>},
    {"replace", ReplaceFilter},
    {"safe", SafeFilter},
    {"string", StringFilter},
    {"title", TitleFilter},
    {"tojson", ToJsonFilter},
    {"trim", TrimFilter},
    {"upper", MapFilter<unicode::ToUpper>},
};

}  // namespace

std::span<const NamedFunction> TextFilters() { return kFilters; }

}  // namespace headway::jinja
