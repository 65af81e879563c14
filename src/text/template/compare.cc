// Equality, order and membership.
#include <fmt/format.h>

#include <algorithm>
#include <compare>

#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// A long double holds every int64 and every double exactly.
long double Exact(const Value& value) {
  return value.integral() ? static_cast<long double>(value.integer())
                          : static_cast<long double>(value.real());
}

bool EqualItems(Runtime& rt, const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!Equal(rt, left[i], right[i])) return false;
  }
  return true;
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

bool ContainsKey(Runtime& rt, const Dict& dict, const Value& key) {
  return CheckKey(rt, key) && dict.Find(rt, key) != nullptr;
}

}  // namespace

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
      const auto* a = left.As<Range>();
      const auto* b = right.As<Range>();
      if (a != nullptr && b != nullptr) return *a == *b;
      return left.object() == right.object();
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
  if (container.dict()) return ContainsKey(rt, container.entries(), item);
  if (const auto* view = container.As<DictView>(); view != nullptr && view->keys()) {
    return ContainsKey(rt, view->dict(), item);
  }
  const std::shared_ptr<Iterator> iterator = Iterate(rt, container);
  if (iterator == nullptr) return false;
  Value candidate;
  while (iterator->Next(rt, &candidate)) {
    if (Equal(rt, candidate, item)) return true;
  }
  return false;
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

}  // namespace headway::jinja
