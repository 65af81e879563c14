#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
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
    FailUnknown();
    return body;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // Statements up to a tag with one of the names, whose name is then the current token; without
  // names up to the end.
  Body ParseBody(Names ends) {
    Body body;
    const auto write = [&](ExprPtr expr) {
      if (expr == nullptr) return;
      if (body.empty() || body.back()->kind != StmtKind::kOutput) {
        body.push_back(std::make_unique<Stmt>(StmtKind::kOutput, expr->line));
      }
      body.back()->expressions.push_back(std::move(expr));
    };
    const Nesting nesting(this);
    while (!failed() && Current().kind != TokenKind::kEnd) {
      const Token& token = Advance();
      if (token.kind == TokenKind::kData) {
        write(Constant(token.line, Value::Constant(token.text)));
      } else if (token.kind == TokenKind::kVariableBegin) {
        write(ParseTuple());
        Expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        if (AtAny(ends)) break;
        if (StmtPtr stmt = ParseStatement()) body.push_back(std::move(stmt));
        Expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (!failed() && ends.size() > 0 && !AtAny(ends)) {
      Fail(fmt::format("unexpected end of template, looking for '{}'", *ends.begin()));
    }
    return body;
  }

  bool AtAny(Names names) const {
    return std::ranges::any_of(names, [&](std::string_view name) { return IsName(name); });
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

  StmtPtr ParseFor(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kFor, line);
    stmt->target = ParseTarget();
    if (!SkipName("in")) return Fail("expected 'in'");
    if (stmt->target->name == "loop" || stmt->target->kind == ExprKind::kNamespace) {
      return Fail("a loop cannot assign to this");
    }
    stmt->value = ParseTuple(Conditions::kNo);
    if (SkipName("if")) stmt->test = ParseExpression();
    if (IsName("recursive")) return Refuse("recursive loops");
    const int conditions = std::exchange(conditions_, 0);
    ++loops_;
    stmt->body = ParseTagBody({"endfor", "else"});
    --loops_;
    if (failed()) return nullptr;
    if (Advance().text == "else") stmt->else_body = ParseWholeBody("endfor");
    conditions_ = conditions;
    return stmt;
  }

  StmtPtr ParseIf(int line) {
    StmtPtr first = std::make_unique<Stmt>(StmtKind::kIf, line);
    Stmt* stmt = first.get();
    ++conditions_;
    while (!failed()) {
      stmt->test = ParseTuple(Conditions::kNo);
      stmt->body = ParseTagBody({"elif", "else", "endif"});
      if (failed()) break;
      const Token& token = Advance();
      if (token.text == "elif") {
        first->elifs.push_back(std::make_unique<Stmt>(StmtKind::kIf, token.line));
        stmt = first->elifs.back().get();
        continue;
      }
      if (token.text == "else") first->else_body = ParseWholeBody("endif");
      break;
    }
    --conditions_;
    return first;
  }

  StmtPtr ParseSet(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kSet, line);
    stmt->target = ParseTarget();
    if (failed()) return nullptr;
    if (stmt->target->name == "loop" && loops_ > 0) {
      return Fail("cannot assign to 'loop' within a loop");
    }
    if (SkipOperator("=")) {
      stmt->value = ParseTuple();
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->value = ParseFilters(BlockText(line));
    stmt->body = ParseFrame("endset", loops_);
    return stmt;
  }

  StmtPtr ParseFilterBlock(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kFilterBlock, line);
    stmt->value = ParseFilters(ParseFilter(BlockText(line)));
    stmt->body = ParseFrame("endfilter", loops_);
    return stmt;
  }

  static ExprPtr BlockText(int line) {
    ExprPtr text = std::make_unique<Expr>(ExprKind::kName, line);
    text->name = kBlockText;
    return text;
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

  // A body that conditions around it do not make conditional, with the number of loops around it
  // that it can leave.
  Body ParseFrame(std::string_view end, int loops) {
    const int outer_conditions = std::exchange(conditions_, 0);
    const int outer_loops = std::exchange(loops_, loops);
    Body body = ParseWholeBody(end);
    conditions_ = outer_conditions;
    loops_ = outer_loops;
    return body;
  }

  void ParseMacroBody(std::string_view end, MacroCode* macro) {
    MacroCode* outer = std::exchange(macro_, macro);
    macro->body = ParseFrame(end, 0);
    macro_ = outer;
    if (outer != nullptr && macro->uses_caller) outer->uses_caller = true;
  }

  StmtPtr ParseMacro(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<MacroCode>();
    stmt->macro->name = ParseNewName();
    if (!ParseSignature(stmt->macro.get())) return nullptr;
    ParseMacroBody("endmacro", stmt->macro.get());
    return stmt;
  }

  StmtPtr ParseCallBlock(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kCallBlock, line);
    stmt->macro = std::make_unique<MacroCode>();
    if (IsOperator("(") && !ParseSignature(stmt->macro.get())) return nullptr;
    stmt->value = ParseExpression();
    if (failed()) return nullptr;
    if (stmt->value->kind != ExprKind::kCall) return FailAt(line, "expected call");
    ParseMacroBody("endcall", stmt->macro.get());
    return stmt;
  }

  // Transformers marks what the model wrote with {% generation %}; the text is the same.
  StmtPtr ParseGeneration(int line) {
    StmtPtr stmt = std::make_unique<Stmt>(StmtKind::kGeneration, line);
    stmt->body = ParseFrame("endgeneration", 0);
    return stmt;
  }

  StmtPtr ParseLoopControl(const Token& token) {
    if (loops_ == 0) return FailAt(token.line, fmt::format("'{}' outside a loop", token.text));
    return std::make_unique<Stmt>(token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue,
                                  token.line);
  }

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
