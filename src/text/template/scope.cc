#include "text/template/scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "text/template/error.h"

namespace headway::jinja {
namespace {

// A function under construction: the template or a macro. Slots are handed out by scope level and
// name, so that scopes side by side share them.
struct FunctionScope {
  int depth = 0;  // of functions around it
  int slots = 0;
  std::map<std::tuple<int, int, std::string>, int> by_name;  // (level, variant, name)

  int Slot(int level, int variant, const std::string& name) {
    const auto [it, added] = by_name.try_emplace({level, variant, name}, slots);
    if (added) ++slots;
    return it->second;
  }
};

// A variable as the resolver sees it.
struct Variable {
  int function_depth = 0;
  int slot = -1;

  auto operator<=>(const Variable&) const = default;
};

// How a variable gets its first value. A parameter has it when the scope is entered.
struct Load {
  enum class Kind : uint8_t { kParameter, kResolve, kAlias, kMissing };
  Kind kind = Kind::kMissing;
  std::string name = {};
  Variable from = {};
};

// The names of one scope. Copies stand for the branches of an `if`, which are no scopes.
class Symbols {
 public:
  Symbols(const Symbols* parent, FunctionScope* function, int variant)
      : parent_(parent),
        function_(function),
        level_(parent == nullptr ? 0 : parent->level_ + 1),
        variant_(variant) {}

  std::optional<Variable> Find(const std::string& name) const {
    for (const Symbols* symbols = this; symbols != nullptr; symbols = symbols->parent_) {
      const auto it = symbols->refs_.find(name);
      if (it != symbols->refs_.end()) return it->second;
    }
    return std::nullopt;
  }

  void LoadName(const std::string& name) {
    if (!Find(name).has_value()) Define(name, {.kind = Load::Kind::kResolve, .name = name});
  }

  void StoreName(const std::string& name) {
    stores_.insert(name);
    if (refs_.contains(name)) return;
    if (const std::optional<Variable> outer = FindOutside(name)) {
      Define(name, {.kind = Load::Kind::kAlias, .from = *outer});
    } else {
      Define(name, {.kind = Load::Kind::kMissing});
    }
  }

  Variable DeclareParameter(const std::string& name) {
    stores_.insert(name);
    return Define(name, {.kind = Load::Kind::kParameter});
  }

  // Joins the branches of an `if`: a name that only some of them store has, in the others, the
  // value it has outside.
  void Merge(const std::vector<Symbols>& branches) {
    std::set<std::string> stores;
    for (const Symbols& branch : branches)
      stores.insert(branch.stores_.begin(), branch.stores_.end());
    for (const std::string& name : stores_) stores.erase(name);
    for (const Symbols& branch : branches) {
      for (const auto& [name, variable] : branch.refs_) refs_[name] = variable;
      for (const auto& [variable, load] : branch.loads_) loads_[variable] = load;
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : stores) {
      const std::optional<Variable> variable = Find(name);
      if (!variable.has_value()) continue;
      if (const std::optional<Variable> outer = FindOutside(name)) {
        loads_[*variable] = {.kind = Load::Kind::kAlias, .from = *outer};
      } else {
        loads_[*variable] = {.kind = Load::Kind::kResolve, .name = name};
      }
    }
  }

  size_t size() const { return refs_.size() + loads_.size() + stores_.size(); }
  FunctionScope* function() const { return function_; }

  ScopeEntry Entry() const {
    ScopeEntry entry;
    for (const auto& [variable, load] : loads_) {
      ScopeEntry::Load result{.slot = variable.slot, .name = load.name};
      switch (load.kind) {
        case Load::Kind::kParameter:
          continue;
        case Load::Kind::kResolve:
          result.action = ScopeEntry::Action::kResolve;
          break;
        case Load::Kind::kAlias:
          result.action = ScopeEntry::Action::kAlias;
          result.from = Ref(load.from);
          break;
        case Load::Kind::kMissing:
          result.action = ScopeEntry::Action::kMissing;
          break;
      }
      entry.loads.push_back(std::move(result));
    }
    return entry;
  }

  VariableRef Ref(const Variable& variable) const {
    return {.hops = function_->depth - variable.function_depth, .slot = variable.slot};
  }

