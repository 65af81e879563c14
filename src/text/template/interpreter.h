// Runs a template.
#ifndef HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_
#define HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_

#include <memory>
#include <string>
#include <vector>

#include "text/template/ast.h"
#include "text/template/runtime.h"
#include "text/template/value.h"

namespace headway::jinja {

// The variables of one run of the template or of a macro, by slot.
class Activation : public Object {
 public:
  Activation(int slot_count, std::shared_ptr<Activation> parent)
      : slots(static_cast<size_t>(slot_count), Value::Missing()), outer(std::move(parent)) {}
  void Clear() override {
    slots.clear();
    outer.reset();
  }

  std::vector<Value> slots;
  std::shared_ptr<Activation> outer;  // of the function that this one stands in
};

class Interpreter {
 public:
  // All outlive the interpreter. The template's names are resolved.
  Interpreter(Runtime& rt, const Template& parsed, const Dict& context)
      : rt_(rt), template_(parsed), context_(context) {}

  // What the template writes; look at the Runtime for an error.
  std::string Run();

 private:
  friend class Macro;
  friend class TestedItems;

  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Where a statement runs.
  struct Frame {
    const std::shared_ptr<Activation>& activation;
    std::string* out;
  };

  Flow ExecBody(const Body& body, const Frame& frame);
  Flow Exec(const Stmt& stmt, const Frame& frame);
  void ExecOutput(const Stmt& stmt, const Frame& frame);
  Flow ExecIf(const Stmt& stmt, const Frame& frame);
  Flow ExecFor(const Stmt& stmt, const Frame& frame);
  Flow ExecItems(const Stmt& stmt, const Frame& frame, Iterator* source, class Loop* loop);
  void ExecSet(const Stmt& stmt, const Frame& frame);
  Flow ExecCapture(const Stmt& stmt, const Frame& frame);
  void ExecCallBlock(const Stmt& stmt, const Frame& frame);
  void AppendText(const Value& value, std::string* out);
  Flow ExecWith(const Stmt& stmt, const Frame& frame);

  void Enter(const ScopeEntry& entry, const std::shared_ptr<Activation>& activation);
  // The variable; missing ones included.
  static Value& Slot(const VariableRef& ref, const std::shared_ptr<Activation>& activation);
  void Assign(const Expr& target, const Value& value,
              const std::shared_ptr<Activation>& activation);
  bool CheckNamespaces(const Expr& target, const std::shared_ptr<Activation>& activation);

  Value CallMacro(const MacroCode& code, const std::shared_ptr<Activation>& outer,
                  const Args& args);
  bool BindMacro(const MacroCode& code, Args args, Activation* activation);

  using Variables = std::shared_ptr<Activation>;
  Value Eval(const Expr& expr, const Variables& variables);
  Value EvalName(const Expr& expr, const Variables& variables);
  Value EvalItems(const Expr& expr, const Variables& variables);
  Value EvalDict(const Expr& expr, const Variables& variables);
  Value EvalCompare(const Expr& expr, const Variables& variables);
  Value EvalConcat(const Expr& expr, const Variables& variables);
  Value EvalSlice(const Expr& expr, const Variables& variables);
  Value EvalIf(const Expr& expr, const Variables& variables);
  Value EvalCall(const Expr& expr, const Variables& variables, const Value& caller);
  Value EvalFilter(const Expr& expr, const Variables& variables);
  Args EvalArguments(const CallArguments& arguments, const Variables& variables);

  Runtime& rt_;
  const Template& template_;
  const Dict& context_;
  std::vector<Value> captured_;  // what filter and set blocks at work have caught
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_INTERPRETER_H_
