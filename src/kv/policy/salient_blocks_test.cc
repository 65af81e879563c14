#include "kv/policy/salient_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "base/random.h"

namespace headway::kv {
namespace {

// What the definition says, place by place.
struct Plain {
  std::vector<int32_t> blocks;
  std::vector<int64_t> listed;

  std::vector<SalientBlocks::Move> Choose(const std::vector<int32_t>& list, size_t places,
                                          int64_t now) {
    std::vector<int32_t> fresh;
    for (const int32_t block : list) {
      const auto at = std::find(blocks.begin(), blocks.end(), block);
      if (at == blocks.end()) {
        fresh.push_back(block);
      } else {
        listed[static_cast<size_t>(at - blocks.begin())] = now;
      }
    }
    std::set<int32_t> taken;
    while (taken.size() < fresh.size()) {
      if (blocks.size() < places) {
        taken.insert(static_cast<int32_t>(blocks.size()));
        blocks.push_back(-1);
        listed.push_back(now);
        continue;
      }
      const auto oldest = std::min_element(listed.begin(), listed.end());
      taken.insert(static_cast<int32_t>(oldest - listed.begin()));
      *oldest = now;
    }
    std::vector<SalientBlocks::Move> moves;
    for (const int32_t place : taken) {
      moves.push_back({fresh[moves.size()], place});
      blocks[static_cast<size_t>(place)] = moves.back().block;
    }
    return moves;
  }
};

TEST(SalientBlocks, TakeThePlacesOfThoseThatWereNotListedForLongest) {
  Random random(5);
  int64_t kept = 0, moved = 0;
  for (int round = 0; round < 50; ++round) {
    SalientBlocks blocks;
    Plain plain;
    int64_t all = random.Below(30);
    size_t places = 0;
    for (int64_t choice = 0; choice < 40; ++choice) {
      all += random.Below(3);
      places = std::max(places, static_cast<size_t>(random.Below(all + 1)));
      std::set<int32_t> listed;
      for (int64_t i = random.Below(static_cast<int64_t>(places) + 1); i > 0; --i) {
        listed.insert(static_cast<int32_t>(random.Below(all)));
      }
      const std::vector<int32_t> list(listed.begin(), listed.end());
      std::vector<SalientBlocks::Move> moves = {{-7, -7}};  // what is there stays
      blocks.Choose(list, static_cast<int64_t>(places), &moves);
      ASSERT_EQ(moves.front(), (SalientBlocks::Move{-7, -7}));
      moves.erase(moves.begin());
      ASSERT_EQ(moves, plain.Choose(list, places, choice)) << round << ", " << choice;
      ASSERT_TRUE(std::equal(plain.blocks.begin(), plain.blocks.end(), blocks.blocks().begin(),
                             blocks.blocks().end()));
      moved += std::ssize(moves);
      kept += std::ssize(list) - std::ssize(moves);
    }
  }
  EXPECT_GT(kept, 1000);
  EXPECT_GT(moved, 1000);
}

TEST(SalientBlocks, TheFirstChoiceFillsAllPlaces) {
  SaliencePolicy policy;
  policy.most = 0.25;
  EXPECT_EQ(SalientBlocks::Places(policy, 43), 10);
  SalientBlocks blocks;
  EXPECT_EQ(blocks.ToList(43, 10), 10);
  std::vector<SalientBlocks::Move> moves;
  blocks.Choose(std::vector<int32_t>{1, 2, 3, 5, 8, 13, 21, 34, 40, 42}, 10, &moves);
  EXPECT_EQ(blocks.ToList(43, 10), 5);
  EXPECT_EQ(blocks.ToList(44, 11), 6);
  EXPECT_EQ(blocks.ToList(11, 11), 11);  // nothing is left out
}

}  // namespace
}  // namespace headway::kv
