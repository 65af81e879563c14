#include "text/template/runtime.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace headway::jinja {

Status TemplateError(StatusCode code, std::string_view name, int line, std::string_view message) {
  constexpr size_t kMaxBytes = 400;
  std::string shown(message.substr(0, kMaxBytes));
  shown.resize(shown.size() - IncompleteUtf8Suffix(shown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  if (message.size() > kMaxBytes) shown += "...";
  return Status(code, fmt::format("chat template {}, line {}: {}", name, line, shown));
}

Runtime::~Runtime() {
  for (const auto& object : tracked_) object->Clear();
}

Failure Runtime::Keep(StatusCode code, std::string_view message) {
  if (status_.ok()) status_ = TemplateError(code, name_, line_, message);
  return {};
}

Failure Runtime::Raise(std::string message) {
  if (status_.ok()) status_ = Status(StatusCode::kInvalidArgument, std::move(message));
  return {};
}

void Runtime::Extend(size_t bytes) {
  constexpr int64_t kStepsPerByte = 8;
  constexpr int64_t kOutputPerByte = 4;
  limits_.steps += kStepsPerByte * static_cast<int64_t>(bytes);
  limits_.output += kOutputPerByte * static_cast<int64_t>(bytes);
}

bool Runtime::Charge(size_t steps) {
  limits_.steps -= static_cast<int64_t>(steps);
  if (limits_.steps < 0) {
    limits_.steps = 0;
    Fail("takes too many steps; a template that ends is needed");
  }
  return !failed();
}

bool Runtime::CheckSize(size_t bytes) {
  if (static_cast<int64_t>(bytes) > limits_.output) {
    Fail("makes a text of more than {} bytes", limits_.output);
  }
  return !failed();
}

Value Runtime::Str(std::string text, bool markup) {
  if (!CheckSize(text.size()) || !Charge(1 + text.size() / kCopyBytesPerStep)) return {};
  return Value(Kind::kString, std::make_shared<Text>(std::move(text), markup));
}

bool Runtime::CheckDepth(int depth) {
  if (depth <= kMaxDataDepth) return true;
  return Fail("nests lists and dicts more than {} deep", kMaxDataDepth);
}

Value Runtime::MakeSequence(Kind kind, std::vector<Value> items) {
  if (!Charge(1 + items.size())) return {};
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, item.depth() + 1);
  if (!CheckDepth(sequence->depth)) return {};
  sequence->items = std::move(items);
  return Value(kind, std::move(sequence));
}

Value Runtime::MakeDict(std::shared_ptr<Dict> dict) {
  if (!Charge(1 + 2 * dict->size())) return {};
  for (const auto& [key, value] : dict->entries()) {
    dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
  }
  if (!CheckDepth(dict->depth)) return {};
  return Value(Kind::kDict, std::move(dict));
}

Value Runtime::Made(std::shared_ptr<Object> object) {
  return CheckDepth(object->depth) ? Value::Of(std::move(object)) : Value();
}

void Runtime::Untrack(const std::shared_ptr<Object>& object) {
  if (!tracked_.empty() && tracked_.back() == object && object.use_count() == 2) {
    tracked_.pop_back();
    object->Clear();
  }
}

}  // namespace headway::jinja
