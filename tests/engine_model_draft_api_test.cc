// The public API with a model that drafts: what it takes of the budgets, and which models may.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/test_dir.h"
#include "support/api.h"

namespace headway {
namespace {

EngineOptions DraftedBy(const std::string& model) {
  EngineOptions options;
  options.freeze_plan = true;
  options.draft = model;
  return options;
}

int64_t DeviceBytes(const PlanReport& plan) {
  int64_t bytes = 0;
  for (const MemoryLine& line : plan.memory) bytes += line.tier == "device" ? line.bytes : 0;
  return bytes;
}

int64_t DraftBytes(const PlanReport& plan) {
  int64_t bytes = 0;
  for (const MemoryLine& line : plan.memory) {
    bytes += line.what.starts_with("drafts: ") ? line.bytes : 0;
  }
  return bytes;
}

// The plan counts both models, and what it says is what is needed.
TEST(ModelDraftApi, BothModelsKeepToTheBudgets) {
  const Workload workload{{3000}};
  const PlanReport plain = *Open(kDemo)->Plan(workload);
  const PlanReport both = *Open(kDemo, DraftedBy(kDemo))->Plan(workload);
  EXPECT_GT(DraftBytes(both), plain.kv_bytes);
  EXPECT_GT(DeviceBytes(both), 2 * plain.kv_bytes);
  EngineOptions options = DraftedBy(kDemo);
  options.kv_memory = both.smallest_kv_memory;
  EXPECT_GT(options.kv_memory, plain.smallest_kv_memory + plain.kv_bytes);
  const Request request = RequestOf(Quoting(*Open(kDemo), 2800, 1), 60);
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  // The second context shares the weights of the first.
  for (int context = 0; context < 2; ++context) {
    Result<std::unique_ptr<Context>> made = engine->NewContext(workload);
    ASSERT_TRUE(made.ok()) << made.status().message();
    Result<Generation> got = GenerateOne(**made, request);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->tokens, Fresh(kDemo, {}, request).tokens);
    EXPECT_GT((*made)->timings().accepted_drafts, 30);
  }
  options.kv_memory -= 4096;
  const Result<std::unique_ptr<Context>> refused = Open(kDemo, options)->NewContext(workload);
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfBudget);
  EXPECT_NE(refused.status().message().find("the model that drafts takes"), std::string::npos);
}

// As without loading.
TEST(ModelDraftApi, PlansCountItWithoutLoading) {
  const Workload workload{{2000, 1000}};
  const Result<ModelPlan> planned = PlanModel(kDemo, DraftedBy(kDemo), workload, Explain::kNo);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const PlanReport loaded = *Open(kDemo, DraftedBy(kDemo))->Plan(workload);
  EXPECT_EQ(DraftBytes(planned->plan), DraftBytes(loaded));
  EXPECT_EQ(DeviceBytes(planned->plan), DeviceBytes(loaded));
}

// On a device with its own memory weights and steps count, too.
TEST(ModelDraftApi, BothModelsKeepToTheMemoryOfAGpu) {
  const Workload workload{{20000}};
  EngineOptions options;
  options.machine = "h200";
  options.draft = "lookup";
  const auto plan = [&] { return PlanModel(kDemo, options, workload, Explain::kNo); };
  const int64_t alone = plan()->plan.smallest_gpu_memory;
  options.draft = kDemo;
  const PlanReport both = plan()->plan;
  EXPECT_GE(both.smallest_gpu_memory, alone + DraftBytes(both) - 4096);
  EXPECT_LE(both.smallest_gpu_memory, alone + DraftBytes(both) + 4096);
  options.gpu_memory = both.smallest_gpu_memory;
  Result<ModelPlan> smallest = plan();
  ASSERT_TRUE(smallest.ok()) << smallest.status().message();
  EXPECT_LE(DeviceBytes(smallest->plan), options.gpu_memory);
  options.gpu_memory -= 4096;
  EXPECT_EQ(plan().status().code(), StatusCode::kOutOfBudget);
}

// Every family drafts for every other; none of these has a tokenizer.
TEST(ModelDraftApi, OtherFamiliesDraft) {
  const std::vector<TokenId> prompt = Tokens(90, 160, 3);
  for (const std::string by : {"llama2", "qwen3", "neox", "opt", "mistral-window"}) {
    const Request request = RequestOf(prompt, 60);
    const Generation expected = Fresh(kGolden + "llama31", {}, request);
    const Generation got = Fresh(kGolden + "llama31", DraftedBy(kGolden + by), request);
    EXPECT_EQ(got.tokens, expected.tokens) << by;
  }
}

TEST(ModelDraftApi, RandomWeightsDraftForRandomWeights) {
  EngineOptions options = DraftedBy(kDemo + "/config.json");
  options.random_weights = true;
  std::unique_ptr<Engine> engine = Open(kDemo + "/config.json", options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{720}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  // What was never computed continues in both caches.
  ASSERT_TRUE((*context)->FillSynthetic(0, 640, 1, 0.0).ok());
  Request request = RequestOf(std::vector<TokenId>(641, 0), 60);
  Result<Generation> got = GenerateOne(**context, request);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->reused_tokens, 640);
  const Timings timings = (*context)->timings();
  EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens / 2);
}

// What Open says of a model that drafts for the demo.
std::string Refused(const std::string& draft) {
  const Result<std::unique_ptr<Engine>> engine = Engine::Open(kDemo, DraftedBy(draft));
  EXPECT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message().find('\n'), std::string::npos);
  return engine.status().message();
}

TEST(ModelDraftApi, OtherTokensAreRefused) {
  TestDir directory;
  for (const std::string name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    std::filesystem::copy(kDemo + "/" + name, directory.File(name));
  }
  EXPECT_TRUE(Engine::Open(directory.path(), DraftedBy(directory.path())).ok());
  std::ofstream(directory.File("tokenizer.json"), std::ios::app) << "\n";
  EXPECT_NE(Refused(directory.path()).find("another tokenizer"), std::string::npos);
  std::filesystem::remove(directory.File("tokenizer.json"));
  EXPECT_NE(Refused(directory.path()).find("another tokenizer"), std::string::npos);
  EXPECT_EQ(Refused("guess").find("draft is none of none, lookup, sparse; guess: no such folder"),
            0u);
  std::filesystem::remove(directory.File("config.json"));
  EXPECT_EQ(Refused(directory.path()).find("draft: "), 0u);
}

}  // namespace
}  // namespace headway
