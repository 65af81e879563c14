// Parses expressions; the base of the parser of statements.
#ifndef HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
#define HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace headway::jinja {

// Deepest nesting of the parser's functions; brackets take three.
inline constexpr int kMaxParseNesting = 240;

// Reads the tokens of a template one by one, and keeps the first error. After an error no function
// takes a token because of its kind or text: all return false.
class TokenReader {
 public:
  // `tokens` ends with kEnd; both outlive the reader.
  TokenReader(const std::vector<Token>& tokens, const std::string& name)
      : tokens_(tokens), name_(name) {}

  const Token& Current() const { return tokens_[position_]; }
  const Token& Look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& Advance();
  bool IsName(std::string_view name) const { return Is(Current(), TokenKind::kName, name); }
  bool IsOperator(std::string_view op) const { return Is(Current(), TokenKind::kOperator, op); }
  static bool Is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool SkipName(std::string_view name) { return SkipIf(IsName(name)); }
  bool SkipOperator(std::string_view op) { return SkipIf(IsOperator(op)); }
  bool ExpectOperator(std::string_view op);
  bool Expect(TokenKind kind, std::string_view what);
  // The name that must come now.
  std::string ExpectName();

  const Status& status() const { return status_; }
  bool failed() const { return !status_.ok(); }
  std::nullptr_t Fail(std::string_view message) { return FailAt(Current().line, message); }
  std::nullptr_t FailAt(int line, std::string_view message,
                        StatusCode code = StatusCode::kInvalidArgument);

  // Fails because Headway does not have `what`.
  std::nullptr_t Refuse(std::string_view what);

 private:
  bool SkipIf(bool here);
  bool FailExpected(std::string_view what);

  const std::vector<Token>& tokens_;
  const std::string& name_;
  size_t position_ = 0;
  Status status_;
};

// After an error every function returns null at once.
class ExpressionParser : protected TokenReader {
 public:
  using TokenReader::TokenReader;

  const Status& status() const { return TokenReader::status(); }

 protected:
  // Whether `a if b else c` is allowed outside of brackets: not where an `if` of the tag may
  // follow.
  enum class Conditions { kYes, kNo };

  // One expression, or several with commas between them.
  ExprPtr ParseTuple(Conditions conditions = Conditions::kYes);
  ExprPtr ParseExpression(Conditions conditions = Conditions::kYes);
  // What is assigned to: a name, name.attribute of a namespace, or a tuple of such.
  ExprPtr ParseTarget();
  // A name that is no constant.
  std::string ParseNewName();
  ExprPtr ParseFilters(ExprPtr value);  // each with its '|'
  ExprPtr ParseFilter(ExprPtr value);   // one, from its name on

  // Fails for the first filter or test that Headway lacks, the last of all errors.
  void FailUnknown();

  static ExprPtr Constant(int line, Value value);
  // Sets the depth of a finished expression; null (and failed) when it is too deep.
  ExprPtr Finish(ExprPtr expr);
  template <typename... Operands>
  ExprPtr Node(ExprKind kind, int line, Operands... operands) {
    ExprPtr expr = std::make_unique<Expr>(kind, line);
    (expr->operands.push_back(std::move(operands)), ...);
    return Finish(std::move(expr));
  }

  // Counts how deep the parser's functions call each other.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser* parser) : parser_(parser) {
      if (++parser_->nesting_ > kMaxParseNesting) parser_->Fail("nested too deeply");
    }
    ~Nesting() { --parser_->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    bool ok() const { return !parser_->failed(); }

   private:
    ExpressionParser* const parser_;
  };

  MacroCode* macro_ = nullptr;  // around the current place
  // Of `if` tags around the current place within its loop, block or macro. There, as in the parts
  // of `a if b else c`, jinja2 looks for a filter or test when it runs and not before.
  int conditions_ = 0;

 private:
  // Operators from the loosest to the tightest; `not` and comparisons stand between and and +.
  enum class Level { kOr, kAnd, kSum, kConcat, kProduct };
  ExprPtr ParseBinary(Level level);
  ExprPtr ParseOperand(Level level);
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  bool ParseCompareOp(CompareOp* op);
  ExprPtr ParseUnary();
  ExprPtr ParsePostfix(ExprPtr expr);
  ExprPtr ParseFilterExpr(ExprPtr expr);
  ExprPtr ParsePrimary();
  ExprPtr ParseName();
  ExprPtr ParseOneTarget();
  ExprPtr ParseParentheses();
  ExprPtr ParseItems(ExprKind kind, std::string_view end);
  ExprPtr ParseAttribute(ExprPtr object);
  ExprPtr ParseSubscript(ExprPtr object);
  ExprPtr ParseSlice(ExprPtr object, ExprPtr start);
  ExprPtr ParseCall(ExprPtr function);
  ExprPtr ParseTest(ExprPtr value);
  std::unique_ptr<CallArguments> ParseArguments();
  void ParseArgument(CallArguments* arguments);
  ExprPtr ParseNamed(ExprKind kind, int line, ExprPtr value);

  int nesting_ = 0;
  std::vector<std::pair<int, std::string>> unknown_;  // line and message
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_EXPRESSION_PARSER_H_
