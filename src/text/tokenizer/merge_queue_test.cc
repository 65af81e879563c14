#include "text/tokenizer/merge_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/random.h"

namespace headway::tok {
namespace {

constexpr int64_t kRanks = 7;

// Pushes and pops in random order, in short and long words, one after another: the queue is empty
// between them, and nothing of one word is left in the next.
TEST(MergeQueueTest, GivesTheSmallestRankAndThereTheSmallestPosition) {
  Random random(3);
  MergeQueue queue;
  for (int word = 0; word < 40; ++word) {
    const size_t symbols = word % 2 == 0 ? 8 : 100'000;
    queue.Start(symbols, kRanks);
    std::multiset<std::pair<uint32_t, int32_t>> expected;
    const auto push = [&](int32_t position) {
      const auto rank = static_cast<uint32_t>(random.Below(kRanks));
      queue.Push({.rank = rank, .position = position, .merged = static_cast<TokenId>(10 + rank)});
      expected.emplace(rank, position);
    };
    for (int32_t i = 0; i < 2000; ++i) push(i);  // in order, as a word's first candidates are
    for (int32_t i = 0; !expected.empty(); ++i) {
      MergeCandidate top;
      ASSERT_TRUE(queue.Pop(&top));
      ASSERT_EQ(std::pair(top.rank, top.position), *expected.begin());
      ASSERT_EQ(top.merged, static_cast<TokenId>(10 + top.rank));
      expected.erase(expected.begin());
      if (i < 3000) push(static_cast<int32_t>(random.Below(2000)));
    }
    MergeCandidate top;
    ASSERT_FALSE(queue.Pop(&top));
  }
}

}  // namespace
}  // namespace headway::tok
