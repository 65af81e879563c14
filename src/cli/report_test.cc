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

TEST(Selection, IsSaidToBeApproximateWhereItIs) {
  PlanReport plan;
  EXPECT_EQ(SelectionLine(plan), "");
  EXPECT_TRUE(ApproximationLines(plan).empty());
  SelectionReport selection;
  selection.selector = "pages";
  selection.keys = 2048;
  selection.sink = 256;
  selection.recent = 1024;
  selection.length = 65536;
  selection.whole = 3328;
  plan.selection = selection;
  EXPECT_EQ(SelectionLine(plan),
            "selection pages: approximate from 3,329 tokens on, where a head attends to 3,328 keys "
            "of 65,536 and to no others; prompts are read exactly");
  EXPECT_EQ(ApproximationLines(plan), std::vector<std::string>{SelectionLine(plan)});
  EXPECT_EQ(PlanJson(plan)["selection"]["whole"], 3328);
  plan.selection->prompts = true;
  plan.selection->top_p = 0.9;
  plan.selection->least = 64;
  EXPECT_THAT(
      SelectionLine(plan),
      HasSubstr("1,344 to 3,328 keys of 65,536 and to no others; prompts are read so, too"));
  plan.selection->top_p = 0.0;
  plan.selection->epsilon = 0.1;
  EXPECT_THAT(SelectionLine(plan), HasSubstr("attends to 3,328 or more keys of 65,536"));
  plan.selection->whole = 65536;
  EXPECT_EQ(SelectionLine(plan),
            "selection pages: exact, since all keys of up to 65,536 tokens are read");
  // Beyond the trained window they are moved.
  plan.selection->reach = true;
  EXPECT_THAT(SelectionLine(plan), HasSubstr("selection pages: approximate, where a head"));
}

TEST(Json, HasHowManyBlocksWereListed) {
  Timings timings;
  EXPECT_EQ(TimingsJson(timings)["listed_blocks"]["blocks_of_a_list"], 0.0);
  timings.listed = {.lists = 8, .blocks = 100, .among = 400};
  EXPECT_EQ(TimingsJson(timings)["listed_blocks"],
            Json({{"lists", 8}, {"blocks", 100}, {"among", 400}, {"blocks_of_a_list", 12.5}}));
}

TEST(Json, HasWhatPromptsChoseAndFound) {
  Timings timings;
  timings.prompts.listed = {.lists = 8, .blocks = 100, .among = 400};
  timings.prompts.page_cache = {.found = 3, .brought = 1, .passed = 0, .bytes = 64};
  const Json prompts = TimingsJson(timings)["prompts"];
  EXPECT_EQ(prompts["listed_blocks"]["blocks_of_a_list"], 12.5);
  EXPECT_EQ(
      prompts["page_cache"],
      Json({{"found", 3}, {"brought", 1}, {"passed", 0}, {"bytes", 64}, {"found_share", 0.75}}));
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
