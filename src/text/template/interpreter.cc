// Statements and macros.
#include "text/template/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/template/globals.h"
#include "text/template/objects.h"
#include "text/template/operators.h"

namespace headway::jinja {

// A macro as a value: its code, and the variables around it.
class Macro : public Object {
 public:
  Macro(Interpreter* interpreter, const MacroCode& code, std::shared_ptr<Activation> outer)
      : interpreter_(interpreter), code_(code), outer_(std::move(outer)) {}
  const char* type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  void Clear() override { outer_.reset(); }

  void Repr(Runtime& rt, std::string* out) const override {
    (void)rt;
    *out += code_.name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", code_.name);
  }

  bool GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) override {
    (void)self;
    if (name == "name") {
      *out = code_.name.empty() ? Value::None() : rt.Str(code_.name);
    } else if (name == "arguments") {
      std::vector<Value> names;
      for (const ExprPtr& parameter : code_.parameters) names.push_back(rt.Str(parameter->name));
      *out = rt.Tuple(std::move(names));
    } else {
      return false;
    }
    return true;
  }

  Value Call(Runtime& rt, const Args& args) override {
    (void)rt;
    return interpreter_->CallMacro(code_, outer_, args);
  }

 private:
  Interpreter* const interpreter_;
  const MacroCode& code_;
  std::shared_ptr<Activation> outer_;
};

// What a loop with a condition goes over: the items that meet it, tested one by one as the loop
// asks for them, since a test may read what the body of the loop changes.
class TestedItems : public Iterator {
 public:
  TestedItems(Interpreter* interpreter, const Stmt& stmt, std::shared_ptr<Iterator> source,
              std::shared_ptr<Activation> variables)
      : interpreter_(interpreter),
        stmt_(stmt),
        source_(std::move(source)),
        variables_(std::move(variables)) {}

  bool Next(Runtime& rt, Value* out) override {
    if (source_ == nullptr) return false;
    if (!begun_) interpreter_->Enter(stmt_.test_entry, variables_);
    begun_ = true;
    const Expr& target = *stmt_.test_targets[0];
    Value item;
    while (source_->Next(rt, &item)) {
      interpreter_->Assign(target, item, variables_);
      const Value verdict = interpreter_->Eval(*stmt_.test, variables_);
      if (rt.failed()) return false;
      if (!Truthy(verdict)) continue;
      *out = target.kind == ExprKind::kTuple ? interpreter_->Eval(target, variables_) : item;
      return !rt.failed();
    }
    return false;
  }

  void Clear() override {
    source_.reset();
    variables_.reset();
  }

 private:
  Interpreter* const interpreter_;
  const Stmt& stmt_;
  std::shared_ptr<Iterator> source_;
  std::shared_ptr<Activation> variables_;
  bool begun_ = false;
};

std::string Interpreter::Run() {
  const auto activation = std::make_shared<Activation>(template_.slots, nullptr);
  rt_.Tracked(activation);
  std::string out;
  Enter(template_.entry, activation);
  ExecBody(template_.body, {activation, &out});
  return out;
}

// --- variables ---

void Interpreter::Enter(const ScopeEntry& entry, const std::shared_ptr<Activation>& activation) {
  for (const ScopeEntry::Load& load : entry.loads) {
    if (!rt_.Charge(1)) return;
    Value value = Value::Missing();
    if (load.action == ScopeEntry::Action::kAlias) {
      value = Slot(load.from, activation);
    } else if (load.action == ScopeEntry::Action::kResolve) {
      if (const Value* found = context_.FindText(load.name)) {
        value = *found;
      } else {
        FindGlobal(load.name, &value);
      }
    }
    activation->slots[static_cast<size_t>(load.slot)] = std::move(value);
  }
}

Value& Interpreter::Slot(const VariableRef& ref, const std::shared_ptr<Activation>& activation) {
  Activation* found = activation.get();
  for (int i = 0; i < ref.hops; ++i) found = found->outer.get();
  return found->slots[static_cast<size_t>(ref.slot)];
}

void Interpreter::Assign(const Expr& target, const Value& value,
                         const std::shared_ptr<Activation>& activation) {
  if (rt_.failed()) return;
  if (target.kind == ExprKind::kName) {
    Slot(target.ref, activation) = value;
    return;
  }
  if (target.kind == ExprKind::kNamespace) {
    // Held here: the variable may be what is assigned to.
    const Value holder = Slot(target.ref, activation);
    if (auto* space = holder.As<Namespace>()) {
      space->Set(rt_, rt_.Str(target.attribute), value);
    } else {
      rt_.Fail("cannot assign attribute on non-namespace object");
    }
    return;
  }
  // One item more than there are targets is enough to know.
  const std::shared_ptr<Iterator> source = Iterate(rt_, value);
  if (source == nullptr) return;
  std::vector<Value> items;
  Value item;
  while (items.size() <= target.operands.size() && source->Next(rt_, &item)) items.push_back(item);
  if (items.size() != target.operands.size()) {
    rt_.Fail(fmt::format("cannot unpack into {} variables", target.operands.size()));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.operands[i], items[i], activation);
}

