// Attributes, items, slices, lengths and calls.
#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/template/call.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// Methods that change a list or a dict: the sandbox acts as if they were not there.
bool IsMutating(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.list()) return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  if (object.dict()) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return false;
}

// As messages name an object: "dict object", "None".
std::string Describe(const Value& value) {
  return value.none() ? "None" : TypeName(value) + " object";
}

Value UnsafeAttribute(const Value& object, std::string_view name) {
  return Value::Undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, TypeName(object)));
}

// What Python's getattr finds; false when it finds nothing.
bool FindAttribute(Runtime& rt, const Value& object, std::string_view name, Value* out) {
  if (name.starts_with("__") || IsMutating(object, name)) {
    *out = UnsafeAttribute(object, name);
    return true;
  }
  if (object.is(Kind::kObject) && object.object()->GetAttr(rt, object, name, out)) {
    if (name.starts_with('_')) *out = UnsafeAttribute(object, name);
    return true;
  }
  const NamedFunction method = FindMethod(object, name);
  if (method.name.empty()) return false;
  if (object.number() || object.As<Items>() != nullptr) {
    rt.Fail(
        StatusCode::kUnsupported,
        fmt::format("Headway does not have the attribute '{}' of '{}'", name, TypeName(object)));
  }
  *out = Value::Of(std::make_shared<BoundFunction>(object, method));
  return true;
}

// object[index] for what has a length; false when the index is not in it.
bool FindIndex(Runtime& rt, const Value& object, int64_t index, Value* out) {
  int64_t length = 0;
  if (!Length(rt, object, &length)) return false;
  if (index < 0) index += length;
  if (index < 0 || index >= length) return false;
  if (object.sequence()) {
    *out = object.items()[static_cast<size_t>(index)];
    return true;
  }
  if (object.string()) {
    const std::string& text = object.text();
    const size_t offset = length == static_cast<int64_t>(text.size()) ? static_cast<size_t>(index)
                                                                      : CharOffset(text, index);
    *out = rt.Str(text.substr(offset, CharBytes(text, offset)), object.markup());
    return true;
  }
  const auto* items = object.As<Items>();
  if (items == nullptr || !items->range()) return false;
  *out = items->items()[static_cast<size_t>(index)];
  return true;
}

// A bound or step of a slice; `fallback` where it is left out.
bool SliceIndex(Runtime& rt, const Value& value, int64_t fallback, int64_t* index) {
  *index = fallback;
  if (value.none() || value.missing()) return true;
  if (value.integral()) {
    *index = value.integer();
    return true;
  }
  rt.Fail(fmt::format("slice indices must be integers or none, not '{}'", TypeName(value)));
  return false;
}

