#include "text/template/call.h"

#include <algorithm>

namespace headway::jinja {
namespace {

// The position of the parameter, counted from 0; that of none when there is none of that name.
size_t ParameterOf(const NamedFunction& function, std::string_view name) {
  const auto& parameters = function.parameters;
  const auto found = std::ranges::find_if(parameters, [&](std::string_view parameter) {
    return parameter == name || (parameter.starts_with('!') && parameter.substr(1) == name);
  });
  return static_cast<size_t>(found - parameters.begin());
}

}  // namespace

bool Bind(Runtime& rt, const NamedFunction& function, Arguments* bound) {
  const auto& parameters = function.parameters;
  if (parameters[0] == "*") return true;
  const auto put = [&](size_t i, const Value& value) {
    if (parameters[i].starts_with('!')) {
      rt.Refuse("Headway does not have the argument '{}' of {}()", parameters[i].substr(1),
                function.name);
    }
    bound->values_[i] = value;
  };
  const Args& args = bound->all();
  const size_t count = ParameterOf(function, "");
  const size_t given = args.positional.size();
  if (given > count) {
    return rt.Fail("{}() takes at most {} arguments ({} given)", function.name, count, given);
  }
  for (size_t i = 0; i < given; ++i) put(i, args.positional[i]);
  for (const auto& [name, value] : args.named) {
    const size_t i = ParameterOf(function, name);
    if (i >= count || bound->has(i)) {
      return rt.Fail("{}() got an unexpected argument '{}'", function.name, name);
    }
    put(i, value);
  }
  for (size_t i = 0; i < function.required; ++i) {
    if (bound->has(i)) continue;
    rt.Fail("{}() is missing its argument '{}'", function.name, parameters[i]);
  }
  return !rt.failed();
}

Value CallNamed(Runtime& rt, const NamedFunction& function, const Value& self, const Args& args) {
  if (function.function == nullptr) {
    return rt.Refuse("Headway does not have the function '{}'", function.name);
  }
  Arguments bound(args);
  return Bind(rt, function, &bound) ? function.function(rt, self, bound) : Value();
}

const NamedFunction* FindNamed(std::span<const NamedFunction> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &NamedFunction::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace headway::jinja
