#include "text/template/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace headway::jinja {
// --- tokens ---

const Token& TokenReader::Advance() {
  const Token& token = tokens_[position_];
  if (token.kind != TokenKind::kEnd) ++position_;
  return token;
}

bool TokenReader::SkipIf(bool here) {
  if (failed() || !here) return false;
  Advance();
  return true;
}

bool TokenReader::ExpectOperator(std::string_view op) {
  return SkipOperator(op) || FailExpected(fmt::format("'{}'", op));
}

bool TokenReader::Expect(TokenKind kind, std::string_view what) {
  return SkipIf(Current().kind == kind) || FailExpected(what);
}

bool TokenReader::FailExpected(std::string_view what) {
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

ExprPtr ExpressionParser::Constant(int line, Value value) {
  ExprPtr expr = std::make_unique<Expr>(ExprKind::kConstant, line);
  expr->value = std::move(value);
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

// --- operators, loosest first ---

ExprPtr ExpressionParser::ParseExpression(Conditions conditions) {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const size_t unknown = unknown_.size();
  ExprPtr expr = ParseBinary(Level::kOr);
  while (conditions == Conditions::kYes && SkipName("if")) {
    const int line = Current().line;
    ExprPtr condition = ParseBinary(Level::kOr);
    ExprPtr otherwise = SkipName("else") ? ParseExpression() : nullptr;
    expr = Node(ExprKind::kIf, line, std::move(condition), std::move(expr), std::move(otherwise));
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
    left = Node(found->kind, line, std::move(left), ParseOperand(level));
    if (left != nullptr) left->op = found->op;
  }
  return left;
}

// What the operators of a level stand between.
ExprPtr ExpressionParser::ParseOperand(Level level) {
  if (level == Level::kAnd) return ParseNot();
  if (level == Level::kProduct) return ParseFilterExpr(ParseUnary());
  return ParseBinary(static_cast<Level>(static_cast<int>(level) + 1));
}

ExprPtr ExpressionParser::ParseNot() {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const int line = Current().line;
  return SkipName("not") ? Node(ExprKind::kNot, line, ParseNot()) : ParseCompare();
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
  ExprPtr expr = std::make_unique<Expr>(ExprKind::kCompare, line);
  expr->operands.push_back(std::move(first));
  do {
    expr->compares.push_back(op);
    expr->operands.push_back(ParseBinary(Level::kSum));
  } while (ParseCompareOp(&op));
  return Finish(std::move(expr));
}

ExprPtr ExpressionParser::ParseUnary() {
  const Nesting nesting(this);
  if (!nesting.ok()) return nullptr;
  const int line = Current().line;
  if (IsOperator("+")) return Refuse("the sign '+'");
  return ParsePostfix(SkipOperator("-") ? Node(ExprKind::kNegate, line, ParseUnary())
                                        : ParsePrimary());
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
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (Current().kind == TokenKind::kString) text += Advance().text;
    return Constant(token.line, Value::Constant(std::move(text)));
  }
  if (token.kind == TokenKind::kInteger) return Constant(token.line, Value::Int(Advance().integer));
  if (token.kind == TokenKind::kFloat) return Constant(token.line, Value::Float(Advance().real));
  return Fail(fmt::format("unexpected {}", DescribeToken(token)));
}

ExprPtr ExpressionParser::ParseName() {
  const Token& token = Advance();
  const std::string& name = token.text;
  const bool yes = name == "true" || name == "True";
  if (yes || name == "false" || name == "False") return Constant(token.line, Value::Bool(yes));
  if (name == "none" || name == "None") return Constant(token.line, Value::None());
  ExprPtr expr = std::make_unique<Expr>(ExprKind::kName, token.line);
  expr->name = name;
  if (macro_ != nullptr && name == "caller") macro_->uses_caller = true;
  if (macro_ != nullptr && (name == "varargs" || name == "kwargs")) {
    return Refuse(fmt::format("'{}' in macros", name));
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
  ExprPtr target = std::make_unique<Expr>(ExprKind::kName, line);
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
  ExprPtr tuple = std::make_unique<Expr>(ExprKind::kTuple, first->line);
  tuple->operands.push_back(std::move(first));
  while (SkipOperator(",")) tuple->operands.push_back(ParseOneTarget());
  return Finish(std::move(tuple));
}

ExprPtr ExpressionParser::ParseTuple(Conditions conditions) {
  ExprPtr first = ParseExpression(conditions);
  if (failed() || !IsOperator(",")) return first;
  ExprPtr tuple = std::make_unique<Expr>(ExprKind::kTuple, first->line);
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
  if (SkipOperator(")")) return std::make_unique<Expr>(ExprKind::kTuple, line);
  ExprPtr expr = ParseTuple();
  return ExpectOperator(")") ? std::move(expr) : nullptr;
}

// What stands in [...] or {...}; for a dict each key with its value.
ExprPtr ExpressionParser::ParseItems(ExprKind kind, std::string_view end) {
  ExprPtr items = std::make_unique<Expr>(kind, Advance().line);
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
    ExprPtr expr = Node(ExprKind::kGetAttr, attribute.line, std::move(object));
    if (expr != nullptr) expr->name = attribute.text;
    return expr;
  }
  if (attribute.kind != TokenKind::kInteger) {
    return FailAt(attribute.line, "expected name or number");
  }
  return Node(ExprKind::kGetItem, attribute.line, std::move(object),
              Constant(attribute.line, Value::Int(attribute.integer)));
}

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
  const int line = Current().line;
  if (IsOperator("]")) return Refuse("tuples as subscripts");
  ExprPtr key = IsOperator(":") ? nullptr : ParseExpression();
  if (IsOperator(":")) return ParseSlice(std::move(object), std::move(key));
  if (IsOperator(",")) return Refuse("tuples as subscripts");
  if (!ExpectOperator("]")) return nullptr;
  return Node(ExprKind::kGetItem, line, std::move(object), std::move(key));
}

