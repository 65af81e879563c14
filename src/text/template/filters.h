// The tables of filters by what they work on, and what filters share.
#ifndef HEADWAY_TEXT_TEMPLATE_FILTERS_H_
#define HEADWAY_TEXT_TEMPLATE_FILTERS_H_

#include <span>
#include <vector>

#include "text/template/call.h"

namespace headway::jinja {

std::span<const NamedFunction> TextFilters();
std::span<const NamedFunction> SequenceFilters();
// Filters that return generators: map, select, unique ...
std::span<const NamedFunction> SelectFilters();

// The attribute of `item` at a path like 'a.0.b', or at a key of another type; the item itself
// where `path` is none or missing. `fallback`, unless it is missing, stands for an undefined step.
Value AttributeAt(Runtime& rt, Value item, const Value& path,
                  const Value& fallback = Value::Missing());

// Lower case of a string, anything else as it is: how filters compare by default.
Value IgnoreCase(Runtime& rt, const Value& value);

// Sorts by keys, stably; `keys` and `items` are of one length.
std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              bool reverse);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_FILTERS_H_
