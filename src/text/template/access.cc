// Attributes, items, slices and calls.
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
  if (object.number() || object.As<Range>() != nullptr) {
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
  if (const auto* range = object.As<Range>()) {
    *out = Value::Int(range->At(index));
    return true;
  }
  return false;
}

// start, step and how many elements of `length`, as Python's slice.indices() cuts them.
struct Cut {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

bool SliceIndex(Runtime& rt, const Value& value, int64_t fallback, int64_t* index) {
  *index = fallback;
  if (value.none() || value.missing()) return true;
  if (!value.integral()) {
    rt.Fail(fmt::format("slice indices must be integers or none, not '{}'", TypeName(value)));
    return false;
  }
  *index = value.integer();
  return true;
}

bool MakeCut(Runtime& rt, const Value& start, const Value& stop, const Value& step, int64_t length,
             Cut* cut) {
  if (!SliceIndex(rt, step, 1, &cut->step)) return false;
  if (cut->step == 0) {
    rt.Fail("slice step cannot be zero");
    return false;
  }
  cut->step = std::clamp(cut->step, -kMaxRange * kMaxRange, kMaxRange * kMaxRange);
  const bool back = cut->step < 0;
  const int64_t low = back ? -1 : 0;
  const int64_t high = back ? length - 1 : length;
  const auto adjust = [&](int64_t index) {
    if (index < 0) return std::max(low, index + length);
    return std::min(high, index);
  };
  int64_t first = 0;
  int64_t last = 0;
  const bool has_start = !start.none() && !start.missing();
  const bool has_stop = !stop.none() && !stop.missing();
  if (!SliceIndex(rt, start, 0, &first) || !SliceIndex(rt, stop, 0, &last)) return false;
  first = has_start ? adjust(first) : (back ? high : low);
  last = has_stop ? adjust(last) : (back ? low : high);
  cut->start = first;
  if (!back && first < last) cut->count = (last - first - 1) / cut->step + 1;
  if (back && last < first) cut->count = (first - last - 1) / -cut->step + 1;
  return true;
}

Value SliceText(Runtime& rt, const Value& value, const Cut& cut) {
  const std::string& text = value.text();
  if (!rt.Charge(static_cast<int64_t>(text.size()) / kCopyBytesPerStep)) return {};
  if (cut.step == 1) {
    const size_t begin = CharOffset(text, cut.start);
    const size_t bytes = CharOffset(std::string_view(text).substr(begin), cut.count);
    return rt.Str(text.substr(begin, bytes), value.markup());
  }
  if (!rt.Charge(static_cast<int64_t>(text.size()))) return {};
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) offsets.push_back(i);
  std::string result;
  for (int64_t i = 0; i < cut.count; ++i) {
    const size_t offset = offsets[static_cast<size_t>(cut.start + i * cut.step)];
    result.append(text, offset, CharBytes(text, offset));
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
  if (object.As<Range>() != nullptr) {
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
