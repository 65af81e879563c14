// Value: what a template computes with, with the meaning it has in Python: None, bool, int (64
// bits), float, str, list, tuple, dict, and objects (namespaces, loops, macros, generators ...).
// Lists, tuples and dicts never change once made, as the sandbox demands, so only objects can form
// cycles; the Runtime breaks those.
#ifndef HEADWAY_TEXT_TEMPLATE_VALUE_H_
#define HEADWAY_TEXT_TEMPLATE_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headway::jinja {

class Runtime;
class Value;
struct Args;

enum class Kind : uint8_t {
  kMissing,    // a variable or an argument that was never given; never seen by a template
  kUndefined,  // jinja2's Undefined: prints as nothing, fails on most operations
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kObject,
};

// Base of everything that lives on the heap. The virtual functions are what Python's protocols are
// to the kinds that have no Kind of their own.
class Object {
 public:
  virtual ~Object() = default;

  virtual const char* type_name() const { return "object"; }  // as Python's type(x).__name__
  virtual void Repr(Runtime& rt, std::string* out) const;
  // Missing when there is no such attribute.
  virtual Value GetAttr(Runtime& rt, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value Call(Runtime& rt, const Args& args);
  // Drops every reference, at the end of a rendering; see Runtime::Tracked.
  virtual void Clear() {}

  // Nesting of the containers below, so that no recursion over them is deeper than a known bound.
  int depth = 0;
};

class Value {
 public:
  Value() = default;  // undefined, with no name

  static Value Missing() { return Value(Kind::kMissing); }
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value) { return Value(Kind::kBool, value ? 1 : 0); }
  static Value Int(int64_t value) { return Value(Kind::kInt, value); }
  static Value Float(double value) {
    Value result(Kind::kFloat);
    result.real_ = value;
    return result;
  }
  // A constant of the program; strings that a template makes come from Runtime::Str.
  static Value Constant(std::string text);
  // `message` says why, when an operation fails on it.
  static Value Undefined(std::string message);
  // An object; null gives a value that is undefined.
  static Value Of(std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool missing() const { return kind_ == Kind::kMissing; }
  bool undefined() const { return kind_ == Kind::kUndefined; }
  bool none() const { return kind_ == Kind::kNone; }
  bool string() const { return kind_ == Kind::kString; }
  bool list() const { return kind_ == Kind::kList; }
  bool tuple() const { return kind_ == Kind::kTuple; }
  bool sequence() const { return list() || tuple(); }
  bool dict() const { return kind_ == Kind::kDict; }
  // An int as Python sees it: bool is one.
  bool integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool number() const { return integral() || kind_ == Kind::kFloat; }

  // Each requires the kind that it reads.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }  // also of a bool
  double real() const { return real_; }
  double AsDouble() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const std::string& text() const;
  bool markup() const;                      // string: jinja2's Markup (from `safe` and `escape`)
  const std::vector<Value>& items() const;  // list, tuple
  const class Dict& entries() const;        // dict
  const std::string& why_undefined() const;

  // The heap part; null for numbers.
  const std::shared_ptr<Object>& object() const { return object_; }
  int depth() const { return object_ == nullptr ? 0 : object_->depth; }
  template <typename T>
  T* As() const {
    return kind_ == Kind::kObject ? dynamic_cast<T*>(object_.get()) : nullptr;
  }

 private:
  friend class Runtime;
  explicit Value(Kind kind, int64_t integer = 0) : kind_(kind), integer_(integer) {}
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

// The heap part of str and of Undefined (its message).
class Text : public Object {
 public:
  explicit Text(std::string value, bool is_markup = false)
      : text(std::move(value)), markup(is_markup) {}
  const std::string text;
  const bool markup;
};

// The heap part of list and tuple.
class Sequence : public Object {
 public:
  std::vector<Value> items;
};

// The heap part of dict: keeps the order of insertion, finds keys as Python does (1 == 1.0 ==
// True). Only keys that are text are found without looking at every entry.
class Dict : public Object {
 public:
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }

  // Null when the key is not there. Requires a hashable key.
  const Value* Find(Runtime& rt, const Value& key) const;
  const Value* FindText(std::string_view key) const;
  // Puts or replaces; fails for a key that is not hashable. Only while the dict is being made.
  void Set(Runtime& rt, const Value& key, Value value);
  void SetText(std::string_view key, Value value);

 private:
  // A position in entries_; where there is no such key, their number.
  size_t Position(Runtime& rt, const Value& key) const;
  size_t TextPosition(std::string_view key) const;
  const Value* At(size_t position) const;
  void Put(size_t position, const Value& key, Value value);

  std::vector<std::pair<Value, Value>> entries_;
  // Text key -> its position, from some entries on; the views are into the keys.
  std::unordered_map<std::string_view, size_t> index_;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Fails unless Python could hash the value.
bool CheckKey(Runtime& rt, const Value& key);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_VALUE_H_
