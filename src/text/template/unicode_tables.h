// Tables of Unicode properties and case mappings, as code point ranges in ascending order.
// unicode_tables.cc is written by scripts/make_unicode_tables.py.
#ifndef HEADWAY_TEXT_TEMPLATE_UNICODE_TABLES_H_
#define HEADWAY_TEXT_TEMPLATE_UNICODE_TABLES_H_

#include <cstdint>
#include <span>

namespace headway::jinja {

// first, first + step, ..., last.
struct CodeRange {
  uint32_t first;
  uint32_t last;
  uint32_t step;
};

// The same, each mapped to itself + delta.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t step;
  int32_t delta;
};

// A character with an upper, title or lower case of more than one character, or with a title case
// that is not its upper case. Null: the ranges say.
struct SpecialCase {
  uint32_t code;
  const char* upper;
  const char* title;
  const char* lower;
};

extern const std::span<const CodeRange> kAlphaRanges;
extern const std::span<const CodeRange> kNumericRanges;  // str.isalnum, but not str.isalpha
extern const std::span<const CodeRange> kDecimalRanges;
extern const std::span<const CodeRange> kDigitRanges;
extern const std::span<const CodeRange> kLowerRanges;
extern const std::span<const CodeRange> kUpperRanges;
extern const std::span<const CodeRange> kPrintableRanges;
extern const std::span<const CaseRange> kToUpperRanges;
extern const std::span<const CaseRange> kToLowerRanges;
extern const std::span<const SpecialCase> kSpecialCases;

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_UNICODE_TABLES_H_
