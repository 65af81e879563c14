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
#include "text/template/lexer.h"

namespace headway::jinja {

// Deepest nesting of the parser's functions; brackets take three.
inline constexpr int kMaxParseNesting = 240;

// After an error, which status() keeps, every function returns null or false at once.
class ExpressionParser {
 public:
  // `tokens` ends with kEnd; both outlive the parser.
  ExpressionParser(const std::vector<Token>& tokens, const std::string& name)
      : tokens_(tokens), name_(name) {}

  // The first error of all. A filter or test that Headway lacks is the last to be told, and only
  // where jinja2 would look for it before the template runs.
  Status Finished() const { return status_.ok() && !unknown_.empty() ? unknown_[0] : status_; }

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

  const Token& Current() const { return tokens_[position_]; }
  const Token& Look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& Advance();
  bool IsName(std::string_view name) const { return IsName(Current(), name); }
  static bool IsName(const Token& token, std::string_view name) {
    return token.kind == TokenKind::kName && token.text == name;
  }
  bool IsOperator(std::string_view op) const { return IsOperator(Current(), op); }
  static bool IsOperator(const Token& token, std::string_view op) {
    return token.kind == TokenKind::kOperator && token.text == op;
  }
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  bool ExpectOperator(std::string_view op);
  bool Expect(TokenKind kind, std::string_view what);
  // The name that must come now.
  std::string ExpectName();

  bool failed() const { return !status_.ok(); }
  std::nullptr_t Fail(std::string_view message) { return FailAt(Current().line, message); }
  std::nullptr_t FailAt(int line, std::string_view message,
                        StatusCode code = StatusCode::kInvalidArgument);

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

  const std::vector<Token>& tokens_;
  const std::string& name_;
  size_t position_ = 0;
  Status status_;
  std::vector<Status> unknown_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
