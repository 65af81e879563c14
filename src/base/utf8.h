// UTF-8 as the Unicode Standard defines it (chapter 3, table 3-7): no overlong forms, no
// surrogates, nothing above U+10FFFF.
#ifndef HEADWAY_BASE_UTF8_H_
#define HEADWAY_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace headway {

// Length in bytes of the character at `offset`, which is put into `*code_point`; 0 when the bytes
// there are no character. Requires offset < text.size().
size_t DecodeUtf8(std::string_view text, size_t offset, char32_t* code_point);

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