// From the first ':' on.
ExprPtr ExpressionParser::ParseSlice(ExprPtr object, ExprPtr start) {
  const int line = Advance().line;
  const auto part = [&]() -> ExprPtr {
    return IsOperator(":") || IsOperator("]") ? nullptr : ParseExpression();
  };
  ExprPtr stop = part();
  ExprPtr step = SkipOperator(":") ? part() : nullptr;
  if (!ExpectOperator("]")) return nullptr;
  return Node(ExprKind::kSlice, line, std::move(object), std::move(start), std::move(stop),
              std::move(step));
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
  ExprPtr call = std::make_unique<Expr>(ExprKind::kCall, Current().line);
  call->operands.push_back(std::move(function));
  call->call = ParseArguments();
  return Finish(std::move(call));
}

void ExpressionParser::FailUnknown() {
  if (unknown_.empty()) return;
  FailAt(unknown_[0].first, unknown_[0].second, StatusCode::kUnsupported);
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr value) {
  while (SkipOperator("|")) value = ParseFilter(std::move(value));
  return failed() ? nullptr : std::move(value);
}

// A filter or a test up to its name.
ExprPtr ExpressionParser::ParseNamed(ExprKind kind, int line, ExprPtr value) {
  ExprPtr expr = std::make_unique<Expr>(kind, line);
  expr->name = ExpectName();
  while (SkipOperator(".")) expr->name += "." + ExpectName();
  const bool filter = kind == ExprKind::kFilter;
  expr->function = filter ? FindFilter(expr->name) : FindTest(expr->name);
  if (expr->function == nullptr && conditions_ == 0 && !failed()) {
    unknown_.emplace_back(line,
                          fmt::format("unknown {} '{}'", filter ? "filter" : "test", expr->name));
  }
  expr->operands.push_back(std::move(value));
  return failed() ? nullptr : std::move(expr);
}

ExprPtr ExpressionParser::ParseFilter(ExprPtr value) {
  ExprPtr filter = ParseNamed(ExprKind::kFilter, Current().line, std::move(value));
  if (failed()) return nullptr;
  filter->call = IsOperator("(") ? ParseArguments() : std::make_unique<CallArguments>();
  return Finish(std::move(filter));
}

ExprPtr ExpressionParser::ParseTest(ExprPtr value) {
  const int line = Advance().line;  // "is"
  const bool negated = SkipName("not");
  ExprPtr test = ParseNamed(ExprKind::kTest, line, std::move(value));
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
  return negated ? Node(ExprKind::kNot, line, std::move(test)) : std::move(test);
}

}  // namespace headway::jinja
