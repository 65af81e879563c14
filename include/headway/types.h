// Types that the public API and every room share.
#ifndef HEADWAY_TYPES_H_
#define HEADWAY_TYPES_H_

#include <cstdint>

#include "headway/status.h"

namespace headway {

// A token id, as in tokenizer.json.
using TokenId = int32_t;

// The most tokens of a sequence, of a chunk or of a segment: kernels count positions in 32 bits.
inline constexpr int64_t kMaxLength = int64_t{1} << 30;

struct EncodeOptions {
  // What the post-processor adds around a text: most often a token for its beginning.
  bool add_special_tokens = true;
  // Special tokens written out in the text become these tokens. Off, they are ordinary text: right
  // for what a user wrote, wrong for what a chat template made.
  bool parse_special = false;
};

// What decoding makes of special tokens, such as those that begin and end a text.
enum class SpecialTokens { kKeep, kSkip };

// How the next token is chosen; kernels/sampler.h has the steps and their order.
struct SamplingOptions {
  float temperature = 0.0f;         // >= 0; 0: greedy
  int top_k = 0;                    // >= 0; 0: off
  float top_p = 1.0f;               // (0, 1]; 1: off
  float min_p = 0.0f;               // [0, 1]; 0: off
  float repetition_penalty = 1.0f;  // > 0; 1: off
  float presence_penalty = 0.0f;    // [-2, 2]; 0: off
  float frequency_penalty = 0.0f;   // [-2, 2]; 0: off
  uint64_t seed = 0;

  // kInvalidArgument names the first option out of its bounds.
  Status Validate() const;
};

}  // namespace headway

#endif  // HEADWAY_TYPES_H_
