#include "text/template/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace headway::jinja {

// Counts how deep the parser's functions call each other.
class ExpressionParser::Nesting {
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

// --- nodes ---

ExprPtr ExpressionParser::NewExpr(ExprKind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

ExprPtr ExpressionParser::Finish(ExprPtr expr) {
  if (failed()) return nullptr;
  const auto count = [&](const ExprPtr& child) {
    if (child != nullptr) expr->depth = std::max(expr->depth, child->depth + 1);
  };
  for (const ExprPtr& operand : expr->operands) count(operand);
  if (expr->call != nullptr) {
    for (const ExprPtr& argument : expr->call->positional) count(argument);
    for (const auto& named : expr->call->named) count(named.second);
    count(expr->call->star);
    count(expr->call->double_star);
  }
  if (expr->depth > kMaxExpressionDepth) return FailAt(expr->line, "an expression is too deep");
  return expr;
}

ExprPtr ExpressionParser::Binary(ExprKind kind, ExprPtr left, ExprPtr right, int line) {
  ExprPtr expr = NewExpr(kind, line);
  expr->operands.push_back(std::move(left));
  expr->operands.push_back(std::move(right));
  return Finish(std::move(expr));
}

// --- operators, loosest first ---

ExprPtr ExpressionParser::ParseExpression(bool with_if) {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const size_t unknown = unknown_.size();
  ExprPtr expr = ParseOr();
  while (with_if && SkipName("if")) {
    ExprPtr condition = NewExpr(ExprKind::kIf, Current().line);
    condition->operands.push_back(ParseOr());
    condition->operands.push_back(std::move(expr));
    condition->operands.push_back(SkipName("else") ? ParseExpression() : nullptr);
    expr = Finish(std::move(condition));
    unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(unknown), unknown_.end());
  }
  return failed() ? nullptr : std::move(expr);
}

ExprPtr ExpressionParser::ParseOr() {
  ExprPtr left = ParseAnd();
  while (SkipName("or")) {
    left = Binary(ExprKind::kOr, std::move(left), ParseAnd(), Current().line);
  }
  return left;
}

ExprPtr ExpressionParser::ParseAnd() {
  ExprPtr left = ParseNot();
  while (SkipName("and")) {
    left = Binary(ExprKind::kAnd, std::move(left), ParseNot(), Current().line);
  }
  return left;
}

ExprPtr ExpressionParser::ParseNot() {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const int line = Current().line;
  if (!SkipName("not")) return ParseCompare();
  ExprPtr expr = NewExpr(ExprKind::kNot, line);
  expr->operands.push_back(ParseNot());
  return Finish(std::move(expr));
}

bool ExpressionParser::ParseCompareOp(CompareOp* op) {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
      {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  for (const auto& [text, value] : kOps) {
    if (!SkipOperator(text)) continue;
    *op = value;
    return true;
  }
  if (SkipName("in")) {
    *op = CompareOp::kIn;
    return true;
  }
  if (!failed() && IsName("not") && IsName(Look(), "in")) {
    Advance();
    Advance();
    *op = CompareOp::kNotIn;
    return true;
  }
  return false;
}

ExprPtr ExpressionParser::ParseCompare() {
  constexpr int kSums = 0;
  const int line = Current().line;
  ExprPtr first = ParseMath(kSums);
  CompareOp op = CompareOp::kEq;
  if (!ParseCompareOp(&op)) return first;
  ExprPtr expr = NewExpr(ExprKind::kCompare, line);
  expr->operands.push_back(std::move(first));
  do {
    expr->compares.push_back(op);
    expr->operands.push_back(ParseMath(kSums));
  } while (ParseCompareOp(&op));
  return Finish(std::move(expr));
}

// Level 0: + and -; between it and level 1 stands ~; level 1: * / // %.
ExprPtr ExpressionParser::ParseMath(int level) {
  struct Op {
    int level;
    std::string_view text;
    BinaryOp op;
  };
  constexpr Op kOps[] = {{0, "+", BinaryOp::kAdd},       {0, "-", BinaryOp::kSub},
                         {1, "*", BinaryOp::kMul},       {1, "/", BinaryOp::kDiv},
                         {1, "//", BinaryOp::kFloorDiv}, {1, "%", BinaryOp::kMod}};
  const auto operand = [&] { return level == 0 ? ParseConcat() : ParseUnary(true); };
  ExprPtr left = operand();
  while (!failed()) {
    const Op* found = nullptr;
    for (const Op& op : kOps) {
      if (op.level == level && IsOperator(op.text)) found = &op;
    }
    if (IsOperator("**")) {
      return FailAt(Current().line, "Headway does not have the operator '**'",
                    StatusCode::kUnsupported);
    }
    if (found == nullptr) break;
    const int line = Advance().line;
    left = Binary(ExprKind::kBinary, std::move(left), operand(), line);
    if (left != nullptr) left->op = found->op;
  }
  return left;
}

ExprPtr ExpressionParser::ParseConcat() {
  constexpr int kProducts = 1;
  const int line = Current().line;
  ExprPtr first = ParseMath(kProducts);
  if (failed() || !IsOperator("~")) return first;
  ExprPtr expr = NewExpr(ExprKind::kConcat, line);
  expr->operands.push_back(std::move(first));
  while (SkipOperator("~")) expr->operands.push_back(ParseMath(kProducts));
  return Finish(std::move(expr));
}

ExprPtr ExpressionParser::ParseUnary(bool with_filter) {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const int line = Current().line;
  ExprPtr expr;
  if (IsOperator("-") || IsOperator("+")) {
    expr = NewExpr(IsOperator("-") ? ExprKind::kNegate : ExprKind::kPositive, line);
    Advance();
    expr->operands.push_back(ParseUnary(false));
    expr = Finish(std::move(expr));
  } else {
    expr = ParsePrimary();
  }
  expr = ParsePostfix(std::move(expr));
  return with_filter ? ParseFilterExpr(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr expr) {
  while (!failed()) {
    if (IsOperator(".") || IsOperator("[")) {
      expr = ParseSubscript(std::move(expr));
    } else if (IsOperator("(")) {
      expr = ParseCall(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr ExpressionParser::ParseFilterExpr(ExprPtr expr) {
  while (!failed()) {
    if (IsOperator("|")) {
      expr = ParseFilters(std::move(expr));
    } else if (IsName("is")) {
      expr = ParseTest(std::move(expr));
    } else if (IsOperator("(")) {
      expr = ParseCall(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

// --- primaries ---

ExprPtr ExpressionParser::ParsePrimary(Namespaces namespaces) {
  if (failed()) return nullptr;
  const Token& token = Current();
  ExprPtr constant = NewExpr(ExprKind::kConstant, token.line);
  switch (token.kind) {
    case TokenKind::kName:
      return ParseName(namespaces);
    case TokenKind::kString: {
      std::string text;
      while (Current().kind == TokenKind::kString) text += Advance().text;
      constant->value = Value::Constant(std::move(text));
      return constant;
    }
    case TokenKind::kInteger:
      constant->value = Value::Int(Advance().integer);
      return constant;
    case TokenKind::kFloat:
      constant->value = Value::Float(Advance().real);
      return constant;
    default:
      break;
  }
  if (SkipOperator("(")) {
    ExprPtr expr = ParseTuple({.parentheses = true});
    return ExpectOperator(")") ? std::move(expr) : nullptr;
  }
  if (IsOperator("[")) return ParseList();
  if (IsOperator("{")) return ParseDict();
  return Fail(fmt::format("unexpected {}", DescribeToken(token)));
}

ExprPtr ExpressionParser::ParseName(Namespaces namespaces) {
  const Token& token = Advance();
  const std::string& name = token.text;
  ExprPtr expr = NewExpr(ExprKind::kConstant, token.line);
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->value = Value::Bool(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->value = Value::None();
  } else {
    expr->kind = ExprKind::kName;
    expr->name = name;
    if (name == "caller" || name == "varargs" || name == "kwargs") special_names_.insert(name);
    if (namespaces == Namespaces::kYes && SkipOperator(".")) {
      expr->kind = ExprKind::kNamespace;
      expr->attribute = ExpectName();
    }
  }
  return failed() ? nullptr : std::move(expr);
}

bool ExpressionParser::AtTupleEnd(std::string_view end) const {
  const TokenKind kind = Current().kind;
  return kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || IsOperator(")") ||
         (!end.empty() && IsName(end));
}

ExprPtr ExpressionParser::ParseTuple(const TupleOptions& options) {
  ExprPtr tuple = NewExpr(ExprKind::kTuple, Current().line);
  bool is_tuple = false;
  while (!failed()) {
    if (!tuple->operands.empty() && !ExpectOperator(",")) return nullptr;
    if (AtTupleEnd(options.end)) break;
    tuple->operands.push_back(options.simple ? ParsePrimary(options.namespaces)
                                             : ParseExpression(options.with_if));
    if (failed() || !IsOperator(",")) break;
    is_tuple = true;
  }
  if (failed()) return nullptr;
  if (!is_tuple && !tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!is_tuple && !options.parentheses) {
    return Fail(fmt::format("expected an expression, got {}", DescribeToken(Current())));
  }
  return Finish(std::move(tuple));
}

ExprPtr ExpressionParser::ParseList() {
  ExprPtr list = NewExpr(ExprKind::kList, Advance().line);
  while (!failed() && !IsOperator("]")) {
    if (!list->operands.empty() && !ExpectOperator(",")) return nullptr;
    if (IsOperator("]")) break;
    list->operands.push_back(ParseExpression());
  }
  return ExpectOperator("]") ? Finish(std::move(list)) : nullptr;
}

ExprPtr ExpressionParser::ParseDict() {
  ExprPtr dict = NewExpr(ExprKind::kDict, Advance().line);
  while (!failed() && !IsOperator("}")) {
    if (!dict->operands.empty() && !ExpectOperator(",")) return nullptr;
    if (IsOperator("}")) break;
    dict->operands.push_back(ParseExpression());
    if (!ExpectOperator(":")) return nullptr;
    dict->operands.push_back(ParseExpression());
  }
  return ExpectOperator("}") ? Finish(std::move(dict)) : nullptr;
}

// --- subscripts, calls, filters, tests ---

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
  const Token& token = Advance();
  if (token.text == ".") {
    const Token& attribute = Advance();
    if (attribute.kind == TokenKind::kName) {
      ExprPtr expr = NewExpr(ExprKind::kGetAttr, token.line);
      expr->name = attribute.text;
      expr->operands.push_back(std::move(object));
      return Finish(std::move(expr));
    }
    if (attribute.kind != TokenKind::kInteger) return FailAt(token.line, "expected name or number");
    ExprPtr index = NewExpr(ExprKind::kConstant, token.line);
    index->value = Value::Int(attribute.integer);
    return Binary(ExprKind::kGetItem, std::move(object), std::move(index), token.line);
  }
  ExprPtr key = NewExpr(ExprKind::kTuple, token.line);
  while (!failed() && !IsOperator("]")) {
    if (!key->operands.empty() && !ExpectOperator(",")) return nullptr;
    ExprPtr start = IsOperator(":") ? nullptr : ParseExpression();
    if (IsOperator(":")) {
      if (!key->operands.empty()) return Fail("a slice cannot be part of a tuple");
      return ParseSlice(std::move(object), std::move(start));
    }
    key->operands.push_back(std::move(start));
  }
  if (!ExpectOperator("]")) return nullptr;
  if (key->operands.size() == 1) {
    return Binary(ExprKind::kGetItem, std::move(object), std::move(key->operands[0]), token.line);
  }
  return Binary(ExprKind::kGetItem, std::move(object), Finish(std::move(key)), token.line);
}

// From the first ':' on.
ExprPtr ExpressionParser::ParseSlice(ExprPtr object, ExprPtr start) {
  ExprPtr slice = NewExpr(ExprKind::kSlice, Advance().line);
  slice->operands.push_back(std::move(object));
  slice->operands.push_back(std::move(start));
  const auto part = [&]() -> ExprPtr {
    return IsOperator(":") || IsOperator("]") || IsOperator(",") ? nullptr : ParseExpression();
  };
  slice->operands.push_back(part());
  slice->operands.push_back(SkipOperator(":") ? part() : nullptr);
  return ExpectOperator("]") ? Finish(std::move(slice)) : nullptr;
}

std::unique_ptr<CallArguments> ExpressionParser::ParseArguments() {
  const int line = Advance().line;  // "("
  auto arguments = std::make_unique<CallArguments>();
  bool first = true;
  while (!failed() && !IsOperator(")")) {
    if (!first) {
      if (!ExpectOperator(",")) return nullptr;
      if (IsOperator(")")) break;
    }
    first = false;
    const bool stars = arguments->star != nullptr || arguments->double_star != nullptr;
    if (SkipOperator("*")) {
      if (stars) return FailAt(line, "invalid syntax for function call expression");
      arguments->star = ParseExpression();
    } else if (SkipOperator("**")) {
      if (arguments->double_star != nullptr) {
        return FailAt(line, "invalid syntax for function call expression");
      }
      arguments->double_star = ParseExpression();
    } else if (Current().kind == TokenKind::kName && IsOperator(Look(), "=")) {
      const std::string key = Advance().text;
      Advance();
      const bool repeated = std::any_of(arguments->named.begin(), arguments->named.end(),
                                        [&](const auto& named) { return named.first == key; });
      if (arguments->double_star != nullptr || repeated) {
        return FailAt(line, "invalid syntax for function call expression");
      }
      arguments->named.emplace_back(key, ParseExpression());
    } else {
      if (stars || !arguments->named.empty()) {
        return FailAt(line, "invalid syntax for function call expression");
      }
      arguments->positional.push_back(ParseExpression());
    }
  }
  return ExpectOperator(")") ? std::move(arguments) : nullptr;
}

ExprPtr ExpressionParser::ParseCall(ExprPtr function) {
  ExprPtr call = NewExpr(ExprKind::kCall, Current().line);
  call->operands.push_back(std::move(function));
  call->call = ParseArguments();
  return Finish(std::move(call));
}

void ExpressionParser::FindFunction(Expr* expr) {
  const bool filter = expr->kind == ExprKind::kFilter;
  const NamedFunction* found = filter ? FindFilter(expr->name) : FindTest(expr->name);
  if (found != nullptr) expr->function = found->function;
  if (expr->function != nullptr || soft_ > 0) return;
  unknown_.push_back(ErrorAt(expr->line,
                             fmt::format("unknown {} '{}'", filter ? "filter" : "test", expr->name),
                             StatusCode::kUnsupported));
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr value) {
  while (SkipOperator("|")) value = ParseFilter(std::move(value));
  return failed() ? nullptr : std::move(value);
}

ExprPtr ExpressionParser::ParseFilter(ExprPtr value) {
  ExprPtr filter = NewExpr(ExprKind::kFilter, Current().line);
  filter->name = ExpectName();
  while (SkipOperator(".")) filter->name += "." + ExpectName();
  FindFunction(filter.get());
  filter->operands.push_back(std::move(value));
  filter->call =
      !failed() && IsOperator("(") ? ParseArguments() : std::make_unique<CallArguments>();
  return Finish(std::move(filter));
}

ExprPtr ExpressionParser::ParseTest(ExprPtr value) {
  const int line = Advance().line;  // "is"
  const bool negated = SkipName("not");
  ExprPtr test = NewExpr(ExprKind::kTest, line);
  test->name = ExpectName();
  while (SkipOperator(".")) test->name += "." + ExpectName();
  FindFunction(test.get());
  test->operands.push_back(std::move(value));
  if (failed()) return nullptr;
  const Token& token = Current();
  const bool argument =
      token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
      token.kind == TokenKind::kFloat || IsOperator("[") || IsOperator("{") ||
      (token.kind == TokenKind::kName && !IsName("else") && !IsName("or") && !IsName("and"));
  if (IsOperator("(")) {
    test->call = ParseArguments();
  } else {
    test->call = std::make_unique<CallArguments>();
    if (argument) {
      if (IsName("is")) return Fail("tests with 'is' cannot be chained");
      test->call->positional.push_back(ParsePostfix(ParsePrimary()));
    }
  }
  test = Finish(std::move(test));
  if (!negated || failed()) return test;
  ExprPtr negation = NewExpr(ExprKind::kNot, line);
  negation->operands.push_back(std::move(test));
  return Finish(std::move(negation));
}

}  // namespace headway::jinja
