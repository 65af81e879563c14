#include "engine/found_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "base/user_cache.h"
#include "engine/kept_lines.h"
#include "headway/engine.h"
#include "model/model.h"
#include "plan/selection_cost.h"

namespace headway {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kDemo = HEADWAY_SOURCE_DIR "/models/demo";
constexpr int64_t kLength = 16000;

class FoundShares : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);
    options_.selector = "pages";
    options_.sparse_keys = 512;
    options_.placement = "host-only";
    options_.machine = "h200";
    settings_ = *ReadSettings(options_);
    config_ = *ReadModelConfig(env_, kDemo);
    config_.shape.dtype = DType::kBF16;
    blueprint_.plan.page_cache_steps = 8.0;
    blueprint_.lengths = {kLength};
    blueprint_.layout.executor.selection = settings_.selection;
  }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  std::string Key() const { return FoundKey(settings_, kDemo, config_, blueprint_); }
  // What a plan is told for the key.
  plan::FoundBefore Found(const std::string& key) {
    Blueprint blueprint;
    blueprint.plan.page_cache_steps = 8.0;
    UseFoundShare(env_, key, &blueprint);
    EXPECT_EQ(blueprint.found_key, key);
    EXPECT_EQ(blueprint.plan.found.tokens, blueprint.request.found.tokens);
    return blueprint.plan.found;
  }
  PageCacheReport Planned(std::string* said = nullptr, double* seconds = nullptr) {
    const Result<ModelPlan> made = PlanModel(kDemo, options_, {{kLength}}, Explain::kYes, 1);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (said != nullptr) *said = made->explain.at(1);
    if (seconds != nullptr) *seconds = made->plan.prediction.decode.seconds;
    EXPECT_TRUE(made->plan.page_cache.has_value());
    return made->plan.page_cache.value_or(PageCacheReport{});
  }

  TestDir dir_;
  FaultEnv env_{Env::Default()};
  EngineOptions options_;
  Settings settings_;
  ModelConfig config_;
  Blueprint blueprint_;
};

TEST_F(FoundShares, PlansUseWhatRunsKept) {
  std::string said;
  double assumed = 0.0, measured = 0.0;
  PageCacheReport cache = Planned(&said, &assumed);
  EXPECT_EQ(cache.steps, 8.0);
  EXPECT_EQ(cache.found_share, 0.988);
  EXPECT_EQ(cache.found_tokens, 0);
  EXPECT_THAT(said, HasSubstr("98.8 % are found in the page cache, as assumed"));
  KeepFound(env_, Key(), {.found = 600, .reads = 1000, .tokens = 768});
  cache = Planned(&said, &measured);
  EXPECT_NEAR(cache.found_share, 0.25 * 0.988 + 0.75 * 0.6, 1e-12);
  EXPECT_EQ(cache.found_tokens, 768);
  EXPECT_EQ(cache.assumed_tokens, 256);
  EXPECT_THAT(said, HasSubstr("measured in earlier runs: 60.0 % of 768 tokens"));
  EXPECT_GT(measured, assumed);
  options_.found_shares = false;
  EXPECT_EQ(Planned(nullptr, &measured).found_tokens, 0);
  EXPECT_EQ(measured, assumed);
}

// But for what is told of them: a run is the same, whatever was kept.
TEST_F(FoundShares, ChangeNothingThatRuns) {
  const auto planned = [&] {
    Result<ModelPlan> made = PlanModel(kDemo, options_, {{kLength}}, Explain::kNo, 1);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made->plan;
  };
  options_.placement = "auto";
  // As many bytes as leave some slabs in host memory.
  for (const int64_t bytes : {48 << 20, 64 << 20, 80 << 20}) {
    options_.kv_memory = bytes;
    fs::remove(FoundSharesPath());
    const PlanReport assumed = planned();
    ASSERT_TRUE(assumed.page_cache.has_value());
    settings_ = *ReadSettings(options_);
    blueprint_.plan.page_cache_steps = assumed.page_cache->steps;
    for (const int64_t found : {0, 500, 1000}) {
      fs::remove(FoundSharesPath());
      KeepFound(env_, Key(), {.found = found, .reads = 1000, .tokens = kMostFound});
      const PlanReport measured = planned();
      EXPECT_EQ(measured.page_cache->found_tokens, kMostFound);
      EXPECT_NE(measured.page_cache->found_share, assumed.page_cache->found_share);
      EXPECT_EQ(measured.page_cache->bytes, assumed.page_cache->bytes);
      EXPECT_EQ(measured.chunk, assumed.chunk);
      EXPECT_EQ(measured.segment, assumed.segment);
      EXPECT_EQ(measured.head_group, assumed.head_group);
      EXPECT_EQ(measured.staging_slabs, assumed.staging_slabs);
      EXPECT_TRUE(std::equal(measured.slabs, measured.slabs + 3, assumed.slabs));
    }
  }
}

