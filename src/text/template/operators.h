// What Python's operators and protocols do to values. Each fails through the Runtime where Python
// raises.
#ifndef HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
#define HEADWAY_TEXT_TEMPLATE_OPERATORS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/template/print.h"
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

// object.name and object[key] as the sandboxed environment resolves them: undefined when there is
// nothing of that name.
Value GetAttribute(Runtime& rt, const Value& object, std::string_view name);
Value GetItem(Runtime& rt, const Value& object, const Value& key);
// object[start:stop:step]; none or missing for what is left out.
Value GetSlice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
               const Value& step);

bool Iterable(const Value& value);
// len(); false when there is none.
bool Length(Runtime& rt, const Value& value, int64_t* length);
bool Callable(const Value& value);
Value Call(Runtime& rt, const Value& function, const Args& args);
// list(): every value that reading gives; fails when the value is not iterable.
std::vector<Value> Drain(Runtime& rt, const Value& value);

// Fails unless the value is an int that fits.
bool AsIndex(Runtime& rt, const Value& value, int64_t* index);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
