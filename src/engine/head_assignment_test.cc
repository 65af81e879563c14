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
  EXPECT_EQ(refusal(options), "assignment: unknown 'fair'; there are balanced, fairkv, static");
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
}

}  // namespace
}  // namespace headway
