#include "base/json/json_node.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace headway {
namespace {

const nlohmann::json& NullJson() {
  static const nlohmann::json null;
  return null;
}

}  // namespace

Status AtPath(const std::string& path, const Status& status) {
  return Status(status.code(), path + ": " + status.message());
}

bool JsonNode::IsNull() const { return value_->is_null(); }

Status JsonNode::Corrupt(std::string_view what) const {
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", path_, what));
}

JsonNode JsonNode::Member(const std::string& key) const {
  std::string path = path_.empty() ? key : path_ + "." + key;
  if (value_->is_object()) {
    if (const auto it = value_->find(key); it != value_->end()) {
      return JsonNode(*it, std::move(path));
    }
  }
  return JsonNode(NullJson(), std::move(path));
}

JsonNode JsonNode::Element(size_t index) const {
  return JsonNode((*value_)[index], fmt::format("{}[{}]", path_, index));
}

Result<size_t> JsonNode::Size() const {
  if (!value_->is_array()) return Corrupt("is not a list");
  return value_->size();
}

Result<std::string> JsonNode::String(const std::string& key) const {
  const JsonNode member = Member(key);
  if (!member.value().is_string()) return member.Corrupt("is not a string");
  return member.value().get<std::string>();
}

Result<bool> JsonNode::Bool(const std::string& key, bool if_absent) const {
  const JsonNode member = Member(key);
  if (member.IsNull()) return if_absent;
  if (!member.value().is_boolean()) return member.Corrupt("is neither true nor false");
  return member.value().get<bool>();
}

Result<int64_t> JsonNode::Integer(const std::string& key) const {
  const JsonNode member = Member(key);
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max();
  if (!member.value().is_number_unsigned() || member.value().get<uint64_t>() > kMax) {
    return member.Corrupt("is not an integer from 0 to 2^31 - 1");
  }
  return member.value().get<int64_t>();
}

}  // namespace headway
