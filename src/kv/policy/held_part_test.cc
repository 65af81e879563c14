#include "kv/policy/held_part.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "base/random.h"

namespace headway::kv {
namespace {

std::vector<HeadHolder> RandomHolders(Random& random) {
  std::vector<HeadHolder> holders(static_cast<size_t>(1 + random.Below(5)));
  double sum = 0.0;
  for (size_t i = 0; i < holders.size(); ++i) {
    holders[i] = {static_cast<int>(i), 0, 0.05 + random.Uniform()};
    sum += holders[i].share;
  }
  for (HeadHolder& holder : holders) holder.share /= sum;
  return holders;
}

TEST(HeldPart, PartsAreAllPagesAndOneGrows) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    const std::vector<HeadHolder> holders = RandomHolders(random);
    const HeldHead of = {static_cast<int>(random.Below(8)), static_cast<int>(random.Below(9))};
    const int64_t pages = random.Below(20);
    for (const HeadSplit split : {HeadSplit::kSequences, HeadSplit::kTokens}) {
      int64_t next = 0, growing = 0, with_pages = 0;
      for (int own = 0; own < std::ssize(holders); ++own) {
        const HeldPart part = HeldPartOf(split, holders, own, of, pages);
        growing += part.grows ? 1 : 0;
        ASSERT_LE(part.first, part.last);
        if (part.first == part.last) continue;
        EXPECT_EQ(part.first, next);
        next = part.last;
        ++with_pages;
        EXPECT_TRUE(split == HeadSplit::kTokens || part.grows);
      }
      EXPECT_EQ(next, pages);
      EXPECT_EQ(growing, 1);
      if (split == HeadSplit::kSequences) {
        EXPECT_EQ(with_pages, pages > 0 ? 1 : 0);
      }
    }
  }
}

// Over the places of sequences pages are shared out as the plan has it, though each is whole.
TEST(HeldPart, SharesComeTrueOverSequences) {
  Random random(6);
  constexpr int kSequences = 64;
  for (int round = 0; round < 50; ++round) {
    const std::vector<HeadHolder> holders = RandomHolders(random);
    const int64_t pages = 1 + random.Below(9);
    for (int own = 0; own < std::ssize(holders); ++own) {
      int64_t had = 0;
      for (int sequence = 0; sequence < kSequences; ++sequence) {
        const HeldPart part = HeldPartOf(HeadSplit::kTokens, holders, own, {3, sequence}, pages);
        had += part.last - part.first;
      }
      const double share = holders[static_cast<size_t>(own)].share;
      EXPECT_NEAR(static_cast<double>(had) / kSequences, share * static_cast<double>(pages), 0.15);
    }
  }
}

}  // namespace
}  // namespace headway::kv
