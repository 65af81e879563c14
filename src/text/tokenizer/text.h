// Helpers for the messages of the tokenizer.
#ifndef HEADWAY_TEXT_TOKENIZER_TEXT_H_
#define HEADWAY_TEXT_TOKENIZER_TEXT_H_

#include <string>
#include <string_view>

namespace headway::tok {

// `text` between quotation marks, fit for a line of a message: cut after about 100 bytes, control
// characters and invalid bytes replaced.
std::string Quoted(std::string_view text);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_TEXT_H_
