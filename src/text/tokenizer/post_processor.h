// The post-processor of tokenizer.json: the special tokens around a text.
#ifndef HEADWAY_TEXT_TOKENIZER_POST_PROCESSOR_H_
#define HEADWAY_TEXT_TOKENIZER_POST_PROCESSOR_H_

#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "headway/types.h"
#include "text/tokenizer/json_fields.h"

namespace headway::tok {

class PostProcessor {
 public:
  // A null node adds nothing. Ids must lie below `id_limit`.
  static Result<PostProcessor> FromJson(const JsonNode& node, TokenId id_limit);

  // The text's tokens with what goes around them, if the options want that.
  std::vector<TokenId> Apply(std::vector<TokenId> tokens, const EncodeOptions& options) const;

 private:
  // The text, or special tokens.
  struct Part {
    bool text = false;
    std::vector<TokenId> ids;
  };

  static Status Read(const JsonNode& node, int depth, TokenId id_limit, PostProcessor* result);
  static Status ReadTemplate(const JsonNode& node, TokenId id_limit, PostProcessor* result);
  // RobertaProcessing and BertProcessing: `cls`, the text, `sep`.
  static Status ReadClsAndSep(const JsonNode& node, TokenId id_limit, PostProcessor* result);
  // Fails for the second part of a Sequence that adds tokens.
  Status BeginTemplate(const JsonNode& node);

  std::vector<Part> parts_;
  bool has_template_ = false;
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_POST_PROCESSOR_H_
