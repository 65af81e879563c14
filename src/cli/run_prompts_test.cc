#include "cli/run_prompts.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/bytes.h"

namespace headway::cli {
namespace {

TEST(PromptLines, AreStringsOrObjects) {
  const auto lines = ParsePromptLines(
      "\"Once\\nupon\"\n\n{\"prompt\": \"a time\", \"id\": 7, \"max_tokens\": 3}\r\n", "f.jsonl");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ((*lines)[0].text, "Once\nupon");
  EXPECT_TRUE((*lines)[0].id.is_null());
  EXPECT_FALSE((*lines)[0].max_tokens.has_value());
  EXPECT_EQ((*lines)[1].text, "a time");
  EXPECT_EQ((*lines)[1].id, 7);
  EXPECT_EQ((*lines)[1].max_tokens, 3);
}

TEST(PromptLines, ErrorsNameTheLine) {
  for (const char* bad :
       {"{", "12", "[\"a\"]", "{}", "{\"prompt\": 1}", "\"\"", "{\"prompt\": \"\"}",
        "{\"prompt\": \"a\", \"max_tokens\": -1}", "{\"prompt\": \"a\", \"max_tokens\": \"x\"}",
        "{\"prompt\": \"a\", \"id\": [1]}", "{\"prompt\": \"a\", \"id\": {}}"}) {
    const auto lines = ParsePromptLines(std::string("\"good\"\n\n") + bad + "\n", "f.jsonl");
    ASSERT_FALSE(lines.ok()) << bad;
    EXPECT_EQ(lines.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(lines.status().message().rfind("f.jsonl, line 3", 0), 0u) << lines.status().message();
  }
  EXPECT_FALSE(ParsePromptLines(" \n\n", "f.jsonl").ok());
}

TEST(PromptLines, KeysThatNothingReadsAreErrors) {
  const auto message = [](const char* jsonl) {
    return ParsePromptLines(jsonl, "f.jsonl").status().message();
  };
  EXPECT_EQ(message("\"a\"\n{\"prompt\": \"b\", \"max_token\": 3}"),
            "f.jsonl, line 2: there is no key \"max_token\"; there are \"prompt\", \"id\" and "
            "\"max_tokens\"");
  EXPECT_EQ(message("{\"prompt\": \"a\", \"id\": 1, \"prompt\": \"b\"}"),
            "f.jsonl, line 1: the key \"prompt\" is there twice");
}

// Prompts of 100 tokens, 100 more each.
std::vector<PromptSize> Sizes(size_t count) { return std::vector<PromptSize>(count, {100, 100}); }

// Each sequence takes a GiB of RAM; a step takes `step` seconds and `sequence` more for each.
Result<PlanReport> Planned(const Workload& workload, double step, double sequence) {
  const auto sequences = static_cast<double>(workload.lengths.size());
  PlanReport plan;
  plan.memory_bytes = static_cast<int64_t>(workload.lengths.size()) * kGiB;
  plan.prediction.machine = "made up";
  plan.prediction.prefill.seconds = sequences;
  plan.prediction.decode.seconds = step + sequences * sequence;
  return plan;
}

TEST(FastestParallel, TakesTheNumberWhosePromptsAreDoneSoonest) {
  // What all share is paid once a step: the more the better.
  const auto shared = [](const Workload& workload) { return Planned(workload, 1.0, 0.01); };
  EXPECT_EQ(FastestParallel(Sizes(100), 0, -1, shared), 100);
  EXPECT_EQ(FastestParallel(Sizes(100), 0, 50 * kGiB, shared), 32);  // the largest tried that fits
  EXPECT_EQ(FastestParallel(Sizes(1), 0, -1, shared), 1);
  // Beyond, twice the memory gains a hundredth.
  EXPECT_EQ(FastestParallel(Sizes(9000), 0, -1, shared), 2048);
  const auto flat = [](const Workload& workload) { return Planned(workload, 0.0, 1.0); };
  EXPECT_EQ(FastestParallel(Sizes(9000), 0, -1, flat), 1);
  // One long prompt among short ones: two places as long as it do not fit, all at once do.
  std::vector<PromptSize> unequal(10, {10, 10});
  unequal[3] = {1000, 10};
  for (const bool known : {true, false}) {
    const auto room = [known](const Workload& workload) -> Result<PlanReport> {
      const int64_t tokens = std::reduce(workload.lengths.begin(), workload.lengths.end());
      if (tokens > 1500) return Status(StatusCode::kOutOfBudget, "too many");
      return known ? Planned(workload, 1.0, 0.01) : Result<PlanReport>(PlanReport());
    };
    EXPECT_EQ(FastestParallel(unequal, 0, -1, room), 10);
  }
  // From 8 on a step slows by more than it serves, as where keys no longer fit.
  const auto cliff = [](const Workload& workload) {
    return Planned(workload, 1.0, workload.lengths.size() > 8 ? 0.5 : 0.01);
  };
  EXPECT_EQ(FastestParallel(Sizes(100), 0, -1, cliff), 8);
  // What no budget holds is not taken; one prompt at a time is left to be refused.
  const auto budget = [](const Workload& workload) -> Result<PlanReport> {
    if (workload.lengths.size() > 4) return Status(StatusCode::kOutOfBudget, "too many");
    return Planned(workload, 1.0, 0.01);
  };
  EXPECT_EQ(FastestParallel(Sizes(100), 0, -1, budget), 4);
  EXPECT_EQ(FastestParallel(Sizes(100), 0, kGiB / 2, shared), 1);
  const auto nothing = [](const Workload&) -> Result<PlanReport> {
    return Status(StatusCode::kOutOfBudget, "nothing fits");
  };
  for (const size_t count : {1, 2, 3}) {
    EXPECT_EQ(FastestParallel(Sizes(count), 0, -1, nothing), 1);
  }
  const auto unknown = [](const Workload&) -> Result<PlanReport> { return PlanReport(); };
  EXPECT_EQ(FastestParallel(Sizes(100), 0, -1, unknown), kParallelUnknown);
  EXPECT_EQ(FastestParallel(Sizes(20), 0, -1, unknown), 20);
}

TEST(WorkloadOf, IsAsLongAsTheLongestWherePlacesAreUsedAgain) {
  const std::vector<PromptSize> sizes = {{10, 5}, {100, 0}, {0, 0}};
  EXPECT_EQ(WorkloadOf(sizes, 0, 3).lengths, (std::vector<int64_t>{15, 100, 1}));
  EXPECT_EQ(WorkloadOf(sizes, 0, 2).lengths, (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(WorkloadOf(sizes, 64, 3).lengths, (std::vector<int64_t>{64, 64, 64}));
}

}  // namespace
}  // namespace headway::cli
