// UTF-8 as the Unicode Standard defines it (chapter 3, table 3-7): no overlong forms, no
// surrogates, nothing above U+10FFFF.
#ifndef HEADWAY_BASE_UTF8_H_
#define HEADWAY_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headway {

// Length in bytes of the character at `offset`, which is put into `*code_point`; 0 when the bytes
// there are no character. Requires offset < text.size().
size_t DecodeUtf8(std::string_view text, size_t offset, char32_t* code_point);

// --- walking over valid text ---

// Bytes of the character at `offset`.
inline size_t CharBytes(std::string_view text, size_t offset) {
  const auto lead = static_cast<unsigned char>(text[offset]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}
// The character at `*offset`, which is advanced past it.
char32_t NextWideCharacter(std::string_view text, size_t* offset);
inline char32_t NextCharacter(std::string_view text, size_t* offset) {
  const auto lead = static_cast<unsigned char>(text[*offset]);
  if (lead >= 0x80) return NextWideCharacter(text, offset);
  ++*offset;
  return lead;
}
inline char32_t CharAt(std::string_view text, size_t offset) {
  return NextCharacter(text, &offset);
}
// Offset of the character before `offset`, which is not 0.
size_t PreviousOffset(std::string_view text, size_t offset);
// The last character of text that is not empty, and its length in bytes.
char32_t LastCharacter(std::string_view text, size_t* length);
int64_t CountChars(std::string_view text);
// Byte offset of the character with that index; text.size() when the text is shorter.
size_t CharOffset(std::string_view text, int64_t index);

// --- making and checking text ---

// Appends a code point, which must be one (not above U+10FFFF, no surrogate).
void AppendUtf8(char32_t code_point, std::string* text);

// True when all of `text` is characters; otherwise `*bad_offset`, unless null, is the first byte
// that is part of none.
bool IsValidUtf8(std::string_view text, size_t* bad_offset = nullptr);

// `text` with U+FFFD in the place of each longest run of bytes that begins like a character and is
// none (the standard's "substitution of maximal subparts", as most decoders do).
std::string ReplaceInvalidUtf8(std::string_view text);

// How many bytes at the end of `text` are the beginning of a character that more bytes could
// complete: 0 to 3. What a stream must hold back.
size_t IncompleteUtf8Suffix(std::string_view text);

}  // namespace headway

#endif  // HEADWAY_BASE_UTF8_H_
