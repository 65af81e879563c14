// Runs a template.
#ifndef HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_
#define HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_

#include <memory>
#include <string>

#include "text/template/ast.h"
#include "text/template/runtime.h"
#include "text/template/value.h"

namespace headway::jinja {

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

class Interpreter {
 public:
  // All outlive the interpreter.
  Interpreter(Runtime& rt, const Template& parsed, const Dict& context)
      : rt_(rt), template_(parsed), context_(context) {}

  // What the template writes; look at the Runtime for an error.
  std::string Run();

 private:
  friend class Macro;

  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  // Where a statement runs.
  struct Frame {
    const ScopePtr& scope;
    std::string* out;
  };

  Flow ExecBody(const Body& body, const Frame& frame);
  // The same in a scope of its own.
  Flow ExecScoped(const Body& body, const Frame& frame);
  Flow Exec(const Stmt& stmt, const Frame& frame);
  void ExecOutput(const Stmt& stmt, const Frame& frame);
  Flow ExecIf(const Stmt& stmt, const Frame& frame);
  Flow ExecFor(const Stmt& stmt, const Frame& frame);
  // Whether the condition of a loop holds for an item.
  bool TakesItem(const Stmt& stmt, const Value& item, const ScopePtr& outer);
  Flow ExecItems(const Stmt& stmt, const Frame& frame, const Value& loop);
  Flow ExecCapture(const Stmt& stmt, const Frame& frame);
  void ExecCallBlock(const Stmt& stmt, const Frame& frame);
  // What filter and call blocks write, which jinja2 does not turn into text.
  void AppendBlock(const Value& value, std::string* out);

  // Gives up a scope: one that a macro holds is kept to the end of the rendering.
  void Leave(ScopePtr scope);
  void Assign(const Expr& target, const Value& value, const ScopePtr& scope);
  Value CallMacro(const MacroCode& code, const ScopePtr& outer, const Args& args);
  bool BindMacro(const MacroCode& code, Args args, const ScopePtr& scope);

  Value Eval(const Expr& expr, const ScopePtr& scope);
  Value EvalName(const Expr& expr, const ScopePtr& scope);
  Value EvalItems(const Expr& expr, const ScopePtr& scope);
  Value EvalDict(const Expr& expr, const ScopePtr& scope);
  Value EvalCompare(const Expr& expr, const ScopePtr& scope);
  Value EvalConcat(const Expr& expr, const ScopePtr& scope);
  Value EvalSlice(const Expr& expr, const ScopePtr& scope);
  Value EvalIf(const Expr& expr, const ScopePtr& scope);
  Value EvalCall(const Expr& expr, const ScopePtr& scope, const Value& caller);
  Value EvalFilter(const Expr& expr, const ScopePtr& scope);
  Args EvalArguments(const CallArguments& arguments, const ScopePtr& scope);

  Runtime& rt_;
  const Template& template_;
  const Dict& context_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_
