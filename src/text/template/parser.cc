#include "text/template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "text/template/expression_parser.h"
#include "text/template/lexer.h"

namespace headway::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body ParseTemplateBody() {
    Body body = ParseBody({});
    if (!failed() && Current().kind != TokenKind::kEnd) Fail("unexpected end tag");
    return body;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  static StmtPtr NewStmt(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Statements up to a tag with one of the names, whose name is then the current token; without
  // names up to the end.
  Body ParseBody(Names ends) {
    Body body;
    StmtPtr output;
    const auto flush = [&] {
      if (output != nullptr) body.push_back(std::move(output));
      output = nullptr;
    };
    const auto write = [&](ExprPtr expr) {
      if (expr == nullptr) return;
      if (output == nullptr) output = NewStmt(StmtKind::kOutput, expr->line);
      output->expressions.push_back(std::move(expr));
    };
    if (++depth_ > kMaxStatementDepth) Fail("statements are nested too deeply");
    while (!failed() && Current().kind != TokenKind::kEnd) {
      const Token& token = Advance();
      if (token.kind == TokenKind::kData) {
        ExprPtr text = NewExpr(ExprKind::kConstant, token.line);
        text->value = Value::Constant(token.text);
        write(std::move(text));
      } else if (token.kind == TokenKind::kVariableBegin) {
        write(ParseTuple({}));
        Expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        flush();
        if (AtAny(ends)) break;
        if (StmtPtr stmt = ParseStatement()) body.push_back(std::move(stmt));
        Expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
    flush();
    --depth_;
    if (!failed() && ends.size() > 0 && !AtAny(ends)) {
      Fail(fmt::format("unexpected end of template, looking for '{}'", *ends.begin()));
    }
    return body;
  }

  bool AtAny(Names names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return IsName(n); });
  }

  // The body of a tag: from the end of the tag to a tag with one of the names.
  Body ParseTagBody(Names ends) {
    SkipOperator(":");
    if (!Expect(TokenKind::kBlockEnd, "'%}'")) return {};
    return ParseBody(ends);
  }

  // The same, and past the name that ends it.
  Body ParseWholeBody(std::string_view end) {
    Body body = ParseTagBody({end});
    if (!failed()) Advance();
    return body;
  }

  StmtPtr ParseStatement() {
    const Token token = Current();
    if (token.kind != TokenKind::kName) return Fail("tag name expected");
    const std::string& tag = token.text;
    Advance();
    if (tag == "for") return ParseFor(token.line);
    if (tag == "if") return ParseIf(token.line);
    if (tag == "set") return ParseSet(token.line);
    if (tag == "macro") return ParseMacro(token.line);
    if (tag == "call") return ParseCallBlock(token.line);
    if (tag == "filter") return ParseFilterBlock(token.line);
    if (tag == "generation") return ParseGeneration(token.line);
    if (tag == "break" || tag == "continue") return ParseLoopControl(token);
    return FailAt(token.line, fmt::format("unknown tag '{}'", tag), StatusCode::kUnsupported);
  }

  bool CanAssign(const Expr& target) const {
    if (target.kind == ExprKind::kTuple) {
      return std::all_of(target.operands.begin(), target.operands.end(),
                         [&](const ExprPtr& item) { return CanAssign(*item); });
    }
    return target.kind == ExprKind::kName || target.kind == ExprKind::kNamespace;
  }

  ExprPtr ParseTarget(Namespaces namespaces, std::string_view end) {
    ExprPtr target = ParseTuple({.simple = true, .namespaces = namespaces, .end = end});
    if (failed()) return nullptr;
    if (!CanAssign(*target)) return FailAt(target->line, "cannot assign to this expression");
    if (target->name == "loop" && loops_ > 0) return Fail("cannot assign to 'loop' within a loop");
    return target;
  }

  // A name that is not a constant.
  std::string ParseNewName() {
    std::string name = ExpectName();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) Fail("cannot assign to a constant");
    }
    return name;
  }

  StmtPtr ParseFor(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kFor, line);
    stmt->target = ParseTarget(Namespaces::kNo, "in");
    if (!SkipName("in")) return Fail("expected 'in'");
    if (stmt->target->name == "loop") return Fail("cannot assign to 'loop' within a loop");
    stmt->value = ParseTuple({.with_if = false, .end = "recursive"});
    if (SkipName("if")) stmt->test = ParseExpression();
    if (SkipName("recursive")) {
      return FailAt(line, "Headway does not have recursive loops", StatusCode::kUnsupported);
    }
    const int soft = std::exchange(soft_, 0);
    ++loops_;
    stmt->body = ParseTagBody({"endfor", "else"});
    --loops_;
    if (failed()) return nullptr;
    if (Advance().text == "else") stmt->else_body = ParseWholeBody("endfor");
    soft_ = soft;
    return stmt;
  }

  StmtPtr ParseIf(int line) {
    StmtPtr first = NewStmt(StmtKind::kIf, line);
    Stmt* stmt = first.get();
    ++soft_;
    while (!failed()) {
      stmt->test = ParseTuple({.with_if = false});
      stmt->body = ParseTagBody({"elif", "else", "endif"});
      if (failed()) break;
      const Token& token = Advance();
      if (token.text == "elif") {
        first->elifs.push_back(NewStmt(StmtKind::kIf, token.line));
        stmt = first->elifs.back().get();
        continue;
      }
      if (token.text == "else") first->else_body = ParseWholeBody("endif");
      break;
    }
    --soft_;
    return first;
  }

  StmtPtr ParseSet(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kSet, line);
    stmt->target = ParseTarget(Namespaces::kYes, "");
    if (SkipOperator("=")) {
      stmt->value = ParseTuple({});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->value = ParseFilters(BlockText(line));
    ParseCaptured("endset", stmt.get());
    return stmt;
  }

  StmtPtr ParseFilterBlock(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kFilterBlock, line);
    stmt->value = ParseFilters(ParseFilter(BlockText(line)));
    ParseCaptured("endfilter", stmt.get());
    return stmt;
  }

  static ExprPtr BlockText(int line) {
    ExprPtr text = NewExpr(ExprKind::kName, line);
    text->name = kBlockText;
    return text;
  }

  void ParseCaptured(std::string_view end, Stmt* stmt) {
    const int soft = std::exchange(soft_, 0);
    stmt->body = ParseWholeBody(end);
    soft_ = soft;
  }

  bool ParseSignature(MacroCode* macro) {
    if (!ExpectOperator("(")) return false;
    while (!failed() && !IsOperator(")")) {
      if (!macro->parameters.empty() && !ExpectOperator(",")) return false;
      const std::string parameter = ParseNewName();
      if (failed()) return false;
      for (const std::string& other : macro->parameters) {
        if (other == parameter) Fail("a macro has two parameters of one name");
      }
      if (SkipOperator("=")) {
        macro->defaults.push_back(ParseExpression());
      } else if (!macro->defaults.empty()) {
        Fail("a parameter without a default follows one with a default");
      }
      macro->parameters.push_back(parameter);
    }
    return ExpectOperator(")");
  }

  // A body with a scope of its own, where a loop around it cannot be left.
  Body ParseOwnBody(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const int soft = std::exchange(soft_, 0);
    Body body = ParseWholeBody(end);
    loops_ = loops;
    soft_ = soft;
    return body;
  }

  void ParseMacroBody(std::string_view end, int line, MacroCode* macro) {
    const std::set<std::string> outside = std::exchange(special_names_, {});
    macro->body = ParseOwnBody(end);
    const auto uses = [&](const char* name) {
      const auto& own = macro->parameters;
      return special_names_.contains(name) && std::find(own.begin(), own.end(), name) == own.end();
    };
    macro->uses_caller = uses("caller");
    for (const char* name : {"varargs", "kwargs"}) {
      if (!uses(name)) continue;
      FailAt(line, fmt::format("Headway does not have '{}' in macros", name),
             StatusCode::kUnsupported);
    }
    special_names_.insert(outside.begin(), outside.end());
  }

  StmtPtr ParseMacro(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<MacroCode>();
    stmt->macro->name = ParseNewName();
    if (!ParseSignature(stmt->macro.get())) return nullptr;
    ParseMacroBody("endmacro", line, stmt->macro.get());
    return stmt;
  }

  StmtPtr ParseCallBlock(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroCode>();
    if (IsOperator("(") && !ParseSignature(stmt->macro.get())) return nullptr;
    stmt->value = ParseExpression();
    if (failed()) return nullptr;
    if (stmt->value->kind != ExprKind::kCall) return FailAt(line, "expected call");
    ParseMacroBody("endcall", line, stmt->macro.get());
    return stmt;
  }

  // Transformers marks what the model wrote with {% generation %}; the text is the same.
  StmtPtr ParseGeneration(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kGeneration, line);
    stmt->body = ParseOwnBody("endgeneration");
    return stmt;
  }

  StmtPtr ParseLoopControl(const Token& token) {
    if (loops_ == 0) return FailAt(token.line, fmt::format("'{}' outside a loop", token.text));
    return NewStmt(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, token.line);
  }

  int depth_ = 0;  // of statements
  int loops_ = 0;  // around the current statement, within its macro
};

}  // namespace

Result<std::unique_ptr<Template>> ParseTemplate(std::string_view source, const std::string& name) {
  Result<std::vector<Token>> tokens = Tokenize(source, name);
  if (!tokens.ok()) return tokens.status();
  Parser parser(*tokens, name);
  auto parsed = std::make_unique<Template>();
  parsed->name = name;
  parsed->body = parser.ParseTemplateBody();
  const Status status = parser.Finished();
  if (!status.ok()) return status;
  return parsed;
}

}  // namespace headway::jinja
