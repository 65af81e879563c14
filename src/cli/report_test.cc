#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"

namespace headway::cli {
namespace {

using ::testing::HasSubstr;

TEST(FormatTable, AlignsColumns) {
  EXPECT_EQ(FormatTable({{"tier", "bytes"}, {"device", "8"}, {"disk", "1024", "x"}}, {false, true}),
            "tier    bytes\n"
            "device      8\n"
            "disk     1024  x\n");
  EXPECT_EQ(FormatTable({}, {}), "");
}

TEST(MemoryWarning, ComparesThePlanWithTheMachine) {
  PlanReport plan;
  plan.memory_bytes = 4 * kGiB;
  EXPECT_EQ(MemoryWarning(plan, 4 * kGiB), "");
  EXPECT_THAT(MemoryWarning(plan, 3 * kGiB), HasSubstr("4.0 GiB of RAM, and the system shows 3.0"));
  EXPECT_EQ(MemoryWarning(plan, -1), "");  // unknown
  EXPECT_GT(RamBytes(), 0);
}

TEST(FormatCount, DividesThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatCount(123456), "123,456");
}

TEST(RunSummary, SaysWhatEachTierHeld) {
  Generation generation;
  generation.finish = FinishReason::kEos;
  generation.reused_tokens = 64;
  Timings timings{16000, 8.0, 47, 0.5};
  TierUse tiers;
  tiers.bytes[0] = 6 * kMiB;
  tiers.bytes[1] = 64 * kMiB;
  tiers.bytes[2] = 58 * kMiB;
  EngineOptions limits;
  limits.kv_memory = 8 * kMiB;
  std::string text;
  for (const std::string& line : RunSummary(generation, timings, tiers, limits))
    text += line + "\n";
  EXPECT_THAT(text, HasSubstr("16,000 tokens in     8.00 s   2000.0 tok/s  (64 in the cache)"));
  EXPECT_THAT(text, HasSubstr("94.0 tok/s"));
  EXPECT_THAT(text, HasSubstr("128.0 MiB"));
  EXPECT_THAT(text, HasSubstr("4.7 %  limit 8.0 MiB"));
  EXPECT_THAT(text, HasSubstr("50.0 %  limit unlimited"));
  EXPECT_THAT(text, HasSubstr("45.3 %  limit 0 B"));

  generation.finish = FinishReason::kCancelled;
  generation.reused_tokens = 1'000'000;
  timings = {9'000'000, 90000.0, 9'000'000, 90000.0};
  for (const std::string& line : RunSummary(generation, timings, tiers, limits)) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(RunSummary, DividesByNothing) {
  for (const std::string& line : RunSummary({}, {}, {}, {})) {
    EXPECT_THAT(line, Not(HasSubstr("nan")));
    EXPECT_THAT(line, Not(HasSubstr("inf")));
  }
}

TEST(Json, HasWhatScriptsNeed) {
  EXPECT_EQ(Dump({{"text", "a\xff"}}), "{\"text\":\"a\xef\xbf\xbd\"}\n");
  EXPECT_EQ(TimingsJson({100, 2.0, 10, 0.0})["prefill_tokens_per_second"], 50.0);
  EXPECT_EQ(TimingsJson({100, 2.0, 10, 0.0})["decode_tokens_per_second"], 0.0);
  PlanReport plan;
  plan.memory = {{"device", "weights", 7}};
  plan.slabs[2] = 5;
  const Json json = PlanJson(plan);
  EXPECT_EQ(json["memory"][0]["what"], "weights");
  EXPECT_EQ(json["memory"][0]["bytes"], 7);
  EXPECT_EQ(json["slabs"]["disk"], 5);
  EXPECT_FALSE(json.contains("eviction"));
}

TEST(Eviction, IsSaidInWordsAndAsJson) {
  PlanReport plan;
  EXPECT_EQ(EvictionLine(plan), "");
  EvictionReport eviction;
  eviction.method = "snapkv";
  eviction.budget = 1024;
  eviction.pooling = "max";
  plan.eviction = eviction;
  EXPECT_EQ(EvictionLine(plan), "eviction  snapkv: 1,024 of the prompt's tokens a head");
  EXPECT_EQ(PlanJson(plan)["eviction"]["method"], "snapkv");
  EXPECT_EQ(PlanJson(plan)["eviction"]["budget"], 1024);
  EXPECT_EQ(PlanJson(plan)["eviction"]["pooling"], "max");
  plan.eviction->budget = 0;
  plan.eviction->share = 0.125;
  EXPECT_EQ(EvictionLine(plan), "eviction  snapkv: 12.5 % of the prompt's tokens a head");
}

}  // namespace
}  // namespace headway::cli
