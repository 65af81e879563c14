// Generation with drafts gives what plain generation gives: greedy tokens wherever the margin
// between the two best logits exceeds rounding, sampled tokens by the same random numbers, ends,
// limits and penalties as without.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/draft_bench.h"
#include "support/drafters.h"
#include "support/golden.h"
#include "support/grid.h"

namespace headway::testing {
namespace {

NewDrafter Knowing(const Request& request, const std::vector<TokenId>& tokens, double right) {
  return [prompt = std::ssize(request.prompt), tokens, right] {
    return std::make_unique<KnowingDrafter>(prompt, tokens, right);
  };
}

class GoldenDrafts : public ::testing::TestWithParam<std::string> {};

// All of them, over drafters that are right always, never and now and then.
TEST_P(GoldenDrafts, GreedyTokensArePlainOnes) {
  Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto prompt = std::ssize(golden->prompt);
  const ModelConfig& of_model = (*model)->config();
  const int64_t count =
      of_model.learned_positions ? std::min<int64_t>(400, of_model.max_position - prompt) : 400;
  const Request request = RequestOf(golden->prompt, count);
  const HarnessConfig config = HarnessConfig::Default();
  Bench plain(**model, config, 1, prompt + count);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  ASSERT_EQ(std::ssize(expected), count);
  for (const double right : {1.0, 0.0, 0.7}) {
    Bench drafts(**model, config, 1, prompt + count, Knowing(request, expected, right));
    const Generation got = drafts.Run(request);
    ASSERT_EQ(std::ssize(got.tokens), count);
    ExpectGreedy(**model, config, request, got.tokens, "right " + std::to_string(right));
    const Timings& timings = drafts.generator->timings();
    EXPECT_GT(timings.drafted_tokens, 0);
    EXPECT_EQ(timings.decode_tokens, count - 1);
    EXPECT_EQ(drafts.harness->store().Length(*drafts.generator->slots()[0].sequence),
              prompt + count - 1);
    EXPECT_EQ(std::ssize(drafts.generator->slots()[0].tokens), prompt + count - 1);
    // With the plain tokens all is right, and all is wrong.
    if (got.tokens != expected) continue;
    if (right == 1.0) {
      EXPECT_EQ(timings.accepted_drafts, timings.drafted_tokens);
    }
    if (right == 0.0) {
      EXPECT_LT(timings.accepted_drafts, timings.drafted_tokens / 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenDrafts, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

// The same seed gives the same tokens, with every option of sampling.
TEST(GeneratorDrafts, SampledTokensAreThoseWithoutDrafts) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  for (int kind = 0; kind < kSamplingKinds; ++kind) {
    Request request = RequestOf(RandomTokens(70, 96, 3), 500);
    request.sampling = SamplingOfKind(kind);
    Bench plain(*model, {}, 1, 570);
    const std::vector<TokenId> expected = plain.Run(request).tokens;
    for (const double right : {1.0, 0.6}) {
      Bench drafts(*model, {}, 1, 570, Knowing(request, expected, right));
      EXPECT_EQ(drafts.Run(request).tokens, expected) << "kind " << kind << " right " << right;
      EXPECT_GT(drafts.generator->timings().accepted_drafts, 100);
    }
  }
}

// Of the model's own ends, and of ends that are proposed where there is none.
TEST(GeneratorDrafts, EndsEndWhereTheyWould) {
  ModelConfig config = TinyConfig(DType::kF32);
  config.eos = {5, 17};
  const std::unique_ptr<Model> model = Tiny(config);
  int ended = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Request request = RequestOf(RandomTokens(20, 96, seed), 60);
    request.ignore_eos = false;
    request.sampling.temperature = 1.5f;
    request.sampling.seed = seed;
    Bench plain(*model, {}, 1, 80);
    const Generation expected = plain.Run(request);
    ended += expected.finish == FinishReason::kEos ? 1 : 0;
    std::vector<TokenId> known = expected.tokens;
    known.insert(known.end(), {5, 5, 5});
    const NewDrafter stubborn = [] { return std::make_unique<StubbornDrafter>(17); };
    for (const NewDrafter& drafter : {Knowing(request, known, 1.0), stubborn}) {
      Bench drafts(*model, {}, 1, 80, drafter);
      const Generation got = drafts.Run(request);
      EXPECT_EQ(got.tokens, expected.tokens) << seed;
      EXPECT_EQ(got.finish, expected.finish) << seed;
      EXPECT_EQ(drafts.harness->store().Length(*drafts.generator->slots()[0].sequence),
                plain.harness->store().Length(*plain.generator->slots()[0].sequence));
    }
  }
  EXPECT_GT(ended, 10);
}

// No step goes beyond the context, and none drafts more than is asked for.
TEST(GeneratorDrafts, LimitsAreKept) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  for (int64_t count : {1, 2, 3, 8, 9, 17, 40}) {
    const Request request = RequestOf(RandomTokens(20, 96, 1), count);
    Bench plain(*model, {}, 1, 50);
    const Generation expected = plain.Run(request);
    Bench drafts(*model, {}, 1, 50, Knowing(request, expected.tokens, 1.0));
    const Generation got = drafts.Run(request);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.finish, expected.finish);
  }
}

// What a hook stops has no tokens behind the one at which it did; and the slot goes on from there.
TEST(GeneratorDrafts, CancelledAndContinued) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const Request request = RequestOf(RandomTokens(40, 96, 2), 100);
  Bench plain(*model, {}, 1, 200);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  Bench drafts(*model, {}, 1, 200, Knowing(request, expected, 1.0));
  std::atomic<bool> stop = false;
  Hooks hooks;
  hooks.on_progress = [&](const Progress& progress) {
    stop = progress.phase == Progress::Phase::kDecode && progress.done > 20;
  };
  hooks.cancel = &stop;
  const Generation cancelled = drafts.Run(request, hooks);
  EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
  EXPECT_TRUE(std::equal(cancelled.tokens.begin(), cancelled.tokens.end(), expected.begin()));
  const Generation again = drafts.Run(request);
  EXPECT_EQ(again.tokens, expected);
  EXPECT_GT(again.reused_tokens, 0);
}

// More requests than slots, which share steps with prompts, each with its own drafts.
TEST(GeneratorDrafts, BatchesGiveWhatEachGivesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int64_t i = 0; i < 7; ++i) {
    requests.push_back(RequestOf(RandomTokens(10 + 23 * i, 96, 40 + i), 150 - 10 * i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    Bench alone(*model, {}, 1, 320);
    expected.push_back(alone.Run(requests.back()).tokens);
  }
  size_t next = 0;
  const NewDrafter drafter = [&]() -> std::unique_ptr<Drafter> {
    const size_t i = next++;
    if (i == 3) return std::make_unique<StubbornDrafter>(3);
    return std::make_unique<KnowingDrafter>(std::ssize(requests[i].prompt), expected[i],
                                            0.5 + 0.08 * static_cast<double>(i));
  };
  HarnessConfig config;
  config.chunk = 16;  // fewer than the drafts of three sequences
  Bench drafts(*model, config, 3, 320, drafter);
  Result<std::vector<Generation>> got = drafts.generator->Generate(requests, {});
  ASSERT_TRUE(got.ok()) << got.status().message();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*got)[i].tokens, expected[i]) << i;
}

}  // namespace
}  // namespace headway::testing