// start, step and how many elements of `length`, as Python's slice.indices() cuts them.
struct Cut {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

bool MakeCut(Runtime& rt, const Value& start, const Value& stop, const Value& step, int64_t length,
             Cut* cut) {
  if (!SliceIndex(rt, step, 1, &cut->step)) return false;
  if (cut->step == 0) {
    rt.Fail("slice step cannot be zero");
    return false;
  }
  cut->step = std::clamp(cut->step, -kMaxRange * kMaxRange, kMaxRange * kMaxRange);
  const bool back = cut->step < 0;
  // The places before the first and behind the last element that the slice can reach.
  const int64_t low = back ? -1 : 0;
  const int64_t high = back ? length - 1 : length;
  const auto place = [&](const Value& value, int64_t fallback, int64_t* index) {
    if (value.none() || value.missing()) {
      *index = fallback;
      return true;
    }
    if (!SliceIndex(rt, value, 0, index)) return false;
    *index = *index < 0 ? std::max(low, *index + length) : std::min(high, *index);
    return true;
  };
  int64_t stop_at = 0;
  if (!place(start, back ? high : low, &cut->start) || !place(stop, back ? low : high, &stop_at)) {
    return false;
  }
  const int64_t distance = back ? cut->start - stop_at : stop_at - cut->start;
  if (distance > 0) cut->count = (distance - 1) / std::abs(cut->step) + 1;
  return true;
}

// The characters of a text that a slice cuts.
Value SliceText(Runtime& rt, const Value& value, const Cut& cut) {
  const std::string_view text = value.text();
  std::string result;
  if (cut.step == 1) {
    if (!rt.Charge(static_cast<int64_t>(text.size()) / kCopyBytesPerStep)) return {};
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
  Value found;
  if (FindAttribute(rt, object, name, &found)) return found;
  if (object.dict()) {
    if (const Value* value = object.entries().FindText(name)) return *value;
  }
  return Value::Undefined(fmt::format("'{}' has no attribute '{}'", Describe(object), name));
}

Value GetItem(Runtime& rt, const Value& object, const Value& key) {
  if (rt.failed()) return {};
  if (object.undefined()) return rt.FailUndefined(object);
  Value found;
  if (object.dict()) {
    if (const Value* value = object.entries().Find(rt, key)) return *value;
  } else if (key.integral() && FindIndex(rt, object, key.integer(), &found)) {
    return found;
  }
  if (key.string()) {
    if (FindAttribute(rt, object, key.text(), &found)) return found;
    return Value::Undefined(
        fmt::format("'{}' has no attribute '{}'", Describe(object), key.text()));
  }
  std::string shown;
  AppendRepr(rt, key, &shown);
  return Value::Undefined(fmt::format("{} has no element {}", Describe(object), shown));
}

Value GetSlice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
               const Value& step) {
  if (rt.failed()) return {};
  if (object.undefined()) return rt.FailUndefined(object);
  int64_t length = 0;
  if (const auto* items = object.As<Items>(); items != nullptr && items->range()) {
    return rt.Fail(StatusCode::kUnsupported, "Headway does not slice ranges");
  }
  if ((!object.string() && !object.sequence()) || !Length(rt, object, &length)) {
    return rt.Fail(fmt::format("'{}' object cannot be sliced", TypeName(object)));
  }
  Cut cut;
  if (!MakeCut(rt, start, stop, step, length, &cut)) return {};
  if (object.string()) return SliceText(rt, object, cut);
  if (!rt.Charge(cut.count)) return {};
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(cut.count));
  for (int64_t i = 0; i < cut.count; ++i) {
    items.push_back(object.items()[static_cast<size_t>(cut.start + i * cut.step)]);
  }
  return object.list() ? rt.List(std::move(items)) : rt.Tuple(std::move(items));
}

bool Iterable(const Value& value) {
  return value.undefined() || value.string() || value.sequence() || value.dict() ||
         value.As<Items>() != nullptr;
}

bool Length(Runtime& rt, const Value& value, int64_t* length) {
  *length = 0;
  if (value.undefined()) return true;
  if (value.string()) {
    rt.Charge(static_cast<int64_t>(value.text().size()) / kCopyBytesPerStep);
    *length = CountChars(value.text());
    return true;
  }
  size_t size = 0;
  if (value.sequence()) {
    size = value.items().size();
  } else if (value.dict()) {
    size = value.entries().size();
  } else if (const auto* items = value.As<Items>(); items != nullptr && !items->generator()) {
    size = items->items().size();
  } else {
    return false;
  }
  *length = static_cast<int64_t>(size);
  return true;
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
    rt.Fail(fmt::format("'{}' object is not iterable", TypeName(value)));
  }
  if (!rt.Charge(static_cast<int64_t>(items.size()))) items.clear();
  return items;
}

bool AsIndex(Runtime& rt, const Value& value, int64_t* index) {
  if (!value.integral()) {
    if (value.undefined()) {
      rt.FailUndefined(value);
    } else {
      rt.Fail(fmt::format("an integer is needed, not '{}'", TypeName(value)));
    }
    return false;
  }
  *index = value.integer();
  return true;
}

bool Callable(const Value& value) {
  return value.undefined() || (value.is(Kind::kObject) && value.object()->callable());
}

Value Call(Runtime& rt, const Value& function, const Args& args) {
  if (rt.failed()) return {};
  if (function.undefined()) return rt.FailUndefined(function);
  if (!function.is(Kind::kObject)) {
    return rt.Fail(fmt::format("'{}' object is not callable", TypeName(function)));
  }
  const Nested nested(rt);
  if (!nested.ok() || !rt.Charge(1)) return {};
  // Held here: the call may drop the variable that held it.
  const std::shared_ptr<Object> object = function.object();
  return object->Call(rt, args);
}

}  // namespace headway::jinja
