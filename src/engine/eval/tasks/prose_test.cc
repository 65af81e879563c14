#include "engine/eval/tasks/prose.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace headway::eval {
namespace {

TEST(Prose, IsTheSameForASeed) {
  ProseGenerator a(7), b(7), c(8);
  const std::vector<std::string> first = a.Paragraph();
  EXPECT_EQ(first, b.Paragraph());
  EXPECT_NE(first, c.Paragraph());
  EXPECT_NE(first, a.Paragraph());
}

TEST(Prose, MakesWholeSentences) {
  ProseGenerator prose(1);
  for (int i = 0; i < 500; ++i) {
    const std::vector<std::string> paragraph = prose.Paragraph();
    EXPECT_GE(paragraph.size(), 4u);
    EXPECT_LE(paragraph.size(), 9u);
    for (const std::string& sentence : paragraph) {
      EXPECT_EQ(sentence.find_first_of("{}\n"), std::string::npos) << sentence;
      const char first = sentence[0] == '"' ? sentence[1] : sentence[0];
      EXPECT_TRUE(first >= 'A' && first <= 'Z') << sentence;
      const char last = sentence.back() == '"' ? sentence[sentence.size() - 2] : sentence.back();
      EXPECT_TRUE(last == '.' || last == '?') << sentence;
      EXPECT_EQ(sentence.find(" a a"), std::string::npos) << sentence;
      EXPECT_EQ(sentence.find(" a o"), std::string::npos) << sentence;
      EXPECT_EQ(sentence.find_first_of("0123456789"), std::string::npos) << sentence;
    }
  }
}

TEST(Prose, RarelyRepeatsItself) {
  ProseGenerator prose(3);
  std::set<std::string> seen;
  size_t made = 0;
  for (int i = 0; i < 300; ++i) {
    for (const std::string& sentence : prose.Paragraph()) {
      seen.insert(sentence);
      ++made;
    }
  }
  EXPECT_GT(static_cast<double>(seen.size()), 0.9 * static_cast<double>(made));
}

}  // namespace
}  // namespace headway::eval
