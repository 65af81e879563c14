// What the Unicode standard says of a character, in the versions that Hugging Face's tokenizers
// uses, so that text falls into the same pieces.
#ifndef HEADWAY_TEXT_TOKENIZER_UNICODE_H_
#define HEADWAY_TEXT_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace headway::tok {

bool IsWhitespace(char32_t c);     // the property White_Space
bool IsNumeric(char32_t c);        // the general categories N*
bool IsPunctuation(char32_t c);    // the general categories P*, and all ASCII punctuation
bool IsWordCharacter(char32_t c);  // \w of Unicode Technical Standard 18, annex C

// Appends the small letter of `c`, or `c`.
void AppendLowercase(char32_t c, std::string* text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Valid UTF-8 in a normalization form (Unicode Standard Annex 15).
std::string Normalize(std::string_view text, NormalForm form);

// The character at `*offset`, which is advanced past it. Requires valid UTF-8 there.
inline char32_t NextCharacter(std::string_view text, size_t* offset) {
  const auto byte = [text](size_t at) { return static_cast<unsigned char>(text[at]); };
  const char32_t lead = byte(*offset);
  if (lead < 0x80) {
    ++*offset;
    return lead;
  }
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (byte(*offset + i) & 0x3Fu);
  *offset += length;
  return c;
}

// The last character of valid, non-empty UTF-8, and its length in bytes.
inline char32_t LastCharacter(std::string_view text, size_t* length) {
  size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0u) == 0x80u) --begin;
  *length = text.size() - begin;
  return NextCharacter(text, &begin);
}

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_UNICODE_H_
