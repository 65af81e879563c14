#include "text/template/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

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
        ExprPtr text = NewExpr(ExprKind::kText, token.line);
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
    if (tag == "with") return ParseWith(token.line);
    if (tag == "print") return ParsePrint(token.line);
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

  ExprPtr ParseTarget(bool namespaces, std::string_view end) {
    ExprPtr target = ParseTuple({.simple = true, .namespaces = namespaces, .end = end});
    if (failed()) return nullptr;
    if (!CanAssign(*target)) return FailAt(target->line, "cannot assign to this expression");
    return target;
  }

  // A name that is not a constant.
  ExprPtr ParseNameTarget() {
    const Token& token = Current();
    ExprPtr target = NewExpr(ExprKind::kName, token.line);
    target->name = ExpectName();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target->name == constant) return FailAt(token.line, "cannot assign to a constant");
    }
    return failed() ? nullptr : std::move(target);
  }

  StmtPtr ParseFor(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kFor, line);
    stmt->targets.push_back(ParseTarget(false, "in"));
    if (!SkipName("in")) return Fail("expected 'in'");
    stmt->value = ParseTuple({.with_if = false, .end = "recursive"});
    if (SkipName("if")) stmt->test = ParseExpression();
    if (SkipName("recursive")) {
      return FailAt(line, "Headway does not have recursive loops", StatusCode::kUnsupported);
    }
    ++loops_;
    stmt->body = ParseTagBody({"endfor", "else"});
    --loops_;
    if (failed()) return nullptr;
    if (Advance().text == "else") stmt->else_body = ParseWholeBody("endfor");
    return stmt;
  }

  StmtPtr ParseIf(int line) {
    StmtPtr first = NewStmt(StmtKind::kIf, line);
    Stmt* stmt = first.get();
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
    return first;
  }

  StmtPtr ParseSet(int line) {
    ExprPtr target = ParseTarget(true, "");
    StmtPtr stmt = NewStmt(StmtKind::kSet, line);
    stmt->targets.push_back(std::move(target));
    if (SkipOperator("=")) {
      stmt->value = ParseTuple({});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    if (!failed() && IsOperator("|")) stmt->value = ParseFilters(nullptr, false);
    stmt->body = ParseWholeBody("endset");
    return stmt;
  }

  bool ParseSignature(MacroCode* macro) {
    if (!ExpectOperator("(")) return false;
    while (!failed() && !IsOperator(")")) {
      if (!macro->parameters.empty() && !ExpectOperator(",")) return false;
      ExprPtr parameter = ParseNameTarget();
      if (failed()) return false;
      for (const ExprPtr& other : macro->parameters) {
        if (other->name == parameter->name) Fail("a macro has two parameters of one name");
      }
      if (SkipOperator("=")) {
        macro->defaults.push_back(ParseExpression());
      } else if (!macro->defaults.empty()) {
        Fail("a parameter without a default follows one with a default");
      }
      macro->explicit_caller = macro->explicit_caller || parameter->name == "caller";
      macro->parameters.push_back(std::move(parameter));
    }
    return ExpectOperator(")");
  }

  // The body of a macro, where a loop around the macro cannot be left.
  Body ParseMacroBody(std::string_view end) {
    const int loops = loops_;
    loops_ = 0;
    Body body = ParseWholeBody(end);
    loops_ = loops;
    return body;
  }

  StmtPtr ParseMacro(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<MacroCode>();
    ExprPtr name = ParseNameTarget();
    if (failed()) return nullptr;
    stmt->macro->name = name->name;
    if (!ParseSignature(stmt->macro.get())) return nullptr;
    stmt->macro->body = ParseMacroBody("endmacro");
    return stmt;
  }

  StmtPtr ParseCallBlock(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroCode>();
    if (IsOperator("(") && !ParseSignature(stmt->macro.get())) return nullptr;
    stmt->value = ParseExpression();
    if (failed()) return nullptr;
    if (stmt->value->kind != ExprKind::kCall) return FailAt(line, "expected call");
    for (const auto& named : stmt->value->call->named) {
      if (named.first == "caller") return FailAt(line, "a call block gives 'caller' itself");
    }
    stmt->macro->body = ParseMacroBody("endcall");
    return stmt;
  }

  // Transformers marks what the model wrote with {% generation %}; the text is the same.
  StmtPtr ParseGeneration(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroCode>();
    stmt->macro->body = ParseMacroBody("endgeneration");
    return stmt;
  }

  StmtPtr ParseFilterBlock(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kFilterBlock, line);
    stmt->value = ParseFilters(nullptr, true);
    stmt->body = ParseWholeBody("endfilter");
    return stmt;
  }

  StmtPtr ParseWith(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kWith, line);
    while (!failed() && Current().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty() && !ExpectOperator(",")) return nullptr;
      stmt->targets.push_back(ParseTarget(false, ""));
      if (!ExpectOperator("=")) return nullptr;
      stmt->expressions.push_back(ParseExpression());
    }
    stmt->body = ParseWholeBody("endwith");
    return stmt;
  }

  StmtPtr ParsePrint(int line) {
    StmtPtr stmt = NewStmt(StmtKind::kOutput, line);
    while (!failed() && Current().kind != TokenKind::kBlockEnd) {
      if (!stmt->expressions.empty() && !ExpectOperator(",")) return nullptr;
      stmt->expressions.push_back(ParseExpression());
    }
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
  if (!parser.status().ok()) return parser.status();
  return parsed;
}

}  // namespace headway::jinja
