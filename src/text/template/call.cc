#include "text/template/call.h"

#include <fmt/format.h>

#include <algorithm>

namespace headway::jinja {
namespace {

// The position of the parameter, counted from 0; that of none when there is none of that name.
size_t ParameterOf(const NamedFunction& function, std::string_view name) {
  const auto& parameters = function.parameters;
  const auto found =
      std::find_if(parameters.begin(), parameters.end(), [&](std::string_view parameter) {
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
      rt.Fail(StatusCode::kUnsupported,
              fmt::format("Headway does not have the argument '{}' of {}()",
                          parameters[i].substr(1), function.name));
    }
    bound->values_[i] = value;
  };
  const Args& args = bound->all();
  const size_t count = ParameterOf(function, "");
  if (args.positional.size() > count) {
    rt.Fail(fmt::format("{}() takes at most {} arguments ({} given)", function.name, count,
                        args.positional.size()));
    return false;
  }
  for (size_t i = 0; i < args.positional.size(); ++i) put(i, args.positional[i]);
  for (const auto& [name, value] : args.named) {
    const size_t i = ParameterOf(function, name);
    if (i >= count || bound->has(i)) {
      rt.Fail(fmt::format("{}() got an unexpected argument '{}'", function.name, name));
      return false;
    }
    put(i, value);
  }
  for (size_t i = 0; i < function.required; ++i) {
    if (bound->has(i)) continue;
    rt.Fail(fmt::format("{}() is missing its argument '{}'", function.name, parameters[i]));
  }
  return !rt.failed();
}

Value CallNamed(Runtime& rt, const NamedFunction& function, const Value& self, const Args& args) {
  if (function.function == nullptr) {
    return rt.Fail(StatusCode::kUnsupported,
                   fmt::format("Headway does not have the function '{}'", function.name));
  }
  Arguments bound(args);
  return Bind(rt, function, &bound) ? function.function(rt, self, bound) : Value();
}

const NamedFunction* FindNamed(std::span<const NamedFunction> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const NamedFunction& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace headway::jinja
