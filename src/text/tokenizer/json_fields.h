// Fields that several parts of tokenizer.json have.
#ifndef HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_
#define HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_

#include <string>
#include <string_view>

#include "base/json/json_node.h"
#include "headway/status.h"
#include "text/tokenizer/regex.h"

namespace headway::tok {

// How deep Sequences may nest.
inline constexpr int kMaxSequenceDepth = 8;

// "pre_tokenizer: the type "X" is not supported".
Status UnsupportedType(const JsonNode& node, std::string_view type);

// A member {"String": text} or {"Regex": pattern}.
Result<Regex> ReadPattern(const JsonNode& node, const std::string& key);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_JSON_FIELDS_H_
