// Eviction by the public API: what heads keep of prompts, and what follows.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headway/engine.h"
#include "support/api.h"

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

TEST(EngineEviction, SequencesOfABatchAreAsEachAlone) {
  const EngineOptions options = Evicting("snapkv", "192");
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

TEST(EngineEviction, FreesTheRestOfThePrompt) {
  ExpectBytesOfKept("snapkv", "none");
  ExpectBytesOfKept("snapkv", "int4");
  ExpectBytesOfKept("ada-snapkv", "none");
  ExpectBytesOfKept("ada-snapkv", "int8");
}

}  // namespace
}  // namespace headway