 private:
  std::optional<Variable> FindOutside(const std::string& name) const {
    return parent_ == nullptr ? std::nullopt : parent_->Find(name);
  }

  Variable Define(const std::string& name, Load load) {
    const Variable variable{.function_depth = function_->depth,
                            .slot = function_->Slot(level_, variant_, name)};
    refs_[name] = variable;
    loads_[variable] = std::move(load);
    return variable;
  }

  const Symbols* parent_;
  FunctionScope* function_;
  int level_;
  int variant_;  // tells scopes of one level apart whose variables live at the same time
  std::map<std::string, Variable> refs_;
  std::map<Variable, Load> loads_;
  std::set<std::string> stores_;
};

template <typename Visit>
void ForEachChild(const Expr& expr, const Visit& visit) {
  for (const ExprPtr& operand : expr.operands) {
    if (operand != nullptr) visit(*operand);
  }
  if (expr.call == nullptr) return;
  for (const ExprPtr& argument : expr.call->positional) visit(*argument);
  for (const auto& named : expr.call->named) visit(*named.second);
  if (expr.call->star != nullptr) visit(*expr.call->star);
  if (expr.call->double_star != nullptr) visit(*expr.call->double_star);
}

// Which of some names a body reads without storing them first, in the order of the text; unlike
// scopes it looks into everything.
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string_view> names) : names_(std::move(names)) {}

  void Read(const Expr& expr) {
    if (expr.kind == ExprKind::kName) {
      if (names_.contains(expr.name)) found_.insert(expr.name);
      return;
    }
    ForEachChild(expr, [&](const Expr& child) { Read(child); });
  }

  void Read(const Body& body) {
    for (const StmtPtr& stmt : body) Read(*stmt);
  }

  bool Found(std::string_view name) const { return found_.contains(name); }

 private:
  void Read(const ExprPtr& expr) {
    if (expr != nullptr) Read(*expr);
  }

  void Store(const Expr& target) {
    if (target.kind == ExprKind::kName) names_.erase(target.name);
    for (const ExprPtr& item : target.operands) Store(*item);
  }

  void Read(const Stmt& stmt) {
    // A call block's call stands before its parameters and body.
    if (stmt.kind == StmtKind::kCallBlock) Read(stmt.value);
    if (stmt.kind == StmtKind::kIf) Read(stmt.test);
    for (const ExprPtr& target : stmt.targets) Store(*target);
    for (const ExprPtr& expr : stmt.expressions) Read(expr);
    if (stmt.kind != StmtKind::kCallBlock && stmt.kind != StmtKind::kFilterBlock) Read(stmt.value);
    if (stmt.macro != nullptr) {
      for (const ExprPtr& parameter : stmt.macro->parameters) Store(*parameter);
      for (const ExprPtr& fallback : stmt.macro->defaults) Read(fallback);
      Read(stmt.macro->body);
    }
    Read(stmt.body);
    if (stmt.kind == StmtKind::kFilterBlock) Read(stmt.value);
    Read(stmt.elifs);
    Read(stmt.else_body);
    if (stmt.kind == StmtKind::kFor) Read(stmt.test);
  }

  std::set<std::string_view> names_;
  std::set<std::string, std::less<>> found_;
};

// True when a target named `loop` stands anywhere below.
bool StoresLoop(const Expr& target) {
  if (target.kind == ExprKind::kName) return target.name == "loop";
  return std::any_of(target.operands.begin(), target.operands.end(),
                     [](const ExprPtr& item) { return StoresLoop(*item); });
}

bool StoresLoop(const Stmt& stmt) {
  const auto in_body = [](const Body& body) {
    return std::any_of(body.begin(), body.end(),
                       [](const StmtPtr& inner) { return StoresLoop(*inner); });
  };
  if (stmt.kind != StmtKind::kWith) {  // whose targets are parameters
    for (const ExprPtr& target : stmt.targets) {
      if (StoresLoop(*target)) return true;
    }
  }
  return in_body(stmt.body) || in_body(stmt.elifs) || in_body(stmt.else_body) ||
         (stmt.macro != nullptr && in_body(stmt.macro->body));
}

