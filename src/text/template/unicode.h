// Text as Python's str sees it: a row of code points, with the Unicode properties that its methods
// ask for. All text here is valid UTF-8.
#ifndef HEADWAY_TEXT_TEMPLATE_UNICODE_H_
#define HEADWAY_TEXT_TEMPLATE_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headway::jinja {

int64_t CountChars(std::string_view text);
// Byte offset of the character with that index, or text.size() when there are not so many.
size_t CharOffset(std::string_view text, int64_t index);
// Bytes of the character at `offset`.
size_t CharBytes(std::string_view text, size_t offset);
char32_t CharAt(std::string_view text, size_t offset);
// Offset of the character before `offset`, which is not 0.
size_t PreviousOffset(std::string_view text, size_t offset);

bool IsSpace(char32_t c);
bool IsAlpha(char32_t c);
bool IsAlnum(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsLower(char32_t c);
bool IsUpper(char32_t c);
bool IsPrintable(char32_t c);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleCase(std::string_view text);  // str.title()
std::string SwapCase(std::string_view text);

std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
inline std::string_view Strip(std::string_view text) { return StripRight(StripLeft(text)); }

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_UNICODE_H_