bool Interpreter::CheckNamespaces(const Expr& target,
                                  const std::shared_ptr<Activation>& activation) {
  if (target.kind == ExprKind::kNamespace &&
      Slot(target.ref, activation).As<Namespace>() == nullptr) {
    rt_.Fail("cannot assign attribute on non-namespace object");
    return false;
  }
  return std::all_of(target.operands.begin(), target.operands.end(),
                     [&](const ExprPtr& item) { return CheckNamespaces(*item, activation); });
}

// --- statements ---

Interpreter::Flow Interpreter::ExecBody(const Body& body, const Frame& frame) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = Exec(*stmt, frame);
    if (rt_.failed() || flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
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
      ExecSet(stmt, frame);
      return Flow::kNext;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return ExecCapture(stmt, frame);
    case StmtKind::kMacro:
      Slot(stmt.ref, frame.activation) =
          rt_.Tracked(std::make_shared<Macro>(this, *stmt.macro, frame.activation));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      ExecCallBlock(stmt, frame);
      return Flow::kNext;
    case StmtKind::kWith:
      return ExecWith(stmt, frame);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::ExecOutput(const Stmt& stmt, const Frame& frame) {
  for (const ExprPtr& expr : stmt.expressions) {
    AppendStr(rt_, Eval(*expr, frame.activation), frame.out);
    if (rt_.failed()) return;
  }
}

Interpreter::Flow Interpreter::ExecIf(const Stmt& stmt, const Frame& frame) {
  if (Truthy(Eval(*stmt.test, frame.activation))) return ExecBody(stmt.body, frame);
  for (const StmtPtr& elif : stmt.elifs) {
    if (rt_.failed()) return Flow::kNext;
    rt_.set_line(elif->line);
    if (Truthy(Eval(*elif->test, frame.activation))) return ExecBody(elif->body, frame);
  }
  return rt_.failed() ? Flow::kNext : ExecBody(stmt.else_body, frame);
}

Interpreter::Flow Interpreter::ExecFor(const Stmt& stmt, const Frame& frame) {
  const Value iterable = Eval(*stmt.value, frame.activation);
  if (rt_.failed()) return Flow::kNext;
  std::shared_ptr<Iterator> source = Iterate(rt_, iterable);
  if (source == nullptr) return Flow::kNext;
  if (stmt.test != nullptr) {
    auto tested = std::make_shared<TestedItems>(this, stmt, source, frame.activation);
    rt_.Tracked(tested);
    source = std::move(tested);
  }
  Flow flow = Flow::kNext;
  if (stmt.loop_slot < 0) {
    flow = ExecItems(stmt, frame, source.get(), nullptr);
  } else {
    int64_t length = -1;
    if (stmt.test != nullptr || !Length(rt_, iterable, &length)) length = -1;
    const auto loop = std::make_shared<Loop>(source, length);
    Value& slot = frame.activation->slots[static_cast<size_t>(stmt.loop_slot)];
    slot = rt_.Tracked(loop);
    flow = ExecItems(stmt, frame, nullptr, loop.get());
    // Looked up anew: not a reference that a body could have made stale.
    frame.activation->slots[static_cast<size_t>(stmt.loop_slot)] = Value::Missing();
    rt_.Untrack(loop);
  }
  rt_.Untrack(source);
  return flow;
}

// One of `source` and `loop` gives the items.
Interpreter::Flow Interpreter::ExecItems(const Stmt& stmt, const Frame& frame, Iterator* source,
                                         Loop* loop) {
  // Python's jinja2 notes at the end of the body that it ran: an iteration that `continue` or
  // `break` cuts short does not count, and the `else` follows.
  bool finished_one = false;
  Value item;
  while (loop != nullptr ? loop->Advance(rt_, &item) : source->Next(rt_, &item)) {
    Assign(*stmt.targets[0], item, frame.activation);
    Enter(stmt.entry, frame.activation);
    if (!rt_.Charge(1)) return Flow::kNext;
    const Flow flow = ExecBody(stmt.body, frame);
    if (rt_.failed()) return Flow::kNext;
    if (flow == Flow::kBreak) break;
    finished_one = finished_one || flow == Flow::kNext;
  }
  if (finished_one || stmt.else_body.empty() || rt_.failed()) return Flow::kNext;
  Enter(stmt.else_entry, frame.activation);
  return ExecBody(stmt.else_body, frame);
}

void Interpreter::ExecSet(const Stmt& stmt, const Frame& frame) {
  if (!CheckNamespaces(*stmt.targets[0], frame.activation)) return;
  const Value value = Eval(*stmt.value, frame.activation);
  Assign(*stmt.targets[0], value, frame.activation);
}

// What filter and call blocks write, which jinja2 does not turn into text.
void Interpreter::AppendText(const Value& value, std::string* out) {
  if (rt_.failed()) return;
  if (value.string()) {
    AppendStr(rt_, value, out);
  } else {
    rt_.Fail(fmt::format("a block gives '{}', not a string", TypeName(value)));
  }
}

// Set and filter blocks.
Interpreter::Flow Interpreter::ExecCapture(const Stmt& stmt, const Frame& frame) {
  std::string text;
  Enter(stmt.entry, frame.activation);
  const Flow flow = ExecBody(stmt.body, {frame.activation, &text});
  if (rt_.failed() || flow != Flow::kNext) return flow;
  Value value = rt_.Str(std::move(text));
  if (stmt.value != nullptr) {
    captured_.push_back(value);
    value = Eval(*stmt.value, frame.activation);
    captured_.pop_back();
  }
  if (rt_.failed()) return flow;
  if (stmt.kind == StmtKind::kFilterBlock) {
    AppendText(value, frame.out);
  } else {
    Assign(*stmt.targets[0], value, frame.activation);
  }
  return flow;
}

void Interpreter::ExecCallBlock(const Stmt& stmt, const Frame& frame) {
  if (stmt.value == nullptr) {  // a generation block
    AppendStr(rt_, CallMacro(*stmt.macro, frame.activation, {}), frame.out);
    return;
  }
  const auto macro = std::make_shared<Macro>(this, *stmt.macro, frame.activation);
  AppendText(EvalCall(*stmt.value, frame.activation, rt_.Tracked(macro)), frame.out);
  rt_.Untrack(macro);
}

Interpreter::Flow Interpreter::ExecWith(const Stmt& stmt, const Frame& frame) {
  Enter(stmt.entry, frame.activation);
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    const Value value = Eval(*stmt.expressions[i], frame.activation);
    Assign(*stmt.targets[i], value, frame.activation);
  }
  return rt_.failed() ? Flow::kNext : ExecBody(stmt.body, frame);
}

