// Attributes, items, slices, lengths and calls.
#include <algorithm>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/objects.h"

namespace headway::jinja {
namespace {

// Methods that change a list or a dict: the sandbox acts as if they were not there.
bool IsMutating(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.list()) return std::ranges::count(kList, name) > 0;
  return object.dict() && std::ranges::count(kDict, name) > 0;
}

// As messages name an object: "dict object", "None".
std::string Describe(const Value& value) {
  return value.none() ? "None" : TypeName(value) + " object";
}

Value NoAttribute(const Value& object, std::string_view name) {
  return Value::Undefined(fmt::format("'{}' has no attribute '{}'", Describe(object), name));
}

Value UnsafeAttribute(const Value& object, std::string_view name) {
  return Value::Undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, TypeName(object)));
}

// What Python's getattr finds; missing when it finds nothing.
Value FindAttribute(Runtime& rt, const Value& object, std::string_view name) {
  if (name.starts_with("__") || IsMutating(object, name)) return UnsafeAttribute(object, name);
  if (object.is(Kind::kObject)) {
    Value found = object.object()->GetAttr(rt, name);
    if (!found.missing()) return name.starts_with('_') ? UnsafeAttribute(object, name) : found;
  }
  const NamedFunction method = FindMethod(object, name);
  if (method.name.empty()) return Value::Missing();
  if (object.number() || object.As<Items>() != nullptr) {
    rt.Refuse("Headway does not have the attribute '{}' of '{}'", name, TypeName(object));
  }
  return Value::Of(std::make_shared<BoundFunction>(object, method));
}

// object[index] for what has a length; missing when the index is not in it.
Value FindIndex(Runtime& rt, const Value& object, int64_t index) {
  const int64_t length = Length(rt, object);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return Value::Missing();
  const auto at = static_cast<size_t>(index);
  if (object.sequence()) return object.items()[at];
  if (object.string()) {
    const std::string& text = object.text();
    const bool ascii = length == static_cast<int64_t>(text.size());
    const size_t offset = ascii ? at : CharOffset(text, index);
    return rt.Str(text.substr(offset, CharBytes(text, offset)), object.markup());
  }
  const auto* items = object.As<Items>();
  return items != nullptr && items->range() ? items->items()[at] : Value::Missing();
}

// A bound or step of a slice; `fallback` where it is left out.
int64_t SliceIndex(Runtime& rt, const Value& value, int64_t fallback) {
  if (value.integral()) return value.integer();
  if (!value.none() && !value.missing()) {
    rt.Fail("slice indices must be integers or none, not '{}'", TypeName(value));
  }
  return fallback;
}

// start, step and how many elements of `length`, as Python's slice.indices() cuts them.
struct Cut {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

Cut MakeCut(Runtime& rt, const SliceBounds& bounds, int64_t length) {
  const int64_t step = SliceIndex(rt, bounds.step, 1);
  if (step == 0) rt.Fail("slice step cannot be zero");
  const bool back = step < 0;
  // The places before the first and behind the last element that the slice can reach.
  const int64_t low = back ? -1 : 0;
  const int64_t high = back ? length - 1 : length;
  const auto place = [&](const Value& value, int64_t fallback) {
    const int64_t index = SliceIndex(rt, value, fallback);
    if (!value.integral()) return fallback;
    return index < 0 ? std::max(low, index + length) : std::min(high, index);
  };
  Cut cut{.step = std::clamp(step, -kMaxRange * kMaxRange, kMaxRange * kMaxRange)};
  cut.start = place(bounds.start, back ? high : low);
  const int64_t stop = place(bounds.stop, back ? low : high);
  const int64_t distance = back ? cut.start - stop : stop - cut.start;
  if (distance > 0 && !rt.failed()) cut.count = (distance - 1) / std::abs(cut.step) + 1;
  return cut;
}

// The characters of a text that a slice cuts.
Value SliceText(Runtime& rt, const Value& value, const Cut& cut) {
  const std::string_view text = value.text();
  std::string result;
  if (cut.step == 1) {
    if (!rt.Charge(text.size() / kCopyBytesPerStep)) return {};
    const std::string_view rest = text.substr(CharOffset(text, cut.start));
    result = rest.substr(0, CharOffset(rest, cut.count));
  } else {
    const std::vector<Value> characters = Drain(rt, value);
    for (int64_t i = 0; i < cut.count && !rt.failed(); ++i) {
      result += characters[static_cast<size_t>(cut.start + i * cut.step)].text();
    }
  }
  return rt.Str(std::move(result), value.markup());
}

}  // namespace

