#include "text/template/operators.h"

#include <fmt/format.h>

#include <cmath>

#include "text/template/call.h"
#include "text/template/format.h"
#include "text/template/objects.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

Value FailOverflow(Runtime& rt) {
  return rt.Fail(StatusCode::kUnsupported, "an integer does not fit in 64 bits");
}

Value FailOperands(Runtime& rt, std::string_view op, const Value& left, const Value& right) {
  if (left.undefined()) return rt.FailUndefined(left);
  if (right.undefined()) return rt.FailUndefined(right);
  return rt.Fail(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, TypeName(left),
                             TypeName(right)));
}

Value IntBinary(Runtime& rt, BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      return __builtin_add_overflow(a, b, &result) ? FailOverflow(rt) : Value::Int(result);
    case BinaryOp::kSub:
      return __builtin_sub_overflow(a, b, &result) ? FailOverflow(rt) : Value::Int(result);
    case BinaryOp::kMul:
      return __builtin_mul_overflow(a, b, &result) ? FailOverflow(rt) : Value::Int(result);
    case BinaryOp::kDiv:
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      break;
  }
  if (b == 0) return rt.Fail("division by zero");
  if (op == BinaryOp::kDiv) {
    return Value::Float(
        static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (b == -1) {  // INT64_MIN / -1 would trap
    if (op == BinaryOp::kMod) return Value::Int(0);
    return __builtin_sub_overflow(int64_t{0}, a, &result) ? FailOverflow(rt) : Value::Int(result);
  }
  // Python rounds the quotient down; the remainder has the sign of the divisor.
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == BinaryOp::kMod) return Value::Int(adjust ? remainder + b : remainder);
  return Value::Int(a / b - (adjust ? 1 : 0));
}

Value FloatBinary(Runtime& rt, BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      break;
  }
  if (b == 0.0) return rt.Fail("division by zero");
  if (op == BinaryOp::kDiv) return Value::Float(a / b);
  // As Python's float divmod: the remainder first, then a quotient that agrees with it.
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0.0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1.0;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (op == BinaryOp::kMod) return Value::Float(remainder);
  if (quotient == 0.0) return Value::Float(std::copysign(0.0, a / b));
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1.0;
  return Value::Float(floored);
}

Value AddTexts(Runtime& rt, const Value& left, const Value& right) {
  const auto size = static_cast<int64_t>(left.text().size() + right.text().size());
  if (!rt.CheckSize(size)) return {};
  if (!left.markup() && !right.markup()) return rt.Str(left.text() + right.text());
  const Value safe_left = Escape(rt, left);
  const Value safe_right = Escape(rt, right);
  if (rt.failed()) return {};
  return rt.Str(safe_left.text() + safe_right.text(), true);
}

Value AddSequences(Runtime& rt, const Value& left, const Value& right) {
  const auto size = static_cast<int64_t>(left.items().size() + right.items().size());
  if (!rt.Charge(size)) return {};
  std::vector<Value> items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  return left.list() ? rt.List(std::move(items)) : rt.Tuple(std::move(items));
}

Value RepeatText(Runtime& rt, const Value& value, int64_t count) {
  const auto size = static_cast<int64_t>(value.text().size());
  if (count <= 0 || size == 0) return rt.Str("", value.markup());
  if (count > rt.max_output() / size && !rt.CheckSize(rt.max_output() + 1)) return {};
  std::string text;
  text.reserve(static_cast<size_t>(size * count));
  for (int64_t i = 0; i < count; ++i) text += value.text();
  return rt.Str(std::move(text), value.markup());
}

Value RepeatItems(Runtime& rt, const Value& value, int64_t count) {
  const auto size = static_cast<int64_t>(value.items().size());
  std::vector<Value> items;
  for (int64_t i = 0; i < count && size > 0 && rt.Charge(size); ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  if (rt.failed()) return {};
  return value.list() ? rt.List(std::move(items)) : rt.Tuple(std::move(items));
}

Value Repeat(Runtime& rt, const Value& value, int64_t count) {
  return value.string() ? RepeatText(rt, value, count) : RepeatItems(rt, value, count);
}

}  // namespace

bool Truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0.0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.entries().size() != 0;
    case Kind::kObject:
      return value.object()->IsTrue();
  }
  return false;
}

Value Binary(Runtime& rt, BinaryOp op, const Value& left, const Value& right) {
  if (rt.failed()) return {};
  if (left.integral() && right.integral()) {
    return IntBinary(rt, op, left.integer(), right.integer());
  }
  if (left.number() && right.number()) {
    return FloatBinary(rt, op, left.AsDouble(), right.AsDouble());
  }
  if (op == BinaryOp::kAdd) {
    if (left.string() && right.string()) return AddTexts(rt, left, right);
    if (left.sequence() && left.kind() == right.kind()) return AddSequences(rt, left, right);
  }
  if (op == BinaryOp::kMul) {
    if ((left.string() || left.sequence()) && right.integral()) {
      return Repeat(rt, left, right.integer());
    }
    if ((right.string() || right.sequence()) && left.integral()) {
      return Repeat(rt, right, left.integer());
    }
  }
  if (op == BinaryOp::kMod && left.string()) return FormatPercent(rt, left, right);
  constexpr std::string_view kNames[] = {"+", "-", "*", "/", "//", "%"};
  return FailOperands(rt, kNames[static_cast<size_t>(op)], left, right);
}

Value Negate(Runtime& rt, const Value& value) {
  if (value.integral()) return IntBinary(rt, BinaryOp::kSub, 0, value.integer());
  if (value.is(Kind::kFloat)) return Value::Float(-value.real());
  return FailOperands(rt, "-", value, value);
}

Value Positive(Runtime& rt, const Value& value) {
  if (value.integral()) return Value::Int(value.integer());
  if (value.is(Kind::kFloat)) return value;
  return FailOperands(rt, "+", value, value);
}

bool Same(const Value& left, const Value& right) {
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return false;
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return left.integer() == right.integer();
    case Kind::kFloat:
      return left.real() == right.real();
    case Kind::kString:
      return left.text() == right.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kObject:
      return left.object() == right.object();
  }
  return false;
}

}  // namespace headway::jinja
