// The byte-level alphabet of GPT-2: each byte is written as one printable character. Printable
// Latin-1 stands for itself, the other 68 bytes are U+0100 onwards in order.
#ifndef HEADWAY_TEXT_TOKENIZER_BYTE_LEVEL_H_
#define HEADWAY_TEXT_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace headway::tok {

// The UTF-8 of the character that stands for `byte`.
std::string_view ByteLevelCharacter(uint8_t byte);

// Appends the characters of all bytes.
void AppendByteLevel(std::string_view bytes, std::string* characters);

// Appends the bytes that `characters` (valid UTF-8) stand for; false, and nothing appended, when
// one of them is not of the alphabet.
bool AppendFromByteLevel(std::string_view characters, std::string* bytes);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_BYTE_LEVEL_H_