ExprPtr CopyTarget(const Expr& target) {
  auto copy = std::make_unique<Expr>();
  copy->kind = target.kind;
  copy->line = target.line;
  copy->name = target.name;
  for (const ExprPtr& item : target.operands) copy->operands.push_back(CopyTarget(*item));
  return copy;
}

class Resolver {
 public:
  explicit Resolver(Template* parsed) : template_(parsed) {}

  Status Run() {
    FunctionScope function;
    Symbols symbols(nullptr, &function, 0);
    AnalyzeBody(template_->body, &symbols);
    template_->entry = symbols.Entry();
    ResolveBody(template_->body, symbols, false);
    template_->slots = function.slots;
    return status_;
  }

 private:
  void Fail(StatusCode code, int line, std::string_view message) {
    if (!status_.ok()) return;
    status_ = TemplateError(code, template_->name, line, message);
  }

  // --- which names a scope has ---

  void AnalyzeExpr(const Expr& expr, Symbols* symbols) {
    if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kNamespace) {
      symbols->LoadName(expr.name);
    }
    ForEachChild(expr, [&](const Expr& child) { AnalyzeExpr(child, symbols); });
  }

  void AnalyzeExpr(const ExprPtr& expr, Symbols* symbols) {
    if (expr != nullptr) AnalyzeExpr(*expr, symbols);
  }

  void AnalyzeTarget(const Expr& target, bool parameter, Symbols* symbols) {
    if (target.kind == ExprKind::kNamespace) symbols->LoadName(target.name);
    if (target.kind == ExprKind::kName && parameter) symbols->DeclareParameter(target.name);
    if (target.kind == ExprKind::kName && !parameter) symbols->StoreName(target.name);
    for (const ExprPtr& item : target.operands) AnalyzeTarget(*item, parameter, symbols);
  }

  void AnalyzeBody(const Body& body, Symbols* symbols) {
    for (const StmtPtr& stmt : body) {
      if (!status_.ok()) return;
      AnalyzeStmt(*stmt, symbols);
    }
  }

  // What a statement does to the scope that it stands in; its own scopes come later.
  void AnalyzeStmt(const Stmt& stmt, Symbols* symbols) {
    switch (stmt.kind) {
      case StmtKind::kOutput:
      case StmtKind::kWith:
        for (const ExprPtr& expr : stmt.expressions) AnalyzeExpr(expr, symbols);
        return;
      case StmtKind::kIf:
        AnalyzeIf(stmt, symbols);
        return;
      case StmtKind::kFor:
      case StmtKind::kCallBlock:
      case StmtKind::kFilterBlock:
        AnalyzeExpr(stmt.value, symbols);
        return;
      case StmtKind::kSet:
        AnalyzeExpr(stmt.value, symbols);
        AnalyzeTarget(*stmt.targets[0], false, symbols);
        return;
      case StmtKind::kSetBlock:
        AnalyzeTarget(*stmt.targets[0], false, symbols);
        return;
      case StmtKind::kMacro:
        symbols->StoreName(stmt.macro->name);
        return;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

  void AnalyzeIf(const Stmt& stmt, Symbols* symbols) {
    AnalyzeExpr(stmt.test, symbols);
    // Each branch copies the names so far; the sum bounds the time of a hostile template.
    constexpr size_t kMaxCopied = 2'000'000;
    copied_ += 3 * symbols->size();
    if (copied_ > kMaxCopied) {
      Fail(StatusCode::kInvalidArgument, stmt.line, "has too many conditions and names");
      return;
    }
    std::vector<Symbols> branches(3, *symbols);
    AnalyzeBody(stmt.body, &branches[0]);
    AnalyzeBody(stmt.elifs, &branches[1]);
    AnalyzeBody(stmt.else_body, &branches[2]);
    symbols->Merge(branches);
  }

  // --- resolving ---

  void ResolveName(Expr* expr, const Symbols& symbols) {
    const std::optional<Variable> variable = symbols.Find(expr->name);
    if (variable.has_value()) {
      expr->ref = symbols.Ref(*variable);
    } else {
      // jinja2's compiler does not look at the arguments of a filter of a set block either.
      Fail(StatusCode::kInvalidArgument, expr->line,
           fmt::format("'{}' cannot be used here", expr->name));
    }
  }

  void ResolveFunction(Expr* expr, bool soft) {
    const bool filter = expr->kind == ExprKind::kFilter;
    const NamedFunction* found = filter ? FindFilter(expr->name) : FindTest(expr->name);
    if (found != nullptr) expr->function = found->function;
    if (expr->function != nullptr || soft) return;
    Fail(StatusCode::kUnsupported, expr->line,
         fmt::format("unknown {} '{}'", filter ? "filter" : "test", expr->name));
  }

  // `soft`: within a condition, where an unknown filter is no error until it runs.
  void ResolveExpr(Expr* expr, const Symbols& symbols, bool soft) {
    if (expr == nullptr || !status_.ok()) return;
    if (expr->kind == ExprKind::kName || expr->kind == ExprKind::kNamespace) {
      ResolveName(expr, symbols);
    }
    if (expr->kind == ExprKind::kFilter || expr->kind == ExprKind::kTest) {
      ResolveFunction(expr, soft);
    }
    const bool child_soft = soft || expr->kind == ExprKind::kIf;
    for (const ExprPtr& operand : expr->operands) ResolveExpr(operand.get(), symbols, child_soft);
    if (expr->call == nullptr) return;
    for (const ExprPtr& item : expr->call->positional) ResolveExpr(item.get(), symbols, soft);
    for (const auto& named : expr->call->named) ResolveExpr(named.second.get(), symbols, soft);
    ResolveExpr(expr->call->star.get(), symbols, soft);
    ResolveExpr(expr->call->double_star.get(), symbols, soft);
  }

  void ResolveBody(const Body& body, const Symbols& symbols, bool soft) {
    for (const StmtPtr& stmt : body) {
      if (!status_.ok()) return;
      ResolveStmt(stmt.get(), symbols, soft);
    }
  }

  void ResolveStmt(Stmt* stmt, const Symbols& symbols, bool soft) {
    switch (stmt->kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& expr : stmt->expressions) ResolveExpr(expr.get(), symbols, soft);
        return;
      case StmtKind::kIf:
        ResolveExpr(stmt->test.get(), symbols, true);
        ResolveBody(stmt->body, symbols, true);
        ResolveBody(stmt->elifs, symbols, true);
        ResolveBody(stmt->else_body, symbols, true);
        return;
      case StmtKind::kFor:
        ResolveFor(stmt, symbols, soft);
        return;
      case StmtKind::kSet:
        ResolveExpr(stmt->value.get(), symbols, soft);
        ResolveExpr(stmt->targets[0].get(), symbols, soft);
        return;
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock:
        ResolveCapture(stmt, symbols, soft);
        return;
      case StmtKind::kMacro:
        stmt->ref = symbols.Ref(symbols.Find(stmt->macro->name).value_or(Variable()));
        ResolveMacro(stmt->macro.get(), symbols);
        return;
      case StmtKind::kCallBlock:
        ResolveMacro(stmt->macro.get(), symbols);
        ResolveExpr(stmt->value.get(), symbols, soft);
        return;
      case StmtKind::kWith:
        ResolveWith(stmt, symbols, soft);
        return;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

  void ResolveFor(Stmt* stmt, const Symbols& symbols, bool soft) {
    Symbols loop(&symbols, symbols.function(), 0);
    UndeclaredNames undeclared({"loop"});
    undeclared.Read(stmt->body);
    if (undeclared.Found("loop")) stmt->loop_slot = loop.DeclareParameter("loop").slot;
    AnalyzeTarget(*stmt->targets[0], true, &loop);
    AnalyzeBody(stmt->body, &loop);
    if (StoresLoop(*stmt)) {
      Fail(StatusCode::kInvalidArgument, stmt->line, "cannot assign to 'loop' within a loop");
      return;
    }
    if (stmt->test != nullptr) {
      // The test runs ahead of the body, so its variables are others.
      Symbols test(&symbols, symbols.function(), ++variants_);
      stmt->test_targets.push_back(CopyTarget(*stmt->targets[0]));
      AnalyzeTarget(*stmt->test_targets[0], true, &test);
      AnalyzeExpr(stmt->test, &test);
      stmt->test_entry = test.Entry();
      ResolveExpr(stmt->test_targets[0].get(), test, false);
      ResolveExpr(stmt->test.get(), test, false);
    }
    stmt->entry = loop.Entry();
    ResolveExpr(stmt->targets[0].get(), loop, false);
    ResolveExpr(stmt->value.get(), symbols, soft);
    ResolveBody(stmt->body, loop, false);
    Symbols otherwise(&symbols, symbols.function(), 0);
    AnalyzeBody(stmt->else_body, &otherwise);
    stmt->else_entry = otherwise.Entry();
    ResolveBody(stmt->else_body, otherwise, false);
  }

  // Set and filter blocks: a scope whose output is caught.
  void ResolveCapture(Stmt* stmt, const Symbols& symbols, bool soft) {
    Symbols inner(&symbols, symbols.function(), 0);
    if (stmt->kind == StmtKind::kFilterBlock) {
      AnalyzeBody(stmt->body, &inner);
      AnalyzeExpr(stmt->value, &inner);
    } else {
      AnalyzeBody(stmt->body, &inner);
      ResolveExpr(stmt->targets[0].get(), symbols, soft);
    }
    stmt->entry = inner.Entry();
    ResolveBody(stmt->body, inner, false);
    ResolveExpr(stmt->value.get(), inner, false);
  }

  void ResolveWith(Stmt* stmt, const Symbols& symbols, bool soft) {
    Symbols inner(&symbols, symbols.function(), 0);
    for (const ExprPtr& target : stmt->targets) AnalyzeTarget(*target, true, &inner);
    AnalyzeBody(stmt->body, &inner);
    stmt->entry = inner.Entry();
    for (const ExprPtr& target : stmt->targets) ResolveExpr(target.get(), inner, false);
    for (const ExprPtr& value : stmt->expressions) ResolveExpr(value.get(), symbols, soft);
    ResolveBody(stmt->body, inner, false);
  }

  void ResolveMacro(MacroCode* macro, const Symbols& symbols) {
    FunctionScope function;
    function.depth = symbols.function()->depth + 1;
    Symbols inner(&symbols, &function, 0);
    const auto analyze = [&] {
      for (const ExprPtr& parameter : macro->parameters) {
        inner.DeclareParameter(parameter->name);
      }
      for (const ExprPtr& fallback : macro->defaults) AnalyzeExpr(fallback, &inner);
      AnalyzeBody(macro->body, &inner);
    };
    analyze();
    const auto is_parameter = [&](std::string_view name) {
      return std::any_of(macro->parameters.begin(), macro->parameters.end(),
                         [&](const ExprPtr& parameter) { return parameter->name == name; });
    };
    UndeclaredNames undeclared({"caller", "kwargs", "varargs"});
    undeclared.Read(macro->body);
    const auto special = [&](const char* name) {
      const bool used = undeclared.Found(name) && !is_parameter(name);
      return used ? inner.DeclareParameter(name).slot : -1;
    };
    macro->caller_slot = special("caller");
    macro->kwargs_slot = special("kwargs");
    macro->varargs_slot = special("varargs");
    if (undeclared.Found("caller") && is_parameter("caller") && !CallerHasDefault(*macro)) {
      Fail(StatusCode::kInvalidArgument, macro->parameters[0]->line,
           "the parameter 'caller' needs a default");
    }
    analyze();
    macro->entry = inner.Entry();
    for (const ExprPtr& parameter : macro->parameters) ResolveExpr(parameter.get(), inner, false);
    for (const ExprPtr& fallback : macro->defaults) ResolveExpr(fallback.get(), inner, false);
    ResolveBody(macro->body, inner, false);
    macro->slots = function.slots;
  }

  static bool CallerHasDefault(const MacroCode& macro) {
    const size_t without = macro.parameters.size() - macro.defaults.size();
    for (size_t i = 0; i < without; ++i) {
      if (macro.parameters[i]->name == "caller") return false;
    }
    return true;
  }

  Template* const template_;
  int variants_ = 0;
  size_t copied_ = 0;
  Status status_;
};

}  // namespace

Status ResolveNames(Template* parsed) { return Resolver(parsed).Run(); }

}  // namespace headway::jinja
