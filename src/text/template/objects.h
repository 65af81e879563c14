// Objects that a template meets: ranges, views of dicts, namespaces and the loop variable; and the
// iterators over the built-in types.
#ifndef HEADWAY_TEXT_TEMPLATE_OBJECTS_H_
#define HEADWAY_TEXT_TEMPLATE_OBJECTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace headway::jinja {

class Range : public Object {
 public:
  Range(int64_t start, int64_t stop, int64_t step);  // step is not 0
  const char* type_name() const override { return "range"; }
  void Repr(Runtime& rt, std::string* out) const override;
  std::shared_ptr<Iterator> OpenIterator(Runtime& rt, const Value& self) override;
  bool GetLength(Runtime& rt, int64_t* length) override;
  bool IsTrue() const override { return length_ > 0; }

  int64_t length() const { return length_; }
  int64_t At(int64_t i) const { return start_ + i * step_; }
  bool operator==(const Range& other) const;

 private:
  const int64_t start_;
  const int64_t stop_;
  const int64_t step_;
  int64_t length_ = 0;
};

enum class DictPart : uint8_t { kKeys, kValues, kItems };

class DictView : public Object {
 public:
  DictView(Value dict, DictPart part) : dict_(std::move(dict)), part_(part) {
    depth = dict_.depth() + 1;
  }
  const char* type_name() const override;
  void Repr(Runtime& rt, std::string* out) const override;
  std::shared_ptr<Iterator> OpenIterator(Runtime& rt, const Value& self) override;
  bool GetLength(Runtime& rt, int64_t* length) override;
  bool IsTrue() const override { return dict().size() != 0; }

  bool keys() const { return part_ == DictPart::kKeys; }
  const Dict& dict() const { return dict_.entries(); }

 private:
  const Value dict_;
  const DictPart part_;
};

// The one thing that a template can change.
class Namespace : public Object {
 public:
  const char* type_name() const override { return "Namespace"; }
  void Repr(Runtime& rt, std::string* out) const override;
  bool GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) override;
  void Clear() override { attributes_ = Dict(); }

  // Fails for a name that begins with an underscore, as Transformers' namespaces do.
  void Set(Runtime& rt, const Value& name, Value value);

 private:
  Dict attributes_;
};

// `loop` within a for loop.
class Loop : public Object {
 public:
  // `length` is -1 when only reading `source` to its end tells it.
  Loop(std::shared_ptr<Iterator> source, int64_t length)
      : source_(std::move(source)), length_(length) {}
  const char* type_name() const override { return "LoopContext"; }
  void Repr(Runtime& rt, std::string* out) const override;
  bool GetAttr(Runtime& rt, const Value& self, std::string_view name, Value* out) override;
  bool callable() const override { return true; }
  Value Call(Runtime& rt, const Args& args) override;
  bool GetLength(Runtime& rt, int64_t* length) override;
  void Clear() override;

  // The next item becomes the current one; false at the end.
  bool Advance(Runtime& rt, Value* item);
  int64_t index0() const { return index0_; }

 private:
  bool Peek(Runtime& rt);

  std::shared_ptr<Iterator> source_;
  int64_t length_;
  int64_t index0_ = -1;
  Value before_ = Value::Missing();
  Value current_ = Value::Missing();
  Value after_ = Value::Missing();  // read ahead
};

// Over `length` elements of `source`, each of which `at` gives.
using ElementAt = Value (*)(Runtime& rt, const Value& source, int64_t i);
std::shared_ptr<Iterator> IterateIndices(const Value& source, int64_t length, ElementAt at);
std::shared_ptr<Iterator> IterateDict(const Value& dict, DictPart part);
std::shared_ptr<Iterator> IterateNothing();
// Over items that no value holds.
std::shared_ptr<Iterator> IterateOwned(std::vector<Value> items);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_OBJECTS_H_
