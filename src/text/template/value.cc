#include "text/template/value.h"

#include <algorithm>

#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// Below this many entries a dict is searched from the front; most are that small.
constexpr size_t kIndexFrom = 9;

bool Hashable(const Value& value) {
  if (value.list() || value.dict()) return false;
  return !value.tuple() || std::all_of(value.items().begin(), value.items().end(), Hashable);
}

}  // namespace

void Object::Repr(Runtime& rt, std::string* /*out*/) const {
  rt.Refuse("Headway does not print a '{}'", type_name());
}

Value Object::GetAttr(Runtime& /*rt*/, std::string_view /*name*/) { return Value::Missing(); }

Value Object::Call(Runtime& rt, const Args& /*args*/) {
  return rt.Fail("'{}' object is not callable", type_name());
}

Value Value::Constant(std::string text) {
  return Value(Kind::kString, std::make_shared<Text>(std::move(text)));
}

Value Value::Undefined(std::string message) {
  return Value(Kind::kUndefined, std::make_shared<Text>(std::move(message)));
}

Value Value::Of(std::shared_ptr<Object> object) {
  return object == nullptr ? Value() : Value(Kind::kObject, std::move(object));
}

const std::string& Value::text() const { return static_cast<const Text&>(*object_).text; }

bool Value::markup() const {
  return kind_ == Kind::kString && static_cast<const Text&>(*object_).markup;
}

const std::vector<Value>& Value::items() const {
  return static_cast<const Sequence&>(*object_).items;
}

const Dict& Value::entries() const { return static_cast<const Dict&>(*object_); }

const std::string& Value::why_undefined() const {
  static const std::string kNoReason = "a value is undefined";
  return object_ == nullptr ? kNoReason : static_cast<const Text&>(*object_).text;
}

bool CheckKey(Runtime& rt, const Value& key) {
  if (!Hashable(key)) rt.Fail("unhashable type: '{}'", TypeName(key));
  return !rt.failed();
}

size_t Dict::TextPosition(std::string_view key) const {
  if (entries_.size() >= kIndexFrom) {
    const auto it = index_.find(key);
    return it == index_.end() ? entries_.size() : it->second;
  }
  const auto matches = [&](const auto& entry) {
    return entry.first.string() && entry.first.text() == key;
  };
  return static_cast<size_t>(std::ranges::find_if(entries_, matches) - entries_.begin());
}

size_t Dict::Position(Runtime& rt, const Value& key) const {
  if (key.string()) return TextPosition(key.text());
  const auto matches = [&](const auto& entry) { return Equal(rt, entry.first, key); };
  return static_cast<size_t>(std::ranges::find_if(entries_, matches) - entries_.begin());
}

const Value* Dict::At(size_t position) const {
  return position < entries_.size() ? &entries_[position].second : nullptr;
}

const Value* Dict::Find(Runtime& rt, const Value& key) const {
  return Hashable(key) ? At(Position(rt, key)) : nullptr;
}

const Value* Dict::FindText(std::string_view key) const { return At(TextPosition(key)); }

void Dict::Put(size_t position, const Value& key, Value value) {
  if (position < entries_.size()) {
    entries_[position].second = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (position + 1 < kIndexFrom) return;
  for (size_t i = position + 1 == kIndexFrom ? 0 : position; i <= position; ++i) {
    if (entries_[i].first.string()) index_.emplace(entries_[i].first.text(), i);
  }
}

void Dict::Set(Runtime& rt, const Value& key, Value value) {
  if (CheckKey(rt, key) && rt.Charge(1)) Put(Position(rt, key), key, std::move(value));
}

void Dict::SetText(std::string_view key, Value value) {
  Put(TextPosition(key), Value::Constant(std::string(key)), std::move(value));
}

}  // namespace headway::jinja
