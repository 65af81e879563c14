#include "text/template/value.h"

#include <fmt/format.h>

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
  rt.Fail(StatusCode::kUnsupported, fmt::format("Headway does not print a '{}'", type_name()));
}

bool Object::GetAttr(Runtime& /*rt*/, const Value& /*self*/, std::string_view /*name*/,
                     Value* /*out*/) {
  return false;
}

Value Object::Call(Runtime& rt, const Args& /*args*/) {
  return rt.Fail(fmt::format("'{}' object is not callable", type_name()));
}

Value Value::Constant(std::string text) {
  return Value(Kind::kString, std::make_shared<Text>(std::move(text)));
}

Value Value::Undefined(std::string message) {
  return Value(Kind::kUndefined, std::make_shared<Text>(std::move(message)));
}

Value Value::Of(std::shared_ptr<Object> object) {
  if (object == nullptr) return {};
  return Value(Kind::kObject, std::move(object));
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
  if (!Hashable(key)) rt.Fail(fmt::format("unhashable type: '{}'", TypeName(key)));
  return !rt.failed();
}

int64_t Dict::TextPosition(std::string_view key) const {
  if (entries_.size() >= kIndexFrom) {
    const auto it = index_.find(key);
    return it == index_.end() ? -1 : static_cast<int64_t>(it->second);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Value& name = entries_[i].first;
    if (name.string() && name.text() == key) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t Dict::Position(Runtime& rt, const Value& key) const {
  if (key.string()) return TextPosition(key.text());
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (Equal(rt, entries_[i].first, key)) return static_cast<int64_t>(i);
  }
  return -1;
}

void Dict::Append(const Value& key, Value value) {
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() < kIndexFrom) return;
  for (size_t i = entries_.size() == kIndexFrom ? 0 : entries_.size() - 1; i < entries_.size();
       ++i) {
    if (entries_[i].first.string()) index_.emplace(entries_[i].first.text(), i);
  }
}

const Value* Dict::Find(Runtime& rt, const Value& key) const {
  const int64_t position = Hashable(key) ? Position(rt, key) : -1;
  return position < 0 ? nullptr : &entries_[static_cast<size_t>(position)].second;
}

const Value* Dict::FindText(std::string_view key) const {
  const int64_t position = TextPosition(key);
  return position < 0 ? nullptr : &entries_[static_cast<size_t>(position)].second;
}

void Dict::Set(Runtime& rt, const Value& key, Value value) {
  if (!CheckKey(rt, key) || !rt.Charge(1)) return;
  const int64_t position = Position(rt, key);
  if (position >= 0) {
    entries_[static_cast<size_t>(position)].second = std::move(value);
  } else {
    Append(key, std::move(value));
  }
}

void Dict::SetText(std::string_view key, Value value) {
  const int64_t position = TextPosition(key);
  if (position >= 0) {
    entries_[static_cast<size_t>(position)].second = std::move(value);
  } else {
    Append(Value::Constant(std::string(key)), std::move(value));
  }
}

}  // namespace headway::jinja
