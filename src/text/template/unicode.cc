#include "text/template/unicode.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/template/unicode_tables.h"

namespace headway::jinja {
namespace {

template <typename Range>
const Range* FindRange(std::span<const Range> ranges, uint32_t c) {
  auto it = std::upper_bound(ranges.begin(), ranges.end(), c,
                             [](uint32_t code, const Range& range) { return code < range.first; });
  if (it == ranges.begin()) return nullptr;
  --it;
  return c <= it->last && (c - it->first) % it->step == 0 ? &*it : nullptr;
}

bool Has(std::span<const CodeRange> ranges, char32_t c) { return FindRange(ranges, c) != nullptr; }

const SpecialCase* FindSpecial(char32_t c) {
  if (c < 0x80) return nullptr;
  const auto it = std::lower_bound(
      kSpecialCases.begin(), kSpecialCases.end(), c,
      [](const SpecialCase& special, char32_t code) { return special.code < code; });
  return it != kSpecialCases.end() && it->code == c ? &*it : nullptr;
}

char32_t Mapped(std::span<const CaseRange> ranges, char32_t c) {
  const CaseRange* range = FindRange(ranges, c);
  return range == nullptr ? c : static_cast<char32_t>(static_cast<int32_t>(c) + range->delta);
}

void AppendUpper(char32_t c, std::string* out) {
  const SpecialCase* special = FindSpecial(c);
  if (special != nullptr && special->upper != nullptr) {
    *out += special->upper;
  } else {
    AppendUtf8(Mapped(kToUpperRanges, c), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  const SpecialCase* special = FindSpecial(c);
  if (special != nullptr && special->title != nullptr) {
    *out += special->title;
  } else {
    AppendUpper(c, out);
  }
}

bool IsCased(char32_t c) { return IsLower(c) || IsUpper(c) || Mapped(kToLowerRanges, c) != c; }

// The capital sigma is the one letter whose lower case depends on where it stands: it ends a word
// after a letter and before none.
bool IsFinalSigma(std::string_view text, size_t offset) {
  const bool after = offset > 0 && IsAlpha(CharAt(text, PreviousOffset(text, offset)));
  const size_t next = offset + CharBytes(text, offset);
  return after && (next >= text.size() || !IsAlpha(CharAt(text, next)));
}

void AppendLower(std::string_view text, size_t offset, std::string* out) {
  constexpr char32_t kSigma = 0x3A3;
  constexpr char32_t kSmallFinalSigma = 0x3C2;
  const char32_t c = CharAt(text, offset);
  const SpecialCase* special = FindSpecial(c);
  if (special != nullptr && special->lower != nullptr) {
    *out += special->lower;
  } else if (c == kSigma && IsFinalSigma(text, offset)) {
    AppendUtf8(kSmallFinalSigma, out);
  } else {
    AppendUtf8(Mapped(kToLowerRanges, c), out);
  }
}

}  // namespace

int64_t CountChars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t CharBytes(std::string_view text, size_t offset) {
  const auto lead = static_cast<uint8_t>(text[offset]);
  if (lead < 0x80) return 1;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

size_t CharOffset(std::string_view text, int64_t index) {
  size_t offset = 0;
  while (index > 0 && offset < text.size()) {
    offset += CharBytes(text, offset);
    --index;
  }
  return offset;
}

char32_t CharAt(std::string_view text, size_t offset) {
  char32_t c = 0;
  HEADWAY_CHECK(DecodeUtf8(text, offset, &c) != 0);
  return c;
}

size_t PreviousOffset(std::string_view text, size_t offset) {
  do {
    --offset;
  } while (offset > 0 && (static_cast<uint8_t>(text[offset]) & 0xC0) == 0x80);
  return offset;
}

bool IsSpace(char32_t c) {
  // str.isspace: bidirectional type WS, B or S, or category Zs.
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsAlpha(char32_t c) { return Has(kAlphaRanges, c); }
bool IsAlnum(char32_t c) { return IsAlpha(c) || Has(kNumericRanges, c); }
bool IsDecimal(char32_t c) { return Has(kDecimalRanges, c); }
bool IsDigit(char32_t c) { return Has(kDigitRanges, c); }
bool IsLower(char32_t c) { return Has(kLowerRanges, c); }
bool IsUpper(char32_t c) { return Has(kUpperRanges, c); }
bool IsPrintable(char32_t c) { return Has(kPrintableRanges, c); }

std::string ToUpper(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) AppendUpper(CharAt(text, i), &out);
  return out;
}

std::string ToLower(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) AppendLower(text, i, &out);
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    if (i == 0) {
      AppendTitle(CharAt(text, i), &out);
    } else {
      AppendLower(text, i, &out);
    }
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
    after_cased = IsCased(c);
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    if (IsUpper(c)) {
      AppendLower(text, i, &out);
    } else if (IsLower(c)) {
      AppendUpper(c, &out);
    } else {
      AppendUtf8(c, &out);
    }
  }
  return out;
}

std::string_view StripLeft(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size() && IsSpace(CharAt(text, offset))) offset += CharBytes(text, offset);
  return text.substr(offset);
}

std::string_view StripRight(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t before = PreviousOffset(text, end);
    if (!IsSpace(CharAt(text, before))) break;
    end = before;
  }
  return text.substr(0, end);
}

}  // namespace headway::jinja
