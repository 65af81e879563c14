#include "engine/eval/tasks/word_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace headway::eval {
namespace {

// How often each word is there behind the first line, the most frequent first.
std::vector<std::pair<int, std::string>> Counts(const std::string& text) {
  std::map<std::string, int> counts;
  std::istringstream words(text.substr(text.find('\n')));
  for (std::string word; words >> word;) {
    if (word.size() == 8 && word.find_first_of(".,:") == std::string::npos) ++counts[word];
  }
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [word, count] : counts) sorted.emplace_back(count, word);
  std::sort(sorted.rbegin(), sorted.rend());
  return sorted;
}

TEST(WordLists, CommonWordsAreTenTimesAsFrequent) {
  for (const int64_t count : {400, 3000}) {
    const Result<RetrievalLine> line = ListCommonWords(count, 3);
    ASSERT_TRUE(line.ok()) << line.status().message();
    const auto counts = Counts(line->context);
    ASSERT_EQ(line->answer.size(), 10u);
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(counts[i].first, std::min<int64_t>(30, count / 20));
      EXPECT_EQ(std::count(line->answer.begin(), line->answer.end(), counts[i].second), 1);
    }
    EXPECT_LE(counts[10].first, counts[9].first / 10 + 1);
    int sum = 0;
    for (const auto& [times, word] : counts) sum += times;
    EXPECT_EQ(sum, count);
  }
  EXPECT_FALSE(ListCommonWords(39, 3).ok());
}

TEST(WordLists, FrequentWordsAreThreeOfAZipf) {
  const Result<RetrievalLine> line = ListFrequentWords(1000, 4);
  ASSERT_TRUE(line.ok()) << line.status().message();
  const auto counts = Counts(line->context);
  EXPECT_EQ(counts[0].first, 608);  // 1000 / 1.6449
  EXPECT_EQ(counts[1].first, 152);
  EXPECT_EQ(counts[2].first, 68);
  EXPECT_EQ(counts[3].first, 38);
  EXPECT_EQ(line->answer,
            (std::vector<std::string>{counts[0].second, counts[1].second, counts[2].second}));
  EXPECT_FALSE(ListFrequentWords(3, 4).ok());
}

TEST(WordLists, DependOnTheSeedAlone) {
  EXPECT_EQ(ListCommonWords(100, 1)->context, ListCommonWords(100, 1)->context);
  EXPECT_NE(ListCommonWords(100, 1)->context, ListCommonWords(100, 2)->context);
}

}  // namespace
}  // namespace headway::eval
