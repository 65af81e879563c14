// Regular expressions of tokenizer.json over UTF-8 text, in bounded time and memory.
#ifndef HEADWAY_TEXT_TOKENIZER_REGEX_H_
#define HEADWAY_TEXT_TOKENIZER_REGEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace headway::tok {

// A stretch of a text: a match, or what lies between two.
struct Stretch {
  size_t begin = 0;
  size_t end = 0;
  bool match = false;
};

// What matching needs besides the pattern; one for each encoding or decoding, used by one thread.
// It holds the limits too: all matching with one scratch may look at 64 times `text_bytes` and a
// million characters, going back and forth included. Published patterns look at each less than ten
// times; the limit is for those that take quadratic or exponential time.
class RegexScratch {
 public:
  explicit RegexScratch(size_t text_bytes);
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  // Begins anew with the limit for `text_bytes`.
  void Reset(size_t text_bytes);

 private:
  friend class Regex;

  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
  size_t steps_left_ = 0;
  size_t position_ = 0;  // of the last step
};

// A compiled pattern; const methods may be called by several threads, each with its own scratch.
class Regex {
 public:
  // A pattern in Oniguruma's dialect, as tokenizer.json has them. kUnsupported, naming the pattern,
  // for constructs that are not translated; kCorrupt when it is no pattern.
  static Result<Regex> FromOniguruma(std::string_view pattern);
  // Matches the text itself.
  static Result<Regex> FromLiteral(std::string_view literal);

  // Replaces `*stretches` by all matches in `text` (valid UTF-8) and what lies between them, in
  // order and without gaps; for an empty text by one empty stretch that is no match. Matches may be
  // empty. kInvalidArgument when the limits are passed.
  Status Split(std::string_view text, RegexScratch* scratch, std::vector<Stretch>* stretches) const;

 private:
  struct Code;
  Regex(std::shared_ptr<const Code> code, std::string pattern)
      : code_(std::move(code)), pattern_(std::move(pattern)) {}
  static Result<Regex> Compile(std::string_view translated, std::string_view pattern,
                               uint32_t options);
  // The first match at or after `from`; `*found` is false when there is none.
  Status FindFrom(std::string_view text, size_t from, RegexScratch* scratch, Stretch* match,
                  bool* found) const;
  Status LimitError(const char* what) const;

  std::shared_ptr<const Code> code_;
  std::string pattern_;  // for messages
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_REGEX_H_
