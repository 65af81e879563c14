#include "engine/eval/tasks/haystack.h"

#include <gtest/gtest.h>

#include <string>

namespace headway::eval {
namespace {

std::string Join(const Haystack& haystack) {
  std::string text;
  for (const std::string& piece : haystack.pieces()) text += piece;
  return text;
}

TEST(Haystack, CutsTextWhereSentencesEnd) {
  const std::string text =
      "One sentence. \"Another one!\" Said who?\n\nA new paragraph, with 3.5 in it\nand a verse";
  const Haystack haystack = Haystack::FromText(text);
  EXPECT_EQ(haystack.pieces(),
            (std::vector<std::string>{"One sentence.", " \"Another one!\"", " Said who?",
                                      "\n\nA new paragraph, with 3.5 in it", "\nand a verse"}));
}

TEST(Haystack, CutsWhatHasNoSentences) {
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "word ";
  std::string no_spaces;
  for (int i = 0; i < 1000; ++i) no_spaces += "漢字";
  for (const std::string& text : {words, no_spaces}) {
    const Haystack haystack = Haystack::FromText(text);
    EXPECT_EQ(Join(haystack), text);
    EXPECT_GT(haystack.pieces().size(), 4u);
    for (const std::string& piece : haystack.pieces()) {
      EXPECT_LE(piece.size(), 330u);
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "cut inside a character";
    }
  }
  EXPECT_TRUE(Haystack::FromText("").pieces().empty());
}

TEST(Haystack, IsMadeUpAsLongAsAskedFor) {
  const Haystack haystack = Haystack::Generate(10'000, 5);
  const std::string text = Join(haystack);
  EXPECT_GE(text.size(), 10'000u);
  EXPECT_LT(text.size(), 12'000u);
  EXPECT_EQ(text, Join(Haystack::Generate(10'000, 5)));
  EXPECT_NE(text, Join(Haystack::Generate(10'000, 6)));
  EXPECT_EQ(Join(Haystack::FromText(text)), text);
}

}  // namespace
}  // namespace headway::eval
