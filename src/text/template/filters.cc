#include "text/template/filters.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>

#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {

const NamedFunction* FindFilter(std::string_view name) {
  for (const auto table : {TextFilters(), SequenceFilters(), SelectFilters()}) {
    if (const NamedFunction* filter = FindNamed(table, name)) return filter;
  }
  return nullptr;
}

Value AttributeAt(Runtime& rt, Value item, const Value& path, const Value& fallback) {
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

Value IgnoreCase(Runtime& rt, const Value& value) {
  if (!value.string()) return value;
  rt.Charge(static_cast<int64_t>(value.text().size()) / kScanBytesPerStep);
  return rt.Str(unicode::ToLower(value.text()));
}

std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Once the Runtime has failed no two keys have an order: a valid one for the sort.
  const auto less = [&](size_t a, size_t b) {
    return !rt.failed() && Less(rt, keys[a], keys[b]) && !rt.failed();
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reverse ? less(b, a) : less(a, b); });
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(std::move(items[i]));
  return sorted;
}

}  // namespace headway::jinja
