// Reads the parts of an Oniguruma pattern that stand for characters: escapes and classes.
#ifndef HEADWAY_TEXT_TOKENIZER_ONIG_READER_H_
#define HEADWAY_TEXT_TOKENIZER_ONIG_READER_H_

#include <cstddef>
#include <string_view>

#include "headway/status.h"
#include "text/tokenizer/onig_class.h"

namespace headway::tok {

inline bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }
inline char32_t AsciiLower(char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

// The base of a translator, which shares its place in the pattern.
class OnigReader {
 public:
  // `pattern` is valid UTF-8 and outlives the reader.
  explicit OnigReader(std::string_view pattern) : pattern_(pattern) {}

 protected:
  Status Corrupt(std::string_view what) const;
  Status Unsupported(std::string_view what) const;

  bool Ahead(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Ahead(text)) return false;
    at_ += text.size();
    return true;
  }

  // \x{H..}, \xHH, \uHHHH, after the letter.
  Status HexEscape(char letter, char32_t* c);
  // \p{name} or \P{name}, after the letter.
  Result<CharacterSet> Property(char letter);
  // After the '[', to behind the ']'.
  Result<CharacterSet> Class() { return ClassAt(0); }

  std::string_view pattern_;
  size_t at_ = 0;
  bool caseless_ = false;

 private:
  Result<CharacterSet> ClassAt(int depth);
  Status ClassPart(int depth, CharacterSet* set);
  Status ClassEscape(CharacterSet* set, char32_t* c, bool* is_set);
  Status RangeOrCharacter(char32_t first, CharacterSet* set);
  Status PosixBracket(CharacterSet* set);
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_ONIG_READER_H_
