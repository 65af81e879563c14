#include "text/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer/onig_pattern.h"

namespace headway::tok {
namespace {

// The pieces of `text`, matches in brackets.
std::string Pieces(const std::string& pattern, const std::string& text) {
  const Result<Regex> regex = Regex::FromOniguruma(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  if (!regex.ok()) return "";
  RegexScratch scratch(text.size());
  std::vector<Stretch> stretches;
  const Status status = regex->Split(text, &scratch, &stretches);
  EXPECT_TRUE(status.ok()) << status.message();
  std::string shown;
  for (const Stretch& stretch : stretches) {
    const std::string piece = text.substr(stretch.begin, stretch.end - stretch.begin);
    shown += stretch.match ? "[" + piece + "]" : piece;
  }
  return shown;
}

TEST(RegexTest, SplitsInOrderWithoutGaps) {
  EXPECT_EQ(Pieces("b+", "abba"), "a[bb]a");
  EXPECT_EQ(Pieces("b", "bb"), "[b][b]");
  EXPECT_EQ(Pieces("x", ""), "");
  // Empty matches count, but not right behind a match.
  EXPECT_EQ(Pieces("", "é"), "[]é[]");
  EXPECT_EQ(Pieces("b*", "abc"), "[]a[b]c[]");
  EXPECT_EQ(Pieces("(?<=a)b", "abb"), "a[b]b");
}

// What Oniguruma and PCRE2 would treat differently; each line was tried with Oniguruma.
TEST(RegexTest, TranslatesOnigurumasDialect) {
  EXPECT_EQ(Pieces("\\s", "a\u180Eb\u0085c\u00A0"), "a\u180Eb[\u0085]c[\u00A0]");
  EXPECT_EQ(Pieces("\\h+", "xAf9 "), "x[Af9] ");  // hexadecimal digits
  EXPECT_EQ(Pieces("[^\\h]+", "xAf9 "), "[x]Af9[ ]");
  EXPECT_EQ(Pieces("a\\vb", "a\vb a\nb"), "[a\vb] a\nb");  // a vertical tab
  EXPECT_EQ(Pieces("\\w+", "e\u0301² \u2163"), "[e\u0301²] [\u2163]");
  EXPECT_EQ(Pieces("[\\w]+", "e²"), "[e]²");
  EXPECT_EQ(Pieces("^b", "b\nb"), "[b]\n[b]");  // lines, always
  EXPECT_EQ(Pieces("\\s+$", "a  \nb \n"), "a[  ]\nb[ \n]");
  EXPECT_EQ(Pieces("(?m:a.b)", "a\nb"), "[a\nb]");  // m: the dot matches newlines
  EXPECT_EQ(Pieces("a.b", "a\nb"), "a\nb");
  EXPECT_EQ(Pieces("a{,2}b", "aaab"), "a[aab]");
  EXPECT_EQ(Pieces("a{b", "a{b"), "[a{b]");
  EXPECT_EQ(Pieces("[[a-c]x]+", "abxd"), "[abx]d");  // nested classes
  EXPECT_EQ(Pieces("[[^a]b]", "ab"), "a[b]");
  EXPECT_EQ(Pieces("[a-z&&[^aeiou]]+", "hello"), "[h]e[ll]o");
  EXPECT_EQ(Pieces("[^a-z&&[^aeiou]]+", "hello!"), "h[e]ll[o!]");
  EXPECT_EQ(Pieces("[\\S\\n]+", "a \n"), "[a] [\n]");
  EXPECT_EQ(Pieces("\\p{^L}", "a1"), "a[1]");
  EXPECT_EQ(Pieces("\\P{L}", "a1"), "a[1]");
  EXPECT_EQ(Pieces("\\bis\\b", "this is"), "this [is]");
  EXPECT_EQ(Pieces("(?i:'s)", "'S'ſ"), "['S]['ſ]");
  EXPECT_EQ(Pieces("\\u00e9|\\x{1F600}", "é\U0001F600"), "[é][\U0001F600]");
  EXPECT_EQ(Pieces("[一-龥]+", "a中文"), "a[中文]");
}

// Letters that PCRE2's Unicode version may not have, and tokenizers' has.
TEST(RegexTest, KnowsRecentCharacters) {
  EXPECT_EQ(Pieces("\\p{L}", "\U00031350"), "[\U00031350]");
  EXPECT_EQ(Pieces("\\p{N}", "\U00011F50"), "[\U00011F50]");
  EXPECT_EQ(Pieces("[\\p{Lu}]", "\u1C89"), "[\u1C89]");
  EXPECT_EQ(Pieces("\\p{Han}", "\U0002EBF0\u3001"), "[\U0002EBF0]\u3001");
}

TEST(RegexTest, LiteralsMatchThemselves) {
  const Result<Regex> regex = Regex::FromLiteral("a.[");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch(10);
  std::vector<Stretch> stretches;
  ASSERT_TRUE(regex->Split("a.[axx", &scratch, &stretches).ok());
  ASSERT_EQ(stretches.size(), 2u);
  EXPECT_TRUE(stretches[0].match);
  EXPECT_EQ(stretches[0].end, 3u);
}

TEST(RegexTest, NamesWhatItDoesNotTranslate) {
  for (const char* pattern :
       {"(a)\\1", "\\Ka", "\\R", "\\X", "a(?i)b", "(?x: a)", "\\p{Klingon}", "a{2}+", "a{2}?",
        "a**", "(?i:ß)", "(?i:fluss)", "[]a]", "[a-\\d]", "\\xff", "[[:alpha:]]", "(?>a+?)b"}) {
    const Result<std::string> translated = TranslateOniguruma(pattern);
    ASSERT_FALSE(translated.ok()) << pattern << " became " << *translated;
    EXPECT_EQ(translated.status().code(), StatusCode::kUnsupported) << pattern;
    EXPECT_NE(translated.status().message().find(pattern), std::string::npos);
  }
}

TEST(RegexTest, RefusesWhatIsNoPattern) {
  for (const char* pattern : {"(a", "a)", "[a", "[a&&b", "a\\", "\\p{L", "\\x{110000}", "[b-a]",
                              "\\x{", "(?<n", "\xFF", "[a\\", "\\uD800", "(?"}) {
    const Result<Regex> regex = Regex::FromOniguruma(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kCorrupt) << pattern;
  }
}

}  // namespace
}  // namespace headway::tok
