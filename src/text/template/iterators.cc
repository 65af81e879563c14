// Iterators over the built-in types.
#include <fmt/format.h>

#include "base/utf8.h"
#include "text/template/objects.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

class IndexIterator : public Iterator {
 public:
  IndexIterator(Value source, int64_t length, ElementAt at)
      : source_(std::move(source)), length_(length), at_(at) {}

  bool Next(Runtime& rt, Value* out) override {
    if (next_ >= length_ || !rt.Charge(1)) return false;
    *out = at_(rt, source_, next_++);
    return !rt.failed();
  }
  void Clear() override {
    next_ = length_;
    source_ = Value();
  }

 private:
  Value source_;
  const int64_t length_;
  const ElementAt at_;
  int64_t next_ = 0;
};

class OwnedIterator : public Iterator {
 public:
  explicit OwnedIterator(std::vector<Value> items) : items_(std::move(items)) {}

  bool Next(Runtime& rt, Value* out) override {
    if (next_ >= items_.size() || !rt.Charge(1)) return false;
    *out = items_[next_++];
    return true;
  }
  void Clear() override { items_.clear(); }

 private:
  std::vector<Value> items_;
  size_t next_ = 0;
};

class TextIterator : public Iterator {
 public:
  explicit TextIterator(const Value& text) : text_(text) {}

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

}  // namespace

std::shared_ptr<Iterator> IterateIndices(const Value& source, int64_t length, ElementAt at) {
  return std::make_shared<IndexIterator>(source, length, at);
}

std::shared_ptr<Iterator> IterateDict(const Value& dict, DictPart part) {
  static constexpr auto kEntry = [](const Value& source, int64_t i) -> const auto& {
    return source.entries().entries()[static_cast<size_t>(i)];
  };
  const auto length = static_cast<int64_t>(dict.entries().size());
  switch (part) {
    case DictPart::kKeys:
      return IterateIndices(dict, length,
                            [](Runtime&, const Value& d, int64_t i) { return kEntry(d, i).first; });
    case DictPart::kValues:
      return IterateIndices(
          dict, length, [](Runtime&, const Value& d, int64_t i) { return kEntry(d, i).second; });
    case DictPart::kItems:
      return IterateIndices(dict, length, [](Runtime& rt, const Value& d, int64_t i) {
        return rt.Tuple({kEntry(d, i).first, kEntry(d, i).second});
      });
  }
  return nullptr;
}

std::shared_ptr<Iterator> IterateNothing() { return IterateOwned({}); }

std::shared_ptr<Iterator> IterateOwned(std::vector<Value> items) {
  return std::make_shared<OwnedIterator>(std::move(items));
}

std::shared_ptr<Iterator> Iterate(Runtime& rt, const Value& value) {
  std::shared_ptr<Iterator> iterator;
  if (value.undefined()) return IterateNothing();
  if (value.string()) return std::make_shared<TextIterator>(value);
  if (value.sequence()) {
    const auto length = static_cast<int64_t>(value.items().size());
    return IterateIndices(value, length, [](Runtime&, const Value& source, int64_t i) {
      return source.items()[static_cast<size_t>(i)];
    });
  }
  if (value.dict()) return IterateDict(value, DictPart::kKeys);
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
