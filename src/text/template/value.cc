#include "text/template/value.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// Below this many entries a dict is searched from the front; most are that small.
constexpr size_t kIndexFrom = 9;

size_t Mix(size_t seed, size_t hash) {
  return seed ^ (hash + 0x9E3779B97F4A7C15u + (seed << 6) + (seed >> 2));
}

}  // namespace

void Object::Repr(Runtime& rt, std::string* out) const {
  (void)rt;
  *out += fmt::format("<{} object>", type_name());
}

bool Object::GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) {
  (void)rt;
  (void)self;
  (void)name;
  (void)out;
  return false;
}

Value Object::Call(Runtime& rt, const Args& args) {
  (void)args;
  return rt.Fail(fmt::format("'{}' object is not callable", type_name()));
}

std::shared_ptr<Iterator> Object::OpenIterator(Runtime& rt, const Value& self) {
  (void)rt;
  (void)self;
  return nullptr;
}

bool Object::GetLength(Runtime& rt, int64_t* length) {
  (void)rt;
  (void)length;
  return false;
}

void Iterator::Repr(Runtime& rt, std::string* out) const {
  (void)rt;
  *out += fmt::format("<{} object at 0x0>", type_name());
}

std::shared_ptr<Iterator> Iterator::OpenIterator(Runtime& rt, const Value& self) {
  (void)rt;
  return std::static_pointer_cast<Iterator>(self.object());
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

bool Hash(const Value& value, size_t* hash) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      *hash = static_cast<size_t>(value.kind());
      return true;
    case Kind::kBool:
    case Kind::kInt:
      *hash = std::hash<int64_t>()(value.integer());
      return true;
    case Kind::kFloat: {
      // Equal numbers hash alike, whatever their type.
      const double real = value.real();
      const bool whole = std::abs(real) < 0x1p63 && std::nearbyint(real) == real;
      *hash = whole ? std::hash<int64_t>()(static_cast<int64_t>(real)) : std::hash<double>()(real);
      return true;
    }
    case Kind::kString:
      *hash = std::hash<std::string_view>()(value.text());
      return true;
    case Kind::kTuple: {
      size_t seed = value.items().size();
      for (const Value& item : value.items()) {
        size_t part = 0;
        if (!Hash(item, &part)) return false;
        seed = Mix(seed, part);
      }
      *hash = seed;
      return true;
    }
    case Kind::kList:
    case Kind::kDict:
      return false;
    case Kind::kObject:
      *hash = std::hash<const void*>()(value.object().get());
      return true;
  }
  return false;
}

int64_t Dict::Position(Runtime& rt, const Value& key, size_t hash) const {
  if (entries_.size() < kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (Equal(rt, entries_[i].first, key)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  const auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end && rt.Charge(1); ++it) {
    if (Equal(rt, entries_[it->second].first, key)) return static_cast<int64_t>(it->second);
  }
  return -1;
}

void Dict::Append(const Value& key, Value value, size_t hash) {
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() < kIndexFrom) return;
  if (entries_.size() > kIndexFrom) {
    index_.emplace(hash, entries_.size() - 1);
    return;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t entry_hash = 0;
    if (Hash(entries_[i].first, &entry_hash)) index_.emplace(entry_hash, i);
  }
}

const Value* Dict::Find(Runtime& rt, const Value& key) const {
  size_t hash = 0;
  if (!Hash(key, &hash)) return nullptr;
  const int64_t position = Position(rt, key, hash);
  return position < 0 ? nullptr : &entries_[static_cast<size_t>(position)].second;
}

int64_t Dict::TextPosition(std::string_view key) const {
  const auto matches = [&](size_t i) {
    const Value& name = entries_[i].first;
    return name.string() && name.text() == key;
  };
  if (entries_.size() < kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (matches(i)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>()(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(it->second)) return static_cast<int64_t>(it->second);
  }
  return -1;
}

const Value* Dict::FindText(std::string_view key) const {
  const int64_t position = TextPosition(key);
  return position < 0 ? nullptr : &entries_[static_cast<size_t>(position)].second;
}

void Dict::Set(Runtime& rt, const Value& key, Value value) {
  size_t hash = 0;
  if (!Hash(key, &hash)) {
    rt.Fail(fmt::format("unhashable type: '{}'", TypeName(key)));
    return;
  }
  if (!rt.Charge(1)) return;
  const int64_t position = Position(rt, key, hash);
  if (position >= 0) {
    entries_[static_cast<size_t>(position)].second = std::move(value);
  } else {
    Append(key, std::move(value), hash);
  }
}

void Dict::SetText(std::string_view key, Value value) {
  const int64_t position = TextPosition(key);
  if (position >= 0) {
    entries_[static_cast<size_t>(position)].second = std::move(value);
    return;
  }
  Append(Value::Constant(std::string(key)), std::move(value), std::hash<std::string_view>()(key));
}

}  // namespace headway::jinja
