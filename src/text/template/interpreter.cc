// Runs a template: names, statements, macros and expressions.
#include <algorithm>
#include <functional>

#include "text/template/ast.h"
#include "text/template/objects.h"

namespace headway::jinja {
namespace {

// The names of one scope at work: the template, an iteration of a loop, a macro's call, or a block
// whose output is caught. `if` is no scope. Assignments stay in the scope that they stand in;
// reading goes outwards.
class Scope : public Object {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  void Clear() override {
    names_ = Dict();
    outer_.reset();
  }

  void Set(std::string_view name, Value value) { names_.SetText(name, std::move(value)); }
  // Null when neither this scope nor one around it has the name.
  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
      if (const Value* value = scope->names_.FindText(name)) return value;
    }
    return nullptr;
  }

 private:
  Dict names_;
  std::shared_ptr<Scope> outer_;
};

// A macro as a value.
class Macro : public Object {
 public:
  explicit Macro(std::function<Value(const Args&)> call) : call_(std::move(call)) {}
  const char* type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  void Clear() override { call_ = nullptr; }
  Value Call(Runtime& /*rt*/, const Args& args) override { return call_(args); }
  Value GetAttr(Runtime& rt, std::string_view name) override {
    return rt.Refuse("Headway does not have the attribute '{}' of macros", name);
  }

 private:
  std::function<Value(const Args&)> call_;
};

class Interpreter {
 public:
  // All outlive the interpreter.
  Interpreter(Runtime& rt, const Dict& context) : rt_(rt), context_(context) {}

  std::string Run(const Body& body) {
    const auto scope = std::make_shared<Scope>(nullptr);
    rt_.Tracked(scope);
    std::string out;
    ExecBody(body, {scope, &out});
    return out;
  }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  // Where a statement runs.
  struct Frame {
    const ScopePtr& scope;
    std::string* out;
  };

  // --- variables ---

  // Gives up a scope: one that a macro holds is kept to the end of the rendering.
  void Leave(ScopePtr scope) {
    if (scope.use_count() > 1) rt_.Tracked(std::move(scope));
  }

