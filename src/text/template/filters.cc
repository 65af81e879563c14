// Filters on sequences and mappings, and the search for filters of either kind.
#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

// --- what filters share ---

Value Generator(Runtime& rt, std::vector<Value> items) {
  return MakeItems(rt, ItemsKind::kGenerator, std::move(items));
}

bool IsGenerator(const Value& value) {
  const auto* items = value.As<Items>();
  return items != nullptr && items->generator();
}

// The attribute of `item` at a path like 'a.0.b', or at a key of another type; the item itself
// where `path` is none or missing. `fallback`, unless it is missing, stands for an undefined step.
Value AttributeAt(Runtime& rt, Value item, const Value& path,
                  const Value& fallback = Value::Missing()) {
  const auto step = [&](const Value& key) {
    item = GetItem(rt, item, key);
    if (item.undefined() && !fallback.missing()) item = fallback;
  };
  if (path.none() || path.missing()) return item;
  if (!path.string()) {
    step(path);
    return item;
  }
  std::string_view rest = path.text();
  while (rt.Charge(1)) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size() && index >= 0;
    step(number ? Value::Int(index) : rt.Str(std::string(part)));
    if (part.size() == rest.size()) break;
    rest.remove_prefix(part.size() + 1);
  }
  return item;
}

// What filters compare: of a string its lower case, unless `case_sensitive` is given and true.
Value SortKey(Runtime& rt, const Value& value, const Value& case_sensitive) {
  if (!value.string() || Truthy(case_sensitive)) return value;
  rt.ChargeScan(value.text());
  return rt.Str(unicode::ToLower(value.text()));
}

// The argument `reverse`.
SortOrder OrderAt(Runtime& rt, const Arguments& args, size_t at) {
  return args.Int(rt, at, 0) != 0 ? SortOrder::kDescending : SortOrder::kAscending;
}

// Nothing for a value that is false, as jinja2 has it.
std::vector<Value> InputOf(Runtime& rt, const Value& self) {
  return Truthy(self) ? Drain(rt, self) : std::vector<Value>();
}

// The filter or test that positional[at] names; `rest` gets the arguments that follow it.
using FindFunction = const NamedFunction* (*)(std::string_view name);
const NamedFunction* NamedAt(Runtime& rt, const Args& args, size_t at, FindFunction find,
                             Args* rest) {
  const Value& name = args.positional[at];
  const NamedFunction* found = name.string() ? find(name.text()) : nullptr;
  if (found == nullptr) {
    std::string shown;
    AppendStr(rt, name, &shown);
    rt.Refuse("no {} named '{}'", find == FindTest ? "test" : "filter", shown);
  }
  rest->named = args.named;
  rest->positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                          args.positional.end());
  return found;
}

// --- filters that return generators ---

// map('filter', arguments ...), or map(attribute=, default=).
Value MapFilter(Runtime& rt, const Value& self, const Arguments& args) {
  std::vector<Value> items = InputOf(rt, self);
  if (!args.all().positional.empty()) {
    Args rest;
    const NamedFunction* filter = NamedAt(rt, args.all(), 0, FindFilter, &rest);
    for (size_t i = 0; i < items.size() && !rt.failed(); ++i) {
      items[i] = CallNamed(rt, *filter, items[i], rest);
    }
    return Generator(rt, std::move(items));
  }
  Value attribute = Value::Missing();
  Value fallback = Value::Missing();
  for (const auto& [name, value] : args.all().named) {
    if (name != "attribute" && name != "default") {
      return rt.Fail("map() got an unexpected argument '{}'", name);
    }
    (name == "attribute" ? attribute : fallback) = value;
  }
  if (attribute.missing()) return rt.Fail("map needs a filter, or 'attribute'");
  for (Value& item : items) item = AttributeAt(rt, item, attribute, fallback);
  return Generator(rt, std::move(items));
}

// select('test', arguments ...), and selectattr with the name of an attribute before that.
template <bool kKeep, bool kByAttribute>
Value SelectFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const std::vector<Value>& given = args.all().positional;
  const size_t at = kByAttribute ? 1 : 0;
  if (given.size() < at) return rt.Fail("selectattr and rejectattr need the name of an attribute");
  Args rest;
  const NamedFunction* test = nullptr;
  if (given.size() > at) test = NamedAt(rt, args.all(), at, FindTest, &rest);
  std::vector<Value> kept;
  for (const Value& item : InputOf(rt, self)) {
    if (rt.failed()) return {};
    const Value subject = kByAttribute ? AttributeAt(rt, item, given[0]) : item;
    const Value verdict = test == nullptr ? subject : CallNamed(rt, *test, subject, rest);
    if (Truthy(verdict) == kKeep) kept.push_back(item);
  }
  return Generator(rt, std::move(kept));
}

