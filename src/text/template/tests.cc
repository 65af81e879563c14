// The tests of `x is test`.
#include "text/template/call.h"
#include "text/template/objects.h"

namespace headway::jinja {
namespace {

// A test without arguments that only looks at the value.
template <bool (*kPredicate)(const Value&)>
Value Plain(Runtime& /*rt*/, const Value& self, const Arguments& /*args*/) {
  return Value::Bool(kPredicate(self));
}

bool IsUndefined(const Value& v) { return v.undefined(); }
bool IsDefined(const Value& v) { return !v.undefined(); }
bool IsTrue(const Value& v) { return v.is(Kind::kBool) && v.boolean(); }
bool IsFalse(const Value& v) { return v.is(Kind::kBool) && !v.boolean(); }
bool IsNumber(const Value& v) { return v.number(); }
bool IsSequence(const Value& v) {
  const auto* items = v.As<Items>();
  return Iterable(v) && (items == nullptr || items->range());
}

template <Kind kKind>
Value OfKind(Runtime& /*rt*/, const Value& self, const Arguments& /*args*/) {
  return Value::Bool(self.is(kKind));
}

template <CompareOp kOp>
Value Comparison(Runtime& rt, const Value& self, const Arguments& args) {
  return Value::Bool(Compare(rt, kOp, self, args[0]));
}

// value % divisor == kRemainder; without an argument the divisor is 2.
template <int64_t kRemainder>
Value HasRemainder(Runtime& rt, const Value& self, const Arguments& args) {
  const Value remainder = Binary(rt, BinaryOp::kMod, self, args.Or(0, Value::Int(2)));
  return Value::Bool(Equal(rt, remainder, Value::Int(kRemainder)));
}

constexpr NamedFunction kTests[] = {
    {"!=", Comparison<CompareOp::kNe>, 1, {"other"}},
    {"<", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"<=", Comparison<CompareOp::kLe>, 1, {"other"}},
    {"==", Comparison<CompareOp::kEq>, 1, {"other"}},
    {">", Comparison<CompareOp::kGt>, 1, {"other"}},
    {">=", Comparison<CompareOp::kGe>, 1, {"other"}},
    {"boolean", OfKind<Kind::kBool>},
    {"callable", Plain<Callable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", HasRemainder<0>, 1, {"num"}},
    {"eq", Comparison<CompareOp::kEq>, 1, {"other"}},
    {"equalto", Comparison<CompareOp::kEq>, 1, {"other"}},
    {"even", HasRemainder<0>},
    {"false", Plain<IsFalse>},
    {"float", OfKind<Kind::kFloat>},
    {"ge", Comparison<CompareOp::kGe>, 1, {"other"}},
    {"greaterthan", Comparison<CompareOp::kGt>, 1, {"other"}},
    {"gt", Comparison<CompareOp::kGt>, 1, {"other"}},
    {"in", Comparison<CompareOp::kIn>, 1, {"seq"}},
    {"integer", OfKind<Kind::kInt>},
    {"iterable", Plain<Iterable>},
    {"le", Comparison<CompareOp::kLe>, 1, {"other"}},
    {"lessthan", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"lt", Comparison<CompareOp::kLt>, 1, {"other"}},
    {"mapping", OfKind<Kind::kDict>},
    {"ne", Comparison<CompareOp::kNe>, 1, {"other"}},
    {"none", OfKind<Kind::kNone>},
    {"number", Plain<IsNumber>},
    {"odd", HasRemainder<1>},
    {"sequence", Plain<IsSequence>},
    {"string", OfKind<Kind::kString>},
    {"true", Plain<IsTrue>},
    {"undefined", Plain<IsUndefined>},
};

}  // namespace

const NamedFunction* FindTest(std::string_view name) { return FindNamed(kTests, name); }

}  // namespace headway::jinja
