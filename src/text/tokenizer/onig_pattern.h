// Patterns of tokenizer.json are written for Oniguruma (Ruby's syntax); Headway matches with PCRE2.
#ifndef HEADWAY_TEXT_TOKENIZER_ONIG_PATTERN_H_
#define HEADWAY_TEXT_TOKENIZER_ONIG_PATTERN_H_

#include <string>
#include <string_view>

#include "headway/status.h"

namespace headway::tok {

// A PCRE2 pattern with callouts for counting steps, for the options UTF and MULTILINE with "\n" as
// the newline, that matches what `pattern` matches in Oniguruma. What the two would treat
// differently is written out: \s, \w, \d and \h, properties (in the Unicode version that Hugging
// Face's tokenizers has), nested classes and intersections [a&&b], "(?m:", intervals. kUnsupported,
// naming the construct and the pattern, for what is not translated: back references, \K, \R, \X,
// options inside a pattern, and others that no published tokenizer is known to use.
Result<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_ONIG_PATTERN_H_
