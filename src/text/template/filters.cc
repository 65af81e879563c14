#include "text/template/filters.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {

const NamedFunction* FindFilter(std::string_view name) {
  for (const auto table : {TextFilters(), SequenceFilters(), NumberFilters(), LazyFilters()}) {
    if (const NamedFunction* filter = FindNamed(table, name)) return filter;
  }
  return nullptr;
}

Value SoftStr(Runtime& rt, const Value& value) { return value.string() ? value : ToStr(rt, value); }

AttributePath::AttributePath(Runtime& rt, const Value& attribute) {
  if (attribute.none() || attribute.missing()) return;
  if (!attribute.string()) {
    parts_.push_back(attribute);
    return;
  }
  std::string_view rest = attribute.text();
  while (rt.Charge(1)) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    constexpr size_t kMaxDigits = 18;
    const bool digits =
        !part.empty() && part.size() <= kMaxDigits &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (digits) {
      int64_t index = 0;
      for (const char c : part) index = index * 10 + (c - '0');
      parts_.push_back(Value::Int(index));
    } else {
      parts_.push_back(rt.Str(std::string(part)));
    }
    if (dot == rest.size()) return;
    rest.remove_prefix(dot + 1);
  }
}

Value AttributePath::Get(Runtime& rt, Value item, const Value& fallback) const {
  for (const Value& part : parts_) {
    if (!rt.Charge(1)) return {};
    item = GetItem(rt, item, part);
    if (item.undefined() && !fallback.none() && !fallback.missing()) item = fallback;
  }
  return item;
}

Value IgnoreCase(Runtime& rt, const Value& value) {
  if (!value.string()) return value;
  rt.Charge(static_cast<int64_t>(value.text().size()) / kScanBytesPerStep);
  return rt.Str(unicode::ToLower(value.text()));
}

std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Python sorts the reversed list and reverses it again, so that equal items keep their order.
  if (reverse) std::reverse(order.begin(), order.end());
  // Once the Runtime has failed no two keys have an order: a valid one for the sort.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return !rt.failed() && Less(rt, keys[a], keys[b]) && !rt.failed();
  });
  if (reverse) std::reverse(order.begin(), order.end());
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(std::move(items[i]));
  return sorted;
}

}  // namespace headway::jinja
