// Eviction by the public API: what heads keep of prompts, and what follows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"
#include "support/head_profile.h"

namespace headway {
namespace {

EngineOptions Evicting(const std::string& method, const std::string& budget) {
  EngineOptions options;
  options.evict = method;
  options.evict_budget = budget;
  return options;
}

// The likelihood of `tokens` behind their first `prompt`, read in two parts.
double Behind(const EngineOptions& options, const std::vector<TokenId>& tokens, int64_t prompt) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(tokens.size())}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  Context::ScorePart part;
  part.end = prompt;
  EXPECT_TRUE((*context)->Score(tokens, part, {}).ok());
  part.begin = prompt;
  part.end = -1;
  const Result<Context::ScoreResult> score = (*context)->Score(tokens, part, {});
  EXPECT_TRUE(score.ok()) << score.status().message();
  return score.ok() ? score->negative_log_likelihood : NAN;
}

// What is kept is cut into segments of 512 tokens: so is the cache that it is compared with.
TEST(EngineEviction, WhoKeepsAllIsExactBitForBit) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1100, 3);
  EngineOptions exact;
  exact.segment = 512;
  const double expected = Behind(exact, tokens, 933);
  for (const char* method : {"snapkv", "streamingllm", "ada-snapkv", "defensivekv"}) {
    EXPECT_EQ(Behind(Evicting(method, "2000"), tokens, 933), expected) << method;
    EXPECT_EQ(Behind(Evicting(method, "100%"), tokens, 933), expected) << method;
  }
  EXPECT_NE(Behind(Evicting("snapkv", "128"), tokens, 933), expected);
}

// A prompt that the model repeats is as it was, but that a page that is not full is read again.
TEST(EngineEviction, WhatIsRepeatedIsThePromptAgain) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1100, 3);
  EngineOptions exact;
  exact.segment = 512;
  EXPECT_EQ(Behind(Evicting("kvzip", "100%"), tokens, 896), Behind(exact, tokens, 896));
  EngineOptions zip = Evicting("kvzip", "100%");
  zip.chunk = exact.chunk = 448;
  zip.segment = 512;
  EXPECT_EQ(Behind(zip, tokens, 933), Behind(exact, tokens, 933));
}

// Prompts are read as they are; what is kept is encoded, and so is what closes behind it.
TEST(EngineEviction, WhatIsKeptMayBeEncoded) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1100, 3);
  const double exact = Behind({}, tokens, 933);
  double error = 0.0;  // of what was encoded with more bits
  for (const char* encoding : {"int8", "int4"}) {
    EngineOptions options = Evicting("snapkv", "100%");
    options.kv_encoding = encoding;
    const double now = std::abs(Behind(options, tokens, 933) - exact);
    EXPECT_GT(now, error) << encoding;
    EXPECT_LT(now, 0.02 * exact) << encoding;
    error = now;
  }
}

// The text repeats itself after 150 tokens: whoever keeps what the window attended to, and what
// stands around it, knows how it goes on.
TEST(EngineEviction, AttentionFindsWhatIsNeeded) {
  std::vector<TokenId> tokens = Quoting(*Open(kDemo), 3000, 3);
  tokens.resize(2908);
  const double exact = Behind({}, tokens, 2900);
  const double streaming = Behind(Evicting("streamingllm", "70"), tokens, 2900);
  for (const char* method : {"snapkv", "pyramidkv", "ada-snapkv", "ada-pyramidkv", "defensivekv"}) {
    EngineOptions options = Evicting(method, "512");
    options.evict_pool = "31:max";
    EXPECT_LT(std::abs(Behind(options, tokens, 2900) - exact), 0.3 * (streaming - exact)) << method;
  }
  EXPECT_LT(std::abs(Behind(Evicting("kvzip", "512"), tokens, 2900) - exact),
            0.3 * (streaming - exact));
}

// What requests with the same prompts as before, and their answers and some tokens behind them,
// give: each alone, or all in one context.
std::vector<std::vector<TokenId>> TwoTurns(Engine& engine, std::vector<Request> requests,
                                           const std::vector<int64_t>& slots) {
  Result<std::unique_ptr<Context>> context = engine.NewContext({slots});
  EXPECT_TRUE(context.ok()) << context.status().message();
  std::vector<std::vector<TokenId>> tokens;
  for (int turn = 0; turn < 2; ++turn) {
    const Result<std::vector<Generation>> all = (*context)->Generate(requests, {});
    EXPECT_TRUE(all.ok()) << all.status().message();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation& one = (*all)[i];
      tokens.push_back(one.tokens);
      std::vector<TokenId>& prompt = requests[i].prompt;
      if (turn == 1 && requests.size() <= slots.size()) {
        EXPECT_GE(one.reused_tokens, std::ssize(prompt) - 50);
      }
      prompt.insert(prompt.end(), one.tokens.begin(), one.tokens.end());
      for (int k = 0; k < 30; ++k) prompt.push_back(prompt[prompt.size() - 150]);
    }
  }
  return tokens;
}

