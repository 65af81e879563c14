#include "text/template/unicode.h"

#include <gtest/gtest.h>

namespace headway::jinja {
namespace {

TEST(UnicodeTest, CasesAsPython) {
  EXPECT_EQ(ToUpper("straße é ǆ ŉ"), "STRASSE É Ǆ ʼN");
  EXPECT_EQ(ToLower("ÀÉ İ ΣΑΣ Σ"), "àé i̇ σας σ");
  EXPECT_EQ(Capitalize("ǆUNGLE"), "ǅungle");
  EXPECT_EQ(TitleCase("hello wORLD they're ßa"), "Hello World They'Re Ssa");
  EXPECT_EQ(SwapCase("aÉ1"), "Aé1");
}

TEST(UnicodeTest, PropertiesAsPython) {
  EXPECT_TRUE(IsAlpha(U'é') && IsAlpha(U'漢') && !IsAlpha(U'1'));
  EXPECT_TRUE(IsDigit(U'²') && !IsDecimal(U'²') && IsDecimal(U'٣') && IsAlnum(U'½'));
  EXPECT_TRUE(IsSpace(U'\u3000') && IsSpace(U'\x1f') && !IsSpace(U'\u200b'));
  EXPECT_TRUE(IsPrintable(U'😀') && !IsPrintable(U'\u200b') && !IsPrintable(U'\xad'));
}

TEST(UnicodeTest, CountsAndStrips) {
  EXPECT_EQ(CountChars("aé漢😀"), 4);
  EXPECT_EQ(CharOffset("aé漢😀", 3), 6u);
  EXPECT_EQ(CharOffset("aé", 9), 3u);
  EXPECT_EQ(Strip(" \u3000a b\n\u2028"), "a b");
}

}  // namespace
}  // namespace headway::jinja
