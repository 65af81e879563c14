// Drafts with ranks that share the model: the tokens of one rank without drafts, whatever makes
// them, and however often the first rank's clock has their number change.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "model/config.h"
#include "support/api.h"
#include "support/golden.h"
#include "support/rank_gpus.h"
#include "support/rank_options.h"

namespace headway {
namespace {

// Drafts of steps over few of 1,200 keys, where these make them.
EngineOptions Drafting(int ranks, const std::string& by) {
  EngineOptions options = OnRanks(ranks);
  options.draft = by;
  if (by == "sparse") {
    options.sparse_keys = 256;
    options.sparse_sink = 64;
    options.sparse_recent = 128;
  }
  return options;
}

const std::string kDrafters[] = {"lookup", "sparse", kDemo};

TEST(EngineTpDrafts, GreedyTokensAreThoseOfOneRank) {
  Request request;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo);
    request = RequestOf(Quoting(*engine, 1200, 10), 60);
  }
  const std::vector<TokenId> plain = Fresh(kDemo, OnRanks(1), request).tokens;
  for (const std::string& by : kDrafters) {
    for (const int ranks : {2, 5}) {
      for (const bool paced : {false, true}) {
        EngineOptions options = Drafting(ranks, by);
        options.freeze_plan = !paced;
        Timings timings;
        EXPECT_EQ(Fresh(kDemo, options, request, &timings).tokens, plain) << by << " on " << ranks;
        if (paced) continue;
        EXPECT_GT(timings.drafted_tokens, 30) << by;
        EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens / 2) << by;
      }
    }
  }
}

// What a GPU's ranks make differs from `plain` first where the logits of both tokens are as near to
// each other as another order of additions moves them.
void ExpectTie(const std::vector<TokenId>& prompt, const std::vector<TokenId>& plain,
               const std::vector<TokenId>& made) {
  const auto [first, other] = std::mismatch(plain.begin(), plain.end(), made.begin(), made.end());
  if (first == plain.end() && other == made.end()) return;
  ASSERT_TRUE(first != plain.end() && other != made.end());
  std::vector<TokenId> text = prompt;
  text.insert(text.end(), plain.begin(), first + 1);
  const Result<ModelConfig> config = ReadModelConfig(*Env::Default(), kDemo);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const std::unique_ptr<Engine> engine = Open(kDemo, OnRanks(1));
  Result<std::unique_ptr<Context>> context = engine->NewContext({{std::ssize(text)}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  Context::ScorePart part;
  double apart = 0.0, tolerance = 0.0;
  part.logits = [&](int64_t index, std::span<const float> logits) {
    if (index + 1 != std::ssize(text)) return;
    apart = std::abs(logits[static_cast<size_t>(*first)] - logits[static_cast<size_t>(*other)]);
    tolerance = GoldenTolerance(config->shape, index, DType::kBF16, logits, DType::kBF16);
  };
  const Result<Context::ScoreResult> seen = (*context)->Score(text, part, {});
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_LE(apart, 2 * tolerance) << *first << " or " << *other << " behind " << text.size() - 1;
}

// Fewer slots than requests, whose drafts end at different places, and one that is sampled; again,
// of what is cached.
TEST(EngineTpDrafts, BatchesAreThoseOfOneRank) {
  std::vector<Request> requests;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo);
    for (const int64_t n : {710, 870, 600, 820}) {
      requests.push_back(RequestOf(Quoting(*engine, n, static_cast<size_t>(n - 500)), 10 + n % 17));
    }
  }
  requests[1].sampling.temperature = 0.2f;
  requests[1].sampling.seed = 5;
  const auto tokens_of = [&](const EngineOptions& options) {
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{900, 900}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    std::vector<std::vector<TokenId>> tokens;
    for (int round = 0; round < 2; ++round) {
      Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
      EXPECT_TRUE(made.ok()) << made.status().message();
      for (const Generation& generation : *made) tokens.push_back(generation.tokens);
    }
    return tokens;
  };
  const std::vector<std::vector<TokenId>> plain = tokens_of(OnRanks(1));
  for (const std::string& by : kDrafters) {
    SCOPED_TRACE(by);
    const std::vector<std::vector<TokenId>> made = tokens_of(Drafting(3, by));
    if (!testing::RanksHaveGpus()) {
      EXPECT_EQ(made, plain);
    }
    for (size_t i = 0; i < plain.size(); ++i) {
      const Request& request = requests[i % requests.size()];
      if (request.sampling.temperature > 0.0f) continue;
      ExpectTie(request.prompt, plain[i], made[i]);
    }
  }
}

// What heads keep of prompts verifies drafts, too, and so do parts of it with several holders.
TEST(EngineTpDrafts, AreVerifiedOverPartsOfHeads) {
  EngineOptions options = OnRanks(1);
  options.evict = "snapkv";
  options.evict_budget = "384";
  options.freeze_plan = true;
  Request request;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo);
    request = RequestOf(Quoting(*engine, 710, 10), 40);
  }
  const std::vector<TokenId> plain = Fresh(kDemo, options, request).tokens;
  options.draft = "lookup";
  for (const char* assignment : {"balanced", "tokens"}) {
    options.tensor_parallel = 3;
    options.device = testing::DeviceOfRanks(3);
    options.assignment = assignment;
    Timings timings;
    EXPECT_EQ(Fresh(kDemo, options, request, &timings).tokens, plain) << assignment;
    EXPECT_GT(timings.accepted_drafts, 8) << assignment;
  }
}

// A wish to stop may come as the first rank alone drafts, or has its model read a prompt.
TEST(EngineTpDrafts, CancelledAndContinued) {
  for (const std::string& by : kDrafters) {
    EngineOptions options = Drafting(2, by);
    options.freeze_plan = true;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    const Request request = RequestOf(Quoting(*engine, 700, 10), 60);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{760}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    for (int64_t after = 1; after <= 13; after += 3) {
      std::atomic<bool> cancel = false;
      int64_t tokens = 0;
      Hooks hooks;
      hooks.cancel = &cancel;
      hooks.on_text = [&](int, std::string_view) {
        cancel = ++tokens >= after;
        return true;
      };
      const Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_EQ((*made)[0].finish, FinishReason::kCancelled);
    }
    const Result<Generation> made = GenerateOne(**context, request);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->tokens, Fresh(kDemo, OnRanks(1), request).tokens) << by;
  }
}

}  // namespace
}  // namespace headway
