#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>

#include "base/utf8.h"
#include "text/unicode/recent.h"

namespace headway::unicode {
namespace {

// Two letters, as the standard names general categories.
const char* CategoryOf(char32_t c) {
  const char* category = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
  if (category[0] != 'C' || category[1] != 'n') return category;
  const NamedRange* recent = Lookup(kRecentCategories, c);
  return recent != nullptr ? recent->name : category;
}

// Letters by their use and not by their category: circled and squared Latin ones.
bool IsOtherAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

// Numeric_Type=Digit beside the decimal digits: superscripts, circled digits and the like.
constexpr CodeRange kOtherDigits[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

// The properties Other_Lowercase and Other_Uppercase: cased by their use, not by their category.
constexpr CodeRange kOtherLowercase[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
constexpr CodeRange kOtherUppercase[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

char32_t SimpleUpper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

// The full case folding of a small or title case letter where that is several characters: what
// SpecialCasing.txt writes in capitals is the capitals of these. Empty for all others.
std::u32string LongFolding(char32_t c) {
  if (c < 0x80 || CategoryOf(c)[0] != 'L' || CategoryOf(c)[1] == 'u') return {};
  std::array<utf8proc_int32_t, 8> folded;
  int last_boundclass = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded.data(), folded.size(),
                              UTF8PROC_CASEFOLD, &last_boundclass);
  if (count < 2 || count > static_cast<utf8proc_ssize_t>(folded.size())) return {};
  return std::u32string(folded.begin(), folded.begin() + count);
}

void AppendUpper(char32_t c, std::string* out) {
  const std::u32string folding = LongFolding(c);
  if (folding.empty()) AppendUtf8(SimpleUpper(c), out);
  for (const char32_t part : folding) AppendUtf8(SimpleUpper(part), out);
}

void AppendTitle(char32_t c, std::string* out) {
  constexpr char32_t kApostrophe = 0x2BC, kSmallIota = 0x3B9, kIotaBelow = 0x345;
  const auto title = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
  const std::u32string folding = LongFolding(c);
  // The one title case letter of its own, if there is one: of U+1FB3, U+1FBC.
  if (folding.empty() || CategoryOf(title)[1] == 't') {
    AppendUtf8(title, out);
    return;
  }
  AppendUtf8(SimpleUpper(folding[0]), out);
  for (size_t i = 1; i < folding.size(); ++i) {
    const bool begins = folding[i - 1] == kApostrophe;  // the letter of "'n"
    const char32_t small = folding[i] == kSmallIota ? kIotaBelow : folding[i];
    AppendUtf8(begins ? SimpleUpper(small) : small, out);
  }
}

// The capital sigma is the one letter whose small form depends on where it stands: it ends a word
// after a letter and before none.
bool IsFinalSigma(std::string_view text, size_t offset) {
  size_t length = 0;
  const bool after = offset > 0 && IsAlpha(LastCharacter(text.substr(0, offset), &length));
  const size_t next = offset + CharBytes(text, offset);
  return after && (next >= text.size() || !IsAlpha(CharAt(text, next)));
}

void AppendLower(std::string_view text, size_t offset, std::string* out) {
  constexpr char32_t kSigma = 0x3A3, kSmallFinalSigma = 0x3C2;
  const char32_t c = CharAt(text, offset);
  if (c == kSigma && IsFinalSigma(text, offset)) {
    AppendUtf8(kSmallFinalSigma, out);
  } else {
    AppendLowercase(c, out);
  }
}

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  // The last two ranges are of Unicode 17.
  return CategoryOf(c)[0] == 'N' || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  // U+166D and U+111C9 have left the category since Unicode 8.
  if (c == 0x166D || c == 0x111C9) return true;
  return CategoryOf(c)[0] == 'P' && Lookup(kNotYetPunctuation, c) == nullptr;
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  if (c == 0x200C || c == 0x200D || IsOtherAlphabeticSymbol(c)) return true;  // joiners
  const char* category = CategoryOf(c);
  switch (category[0]) {
    case 'L':
    case 'M':
      return true;
    case 'N':
      return category[1] != 'o';
    case 'P':
      return category[1] == 'c';
    default:
      return false;
  }
}

void AppendLowercase(char32_t c, std::string* text) {
  if (c == 0x130) {  // the only letter whose small form is two characters: i and a dot above
    text->append("i\u0307");
    return;
  }
  if (const CaseRange* recent = Lookup(kRecentLowercase, c); recent != nullptr) {
    AppendUtf8(static_cast<char32_t>(static_cast<int>(c) + recent->offset), text);
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

bool IsSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsAlpha(char32_t c) { return CategoryOf(c)[0] == 'L'; }

bool IsAlnum(char32_t c) {
  const char category = CategoryOf(c)[0];
  return category == 'L' || category == 'N';
}

bool IsDigit(char32_t c) {
  return std::string_view(CategoryOf(c)) == "Nd" || Lookup(kOtherDigits, c) != nullptr;
}

bool IsLower(char32_t c) {
  return std::string_view(CategoryOf(c)) == "Ll" || Lookup(kOtherLowercase, c) != nullptr;
}

bool IsUpper(char32_t c) {
  return std::string_view(CategoryOf(c)) == "Lu" || Lookup(kOtherUppercase, c) != nullptr;
}

bool IsPrintable(char32_t c) {
  const char category = CategoryOf(c)[0];
  return c == ' ' || (category != 'C' && category != 'Z');
}

std::string ToUpper(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) AppendUpper(NextCharacter(text, &i), &out);
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) AppendLower(text, i, &out);
  return out;
}

std::string Capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::string out;
  AppendTitle(CharAt(text, 0), &out);
  for (size_t i = CharBytes(text, 0); i < text.size(); i += CharBytes(text, i)) {
    AppendLower(text, i, &out);
  }
  return out;
}

std::string TitleCase(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    if (after_cased) {
      AppendLower(text, i, &out);
    } else {
      AppendTitle(c, &out);
    }
    after_cased = IsLower(c) || IsUpper(c) || std::string_view(CategoryOf(c)) == "Lt";
  }
  return out;
}

std::string_view StripLeft(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size() && IsSpace(CharAt(text, offset))) offset += CharBytes(text, offset);
  return text.substr(offset);
}

std::string_view StripRight(std::string_view text) {
  size_t length = 0;
  while (!text.empty() && IsSpace(LastCharacter(text, &length))) text.remove_suffix(length);
  return text;
}

}  // namespace headway::unicode
