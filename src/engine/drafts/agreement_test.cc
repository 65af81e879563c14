#include "engine/drafts/agreement.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "parallel/local/local_group.h"

namespace headway {
namespace {

TEST(DraftAgreement, OneRankAgreesWithItself) {
  DraftAgreement alone(nullptr);
  EXPECT_TRUE(alone.first());
  std::vector<int64_t> numbers = {3, 1};
  std::vector<TokenId> fed = {5, 6, 7};
  std::vector<TokenId>* const list[] = {&fed};
  EXPECT_TRUE(alone.Agree(numbers).ok());
  EXPECT_TRUE(alone.AgreeOnGuesses(7, list).ok());
  EXPECT_EQ(numbers, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(fed, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(alone.Agree(Status(StatusCode::kIo, "what was done")).message(), "what was done");
}

TEST(DraftAgreement, WhatTheFirstRankHasIsEverybodys) {
  const std::unique_ptr<RankGroup> group = std::move(*NewLocalGroup(3, {}));
  for (const int64_t count : {0, 1, 7}) {
    const Status status = group->Run([&](int rank) {
      DraftAgreement agreement(&group->communicator(rank));
      EXPECT_EQ(agreement.first(), rank == 0);
      std::vector<int64_t> numbers = {rank + 4, rank};
      EXPECT_TRUE(agreement.Agree(numbers).ok());
      EXPECT_EQ(numbers, (std::vector<int64_t>{4, 0}));
      std::vector<TokenId> first = {9}, second = {11};
      if (rank == 0) {
        for (TokenId token = 0; token < count; ++token) first.push_back(token + 100);
        second.push_back(2'000'000'000);
      }
      std::vector<TokenId>* const fed[] = {&first, &second};
      EXPECT_TRUE(agreement.AgreeOnGuesses(7, fed).ok());
      EXPECT_EQ(std::ssize(first), count + 1);
      EXPECT_EQ(first.front(), 9);
      EXPECT_EQ(first.back(), count == 0 ? 9 : 99 + count);
      EXPECT_EQ(second, (std::vector<TokenId>{11, 2'000'000'000}));
      return agreement.Agree(OkStatus());
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(DraftAgreement, TheFirstRanksErrorEndsAll) {
  const std::unique_ptr<RankGroup> group = std::move(*NewLocalGroup(2, {}));
  const Status status = group->Run([&](int rank) {
    DraftAgreement agreement(&group->communicator(rank));
    const Status own = rank == 0 ? Status(StatusCode::kCorrupt, "not finite") : OkStatus();
    const Status agreed = agreement.Agree(own);
    EXPECT_EQ(agreed.code(), StatusCode::kCorrupt);
    EXPECT_EQ(agreed.message(), "not finite");
    return agreed;
  });
  EXPECT_NE(status.message().find("not finite"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headway
