// Objects that a template meets: ranges, views of dicts and generators; namespaces; the loop
// variable.
#ifndef HEADWAY_TEXT_TEMPLATE_OBJECTS_H_
#define HEADWAY_TEXT_TEMPLATE_OBJECTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace headway::jinja {

enum class ItemsKind : uint8_t { kRange, kKeys, kValues, kPairs, kGenerator };

// What can be read like a list and is none. A generator is used up by reading it; the others have a
// length.
class Items : public Object {
 public:
  Items(ItemsKind kind, std::vector<Value> items);
  const char* type_name() const override;
  void Repr(Runtime& rt, std::string* out) const override;

  bool generator() const { return kind_ == ItemsKind::kGenerator; }
  bool range() const { return kind_ == ItemsKind::kRange; }
  const std::vector<Value>& items() const { return items_; }
  // What reading to the end, or reading one item, gives now.
  std::vector<Value> Read();
  bool ReadOne(Value* item);

 private:
  const ItemsKind kind_;
  const std::vector<Value> items_;
  size_t next_ = 0;  // the items before it were read; 0 of what is no generator
};

Value MakeItems(Runtime& rt, ItemsKind kind, std::vector<Value> items);
// The keys, values or pairs of a dict.
std::vector<Value> PartsOf(Runtime& rt, const Dict& dict, ItemsKind part);

// The one thing that a template can change.
class Namespace : public Object {
 public:
  const char* type_name() const override { return "Namespace"; }
  void Repr(Runtime& rt, std::string* out) const override;
  Value GetAttr(Runtime& rt, std::string_view name) override;
  void Clear() override { attributes_ = Dict(); }

  // Fails for a name that begins with an underscore, as Transformers' namespaces do.
  void Set(Runtime& rt, const Value& name, Value value);

 private:
  Dict attributes_;
};

// `loop` within a for loop.
class Loop : public Object {
 public:
  // The loop goes over the items that meet `test`, or over all without one. Each is tested when the
  // loop asks for it, since a test may read what the body of the loop changes.
  using Test = std::function<bool(const Value& item)>;
  Loop(std::vector<Value> items, Test test) : items_(std::move(items)), test_(std::move(test)) {}
  const char* type_name() const override { return "LoopContext"; }
  Value GetAttr(Runtime& rt, std::string_view name) override;
  void Clear() override;

  // The next item becomes the current one; false at the end.
  bool Advance(Runtime& rt, Value* item);

 private:
  // False, and failed, while the test of an item is at work, which is not ours to run again or to
  // drop then.
  bool MayRead(Runtime& rt);
  bool Takes(const Value& item);
  bool Peek(Runtime& rt);
  int64_t Length(Runtime& rt);

  std::vector<Value> items_;
  Test test_;
  bool testing_ = false;  // test_ is at work
  size_t next_ = 0;       // in items_
  int64_t index0_ = -1;
  Value before_ = Value::Missing();
  Value current_ = Value::Missing();
  Value after_ = Value::Missing();  // read ahead
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_OBJECTS_H_