class EngineEvictionOf : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Methods, EngineEvictionOf, ::testing::Values("snapkv", "kvzip"));

TEST_P(EngineEvictionOf, SequencesOfABatchAreAsEachAlone) {
  const EngineOptions options = Evicting(GetParam(), "192");
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  std::vector<Request> requests;
  for (const int64_t length : {700, 230, 411}) {
    requests.push_back(RequestOf(Quoting(*engine, length, static_cast<size_t>(length) % 50), 12));
  }
  std::vector<std::vector<TokenId>> alone(6);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<std::vector<TokenId>> turns = TwoTurns(*engine, {requests[i]}, {900});
    alone[i] = turns[0];
    alone[3 + i] = turns[1];
  }
  EXPECT_EQ(TwoTurns(*engine, requests, {900, 900, 900}), alone);
  // With fewer slots than requests, prompts are read anew.
  const std::vector<std::vector<TokenId>> fewer = TwoTurns(*engine, requests, {900, 900});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(fewer[i], alone[i]) << i;
}

// --- What is not kept may stay in host memory.

EngineOptions Demoting(const std::string& method, const std::string& budget, int64_t keys) {
  EngineOptions options = Evicting(method, budget);
  options.evicted = "demote";
  options.evicted_keys = keys;
  return options;
}

// As Behind, a token at a time: each is a decode step.
double BehindInSteps(const EngineOptions& options, const std::vector<TokenId>& tokens,
                     int64_t prompt, Timings* timings = nullptr) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(tokens.size())}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  EXPECT_TRUE((*context)->Score(tokens, {0, prompt, {}}, {}).ok());
  double loss = 0.0;
  for (int64_t at = prompt; at + 1 < std::ssize(tokens); ++at) {
    const Result<Context::ScoreResult> score = (*context)->Score(tokens, {at, at + 1, {}}, {});
    EXPECT_TRUE(score.ok()) << score.status().message();
    if (score.ok()) loss += score->negative_log_likelihood;
  }
  if (timings != nullptr) *timings = (*context)->timings();
  return loss;
}

// The text repeats itself: what was not kept is found, and where all of it is read nothing is lost.
TEST(EngineEviction, DemotedTokensAreReachedAgain) {
  std::vector<TokenId> tokens = Quoting(*Open(kDemo), 3000, 3);
  tokens.resize(2908);
  const double exact = BehindInSteps({}, tokens, 2900);
  const double dropped = BehindInSteps(Evicting("streamingllm", "70"), tokens, 2900);
  EXPECT_LT(std::abs(BehindInSteps(Demoting("streamingllm", "70", 256), tokens, 2900) - exact),
            0.1 * (dropped - exact));
  for (const char* method : {"snapkv", "ada-snapkv", "kvzip"}) {
    EngineOptions all = Demoting(method, "256", 4000);
    all.evicted_refresh = 3;
    Timings timings;
    EXPECT_NEAR(BehindInSteps(all, tokens, 2900, &timings), exact, 0.01) << method;
    EXPECT_EQ(timings.demoted.steps, 7);
    EXPECT_EQ(timings.demoted.choices, 3);
  }
  // What is kept whole leaves nothing to demote.
  Timings timings;
  EXPECT_EQ(BehindInSteps(Demoting("snapkv", "100%", 64), tokens, 2900, &timings),
            BehindInSteps(Evicting("snapkv", "100%"), tokens, 2900));
  EXPECT_EQ(timings.demoted.bytes, 0);
}

// Half of the bytes, and nearly the same answer.
TEST(EngineEviction, DemotedTokensMayBeEncoded) {
  std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1100, 3);
  tokens.resize(941);
  const double exact = BehindInSteps({}, tokens, 933);
  Timings plain;
  BehindInSteps(Demoting("snapkv", "128", 256), tokens, 933, &plain);
  for (const char* encoding : {"int8", "fp8", "int4"}) {
    EngineOptions options = Demoting("snapkv", "128", 4000);
    options.kv_encoding = encoding;
    const double now = BehindInSteps(options, tokens, 933);
    EXPECT_NE(now, exact) << encoding;
    EXPECT_NEAR(now, exact, 0.03 * exact) << encoding;
    options.evicted_keys = 256;
    Timings timings;
    BehindInSteps(options, tokens, 933, &timings);
    EXPECT_LE(timings.demoted.bytes, plain.demoted.bytes / 2) << encoding;
  }
}

