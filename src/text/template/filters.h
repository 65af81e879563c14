// The tables of filters by what they work on, and what filters share.
#ifndef HEADWAY_TEXT_TEMPLATE_FILTERS_H_
#define HEADWAY_TEXT_TEMPLATE_FILTERS_H_

#include <span>
#include <vector>

#include "text/template/call.h"

namespace headway::jinja {

std::span<const NamedFunction> TextFilters();
std::span<const NamedFunction> SequenceFilters();
std::span<const NamedFunction> NumberFilters();
// Filters that return generators: map, select, unique ...
std::span<const NamedFunction> LazyFilters();

// jinja2's soft_str: str(), but Markup stays Markup.
Value SoftStr(Runtime& rt, const Value& value);

// A path to an attribute, as `map(attribute='a.0.b')` takes it.
class AttributePath {
 public:
  // `attribute` none or missing: the item itself.
  AttributePath(Runtime& rt, const Value& attribute);
  // The attribute of `item`; `fallback`, unless it is none or missing, stands for each undefined
  // step.
  Value Get(Runtime& rt, Value item, const Value& fallback) const;

 private:
  std::vector<Value> parts_;
};

// Lower case of a string, anything else as it is: how filters compare by default.
Value IgnoreCase(Runtime& rt, const Value& value);

// Sorts by keys, stably; `keys` and `items` are of one length.
std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              bool reverse);

// tojson as Transformers defines it: json.dumps without ASCII or HTML escapes by default.
Value ToJsonFilter(Runtime& rt, const Value& self, const Args& args);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_FILTERS_H_
