// tokenizer.json, parsed.
#ifndef HEADWAY_TEXT_TOKENIZER_TOKENIZER_JSON_H_
#define HEADWAY_TEXT_TOKENIZER_TOKENIZER_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "text/tokenizer/vocabulary.h"

namespace headway::tok {

struct TokenizerJson {
  // Everything but model.vocab and model.merges, which are most of the file.
  nlohmann::json parts;

  Vocabulary vocabulary;  // not finished
  bool has_vocabulary = false;

  // Each merge is two texts (a pair), or one with the two between a space.
  struct Merge {
    std::string left;
    std::string right;
    bool pair = false;
  };
  std::vector<Merge> merges;
  bool has_merges = false;
};

// kCorrupt when `text` is not JSON, has no object at the top, nests deeper than 64, or has a
// vocabulary or merges of a wrong form.
Result<TokenizerJson> ParseTokenizerJson(std::string_view text);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_TOKENIZER_JSON_H_
