// The public API: generation, batches, budgets, cancelling, several engines at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"

namespace headway {
namespace {

TEST(EngineApi, ABatchEqualsItsRequestsAlone) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  std::vector<Request> requests;
  std::vector<int64_t> lengths;
  for (int64_t n : {310, 370, 700, 1500}) {
    requests.push_back(RequestOf(Quoting(*engine, n, static_cast<size_t>(n)), 12));
    lengths.push_back(n + 12);
  }
  Result<std::unique_ptr<Context>> context = engine->NewContext({lengths});
  ASSERT_TRUE(context.ok()) << context.status().message();
  Result<std::vector<Generation>> batch = (*context)->Generate(requests, {});
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ((*batch)[i].tokens, Fresh(kDemo, {}, requests[i]).tokens) << "request " << i;
  }
}

// Requests that are more than the sequences take the places of those that end, and read their
// prompts in steps in which others decode.
TEST(EngineApi, RequestsThatWaitEqualThemselvesAlone) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  std::vector<Request> requests;
  for (const int64_t n : {310, 1200, 370, 640, 420, 300, 500}) {
    requests.push_back(RequestOf(Quoting(*engine, n, static_cast<size_t>(n)), 4 + n % 9));
  }
  const std::string early = Fresh(kDemo, {}, requests[2]).text.substr(3, 4);
  requests[2].stop = {early};
  requests[4].max_tokens = 0;
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1300, 1300, 1300}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::vector<int> done;
  std::vector<std::string> texts(requests.size());
  Hooks hooks;
  hooks.on_done = [&](int request, const Generation&) { done.push_back(request); };
  hooks.on_text = [&](int request, std::string_view text) {
    texts[static_cast<size_t>(request)] += text;
    return true;
  };
  Result<std::vector<Generation>> batch = (*context)->Generate(requests, hooks);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  ASSERT_EQ(batch->size(), requests.size());
  int64_t made = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Generation alone = Fresh(kDemo, {}, requests[i]);
    EXPECT_EQ((*batch)[i].tokens, alone.tokens) << "request " << i;
    EXPECT_EQ((*batch)[i].text, alone.text) << "request " << i;
    EXPECT_EQ((*batch)[i].finish, alone.finish) << "request " << i;
    EXPECT_EQ(texts[i], alone.text) << "request " << i;
    made += static_cast<int64_t>(alone.tokens.size());
  }
  EXPECT_EQ((*batch)[2].finish, FinishReason::kStop);
  EXPECT_TRUE((*batch)[4].tokens.empty());
  std::sort(done.begin(), done.end());
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_GT((*context)->timings().decode_tokens, 0);
  EXPECT_LE((*context)->timings().decode_tokens, made);
  // One that fits no sequence is refused before anything runs.
  requests[6].prompt = Quoting(*engine, 1301, 1);
  EXPECT_EQ((*context)->Generate(requests, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineApi, ACancelledBatchKeepsWhatHasEnded) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i)
    requests.push_back(RequestOf(Quoting(*engine, 300, 1), 3 + 30 * (i % 2)));
  Result<std::unique_ptr<Context>> context = engine->NewContext({{400, 400}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::atomic<bool> cancel = false;
  Hooks hooks;
  hooks.cancel = &cancel;
  hooks.on_done = [&](int, const Generation&) { cancel = true; };
  Result<std::vector<Generation>> batch = (*context)->Generate(requests, hooks);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  EXPECT_EQ((*batch)[0].finish, FinishReason::kLength);
  EXPECT_EQ((*batch)[0].tokens.size(), 3u);
  for (size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ((*batch)[i].finish, FinishReason::kCancelled) << i;
  }
}

TEST(EngineApi, ALaterPromptContinuesFromTheCache) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{2000}});
  ASSERT_TRUE(context.ok());
  std::vector<TokenId> prompt = Quoting(*engine, 1000, 3);
  Result<Generation> first = GenerateOne(**context, RequestOf(prompt, 8));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->reused_tokens, 0);
  prompt.insert(prompt.end(), first->tokens.begin(), first->tokens.end());
  const std::vector<TokenId> more = Quoting(*engine, 400, 4);
  prompt.insert(prompt.end(), more.begin(), more.end());
  Result<Generation> second = GenerateOne(**context, RequestOf(prompt, 8));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->reused_tokens, 960);  // 1007 are cached; whole pages of 64 are kept
  EXPECT_EQ((*context)->timings().prefill_tokens, 1408 - 960);
  EXPECT_EQ(second->tokens, Fresh(kDemo, {}, RequestOf(prompt, 8)).tokens);
}

