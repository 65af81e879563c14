#include "text/template/operators.h"

#include <algorithm>
#include <numeric>

#include "text/template/objects.h"
#include "text/template/text_operations.h"

namespace headway::jinja {
namespace {

Value FailOperands(Runtime& rt, std::string_view op, const Value& left, const Value& right) {
  if (left.undefined()) return rt.FailUndefined(left);
  if (right.undefined()) return rt.FailUndefined(right);
  return rt.Fail("unsupported operand types for {}: '{}' and '{}'", op, TypeName(left),
                 TypeName(right));
}

// In 128 bits, where nothing overflows. Python rounds the quotient of // down; the remainder has
// the sign of the divisor.
Value IntBinary(Runtime& rt, BinaryOp op, int64_t left, int64_t right) {
  const __int128 a = left;
  const __int128 b = right;
  if (b == 0 && op >= BinaryOp::kDiv) return rt.Fail("division by zero");
  if (op == BinaryOp::kDiv) {
    return Value::Float(
        static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
  }
  __int128 result = a + b;
  if (op == BinaryOp::kSub) result = a - b;
  if (op == BinaryOp::kMul) result = a * b;
  if (op == BinaryOp::kMod) result = (a % b + b) % b;
  if (op == BinaryOp::kFloorDiv) result = (a - (a % b + b) % b) / b;
  const auto narrow = static_cast<int64_t>(result);
  return narrow == result ? Value::Int(narrow) : rt.FailTooLarge();
}

Value FloatBinary(Runtime& rt, BinaryOp op, double a, double b) {
  if (op == BinaryOp::kAdd) return Value::Float(a + b);
  if (op == BinaryOp::kSub) return Value::Float(a - b);
  if (op == BinaryOp::kMul) return Value::Float(a * b);
  if (b == 0.0) return rt.Fail("division by zero");
  if (op == BinaryOp::kDiv) return Value::Float(a / b);
  return rt.Refuse("Headway does not have '//' and '%' of floats");
}

Value AddTexts(Runtime& rt, const Value& left, const Value& right) {
  if (!rt.CheckSize(left.text().size() + right.text().size())) return {};
  if (!left.markup() && !right.markup()) return rt.Str(left.text() + right.text());
  const Value safe_left = Escape(rt, left);
  const Value safe_right = Escape(rt, right);
  if (rt.failed()) return {};
  return rt.Str(safe_left.text() + safe_right.text(), true);
}

Value AddSequences(Runtime& rt, const Value& left, const Value& right) {
  if (!rt.Charge(left.items().size() + right.items().size())) return {};
  std::vector<Value> items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  return rt.MakeSequence(left.kind(), std::move(items));
}

Value Repeat(Runtime& rt, const Value& value, int64_t count) {
  if (value.string()) {
    const std::string& once = value.text();
    std::string text;
    for (int64_t i = 0; i < count && !once.empty(); ++i) {
      text += once;
      if (!rt.CheckSize(text.size())) return {};
    }
    return rt.Str(std::move(text), value.markup());
  }
  const std::vector<Value>& once = value.items();
  std::vector<Value> items;
  for (int64_t i = 0; i < count && !once.empty(); ++i) {
    if (!rt.Charge(once.size())) return {};
    items.insert(items.end(), once.begin(), once.end());
  }
  return rt.MakeSequence(value.kind(), std::move(items));
}

// --- comparison ---

// A long double holds every int64 and every double exactly.
long double Exact(const Value& value) {
  return value.integral() ? static_cast<long double>(value.integer())
                          : static_cast<long double>(value.real());
}

bool EqualItems(Runtime& rt, const std::vector<Value>& left, const std::vector<Value>& right) {
  return std::ranges::equal(left, right,
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

}  // namespace

bool Truthy(const Value& value) {
  if (value.integral()) return value.integer() != 0;
  if (value.is(Kind::kFloat)) return value.real() != 0.0;
  if (value.string()) return !value.text().empty();
  if (value.sequence()) return !value.items().empty();
  if (value.dict()) return value.entries().size() != 0;
  const auto* items = value.As<Items>();
  if (items != nullptr) return items->generator() || !items->items().empty();
  return value.is(Kind::kObject);
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
  if (!nested.ok()) return false;
  if (left.number() && right.number()) return Exact(left) == Exact(right);
  if (left.kind() != right.kind()) return false;
  if (left.string()) return left.text() == right.text();
  if (left.sequence()) return EqualItems(rt, left.items(), right.items());
  if (left.dict()) return EqualDicts(rt, left.entries(), right.entries());
  const auto* a = left.As<Items>();
  const auto* b = right.As<Items>();
  const bool ranges = a != nullptr && b != nullptr && a->range() && b->range();
  if (ranges) return EqualItems(rt, a->items(), b->items());
  return !left.is(Kind::kObject) || left.object() == right.object();  // none is none
}

bool Less(Runtime& rt, const Value& left, const Value& right) {
  const Nested nested(rt);
  if (!nested.ok()) return false;
  if (left.number() && right.number()) return Exact(left) < Exact(right);
  if (left.string() && right.string()) return left.text() < right.text();
  if (left.sequence() && left.kind() == right.kind()) {
    return LessItems(rt, left.items(), right.items());
  }
  if (left.undefined()) return rt.FailUndefined(left);
  if (right.undefined()) return rt.FailUndefined(right);
  return rt.Fail("'{}' and '{}' have no order", TypeName(left), TypeName(right));
}

bool Contains(Runtime& rt, const Value& container, const Value& item) {
  if (container.string()) {
    if (!item.string()) return rt.Fail("'in <string>' needs a string, not '{}'", TypeName(item));
    rt.Charge(container.text().size() / kCopyBytesPerStep);
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.dict()) return CheckKey(rt, item) && container.entries().Find(rt, item) != nullptr;
  auto* source = container.As<Items>();
  if (source != nullptr && source->generator()) {  // which is read as far as the item
    Value candidate;
    while (source->ReadOne(&candidate)) {
      if (Equal(rt, candidate, item)) return true;
    }
    return false;
  }
  return std::ranges::any_of(Drain(rt, container),
                             [&](const Value& other) { return Equal(rt, other, item); });
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

std::vector<Value> SortByKeys(Runtime& rt, std::vector<Value> items, const std::vector<Value>& keys,
                              SortOrder order) {
  std::vector<size_t> places(items.size());
  std::iota(places.begin(), places.end(), size_t{0});
  // Once the Runtime has failed no two keys have an order: a valid one for the sort.
  const auto less = [&](size_t a, size_t b) {
    return !rt.failed() && Less(rt, keys[a], keys[b]) && !rt.failed();
  };
  std::ranges::stable_sort(places, [&](size_t a, size_t b) {
    return order == SortOrder::kAscending ? less(a, b) : less(b, a);
  });
  std::vector<Value> sorted;
  for (const size_t i : places) sorted.push_back(std::move(items[i]));
  return sorted;
}

Value Escape(Runtime& rt, const Value& value) {
  if (value.markup()) return value;
  const Value text = ToStr(rt, value);
  if (rt.failed()) return {};
  rt.ChargeScan(text.text());
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string escaped;
  for (const char& c : text.text()) {
    const size_t at = kSpecial.find(c);
    escaped += at == kSpecial.npos ? std::string_view(&c, 1) : kNames[at];
  }
  return rt.Str(std::move(escaped), true);
}

}  // namespace headway::jinja
