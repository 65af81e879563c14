#include "text/tokenizer/json_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "text/tokenizer/text.h"

namespace headway::tok {

Status UnsupportedType(const JsonNode& node, std::string_view type) {
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: the type {} is not supported", node.path(), Quoted(type)));
}

Result<Regex> ReadPattern(const JsonNode& node, const std::string& key) {
  const JsonNode member = node.Member(key);
  const JsonNode literal = member.Member("String");
  const JsonNode regex = member.Member("Regex");
  if (!literal.value().is_string() && !regex.value().is_string()) {
    return member.Corrupt("is neither {\"String\": ...} nor {\"Regex\": ...}");
  }
  Result<Regex> result = regex.value().is_string()
                             ? Regex::FromOniguruma(regex.value().get_ref<const std::string&>())
                             : Regex::FromLiteral(literal.value().get_ref<const std::string&>());
  if (!result.ok()) return AtPath(member.path(), result.status());
  return result;
}

}  // namespace headway::tok