Value GetAttribute(Runtime& rt, const Value& object, std::string_view name) {
  if (rt.failed()) return {};
  if (object.undefined()) return rt.FailUndefined(object);
  Value found = FindAttribute(rt, object, name);
  if (!found.missing()) return found;
  const Value* entry = object.dict() ? object.entries().FindText(name) : nullptr;
  return entry != nullptr ? *entry : NoAttribute(object, name);
}

Value GetItem(Runtime& rt, const Value& object, const Value& key) {
  if (rt.failed()) return {};
  if (object.undefined()) return rt.FailUndefined(object);
  Value found = Value::Missing();
  if (object.dict()) {
    if (const Value* value = object.entries().Find(rt, key)) return *value;
  } else if (key.integral()) {
    found = FindIndex(rt, object, key.integer());
  }
  if (key.string()) found = FindAttribute(rt, object, key.text());
  if (!found.missing()) return found;
  if (key.string()) return NoAttribute(object, key.text());
  std::string shown;
  AppendRepr(rt, key, &shown);
  return Value::Undefined(fmt::format("{} has no element {}", Describe(object), shown));
}

Value GetSlice(Runtime& rt, const Value& object, const SliceBounds& bounds) {
  if (rt.failed()) return {};
  if (object.undefined()) return rt.FailUndefined(object);
  const auto* range = object.As<Items>();
  if (range != nullptr && range->range()) return rt.Refuse("Headway does not slice ranges");
  if (!object.string() && !object.sequence()) {
    return rt.Fail("'{}' object cannot be sliced", TypeName(object));
  }
  const Cut cut = MakeCut(rt, bounds, Length(rt, object));
  if (rt.failed()) return {};
  if (object.string()) return SliceText(rt, object, cut);
  if (!rt.Charge(static_cast<size_t>(cut.count))) return {};
  std::vector<Value> items;
  for (int64_t i = 0; i < cut.count; ++i) {
    items.push_back(object.items()[static_cast<size_t>(cut.start + i * cut.step)]);
  }
  return rt.MakeSequence(object.kind(), std::move(items));
}

bool Iterable(const Value& value) {
  return value.undefined() || value.string() || value.sequence() || value.dict() ||
         value.As<Items>() != nullptr;
}

int64_t Length(Runtime& rt, const Value& value) {
  if (value.undefined()) return 0;
  if (value.string()) {
    rt.Charge(value.text().size() / kCopyBytesPerStep);
    return CountChars(value.text());
  }
  if (value.sequence()) return static_cast<int64_t>(value.items().size());
  if (value.dict()) return static_cast<int64_t>(value.entries().size());
  const auto* items = value.As<Items>();
  if (items == nullptr || items->generator()) return -1;
  return static_cast<int64_t>(items->items().size());
}

std::vector<Value> Drain(Runtime& rt, const Value& value) {
  std::vector<Value> items;
  if (value.string()) {
    const std::string& text = value.text();
    for (size_t i = 0; i < text.size() && rt.Charge(1); i += CharBytes(text, i)) {
      items.push_back(rt.Str(text.substr(i, CharBytes(text, i))));
    }
  } else if (value.dict()) {
    for (const auto& entry : value.entries().entries()) items.push_back(entry.first);
  } else if (value.sequence()) {
    items = value.items();
  } else if (auto* source = value.As<Items>()) {
    items = source->Read();
  } else if (!value.undefined()) {
    rt.Fail("'{}' object is not iterable", TypeName(value));
  }
  if (!rt.Charge(items.size())) items.clear();
  return items;
}

int64_t AsInt(Runtime& rt, const Value& value) {
  if (value.integral()) return value.integer();
  if (value.undefined()) rt.FailUndefined(value);
  rt.Fail("an integer is needed, not '{}'", TypeName(value));
  return 0;
}

bool Callable(const Value& value) {
  return value.undefined() || (value.is(Kind::kObject) && value.object()->callable());
}

Value Call(Runtime& rt, const Value& function, const Args& args) {
  if (rt.failed()) return {};
  if (function.undefined()) return rt.FailUndefined(function);
  if (!function.is(Kind::kObject)) {
    return rt.Fail("'{}' object is not callable", TypeName(function));
  }
  const Nested nested(rt);
  if (!nested.ok()) return {};
  // Held here: the call may drop the variable that held it.
  const std::shared_ptr<Object> object = function.object();
  return object->Call(rt, args);
}

}  // namespace headway::jinja
