// What Python's operators and protocols do to values. Each fails through the Runtime where Python
// raises.
#ifndef HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
#define HEADWAY_TEXT_TEMPLATE_OPERATORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/template/value.h"

namespace headway::jinja {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

std::string TypeName(const Value& value);  // "str", "NoneType" ...
bool Truthy(const Value& value);
// str(): nothing for an undefined value, text as it is, repr() of the rest.
Value ToStr(Runtime& rt, const Value& value);
// The same, appended; for output, where no value is needed.
void AppendStr(Runtime& rt, const Value& value, std::string* out);
void AppendRepr(Runtime& rt, const Value& value, std::string* out);
// {key: value, ...}
void AppendRepr(Runtime& rt, const Dict& dict, std::string* out);
std::string FloatRepr(double value);

Value Binary(Runtime& rt, BinaryOp op, const Value& left, const Value& right);
Value Negate(Runtime& rt, const Value& value);
Value Positive(Runtime& rt, const Value& value);

// `is` for what a template can tell apart: the same object, or equal constants of one type.
bool Same(const Value& left, const Value& right);
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

// iter(); null (and failed) when the value is not iterable.
std::shared_ptr<Iterator> Iterate(Runtime& rt, const Value& value);
bool Iterable(const Value& value);
// len(); false when there is none.
bool Length(Runtime& rt, const Value& value, int64_t* length);
bool Callable(const Value& value);
Value Call(Runtime& rt, const Value& function, const Args& args);
// list(): every value that the iterator still has.
std::vector<Value> Drain(Runtime& rt, const Value& value);

// Fails unless the value is an int that fits.
bool AsIndex(Runtime& rt, const Value& value, int64_t* index);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_OPERATORS_H_
