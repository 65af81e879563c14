#include "model/tokenizer/json_fields.h"

#include <fmt/format.h>

#include <limits>

#include "model/tokenizer/text.h"

namespace headway::tok {
namespace {

const nlohmann::json& NullJson() {
  static const nlohmann::json null;
  return null;
}

}  // namespace

Status At(const std::string& path, const Status& status) {
  return Status(status.code(), path + ": " + status.message());
}

Status Node::Corrupt(std::string_view what) const {
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", path_, what));
}

Status Node::UnsupportedType(std::string_view type) const {
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: the type {} is not supported", path_, Quoted(type)));
}

Node Node::Member(const std::string& key) const {
  std::string path = path_.empty() ? key : path_ + "." + key;
  if (value_->is_object()) {
    if (const auto it = value_->find(key); it != value_->end()) return Node(*it, std::move(path));
  }
  return Node(NullJson(), std::move(path));
}

Node Node::Element(size_t index) const {
  return Node((*value_)[index], fmt::format("{}[{}]", path_, index));
}

Result<size_t> Node::Size() const {
  if (!value_->is_array()) return Corrupt("is not a list");
  return value_->size();
}

Result<std::string> Node::String(const std::string& key) const {
  const Node member = Member(key);
  if (!member.value().is_string()) return member.Corrupt("is not a string");
  return member.value().get<std::string>();
}

Result<bool> Node::Bool(const std::string& key, bool if_absent) const {
  const Node member = Member(key);
  if (member.IsNull()) return if_absent;
  if (!member.value().is_boolean()) return member.Corrupt("is neither true nor false");
  return member.value().get<bool>();
}

Result<int64_t> Node::Integer(const std::string& key) const {
  const Node member = Member(key);
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max();
  if (!member.value().is_number_unsigned() || member.value().get<uint64_t>() > kMax) {
    return member.Corrupt("is not an integer from 0 to 2^31 - 1");
  }
  return member.value().get<int64_t>();
}

Result<Regex> Node::Pattern(const std::string& key) const {
  const Node member = Member(key);
  const Node literal = member.Member("String");
  const Node regex = member.Member("Regex");
  if (!literal.value().is_string() && !regex.value().is_string()) {
    return member.Corrupt("is neither {\"String\": ...} nor {\"Regex\": ...}");
  }
  Result<Regex> result = regex.value().is_string()
                             ? Regex::FromOniguruma(regex.value().get_ref<const std::string&>())
                             : Regex::FromLiteral(literal.value().get_ref<const std::string&>());
  if (!result.ok()) return At(member.path(), result.status());
  return result;
}

}  // namespace headway::tok
