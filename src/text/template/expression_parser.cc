#include "text/template/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/template/runtime.h"

namespace headway::jinja {
// --- tokens ---

const Token& TokenReader::Advance() {
  const Token& token = tokens_[position_];
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}

bool TokenReader::SkipName(std::string_view name) {
  if (failed() || !IsName(name)) return false;
  Advance();
  return true;
}

bool TokenReader::SkipOperator(std::string_view op) {
  if (failed() || !IsOperator(op)) return false;
  Advance();
  return true;
}

bool TokenReader::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return true;
  Fail(fmt::format("expected '{}', got {}", op, DescribeToken(Current())));
  return false;
}

bool TokenReader::Expect(TokenKind kind, std::string_view what) {
  if (!failed() && Current().kind == kind) {
    Advance();
    return true;
  }
  Fail(fmt::format("expected {}, got {}", what, DescribeToken(Current())));
  return false;
}

std::string TokenReader::ExpectName() {
  const Token& token = Current();
  return Expect(TokenKind::kName, "a name") ? token.text : "";
}

std::nullptr_t TokenReader::FailAt(int line, std::string_view message, StatusCode code) {
  if (status_.ok()) status_ = TemplateError(code, name_, line, message);
  return nullptr;
}

std::nullptr_t TokenReader::Refuse(std::string_view what) {
  return FailAt(Current().line, fmt::format("Headway does not have {}", what),
                StatusCode::kUnsupported);
}

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

ExprPtr ExpressionParser::ParseExpression(Conditions conditions) {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const size_t unknown = unknown_.size();
  ExprPtr expr = ParseBinary(Level::kOr);
  while (conditions == Conditions::kYes && SkipName("if")) {
    ExprPtr condition = NewExpr(ExprKind::kIf, Current().line);
    condition->operands.push_back(ParseBinary(Level::kOr));
    condition->operands.push_back(std::move(expr));
    condition->operands.push_back(SkipName("else") ? ParseExpression() : nullptr);
    expr = Finish(std::move(condition));
    unknown_.resize(unknown);
  }
  return failed() ? nullptr : std::move(expr);
}

ExprPtr ExpressionParser::ParseBinary(Level level) {
  struct Op {
    Level level;
    std::string_view text;
    ExprKind kind;
    BinaryOp op = BinaryOp::kAdd;
  };
  constexpr Op kOps[] = {{Level::kOr, "or", ExprKind::kOr},
                         {Level::kAnd, "and", ExprKind::kAnd},
                         {Level::kSum, "+", ExprKind::kBinary, BinaryOp::kAdd},
                         {Level::kSum, "-", ExprKind::kBinary, BinaryOp::kSub},
                         {Level::kConcat, "~", ExprKind::kConcat},
                         {Level::kProduct, "*", ExprKind::kBinary, BinaryOp::kMul},
                         {Level::kProduct, "/", ExprKind::kBinary, BinaryOp::kDiv},
                         {Level::kProduct, "//", ExprKind::kBinary, BinaryOp::kFloorDiv},
                         {Level::kProduct, "%", ExprKind::kBinary, BinaryOp::kMod}};
  ExprPtr left = ParseOperand(level);
  while (!failed()) {
    if (IsOperator("**")) return Refuse("the operator '**'");
    const auto* found = std::find_if(std::begin(kOps), std::end(kOps), [&](const Op& op) {
      return op.level == level && (IsOperator(op.text) || IsName(op.text));
    });
    if (found == std::end(kOps)) break;
    const int line = Advance().line;
    left = Binary(found->kind, std::move(left), ParseOperand(level), line);
    if (left != nullptr) left->op = found->op;
  }
  return left;
}

// What the operators of a level stand between.
ExprPtr ExpressionParser::ParseOperand(Level level) {
  switch (level) {
    case Level::kOr:
      return ParseBinary(Level::kAnd);
    case Level::kAnd:
      return ParseNot();
    case Level::kSum:
      return ParseBinary(Level::kConcat);
    case Level::kConcat:
      return ParseBinary(Level::kProduct);
    case Level::kProduct:
      return ParseUnary(true);
  }
  return nullptr;
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
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt}, {"<=", CompareOp::kLe},
      {">", CompareOp::kGt},  {">=", CompareOp::kGe}, {"in", CompareOp::kIn}};
  for (const auto& [text, value] : kOps) {
    if (!SkipOperator(text) && !SkipName(text)) continue;
    *op = value;
    return true;
  }
  if (failed() || !IsName("not") || !Is(Look(), TokenKind::kName, "in")) return false;
  Advance();
  Advance();
  *op = CompareOp::kNotIn;
  return true;
}

