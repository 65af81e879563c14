// The public API with ranks that share the model: the same tokens as on one rank, and one error
// where one of them fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "base/bytes.h"
#include "base/fault_env.h"
#include "base/test_dir.h"
#include "engine/open.h"
#include "headway/refusal.h"
#include "support/api.h"
#include "support/head_profile.h"
#include "support/rank_gpus.h"
#include "support/rank_options.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

// Four KV heads on 1 to 5 ranks: of three one has two, of five one has none.
TEST(EngineTp, GreedyTokensAreThoseOfOneRank) {
  Request request;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo);
    request = RequestOf(Quoting(*engine, 700, 40), 24);
  }
  const Generation one = Fresh(kDemo, OnRanks(1), request);
  for (const int ranks : {2, 3, 4, 5}) {
    const Generation made = Fresh(kDemo, OnRanks(ranks), request);
    EXPECT_EQ(made.tokens, one.tokens) << ranks << " ranks";
    EXPECT_EQ(made.text, one.text);
  }
}

// Under budgets that send the cache to host and disk, in every share that ranks have of them.
TEST(EngineTp, BudgetsAreShared) {
  Request request;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo);
    request = RequestOf(Quoting(*engine, 1200, 90), 12);
  }
  const Generation one = Fresh(kDemo, OnRanks(1), request);
  TestDir dir;
  for (const char* placement : {"auto", "host-only", "disk-only"}) {
    EngineOptions options = OnRanks(2);
    options.placement = placement;
    options.disk_path = dir.File("");
    options.disk_memory = 64 * kMiB;
    options.chunk = 256;
    options.segment = 256;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    const Result<PlanReport> plan = engine->Plan({{1300}});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    if (options.placement == "auto") {
      options.kv_memory = plan->smallest_kv_memory + kMiB;
      options.host_memory = 2 * kMiB;
    }
    EXPECT_EQ(Fresh(kDemo, options, request).tokens, one.tokens) << placement;
  }
  EngineOptions small = OnRanks(2);
  small.kv_memory = kMiB / 4;
  small.host_memory = 0;
  const Status refused = Open(kDemo, small)->NewContext({{4000}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(refused.message(), HasSubstr("each of 2 ranks"));
}

// Each rank has the streaming heads that are its own, whose numbers differ from rank to rank and
// from layer to layer, under a budget that is the least of the plan's.
TEST(EngineTp, HeadPatternsAreThoseOfOneRank) {
  const std::unique_ptr<Engine> engine = Open(kDemo);
  const Request request = RequestOf(Quoting(*engine, 1200, 90), 16);
  const TestDir dir;
  const int layers = engine->info().layers, heads = engine->info().kv_heads;
  ASSERT_EQ(heads, 4);
  // The first two heads keep everything; the last two; all or none; and others.
  const char* const lines[][4] = {{"1\t1\t0\t0", "1\t1\t0\t0", "1\t1\t0\t0", "1\t1\t0\t0"},
                                  {"0\t0\t1\t1", "0\t0\t1\t1", "0\t0\t1\t1", "0\t0\t1\t1"},
                                  {"1\t1\t1\t1", "0\t0\t0\t0", "1\t0\t0\t1", "0\t1\t0\t0"}};
  for (size_t pattern = 0; pattern < 3; ++pattern) {
    SCOPED_TRACE("pattern " + std::to_string(pattern));
    const std::string file = dir.File("heads" + std::to_string(pattern) + ".tsv");
    std::ofstream out(file);
    for (int layer = 0; layer < layers; ++layer) out << lines[pattern][layer % 4] << "\n";
    out.close();
    const auto with = [&](int ranks) {
      EngineOptions options = OnRanks(ranks);
      options.head_pattern = file;
      options.sink_tokens = 16;
      options.recent_tokens = 200;
      options.chunk = 256;
      options.segment = 256;
      return options;
    };
    const Generation one = Fresh(kDemo, with(1), request);
    for (const int ranks : {2, 3, 4, 5}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      EngineOptions options = with(ranks);
      EXPECT_EQ(Fresh(kDemo, options, request).tokens, one.tokens);
      const Result<ModelPlan> planned = PlanModel(kDemo, options, {{1216}}, Explain::kNo);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      if (testing::RanksHaveGpus()) continue;
      options.kv_memory = planned->plan.smallest_kv_memory;
      EXPECT_EQ(Fresh(kDemo, options, request).tokens, one.tokens);
    }
  }
}

TEST(EngineTp, BatchesSamplingAndScoresAreThoseOfOneRank) {
  std::unique_ptr<Engine> one = Open(kDemo, OnRanks(1)), three = Open(kDemo, OnRanks(3));
  EXPECT_EQ(three->info().kv_heads, one->info().kv_heads);
  EXPECT_EQ(three->info().kv_bytes_per_token, one->info().kv_bytes_per_token);
  std::vector<Request> requests;
  for (const int64_t n : {310, 370, 500, 420}) {
    requests.push_back(RequestOf(Quoting(*one, n, static_cast<size_t>(n)), 10));
  }
  requests[1].sampling.temperature = 0.2f;
  requests[1].sampling.seed = 5;
  std::vector<TokenId> tokens[2];
  double losses[2];
  for (const bool ranks : {false, true}) {
    // Fewer slots than requests: some begin as others decode.
    Result<std::unique_ptr<Context>> context = (ranks ? three : one)->NewContext({{520, 520}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    for (int round = 0; round < 2; ++round) {  // again, of what is cached
      Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
      ASSERT_TRUE(made.ok()) << made.status().message();
      for (const Generation& generation : *made) {
        tokens[ranks].insert(tokens[ranks].end(), generation.tokens.begin(),
                             generation.tokens.end());
      }
    }
    EXPECT_GT((*context)->TierBytes(0), 0);
    for (const auto phase : {Progress::Phase::kPrefill, Progress::Phase::kDecode}) {
      const std::vector<std::vector<double>> attended = (*context)->AttendSeconds(phase);
      ASSERT_EQ(attended.size(), ranks ? 3u : 1u);
      for (const std::vector<double>& layers : attended) {
        ASSERT_EQ(layers.size(), static_cast<size_t>(one->info().layers));
        if (testing::RanksHaveGpus()) continue;  // whose kernels are not timed
        EXPECT_GT(*std::min_element(layers.begin(), layers.end()), 0.0);
      }
    }
    size_t seen = 0;
    Context::ScorePart part;
    part.logits = [&](int64_t, std::span<const float> logits) {
      seen += static_cast<int64_t>(logits.size()) == one->info().vocab ? 1 : 0;
    };
    const auto score = (*context)->Score(requests[0].prompt, part, {});
    ASSERT_TRUE(score.ok()) << score.status().message();
    EXPECT_EQ(seen, requests[0].prompt.size() - 1);
    losses[ranks] = score->negative_log_likelihood;
    (*context)->Reset();
    EXPECT_EQ((*context)->TierBytes(0), 0);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  // bf16 keys and values: 2^-8 of what they are made of, in eight layers.
  EXPECT_NEAR(losses[0], losses[1], 0x1p-8 * losses[0]);
}

// What the first rank's hooks say counts for all.
TEST(EngineTp, HooksEndRequestsOnAllRanks) {
  const std::unique_ptr<Engine> engine = Open(kDemo, OnRanks(3));
  const Request request = RequestOf(Quoting(*engine, 400, 10), 50);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{500}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  int calls = 0;
  Hooks hooks;
  hooks.on_text = [&](int, std::string_view) { return ++calls < 4; };
  Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(calls, 4);
  EXPECT_EQ((*made)[0].finish, FinishReason::kCancelled);

  std::atomic<bool> cancel = false;
  int steps = 0;
  Hooks stopping;
  stopping.cancel = &cancel;
  stopping.on_progress = [&](const Progress&) { cancel = ++steps > 5; };
  made = (*context)->Generate({&request, 1}, stopping);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)[0].finish, FinishReason::kCancelled);
  EXPECT_LT((*made)[0].tokens.size(), 50u);

  // What is refused before anything runs leaves the context as it is.
  const Request empty;
  EXPECT_EQ((*context)->Generate({&empty, 1}, {}).status().message(), "the prompt is empty");
  made = (*context)->Generate({&request, 1}, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)[0].tokens, Fresh(kDemo, OnRanks(1), request).tokens);
}

// Reads of the disk fail from some call on, on whichever rank that is: all end, with one error.
TEST(EngineTp, OneErrorEndsAll) {
  TestDir dir;
  int failed = 0;
  for (int64_t call = 4; call < 400; call = call * 3 / 2 + 1) {
    FaultEnv env(Env::Default());
    EngineOptions options = OnRanks(3);
    options.placement = "disk-only";
    options.disk_memory = 64 * kMiB;
    options.disk_path = dir.File("");
    options.chunk = 64;
    options.segment = 64;
    options.page_slots = 16;
    Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(&env, kGolden + "llama31", options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{460}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    env.SetKinds(kFaultRead | kFaultWrite);
    env.FailAt(call);
    const Request request = RequestOf(Tokens(440, 160, 3), 8);
    const Result<Generation> made = GenerateOne(**context, request);
    if (made.ok()) continue;
    ++failed;
    EXPECT_THAT(made.status().message(), HasSubstr("of 3: "));
    // Ranks are at different points: the context is of no more use, and says why.
    EXPECT_EQ(GenerateOne(**context, request).status().message(), made.status().message());
  }
  EXPECT_GT(failed, 3);
}

TEST(EngineTp, WhatRanksDoNotDoYetIsRefusedByName) {
  const auto refusal = [](const EngineOptions& options, const std::string& model = kDemo) {
    return Engine::Open(model, options).status().message();
  };
  EXPECT_THAT(refusal(OnRanks(0)), HasSubstr("tensor_parallel: 1 to 64 ranks are possible"));
  EXPECT_THAT(refusal(OnRanks(65)), HasSubstr("1 to 64 ranks"));
  EXPECT_THAT(refusal(OnRanks(49), kGolden + "llama31"), HasSubstr("parts for 48 ranks at most"));
  EngineOptions options = OnRanks(2);
  options.device = "cuda:0,1,2";
  EXPECT_THAT(refusal(options), HasSubstr("device cuda:0,1,2 names 3 GPUs for 2 ranks"));
  options.tensor_parallel = 1;
  EXPECT_THAT(refusal(options), HasSubstr("names GPUs for ranks; give tensor_parallel, or one"));
  const std::unique_ptr<Engine> engine = Open(kDemo, OnRanks(2));
  Result<std::unique_ptr<Context>> context = engine->NewContext({{100}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_THAT((*context)->FarAttention(Tokens(20, 100, 1), 10, 2, 4, {}).status().message(),
              HasSubstr("attention is measured on one rank; leave out tensor_parallel"));
  EXPECT_THAT((*context)->EvictedBudgets().status().message(), HasSubstr("what heads keep is"));
  EXPECT_THAT((*context)->RecallOfSelection(Tokens(20, 100, 1), 10, {}).status().message(),
              HasSubstr("recall is measured on one rank"));
}

// What comes out of a context that leaves keys out: tokens that greedy decoding makes of two texts
// that quote themselves, and the sum of -ln p of 16 tokens behind others, a step each.
struct Approximate {
  std::vector<TokenId> tokens, others;
  double loss = 0.0;
};

Approximate Approximately(const EngineOptions& options) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1300}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  Approximate made;
  for (const auto& [start, tokens] : {std::pair{90, &made.tokens}, {127, &made.others}}) {
    const std::vector<TokenId> text = Quoting(*engine, 1200, static_cast<size_t>(start));
    Result<Generation> generation = GenerateOne(**context, RequestOf(text, 16));
    EXPECT_TRUE(generation.ok()) << generation.status().message();
    *tokens = generation->tokens;
  }
  std::vector<TokenId> prose = Quoting(*engine, 150, 0);
  while (prose.size() < 1200) prose.insert(prose.end(), prose.begin(), prose.begin() + 150);
  for (int64_t at = 0; at < 1199; at = at == 0 ? 1183 : at + 1) {
    Context::ScorePart part;
    part.begin = at;
    part.end = at == 0 ? 1183 : at + 1;
    const auto score = (*context)->Score(prose, part, {});
    EXPECT_TRUE(score.ok()) << score.status().message();
    if (at > 0) made.loss += score->negative_log_likelihood;
  }
  return made;
}

std::vector<TokenId> First(size_t count, std::vector<TokenId> tokens) {
  tokens.resize(std::min(count, tokens.size()));
  return tokens;
}

// Where each head chooses by itself, ranks choose what one rank does, but for rounding. Heads of a
// layer that share a budget share that of their rank.
TEST(EngineTp, WhatIsLeftOutIsLeftOutOnRanks) {
  EngineOptions exact = OnRanks(1), hgca = exact, anew = exact, quest = exact, pages, reading,
                bounded;
  hgca.hgca = 1.0;
  hgca.hgca_window = 256;
  bounded = hgca;
  bounded.hgca_epsilon = 0.3;
  bounded.placement = "host-only";
  bounded.kv_encoding = "int8";
  anew.hgca_reselect = 2;
  anew.hgca_window = 256;
  quest.selector = "quest";
  quest.sparse_keys = 256;
  quest.sparse_sink = 64;
  quest.sparse_recent = 128;
  pages = quest;
  pages.selector = "pages";
  pages.sparse_from = 0;
  reading = pages;
  reading.sparse_prefill = true;
  std::vector<std::pair<EngineOptions, bool>> all = {
      {hgca, true}, {bounded, true}, {anew, true}, {quest, true}, {pages, false}, {reading, false}};
  for (const char* method : {"snapkv", "h2o", "pyramidkv", "expectedattention", "critical-snapkv",
                             "ada-snapkv", "defensivekv", "kvzip"}) {
    all.push_back({exact, true});
    all.back().first.evict = method;
    all.back().first.evict_budget = "512";
  }
  all.push_back(all.back());
  all.back().first.evict = "snapkv";
  all.back().first.evicted = "demote";
  all.back().first.evicted_keys = 256;
  int turn = 0;
  for (auto& [options, heads_alone] : all) {
    SCOPED_TRACE(options.selector + " " + options.evict + " " + options.evicted);
    const Approximate one = Approximately(options);
    // What methods let go comes about in one way on any number of ranks: each has one of both.
    std::vector<int> counts = {2, 3};
    if (!options.evict.empty()) counts = {2 + turn++ % 2};
    for (const int ranks : counts) {
      options.tensor_parallel = ranks;
      options.device = OnRanks(ranks).device;
      const Approximate shared = Approximately(options);
      // A GPU's products of other shapes add in other orders, and what is left out leaves margins
      // small. The first text has two next tokens of nearly the same probability, of which exact
      // ranks take another one than one rank does, too, and thresholds of salience sooner.
      if (!testing::RanksHaveGpus()) {
        // With these budgets three ranks of a processor with AMX make another last token or two.
        const size_t sure = options.evict == "ada-snapkv" ? 12 : 16;
        EXPECT_EQ(First(sure, shared.others), First(sure, one.others)) << ranks << " ranks";
        EXPECT_TRUE(options.hgca >= 0.0 || shared.tokens == one.tokens) << ranks << " ranks";
      }
      // Rounding may tell two keys of nearly equal worth apart, and budgets of ranks differ.
      EXPECT_NEAR(shared.loss, one.loss, (heads_alone ? 0.02 : 0.1) * one.loss) << ranks;
    }
  }
}

// Of each head another number of tokens.
HeadBudgets UnevenBudgets(const ModelInfo& info) {
  HeadBudgets heads;
  heads.anyway = 32;
  for (int i = 0; i < info.layers * info.kv_heads; ++i) heads.tokens.push_back(40 + i * i % 400);
  return heads;
}

// Static budgets are whatever the assignment of heads to ranks is: kept is what one rank keeps.
TEST(EngineTp, HeadsOfAProfileAreBalanced) {
  const TestDir dir;
  const ModelInfo info = Open(kDemo)->info();
  HeadBudgets heads = UnevenBudgets(info);
  EngineOptions options = OnRanks(1);
  options.evict = "ada-snapkv";
  options.evict_budget = "512";
  options.evict_profile = WriteProfile(dir.File("heads.json"), info, heads);
  const Approximate one = Approximately(options);
  struct Assigned {
    int ranks;
    const char* how;
    int copies = 0;
  };
  for (const auto& [ranks, assignment, copies] :
       {Assigned{2, "balanced"}, Assigned{3, "balanced"}, Assigned{2, "static"},
        Assigned{2, "fairkv"}, Assigned{5, "fairkv"}, Assigned{3, "balanced", 2},
        Assigned{2, "tokens"}, Assigned{5, "tokens"}}) {
    SCOPED_TRACE(std::string(assignment) + " on " + std::to_string(ranks));
    options.assignment_copies = copies;
    options.tensor_parallel = ranks;
    options.device = OnRanks(ranks).device;
    options.assignment = assignment;
    const Result<ModelPlan> plan = PlanModel(kDemo, options, {{1300}}, Explain::kNo);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const RanksReport& said = *plan->plan.ranks;
    EXPECT_TRUE(said.profiled);
    EXPECT_EQ(said.heads, Open(kDemo, options)->Plan({{1300}})->ranks->heads);
    // Of five ranks one has no head of a layer, and four have one: nothing is to be chosen.
    EXPECT_EQ(said.shares.empty(), copies == 0 && options.assignment != "tokens");
    // One sequence is not divided by copies.
    const std::vector<std::string>& reasons = plan->plan.reasons;
    EXPECT_EQ(copies > 0,
              std::any_of(reasons.begin(), reasons.end(), [](const std::string& reason) {
                return reason.starts_with("1 sequence is fewer than copies: ");
              }));
    if (!said.shares.empty()) {
      EXPECT_GT(said.busy_share, 0.9);
    } else if (options.assignment == "static" || ranks > 4) {
      EXPECT_DOUBLE_EQ(said.busy_share, said.static_busy_share);
    } else {
      EXPECT_GT(said.busy_share, said.static_busy_share);
    }
    const Approximate shared = Approximately(options);
    if (!testing::RanksHaveGpus()) {
      EXPECT_EQ(shared.tokens, one.tokens);
    }
    EXPECT_NEAR(shared.loss, one.loss, 0.02 * one.loss);
  }
  heads.tokens.pop_back();
  options.evict_profile = WriteProfile(dir.File("short.json"), info, heads);
  EXPECT_THAT(Engine::Open(kDemo, options).status().message(), HasSubstr("evict_profile: "));
}

// Holders of a head divide the sequences of a batch, or the tokens of each: a request that waits
// for a place, and another turn of one that is there, have the tokens of one rank.
TEST(EngineTp, HeadsThatRanksHoldInPartsServeBatches) {
  const TestDir dir;
  const ModelInfo info = Open(kDemo)->info();
  EngineOptions options = OnRanks(1);
  options.evict = "snapkv";
  options.evict_budget = "256";
  options.evict_profile = WriteProfile(dir.File("heads.json"), info, UnevenBudgets(info));
  const auto tokens_of = [](const EngineOptions& of) {
    const std::unique_ptr<Engine> engine = Open(kDemo, of);
    std::vector<Request> requests;
    for (const int64_t n : {600, 370, 1100}) {
      requests.push_back(RequestOf(Quoting(*engine, n, 127), 10));
    }
    std::vector<std::vector<TokenId>> tokens;
    Result<std::unique_ptr<Context>> context = engine->NewContext({{1200, 1200}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    for (int turn = 0; turn < 2; ++turn) {
      Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
      EXPECT_TRUE(made.ok()) << made.status().message();
      for (size_t i = 0; i < made->size(); ++i) {
        tokens.push_back((*made)[i].tokens);
        std::vector<TokenId>& prompt = requests[i].prompt;
        prompt.insert(prompt.end(), tokens.back().begin(), tokens.back().end());
        const std::vector<TokenId> more = Quoting(*engine, 20, 40);
        prompt.insert(prompt.end(), more.begin(), more.end());
      }
    }
    return tokens;
  };
  const std::vector<std::vector<TokenId>> one = tokens_of(options);
  for (const auto& [ranks, copies] : {std::pair{2, 0}, {3, 1}, {4, 0}, {4, 4}}) {
    options.tensor_parallel = ranks;
    options.device = OnRanks(ranks).device;
    options.assignment_copies = copies;
    options.assignment = copies == 0 ? "tokens" : "balanced";
    const std::vector<std::vector<TokenId>> shared = tokens_of(options);
    if (!testing::RanksHaveGpus()) {
      EXPECT_EQ(shared, one) << ranks << " ranks, copies " << copies;
    }
  }
}

// Weights that are drawn are drawn by each rank for itself, and the embedding by all alike: what
// ranks make of them is one model's.
TEST(EngineTp, RandomWeightsAreShared) {
  EngineOptions options = OnRanks(3);
  options.random_weights = true;
  const Request request = RequestOf(Tokens(300, 160, 3), 8);
  const Generation made = Fresh(kGolden + "llama31", options, request);
  EXPECT_EQ(made.tokens.size(), 8u);
  EXPECT_EQ(Fresh(kGolden + "llama31", options, request).tokens, made.tokens);
}

// A plan without the model is that of a run.
TEST(EngineTp, PlansAreOfAllRanks) {
  EngineOptions options = OnRanks(2);
  options.kv_memory = 8 * kMiB;
  const Workload workload{{4096}};
  const Result<PlanReport> run = Open(kDemo, options)->Plan(workload);
  const Result<ModelPlan> planned = PlanModel(kDemo, options, workload, Explain::kNo);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->plan.chunk, run->chunk);
  EXPECT_EQ(planned->plan.kv_bytes, run->kv_bytes);
  EXPECT_EQ(planned->plan.memory_bytes, run->memory_bytes);
  EXPECT_THAT(run->reasons.back(), HasSubstr("2 ranks share the model"));
}

}  // namespace
}  // namespace headway
