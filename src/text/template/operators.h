// What Python's operators and protocols do to values. Each fails through the Runtime where Python
// raises.
#ifndef HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
#define HEADWAY_TEXT_TEMPLATE_OPERATORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace headway::jinja {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

bool Truthy(const Value& value);
// jinja2's escape(): Markup of str(value) with &, <, >, ' and " replaced; Markup as it is.
Value Escape(Runtime& rt, const Value& value);

Value Binary(Runtime& rt, BinaryOp op, const Value& left, const Value& right);
Value Negate(Runtime& rt, const Value& value);

bool Equal(Runtime& rt, const Value& left, const Value& right);
bool Less(Runtime& rt, const Value& left, const Value& right);  // fails for types without an order
bool Contains(Runtime& rt, const Value& container, const Value& item);
bool Compare(Runtime& rt, CompareOp op, const Value& left, const Value& right);

// Sorts by keys, stably; `keys` and `items` are of one length.
enum class SortOrder { kAscending, kDescending };
std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              SortOrder order);

// object.name and object[key] as the sandboxed environment resolves them: undefined when there is
// nothing of that name.
Value GetAttribute(Runtime& rt, const Value& object, std::string_view name);
Value GetItem(Runtime& rt, const Value& object, const Value& key);
// object[start:stop:step]
struct SliceBounds {  // none or missing for what is left out
  Value start = Value::Missing();
  Value stop = Value::Missing();
  Value step = Value::Missing();
};
Value GetSlice(Runtime& rt, const Value& object, const SliceBounds& bounds);

bool Iterable(const Value& value);
// len(); -1 when there is none.
int64_t Length(Runtime& rt, const Value& value);
bool Callable(const Value& value);
Value Call(Runtime& rt, const Value& function, const Args& args);
// list(): every value that reading gives; fails when the value is not iterable.
std::vector<Value> Drain(Runtime& rt, const Value& value);

// Fails unless the value is an int.
int64_t AsInt(Runtime& rt, const Value& value);

// --- values as text: print.cc ---

std::string TypeName(const Value& value);  // "str", "NoneType" ...

// str(): nothing for an undefined value, text as it is, repr() of the rest.
Value ToStr(Runtime& rt, const Value& value);
// The same, appended; for output, where no value is needed.
void AppendStr(Runtime& rt, const Value& value, std::string* out);
void AppendRepr(Runtime& rt, const Value& value, std::string* out);
// {key: value, ...}
void AppendRepr(Runtime& rt, const Dict& dict, std::string* out);

// The arguments of json.dumps().
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent = std::nullopt;  // of one level; without one, all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void AppendJson(Runtime& rt, const Value& value, const JsonStyle& style, std::string* out);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
