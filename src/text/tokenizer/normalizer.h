// The normalizer of tokenizer.json: what changes a text before it is split.
#ifndef HEADWAY_TEXT_TOKENIZER_NORMALIZER_H_
#define HEADWAY_TEXT_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <vector>

#include "headway/status.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/piece.h"

namespace headway::tok {

class NormalizerStep;

class Normalizer {
 public:
  // A null node is the normalizer that changes nothing.
  static Result<Normalizer> FromJson(const JsonNode& node);

  Status Apply(Piece* piece, PieceWork* work) const;

 private:
  std::vector<std::shared_ptr<const NormalizerStep>> steps_;  // Sequences are laid flat
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_NORMALIZER_H_
