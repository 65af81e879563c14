#include "text/template/objects.h"

#include <fmt/format.h>

#include "text/template/call.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

Value LoopCycle(Runtime& rt, const Value& self, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) {
    return rt.Fail("loop.cycle() needs items, and no keyword arguments");
  }
  const auto index = static_cast<size_t>(self.As<Loop>()->index0());
  return args.positional[index % args.positional.size()];
}

int64_t RangeLength(int64_t start, int64_t stop, int64_t step) {
  // In 128 bits, where no difference of two int64 overflows.
  const __int128 distance = static_cast<__int128>(stop) - start;
  const __int128 stride = step;
  if (stride > 0) {
    return distance <= 0 ? 0 : static_cast<int64_t>((distance + stride - 1) / stride);
  }
  return distance >= 0 ? 0 : static_cast<int64_t>((-distance - stride - 1) / -stride);
}

}  // namespace

Range::Range(int64_t start, int64_t stop, int64_t step)
    : start_(start), stop_(stop), step_(step), length_(RangeLength(start, stop, step)) {}

void Range::Repr(Runtime& rt, std::string* out) const {
  (void)rt;
  *out += step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                     : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::shared_ptr<Iterator> Range::OpenIterator(Runtime& rt, const Value& self) {
  (void)rt;
  return IterateIndices(self, length_, [](Runtime&, const Value& range, int64_t i) {
    return Value::Int(range.As<Range>()->At(i));
  });
}

bool Range::GetLength(Runtime& rt, int64_t* length) {
  (void)rt;
  *length = length_;
  return true;
}

bool Range::operator==(const Range& other) const {
  if (length_ != other.length_) return false;
  if (length_ == 0) return true;
  return start_ == other.start_ && (length_ == 1 || step_ == other.step_);
}

const char* DictView::type_name() const {
  switch (part_) {
    case DictPart::kKeys:
      return "dict_keys";
    case DictPart::kValues:
      return "dict_values";
    case DictPart::kItems:
      return "dict_items";
  }
  return "dict_view";
}

void DictView::Repr(Runtime& rt, std::string* out) const {
  *out += type_name();
  *out += "([";
  const std::shared_ptr<Iterator> iterator = IterateDict(dict_, part_);
  Value item;
  for (bool first = true; iterator->Next(rt, &item); first = false) {
    if (!first) *out += ", ";
    AppendRepr(rt, item, out);
  }
  *out += "])";
}

std::shared_ptr<Iterator> DictView::OpenIterator(Runtime& rt, const Value& self) {
  (void)rt;
  (void)self;
  return IterateDict(dict_, part_);
}

bool DictView::GetLength(Runtime& rt, int64_t* length) {
  (void)rt;
  *length = static_cast<int64_t>(dict().size());
  return true;
}

void Namespace::Repr(Runtime& rt, std::string* out) const {
  *out += "<Namespace ";
  AppendRepr(rt, attributes_, out);
  *out += '>';
}

bool Namespace::GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) {
  (void)rt;
  (void)self;
  const Value* value = attributes_.FindText(name);
  if (value == nullptr) return false;
  *out = *value;
  return true;
}

void Namespace::Set(Runtime& rt, const Value& name, Value value) {
  if (name.string() && name.text().starts_with('_')) {
    rt.Fail(
        fmt::format("a namespace cannot hold '{}': rename it without the underscore", name.text()));
    return;
  }
  attributes_.Set(rt, name, std::move(value));
}

void Loop::Clear() {
  source_ = IterateNothing();
  before_ = current_ = after_ = Value::Missing();
}

bool Loop::Advance(Runtime& rt, Value* item) {
  if (!Peek(rt)) return false;
  ++index0_;
  before_ = current_;
  current_ = after_;
  after_ = Value::Missing();
  *item = current_;
  return true;
}

bool Loop::Peek(Runtime& rt) {
  if (!after_.missing()) return true;
  return source_->Next(rt, &after_);
}

bool Loop::GetLength(Runtime& rt, int64_t* length) {
  if (length_ < 0) {
    std::vector<Value> rest;
    Value item;
    while (source_->Next(rt, &item)) rest.push_back(item);
    length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_.missing() ? 0 : 1);
    source_ = IterateOwned(std::move(rest));
  }
  *length = length_;
  return true;
}

void Loop::Repr(Runtime& rt, std::string* out) const {
  (void)rt;
  *out += fmt::format("<LoopContext {}/{}>", index0_ + 1, length_);
}

Value Loop::Call(Runtime& rt, const Args& args) {
  (void)args;
  return rt.Fail("a loop can only be called when it is marked as recursive");
}

bool Loop::GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) {
  const auto number = [out](int64_t value) {
    *out = Value::Int(value);
    return true;
  };
  if (name == "index") return number(index0_ + 1);
  if (name == "index0") return number(index0_);
  if (name == "depth" || name == "depth0") return number(name == "depth" ? 1 : 0);
  if (name == "length" || name == "revindex" || name == "revindex0") {
    int64_t length = 0;
    GetLength(rt, &length);
    return number(name == "length" ? length : length - index0_ - (name == "revindex0" ? 1 : 0));
  }
  if (name == "first" || name == "last") {
    *out = Value::Bool(name == "first" ? index0_ == 0 : !Peek(rt));
    return true;
  }
  if (name == "previtem") {
    *out = before_.missing() ? Value::Undefined("there is no previous item") : before_;
    return true;
  }
  if (name == "nextitem") {
    *out = Peek(rt) ? after_ : Value::Undefined("there is no next item");
    return true;
  }
  if (name != "cycle" && name != "changed") return false;
  const NamedFunction method =
      name == "cycle" ? NamedFunction{"cycle", LoopCycle} : NamedFunction{"changed", nullptr};
  *out = Value::Of(std::make_shared<BoundFunction>(self, method));
  return true;
}

}  // namespace headway::jinja