TEST(EngineEviction, DemotingSequencesOfABatchAreAsEachAlone) {
  EngineOptions options = Demoting("ada-snapkv", "192", 64);
  options.evicted_refresh = 2;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> alone(6);
  for (const int64_t length : {700, 230, 411}) {
    const size_t i = requests.size();
    requests.push_back(RequestOf(Quoting(*engine, length, static_cast<size_t>(length) % 50), 12));
    const std::vector<std::vector<TokenId>> turns = TwoTurns(*engine, {requests[i]}, {900});
    alone[i] = turns[0];
    alone[3 + i] = turns[1];
  }
  EXPECT_EQ(TwoTurns(*engine, requests, {900, 900, 900}), alone);
}

// A request that waits for the slot of another may go on behind what that one keeps.
TEST(EngineEviction, ARequestThatWaitsGoesOnInItsSlot) {
  EngineOptions options = Evicting("snapkv", "192");
  options.chunk = 64;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  const std::vector<TokenId> text = Quoting(*engine, 900, 9);
  std::vector<Request> requests = {RequestOf({text.begin(), text.begin() + 500}, 1),
                                   RequestOf(text, 6)};
  const auto context_of_one = [&] { return std::move(*engine->NewContext({{1000}})); };
  std::unique_ptr<Context> one_by_one = context_of_one();
  std::vector<std::vector<TokenId>> expected;
  for (const Request& request : requests) {
    expected.push_back(GenerateOne(*one_by_one, request)->tokens);
  }
  const Result<std::vector<Generation>> both = context_of_one()->Generate(requests, {});
  ASSERT_TRUE(both.ok()) << both.status().message();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ((*both)[i].tokens, expected[i]) << i;
  EXPECT_EQ((*both)[1].reused_tokens, 500);
}

TEST(EngineEviction, AConversationGoesOnBehindWhatIsKept) {
  const EngineOptions options = Evicting("snapkv", "100%");
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1200}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const std::vector<TokenId> text = Quoting(*engine, 1200, 9);
  std::vector<TokenId> prompt(text.begin(), text.begin() + 700);
  Result<Generation> first = GenerateOne(**context, RequestOf(prompt, 20));
  ASSERT_TRUE(first.ok()) << first.status().message();
  prompt.insert(prompt.end(), first->tokens.begin(), first->tokens.end());
  prompt.insert(prompt.end(), text.begin() + 720, text.begin() + 1000);
  Result<Generation> second = GenerateOne(**context, RequestOf(prompt, 8));
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->reused_tokens, 719);  // of the last one no keys were made
  EXPECT_EQ(second->tokens, Fresh(kDemo, {}, RequestOf(prompt, 8)).tokens);

  // A prompt that leaves the first one before its end needs what was let go.
  prompt.resize(500);
  prompt.push_back(7);
  Result<Generation> other = GenerateOne(**context, RequestOf(prompt, 8));
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->reused_tokens, 0);
  ASSERT_EQ(other->notices.size(), 1u);
  EXPECT_NE(other->notices[0].find("let go"), std::string::npos) << other->notices[0];
  EXPECT_EQ(other->tokens, Fresh(kDemo, options, RequestOf(prompt, 8)).tokens);
}

TEST(EngineEviction, ASequenceGrowsByItsRoom) {
  EngineOptions options = Evicting("streamingllm", "128");
  options.evict_room = 10;
  const Request request = RequestOf(Quoting(*Open(kDemo), 300, 9), 100);
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{400}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Result<Generation> result = GenerateOne(**context, request);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->tokens.size(), 11u);  // the last is not in the cache
  EXPECT_EQ(result->finish, FinishReason::kContextFull);
}

// Each head keeps whole pages, and the tokens behind the last one.
void ExpectBytesOfKept(const std::string& method, const std::string& encoding) {
  EngineOptions options = Evicting(method, "256");
  options.kv_encoding = encoding;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{2100, 2100}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const std::vector<Request> requests(2, RequestOf(Quoting(*engine, 2048, 9), 1));
  ASSERT_TRUE((*context)->Generate(requests, {}).ok());
  int64_t bytes = 0;
  for (int tier = 0; tier < 3; ++tier) bytes += (*context)->TierBytes(tier);
  const int64_t tables = engine->info().layers * engine->info().kv_heads;
  const int64_t token = engine->info().kv_bytes_per_token / tables;
  const int64_t kept = 2 * tables * 256 * token;
  if (method == "snapkv") {
    EXPECT_EQ(bytes, kept);
  } else {
    EXPECT_LE(bytes, kept * 103 / 100 + 2 * tables * 32 * token);
    EXPECT_GE(bytes, kept);
  }
}

