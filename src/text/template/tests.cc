// The tests of `x is test`.
#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// A test without arguments that only looks at the value.
template <bool (*kPredicate)(const Value&)>
Value Plain(Runtime& /*rt*/, const Value& self, const Arguments& /*args*/) {
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
  const auto* items = v.As<Items>();
  return v.undefined() || v.string() || v.sequence() || v.dict() ||
         (items != nullptr && items->range());
}

template <CompareOp kOp>
Value Comparison(Runtime& rt, const Value& self, const Arguments& args) {
  return Value::Bool(Compare(rt, kOp, self, args[0]));
}

// value % divisor == remainder
Value HasRemainder(Runtime& rt, const Value& value, const Value& divisor, int64_t remainder) {
  const Value found = Binary(rt, BinaryOp::kMod, value, divisor);
  return Value::Bool(Equal(rt, found, Value::Int(remainder)));
}

Value IsOdd(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return HasRemainder(rt, self, Value::Int(2), 1);
}

Value IsEven(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  return HasRemainder(rt, self, Value::Int(2), 0);
}

Value IsDivisibleBy(Runtime& rt, const Value& self, const Arguments& args) {
  return HasRemainder(rt, self, args[0], 0);
}

constexpr NamedFunction kTests[] = {
    {"!=", Comparison<CompareOp::kNe>, 1, {"other"}},
    {"<", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"<=", Comparison<CompareOp::kLe>, 1, {"other"}},
    {"==", Comparison<CompareOp::kEq>, 1, {"other"}},
    {">", Comparison<CompareOp::kGt>, 1, {"other"}},
    {">=", Comparison<CompareOp::kGe>, 1, {"other"}},
    {"boolean", Plain<IsBoolean>},
    {"callable", Plain<Callable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", IsDivisibleBy, 1, {"num"}},
    {"eq", Comparison<CompareOp::kEq>, 1, {"other"}},
    {"equalto", Comparison<CompareOp::kEq>, 1, {"other"}},
    {"even", IsEven},
    {"false", Plain<IsFalse>},
    {"float", Plain<IsFloat>},
    {"ge", Comparison<CompareOp::kGe>, 1, {"other"}},
    {"greaterthan", Comparison<CompareOp::kGt>, 1, {"other"}},
    {"gt", Comparison<CompareOp::kGt>, 1, {"other"}},
    {"in", Comparison<CompareOp::kIn>, 1, {"seq"}},
    {"integer", Plain<IsInteger>},
    {"iterable", Plain<Iterable>},
    {"le", Comparison<CompareOp::kLe>, 1, {"other"}},
    {"lessthan", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"lt", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"mapping", Plain<IsMapping>},
    {"ne", Comparison<CompareOp::kNe>, 1, {"other"}},
    {"none", Plain<IsNone>},
    {"number", Plain<IsNumber>},
    {"odd", IsOdd},
    {"sequence", Plain<IsSequence>},
    {"string", Plain<IsString>},
    {"true", Plain<IsTrue>},
    {"undefined", Plain<IsUndefined>},
};

}  // namespace

const NamedFunction* FindTest(std::string_view name) { return FindNamed(kTests, name); }

}  // namespace headway::jinja
