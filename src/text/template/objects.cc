#include "text/template/objects.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// What jinja2 has of a loop and Headway does not.
constexpr std::string_view kOtherAttributes[] = {"changed", "cycle", "depth", "depth0",
                                                 "revindex0"};

}  // namespace

Items::Items(ItemsKind kind, std::vector<Value> items) : kind_(kind), items_(std::move(items)) {
  for (const Value& item : items_) depth = std::max(depth, item.depth() + 1);
}

const char* Items::type_name() const {
  constexpr const char* kNames[] = {"range", "dict_keys", "dict_values", "dict_items", "generator"};
  return kNames[static_cast<size_t>(kind_)];
}

void Items::Repr(Runtime& rt, std::string* out) const {
  if (generator() || range()) return Object::Repr(rt, out);
  *out += fmt::format("{}(", type_name());
  AppendRepr(rt, rt.List(items_), out);
  *out += ')';
}

std::vector<Value> Items::Read() {
  if (!generator()) return items_;
  const auto begin = items_.begin() + static_cast<ptrdiff_t>(next_);
  next_ = items_.size();
  return std::vector<Value>(begin, items_.end());
}

bool Items::ReadOne(Value* item) {
  const size_t at = generator() ? next_++ : 0;
  if (at >= items_.size()) return false;
  *item = items_[at];
  return true;
}

Value MakeView(Runtime& rt, const Value& dict, ItemsKind part) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries().entries()) {
    if (!rt.Charge(1)) return {};
    items.push_back(part == ItemsKind::kKeys     ? key
                    : part == ItemsKind::kValues ? value
                                                 : rt.Tuple({key, value}));
  }
  return rt.Made(std::make_shared<Items>(part, std::move(items)));
}

void Namespace::Repr(Runtime& rt, std::string* out) const {
  *out += "<Namespace ";
  AppendRepr(rt, attributes_, out);
  *out += '>';
}

bool Namespace::GetAttr(Runtime& /*rt*/, const Value& /*self*/, std::string_view name, Value* out) {
  const Value* value = attributes_.FindText(name);
  if (value != nullptr) *out = *value;
  return value != nullptr;
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
  items_.clear();
  test_ = nullptr;
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
  while (after_.missing() && next_ < items_.size() && rt.Charge(1)) {
    const Value& item = items_[next_++];
    if (test_ == nullptr || test_(item)) after_ = item;
  }
  return !after_.missing() && !rt.failed();
}

int64_t Loop::Length(Runtime& rt) {
  if (test_ != nullptr) {
    std::vector<Value> rest;
    for (; next_ < items_.size() && rt.Charge(1); ++next_) {
      if (test_(items_[next_])) rest.push_back(items_[next_]);
    }
    items_ = std::move(rest);
    next_ = 0;
    test_ = nullptr;
  }
  const auto unread = static_cast<int64_t>(items_.size() - next_);
  return index0_ + 1 + (after_.missing() ? 0 : 1) + unread;
}

bool Loop::GetAttr(Runtime& rt, const Value& /*self*/, std::string_view name, Value* out) {
  if (name == "index") {
    *out = Value::Int(index0_ + 1);
  } else if (name == "index0") {
    *out = Value::Int(index0_);
  } else if (name == "length") {
    *out = Value::Int(Length(rt));
  } else if (name == "revindex") {
    *out = Value::Int(Length(rt) - index0_);
  } else if (name == "first") {
    *out = Value::Bool(index0_ == 0);
  } else if (name == "last") {
    *out = Value::Bool(!Peek(rt));
  } else if (name == "previtem") {
    *out = before_.missing() ? Value::Undefined("there is no previous item") : before_;
  } else if (name == "nextitem") {
    *out = Peek(rt) ? after_ : Value::Undefined("there is no next item");
  } else if (std::count(std::begin(kOtherAttributes), std::end(kOtherAttributes), name) > 0) {
    *out = rt.Fail(StatusCode::kUnsupported, fmt::format("Headway does not have 'loop.{}'", name));
  } else {
    return false;
  }
  return true;
}

}  // namespace headway::jinja