// A plan says how many sequences fit, and what each keeps.
TEST(EngineEviction, AdmitsWhatThePlanSays) {
  for (const char* method : {"snapkv", "ada-snapkv"}) {
    EngineOptions options = Evicting(method, "512");
    options.evict_room = 64;
    options.kv_memory = 48 << 20;
    options.host_memory = 64 << 20;
    const Result<ModelPlan> plan = PlanModel(kDemo, options, {{2100}}, Explain::kNo);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const EvictionReport& report = *plan->plan.eviction;
    EXPECT_GT(report.sequences, report.whole_sequences);
    const auto lengths = [&](int64_t more) {
      return std::vector<int64_t>(static_cast<size_t>(report.sequences + more), 2100);
    };
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    EXPECT_EQ(engine->NewContext({lengths(1)}).status().code(), StatusCode::kOutOfBudget);
    Result<std::unique_ptr<Context>> context = engine->NewContext({lengths(0)});
    ASSERT_TRUE(context.ok()) << context.status().message();
    // Of each prompt the last page is whole.
    const std::vector<Request> requests(lengths(0).size(), RequestOf(Quoting(*engine, 2048, 9), 1));
    ASSERT_TRUE((*context)->Generate(requests, {}).ok());
    int64_t bytes = 0;
    for (int tier = 0; tier < 3; ++tier) bytes += (*context)->TierBytes(tier);
    const int64_t formula = report.sequences * report.kept_bytes;
    EXPECT_LE(bytes, formula);
    const int64_t page = 64 * engine->info().kv_bytes_per_token;  // half of one a head, and 3 %
    EXPECT_GE(bytes, formula * 97 / 100 - report.sequences * page / 2);
  }
}

// Host memory bounds sequences, too, where it holds what they let go of.
TEST(EngineEviction, AdmitsWhatFitsTheHost) {
  EngineOptions options = Demoting("snapkv", "512", 256);
  options.evict_room = 64;
  options.kv_memory = 100 << 20;
  options.host_memory = 64 << 20;
  const Result<ModelPlan> plan = PlanModel(kDemo, options, {{2100}}, Explain::kNo);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const EvictionReport& report = *plan->plan.eviction;
  EXPECT_EQ(report.sequences, options.host_memory / report.demoted_bytes);
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  const std::vector<int64_t> lengths(static_cast<size_t>(report.sequences), 2100);
  std::vector<int64_t> more = lengths;
  more.push_back(2100);
  EXPECT_EQ(engine->NewContext({more}).status().code(), StatusCode::kOutOfBudget);
  Result<std::unique_ptr<Context>> context = engine->NewContext({lengths});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const std::vector<Request> requests(lengths.size(), RequestOf(Quoting(*engine, 2048, 9), 1));
  ASSERT_TRUE((*context)->Generate(requests, {}).ok());
  EXPECT_EQ((*context)->TierBytes(1),
            report.sequences * (2048 - 512) * engine->info().kv_bytes_per_token);
  EXPECT_NEAR(static_cast<double>((*context)->TierBytes(1)),
              static_cast<double>(report.sequences * report.demoted_bytes),
              0.05 * static_cast<double>((*context)->TierBytes(1)));
}

TEST(EngineEviction, FreesTheRestOfThePrompt) {
  ExpectBytesOfKept("snapkv", "none");
  ExpectBytesOfKept("snapkv", "int4");
  ExpectBytesOfKept("ada-snapkv", "none");
  ExpectBytesOfKept("ada-snapkv", "int8");
}

// The budgets that a method gave, with this file's words for what went wrong.
HeadBudgets BudgetsOf(const EngineOptions& options, const std::vector<TokenId>& prompt) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(prompt.size()) + 8}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->EvictedBudgets().status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(GenerateOne(**context, RequestOf(prompt, 0)).ok());
  const Result<HeadBudgets> budgets = (*context)->EvictedBudgets();
  EXPECT_TRUE(budgets.ok()) << budgets.status().message();
  return budgets.ok() ? *budgets : HeadBudgets();
}

