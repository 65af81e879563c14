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

Value LengthFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "length", {}, 0);
  int64_t length = 0;
  if (!Length(rt, self, &length)) {
    return rt.Fail(fmt::format("object of type '{}' has no length", TypeName(self)));
  }
  return Value::Int(length);
}

Value DefaultFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "default", {"default_value", "boolean"}, 0);
  if (!bound.ok()) return {};
  const bool absent = self.undefined() || (Truthy(bound[1]) && !Truthy(self));
  if (!absent) return self;
  return bound.has(0) ? bound[0] : rt.Str("");
}

Value FirstFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "first", {}, 0);
  const std::shared_ptr<Iterator> iterator = Iterate(rt, self);
  Value item;
  if (iterator != nullptr && iterator->Next(rt, &item)) return item;
  return Value::Undefined("no first item, the sequence was empty");
}

Value LastFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "last", {}, 0);
  if (self.sequence() && !self.items().empty()) return self.items().back();
  if (self.string() && !self.text().empty()) {
    return rt.Str(self.text().substr(PreviousOffset(self.text(), self.text().size())));
  }
  if (self.As<Iterator>() != nullptr) {
    return rt.Fail(fmt::format("'{}' object is not reversible", TypeName(self)));
  }
  const std::vector<Value> items = Drain(rt, self);
  return items.empty() ? Value::Undefined("no last item, the sequence was empty") : items.back();
}

Value ReverseFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "reverse", {}, 0);
  if (!bound.ok()) return {};
  if (self.string()) {
    return GetSlice(rt, self, Value::None(), Value::None(), Value::Int(-1));
  }
  std::vector<Value> items = Drain(rt, self);
  std::reverse(items.begin(), items.end());
  // Python's reversed() is used up by reading it; a list stands for what has no reversed().
  if (self.As<Iterator>() != nullptr) return rt.List(std::move(items));
  return rt.Tracked(IterateOwned(std::move(items)));
}

Value ListFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "list", {}, 0);
  return rt.List(Drain(rt, self));
}

// The `reverse` argument of sorted(), which takes no other truth values than ints.
bool ReverseArgument(Runtime& rt, const Value& value, bool* reverse) {
  int64_t number = 0;
  if (!value.missing() && !AsIndex(rt, value, &number)) return false;
  *reverse = number != 0;
  return true;
}

Value DictSortFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "dictsort", {"case_sensitive", "by", "reverse"}, 0);
  if (!bound.ok()) return {};
  const Value by = bound.Or(1, Value::Constant("key"));
  const std::string part = by.string() ? by.text() : "";
  if (part != "key" && part != "value") return rt.Fail("dictsort is by 'key' or by 'value'");
  if (self.undefined()) return rt.FailUndefined(self);
  if (!self.dict()) return rt.Fail(fmt::format("dictsort needs a dict, not '{}'", TypeName(self)));
  bool reverse = false;
  if (!ReverseArgument(rt, bound[2], &reverse)) return {};
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : self.entries().entries()) {
    items.push_back(rt.Tuple({key, value}));
    const Value& sort_key = part == "key" ? key : value;
    keys.push_back(Truthy(bound[0]) ? sort_key : IgnoreCase(rt, sort_key));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, reverse));
}

// The sort key of `item`: a list with one part for every path.
Value SortKey(Runtime& rt, const Value& item, const std::vector<AttributePath>& paths,
              bool case_sensitive) {
  std::vector<Value> parts;
  for (const AttributePath& path : paths) {
    const Value part = path.Get(rt, item, Value::None());
    parts.push_back(case_sensitive ? part : IgnoreCase(rt, part));
  }
  return rt.List(std::move(parts));
}

Value SortFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "sort", {"reverse", "case_sensitive", "attribute"}, 0);
  bool reverse = false;
  if (!bound.ok() || !ReverseArgument(rt, bound[0], &reverse)) return {};
  std::vector<AttributePath> paths;
  if (bound[2].string()) {
    std::string_view rest = bound[2].text();
    while (rt.Charge(1)) {
      const size_t comma = std::min(rest.find(','), rest.size());
      paths.emplace_back(rt, rt.Str(std::string(rest.substr(0, comma))));
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(rt, bound[2]);
  }
  std::vector<Value> items = Drain(rt, self);
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(SortKey(rt, item, paths, Truthy(bound[1])));
    if (rt.failed()) return {};
  }
  return rt.List(SortByKeys(rt, std::move(items), keys, reverse));
}

template <bool kMax>
Value ExtremeFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, kMax ? "max" : "min", {"case_sensitive", "attribute"}, 0);
  if (!bound.ok()) return {};
  const bool case_sensitive = Truthy(bound[0]);
  const AttributePath path(rt, bound[1]);
  const std::shared_ptr<Iterator> iterator = Iterate(rt, self);
  if (iterator == nullptr) return {};
  Value best = Value::Undefined("no aggregated item, the sequence was empty");
  Value best_key;
  Value item;
  for (bool first = true; iterator->Next(rt, &item); first = false) {
    Value key = path.Get(rt, item, Value::None());
    if (!case_sensitive) key = IgnoreCase(rt, key);
    const bool better = first || (kMax ? Less(rt, best_key, key) : Less(rt, key, best_key));
    if (rt.failed()) return {};
    if (!better) continue;
    best = item;
    best_key = key;
  }
  return best;
}

Value SumFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "sum", {"attribute", "start"}, 0);
  if (!bound.ok()) return {};
  Value sum = bound.Or(1, Value::Int(0));
  if (sum.string()) return rt.Fail("sum cannot add strings");
  const AttributePath path(rt, bound[0]);
  const std::shared_ptr<Iterator> iterator = Iterate(rt, self);
  if (iterator == nullptr) return {};
  Value item;
  while (iterator->Next(rt, &item)) {
    sum = Binary(rt, BinaryOp::kAdd, sum, path.Get(rt, item, Value::None()));
    if (rt.failed()) return {};
  }
  return sum;
}

constexpr NamedFunction kFilters[] = {{"count", LengthFilter},
                                      {"d", DefaultFilter},
                                      {"default", DefaultFilter},
                                      {"dictsort", DictSortFilter},
                                      {"first", FirstFilter},
                                      {"last", LastFilter},
                                      {"length", LengthFilter},
                                      {"list", ListFilter},
                                      {"max", ExtremeFilter<true>},
                                      {"min", ExtremeFilter<false>},
                                      {"reverse", ReverseFilter},
                                      {"sort", SortFilter},
                                      {"sum", SumFilter}};

}  // namespace

std::span<const NamedFunction> SequenceFilters() { return kFilters; }

}  // namespace headway::jinja
