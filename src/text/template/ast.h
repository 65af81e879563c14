// The tree of a template. Names are resolved to slots of the function that they live in (the
// template itself, or a macro) by scope.h.
#ifndef HEADWAY_TEXT_TEMPLATE_AST_H_
#define HEADWAY_TEXT_TEMPLATE_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/call.h"
#include "text/template/operators.h"
#include "text/template/value.h"

namespace headway::jinja {

// Deepest nesting of expressions and of statements in a template.
inline constexpr int kMaxExpressionDepth = 200;
inline constexpr int kMaxStatementDepth = 100;

// A variable: the function `hops` out from the one that is running, and its slot there.
struct VariableRef {
  int hops = 0;
  int slot = -1;
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,   // value
  kText,       // value: template text between tags
  kName,       // name, ref
  kNamespace,  // name.attribute as a target; name, attribute, ref
  kTuple,      // operands
  kList,       // operands
  kDict,       // operands: key, value, key, value ...
  kNegate,     // operands[0]
  kPositive,
  kNot,
  kBinary,  // operands[0] op operands[1]
  kAnd,     // operands[0], [1]
  kOr,
  kConcat,   // operands, joined as text
  kCompare,  // operands[0] compares[0] operands[1] compares[1] ...
  kGetAttr,  // operands[0].name
  kGetItem,  // operands[0][operands[1]]
  kSlice,    // operands[0][operands[1]:operands[2]:operands[3]], null where left out
  kCall,     // operands[0](call)
  kFilter,   // operands[0] | name(call); operands[0] is null in a filter block
  kTest,     // operands[0] is name(call)
  kIf,       // operands[1] if operands[0] else operands[2], which may be null
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *star
  ExprPtr double_star;  // **double_star
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below
  BinaryOp op = BinaryOp::kAdd;
  Value value;
  std::string name;
  std::string attribute;
  VariableRef ref;
  std::vector<ExprPtr> operands;
  std::vector<CompareOp> compares;
  std::unique_ptr<CallArguments> call;  // kCall, kFilter, kTest
  Function function = nullptr;          // kFilter, kTest; null: fails when it runs
};

// What happens when a scope is entered: its variables get their first values.
struct ScopeEntry {
  enum class Action : uint8_t {
    kResolve,  // from the context and the globals, by name
    kAlias,    // from a variable of an outer scope
    kMissing,  // nothing
  };
  struct Load {
    Action action = Action::kMissing;
    int slot = -1;
    VariableRef from = {};
    std::string name = {};
  };
  std::vector<Load> loads;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBreak,
  kContinue,
};

// A macro, or the body of a call block, which is a macro without a name.
struct MacroCode {
  std::string name;
  std::vector<ExprPtr> parameters;  // kName
  std::vector<ExprPtr> defaults;    // of the last parameters
  Body body;
  // Slots, and -1 for what the body does not use.
  int slots = 0;
  int caller_slot = -1;
  int kwargs_slot = -1;
  int varargs_slot = -1;
  bool explicit_caller = false;  // `caller` is one of the parameters
  ScopeEntry entry;
};

// One statement; which fields it has is said with its kind.
struct Stmt {
  StmtKind kind = StmtKind::kOutput;
  int line = 0;
  // kOutput: what is written. kWith: the values.
  std::vector<ExprPtr> expressions;
  // kSet, kSetBlock, kFor, kWith (one for each value): what is assigned to.
  std::vector<ExprPtr> targets;
  // kIf, kFor: the condition. kFor: null without one.
  ExprPtr test;
  // kSet: the value. kFor: what is looped over. kCallBlock: the call, null in a generation block.
  // kSetBlock, kFilterBlock: the filter, null without one.
  ExprPtr value;
  Body body;
  std::vector<StmtPtr> elifs;  // kIf: further kIf, each with its test and body
  Body else_body;
  std::unique_ptr<MacroCode> macro;   // kMacro, kCallBlock
  VariableRef ref;                    // kMacro: the variable that holds it
  int loop_slot = -1;                 // kFor: of `loop`; -1 when the body does not use it
  std::vector<ExprPtr> test_targets;  // kFor with a test: the targets as the test sees them
  ScopeEntry entry;
  ScopeEntry else_entry;  // kFor
  ScopeEntry test_entry;  // kFor
};

struct Template {
  std::string name;
  Body body;
  int slots = 0;
  ScopeEntry entry;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_AST_H_
