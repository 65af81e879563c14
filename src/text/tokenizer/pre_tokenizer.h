// The pre-tokenizer of tokenizer.json: what cuts a text into the words that the model encodes.
#ifndef HEADWAY_TEXT_TOKENIZER_PRE_TOKENIZER_H_
#define HEADWAY_TEXT_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "headway/status.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/piece.h"

namespace headway::tok {

class PieceStep;

class PreTokenizer {
 public:
  // A null node is the pre-tokenizer that cuts nothing.
  static Result<PreTokenizer> FromJson(const JsonNode& node);

  // Replaces `*pieces` by their words; added tokens stay, empty pieces vanish.
  Status Apply(PieceWork* work, std::vector<Piece>* pieces) const;

  // What the words are: a ByteLevel step at the end leaves its bytes to the model, which is faster
  // than spelling them out.
  WordText word_text() const { return word_text_; }

 private:
  std::vector<std::shared_ptr<const PieceStep>> steps_;  // Sequences are laid flat
  WordText word_text_ = WordText::kCharacters;
};

// Reads "prepend_scheme" and the older "add_prefix_space" of a Metaspace, as pre-tokenizer or as
// decoder; "first", "never" or "always".
Result<std::string> MetaspaceScheme(const JsonNode& node);
// Reads its "replacement", one character.
Result<std::string> MetaspaceReplacement(const JsonNode& node);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_PRE_TOKENIZER_H_