TEST(EngineApi, SharesOutOfRangeAreRefusedByPlansToo) {
  for (double EngineOptions::*share :
       {&EngineOptions::host_share, &EngineOptions::recompute_share}) {
    for (const double value : {-0.5, 1.5, std::nan("")}) {
      EngineOptions options;
      options.*share = value;
      EXPECT_EQ(Engine::Open(kDemo, options).status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(PlanModel(kDemo, options, {{100}}, Explain::kNo).status().code(),
                StatusCode::kInvalidArgument);
    }
  }
}

// Of 8 layers and 4 KV heads of 64 elements.
TEST(EngineApi, ATokenHasTheBytesOfItsEncoding) {
  EngineOptions options;
  EXPECT_EQ(Open(kDemo, options)->info().kv_bytes_per_token, 32 * 256);
  options.kv_encoding = "fp8";
  EXPECT_EQ(Open(kDemo, options)->info().kv_bytes_per_token, 32 * (128 + 8));
  options.kv_encoding = "int4";
  EXPECT_EQ(Open(kDemo, options)->info().kv_bytes_per_token, 32 * (64 + 8));
}

TEST(EngineApi, DynamicRopePrefillsAgainForAnotherLengthAndSaysSo) {
  std::unique_ptr<Engine> engine = Open(kGolden + "llama-dynamic");
  const int64_t trained = engine->info().max_position;
  const int vocab = engine->info().vocab;
  Result<std::unique_ptr<Context>> context = engine->NewContext({{4 * trained + 300}});
  ASSERT_TRUE(context.ok());
  std::vector<TokenId> prompt = Tokens(trained + 70, vocab, 6);
  ASSERT_TRUE(GenerateOne(**context, RequestOf(prompt, 2)).ok());
  prompt.resize(static_cast<size_t>(2 * trained + 140), 5);
  Result<Generation> longer = GenerateOne(**context, RequestOf(prompt, 4));
  ASSERT_TRUE(longer.ok()) << longer.status().message();
  EXPECT_EQ(longer->reused_tokens, 0);
  ASSERT_EQ(longer->notices.size(), 1u);
  EXPECT_NE(longer->notices[0].find("dynamic"), std::string::npos);
  EXPECT_EQ(longer->tokens, Fresh(kGolden + "llama-dynamic", {}, RequestOf(prompt, 4)).tokens);
}

// A call that is refused leaves the cache as it was, and what is known of it.
TEST(EngineApi, APartThatIsNotNextLeavesTheCacheAlone) {
  std::unique_ptr<Engine> engine = Open(kGolden + "llama-dynamic");
  const int64_t trained = engine->info().max_position;
  Result<std::unique_ptr<Context>> context = engine->NewContext({{4 * trained + 300}});
  ASSERT_TRUE(context.ok());
  std::vector<TokenId> prompt = Tokens(trained + 70, engine->info().vocab, 6);
  ASSERT_TRUE(GenerateOne(**context, RequestOf(prompt, 2)).ok());
  prompt.resize(static_cast<size_t>(2 * trained + 140), 5);
  Context::ScorePart part;
  part.begin = 3;
  EXPECT_EQ((*context)->Score(prompt, part, {}).status().code(), StatusCode::kInvalidArgument);
  Result<Generation> longer = GenerateOne(**context, RequestOf(prompt, 4));
  ASSERT_TRUE(longer.ok()) << longer.status().message();
  EXPECT_EQ(longer->reused_tokens, 0);
  EXPECT_EQ(longer->tokens, Fresh(kGolden + "llama-dynamic", {}, RequestOf(prompt, 4)).tokens);
}

TEST(EngineApi, LearnedPositionsBoundTheContext) {
  std::unique_ptr<Engine> engine = Open(kGolden + "opt");
  const int64_t most = engine->info().max_position;
  EXPECT_EQ(most, 200);
  const Status refused = engine->NewContext({{most + 1}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "a context of 201 tokens, and this OPTForCausalLM has learned 200 positions; use a "
            "context of at most so many");
  Result<std::unique_ptr<Context>> context = engine->NewContext({{most}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const std::vector<TokenId> prompt = Tokens(most - 8, engine->info().vocab, 6);
  Result<Generation> filled = GenerateOne(**context, RequestOf(prompt, 50));
  ASSERT_TRUE(filled.ok()) << filled.status().message();
  EXPECT_EQ(filled->finish, FinishReason::kContextFull);
  EXPECT_EQ(filled->tokens.size(), 9u);  // the last one needs no position
}

TEST(EngineApi, FreedWindowPagesArePrefilledAgainAndSaidSo) {
  EngineOptions options;
  options.page_slots = 8;
  options.segment = 8;
  std::unique_ptr<Engine> engine = Open(kGolden + "mistral-window", options);
  const int vocab = engine->info().vocab;
  Result<std::unique_ptr<Context>> context = engine->NewContext({{600}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::vector<TokenId> prompt = Tokens(500, vocab, 7);
  ASSERT_TRUE(GenerateOne(**context, RequestOf(prompt, 2)).ok());
  prompt.resize(200);  // far behind the window of what the cache holds
  prompt.push_back(3);
  Result<Generation> result = GenerateOne(**context, RequestOf(prompt, 4));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->reused_tokens, 0);
  ASSERT_EQ(result->notices.size(), 1u);
  EXPECT_NE(result->notices[0].find("window"), std::string::npos);
  EXPECT_EQ(result->tokens,
            Fresh(kGolden + "mistral-window", options, RequestOf(prompt, 4)).tokens);
}

TEST(EngineApi, CancellingKeepsWholePagesForTheNextTry) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{4100}});
  ASSERT_TRUE(context.ok());
  const Request request = RequestOf(Quoting(*engine, 4000, 8), 8);
  std::atomic<bool> cancel = false;
  Hooks hooks;
  hooks.cancel = &cancel;
  hooks.on_progress = [&](const Progress& progress) { cancel = progress.done >= 2048; };
  Result<std::vector<Generation>> stopped = (*context)->Generate({&request, 1}, hooks);
  ASSERT_TRUE(stopped.ok()) << stopped.status().message();
  EXPECT_EQ((*stopped)[0].finish, FinishReason::kCancelled);
  Result<Generation> again = GenerateOne(**context, request);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->reused_tokens, 2048);
  EXPECT_EQ(again->tokens, Fresh(kDemo, {}, request).tokens);
}

TEST(EngineApi, EnginesLiveSideBySide) {
  const Request request = RequestOf(Tokens(300, 8000, 9), 16);
  const Generation expected = Fresh(kDemo, {}, request);
  std::vector<std::thread> threads;
  std::vector<Generation> got(3);
  for (size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = Fresh(kDemo, {}, request); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Generation& generation : got) EXPECT_EQ(generation.tokens, expected.tokens);
}

TEST(EngineApi, StopsAndLimits) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::vector<TokenId>> prompt = engine->Encode("It was a bright morning, and the", {});
  ASSERT_TRUE(prompt.ok());
  Result<std::unique_ptr<Context>> context = engine->NewContext({{60}});
  ASSERT_TRUE(context.ok());
  Result<Generation> full = GenerateOne(**context, RequestOf(*prompt, 30));
  ASSERT_TRUE(full.ok());
  ASSERT_GT(full->text.size(), 20u);
  Request request = RequestOf(*prompt, 30);
  request.stop = {full->text.substr(12, 4)};
  Result<Generation> stopped = GenerateOne(**context, request);
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->finish, FinishReason::kStop);
  EXPECT_EQ(stopped->text, full->text.substr(0, full->text.find(request.stop[0])));
  Result<Generation> cut = GenerateOne(**context, RequestOf(*prompt, 1000));
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->finish, FinishReason::kContextFull);
  EXPECT_EQ(cut->prompt_tokens + static_cast<int64_t>(cut->tokens.size()), 61);
}