  void Assign(const Expr& target, const Value& value, const ScopePtr& scope) {
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
      rt_.Fail("cannot unpack into {} variables", target.operands.size());
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.operands[i], items[i], scope);
  }

  // --- statements ---

  Flow ExecBody(const Body& body, const Frame& frame) {
    for (const StmtPtr& stmt : body) {
      const Flow flow = Exec(*stmt, frame);
      if (rt_.failed() || flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // The same in a scope of its own.
  Flow ExecScoped(const Body& body, const Frame& frame) {
    auto scope = std::make_shared<Scope>(frame.scope);
    const Flow flow = ExecBody(body, {scope, frame.out});
    Leave(std::move(scope));
    return flow;
  }

  Flow Exec(const Stmt& stmt, const Frame& frame) {
    const Nested nested(rt_);
    rt_.set_line(stmt.line);
    if (!nested.ok()) return Flow::kNext;
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
        frame.scope->Set(stmt.macro->name, rt_.Tracked(MakeMacro(*stmt.macro, frame.scope)));
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

  void ExecOutput(const Stmt& stmt, const Frame& frame) {
    for (const ExprPtr& expr : stmt.expressions) {
      AppendStr(rt_, Eval(*expr, frame.scope), frame.out);
      if (rt_.failed()) return;
    }
  }

  Flow ExecIf(const Stmt& stmt, const Frame& frame) {
    if (Truthy(Eval(*stmt.test, frame.scope))) return ExecBody(stmt.body, frame);
    for (const StmtPtr& elif : stmt.elifs) {
      if (rt_.failed()) return Flow::kNext;
      rt_.set_line(elif->line);
      if (Truthy(Eval(*elif->test, frame.scope))) return ExecBody(elif->body, frame);
    }
    return rt_.failed() ? Flow::kNext : ExecBody(stmt.else_body, frame);
  }

  Flow ExecFor(const Stmt& stmt, const Frame& frame) {
    const Value iterable = Eval(*stmt.value, frame.scope);
    if (rt_.failed()) return Flow::kNext;
    Loop::Test test;
    if (stmt.test != nullptr) {
      test = [this, &stmt, outer = frame.scope](const Value& item) {
        auto scope = std::make_shared<Scope>(outer);
        Assign(*stmt.target, item, scope);
        const bool takes = Truthy(Eval(*stmt.test, scope));
        Leave(std::move(scope));
        return takes && !rt_.failed();
      };
    }
    const auto loop = std::make_shared<Loop>(Drain(rt_, iterable), std::move(test));
    const Flow flow = ExecItems(stmt, frame, rt_.Tracked(loop));
    rt_.Untrack(loop);
    return flow;
  }

  Flow ExecItems(const Stmt& stmt, const Frame& frame, const Value& loop) {
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

  Flow ExecCapture(const Stmt& stmt, const Frame& frame) {
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

  void ExecCallBlock(const Stmt& stmt, const Frame& frame) {
    const auto macro = MakeMacro(*stmt.macro, frame.scope);
    const Value written = EvalCall(*stmt.value, frame.scope, rt_.Tracked(macro));
    rt_.Untrack(macro);
    AppendBlock(written, frame.out);
  }

  // What filter and call blocks write, which jinja2 does not turn into text.
  void AppendBlock(const Value& value, std::string* out) {
    if (rt_.failed()) return;
    if (value.string()) {
      AppendStr(rt_, value, out);
    } else {
      rt_.Fail("a block gives '{}', not a string", TypeName(value));
    }
  }

  // --- macros ---

  std::shared_ptr<Macro> MakeMacro(const MacroCode& code, const ScopePtr& outer) {
    return std::make_shared<Macro>(
        [this, &code, outer](const Args& args) { return CallMacro(code, outer, args); });
  }

  void BindMacro(const MacroCode& code, Args args, const ScopePtr& scope) {
    using Named = std::pair<std::string, Value>;
    const auto take = [&args](std::string_view name) {
      const auto it = std::ranges::find(args.named, name, &Named::first);
      if (it == args.named.end()) return Value::Missing();
      Value value = it->second;
      args.named.erase(it);
      return value;
    };
    const size_t count = code.parameters.size();
    const size_t required = count - code.defaults.size();
    if (args.positional.size() > count) {
      rt_.Fail("macro '{}' takes not more than {} arguments", code.name, count);
      return;
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
      rt_.Fail("macro '{}' takes no keyword argument '{}'", code.name, args.named[0].first);
    }
  }

  Value CallMacro(const MacroCode& code, const ScopePtr& outer, const Args& args) {
    const int line = rt_.line();
    if (!rt_.Charge(1 + code.parameters.size())) return {};
    auto scope = std::make_shared<Scope>(outer);
    std::string text;
    BindMacro(code, args, scope);
    if (!rt_.failed()) ExecBody(code.body, {scope, &text});
    Leave(std::move(scope));
    rt_.set_line(line);
    return rt_.failed() ? Value() : rt_.Str(std::move(text));
  }

  // --- expressions ---

  Value Eval(const Expr& expr, const ScopePtr& scope) {
    const Nested nested(rt_);
    if (!nested.ok()) return {};
    const auto operand = [&](size_t i) { return Eval(*expr.operands[i], scope); };
    switch (expr.kind) {
      case ExprKind::kConstant:
        return expr.value;
      case ExprKind::kName:
        return EvalName(expr, scope);
      case ExprKind::kNamespace:
        return {};  // only a target
      case ExprKind::kTuple:
        return rt_.Tuple(EvalAll(expr.operands, scope));
      case ExprKind::kList:
        return rt_.List(EvalAll(expr.operands, scope));
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
      case ExprKind::kSlice: {
        const std::vector<Value> parts = EvalAll(expr.operands, scope);
        rt_.set_line(expr.line);
        return GetSlice(rt_, parts[0], {parts[1], parts[2], parts[3]});
      }
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

  Value EvalName(const Expr& expr, const ScopePtr& scope) {
    if (const Value* value = scope->Find(expr.name)) return *value;
    if (const Value* value = context_.FindText(expr.name)) return *value;
    const Value global = FindGlobal(expr.name);
    if (!global.missing()) return global;
    return Value::Undefined(fmt::format("'{}' is undefined", expr.name));
  }

  // Missing where an expression is null.
  std::vector<Value> EvalAll(const std::vector<ExprPtr>& expressions, const ScopePtr& scope) {
    std::vector<Value> values;
    for (const ExprPtr& expr : expressions) {
      values.push_back(expr == nullptr ? Value::Missing() : Eval(*expr, scope));
    }
    return values;
  }

  Value EvalDict(const Expr& expr, const ScopePtr& scope) {
    auto dict = std::make_shared<Dict>();
    for (size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
      const Value key = Eval(*expr.operands[i], scope);
      Value value = Eval(*expr.operands[i + 1], scope);
      if (rt_.failed()) return {};
      dict->Set(rt_, key, std::move(value));
    }
    return rt_.MakeDict(std::move(dict));
  }

  Value EvalCompare(const Expr& expr, const ScopePtr& scope) {
    Value left = Eval(*expr.operands[0], scope);
    for (size_t i = 0; i < expr.compares.size(); ++i) {
      const Value right = Eval(*expr.operands[i + 1], scope);
      rt_.set_line(expr.line);
      if (!Compare(rt_, expr.compares[i], left, right)) return Value::Bool(false);
      left = right;
    }
    return Value::Bool(true);
  }

  Value EvalConcat(const Expr& expr, const ScopePtr& scope) {
    std::string text;
    for (const ExprPtr& operand : expr.operands) {
      AppendStr(rt_, Eval(*operand, scope), &text);
      if (rt_.failed()) return {};
    }
    return rt_.Str(std::move(text));
  }

  Value EvalIf(const Expr& expr, const ScopePtr& scope) {
    const bool condition = Truthy(Eval(*expr.operands[0], scope));
    if (rt_.failed()) return {};
    const ExprPtr& chosen = expr.operands[condition ? 1 : 2];
    if (chosen != nullptr) return Eval(*chosen, scope);
    return Value::Undefined("an inline if was false and had no else");
  }

  Args EvalArguments(const CallArguments& arguments, const ScopePtr& scope) {
    Args args{.positional = EvalAll(arguments.positional, scope), .named = {}};
    for (const auto& [name, argument] : arguments.named) {
      args.named.emplace_back(name, Eval(*argument, scope));
    }
    if (arguments.star == nullptr || rt_.failed()) return args;
    for (Value& item : Drain(rt_, Eval(*arguments.star, scope))) {
      args.positional.push_back(std::move(item));
    }
    return args;
  }

  Value EvalCall(const Expr& expr, const ScopePtr& scope, const Value& caller) {
    const Value function = Eval(*expr.operands[0], scope);
    if (rt_.failed()) return {};
    Args args = EvalArguments(*expr.call, scope);
    if (!caller.missing()) args.named.emplace_back("caller", caller);
    rt_.set_line(expr.line);
    return Call(rt_, function, args);
  }

  // Filters and tests.
  Value EvalFilter(const Expr& expr, const ScopePtr& scope) {
    const Value value = Eval(*expr.operands[0], scope);
    const Args args = EvalArguments(*expr.call, scope);
    if (rt_.failed()) return {};
    rt_.set_line(expr.line);
    if (expr.function == nullptr) {
      return rt_.Refuse("unknown {} '{}'", expr.kind == ExprKind::kFilter ? "filter" : "test",
                        expr.name);
    }
    return CallNamed(rt_, *expr.function, value, args);
  }

  Runtime& rt_;
  const Dict& context_;
};

}  // namespace

std::string RunTemplate(Runtime& rt, const Template& parsed, const Dict& context) {
  return Interpreter(rt, context).Run(parsed.body);
}

}  // namespace headway::jinja