TEST(EngineEviction, AProfileGivesHeadsWhatTheMethodGaveThem) {
  const TestDir dir;
  EngineOptions options = Evicting("ada-snapkv", "160");
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  const ModelInfo info = engine->info();
  const std::vector<TokenId> text = Quoting(*engine, 960, 3);
  const HeadBudgets given = BudgetsOf(options, text);
  EXPECT_EQ(given.anyway, 32);
  EXPECT_EQ(std::accumulate(given.tokens.begin(), given.tokens.end(), int64_t{0}),
            160 * std::ssize(given.tokens));
  EXPECT_GT(*std::max_element(given.tokens.begin(), given.tokens.end()), 200);

  // Another text, another method: the same budgets; and twice as much beside the window.
  EngineOptions fixed = Evicting("snapkv", "160");
  fixed.evict_profile = WriteProfile(dir.File("heads.json"), info, given);
  const std::vector<TokenId> other = Quoting(*engine, 896, 40);
  EXPECT_EQ(BudgetsOf(fixed, other).tokens, given.tokens);
  fixed.evict_budget = "288";
  const HeadBudgets twice = BudgetsOf(fixed, other);
  for (size_t head = 0; head < twice.tokens.size(); ++head) {
    EXPECT_EQ(twice.tokens[head] - 32, std::min<int64_t>(2 * (given.tokens[head] - 32), 864));
  }
  // Budgets of the method itself are bit for bit those of its profile.
  fixed = Evicting("ada-snapkv", "160");
  const double own = Behind(fixed, text, 933);
  const HeadBudgets of_part = BudgetsOf(fixed, {text.begin(), text.begin() + 933});
  fixed.evict_profile = WriteProfile(dir.File("heads.json"), info, of_part);
  EXPECT_EQ(Behind(fixed, text, 933), own);
}

TEST(EngineEviction, AProfileOfAnotherModelIsRefused) {
  const TestDir dir;
  const ModelInfo info = Open(kDemo)->info();
  HeadBudgets heads;
  heads.anyway = 32;
  heads.tokens.assign(static_cast<size_t>(info.layers * info.kv_heads), 100);
  EngineOptions options = Evicting("snapkv", "160");
  options.evict_profile = WriteProfile(dir.File("heads.json"), info, heads);
  EXPECT_TRUE(Engine::Open(kDemo, options).ok());
  const Result<std::unique_ptr<Engine>> other = Engine::Open(kGolden + "llama31", options);
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("evict_profile: head profile"), std::string::npos);
  EXPECT_EQ(PlanModel(kGolden + "llama31", options, {{64}}, Explain::kNo).status().message(),
            other.status().message());
  options.evict_profile = dir.File("absent");
  EXPECT_NE(Engine::Open(kDemo, options).status().message().find("evict_profile: "),
            std::string::npos);
}

// With a profile a sequence takes no more than in even budgets, but for half a page of each head.
TEST(EngineEviction, APlanCountsSequencesOfAProfile) {
  const TestDir dir;
  const ModelInfo info = Open(kDemo)->info();
  HeadBudgets heads;
  heads.anyway = 32;
  for (int head = 0; head < info.layers * info.kv_heads; ++head) {
    heads.tokens.push_back(32 + 40 * head);
  }
  EngineOptions options = Evicting("snapkv", "1024");
  options.evict_room = 64;
  options.kv_memory = int64_t{64} << 20;
  options.host_memory = int64_t{64} << 20;
  const Result<ModelPlan> even = PlanModel(kDemo, options, {{8192}}, Explain::kNo);
  ASSERT_TRUE(even.ok()) << even.status().message();
  options.evict_profile = WriteProfile(dir.File("heads.json"), info, heads);
  const Result<ModelPlan> fixed = PlanModel(kDemo, options, {{8192}}, Explain::kNo);
  ASSERT_TRUE(fixed.ok()) << fixed.status().message();
  const EvictionReport& a = *even->plan.eviction;
  const EvictionReport& b = *fixed->plan.eviction;
  EXPECT_FALSE(a.profiled);
  EXPECT_TRUE(b.profiled);
  // Pages have 64 tokens, of which the last one of a head may have one alone.
  const int64_t of_all = info.layers * info.kv_heads;
  EXPECT_EQ(b.kept_bytes, a.kept_bytes / (of_all * 16) * (of_all * (1024 + 63) / 64));
  EXPECT_GT(b.sequences, b.whole_sequences);
  EXPECT_LE(b.sequences, a.sequences);
}

}  // namespace
}  // namespace headway
