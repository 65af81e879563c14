#include "engine/head_assignment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"

namespace headway {
namespace {

constexpr int kLayers = 5, kHeads = 8;

ModelShape Shape() {
  ModelShape shape;
  shape.layers = kLayers;
  shape.kv_heads = kHeads;
  return shape;
}

// Shares that differ from head to head, their mean 1.
std::vector<double> Shares(uint64_t seed) {
  Random random(seed);
  std::vector<double> shares;
  double sum = 0.0;
  for (int i = 0; i < kLayers * kHeads; ++i) {
    shares.push_back(std::exp(0.5 * static_cast<double>(random.Normal())));
    sum += shares.back();
  }
  for (double& share : shares) share *= kLayers * kHeads / sum;
  return shares;
}

EngineOptions OnRanks(int ranks) {
  EngineOptions options;
  options.tensor_parallel = ranks;
  options.evict = "snapkv";
  return options;
}

TEST(HeadAssignment, EachHeadHasARankAndEachRankAsManyHeads) {
  for (const int ranks : {2, 3, 4, 8, 10}) {
    for (const char* method : {"balanced", "fairkv", "static"}) {
      EngineOptions options = OnRanks(ranks);
      options.assignment = method;
      options.evict_profile = "p.json";
      Settings settings = *ReadSettings(options);
      settings.eviction.shares = Shares(3);
      const HeadAssignment made = AssignHeads(Shape(), settings);
      EXPECT_STREQ(AssignmentName(made.method), method);
      EXPECT_TRUE(made.profiled);
      const RankHeads heads = made.Of(1);
      EXPECT_EQ(heads.rank, 1);
      ASSERT_EQ(std::ssize(heads.ranks), ranks);
      for (size_t layer = 0; layer < kLayers; ++layer) {
        std::vector<int> owners(kHeads, 0);
        for (const std::vector<HeadSet>& layers : heads.ranks) {
          EXPECT_LE(layers[layer].size(), (kHeads + ranks - 1) / ranks);
          for (const int head : layers[layer].heads) ++owners[static_cast<size_t>(head)];
        }
        EXPECT_EQ(owners, std::vector<int>(kHeads, 1));
      }
    }
  }
}

// Ranks that share heads have one more at most, and with it much less to wait for.
TEST(HeadAssignment, SharedHeadsBalanceWhatWholeOnesCannot) {
  for (const int ranks : {2, 3, 4, 8, 10}) {
    for (const char* method : {"balanced", "tokens"}) {
      const bool tokens = std::string(method) == "tokens";
      EngineOptions options = OnRanks(ranks);
      options.assignment = method;
      options.assignment_copies = tokens ? 0 : 4;
      options.evict_profile = "p.json";
      Settings settings = *ReadSettings(options);
      settings.eviction.shares = Shares(3);
      const HeadAssignment made = AssignHeads(Shape(), settings);
      const RankHeads heads = made.Of(1);
      EXPECT_EQ(heads.split, tokens ? HeadSplit::kTokens : HeadSplit::kSequences);
      EXPECT_TRUE(heads.Shares());
      for (int layer = 0; layer < kLayers; ++layer) {
        for (const std::vector<HeadSet>& layers : heads.ranks) {
          EXPECT_LE(layers[static_cast<size_t>(layer)].size(), (kHeads + ranks - 1) / ranks + 1);
        }
        size_t holders = 0;
        for (int head = 0; head < kHeads; ++head) {
          double share = 0.0;
          for (const HeadHolder& holder : heads.HoldersOf(layer, head)) share += holder.share;
          EXPECT_NEAR(share, 1.0, 1e-9);
          holders += heads.HoldersOf(layer, head).size();
        }
        EXPECT_LE(holders, static_cast<size_t>(kHeads + (tokens ? ranks - 1 : 4)));
      }
      EXPECT_GE(made.assignment.BusyShare(), tokens ? 0.98 : ranks <= 4 ? 0.95 : 0.7);
      EXPECT_GT(made.assignment.BusyShare(), made.static_busy);
      const RanksReport report = RanksReportOf(made);
      EXPECT_EQ(report.copies, tokens ? 0 : 4);
      ASSERT_EQ(report.shares.size(), report.heads.size());
      EXPECT_EQ(report.shares[0][0].size(), report.heads[0][0].size());
    }
  }
}

// The largest load of each layer is the smallest that as many heads for each rank allow.
TEST(HeadAssignment, LoadsAreWhatHeadsKeepByTheProfile) {
  EngineOptions options = OnRanks(4);
  options.evict_profile = "p.json";
  Settings settings = *ReadSettings(options);
  settings.eviction.shares = Shares(4);
  const HeadAssignment own = AssignHeads(Shape(), settings);
  // 32 of 1,024 tokens are the window's.
  EXPECT_NEAR(own.loads[0][0], 32 + 992 * settings.eviction.shares[0], 1.0);
  EXPECT_GT(own.assignment.BusyShare(), own.static_busy + 0.05);
  EXPECT_LT(own.assignment.BusyShare(), 1.0);
  // A profile for the assignment says the same beside budgets of the method itself.
  options.evict_profile.clear();
  options.assignment_profile = "p.json";
  Settings shared = *ReadSettings(options);
  EXPECT_FALSE(shared.eviction.profiled);
  shared.assignment_shares = settings.eviction.shares;
  EXPECT_EQ(AssignHeads(Shape(), shared).loads, own.loads);
  // Without one all are alike.
  options.assignment_profile.clear();
  const HeadAssignment even = AssignHeads(Shape(), *ReadSettings(options));
  EXPECT_FALSE(even.profiled);
  EXPECT_EQ(even.assignment.BusyShare(), 1.0);
  EXPECT_EQ(even.Of(1).In(2).heads, (std::vector<int>{2, 3}));
}

TEST(HeadAssignment, AReportSaysWhoHasWhatAndHowBusyThatIs) {
  HeadAssignment made;
  made.profiled = true;
  made.loads = {{30.0, 10.0, 10.0, 10.0}, {5.0, 5.0, 5.0, 5.0}};
  plan::AssignmentRequest request;
  request.loads = made.loads;
  request.ranks = 2;
  request.most_heads = 2;
  made.assignment = plan::Assign(request, made.method);
  made.static_busy = 0.5;
  const RanksReport report = RanksReportOf(made);
  EXPECT_EQ(report.assignment, "balanced");
  EXPECT_EQ(report.heads[0], (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(report.keys, (std::vector<double>{50.0, 30.0}));
  EXPECT_EQ(report.busy, (std::vector<double>{1.0, 0.6}));
  EXPECT_DOUBLE_EQ(report.busy_share, 0.8);
  EXPECT_EQ(report.static_busy_share, 0.5);
}

TEST(HeadAssignment, WhatMakesNoSenseIsRefused) {
  const auto refusal = [](const EngineOptions& options) {
    const Result<Settings> settings = ReadSettings(options);
    return settings.ok() ? "" : settings.status().message();
  };
  EngineOptions options = OnRanks(2);
  options.assignment = "fair";
  EXPECT_EQ(refusal(options),
            "assignment: unknown 'fair'; there are balanced, fairkv, static, tokens");
  options = OnRanks(1);
  options.assignment = "static";
  EXPECT_EQ(refusal(options),
            "assignment says which rank has which heads; it needs tensor_parallel");
  options = OnRanks(1);
  options.assignment_profile = "p.json";
  EXPECT_EQ(refusal(options),
            "assignment_profile says which rank has which heads; it needs tensor_parallel");
  options = OnRanks(2);
  options.assignment_profile = "p.json";
  options.evict = "none";
  EXPECT_EQ(refusal(options), "assignment_profile says what heads keep of prompts; it needs evict");
  options = OnRanks(1);
  options.assignment_copies = 2;
  EXPECT_EQ(refusal(options),
            "assignment_copies says which rank has which heads; it needs tensor_parallel");
  options = OnRanks(2);
  options.assignment_copies = 5;
  EXPECT_EQ(refusal(options), "assignment_copies 5: 0 to 4 are possible");
  options.assignment_copies = 2;
  options.assignment = "tokens";
  EXPECT_EQ(refusal(options),
            "assignment_copies goes with assignment balanced or fairkv, not with tokens");
  options.assignment = "balanced";
  options.evict = "none";
  EXPECT_EQ(refusal(options),
            "assignment_copies: ranks share what heads keep of prompts; it needs evict");
  options = OnRanks(2);
  options.assignment = "tokens";
  options.evicted = "demote";
  EXPECT_EQ(refusal(options),
            "assignment tokens and evicted demote do not go together yet; leave one of them out");
  options = OnRanks(2);
  options.assignment = "tokens";
  options.session = "s.session";
  EXPECT_EQ(refusal(options),
            "assignment tokens and session do not go together yet; leave one of them out");
}

}  // namespace
}  // namespace headway