ExprPtr ExpressionParser::ParseCompare() {
  const int line = Current().line;
  ExprPtr first = ParseBinary(Level::kSum);
  CompareOp op = CompareOp::kEq;
  if (!ParseCompareOp(&op)) return first;
  ExprPtr expr = NewExpr(ExprKind::kCompare, line);
  expr->operands.push_back(std::move(first));
  do {
    expr->compares.push_back(op);
    expr->operands.push_back(ParseBinary(Level::kSum));
  } while (ParseCompareOp(&op));
  return Finish(std::move(expr));
}

ExprPtr ExpressionParser::ParseUnary(bool with_filter) {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const int line = Current().line;
  ExprPtr expr;
  if (IsOperator("+")) return Refuse("the sign '+'");
  if (SkipOperator("-")) {
    expr = NewExpr(ExprKind::kNegate, line);
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
    if (SkipOperator(".")) {
      expr = ParseAttribute(std::move(expr));
    } else if (SkipOperator("[")) {
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

ExprPtr ExpressionParser::ParsePrimary() {
  if (failed()) return nullptr;
  const Token& token = Current();
  if (token.kind == TokenKind::kName) return ParseName();
  if (IsOperator("(")) return ParseParentheses();
  if (IsOperator("[")) return ParseItems(ExprKind::kList, "]");
  if (IsOperator("{")) return ParseItems(ExprKind::kDict, "}");
  ExprPtr constant = NewExpr(ExprKind::kConstant, token.line);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (Current().kind == TokenKind::kString) text += Advance().text;
    constant->value = Value::Constant(std::move(text));
  } else if (token.kind == TokenKind::kInteger) {
    constant->value = Value::Int(Advance().integer);
  } else if (token.kind == TokenKind::kFloat) {
    constant->value = Value::Float(Advance().real);
  } else {
    return Fail(fmt::format("unexpected {}", DescribeToken(token)));
  }
  return constant;
}

ExprPtr ExpressionParser::ParseName() {
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
    if (macro_ != nullptr && name == "caller") macro_->uses_caller = true;
    if (macro_ != nullptr && (name == "varargs" || name == "kwargs")) {
      return Refuse(fmt::format("'{}' in macros", name));
    }
  }
  return expr;
}

std::string ExpressionParser::ParseNewName() {
  std::string name = ExpectName();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) Fail("cannot assign to a constant");
  }
  return name;
}

ExprPtr ExpressionParser::ParseOneTarget() {
  const int line = Current().line;
  if (SkipOperator("(")) {
    ExprPtr target = ParseTarget();
    return ExpectOperator(")") ? std::move(target) : nullptr;
  }
  ExprPtr target = NewExpr(ExprKind::kName, line);
  target->name = ParseNewName();
  if (SkipOperator(".")) {
    target->kind = ExprKind::kNamespace;
    target->attribute = ExpectName();
  }
  return failed() ? nullptr : std::move(target);
}

ExprPtr ExpressionParser::ParseTarget() {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  ExprPtr first = ParseOneTarget();
  if (failed() || !IsOperator(",")) return first;
  ExprPtr tuple = NewExpr(ExprKind::kTuple, first->line);
  tuple->operands.push_back(std::move(first));
  while (SkipOperator(",")) tuple->operands.push_back(ParseOneTarget());
  return Finish(std::move(tuple));
}

ExprPtr ExpressionParser::ParseTuple(Conditions conditions) {
  ExprPtr first = ParseExpression(conditions);
  if (failed() || !IsOperator(",")) return first;
  ExprPtr tuple = NewExpr(ExprKind::kTuple, first->line);
  tuple->operands.push_back(std::move(first));
  while (SkipOperator(",")) {
    const TokenKind kind = Current().kind;
    const bool end = kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd;
    if (end || IsOperator(")")) break;
    tuple->operands.push_back(ParseExpression(conditions));
  }
  return Finish(std::move(tuple));
}

ExprPtr ExpressionParser::ParseParentheses() {
  const int line = Advance().line;
  if (SkipOperator(")")) return NewExpr(ExprKind::kTuple, line);
  ExprPtr expr = ParseTuple();
  return ExpectOperator(")") ? std::move(expr) : nullptr;
}

// What stands in [...] or {...}; for a dict each key with its value.
ExprPtr ExpressionParser::ParseItems(ExprKind kind, std::string_view end) {
  ExprPtr items = NewExpr(kind, Advance().line);
  while (!failed() && !IsOperator(end)) {
    items->operands.push_back(ParseExpression());
    if (kind == ExprKind::kDict && ExpectOperator(":")) {
      items->operands.push_back(ParseExpression());
    }
    if (!IsOperator(end) && !ExpectOperator(",")) return nullptr;
  }
  return ExpectOperator(end) ? Finish(std::move(items)) : nullptr;
}

