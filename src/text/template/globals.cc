// The functions that every template finds: range, dict, namespace, and Transformers'
// raise_exception and strftime_now.
#include <ctime>
#include <string>

#include "text/template/call.h"
#include "text/template/objects.h"

namespace headway::jinja {
namespace {

Value RangeGlobal(Runtime& rt, const Value& /*self*/, const Arguments& args) {
  const int64_t stop = AsInt(rt, args[args.has(1) ? 1 : 0]);
  const int64_t start = args.has(1) ? AsInt(rt, args[0]) : 0;
  const int64_t step = args.Int(rt, 2, 1);
  if (step == 0) return rt.Fail("range() needs a step that is not zero");
  std::vector<Value> items;
  // In 128 bits, where no sum of two int64 overflows.
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (items.size() == kMaxRange) return rt.Fail("range() of more than {} elements", kMaxRange);
    if (!rt.Charge(1)) return {};
    items.push_back(Value::Int(static_cast<int64_t>(i)));
  }
  return MakeItems(rt, ItemsKind::kRange, std::move(items));
}

// The items of dict(mapping, **named), in order.
std::shared_ptr<Dict> MakeDict(Runtime& rt, const Args& args) {
  auto dict = std::make_shared<Dict>();
  for (const Value& mapping : args.positional) {
    if (mapping.undefined()) rt.FailUndefined(mapping);
    if (!mapping.dict() || args.positional.size() > 1) {
      rt.Refuse("Headway makes dicts and namespaces of one dict and names");
    }
    if (rt.failed()) return dict;
    for (const auto& [key, value] : mapping.entries().entries()) dict->Set(rt, key, value);
  }
  for (const auto& [name, value] : args.named) dict->SetText(name, value);
  return dict;
}

Value DictGlobal(Runtime& rt, const Value& /*self*/, const Arguments& args) {
  return rt.MakeDict(MakeDict(rt, args.all()));
}

Value NamespaceGlobal(Runtime& rt, const Value& /*self*/, const Arguments& args) {
  auto result = std::make_shared<Namespace>();
  const auto attributes = MakeDict(rt, args.all());
  for (const auto& [key, value] : attributes->entries()) result->Set(rt, key, value);
  return rt.Tracked(std::move(result));
}

Value RaiseGlobal(Runtime& rt, const Value& /*self*/, const Arguments& args) {
  std::string message;
  AppendStr(rt, args[0], &message);
  return rt.Raise(std::move(message));
}

Value StrftimeGlobal(Runtime& rt, const Value& /*self*/, const Arguments& args) {
  constexpr size_t kMaxFormat = 1024;
  if (!args[0].string() || args[0].text().size() > kMaxFormat) {
    return rt.Fail("strftime_now() needs a format, of 1024 bytes at most");
  }
  // A character more tells an empty result from one that did not fit. A line end, since it
  // completes no conversion that the format may end with.
  const std::string format = args[0].text() + "\n";
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
constexpr NamedFunction kGlobals[] = {
    {"cycler", nullptr},
    {"dict", DictGlobal, 0, {"*"}},
    {"joiner", nullptr},
    {"lipsum", nullptr},
    {"namespace", NamespaceGlobal, 0, {"*"}},
    {"raise_exception", RaiseGlobal, 1, {"message"}},
    {"range", RangeGlobal, 1, {"start", "stop", "step"}},
    {"strftime_now", StrftimeGlobal, 1, {"format"}},
};

}  // namespace

Value FindGlobal(std::string_view name) {
  const NamedFunction* global = FindNamed(kGlobals, name);
  if (global == nullptr) return Value::Missing();
  return Value::Of(std::make_shared<BoundFunction>(Value::None(), *global));
}

}  // namespace headway::jinja
