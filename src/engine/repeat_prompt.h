// What a model is told so that it repeats a prompt behind which it is told that (KVzip).
#ifndef HEADWAY_ENGINE_REPEAT_PROMPT_H_
#define HEADWAY_ENGINE_REPEAT_PROMPT_H_

#include <string>
#include <vector>

#include "headway/types.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {

struct RepeatPrompt {
  // Begins a turn: the whole prompt is wanted, or its part that goes on behind tokens which follow.
  std::vector<TokenId> first, next;
  std::vector<TokenId> behind;  // ends the turn; then the model repeats
};

// As a turn of the template, where that can be had, else as plain text; no words at all without a
// tokenizer, or where they take more tokens than there is room for. Both may be null.
RepeatPrompt RepeatPromptOf(const Tokenizer* tokenizer, const ChatTemplate* chat);

}  // namespace headway

#endif  // HEADWAY_ENGINE_REPEAT_PROMPT_H_
