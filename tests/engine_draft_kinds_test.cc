// The demo model with drafts of each kind: the same tokens, text and ends as without, where the
// cache is resident, streams, lies on disk or is encoded, in sessions and batches.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_dir.h"
#include "support/api.h"
#include "support/golden.h"

namespace headway {
namespace {

EngineOptions Plain() {
  EngineOptions options;
  options.freeze_plan = true;
  return options;
}

// Drafts by lookup, by steps over a quarter of the keys or less, or by the same model again.
class Drafts : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions Drafted(EngineOptions options) const {
    options.draft = GetParam();
    // The cache of the model that drafts is there, too.
    if (model() && options.kv_memory < kNoLimit) options.kv_memory += int64_t{32} << 20;
    if (!sparse()) return options;
    options.sparse_keys = 96;
    options.sparse_sink = 16;
    options.sparse_recent = 48;
    return options;
  }
  bool sparse() const { return GetParam() == "sparse"; }
  bool model() const { return GetParam() == kDemo; }
};

struct Outcome {
  Generation generation;
  Timings timings;
};

Outcome Measured(const EngineOptions& options, const Request& request, const Hooks& hooks = {}) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(request.prompt.size()) + request.max_tokens}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  Result<std::vector<Generation>> result = (*context)->Generate({&request, 1}, hooks);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return {std::move((*result)[0]), (*context)->timings()};
}

// A prompt that quotes itself, and its continuation.
Request Quote(int64_t prompt, int64_t tokens) {
  return RequestOf(Quoting(*Open(kDemo), prompt, 100), tokens);
}

// Every token is the best of the logits that plain decode steps compute before it, as far as these
// can tell. Returns how many are the best by more than that.
int64_t ExpectGreedy(const EngineOptions& options, const Request& request,
                     const std::vector<TokenId>& tokens) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  std::vector<TokenId> all = request.prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  const auto length = std::ssize(all);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{length}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  const ModelInfo& info = engine->info();
  const ModelShape shape = {info.layers,   info.d_model, info.query_heads, info.kv_heads,
                            info.head_dim, info.d_ff,    info.vocab};
  int64_t clear = 0;
  const auto look = [&](int64_t index, std::span<const float> logits) {
    const double tolerance = GoldenTolerance(shape, length, shape.dtype, logits);
    const float chosen = logits[static_cast<size_t>(all[static_cast<size_t>(index)])];
    int64_t near = 0;
    for (const float logit : logits) near += logit >= chosen - 2 * tolerance ? 1 : 0;
    EXPECT_GE(chosen, *std::max_element(logits.begin(), logits.end()) - 2 * tolerance) << index;
    clear += near == 1 ? 1 : 0;
  };
  Context::ScorePart part;
  for (part.end = std::ssize(request.prompt) - 1; part.end < length; ++part.end) {
    EXPECT_TRUE((*context)->Score(all, part, {}).ok());
    part.begin = part.end;
    part.logits = look;
  }
  return clear;
}

TEST_P(Drafts, GreedyTokensAreTheSameWhereverTheCacheLies) {
  EngineOptions streamed = Plain(), disk = Plain(), host = Plain(), coded = Plain(),
                packed = Plain();
  streamed.kv_memory = int64_t{3} << 20;
  disk.placement = "disk-only";
  disk.disk_memory = int64_t{1} << 30;
  disk.kv_memory = int64_t{3} << 20;
  host.placement = "host-only";
  host.host_share = 0.5;
  coded.kv_encoding = "int8";
  packed.kv_encoding = "lossless";
  int64_t count = sparse() ? 400 : 1200;  // then fewer
  for (const EngineOptions& options : {Plain(), streamed, disk, host, coded, packed}) {
    const Request request = Quote(900, count);
    const Outcome drafted = Measured(Drafted(options), request);
    ASSERT_EQ(std::ssize(drafted.generation.tokens), count);
    EXPECT_GT(ExpectGreedy(options, request, drafted.generation.tokens), count / 2);
    // Of what lies on disk drafts see the open page alone.
    const bool blind = sparse() && options.placement == "disk-only";
    EXPECT_GT(drafted.timings.accepted_drafts, blind ? 0 : count / 2);
    EXPECT_EQ(drafted.timings.decode_tokens, count - 1);
    count = 300;
  }
  EXPECT_EQ(Measured(Plain(), Quote(900, 20)).timings.drafted_tokens, 0);
}

