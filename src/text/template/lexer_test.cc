#include "text/template/lexer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway::jinja {
namespace {

// The kinds and texts of the tokens, one a line.
std::string Shown(std::string_view source) {
  const Result<std::vector<Token>> tokens = Tokenize(source, "t");
  if (!tokens.ok()) return tokens.status().message();
  std::string shown;
  for (const Token& token : *tokens) {
    switch (token.kind) {
      case TokenKind::kData:
        shown += "data:" + token.text;
        break;
      case TokenKind::kVariableBegin:
        shown += "{{";
        break;
      case TokenKind::kVariableEnd:
        shown += "}}";
        break;
      case TokenKind::kBlockBegin:
        shown += "{%";
        break;
      case TokenKind::kBlockEnd:
        shown += "%}";
        break;
      case TokenKind::kInteger:
        shown += std::to_string(token.integer);
        break;
      case TokenKind::kFloat:
        shown += "float";
        break;
      default:
        shown += token.text;
    }
    shown += ' ';
  }
  return shown;
}

TEST(LexerTest, TrimsAfterBlocksAndStripsBeforeThem) {
  EXPECT_EQ(Shown("a\n  {% x %}\nb\n"), "data:a\n {% x %} data:b  ");
  EXPECT_EQ(Shown("a\n  {%+ x +%}\nb"), "data:a\n   {% x %} data:\nb  ");
  EXPECT_EQ(Shown("a\n  {{- x -}}\n b"), "data:a {{ x }} data:b  ");
  EXPECT_EQ(Shown("a {# note #}\n b"), "data:a  data: b  ");
}

TEST(LexerTest, RawTextHasNoTags) {
  EXPECT_EQ(Shown("{% raw %}{{ x }}{% endraw %}"), "data:{{ x }}  ");
}

TEST(LexerTest, NumbersAndSubscripts) {
  EXPECT_EQ(Shown("{{ 1000 31 a.0.1 1.5e3 2.x }}"), "{{ 1000 31 a . 0 . 1 float 2 . x }}  ");
  for (const char* number : {"1_000", "0x1F", "0b1", "1.5f"}) {
    EXPECT_NE(Shown("{{ " + std::string(number) + " }}").find("in decimal alone"),
              std::string::npos);
  }
}

TEST(LexerTest, StringsUnescape) {
  EXPECT_EQ(Shown(R"({{ 'a\n\x41\u00e9\q' }})"), "{{ a\nAé\\q }}  ");
}

TEST(LexerTest, ErrorsNameTheLine) {
  EXPECT_EQ(Shown("a\n\n{{ 'x }}"),
            "chat template t, line 3: unexpected character ''': a string does not end");
  EXPECT_EQ(Shown("{{ (1] }}"), "chat template t, line 1: unexpected ']'");
  EXPECT_EQ(Shown("{{ 99999999999999999999 }}"),
            "chat template t, line 1: an integer does not fit in 64 bits");
}

}  // namespace
}  // namespace headway::jinja
