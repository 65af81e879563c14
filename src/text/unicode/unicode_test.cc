#include "text/unicode/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "text/unicode/normalize.h"
#include "text/unicode/recent.h"

namespace headway::unicode {
namespace {

TEST(UnicodeTest, NormalizesToFourForms) {
  const std::string text = "e\u0301\u00E9 \uFB01 \uD55C\u1100\u1161 \u212B";
  EXPECT_EQ(Normalize(text, NormalForm::kNfc), "\u00E9\u00E9 \uFB01 \uD55C\uAC00 \u00C5");
  EXPECT_EQ(Normalize(text, NormalForm::kNfd),
            "e\u0301e\u0301 \uFB01 \u1112\u1161\u11AB\u1100\u1161 A\u030A");
  EXPECT_EQ(Normalize(text, NormalForm::kNfkc), "\u00E9\u00E9 fi \uD55C\uAC00 \u00C5");
  EXPECT_EQ(Normalize(text, NormalForm::kNfkd),
            "e\u0301e\u0301 fi \u1112\u1161\u11AB\u1100\u1161 A\u030A");
  EXPECT_EQ(Normalize("", NormalForm::kNfc), "");
  EXPECT_EQ(Normalize(std::string_view("a\0b", 3), NormalForm::kNfc), std::string("a\0b", 3));
}

TEST(UnicodeTest, OrdersMarks) {
  // Below (220) goes before above (230); equal classes keep their order.
  EXPECT_EQ(Normalize("a\u0301\u0323", NormalForm::kNfd), "a\u0323\u0301");
  EXPECT_EQ(Normalize("a\u0301\u0300", NormalForm::kNfd), "a\u0301\u0300");
  // U+07FD has class 220 since Unicode 11, which is not yet what tokenizers uses.
  EXPECT_EQ(Normalize("a\u0301\u07FD", NormalForm::kNfd), "a\u0301\u07FD");
}

TEST(UnicodeTest, OrdersManyMarksInTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0323";
  const std::string normalized = Normalize(text, NormalForm::kNfd);
  EXPECT_EQ(normalized.size(), text.size());
  EXPECT_EQ(normalized.substr(0, 5), "a\u0323\u0323");
}

TEST(UnicodeTest, Lowercase) {
  const auto lower = [](char32_t c) {
    std::string text;
    AppendLowercase(c, &text);
    return text;
  };
  EXPECT_EQ(lower(U'A'), "a");
  EXPECT_EQ(lower(U'\u0130'), "i\u0307");
  EXPECT_EQ(lower(U'\u03A3'), "\u03C3");
  EXPECT_EQ(lower(U'\u1C89'), "\u1C8A");
  EXPECT_EQ(lower(U'\u4E00'), "\u4E00");
}

TEST(UnicodeTest, Classes) {
  EXPECT_TRUE(IsWhitespace(U'\u0085'));
  EXPECT_FALSE(IsWhitespace(U'\u180E'));
  EXPECT_FALSE(IsWhitespace(U'\u200B'));
  EXPECT_TRUE(IsNumeric(U'\u00BD'));
  EXPECT_TRUE(IsNumeric(U'\U00011DE0'));
  EXPECT_FALSE(IsNumeric(U'\u4E00'));
  EXPECT_TRUE(IsPunctuation(U'$'));
  EXPECT_TRUE(IsPunctuation(U'\u3001'));
  EXPECT_FALSE(IsPunctuation(U'\u20AC'));
  EXPECT_FALSE(IsPunctuation(U'\u2E5D'));
  EXPECT_TRUE(IsWordCharacter(U'\u0301'));
  EXPECT_TRUE(IsWordCharacter(U'\u24B6'));
  EXPECT_FALSE(IsWordCharacter(U'\u00B2'));
}

TEST(UnicodeTest, CasesAsPython) {
  EXPECT_EQ(ToUpper("straße é ǆ ŉ"), "STRASSE É Ǆ ʼN");
  EXPECT_EQ(ToLower("ÀÉ İ ΣΑΣ Σ"), "àé i̇ σας σ");
  EXPECT_EQ(Capitalize("ǆUNGLE"), "ǅungle");
  EXPECT_EQ(TitleCase("hello wORLD they're ßa"), "Hello World They'Re Ssa");
}

TEST(UnicodeTest, PropertiesAsPython) {
  EXPECT_TRUE(IsAlpha(U'é') && IsAlpha(U'漢') && !IsAlpha(U'1'));
  EXPECT_TRUE(IsDigit(U'²') && IsDigit(U'٣') && IsAlnum(U'½'));
  EXPECT_TRUE(IsSpace(U'\u3000') && IsSpace(U'\x1f') && !IsSpace(U'\u200b'));
  EXPECT_TRUE(IsPrintable(U'😀') && !IsPrintable(U'\u200b') && !IsPrintable(U'\xad'));
}

TEST(UnicodeTest, CapitalsOfSeveralCharacters) {
  EXPECT_EQ(ToUpper("ﬃ ΐ ᾳ ᾲ և ẚ"), "FFI Ϊ́ ΑΙ ᾺΙ ԵՒ Aʾ");
  EXPECT_EQ(TitleCase("ﬃx ΐ ᾳ ᾲ ᾷ ŉ"), "Ffix Ϊ́ ᾼ Ὰͅ ᾼ͂ ʼN");
  EXPECT_EQ(ToUpper("İẞ"), "İẞ");
  EXPECT_EQ(ToUpper("ა"), "Ა");
  EXPECT_EQ(TitleCase("ა ǆ"), "ა ǅ");
}

TEST(UnicodeTest, StripsAsPython) {
  EXPECT_EQ(Strip(" \u3000a b\n\u2028"), "a b");
  EXPECT_EQ(Strip("\x1c \u3000"), "");
}

TEST(UnicodeTest, TablesAscend) {
  const auto ascends = [](const auto& table) {
    return std::is_sorted(std::begin(table), std::end(table),
                          [](const auto& a, const auto& b) { return a.last < b.first; });
  };
  EXPECT_TRUE(ascends(kRecentCategories));
  EXPECT_TRUE(ascends(kNormalizationInert));
  EXPECT_TRUE(ascends(kNotYetPunctuation));
  EXPECT_TRUE(ascends(kRecentLowercase));
}

}  // namespace
}  // namespace headway::unicode
