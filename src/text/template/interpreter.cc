// Statements and macros.
#include "text/template/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/template/objects.h"
#include "text/template/operators.h"

namespace headway::jinja {

// A macro as a value: its code, and the scope around it.
class Macro : public Object {
 public:
  Macro(Interpreter* interpreter, const MacroCode& code, std::shared_ptr<Scope> outer)
      : interpreter_(interpreter), code_(code), outer_(std::move(outer)) {}
  const char* type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  void Clear() override { outer_.reset(); }

  bool GetAttr(Runtime& rt, const Value& /*self*/, std::string_view name, Value* out) override {
    *out = rt.Fail(StatusCode::kUnsupported,
                   fmt::format("Headway does not have the attribute '{}' of macros", name));
    return true;
  }

  Value Call(Runtime& /*rt*/, const Args& args) override {
    return interpreter_->CallMacro(code_, outer_, args);
  }

 private:
  Interpreter* const interpreter_;
  const MacroCode& code_;
  std::shared_ptr<Scope> outer_;
};

std::string Interpreter::Run() {
  const auto scope = std::make_shared<Scope>(nullptr);
  rt_.Tracked(scope);
  std::string out;
  ExecBody(template_.body, {scope, &out});
  return out;
}

// --- variables ---

void Interpreter::Leave(ScopePtr scope) {
  if (scope.use_count() > 1) rt_.Tracked(std::move(scope));
}

void Interpreter::Assign(const Expr& target, const Value& value, const ScopePtr& scope) {
  if (rt_.failed()) return;
  if (target.kind == ExprKind::kName) {
    scope->Set(target.name, value);
    return;
  }
  if (target.kind == ExprKind::kNamespace) {
    const Value holder = EvalName(target, scope);
    if (auto* space = holder.As<Namespace>()) {
      space->Set(rt_, rt_.Str(target.attribute), value);
    } else {
      rt_.Fail("cannot assign attribute on non-namespace object");
    }
    return;
  }
  const std::vector<Value> items = Drain(rt_, value);
  if (rt_.failed()) return;
  if (items.size() != target.operands.size()) {
    rt_.Fail(fmt::format("cannot unpack into {} variables", target.operands.size()));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.operands[i], items[i], scope);
}

// --- statements ---

Interpreter::Flow Interpreter::ExecBody(const Body& body, const Frame& frame) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = Exec(*stmt, frame);
    if (rt_.failed() || flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecScoped(const Body& body, const Frame& frame) {
  auto scope = std::make_shared<Scope>(frame.scope);
  const Flow flow = ExecBody(body, {scope, frame.out});
  Leave(std::move(scope));
  return flow;
}

Interpreter::Flow Interpreter::Exec(const Stmt& stmt, const Frame& frame) {
  const Nested nested(rt_);
  rt_.set_line(stmt.line);
  if (!nested.ok() || !rt_.Charge(1)) return Flow::kNext;
  switch (stmt.kind) {
    case StmtKind::kOutput:
      ExecOutput(stmt, frame);
      return Flow::kNext;
    case StmtKind::kIf:
      return ExecIf(stmt, frame);
    case StmtKind::kFor:
      return ExecFor(stmt, frame);
    case StmtKind::kSet:
      Assign(*stmt.target, Eval(*stmt.value, frame.scope), frame.scope);
      return Flow::kNext;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return ExecCapture(stmt, frame);
    case StmtKind::kMacro:
      frame.scope->Set(stmt.macro->name,
                       rt_.Tracked(std::make_shared<Macro>(this, *stmt.macro, frame.scope)));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      ExecCallBlock(stmt, frame);
      return Flow::kNext;
    case StmtKind::kGeneration:
      return ExecScoped(stmt.body, frame);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::ExecOutput(const Stmt& stmt, const Frame& frame) {
  for (const ExprPtr& expr : stmt.expressions) {
    AppendStr(rt_, Eval(*expr, frame.scope), frame.out);
    if (rt_.failed()) return;
  }
}

Interpreter::Flow Interpreter::ExecIf(const Stmt& stmt, const Frame& frame) {
  if (Truthy(Eval(*stmt.test, frame.scope))) return ExecBody(stmt.body, frame);
  for (const StmtPtr& elif : stmt.elifs) {
    if (rt_.failed()) return Flow::kNext;
    rt_.set_line(elif->line);
    if (Truthy(Eval(*elif->test, frame.scope))) return ExecBody(elif->body, frame);
  }
  return rt_.failed() ? Flow::kNext : ExecBody(stmt.else_body, frame);
}

Interpreter::Flow Interpreter::ExecFor(const Stmt& stmt, const Frame& frame) {
  const Value iterable = Eval(*stmt.value, frame.scope);
  if (rt_.failed()) return Flow::kNext;
  Loop::Test test;
  if (stmt.test != nullptr) {
    test = [this, &stmt, scope = frame.scope](const Value& item) {
      return TakesItem(stmt, item, scope);
    };
  }
  const auto loop = std::make_shared<Loop>(Drain(rt_, iterable), std::move(test));
  const Flow flow = ExecItems(stmt, frame, rt_.Tracked(loop));
  rt_.Untrack(loop);
  return flow;
}

bool Interpreter::TakesItem(const Stmt& stmt, const Value& item, const ScopePtr& outer) {
  auto scope = std::make_shared<Scope>(outer);
  Assign(*stmt.target, item, scope);
  const bool takes = Truthy(Eval(*stmt.test, scope));
  Leave(std::move(scope));
  return takes && !rt_.failed();
}

Interpreter::Flow Interpreter::ExecItems(const Stmt& stmt, const Frame& frame, const Value& loop) {
  // Python's jinja2 notes at the end of the body that it ran: an iteration that `continue` or
  // `break` cuts short does not count, and the `else` follows.
  bool finished_one = false;
  Value item;
  while (loop.As<Loop>()->Advance(rt_, &item)) {
    auto scope = std::make_shared<Scope>(frame.scope);
    scope->Set("loop", loop);
    Assign(*stmt.target, item, scope);
    const Flow flow = rt_.Charge(1) ? ExecBody(stmt.body, {scope, frame.out}) : Flow::kBreak;
    Leave(std::move(scope));
    if (rt_.failed()) return Flow::kNext;
    if (flow == Flow::kBreak) break;
    finished_one = finished_one || flow == Flow::kNext;
  }
  if (finished_one || stmt.else_body.empty() || rt_.failed()) return Flow::kNext;
  return ExecScoped(stmt.else_body, frame);
}

Interpreter::Flow Interpreter::ExecCapture(const Stmt& stmt, const Frame& frame) {
  std::string text;
  const Flow flow = ExecScoped(stmt.body, {frame.scope, &text});
  if (rt_.failed() || flow != Flow::kNext) return flow;
  const auto scope = std::make_shared<Scope>(frame.scope);
  scope->Set(kBlockText, rt_.Str(std::move(text)));
  const Value value = Eval(*stmt.value, scope);
  if (stmt.kind == StmtKind::kSetBlock) {
    Assign(*stmt.target, value, frame.scope);
  } else {
    AppendBlock(value, frame.out);
  }
  return flow;
}

void Interpreter::ExecCallBlock(const Stmt& stmt, const Frame& frame) {
  const auto macro = std::make_shared<Macro>(this, *stmt.macro, frame.scope);
  const Value written = EvalCall(*stmt.value, frame.scope, rt_.Tracked(macro));
  rt_.Untrack(macro);
  AppendBlock(written, frame.out);
}

void Interpreter::AppendBlock(const Value& value, std::string* out) {
  if (rt_.failed()) return;
  if (value.string()) {
    AppendStr(rt_, value, out);
  } else {
    rt_.Fail(fmt::format("a block gives '{}', not a string", TypeName(value)));
  }
}

// --- macros ---

bool Interpreter::BindMacro(const MacroCode& code, Args args, const ScopePtr& scope) {
  const auto take = [&args](std::string_view name) {
    const auto it = std::find_if(args.named.begin(), args.named.end(),
                                 [&](const auto& named) { return named.first == name; });
    if (it == args.named.end()) return Value::Missing();
    Value value = it->second;
    args.named.erase(it);
    return value;
  };
  const size_t count = code.parameters.size();
  const size_t required = count - code.defaults.size();
  if (args.positional.size() > count) {
    rt_.Fail(fmt::format("macro '{}' takes not more than {} arguments", code.name, count));
    return false;
  }
  if (code.uses_caller) {
    const Value caller = take("caller");
    scope->Set("caller", caller.missing() ? Value::Undefined("no caller defined") : caller);
  }
  for (size_t i = 0; i < count && !rt_.failed(); ++i) {
    const std::string& name = code.parameters[i];
    Value value = i < args.positional.size() ? args.positional[i] : take(name);
    if (value.missing() && i >= required) value = Eval(*code.defaults[i - required], scope);
    if (value.missing()) {
      value = Value::Undefined(fmt::format("parameter '{}' was not provided", name));
    }
    scope->Set(name, std::move(value));
  }
  if (!args.named.empty()) {
    rt_.Fail(
        fmt::format("macro '{}' takes no keyword argument '{}'", code.name, args.named[0].first));
  }
  return !rt_.failed();
}

Value Interpreter::CallMacro(const MacroCode& code, const ScopePtr& outer, const Args& args) {
  const int line = rt_.line();
  if (!rt_.Charge(1 + static_cast<int64_t>(code.parameters.size()))) return {};
  auto scope = std::make_shared<Scope>(outer);
  std::string text;
  if (BindMacro(code, args, scope)) ExecBody(code.body, {scope, &text});
  Leave(std::move(scope));
  rt_.set_line(line);
  return rt_.failed() ? Value() : rt_.Str(std::move(text));
}

}  // namespace headway::jinja