// The hook refuses the text before a stop string that comes in the same token.
TEST(EngineApi, ARequestThatIsEndedAtItsStopEndsOnce) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::vector<TokenId>> prompt = engine->Encode("It was a bright morning, and the", {});
  ASSERT_TRUE(prompt.ok());
  Result<std::unique_ptr<Context>> context = engine->NewContext({{60}});
  ASSERT_TRUE(context.ok());
  Request request = RequestOf(*prompt, 30);
  Result<Generation> full = GenerateOne(**context, request);
  ASSERT_TRUE(full.ok());
  std::string before;
  for (const TokenId token : full->tokens) {
    const std::string text = *engine->Decode({&token, 1}, SpecialTokens::kSkip);
    const std::string stop = text.substr(std::min<size_t>(1, text.size()));
    if (stop.size() > 2 && full->text.find(stop) == before.size() + 1) request.stop = {stop};
    if (!request.stop.empty()) break;
    before += text;
  }
  ASSERT_FALSE(request.stop.empty());
  std::string shown;
  std::vector<FinishReason> ends;
  Hooks hooks;
  hooks.on_text = [&](int, std::string_view text) {
    shown += text;
    return shown.size() <= before.size();
  };
  hooks.on_done = [&](int, const Generation& done) { ends.push_back(done.finish); };
  Result<std::vector<Generation>> result = (*context)->Generate({&request, 1}, hooks);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(shown, full->text.substr(0, before.size() + 1));
  EXPECT_EQ(ends, std::vector<FinishReason>{FinishReason::kCancelled});
  EXPECT_EQ((*result)[0].finish, FinishReason::kCancelled);
}

