// Parses expressions; the base of the parser of statements.
#ifndef HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
#define HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "text/template/ast.h"
#include "text/template/token_reader.h"

namespace headway::jinja {

// Deepest nesting of the parser's functions; brackets take three.
inline constexpr int kMaxParseNesting = 240;

// After an error every function returns null at once.
class ExpressionParser : protected TokenReader {
 public:
  using TokenReader::TokenReader;

  // The first error of all. A filter or test that Headway lacks is the last to be told, and only
  // where jinja2 would look for it before the template runs.
  Status Finished() const { return !failed() && !unknown_.empty() ? unknown_[0] : status(); }

 protected:
  // Whether `ns.x` is allowed as a target.
  enum class Namespaces { kNo, kYes };
  struct TupleOptions {
    bool simple = false;  // names and literals only: the target of an assignment
    bool with_if = true;  // `a if b else c` is allowed
    Namespaces namespaces = Namespaces::kNo;
    bool parentheses = false;   // within (...), where () is a tuple
    std::string_view end = {};  // a name that ends it, besides the end of the tag
  };

  ExprPtr ParseTuple(const TupleOptions& options);
  ExprPtr ParseExpression(bool with_if = true);
  ExprPtr ParsePrimary(Namespaces namespaces = Namespaces::kNo);
  ExprPtr ParseFilters(ExprPtr value);  // each with its '|'
  ExprPtr ParseFilter(ExprPtr value);   // one, from its name on

  static ExprPtr NewExpr(ExprKind kind, int line);
  // Sets the depth of a finished expression; null (and failed) when it is too deep.
  ExprPtr Finish(ExprPtr expr);

  int nesting_ = 0;  // of functions that recurse
  // Of conditions around the current place, in which a filter may be unknown until it runs.
  int soft_ = 0;
  // Which of the names that a macro gets without a parameter were read.
  std::set<std::string> special_names_;

 private:
  class Nesting;

  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  bool ParseCompareOp(CompareOp* op);
  ExprPtr ParseMath(int level);
  ExprPtr ParseConcat();
  ExprPtr ParseUnary(bool with_filter);
  ExprPtr ParsePostfix(ExprPtr expr);
  ExprPtr ParseFilterExpr(ExprPtr expr);
  ExprPtr ParseName(Namespaces namespaces);
  void FindFunction(Expr* expr);
  ExprPtr ParseList();
  ExprPtr ParseDict();
  ExprPtr ParseSubscript(ExprPtr object);
  ExprPtr ParseSlice(ExprPtr object, ExprPtr start);
  ExprPtr ParseCall(ExprPtr function);
  ExprPtr ParseTest(ExprPtr value);
  std::unique_ptr<CallArguments> ParseArguments();
  ExprPtr Binary(ExprKind kind, ExprPtr left, ExprPtr right, int line);
  bool AtTupleEnd(std::string_view end) const;

  std::vector<Status> unknown_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
