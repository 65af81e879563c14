#include "engine/drafts/lookup.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace headway {
namespace {

std::vector<TokenId> Proposed(Drafter& drafter, int64_t most) {
  std::vector<TokenId> drafts;
  EXPECT_TRUE(drafter.Propose(most, &drafts).ok());
  return drafts;
}

std::vector<TokenId> After(const std::vector<TokenId>& tokens, int64_t most) {
  LookupDrafter drafter;
  drafter.Append(tokens);
  return Proposed(drafter, most);
}

TEST(LookupDrafter, ProposesWhatFollowedBefore) {
  EXPECT_EQ(After({}, 4), std::vector<TokenId>{});
  EXPECT_EQ(After({1, 2}, 4), std::vector<TokenId>{});
  EXPECT_EQ(After({1, 2, 3, 9, 2}, 4), std::vector<TokenId>{});  // one token is no match
  EXPECT_EQ(After({1, 2, 3, 4, 5, 1, 2}, 3), (std::vector<TokenId>{3, 4, 5}));
  EXPECT_EQ(After({1, 2, 3, 1, 2}, 2), (std::vector<TokenId>{3, 1}));
}

TEST(LookupDrafter, TakesTheLongestMatchAndTheNewestOfEquals) {
  EXPECT_EQ(After({7, 1, 2, 3, 0, 1, 2, 4, 9, 7, 1, 2}, 1), std::vector<TokenId>{3});
  EXPECT_EQ(After({1, 2, 3, 0, 1, 2, 4, 9, 1, 2}, 1), std::vector<TokenId>{4});
}

TEST(LookupDrafter, GoesOnBehindTheEnd) {
  EXPECT_EQ(After({1, 2, 1, 2}, 5), (std::vector<TokenId>{1, 2, 1, 2, 1}));
  EXPECT_EQ(After({8, 8, 8}, 3), (std::vector<TokenId>{8, 8, 8}));
}

// As a search of the whole sequence would, where chains are short enough.
TEST(LookupDrafter, AgreesWithASearch) {
  Random random(1);
  LookupDrafter drafter;
  std::vector<TokenId> tokens;
  for (int i = 0; i < 6000; ++i) {
    // A vocabulary in which pairs come again, but not often.
    tokens.push_back(static_cast<TokenId>(random.Below(40)));
    drafter.Append({&tokens.back(), 1});
    int64_t best = LookupDrafter::kLeast - 1, from = 0;
    const auto end = std::ssize(tokens);
    for (int64_t place = end - 1; place >= LookupDrafter::kLeast; --place) {
      int64_t same = 0;
      while (same < std::min(place, LookupDrafter::kMost) &&
             tokens[static_cast<size_t>(place - 1 - same)] ==
                 tokens[static_cast<size_t>(end - 1 - same)]) {
        ++same;
      }
      if (same > best) {
        best = same;
        from = place;
      }
    }
    std::vector<TokenId> expected;
    if (from > 0) expected = {tokens[static_cast<size_t>(from)]};
    ASSERT_EQ(Proposed(drafter, 1), expected) << i;
  }
}

}  // namespace
}  // namespace headway