TEST_P(Drafts, SampledTextStopsAndStreamsAsWithout) {
  Request request = Quote(500, 300);
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.95f;
  request.sampling.seed = 4;
  const Generation whole = Measured(Plain(), request).generation;
  ASSERT_GT(whole.text.size(), 200u);
  for (const size_t at : {90u, 151u, 160u}) {
    request.stop = {whole.text.substr(at, 9)};
    const Generation plain = Measured(Plain(), request).generation;
    std::string shown;
    Hooks hooks;
    hooks.on_text = [&](int, std::string_view text) {
      shown += text;
      return true;
    };
    const Generation drafted = Measured(Drafted(Plain()), request, hooks).generation;
    EXPECT_EQ(plain.finish, FinishReason::kStop);
    EXPECT_EQ(drafted.finish, FinishReason::kStop);
    EXPECT_EQ(drafted.text, plain.text);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(shown, plain.text);
  }
}

// What a hook stops ends with the text that it saw last.
TEST_P(Drafts, AHookEndsAGenerationWithinAStep) {
  const Request request = Quote(500, 200);
  const auto run = [&](const EngineOptions& options) {
    int left = 30;
    Hooks hooks;
    hooks.on_text = [&](int, std::string_view) { return --left > 0; };
    return Measured(options, request, hooks).generation;
  };
  const Generation plain = run(Plain()), drafted = run(Drafted(Plain()));
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_EQ(drafted.finish, FinishReason::kCancelled);
}

// A session that was written with drafts goes on without, and the other way round.
TEST_P(Drafts, SessionsGoOn) {
  const Request first = Quote(500, 150);
  for (const bool drafts_first : {false, true}) {
    TestDir directory;
    EngineOptions options = Plain();
    options.session = directory.path() + "/session";
    const EngineOptions kinds[2] = {drafts_first ? Drafted(options) : options,
                                    drafts_first ? options : Drafted(options)};
    Request next = first;
    std::vector<TokenId> tokens;
    for (const EngineOptions& kind : kinds) {
      std::unique_ptr<Engine> engine = Open(kDemo, kind);
      Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
      ASSERT_TRUE(context.ok()) << context.status().message();
      const Generation made = *GenerateOne(**context, next);
      if (!tokens.empty()) {
        EXPECT_GT(made.reused_tokens, 600);
      }
      tokens.insert(tokens.end(), made.tokens.begin(), made.tokens.end());
      next.prompt.insert(next.prompt.end(), made.tokens.begin(), made.tokens.end());
      ASSERT_TRUE((*context)->SaveSession().ok());
    }
    Request all = first;
    all.max_tokens = 300;
    EXPECT_EQ(tokens, Measured(Plain(), all).generation.tokens);
  }
}

TEST_P(Drafts, BatchesGiveWhatEachGivesAlone) {
  std::unique_ptr<Engine> plain = Open(kDemo, Plain());
  std::vector<Request> requests;
  for (const size_t from : {0u, 60u, 120u, 180u}) {
    const auto i = static_cast<int64_t>(requests.size());
    requests.push_back(RequestOf(Quoting(*plain, 300 + 70 * i, from), 200 - 30 * i));
  }
  EngineOptions paced = Drafted(Plain());
  paced.freeze_plan = false;
  for (const EngineOptions& options : {Drafted(Plain()), paced}) {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{700, 700}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<TokenId>& tokens = (*made)[i].tokens;
      ASSERT_EQ(std::ssize(tokens), requests[i].max_tokens) << i;
      EXPECT_GT(ExpectGreedy(Plain(), requests[i], tokens), requests[i].max_tokens / 2) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Drafts, ::testing::Values("lookup", "sparse", kDemo),
                         [](const auto& param) {
                           return param.param == kDemo ? "model" : param.param;
                         });

}  // namespace
}  // namespace headway
