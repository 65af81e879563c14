// What the Unicode standard says of a character, in two readings: that of Hugging Face's
// tokenizers, so that text falls into the same pieces, and that of Python's str, whose methods chat
// templates call. utf8proc has the data; recent.h has what Unicode assigned since, and unicode.cc
// the two properties that utf8proc lacks. Text is valid UTF-8.
#ifndef HEADWAY_TEXT_UNICODE_UNICODE_H_
#define HEADWAY_TEXT_UNICODE_UNICODE_H_

#include <string>
#include <string_view>

namespace headway::unicode {

// --- as tokenizers read it ---

bool IsWhitespace(char32_t c);     // the property White_Space
bool IsNumeric(char32_t c);        // the general categories N*
bool IsPunctuation(char32_t c);    // the general categories P*, and all ASCII punctuation
bool IsWordCharacter(char32_t c);  // \w of Unicode Technical Standard 18, annex C

// Appends the small letter of `c`, or `c`.
void AppendLowercase(char32_t c, std::string* text);

// --- as Python's str reads it: str.isspace and so on, of one character ---

bool IsSpace(char32_t c);
bool IsAlpha(char32_t c);
bool IsAlnum(char32_t c);
bool IsDigit(char32_t c);
bool IsLower(char32_t c);
bool IsUpper(char32_t c);
bool IsPrintable(char32_t c);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleCase(std::string_view text);  // str.title()

std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
inline std::string_view Strip(std::string_view text) { return StripRight(StripLeft(text)); }

}  // namespace headway::unicode

#endif  // HEADWAY_TEXT_UNICODE_UNICODE_H_
