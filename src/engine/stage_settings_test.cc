#include "engine/stage_settings.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "engine/settings.h"

namespace headway {
namespace {

EngineOptions Staged() {
  EngineOptions options;
  options.selector = "infinitehip";
  return options;
}

// What is wrong with the default stages once they are changed; empty: nothing.
std::string Wrong(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options = Staged();
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
  return settings.status().message();
}

TEST(StageSettings, StagesAreRead) {
  EngineOptions options = Staged();
  kv::SelectionPolicy policy = ReadSettings(options)->selection;
  EXPECT_EQ(policy.stages[0].chunk, 256);
  EXPECT_EQ(policy.stages[0].keys, 32768);
  EXPECT_EQ(policy.stages[1].chunk, 32);
  EXPECT_EQ(policy.stages[1].keys, 8192);
  options.hip_stages = "64:9";
  options.sparse_block = 16;
  options.sparse_keys = 9;
  options.hip_outer_keys = 0;
  policy = ReadSettings(options)->selection;
  EXPECT_EQ(policy.summary.block_slots, 16);
  EXPECT_EQ(policy.stages[0].keys, 9);
  EXPECT_EQ(policy.stages[1].chunk, 0);
  options.hip_stages = "";
  EXPECT_TRUE(ReadSettings(options).ok());
  for (const char* stages :
       {"64", "64:", "64:0", "8:9", "24:9", "64:9,", "64:9,64:9", "64:9,48:9", "x",
        "256:9,64:9,32:9", "64:9;", ",64:9", "0:0", "0:0,64:9", "64:9,0:0"}) {
    options.hip_stages = stages;
    EXPECT_FALSE(ReadSettings(options).ok()) << stages;
  }
}

TEST(StageSettings, StagesAreRenewedEachInItsTime) {
  EngineOptions options = Staged();
  EXPECT_EQ(ReadSettings(options)->selection.SearchRefresh(), 1);
  options.sparse_refresh = 4;
  options.hip_refresh = "16,8";
  kv::SelectionPolicy policy = ReadSettings(options)->selection;
  EXPECT_EQ(policy.stages[0].refresh, 16);
  EXPECT_EQ(policy.stages[1].refresh, 8);
  EXPECT_EQ(policy.refresh, 4);
  EXPECT_EQ(policy.SearchRefresh(), 16);
  for (const char* refresh : {"16", "16,", ",8", "16,8,4", "16,8,", "16,6", "12,8", "4,8", "16,2",
                              "16,0", "-16,-8", "x,8", "16;8", "16 8"}) {
    options.hip_refresh = refresh;
    EXPECT_FALSE(ReadSettings(options).ok()) << refresh;
  }
  options.hip_stages = "64:4096";
  options.hip_refresh = "8";
  EXPECT_EQ(ReadSettings(options)->selection.stages[0].refresh, 8);
  options.hip_stages = "";
  EXPECT_FALSE(ReadSettings(options).ok());
}

// With more tokens than a page has, too.
TEST(StageSettings, PublishedIntervalsAreAccepted) {
  for (const auto& [stages, last] : {std::pair{"16,8", 4}, {"32,16", 8}, {"96,24", 8}}) {
    EXPECT_EQ(Wrong([&](EngineOptions& o) { o.hip_refresh = stages, o.sparse_refresh = last; }),
              "");
  }
}

TEST(StageSettings, WrongStagesAreNamed) {
  EXPECT_EQ(Wrong([](EngineOptions& o) { o.hip_stages = "64"; }).find("hip_stages: '64' are not"),
            0u);
  EXPECT_EQ(Wrong([](EngineOptions& o) { o.hip_refresh = "3"; }),
            "hip_refresh: '3' is not a number of tokens for each stage of hip_stages, each a "
            "multiple of the next, and the last of sparse_refresh, 1");
  EXPECT_EQ(Wrong([](EngineOptions& o) { o.hip_outer_keys = -1; }).find("hip_outer_keys is 0"), 0u);
}

TEST(StageSettings, StagesThatNoLengthCouldHaveAreRefused) {
  // Heads choose 2,048 keys, in outer layers `outer`.
  const auto wrong = [](const char* stages, int64_t outer) {
    return Wrong([&](EngineOptions& o) { o.hip_stages = stages, o.hip_outer_keys = outer; });
  };
  EXPECT_EQ(wrong("256:1024,32:8192", 4096),
            "hip_stages: stage 2 of '256:1024,32:8192' keeps 8192 keys, more than the 1024 that "
            "the one before leaves");
  EXPECT_EQ(wrong("256:32768,32:65536", 4096),
            "hip_stages: stage 2 of '256:32768,32:65536' keeps 65536 keys, more than the 32768 "
            "that the one before leaves");
  EXPECT_EQ(wrong("32:512", 0),
            "hip_stages: stage 1 of '32:512' keeps 512 keys, fewer than the 2048 of sparse_keys "
            "that heads choose of them");
  EXPECT_EQ(wrong("256:8192,32:2048", 4096),
            "hip_stages: stage 2 of '256:8192,32:2048' keeps 2048 keys, fewer than the 4096 of "
            "hip_outer_keys that heads choose of them");
  // Whole chunks survive.
  for (const char* stages : {"256:2049,32:2304", "256:2048,32:2048", "64:2047", "256:32768", ""}) {
    EXPECT_EQ(wrong(stages, 0), "");
  }
}

}  // namespace
}  // namespace headway