TEST(EngineApi, BadRequestsAreRefusedInOneLine) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{50}});
  ASSERT_TRUE(context.ok());
  const auto error = [&](const Request& request) {
    Result<Generation> result = GenerateOne(**context, request);
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
    return result.status().message();
  };
  EXPECT_NE(error(RequestOf({}, 5)).find("empty"), std::string::npos);
  EXPECT_NE(error(RequestOf(Tokens(51, 8000, 1), 5)).find("51 tokens"), std::string::npos);
  EXPECT_NE(error(RequestOf({9000}, 5)).find("9000"), std::string::npos);
  Request hot = RequestOf({1}, 5);
  hot.sampling.temperature = -1.0f;
  EXPECT_NE(error(hot).find("temperature"), std::string::npos);
  for (const TokenId token : {-1, 8192, 1 << 30}) {
    const std::vector<TokenId> tokens = {1, 2, 3, token, 4};
    for (const int64_t from : {2, 3}) {
      const Status profiled = (*context)->FarAttention(tokens, from, 1, 1, {}).status();
      EXPECT_NE(profiled.message().find(std::to_string(token)), std::string::npos)
          << profiled.message();
    }
    EXPECT_FALSE((*context)->Score(tokens, {}).ok());
  }
  const Status recall = (*context)->RecallOfSelection(Tokens(5, 8000, 1), 3, {}).status();
  EXPECT_NE(recall.message().find("of a selector"), std::string::npos) << recall.message();
  EXPECT_FALSE((*context)->RecallOfSelection(Tokens(5, 8000, 1), 5, {}).ok());

  for (int64_t EngineOptions::*tokens : {&EngineOptions::chunk, &EngineOptions::segment}) {
    EngineOptions options;
    options.*tokens = int64_t{1} << 40;  // so many that their pages are not counted in 32 bits
    const Status cut = Open(kDemo, options)->NewContext({{50}}).status();
    EXPECT_EQ(cut.message(), "a chunk or segment has at most 1073741824 tokens");
  }
  for (const int threads : {-1, 1025}) {
    EngineOptions options;
    options.threads = threads;
    EXPECT_EQ(Engine::Open(kDemo, options).status().message(), "threads must be 0 to 1024");
  }

  EngineOptions tiny;
  tiny.kv_memory = 1000;
  std::unique_ptr<Engine> small = Open(kDemo, tiny);
  Result<std::unique_ptr<Context>> none = small->NewContext({{5000}});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("kv_memory"), std::string::npos);
  EXPECT_EQ(Engine::Open("/nonexistent", {}).status().code(), StatusCode::kNotFound);
  tiny.placement = "sideways";
  EXPECT_EQ(Engine::Open(kDemo, tiny).status().code(), StatusCode::kInvalidArgument);
  EngineOptions policy;
  policy.policy = "alphabetical";
  EXPECT_EQ(Engine::Open(kDemo, policy).status().code(), StatusCode::kInvalidArgument);
  policy.policy = "headinfer";
  policy.head_group = 2;
  EXPECT_EQ(Engine::Open(kDemo, policy).status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineApi, ScoreSumsEveryPrediction) {
  std::unique_ptr<Engine> engine = Open(kDemo);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1500}});
  ASSERT_TRUE(context.ok());
  const std::vector<TokenId> tokens = Tokens(1300, 8000, 12);
  Result<Context::ScoreResult> score = (*context)->Score(tokens, {});
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_EQ(score->predictions, 1299);
  EXPECT_GT(score->negative_log_likelihood / 1299, std::log(8192.0));  // random tokens surprise
}

