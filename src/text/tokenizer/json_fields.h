// Fields that several parts of tokenizer.json have.
#ifndef HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_
#define HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_node.h"
#include "headway/status.h"
#include "text/tokenizer/regex.h"

namespace headway::tok {

// How deep Sequences may nest.
inline constexpr int kMaxSequenceDepth = 8;
// Steps that a part may have in all; published ones have at most nine.
inline constexpr size_t kMaxSteps = 64;

// "pre_tokenizer: the type "X" is not supported".
Status UnsupportedType(const JsonNode& node, std::string_view type);

// Adds the steps of a part of tokenizer.json, in their order: `add` adds those of a node of any
// other type than Sequence, whose parts, in the member `list`, may be Sequences again.
template <typename Step>
Status AddSteps(const JsonNode& node, const char* list,
                Status (*add)(const JsonNode& node, const std::string& type,
                              std::vector<Step>* steps),
                std::vector<Step>* steps, int depth = 0) {
  if (depth > kMaxSequenceDepth || steps->size() >= kMaxSteps) {
    return node.Corrupt("the Sequence is too long or nested too deep");
  }
  const Result<std::string> type = node.Type();
  if (!type.ok()) return type.status();
  if (*type != "Sequence") return add(node, *type, steps);
  const JsonNode parts = node.Member(list);
  const Result<size_t> size = parts.Size();
  if (!size.ok()) return size.status();
  for (size_t i = 0; i < *size; ++i) {
    Status status = AddSteps(parts.Element(i), list, add, steps, depth + 1);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

// A member {"String": text} or {"Regex": pattern}.
Result<Regex> ReadPattern(const JsonNode& node, const std::string& key);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_
