// Filters on sequences and mappings that return a value at once.
#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/template/filters.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

Value LengthFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  int64_t length = 0;
  if (Length(rt, self, &length)) return Value::Int(length);
  return rt.Fail(fmt::format("object of type '{}' has no length", TypeName(self)));
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

// Reading backwards, which a generator cannot.
bool CheckReversible(Runtime& rt, const Value& self) {
  const auto* items = self.As<Items>();
  if (items != nullptr && items->generator()) rt.Fail("'generator' object is not reversible");
  return !rt.failed();
}

Value LastFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (!CheckReversible(rt, self)) return {};
  if (self.string() && !self.text().empty()) {
    return rt.Str(self.text().substr(PreviousOffset(self.text(), self.text().size())));
  }
  const std::vector<Value> items = Drain(rt, self);
  return items.empty() ? Value::Undefined("no last item, the sequence was empty") : items.back();
}

Value ReverseFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (self.string()) {
    return GetSlice(rt, self, Value::None(), Value::None(), Value::Int(-1));
  }
  std::vector<Value> items = Drain(rt, self);
  std::reverse(items.begin(), items.end());
  // Python's reversed() is used up by reading it; a list stands for what has no reversed().
  const auto* source = self.As<Items>();
  if (source != nullptr && source->generator()) return rt.List(std::move(items));
  return rt.Made(std::make_shared<Items>(ItemsKind::kGenerator, std::move(items)));
}

Value ListFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return rt.List(Drain(rt, self));
}

Value DictSortFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (self.undefined()) return rt.FailUndefined(self);
  if (!self.dict()) return rt.Fail(fmt::format("dictsort needs a dict, not '{}'", TypeName(self)));
  const std::string by = args[1].string() ? args[1].text() : "key";
  if (by != "key" && by != "value") return rt.Fail("dictsort is by 'key' or by 'value'");
  int64_t reverse = 0;
  if (args.has(2) && !AsIndex(rt, args[2], &reverse)) return {};
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : self.entries().entries()) {
    items.push_back(rt.Tuple({key, value}));
    const Value& sort_key = by == "key" ? key : value;
    keys.push_back(Truthy(args[0]) ? sort_key : IgnoreCase(rt, sort_key));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, reverse != 0));
}

Value SortFilter(Runtime& rt, const Value& self, const Arguments& args) {
  if (args[2].string() && args[2].text().find(',') != std::string::npos) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not sort by several attributes");
  }
  int64_t reverse = 0;
  if (args.has(0) && !AsIndex(rt, args[0], &reverse)) return {};
  std::vector<Value> items = Drain(rt, self);
  std::vector<Value> keys;
  for (const Value& item : items) {
    const Value key = AttributeAt(rt, item, args[2]);
    // In a list, where equal keys need no order.
    keys.push_back(rt.List({Truthy(args[1]) ? key : IgnoreCase(rt, key)}));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, reverse != 0));
}

constexpr NamedFunction kFilters[] = {
    {"count", LengthFilter},
    {"d", DefaultFilter, 0, {"default_value", "boolean"}},
    {"default", DefaultFilter, 0, {"default_value", "boolean"}},
    {"dictsort", DictSortFilter, 0, {"case_sensitive", "by", "reverse"}},
    {"first", FirstFilter},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"reverse", ReverseFilter},
    {"sort", SortFilter, 0, {"reverse", "case_sensitive", "attribute"}},
};

}  // namespace

std::span<const NamedFunction> SequenceFilters() { return kFilters; }

}  // namespace headway::jinja
