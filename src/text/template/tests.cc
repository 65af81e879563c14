// The tests of `x is test`.
#include <fmt/format.h>

#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// A test without arguments that only looks at the value.
template <bool (*kPredicate)(const Value&)>
Value Plain(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "test", {}, 0);
  return Value::Bool(kPredicate(self));
}

bool IsDefined(const Value& v) { return !v.undefined(); }
bool IsUndefined(const Value& v) { return v.undefined(); }
bool IsNone(const Value& v) { return v.none(); }
bool IsBoolean(const Value& v) { return v.is(Kind::kBool); }
bool IsTrue(const Value& v) { return v.is(Kind::kBool) && v.boolean(); }
bool IsFalse(const Value& v) { return v.is(Kind::kBool) && !v.boolean(); }
bool IsInteger(const Value& v) { return v.is(Kind::kInt); }
bool IsFloat(const Value& v) { return v.is(Kind::kFloat); }
bool IsNumber(const Value& v) { return v.number(); }
bool IsString(const Value& v) { return v.string(); }
bool IsMapping(const Value& v) { return v.dict(); }
bool IsSequence(const Value& v) {
  return v.undefined() || v.string() || v.sequence() || v.dict() || v.As<Range>() != nullptr;
}

template <CompareOp kOp>
Value Comparison(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "comparison", {"/other"}, 1);
  return bound.ok() ? Value::Bool(Compare(rt, kOp, self, bound[0])) : Value();
}

// value % divisor == remainder
Value HasRemainder(Runtime& rt, const Value& value, const Value& divisor, int64_t remainder) {
  const Value found = Binary(rt, BinaryOp::kMod, value, divisor);
  return Value::Bool(Equal(rt, found, Value::Int(remainder)));
}

Value IsOdd(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "odd", {}, 0);
  return HasRemainder(rt, self, Value::Int(2), 1);
}

Value IsEven(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "even", {}, 0);
  return HasRemainder(rt, self, Value::Int(2), 0);
}

Value IsDivisibleBy(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "divisibleby", {"num"}, 1);
  return bound.ok() ? HasRemainder(rt, self, bound[0], 0) : Value();
}

Value IsSameAs(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "sameas", {"other"}, 1);
  return bound.ok() ? Value::Bool(Same(self, bound[0])) : Value();
}

Value IsIn(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "in", {"seq"}, 1);
  return bound.ok() ? Value::Bool(Contains(rt, bound[0], self)) : Value();
}

constexpr NamedFunction kTests[] = {
    {"!=", Comparison<CompareOp::kNe>},
    {"<", Comparison<CompareOp::kLt>},
    {"<=", Comparison<CompareOp::kLe>},
    {"==", Comparison<CompareOp::kEq>},
    {">", Comparison<CompareOp::kGt>},
    {">=", Comparison<CompareOp::kGe>},
    {"boolean", Plain<IsBoolean>},
    {"callable", Plain<Callable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", IsDivisibleBy},
    {"eq", Comparison<CompareOp::kEq>},
    {"equalto", Comparison<CompareOp::kEq>},
    {"even", IsEven},
    {"false", Plain<IsFalse>},
    {"float", Plain<IsFloat>},
    {"ge", Comparison<CompareOp::kGe>},
    {"greaterthan", Comparison<CompareOp::kGt>},
    {"gt", Comparison<CompareOp::kGt>},
    {"in", IsIn},
    {"integer", Plain<IsInteger>},
    {"iterable", Plain<Iterable>},
    {"le", Comparison<CompareOp::kLe>},
    {"lessthan", Comparison<CompareOp::kLt>},
    {"lt", Comparison<CompareOp::kLt>},
    {"mapping", Plain<IsMapping>},
    {"ne", Comparison<CompareOp::kNe>},
    {"none", Plain<IsNone>},
    {"number", Plain<IsNumber>},
    {"odd", IsOdd},
    {"sameas", IsSameAs},
    {"sequence", Plain<IsSequence>},
    {"string", Plain<IsString>},
    {"true", Plain<IsTrue>},
    {"undefined", Plain<IsUndefined>},
};

}  // namespace

const NamedFunction* FindTest(std::string_view name) { return FindNamed(kTests, name); }

}  // namespace headway::jinja
