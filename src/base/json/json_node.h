// A part of a JSON document that knows its path in the document, so that messages name the key.
#ifndef HEADWAY_BASE_JSON_JSON_NODE_H_
#define HEADWAY_BASE_JSON_JSON_NODE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "headway/status.h"

namespace headway {

// A value with its path ("pre_tokenizer.pretokenizers[0]"). The value must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }
  bool IsNull() const;

  // "PATH: WHAT", kCorrupt.
  Status Corrupt(std::string_view what) const;

  // The member, or null when it is absent (as it is when this is no object).
  JsonNode Member(const std::string& key) const;
  JsonNode Element(size_t index) const;  // requires index < Size()
  Result<size_t> Size() const;           // of an array; kCorrupt for anything else

  Result<std::string> String(const std::string& key) const;
  Result<bool> Bool(const std::string& key, bool if_absent) const;
  Result<int64_t> Integer(const std::string& key) const;  // 0 to 2^31 - 1
  // The member "type".
  Result<std::string> Type() const { return String("type"); }

 private:
  const nlohmann::json* value_;
  std::string path_;
};

// Puts `path` before the message of a failed status.
Status AtPath(const std::string& path, const Status& status);

}  // namespace headway

#endif  // HEADWAY_BASE_JSON_JSON_NODE_H_
