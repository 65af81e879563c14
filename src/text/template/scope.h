// The names of one scope at work: the template, an iteration of a loop, a macro's call, or a block
// whose output is caught. `if` is no scope.
#ifndef HEADWAY_TEXT_TEMPLATE_SCOPE_H_
#define HEADWAY_TEXT_TEMPLATE_SCOPE_H_

#include <memory>
#include <string_view>

#include "text/template/value.h"

namespace headway::jinja {

// Assignments stay in the scope that they stand in; reading goes outwards.
class Scope : public Object {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  void Clear() override {
    names_ = Dict();
    outer_.reset();
  }

  void Set(std::string_view name, Value value) { names_.SetText(name, std::move(value)); }
  // Null when neither this scope nor one around it has the name.
  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
      if (const Value* value = scope->names_.FindText(name)) return value;
    }
    return nullptr;
  }

 private:
  Dict names_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_SCOPE_H_
