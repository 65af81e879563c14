#include "text/template/globals.h"

#include <fmt/format.h>

#include <ctime>
#include <string>

#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

Value RangeGlobal(Runtime& rt, const Value& self, const Args& args) {
  (void)self;
  const Bound bound(rt, args, "range", {"/start", "/stop", "/step"}, 1);
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  if (!bound.ok()) return {};
  if (bound.has(1)) {
    if (!AsIndex(rt, bound[0], &start) || !AsIndex(rt, bound[1], &stop)) return {};
    if (bound.has(2) && !AsIndex(rt, bound[2], &step)) return {};
  } else if (!AsIndex(rt, bound[0], &stop)) {
    return {};
  }
  if (step == 0) return rt.Fail("range() needs a step that is not zero");
  auto range = std::make_shared<Range>(start, stop, step);
  if (range->length() > kMaxRange) {
    return rt.Fail(fmt::format("range() of more than {} elements", kMaxRange));
  }
  return Value::Of(std::move(range));
}

// The items of dict(mapping or pairs, **named), in order.
std::shared_ptr<Dict> MakeDict(Runtime& rt, const Args& args, std::string_view function) {
  auto dict = std::make_shared<Dict>();
  if (args.positional.size() > 1) {
    rt.Fail(fmt::format("{}() takes one mapping at most", function));
    return dict;
  }
  if (!args.positional.empty() && args.positional[0].dict()) {
    for (const auto& [key, value] : args.positional[0].entries().entries()) {
      dict->Set(rt, key, value);
    }
  } else if (!args.positional.empty() && args.positional[0].undefined()) {
    rt.FailUndefined(args.positional[0]);
  } else if (!args.positional.empty()) {
    for (const Value& pair : Drain(rt, args.positional[0])) {
      const std::vector<Value> parts = Drain(rt, pair);
      if (rt.failed()) return dict;
      if (parts.size() != 2) {
        rt.Fail(fmt::format("{}() needs pairs of a key and a value", function));
        return dict;
      }
      dict->Set(rt, parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : args.named) dict->SetText(name, value);
  return dict;
}

Value DictGlobal(Runtime& rt, const Value& self, const Args& args) {
  (void)self;
  return rt.MakeDict(MakeDict(rt, args, "dict"));
}

Value NamespaceGlobal(Runtime& rt, const Value& self, const Args& args) {
  (void)self;
  const std::shared_ptr<Dict> attributes = MakeDict(rt, args, "namespace");
  auto result = std::make_shared<Namespace>();
  for (const auto& [key, value] : attributes->entries()) result->Set(rt, key, value);
  return rt.Tracked(std::move(result));
}

Value RaiseGlobal(Runtime& rt, const Value& self, const Args& args) {
  (void)self;
  const Bound bound(rt, args, "raise_exception", {"message"}, 1);
  std::string message;
  if (bound.ok()) AppendStr(rt, bound[0], &message);
  return rt.Raise(std::move(message));
}

Value StrftimeGlobal(Runtime& rt, const Value& self, const Args& args) {
  (void)self;
  const Bound bound(rt, args, "strftime_now", {"format"}, 1);
  if (!bound.ok()) return {};
  constexpr size_t kMaxFormat = 1024;
  if (!bound[0].string() || bound[0].text().size() > kMaxFormat) {
    return rt.Fail("strftime_now() needs a format, of 1024 bytes at most");
  }
  // A character more tells an empty result from one that did not fit.
  const std::string format = bound[0].text() + "x";
  if (format.find('\0') != std::string::npos) return rt.Fail("a time format holds a zero byte");
  const auto now = static_cast<time_t>(rt.now_s());
  std::tm local = {};
  if (localtime_r(&now, &local) == nullptr) return rt.Fail("the time has no local date");
  // %c, the longest conversion, takes about 24 characters; widths like %1000d are refused by size.
  std::string text(kMaxFormat * 32, '\0');
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (size == 0) return rt.Fail("strftime_now() has a format whose result is too long");
  text.resize(size - 1);
  return rt.Str(std::move(text));
}

// Those without a function are refused by name when they are called.
constexpr NamedFunction kGlobals[] = {{"cycler", nullptr},
                                      {"dict", DictGlobal},
                                      {"joiner", nullptr},
                                      {"lipsum", nullptr},
                                      {"namespace", NamespaceGlobal},
                                      {"raise_exception", RaiseGlobal},
                                      {"range", RangeGlobal},
                                      {"strftime_now", StrftimeGlobal}};

}  // namespace

bool FindGlobal(std::string_view name, Value* value) {
  const NamedFunction* global = FindNamed(kGlobals, name);
  if (global == nullptr) return false;
  *value = Value::Of(std::make_shared<BoundFunction>(Value::None(), *global));
  return true;
}

}  // namespace headway::jinja
