// Functions that C++ implements, in tables by name, and the binding of the arguments of a call to
// their parameters.
#ifndef HEADWAY_TEXT_TEMPLATE_CALL_H_
#define HEADWAY_TEXT_TEMPLATE_CALL_H_

#include <array>
#include <span>
#include <string_view>

#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/template/value.h"

namespace headway::jinja {

inline constexpr size_t kMaxParameters = 4;

// The arguments of a call by parameter; missing where the caller gave none.
class Arguments {
 public:
  explicit Arguments(const Args& all) : all_(all) { values_.fill(Value::Missing()); }

  const Value& operator[](size_t i) const { return values_[i]; }
  bool has(size_t i) const { return !values_[i].missing(); }
  // True unless the argument is left out or none.
  bool given(size_t i) const { return has(i) && !values_[i].none(); }
  Value Or(size_t i, const Value& fallback) const { return has(i) ? values_[i] : fallback; }
  // Fails unless the argument is left out or an int.
  int64_t Int(Runtime& rt, size_t i, int64_t fallback) const {
    return has(i) ? AsInt(rt, values_[i]) : fallback;
  }
  // As the caller gave them.
  const Args& all() const { return all_; }

 private:
  friend bool Bind(Runtime& rt, const struct NamedFunction& function, Arguments* bound);

  const Args& all_;
  std::array<Value, kMaxParameters> values_;
};

// `self` is what a filter or a test is applied to, or whose method this is.
using Function = Value (*)(Runtime& rt, const Value& self, const Arguments& args);

// One entry of a table of filters, tests, methods or globals.
struct NamedFunction {
  std::string_view name;
  Function function = nullptr;  // null: Python or jinja2 has it and Headway does not
  size_t required = 0;          // of the parameters
  // A name that begins with '!' is one that Python or jinja2 has and Headway does not. "*" stands
  // alone: the function looks at all arguments itself.
  std::array<std::string_view, kMaxParameters> parameters = {};
};

// Filters that make text or read it.
std::span<const NamedFunction> TextFilters();

// The entry of a table; null when there is none of that name.
const NamedFunction* FindNamed(std::span<const NamedFunction> table, std::string_view name);
const NamedFunction* FindFilter(std::string_view name);
const NamedFunction* FindTest(std::string_view name);
// A method of a built-in type; without a name when there is none.
NamedFunction FindMethod(const Value& self, std::string_view name);

// A function that every template finds (range, raise_exception ...); missing when there is none.
Value FindGlobal(std::string_view name);

// Binds the arguments and calls; fails by the name of the function or of the argument that is not
// there.
Value CallNamed(Runtime& rt, const NamedFunction& function, const Value& self, const Args& args);

// A function with the value it belongs to: "abc".upper, range.
class BoundFunction : public Object {
 public:
  BoundFunction(Value self, const NamedFunction& function)
      : self_(std::move(self)), function_(function) {
    depth = self_.depth() + 1;
  }
  const char* type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value Call(Runtime& rt, const Args& args) override {
    return CallNamed(rt, function_, self_, args);
  }

 private:
  const Value self_;
  const NamedFunction function_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_CALL_H_
