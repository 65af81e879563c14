#include "text/template/objects.h"

#include <algorithm>

#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
Items::Items(ItemsKind kind, std::vector<Value> items) : kind_(kind), items_(std::move(items)) {
  for (const Value& item : items_) depth = std::max(depth, item.depth() + 1);
}

const char* Items::type_name() const {
  constexpr const char* kNames[] = {"range", "dict_keys", "dict_values", "dict_items", "generator"};
  return kNames[static_cast<size_t>(kind_)];
}

void Items::Repr(Runtime& rt, std::string* out) const {
  if (generator() || range()) return Object::Repr(rt, out);
  *out += std::string(type_name()) + "(";
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
  if (next_ >= items_.size()) return false;
  *item = items_[next_];
  if (generator()) ++next_;
  return true;
}

Value MakeItems(Runtime& rt, ItemsKind kind, std::vector<Value> items) {
  return rt.Made(std::make_shared<Items>(kind, std::move(items)));
}

std::vector<Value> PartsOf(Runtime& rt, const Dict& dict, ItemsKind part) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) {
    if (!rt.Charge(1)) break;
    items.push_back(part == ItemsKind::kKeys     ? key
                    : part == ItemsKind::kValues ? value
                                                 : rt.Tuple({key, value}));
  }
  return items;
}

void Namespace::Repr(Runtime& rt, std::string* out) const {
  *out += "<Namespace ";
  AppendRepr(rt, attributes_, out);
  *out += '>';
}

Value Namespace::GetAttr(Runtime& /*rt*/, std::string_view name) {
  const Value* value = attributes_.FindText(name);
  return value != nullptr ? *value : Value::Missing();
}

void Namespace::Set(Runtime& rt, const Value& name, Value value) {
  if (name.string() && name.text().starts_with('_')) {
    rt.Fail("a namespace cannot hold '{}': rename it without the underscore", name.text());
  } else {
    attributes_.Set(rt, name, std::move(value));
  }
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

bool Loop::MayRead(Runtime& rt) {
  return !testing_ || rt.Fail("the condition of a loop asks what comes next in that loop");
}

bool Loop::Takes(const Value& item) {
  if (test_ == nullptr) return true;
  testing_ = true;
  const bool takes = test_(item);
  testing_ = false;
  return takes;
}

bool Loop::Peek(Runtime& rt) {
  if (after_.missing() && !MayRead(rt)) return false;
  while (after_.missing() && next_ < items_.size() && rt.Charge(1)) {
    const Value& item = items_[next_++];
    if (Takes(item)) after_ = item;
  }
  return !after_.missing() && !rt.failed();
}

int64_t Loop::Length(Runtime& rt) {
  if (!MayRead(rt)) return 0;
  if (test_ != nullptr) {
    std::vector<Value> rest;
    for (; next_ < items_.size() && rt.Charge(1); ++next_) {
      if (Takes(items_[next_])) rest.push_back(items_[next_]);
    }
    items_ = std::move(rest);
    next_ = 0;
    test_ = nullptr;
  }
  const auto unread = static_cast<int64_t>(items_.size() - next_);
  return index0_ + 1 + (after_.missing() ? 0 : 1) + unread;
}

Value Loop::GetAttr(Runtime& rt, std::string_view name) {
  // What jinja2 has of a loop and Headway does not.
  constexpr std::string_view kOthers[] = {"changed", "cycle", "depth", "depth0", "revindex0"};
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "length") return Value::Int(Length(rt));
  if (name == "revindex") return Value::Int(Length(rt) - index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(!Peek(rt));
  if (name == "previtem") {
    return before_.missing() ? Value::Undefined("there is no previous item") : before_;
  }
  if (name == "nextitem") return Peek(rt) ? after_ : Value::Undefined("there is no next item");
  if (std::ranges::count(kOthers, name) == 0) return Value::Missing();
  return rt.Refuse("Headway does not have 'loop.{}'", name);
}

}  // namespace headway::jinja
