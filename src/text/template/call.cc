#include "text/template/call.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace headway::jinja {

Bound::Bound(Runtime& rt, const Args& args, std::string_view function,
             std::initializer_list<std::string_view> parameters, size_t required) {
  HEADWAY_CHECK(parameters.size() <= kMaxParameters);
  for (Value& value : values_) value = Value::Missing();
  if (args.positional.size() > parameters.size()) {
    rt.Fail(fmt::format("{}() takes at most {} arguments ({} given)", function, parameters.size(),
                        args.positional.size()));
    return;
  }
  const auto has_parameter = [&](size_t i) {
    const std::string_view name = parameters.begin()[i];
    if (name.starts_with('!')) {
      rt.Fail(
          StatusCode::kUnsupported,
          fmt::format("Headway does not have the argument '{}' of {}()", name.substr(1), function));
    }
    return !rt.failed();
  };
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (!has_parameter(i)) return;
    values_[i] = args.positional[i];
  }
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < parameters.size() && parameters.begin()[i] != name &&
           parameters.begin()[i] != "!" + name) {
      ++i;
    }
    if (i < parameters.size() && !has_parameter(i)) return;
    if (i == parameters.size() || has(i)) {
      rt.Fail(fmt::format("{}() got an unexpected argument '{}'", function, name));
      return;
    }
    values_[i] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (has(i)) continue;
    rt.Fail(fmt::format("{}() is missing its argument '{}'", function, parameters.begin()[i]));
    return;
  }
  ok_ = !rt.failed();
}

const NamedFunction* FindNamed(std::span<const NamedFunction> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const NamedFunction& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

void BoundFunction::Repr(Runtime& rt, std::string* out) const {
  (void)rt;
  *out += fmt::format("<built-in method {}>", function_.name);
}

Value BoundFunction::Call(Runtime& rt, const Args& args) {
  if (function_.function == nullptr) {
    return rt.Fail(StatusCode::kUnsupported,
                   fmt::format("Headway does not have the function '{}'", function_.name));
  }
  return function_.function(rt, self_, args);
}

}  // namespace headway::jinja
