#include "text/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/json/json.h"

namespace headway::tok {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxMerges = size_t{1} << 28;

// Receives the parser's events (nlohmann's SAX interface): builds a small document, and takes
// vocabulary and merges aside. A vocabulary of 128,000 tokens as a document would take a hundred
// times the memory and most of the time.
class Receiver {
 public:
  Receiver(std::string_view text, TokenizerJson* result) : text_(text), result_(result) {}

  const std::string& error() const { return error_; }

  bool null() { return Value(Json(nullptr)); }
  bool boolean(bool value) { return Value(Json(value)); }
  bool number_integer(Json::number_integer_t value) {
    if (InVocabulary()) return Token(value);
    return Value(Json(value));
  }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (InVocabulary()) {
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      return Token(static_cast<int64_t>(std::min<uint64_t>(value, kMax)));
    }
    return Value(Json(value));
  }
  bool number_float(Json::number_float_t value, const std::string&) { return Value(Json(value)); }
  bool string(std::string& value) {
    if (InMerges()) return MergeText(value);
    return Value(Json(std::move(value)));
  }
  bool binary(Json::binary_t&) { return Fail("binary values are not JSON"); }

  bool start_object(size_t) {
    if (InMerges()) return Fail("model.merges: a merge is no pair");
    const bool vocabulary = AtModelMember("vocab");
    if (vocabulary && std::exchange(result_->has_vocabulary, true)) return Fail("vocab is twice");
    if (!Open(Json::object())) return false;
    if (vocabulary) aside_ = Aside::kVocabulary;
    return true;
  }
  bool key(std::string& name) {
    key_ = std::move(name);
    return true;
  }
  bool end_object() { return Close(); }

  bool start_array(size_t) {
    if (InMerges()) {
      if (stack_.size() != kMergesDepth) return Fail("model.merges: a merge is no pair");
      pair_texts_ = 0;
      result_->merges.push_back({.left = {}, .right = {}, .pair = true});
      return Open(Json::array());
    }
    const bool merges = AtModelMember("merges");
    if (merges && std::exchange(result_->has_merges, true)) return Fail("merges is twice");
    if (!Open(Json::array())) return false;
    if (merges) aside_ = Aside::kMerges;
    return true;
  }
  bool end_array() {
    if (InMerges() && stack_.size() > kMergesDepth && pair_texts_ != 2) {
      return Fail("model.merges: a merge is no pair");
    }
    return Close();
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(DescribeJsonError(text_, position));
  }

 private:
  enum class Aside { kNothing, kVocabulary, kMerges };
  struct Level {
    Json* value;
    std::string key;  // under which it lies in an object
  };
  // The depth of the stack inside model.vocab or model.merges.
  static constexpr size_t kMergesDepth = 3;

  bool Fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }

  bool InVocabulary() const { return aside_ == Aside::kVocabulary; }
  bool InMerges() const { return aside_ == Aside::kMerges; }
  bool AtModelMember(std::string_view name) const {
    return aside_ == Aside::kNothing && stack_.size() == 2 && stack_[1].key == "model" &&
           stack_[0].value->is_object() && stack_[1].value->is_object() && key_ == name;
  }

  bool Token(int64_t id) {
    result_->vocabulary.Add(key_, id);
    return true;
  }

  bool MergeText(std::string& text) {
    if (result_->merges.size() >= kMaxMerges) return Fail("model.merges: too many");
    if (stack_.size() == kMergesDepth) {
      result_->merges.push_back({.left = std::move(text), .right = {}, .pair = false});
      return true;
    }
    TokenizerJson::Merge& merge = result_->merges.back();
    if (pair_texts_ == 2) return Fail("model.merges: a merge is no pair");
    (pair_texts_ == 0 ? merge.left : merge.right) = std::move(text);
    ++pair_texts_;
    return true;
  }

  // Puts a value where it belongs and returns its place.
  Json* Place(Json value) {
    if (stack_.empty()) {
      result_->parts = std::move(value);
      return &result_->parts;
    }
    Json& parent = *stack_.back().value;
    if (parent.is_object()) {
      Json& place = parent[key_];
      place = std::move(value);
      return &place;
    }
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool Value(Json value) {
    if (InVocabulary()) return Fail("model.vocab: an id is no integer");
    if (InMerges()) return Fail("model.merges: a merge is no text");
    Place(std::move(value));
    return true;
  }

  bool Open(Json value) {
    if (InVocabulary()) return Fail("model.vocab: an id is no integer");
    if (stack_.size() >= kMaxDepth) return Fail("nested deeper than 64");
    std::string key = key_;
    // A pair of merges needs no place of its own: it only has to be closed.
    Json* place = InMerges() ? stack_.back().value : Place(std::move(value));
    stack_.push_back({.value = place, .key = std::move(key)});
    return true;
  }

  bool Close() {
    if (aside_ != Aside::kNothing && stack_.size() == kMergesDepth) aside_ = Aside::kNothing;
    stack_.pop_back();
    return true;
  }

  std::string_view text_;
  TokenizerJson* result_;
  std::vector<Level> stack_;
  std::string key_;  // the last one
  Aside aside_ = Aside::kNothing;
  int pair_texts_ = 0;
  std::string error_;
};

}  // namespace

Result<TokenizerJson> ParseTokenizerJson(std::string_view text) {
  TokenizerJson result;
  Receiver receiver(text, &result);
  if (!Json::sax_parse(text, &receiver)) {
    return Status(StatusCode::kCorrupt, receiver.error());
  }
  if (!result.parts.is_object()) return Status(StatusCode::kCorrupt, "not a JSON object");
  return result;
}

}  // namespace headway::tok