TEST_F(FoundShares, OtherModelsSelectionsAndCachesHaveTheirOwn) {
  KeepFound(env_, Key(), {.found = 600, .reads = 1000, .tokens = 500});
  EXPECT_EQ(Found(Key()).share, 0.6);
  const std::string key = Key();
  // As near to eight steps as this it is the same.
  blueprint_.plan.page_cache_steps = 7.5;
  EXPECT_EQ(Key(), key);
  blueprint_.plan.page_cache_steps = 8.0;
  for (const std::function<void()>& change : std::vector<std::function<void()>>{
           [&] { blueprint_.plan.page_cache_steps = 4.0; },
           [&] { blueprint_.layout.executor.selection.keys = 1024; },
           [&] { blueprint_.layout.executor.selection.refresh = 4; },
           [&] { blueprint_.layout.executor.selection.recent = 64; },
           [&] { blueprint_.layout.executor.selection.summary.kind = SummaryKind::kBoxes; },
           [&] { settings_.placement = kv::PlacementKind::kRecent; },
           [&] { config_.norm_eps = 0.5f; }}) {
    change();
    EXPECT_NE(Key(), key);
    EXPECT_EQ(Found(Key()).tokens, 0.0);
    blueprint_.plan.page_cache_steps = 8.0;
    blueprint_.layout.executor.selection = settings_.selection;
    settings_ = *ReadSettings(options_);
    config_.norm_eps = ReadModelConfig(env_, kDemo)->norm_eps;
  }
  EXPECT_EQ(Key(), key);
  EXPECT_NE(FoundKey(settings_, kDemo + "-2", config_, blueprint_), key);
  EXPECT_EQ(FoundKey(settings_, kDemo + "/../demo", config_, blueprint_), key);
}

TEST_F(FoundShares, WhatTellsOfNoTextIsNotKept) {
  blueprint_.plan.page_cache_steps = 0.0;
  EXPECT_EQ(Key(), "");
  blueprint_.plan.page_cache_steps = 8.0;
  settings_.weights = Settings::Weights::kRandom;
  EXPECT_EQ(Key(), "");
  settings_.weights = Settings::Weights::kFromFiles;
  settings_.ranks = 2;
  EXPECT_EQ(Key(), "");
  settings_.ranks = 1;
  settings_.found_shares = Settings::FoundShares::kNone;
  EXPECT_EQ(Key(), "");
  settings_.found_shares = Settings::FoundShares::kKept;
  KeepFound(env_, "", {.found = 1, .reads = 1, .tokens = 1000});
  KeepFound(env_, Key(), {.found = 1, .reads = 1, .tokens = kFewestFound - 1});
  KeepFound(env_, Key(), {.found = 0, .reads = 0, .tokens = 1000});
  EXPECT_FALSE(env_.Exists(FoundSharesPath()));
}

TEST_F(FoundShares, RunsAddUpAndLaterOnesCountForMore) {
  KeepFound(env_, Key(), {.found = 100, .reads = 1000, .tokens = 100});
  KeepFound(env_, Key(), {.found = 900, .reads = 1000, .tokens = 100});
  EXPECT_EQ(Found(Key()).share, 0.5);
  EXPECT_EQ(Found(Key()).tokens, 200.0);
  for (int i = 0; i < 20; ++i) {
    KeepFound(env_, Key(), {.found = 0, .reads = 40'000, .tokens = 40'000});
  }
  for (int i = 0; i < 4; ++i) {
    KeepFound(env_, Key(), {.found = 40'000, .reads = 40'000, .tokens = 40'000});
  }
  EXPECT_GT(Found(Key()).share, 0.9);
  EXPECT_LE(Found(Key()).tokens, static_cast<double>(kMostFound));
}

TEST_F(FoundShares, DamagedAndForeignFilesAreNotUsed) {
  KeepFound(env_, Key(), {.found = 600, .reads = 1000, .tokens = 500});
  const std::string good = *env_.ReadFile(FoundSharesPath(), kMaxFileBytes);
  ASSERT_EQ(Found(Key()).tokens, 500.0);
  for (size_t at = 0; at + 1 < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 1;
    ASSERT_TRUE(WriteTextFile(env_, FoundSharesPath(), bad).ok());
    EXPECT_EQ(Found(Key()).tokens, 0.0) << at;
  }
  for (const std::string& bad :
       {std::string(), std::string("\n\n"), good.substr(0, 70), good.substr(1),
        std::string(1 << 20, '0'), std::string("{}"), std::string(good.size(), '\0')}) {
    ASSERT_TRUE(WriteTextFile(env_, FoundSharesPath(), bad).ok());
    EXPECT_EQ(Found(Key()).tokens, 0.0);
    KeepFound(env_, Key(), {.found = 600, .reads = 1000, .tokens = 500});
    EXPECT_EQ(Found(Key()).tokens, 500.0) << "what was damaged is replaced";
  }
  // Counts that no run can have, with a sound hash.
  KeptLines(env_, "found-shares", 3).Keep(Key(), {{2000, 1000, 500}});
  EXPECT_EQ(Found(Key()).tokens, 0.0);
}

TEST_F(FoundShares, AFolderThatTakesNoFilesCostsNothing) {
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  KeepFound(env_, Key(), {.found = 600, .reads = 1000, .tokens = 500});
  EXPECT_EQ(Found(Key()).tokens, 0.0);
  EXPECT_EQ(Planned().found_share, 0.988);
}

TEST_F(FoundShares, TheFileIsBounded) {
  for (int keys = 1; keys <= 300; ++keys) {
    blueprint_.layout.executor.selection.keys = keys;
    KeepFound(env_, Key(), {.found = 1, .reads = 2, .tokens = 100});
  }
  const std::string text = *env_.ReadFile(FoundSharesPath(), kMaxFileBytes);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 256);
  EXPECT_EQ(Found(Key()).tokens, 100.0);
  blueprint_.layout.executor.selection.keys = 1;
  EXPECT_EQ(Found(Key()).tokens, 0.0);
}

}  // namespace
}  // namespace headway
