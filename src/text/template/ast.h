// The tree of a template, what makes it and what runs it.
#ifndef HEADWAY_TEXT_TEMPLATE_AST_H_
#define HEADWAY_TEXT_TEMPLATE_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headway/status.h"
#include "text/template/call.h"
#include "text/template/operators.h"
#include "text/template/value.h"

namespace headway::jinja {

// Deepest nesting of expressions in a template.
inline constexpr int kMaxExpressionDepth = 200;

// What a set or filter block has caught, as a name that no template can write.
inline constexpr char kBlockText[] = " text";

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConstant,   // value; also of text between tags
  kName,       // name
  kNamespace,  // name.attribute as a target; name, attribute
  kTuple,      // operands
  kList,       // operands
  kDict,       // operands: key, value, key, value ...
  kNegate,     // operands[0]
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
  kFilter,   // operands[0] | name(call)
  kTest,     // operands[0] is name(call)
  kIf,       // operands[1] if operands[0] else operands[2], which may be null
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;  // *star
};

struct Expr {
  Expr(ExprKind expr_kind, int expr_line) : kind(expr_kind), line(expr_line) {}

  ExprKind kind;
  int line;
  int depth = 1;  // of the tree below
  BinaryOp op = BinaryOp::kAdd;
  Value value;
  std::string name;
  std::string attribute;
  std::vector<ExprPtr> operands;
  std::vector<CompareOp> compares;
  std::unique_ptr<CallArguments> call;      // kCall, kFilter, kTest
  const NamedFunction* function = nullptr;  // kFilter, kTest; null: fails when it runs
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
  kFilterBlock,
  kMacro,
  kCallBlock,
  kGeneration,
  kBreak,
  kContinue,
};

// A macro, or the body of a call block, which is a macro without a name.
struct MacroCode {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false;
};

// One statement; which fields it has is said with its kind.
struct Stmt {
  Stmt(StmtKind stmt_kind, int stmt_line) : kind(stmt_kind), line(stmt_line) {}

  StmtKind kind;
  int line;
  std::vector<ExprPtr> expressions;  // kOutput: what is written
  ExprPtr target;                    // kSet, kSetBlock, kFor: what is assigned to
  ExprPtr test;                      // kIf; kFor: null without a condition
  ExprPtr value;               // kSet: the value. kFor: what is looped over. kCallBlock: the call
  Body body;                   // kIf, kFor, kSetBlock, kFilterBlock, kGeneration
  std::vector<StmtPtr> elifs;  // kIf: further kIf, each with its test and body
  Body else_body;              // kIf, kFor
  std::unique_ptr<MacroCode> macro;  // kMacro, kCallBlock
};

struct Template {
  std::string name;
  Body body;
};

// `source` is valid UTF-8. kInvalidArgument for what jinja2 refuses too, kUnsupported for what only
// Headway lacks; messages name the template and the line.
Result<std::unique_ptr<Template>> ParseTemplate(std::string_view source, const std::string& name);

// What a template writes; look at the Runtime for an error. Names that the template does not set
// are looked for in `context`.
std::string RunTemplate(Runtime& rt, const Template& parsed, const Dict& context);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_AST_H_
