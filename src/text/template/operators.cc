#include "text/template/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "text/template/objects.h"
#include "text/template/runtime.h"
#include "text/template/text_operations.h"

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

// a // b or a % b. Python rounds the quotient down; the remainder has the sign of the divisor.
Value IntDivide(Runtime& rt, BinaryOp op, int64_t a, int64_t b) {
  if (b == 0) return rt.Fail("division by zero");
  // In 128 bits, where INT64_MIN / -1 does not trap.
  const __int128 remainder = (__int128{a} % b + b) % b;
  if (op == BinaryOp::kMod) return Value::Int(static_cast<int64_t>(remainder));
  const __int128 quotient = (a - remainder) / b;
  const bool overflows = quotient > std::numeric_limits<int64_t>::max();
  return overflows ? FailOverflow(rt) : Value::Int(static_cast<int64_t>(quotient));
}

Value IntBinary(Runtime& rt, BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSub:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMul:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kDiv:
      if (b == 0) return rt.Fail("division by zero");
      return Value::Float(
          static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      return IntDivide(rt, op, a, b);
  }
  return overflows ? FailOverflow(rt) : Value::Int(result);
}

Value FloatBinary(Runtime& rt, BinaryOp op, double a, double b) {
  if (op == BinaryOp::kAdd) return Value::Float(a + b);
  if (op == BinaryOp::kSub) return Value::Float(a - b);
  if (op == BinaryOp::kMul) return Value::Float(a * b);
  if (b == 0.0) return rt.Fail("division by zero");
  if (op == BinaryOp::kDiv) return Value::Float(a / b);
  return rt.Fail(StatusCode::kUnsupported, "Headway does not have '//' and '%' of floats");
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

Value Repeat(Runtime& rt, const Value& value, int64_t count) {
  if (value.string()) {
    const std::string& once = value.text();
    std::string text;
    for (int64_t i = 0; i < count && !once.empty(); ++i) {
      text += once;
      if (!rt.CheckSize(static_cast<int64_t>(text.size()))) return {};
    }
    return rt.Str(std::move(text), value.markup());
  }
  const std::vector<Value>& once = value.items();
  std::vector<Value> items;
  for (int64_t i = 0; i < count && !once.empty(); ++i) {
    if (!rt.Charge(static_cast<int64_t>(once.size()))) return {};
    items.insert(items.end(), once.begin(), once.end());
  }
  return value.list() ? rt.List(std::move(items)) : rt.Tuple(std::move(items));
}

// --- comparison ---

// A long double holds every int64 and every double exactly.
long double Exact(const Value& value) {
  return value.integral() ? static_cast<long double>(value.integer())
                          : static_cast<long double>(value.real());
}

bool EqualItems(Runtime& rt, const std::vector<Value>& left, const std::vector<Value>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](const Value& a, const Value& b) { return Equal(rt, a, b); });
}

bool EqualDicts(Runtime& rt, const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.Find(rt, key);
    if (other == nullptr || !Equal(rt, value, *other)) return false;
  }
  return true;
}

bool LessItems(Runtime& rt, const std::vector<Value>& left, const std::vector<Value>& right) {
  const size_t common = std::min(left.size(), right.size());
  for (size_t i = 0; i < common; ++i) {
    if (rt.failed()) return false;
    if (!Equal(rt, left[i], right[i])) return Less(rt, left[i], right[i]);
  }
  return left.size() < right.size();
}

bool ContainsText(Runtime& rt, const std::string& text, const Value& item) {
  if (!item.string()) {
    rt.Fail(fmt::format("'in <string>' needs a string, not '{}'", TypeName(item)));
    return false;
  }
  rt.Charge(static_cast<int64_t>(text.size()) / kCopyBytesPerStep);
  return text.find(item.text()) != std::string::npos;
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
      return value.As<Items>() == nullptr || value.As<Items>()->generator() ||
             !value.As<Items>()->items().empty();
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

bool Equal(Runtime& rt, const Value& left, const Value& right) {
  const Nested nested(rt);
  if (!nested.ok() || !rt.Charge(1)) return false;
  if (left.number() && right.number()) return Exact(left) == Exact(right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return left.text() == right.text();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(rt, left.items(), right.items());
    case Kind::kDict:
      return EqualDicts(rt, left.entries(), right.entries());
    case Kind::kObject: {
      const auto* a = left.As<Items>();
      const auto* b = right.As<Items>();
      const bool ranges = a != nullptr && b != nullptr && a->range() && b->range();
      return ranges ? EqualItems(rt, a->items(), b->items()) : left.object() == right.object();
    }
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      break;  // numbers were compared above
  }
  return false;
}

bool Less(Runtime& rt, const Value& left, const Value& right) {
  const Nested nested(rt);
  if (!nested.ok() || !rt.Charge(1)) return false;
  if (left.number() && right.number()) return Exact(left) < Exact(right);
  if (left.string() && right.string()) return left.text() < right.text();
  if (left.sequence() && left.kind() == right.kind()) {
    return LessItems(rt, left.items(), right.items());
  }
  if (left.undefined()) {
    rt.FailUndefined(left);
  } else if (right.undefined()) {
    rt.FailUndefined(right);
  } else {
    rt.Fail(fmt::format("'{}' and '{}' have no order", TypeName(left), TypeName(right)));
  }
  return false;
}

bool Contains(Runtime& rt, const Value& container, const Value& item) {
  if (container.string()) return ContainsText(rt, container.text(), item);
  if (container.dict()) return CheckKey(rt, item) && container.entries().Find(rt, item) != nullptr;
  auto* source = container.As<Items>();
  if (source != nullptr && source->generator()) {  // which is read as far as the item
    Value candidate;
    while (source->ReadOne(&candidate)) {
      if (Equal(rt, candidate, item)) return true;
    }
    return false;
  }
  const std::vector<Value> items = Drain(rt, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& candidate) { return Equal(rt, candidate, item); });
}

bool Compare(Runtime& rt, CompareOp op, const Value& left, const Value& right) {
  if (rt.failed()) return false;
  switch (op) {
    case CompareOp::kEq:
      return Equal(rt, left, right);
    case CompareOp::kNe:
      return !Equal(rt, left, right);
    case CompareOp::kLt:
      return Less(rt, left, right);
    case CompareOp::kGt:
      return Less(rt, right, left);
    case CompareOp::kLe:
      return Less(rt, left, right) || Equal(rt, left, right);
    case CompareOp::kGe:
      return Less(rt, right, left) || Equal(rt, left, right);
    case CompareOp::kIn:
      return Contains(rt, right, left);
    case CompareOp::kNotIn:
      return !Contains(rt, right, left);
  }
  return false;
}

Value Escape(Runtime& rt, const Value& value) {
  if (value.markup()) return value;
  const Value text = ToStr(rt, value);
  if (rt.failed()) return {};
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string escaped;
  for (const char c : text.text()) {
    const size_t at = kSpecial.find(c);
    if (at == kSpecial.npos) {
      escaped += c;
    } else {
      escaped += kNames[at];
    }
  }
  return rt.Str(std::move(escaped), true);
}

}  // namespace headway::jinja
