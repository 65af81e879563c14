// Expressions.
#include <fmt/format.h>

#include <algorithm>

#include "text/template/interpreter.h"
#include "text/template/operators.h"

namespace headway::jinja {

Value Interpreter::Eval(const Expr& expr, const ScopePtr& scope) {
  const Nested nested(rt_);
  if (!nested.ok() || !rt_.Charge(1)) return {};
  const auto operand = [&](size_t i) { return Eval(*expr.operands[i], scope); };
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.value;
    case ExprKind::kName:
      return EvalName(expr, scope);
    case ExprKind::kNamespace:
      return {};  // only a target
    case ExprKind::kTuple:
    case ExprKind::kList:
      return EvalItems(expr, scope);
    case ExprKind::kDict:
      return EvalDict(expr, scope);
    case ExprKind::kNegate: {
      const Value value = operand(0);
      return rt_.failed() ? Value() : Negate(rt_, value);
    }
    case ExprKind::kNot:
      return Value::Bool(!Truthy(operand(0)));
    case ExprKind::kBinary: {
      const Value left = operand(0);
      const Value right = operand(1);
      rt_.set_line(expr.line);
      return Binary(rt_, expr.op, left, right);
    }
    case ExprKind::kAnd: {
      const Value left = operand(0);
      return Truthy(left) ? operand(1) : left;
    }
    case ExprKind::kOr: {
      const Value left = operand(0);
      return Truthy(left) ? left : operand(1);
    }
    case ExprKind::kConcat:
      return EvalConcat(expr, scope);
    case ExprKind::kCompare:
      return EvalCompare(expr, scope);
    case ExprKind::kGetAttr: {
      const Value object = operand(0);
      rt_.set_line(expr.line);
      return GetAttribute(rt_, object, expr.name);
    }
    case ExprKind::kGetItem: {
      const Value object = operand(0);
      const Value key = operand(1);
      rt_.set_line(expr.line);
      return GetItem(rt_, object, key);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr, scope);
    case ExprKind::kCall:
      return EvalCall(expr, scope, Value::Missing());
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return EvalFilter(expr, scope);
    case ExprKind::kIf:
      return EvalIf(expr, scope);
  }
  return {};
}

Value Interpreter::EvalName(const Expr& expr, const ScopePtr& scope) {
  if (const Value* value = scope->Find(expr.name)) return *value;
  if (const Value* value = context_.FindText(expr.name)) return *value;
  Value global;
  if (FindGlobal(expr.name, &global)) return global;
  return Value::Undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Interpreter::EvalItems(const Expr& expr, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(expr.operands.size());
  for (const ExprPtr& operand : expr.operands) {
    items.push_back(Eval(*operand, scope));
    if (rt_.failed()) return {};
  }
  return expr.kind == ExprKind::kList ? rt_.List(std::move(items)) : rt_.Tuple(std::move(items));
}

Value Interpreter::EvalDict(const Expr& expr, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
    const Value key = Eval(*expr.operands[i], scope);
    Value value = Eval(*expr.operands[i + 1], scope);
    if (rt_.failed()) return {};
    dict->Set(rt_, key, std::move(value));
  }
  return rt_.MakeDict(std::move(dict));
}

Value Interpreter::EvalCompare(const Expr& expr, const ScopePtr& scope) {
  Value left = Eval(*expr.operands[0], scope);
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    const Value right = Eval(*expr.operands[i + 1], scope);
    rt_.set_line(expr.line);
    if (!Compare(rt_, expr.compares[i], left, right)) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Value Interpreter::EvalConcat(const Expr& expr, const ScopePtr& scope) {
  std::string text;
  for (const ExprPtr& operand : expr.operands) {
    AppendStr(rt_, Eval(*operand, scope), &text);
    if (rt_.failed()) return {};
  }
  return rt_.Str(std::move(text));
}

Value Interpreter::EvalSlice(const Expr& expr, const ScopePtr& scope) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    const ExprPtr& operand = expr.operands[i];
    parts[i] = operand == nullptr ? Value::Missing() : Eval(*operand, scope);
  }
  rt_.set_line(expr.line);
  return GetSlice(rt_, parts[0], parts[1], parts[2], parts[3]);
}

Value Interpreter::EvalIf(const Expr& expr, const ScopePtr& scope) {
  const bool condition = Truthy(Eval(*expr.operands[0], scope));
  if (rt_.failed()) return {};
  const ExprPtr& chosen = expr.operands[condition ? 1 : 2];
  if (chosen != nullptr) return Eval(*chosen, scope);
  return Value::Undefined("an inline if was false and had no else");
}

Args Interpreter::EvalArguments(const CallArguments& arguments, const ScopePtr& scope) {
  Args args;
  for (const ExprPtr& argument : arguments.positional) {
    args.positional.push_back(Eval(*argument, scope));
    if (rt_.failed()) return args;
  }
  for (const auto& [name, argument] : arguments.named) {
    args.named.emplace_back(name, Eval(*argument, scope));
    if (rt_.failed()) return args;
  }
  if (arguments.star == nullptr) return args;
  for (Value& item : Drain(rt_, Eval(*arguments.star, scope))) {
    args.positional.push_back(std::move(item));
  }
  return args;
}

Value Interpreter::EvalCall(const Expr& expr, const ScopePtr& scope, const Value& caller) {
  const Value function = Eval(*expr.operands[0], scope);
  if (rt_.failed()) return {};
  Args args = EvalArguments(*expr.call, scope);
  if (!caller.missing()) args.named.emplace_back("caller", caller);
  rt_.set_line(expr.line);
  return Call(rt_, function, args);
}

// Filters and tests.
Value Interpreter::EvalFilter(const Expr& expr, const ScopePtr& scope) {
  const Value value = Eval(*expr.operands[0], scope);
  const Args args = EvalArguments(*expr.call, scope);
  if (rt_.failed()) return {};
  rt_.set_line(expr.line);
  if (expr.function == nullptr) {
    return rt_.Fail(StatusCode::kUnsupported,
                    fmt::format("unknown {} '{}'",
                                expr.kind == ExprKind::kFilter ? "filter" : "test", expr.name));
  }
  return CallNamed(rt_, *expr.function, value, args);
}

}  // namespace headway::jinja
