// The public API with ranks that have a run of the model's layers each: the bits of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/test_dir.h"
#include "support/api.h"
#include "support/rank_gpus.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

EngineOptions Over(int ranks, EngineOptions options = {}) {
  options.layers_over = ranks;
  options.threads = 2;
  options.device = testing::DeviceOfRanks(ranks);
  return options;
}

// What a model says of a text: every logit of its last rows, and the tokens behind it.
struct Said {
  std::vector<float> logits;
  std::vector<TokenId> tokens;
};

Said Ask(const std::string& model, const EngineOptions& options, const std::vector<TokenId>& text,
         int64_t tokens) {
  Said said;
  const std::unique_ptr<Engine> engine = Open(model, options);
  const auto length = static_cast<int64_t>(text.size());
  Result<std::unique_ptr<Context>> context = engine->NewContext({{length + tokens}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  if (!context.ok()) return said;
  Context::ScorePart part;
  part.logits = [&](int64_t position, std::span<const float> row) {
    if (position < length - 40) return;
    said.logits.insert(said.logits.end(), row.begin(), row.end());
  };
  const auto score = (*context)->Score(text, part, {});
  EXPECT_TRUE(score.ok()) << score.status().message();
  (*context)->Reset();
  Request request = RequestOf(text, tokens);
  // Drawn tokens tell logits apart that have the same largest one.
  if (!testing::RanksHaveGpus()) request.sampling.temperature = 1.0f;
  request.sampling.seed = 3;
  const Result<Generation> made = GenerateOne(**context, request);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (made.ok()) said.tokens = made->tokens;
  return said;
}

// On GPUs the head's rows, of which each rank has some, are products of another shape.
void ExpectSame(const Said& one, const Said& other) {
  EXPECT_FALSE(one.tokens.empty());
  EXPECT_EQ(other.tokens, one.tokens);
  if (testing::RanksHaveGpus()) return;
  EXPECT_FALSE(one.logits.empty());
  EXPECT_EQ(other.logits, one.logits);
}

// A way to run, by the options that ask for it.
struct Way {
  const char* name;
  std::function<void(EngineOptions*)> set;
};

void ChoosePages(int64_t keys, int64_t sink, int64_t recent, EngineOptions* o) {
  o->selector = "pages";
  o->sparse_block = 16;  // a plan of fewer layers may choose others
  o->sparse_levels = 1;
  o->sparse_keys = keys;
  o->sparse_sink = sink;
  o->sparse_recent = recent;
  o->sparse_from = 0;
}

// Those in which decodes leave out what matters little.
std::vector<Way> WaysToLeaveOut() {
  return {
      {"selection", [](EngineOptions* o) { ChoosePages(128, 64, 128, o); }},
      {"selection, bounded",  // by keys that are drawn for each layer
       [](EngineOptions* o) {
         ChoosePages(32, 16, 32, o);
         o->sparse_epsilon = 0.3;
         o->sparse_delta = 0.3;
       }},
      {"hgca, bounded",
       [](EngineOptions* o) {
         o->placement = "host-only";
         o->hgca = 1.0;
         o->hgca_window = 64;
         o->hgca_most = 0.1;
         o->hgca_epsilon = 0.3;
         o->hgca_delta = 0.3;
       }},
      {"hgca",
       [](EngineOptions* o) {
         o->page_slots = 16;
         o->hgca = 1.0;
         o->hgca_window = 32;
         o->hgca_alpha = 1.0;  // which step is weighed decides, and layers take turns
       }},
  };
}

// Every other way in which layers attend, keep pages and have their weights.
std::vector<Way> Ways(const std::string& disk_path, const std::string& pattern) {
  return {
      {"resident", [](EngineOptions*) {}},
      {"streamed", [](EngineOptions* o) { o->placement = "host-only"; }},
      {"disk",
       [=](EngineOptions* o) {
         o->placement = "disk-only";
         o->disk_path = disk_path;
         o->disk_memory = 64 * kMiB;
       }},
      {"recomputed",
       [](EngineOptions* o) {
         o->placement = "host-only";
         o->recompute_share = 0.5;
       }},
      {"cores",
       [](EngineOptions* o) {
         o->placement = "host-only";
         o->host_share = 0.5;
       }},
      {"int8", [](EngineOptions* o) { o->kv_encoding = "int8"; }},
      {"lossless", [](EngineOptions* o) { o->kv_encoding = "lossless"; }},
      {"streamed weights", [](EngineOptions* o) { o->gpu_layers = 3; }},
      {"streaming heads",
       [=](EngineOptions* o) {
         o->head_pattern = pattern;
         o->sink_tokens = 16;
         o->recent_tokens = 200;
       }},
      {"drafts", [](EngineOptions* o) { o->draft = "lookup"; }},
      {"sparse drafts",
       [](EngineOptions* o) {
         o->draft = "sparse";
         o->sparse_keys = 128;
         o->sparse_sink = 64;
         o->sparse_recent = 128;
       }},
      {"drafts of a model", [](EngineOptions* o) { o->draft = kDemo; }},
  };
}

TEST(EngineLayerRanks, SayWhatOneDeviceSays) {
  const TestDir dir;
  const std::unique_ptr<Engine> engine = Open(kDemo);
  const std::vector<TokenId> text = Quoting(*engine, 1100, 90);
  const int layers = engine->info().layers;
  const std::string pattern = dir.File("heads.tsv");
  {
    std::ofstream out(pattern);
    const char* const lines[] = {"1\t1\t0\t0", "0\t1\t1\t1", "1\t0\t0\t1"};
    for (int layer = 0; layer < layers; ++layer) out << lines[layer % 3] << "\n";
  }
  int ranks = 2;  // of each way one number: layers are cut in one way for all of them
  std::vector<Way> ways = Ways(dir.File(""), pattern);
  std::ranges::move(WaysToLeaveOut(), std::back_inserter(ways));
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    EngineOptions options;
    options.chunk = 256;
    options.segment = 256;
    way.set(&options);
    const Said one = Ask(kDemo, Over(1, options), text, 24);
    ExpectSame(one, Ask(kDemo, Over(ranks, options), text, 24));
    ranks = 5 - ranks;
  }
}

// Tables of positions, tied heads, biases, norms behind attention, tensors that are one in the
// files, windows by layer; as many ranks as layers.
TEST(EngineLayerRanks, OfEveryFamily) {
  for (const char* name : {"llama-yarn", "llama32-tied", "mistral-window", "neox", "opt",
                           "opt-projected", "qwen2-sliding", "qwen3-bf16"}) {
    SCOPED_TRACE(name);
    const std::string model = kGolden + name;
    const ModelInfo info = Open(model)->info();
    const std::vector<TokenId> text = Tokens(90, info.vocab, 5);
    const Said one = Ask(model, Over(1), text, 4);
    ExpectSame(one, Ask(model, Over(info.layers), text, 4));
  }
}

// Requests that wait for a place, and go on from what is cached.
TEST(EngineLayerRanks, ServeBatches) {
  std::vector<std::vector<TokenId>> tokens[2];
  for (const bool ranks : {false, true}) {
    const std::unique_ptr<Engine> engine = Open(kDemo, Over(ranks ? 3 : 1));
    std::vector<Request> requests;
    for (const int64_t n : {310, 370, 500, 420}) {
      requests.push_back(RequestOf(Quoting(*engine, n, static_cast<size_t>(n)), 10));
    }
    requests[1].sampling.temperature = 0.2f;
    requests[1].sampling.seed = 5;
    Result<std::unique_ptr<Context>> context = engine->NewContext({{520, 520}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    for (int round = 0; round < 2; ++round) {
      Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
      ASSERT_TRUE(made.ok()) << made.status().message();
      for (const Generation& each : *made) tokens[ranks ? 1 : 0].push_back(each.tokens);
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

// The same from run to run.
TEST(EngineLayerRanks, RandomWeightsAreDrawnAgain) {
  EngineOptions options;
  options.random_weights = true;
  const std::vector<TokenId> text = Tokens(200, 160, 3);
  const Said two = Ask(kGolden + "llama31", Over(2, options), text, 8);
  ExpectSame(two, Ask(kGolden + "llama31", Over(2, options), text, 8));
}

// Each has its part of the weights and of the cache, under the smallest budgets of the plan.
TEST(EngineLayerRanks, PlansAreOfAllRanks) {
  const std::unique_ptr<Engine> engine = Open(kDemo);
  const ModelInfo& info = engine->info();
  const Request request = RequestOf(Quoting(*engine, 1000, 60), 8);
  EngineOptions options = Over(3);
  options.kv_memory = 8 * kMiB;
  const Workload workload{{1008}};
  const Result<PlanReport> run = Open(kDemo, options)->Plan(workload);
  const Result<ModelPlan> planned = PlanModel(kDemo, options, workload, Explain::kNo);
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(std::accumulate(run->layers_of_ranks.begin(), run->layers_of_ranks.end(), 0),
            info.layers);
  EXPECT_EQ(planned->plan.chunk, run->chunk);
  EXPECT_EQ(planned->plan.kv_bytes, run->kv_bytes);
  EXPECT_EQ(run->kv_bytes, engine->Plan(workload)->kv_bytes);
  if (testing::RanksHaveGpus()) return;  // some of which share one, and its memory
  EXPECT_EQ(planned->plan.layers_of_ranks, run->layers_of_ranks);
  EXPECT_EQ(planned->plan.memory_bytes, run->memory_bytes);
  EXPECT_EQ(planned->plan.smallest_kv_memory, run->smallest_kv_memory);
  EXPECT_THAT(run->reasons.back(), HasSubstr("3 ranks have layers 0 to 2, 3 to 5, 6 to 7"));
  const std::vector<TokenId> one = Fresh(kDemo, Over(1), request).tokens;
  options.kv_memory = run->smallest_kv_memory;
  EXPECT_EQ(Fresh(kDemo, options, request).tokens, one);
  options.kv_memory = kMiB / 4;
  options.host_memory = 0;
  const Status refused = Open(kDemo, options)->NewContext({{4000}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfBudget);
  EXPECT_THAT(refused.message(), HasSubstr("each of 3 ranks"));
  EXPECT_THAT(refused.message(), HasSubstr("layers_over"));
}

TEST(EngineLayerRanks, RefuseByName) {
  const auto refusal = [](const std::function<void(EngineOptions*)>& set, int ranks = 2) {
    EngineOptions options = Over(ranks);
    set(&options);
    return Engine::Open(kDemo, options).status().message();
  };
  const auto nothing = [](EngineOptions*) {};
  EXPECT_THAT(refusal(nothing, 0), HasSubstr("layers_over: 1 to 64 ranks are possible"));
  EXPECT_THAT(refusal(nothing, 9), HasSubstr("layers_over 9: this model has layers for 8 ranks"));
  EXPECT_THAT(refusal([](EngineOptions* o) { o->tensor_parallel = 2; }),
              HasSubstr("layers_over and tensor_parallel do not go together"));
  EXPECT_THAT(refusal([](EngineOptions* o) { o->session = "a"; }),
              HasSubstr("layers_over and session do not go together"));
  EXPECT_THAT(refusal([](EngineOptions* o) { o->evict = "snapkv"; }),
              HasSubstr("layers_over and evict do not go together"));
  EXPECT_THAT(refusal([](EngineOptions* o) { o->selector = "infinitehip"; }),
              HasSubstr("layers_over and selector infinitehip do not go together"));
  const std::unique_ptr<Engine> engine = Open(kDemo, Over(2));
  Result<std::unique_ptr<Context>> context = engine->NewContext({{300}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const std::vector<TokenId> text = Tokens(200, 160, 3);
  EXPECT_THAT((*context)->RecallOfSelection(text, 100, {}).status().message(),
              HasSubstr("recall is measured on one rank; leave out layers_over"));
}

}  // namespace
}  // namespace headway
