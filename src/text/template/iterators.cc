// Iterators over the built-in types.
#include <fmt/format.h>

#include "base/utf8.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// Over `size` elements that `At` gives, from the front or from the back.
class IndexIterator : public Iterator {
 public:
  IndexIterator(size_t size, bool backwards) : size_(size), backwards_(backwards) {}

  bool Next(Runtime& rt, Value* out) override {
    if (next_ >= size_ || !rt.Charge(1)) return false;
    *out = At(rt, backwards_ ? size_ - 1 - next_ : next_);
    ++next_;
    return !rt.failed();
  }

 protected:
  virtual Value At(Runtime& rt, size_t i) = 0;
  void Finish() { next_ = size_; }

 private:
  const size_t size_;
  const bool backwards_;
  size_t next_ = 0;
};

class ItemsIterator : public IndexIterator {
 public:
  ItemsIterator(const Value& sequence, bool backwards)
      : IndexIterator(sequence.items().size(), backwards), sequence_(sequence) {}
  const char* type_name() const override { return "list_iterator"; }
  void Clear() override {
    Finish();
    sequence_ = Value();
  }

 protected:
  Value At(Runtime& rt, size_t i) override {
    (void)rt;
    return sequence_.items()[i];
  }

 private:
  Value sequence_;
};

class OwnedIterator : public IndexIterator {
 public:
  explicit OwnedIterator(std::vector<Value> items)
      : IndexIterator(items.size(), false), items_(std::move(items)) {}
  void Clear() override {
    Finish();
    items_.clear();
  }

 protected:
  Value At(Runtime& rt, size_t i) override {
    (void)rt;
    return items_[i];
  }

 private:
  std::vector<Value> items_;
};

class DictIterator : public IndexIterator {
 public:
  DictIterator(const Value& dict, DictPart part, bool backwards)
      : IndexIterator(dict.entries().size(), backwards), dict_(dict), part_(part) {}
  const char* type_name() const override { return "dict_iterator"; }
  void Clear() override {
    Finish();
    dict_ = Value();
  }

 protected:
  Value At(Runtime& rt, size_t i) override {
    const auto& [key, value] = dict_.entries().entries()[i];
    switch (part_) {
      case DictPart::kKeys:
        return key;
      case DictPart::kValues:
        return value;
      case DictPart::kItems:
        return rt.Tuple({key, value});
    }
    return {};
  }

 private:
  Value dict_;
  const DictPart part_;
};

class RangeIterator : public IndexIterator {
 public:
  RangeIterator(const Range& range, bool backwards)
      : IndexIterator(static_cast<size_t>(range.length()), backwards),
        start_(range.start()),
        step_(range.step()) {}
  const char* type_name() const override { return "range_iterator"; }

 protected:
  Value At(Runtime& rt, size_t i) override {
    (void)rt;
    return Value::Int(start_ + static_cast<int64_t>(i) * step_);
  }

 private:
  const int64_t start_;
  const int64_t step_;
};

class TextIterator : public Iterator {
 public:
  explicit TextIterator(const Value& text) : text_(text) {}
  const char* type_name() const override { return "str_iterator"; }

  bool Next(Runtime& rt, Value* out) override {
    const std::string& text = text_.text();
    if (offset_ >= text.size() || !rt.Charge(1)) return false;
    const size_t bytes = CharBytes(text, offset_);
    *out = rt.Str(text.substr(offset_, bytes));
    offset_ += bytes;
    return !rt.failed();
  }

 private:
  const Value text_;
  size_t offset_ = 0;
};

class NothingIterator : public Iterator {
 public:
  bool Next(Runtime& rt, Value* out) override {
    (void)rt;
    (void)out;
    return false;
  }
};

}  // namespace

std::shared_ptr<Iterator> IterateItems(const Value& sequence, bool backwards) {
  return std::make_shared<ItemsIterator>(sequence, backwards);
}

std::shared_ptr<Iterator> IterateDict(const Value& dict, DictPart part, bool backwards) {
  return std::make_shared<DictIterator>(dict, part, backwards);
}

std::shared_ptr<Iterator> IterateRange(const Value& range, bool backwards) {
  return std::make_shared<RangeIterator>(*range.As<Range>(), backwards);
}

std::shared_ptr<Iterator> IterateText(const Value& text) {
  return std::make_shared<TextIterator>(text);
}

std::shared_ptr<Iterator> IterateNothing() { return std::make_shared<NothingIterator>(); }

std::shared_ptr<Iterator> IterateOwned(std::vector<Value> items) {
  return std::make_shared<OwnedIterator>(std::move(items));
}

std::shared_ptr<Iterator> Iterate(Runtime& rt, const Value& value) {
  std::shared_ptr<Iterator> iterator;
  if (value.undefined()) return IterateNothing();
  if (value.string()) return IterateText(value);
  if (value.sequence()) return IterateItems(value, false);
  if (value.dict()) return IterateDict(value, DictPart::kKeys, false);
  if (value.is(Kind::kObject)) iterator = value.object()->OpenIterator(rt, value);
  if (iterator == nullptr) rt.Fail(fmt::format("'{}' object is not iterable", TypeName(value)));
  return iterator;
}

bool Iterable(const Value& value) {
  if (value.undefined() || value.string() || value.sequence() || value.dict()) return true;
  return value.As<Iterator>() != nullptr || value.As<Range>() != nullptr ||
         value.As<DictView>() != nullptr || value.As<Loop>() != nullptr;
}

bool Length(Runtime& rt, const Value& value, int64_t* length) {
  switch (value.kind()) {
    case Kind::kUndefined:
      *length = 0;
      return true;
    case Kind::kString:
      rt.Charge(static_cast<int64_t>(value.text().size()) / kCopyBytesPerStep);
      *length = CountChars(value.text());
      return true;
    case Kind::kList:
    case Kind::kTuple:
      *length = static_cast<int64_t>(value.items().size());
      return true;
    case Kind::kDict:
      *length = static_cast<int64_t>(value.entries().size());
      return true;
    case Kind::kObject:
      return value.object()->GetLength(rt, length);
    case Kind::kMissing:
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return false;
  }
  return false;
}

std::vector<Value> Drain(Runtime& rt, const Value& value) {
  std::vector<Value> items;
  const std::shared_ptr<Iterator> iterator = Iterate(rt, value);
  if (iterator == nullptr) return items;
  Value item;
  while (iterator->Next(rt, &item)) items.push_back(item);
  return items;
}

}  // namespace headway::jinja
