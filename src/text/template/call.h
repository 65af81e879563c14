// Binding the arguments of a call to the parameters of a function that C++ implements, by Python's
// rules; and the tables of such functions.
#ifndef HEADWAY_TEXT_TEMPLATE_CALL_H_
#define HEADWAY_TEXT_TEMPLATE_CALL_H_

#include <array>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

#include "text/template/runtime.h"
#include "text/template/value.h"

namespace headway::jinja {

// `self` is what a filter or a test is applied to, or whose method this is.
using Function = Value (*)(Runtime& rt, const Value& self, const Args& args);

// One entry of a table of filters, tests or methods. A null function stands for one that Python or
// jinja2 has and Headway does not.
struct NamedFunction {
  std::string_view name;
  Function function;
};

// The entry of a table; null when there is none of that name.
const NamedFunction* FindNamed(std::span<const NamedFunction> table, std::string_view name);
// Null when there is none of that name.
const NamedFunction* FindFilter(std::string_view name);
const NamedFunction* FindTest(std::string_view name);
// A method of a built-in type; without a name when there is none.
NamedFunction FindMethod(const Value& self, std::string_view name);

// Arguments by parameter; missing where the caller gave none.
class Bound {
 public:
  static constexpr size_t kMaxParameters = 6;

  // `parameters` in order; those whose names begin with '/' cannot be named by the caller, and
  // those with '!' are what Python or jinja2 has and Headway does not. Fails when a required one
  // (the first `required`) has no value or an argument has no parameter.
  Bound(Runtime& rt, const Args& args, std::string_view function,
        std::initializer_list<std::string_view> parameters, size_t required);

  bool ok() const { return ok_; }
  const Value& operator[](size_t i) const { return values_[i]; }
  bool has(size_t i) const { return !values_[i].missing(); }
  // The argument, or a default.
  Value Or(size_t i, const Value& fallback) const { return has(i) ? values_[i] : fallback; }

 private:
  std::array<Value, kMaxParameters> values_;
  bool ok_ = false;
};

// A function with the value it belongs to: "abc".upper, loop.cycle, range.
class BoundFunction : public Object {
 public:
  BoundFunction(Value self, const NamedFunction& function)
      : self_(std::move(self)), function_(function) {
    depth = self_.depth() + 1;
  }
  const char* type_name() const override { return "builtin_function_or_method"; }
  void Repr(Runtime& rt, std::string* out) const override;
  bool callable() const override { return true; }
  Value Call(Runtime& rt, const Args& args) override;

 private:
  const Value self_;
  const NamedFunction function_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_CALL_H_
