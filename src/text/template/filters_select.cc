// Filters that return generators.
#include <fmt/format.h>

#include "text/template/filters.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

Value Generator(Runtime& rt, std::vector<Value> items) {
  return rt.Made(std::make_shared<Items>(ItemsKind::kGenerator, std::move(items)));
}

// Nothing for a value that is false, as jinja2 has it.
std::vector<Value> InputOf(Runtime& rt, const Value& self) {
  return Truthy(self) ? Drain(rt, self) : std::vector<Value>();
}

// The filter or test that positional[at] names; `rest` gets the arguments that follow it.
using FindFunction = const NamedFunction* (*)(std::string_view name);
const NamedFunction* NamedAt(Runtime& rt, const Args& args, size_t at, FindFunction find,
                             Args* rest) {
  const Value& name = args.positional[at];
  const NamedFunction* found = name.string() ? find(name.text()) : nullptr;
  if (found == nullptr) {
    std::string shown;
    AppendStr(rt, name, &shown);
    rt.Fail(StatusCode::kUnsupported,
            fmt::format("no {} named '{}'", find == FindTest ? "test" : "filter", shown));
    return nullptr;
  }
  rest->named = args.named;
  rest->positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(at) + 1,
                          args.positional.end());
  return found;
}

// map('filter', arguments ...), or map(attribute=, default=).
Value MapFilter(Runtime& rt, const Value& self, const Arguments& args) {
  std::vector<Value> items = InputOf(rt, self);
  if (!args.all().positional.empty()) {
    Args rest;
    const NamedFunction* filter = NamedAt(rt, args.all(), 0, FindFilter, &rest);
    for (size_t i = 0; i < items.size() && !rt.failed(); ++i) {
      items[i] = CallNamed(rt, *filter, items[i], rest);
    }
    return Generator(rt, std::move(items));
  }
  Value attribute = Value::Missing();
  Value fallback = Value::Missing();
  for (const auto& [name, value] : args.all().named) {
    if (name == "attribute") {
      attribute = value;
    } else if (name == "default") {
      fallback = value;
    } else {
      return rt.Fail(fmt::format("map() got an unexpected argument '{}'", name));
    }
  }
  if (attribute.missing()) return rt.Fail("map needs a filter, or 'attribute'");
  for (Value& item : items) item = AttributeAt(rt, item, attribute, fallback);
  return Generator(rt, std::move(items));
}

// select('test', arguments ...), and selectattr with the name of an attribute before that.
template <bool kKeep, bool kByAttribute>
Value SelectFilter(Runtime& rt, const Value& self, const Arguments& args) {
  const std::vector<Value>& given = args.all().positional;
  const size_t at = kByAttribute ? 1 : 0;
  if (given.size() < at) {
    return rt.Fail("selectattr and rejectattr need the name of an attribute");
  }
  Args rest;
  const NamedFunction* test = nullptr;
  if (given.size() > at) test = NamedAt(rt, args.all(), at, FindTest, &rest);
  std::vector<Value> kept;
  for (const Value& item : InputOf(rt, self)) {
    if (rt.failed()) return {};
    const Value subject = kByAttribute ? AttributeAt(rt, item, given[0]) : item;
    const Value verdict = test == nullptr ? subject : CallNamed(rt, *test, subject, rest);
    if (Truthy(verdict) == kKeep) kept.push_back(item);
  }
  return Generator(rt, std::move(kept));
}

Value UniqueFilter(Runtime& rt, const Value& self, const Arguments& args) {
  std::vector<Value> kept;
  Dict seen;
  for (const Value& item : Drain(rt, self)) {
    Value key = AttributeAt(rt, item, args[1]);
    if (!Truthy(args[0])) key = IgnoreCase(rt, key);
    const size_t before = seen.size();
    seen.Set(rt, key, Value::None());
    if (rt.failed()) return {};
    if (seen.size() > before) kept.push_back(item);
  }
  return Generator(rt, std::move(kept));
}

Value ItemsFilter(Runtime& rt, const Value& self, const Arguments& /*args*/) {
  if (self.undefined()) return Generator(rt, {});
  if (!self.dict()) return rt.Fail("can only get item pairs from a mapping");
  const Value pairs = MakeView(rt, self, ItemsKind::kPairs);
  return rt.failed() ? Value() : Generator(rt, pairs.As<Items>()->items());
}

constexpr NamedFunction kFilters[] = {
    {"items", ItemsFilter},
    {"map", MapFilter, 0, {"*"}},
    {"reject", SelectFilter<false, false>, 0, {"*"}},
    {"rejectattr", SelectFilter<false, true>, 0, {"*"}},
    {"select", SelectFilter<true, false>, 0, {"*"}},
    {"selectattr", SelectFilter<true, true>, 0, {"*"}},
    {"unique", UniqueFilter, 0, {"case_sensitive", "attribute"}},
};

}  // namespace

std::span<const NamedFunction> SelectFilters() { return kFilters; }

}  // namespace headway::jinja