// --- subscripts, calls, filters, tests ---

ExprPtr ExpressionParser::ParseAttribute(ExprPtr object) {
  const Token& attribute = Advance();
  if (attribute.kind == TokenKind::kName) {
    ExprPtr expr = NewExpr(ExprKind::kGetAttr, attribute.line);
    expr->name = attribute.text;
    expr->operands.push_back(std::move(object));
    return Finish(std::move(expr));
  }
  if (attribute.kind != TokenKind::kInteger) {
    return FailAt(attribute.line, "expected name or number");
  }
  ExprPtr index = NewExpr(ExprKind::kConstant, attribute.line);
  index->value = Value::Int(attribute.integer);
  return Binary(ExprKind::kGetItem, std::move(object), std::move(index), attribute.line);
}

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
  const int line = Current().line;
  if (IsOperator("]")) return Refuse("tuples as subscripts");
  ExprPtr key = IsOperator(":") ? nullptr : ParseExpression();
  if (IsOperator(":")) return ParseSlice(std::move(object), std::move(key));
  if (IsOperator(",")) return Refuse("tuples as subscripts");
  if (!ExpectOperator("]")) return nullptr;
  return Binary(ExprKind::kGetItem, std::move(object), std::move(key), line);
}

// From the first ':' on.
ExprPtr ExpressionParser::ParseSlice(ExprPtr object, ExprPtr start) {
  ExprPtr slice = NewExpr(ExprKind::kSlice, Advance().line);
  slice->operands.push_back(std::move(object));
  slice->operands.push_back(std::move(start));
  const auto part = [&]() -> ExprPtr {
    return IsOperator(":") || IsOperator("]") ? nullptr : ParseExpression();
  };
  slice->operands.push_back(part());
  slice->operands.push_back(SkipOperator(":") ? part() : nullptr);
  return ExpectOperator("]") ? Finish(std::move(slice)) : nullptr;
}

std::unique_ptr<CallArguments> ExpressionParser::ParseArguments() {
  auto arguments = std::make_unique<CallArguments>();
  ExpectOperator("(");
  while (!failed() && !IsOperator(")")) {
    ParseArgument(arguments.get());
    if (!IsOperator(")") && !ExpectOperator(",")) return nullptr;
  }
  return ExpectOperator(")") ? std::move(arguments) : nullptr;
}

void ExpressionParser::ParseArgument(CallArguments* arguments) {
  constexpr std::string_view kInvalid = "invalid syntax for function call expression";
  if (IsOperator("**")) {
    Refuse("'**' in calls");
  } else if (SkipOperator("*")) {
    if (arguments->star != nullptr) Fail(kInvalid);
    arguments->star = ParseExpression();
  } else if (Current().kind == TokenKind::kName && Is(Look(), TokenKind::kOperator, "=")) {
    const std::string key = Advance().text;
    Advance();
    for (const auto& named : arguments->named) {
      if (named.first == key) Fail(kInvalid);
    }
    arguments->named.emplace_back(key, ParseExpression());
  } else {
    if (arguments->star != nullptr || !arguments->named.empty()) Fail(kInvalid);
    arguments->positional.push_back(ParseExpression());
  }
}

ExprPtr ExpressionParser::ParseCall(ExprPtr function) {
  ExprPtr call = NewExpr(ExprKind::kCall, Current().line);
  call->operands.push_back(std::move(function));
  call->call = ParseArguments();
  return Finish(std::move(call));
}

void ExpressionParser::NoteUnknown(const Expr& expr) {
  if (expr.function != nullptr || conditions_ > 0 || failed()) return;
  const char* what = expr.kind == ExprKind::kFilter ? "filter" : "test";
  unknown_.emplace_back(expr.line, fmt::format("unknown {} '{}'", what, expr.name));
}

void ExpressionParser::FailUnknown() {
  if (unknown_.empty()) return;
  FailAt(unknown_[0].first, unknown_[0].second, StatusCode::kUnsupported);
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr value) {
  while (SkipOperator("|")) value = ParseFilter(std::move(value));
  return failed() ? nullptr : std::move(value);
}

ExprPtr ExpressionParser::ParseFilter(ExprPtr value) {
  ExprPtr filter = NewExpr(ExprKind::kFilter, Current().line);
  filter->name = ExpectName();
  while (SkipOperator(".")) filter->name += "." + ExpectName();
  filter->function = FindFilter(filter->name);
  NoteUnknown(*filter);
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
  test->function = FindTest(test->name);
  NoteUnknown(*test);
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