Value UniqueFilter(Runtime& rt, const Value& self, const Arguments& args) {
  std::vector<Value> kept;
  Dict seen;
  for (const Value& item : Drain(rt, self)) {
    const size_t before = seen.size();
    seen.Set(rt, SortKey(rt, AttributeAt(rt, item, args[1]), args[0]), Value::None());
    if (rt.failed()) return {};
    if (seen.size() > before) kept.push_back(item);
  }
  return Generator(rt, std::move(kept));
}

Value ItemsFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (self.undefined()) return Generator(rt, {});
  if (!self.dict()) return rt.Fail("can only get item pairs from a mapping");
  return Generator(rt, PartsOf(rt, self.entries(), ItemsKind::kPairs));
}

// --- filters that return a value at once ---

Value LengthFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  const int64_t length = Length(rt, self);
  if (length >= 0) return Value::Int(length);
  return rt.Fail("object of type '{}' has no length", TypeName(self));
}

Value DefaultFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const bool absent = self.undefined() || (Truthy(args[1]) && !Truthy(self));
  return absent ? args.Or(0, rt.Str("")) : self;
}

Value FirstFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  Value first = Value::Undefined("no first item, the sequence was empty");
  if (auto* items = self.As<Items>()) {
    items->ReadOne(&first);
  } else if (self.string() && !self.text().empty()) {
    first = rt.Str(self.text().substr(0, CharBytes(self.text(), 0)));
  } else if (const std::vector<Value> all = Drain(rt, self); !all.empty()) {
    first = all.front();
  }
  return first;
}

Value LastFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (IsGenerator(self)) return rt.Fail("'generator' object is not reversible");
  if (self.string() && !self.text().empty()) {
    return rt.Str(self.text().substr(PreviousOffset(self.text(), self.text().size())));
  }
  const std::vector<Value> items = Drain(rt, self);
  return items.empty() ? Value::Undefined("no last item, the sequence was empty") : items.back();
}

Value ReverseFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (self.string()) return GetSlice(rt, self, {.step = Value::Int(-1)});
  std::vector<Value> items = Drain(rt, self);
  std::ranges::reverse(items);
  // Python's reversed() is used up by reading it; a list stands for what has no reversed().
  return IsGenerator(self) ? rt.List(std::move(items)) : Generator(rt, std::move(items));
}

Value ListFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return rt.List(Drain(rt, self));
}

Value DictSortFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (!self.dict()) return rt.Fail("dictsort needs a dict, not '{}'", TypeName(self));
  const std::string by = args[1].string() ? args[1].text() : "key";
  if (by != "key" && by != "value") return rt.Fail("dictsort is by 'key' or by 'value'");
  const SortOrder order = OrderAt(rt, args, 2);
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : self.entries().entries()) {
    items.push_back(rt.Tuple({key, value}));
    keys.push_back(SortKey(rt, by == "key" ? key : value, args[0]));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, order));
}

Value SortFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (args[2].string() && args[2].text().find(',') != std::string::npos) {
    return rt.Refuse("Headway does not sort by several attributes");
  }
  const SortOrder order = OrderAt(rt, args, 0);
  std::vector<Value> items = Drain(rt, self);
  std::vector<Value> keys;
  for (const Value& item : items) {
    // In a list, where equal keys need no order.
    keys.push_back(rt.List({SortKey(rt, AttributeAt(rt, item, args[2]), args[1])}));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, order));
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

constexpr NamedFunction kFilters[] = {
    {"count", LengthFilter},
    {"d", DefaultFilter, 0, {"default_value", "boolean"}},
    {"default", DefaultFilter, 0, {"default_value", "boolean"}},
    {"dictsort", DictSortFilter, 0, {"case_sensitive", "by", "reverse"}},
    {"first", FirstFilter},
    {"items", ItemsFilter},
    {"join", JoinFilter, 0, {"d", "attribute"}},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"map", MapFilter, 0, {"*"}},
    {"reject", SelectFilter<false, false>, 0, {"*"}},
    {"rejectattr", SelectFilter<false, true>, 0, {"*"}},
    {"reverse", ReverseFilter},
    {"select", SelectFilter<true, false>, 0, {"*"}},
    {"selectattr", SelectFilter<true, true>, 0, {"*"}},
    {"sort", SortFilter, 0, {"reverse", "case_sensitive", "attribute"}},
    {"unique", UniqueFilter, 0, {"case_sensitive", "attribute"}},
};

}  // namespace

const NamedFunction* FindFilter(std::string_view name) {
  const NamedFunction* filter = FindNamed(kFilters, name);
  return filter != nullptr ? filter : FindNamed(TextFilters(), name);
}

}  // namespace headway::jinja