// What is taken of the logits where they are is what the logits say, and seeing them changes
// nothing.
TEST(EngineApi, ScoreIsThatOfTheLogits) {
  EngineOptions options;
  options.chunk = 200;
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{500}});
  ASSERT_TRUE(context.ok());
  const std::vector<TokenId> tokens = Tokens(475, 8000, 12);
  Context::ScorePart part;
  double sum = 0.0;
  int64_t next = 1;
  part.logits = [&](int64_t index, std::span<const float> logits) {
    EXPECT_EQ(index, next++);
    const double largest = *std::max_element(logits.begin(), logits.end());
    double all = 0.0;
    for (const float logit : logits) all += std::exp(double{logit} - largest);
    const float target = logits[static_cast<size_t>(tokens[static_cast<size_t>(index)])];
    sum += largest - double{target} + std::log(all);
  };
  Result<Context::ScoreResult> seen = (*context)->Score(tokens, part, {});
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(next, 475);
  // The bound of NegativeLogLikelihood, each.
  EXPECT_NEAR(seen->negative_log_likelihood, sum, 474 * (1.5e-8 + 8192 * 0x1p-40));
  Result<Context::ScoreResult> score = (*context)->Score(tokens, {});
  ASSERT_TRUE(score.ok()) << score.status().message();
  EXPECT_EQ(score->negative_log_likelihood, seen->negative_log_likelihood);
}

TEST(EngineApi, ScoreOfADamagedModelSaysWhichWeight) {
  const TestDir dir;
  const std::string folder = dir.File("model");
  std::filesystem::copy(kGolden + "llama2", folder);
  const std::string weights = folder + "/model.safetensors";
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(weights));
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(size / 2);  // NaN from here on
  for (std::streamoff i = size / 2; i < size; ++i) file.put('\xFF');
  file.close();
  std::unique_ptr<Engine> engine = Open(folder);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{50}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Status status = (*context)->Score(Tokens(50, 60, 3), {}).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("model.layers."), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headway
