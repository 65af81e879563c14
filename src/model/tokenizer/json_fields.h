// Reading the fields of tokenizer.json, with messages that name the key.
#ifndef HEADWAY_MODEL_TOKENIZER_JSON_FIELDS_H_
#define HEADWAY_MODEL_TOKENIZER_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "headway/status.h"
#include "model/tokenizer/regex.h"

namespace headway::tok {

// A part of the file with its path ("pre_tokenizer.pretokenizers[0]"). The value must outlive it.
class Node {
 public:
  Node(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }
  bool IsNull() const { return value_->is_null(); }

  Status Corrupt(std::string_view what) const;
  // "pre_tokenizer: the type "X" is not supported".
  Status UnsupportedType(std::string_view type) const;

  // The member, or null when it is absent (as it is when this is no object).
  Node Member(const std::string& key) const;
  Node Element(size_t index) const;  // requires index < Size()
  Result<size_t> Size() const;       // of an array; kCorrupt for anything else

  Result<std::string> String(const std::string& key) const;
  Result<bool> Bool(const std::string& key, bool if_absent) const;
  Result<int64_t> Integer(const std::string& key) const;  // 0 to 2^31 - 1
  // The member "type".
  Result<std::string> Type() const { return String("type"); }
  // {"String": text} or {"Regex": pattern}.
  Result<Regex> Pattern(const std::string& key) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

// How deep Sequences may nest.
inline constexpr int kMaxSequenceDepth = 8;

// Puts `path` before the message of a failed status.
Status At(const std::string& path, const Status& status);

}  // namespace headway::tok

#endif  // HEADWAY_MODEL_TOKENIZER_JSON_FIELDS_H_