// --- macros ---

bool Interpreter::BindMacro(const MacroCode& code, Args args, Activation* activation) {
  const auto take = [&args](std::string_view name) {
    const auto it = std::find_if(args.named.begin(), args.named.end(),
                                 [&](const auto& named) { return named.first == name; });
    if (it == args.named.end()) return Value::Missing();
    Value value = it->second;
    args.named.erase(it);
    return value;
  };
  const auto set = [activation](int slot, Value value) {
    activation->slots[static_cast<size_t>(slot)] = std::move(value);
  };
  const size_t count = code.parameters.size();
  const size_t given = std::min(args.positional.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const Expr& parameter = *code.parameters[i];
    set(parameter.ref.slot, i < given ? args.positional[i] : take(parameter.name));
  }
  if (code.caller_slot >= 0) {
    Value caller = take("caller");
    if (caller.missing() || caller.none()) caller = Value::Undefined("no caller defined");
    set(code.caller_slot, std::move(caller));
  }
  if (code.kwargs_slot >= 0) {
    auto named = std::make_shared<Dict>();
    for (auto& [name, value] : args.named) named->SetText(name, value);
    set(code.kwargs_slot, rt_.MakeDict(std::move(named)));
  } else if (!args.named.empty()) {
    rt_.Fail(
        fmt::format("macro '{}' takes no keyword argument '{}'", code.name, args.named[0].first));
    return false;
  }
  std::vector<Value> rest(args.positional.begin() + static_cast<ptrdiff_t>(given),
                          args.positional.end());
  if (code.varargs_slot >= 0) {
    set(code.varargs_slot, rt_.Tuple(std::move(rest)));
  } else if (!rest.empty()) {
    rt_.Fail(fmt::format("macro '{}' takes not more than {} arguments", code.name, count));
    return false;
  }
  return !rt_.failed();
}

Value Interpreter::CallMacro(const MacroCode& code, const std::shared_ptr<Activation>& outer,
                             const Args& args) {
  const int line = rt_.line();
  if (!rt_.Charge(1 + code.slots)) return {};
  const auto activation = std::make_shared<Activation>(code.slots, outer);
  rt_.Tracked(activation);
  if (!BindMacro(code, args, activation.get())) return {};
  Enter(code.entry, activation);
  const size_t required = code.parameters.size() - code.defaults.size();
  for (size_t i = 0; i < code.parameters.size() && !rt_.failed(); ++i) {
    const Expr& parameter = *code.parameters[i];
    if (!Slot(parameter.ref, activation).missing()) continue;
    Value value =
        i >= required
            ? Eval(*code.defaults[i - required], activation)
            : Value::Undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    Slot(parameter.ref, activation) = std::move(value);
  }
  std::string text;
  if (!rt_.failed()) ExecBody(code.body, {activation, &text});
  rt_.Untrack(activation);
  rt_.set_line(line);
  return rt_.failed() ? Value() : rt_.Str(std::move(text));
}

}  // namespace headway::jinja
