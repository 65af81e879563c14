// The path `recompute`: the first segments of a sequence keep X, the normed input of the K/V
// projection, in host memory, and their keys and values are recomputed from it. Compared with
// everything resident. A product over X that was rounded to 16 bits errs by about one rounding of
// its result, since the roundings of its terms are independent; that is what ExpectNear allows for
// a key or value. Where nothing is rounded (f32) and products have the same order of additions,
// every bit is the same.
#include <gtest/gtest.h>

#include <utility>

#include "base/random.h"
#include "headway/engine.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int kAll = 1 << 20;

HarnessConfig Recomputing(int x_segments) {
  HarnessConfig config;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.x_segments = x_segments;
  return config;
}

// The shapes of models that matter here: rotated keys with and without a norm of their own, biases,
// fewer KV heads, OPT with norms before and behind, and GPT-NeoX, of whose heads a part rotates.
struct Shape {
  const char* name;
  ModelConfig config;
};
std::vector<Shape> Shapes(DType dtype) {
  ModelConfig llama = TinyConfig(dtype);
  ModelConfig mha = llama, norms = llama, biases = llama;
  mha.shape.kv_heads = mha.shape.query_heads = 3;
  norms.architecture = "Qwen3ForCausalLM";
  norms.qk_norm = true;
  biases.qkv_bias = true;
  return {{"grouped queries", llama},
          {"a KV head each", mha},
          {"norms of queries and keys", norms},
          {"biases", biases},
          {"OPT", TinyOptConfig(dtype, false)},
          {"OPT with norms behind", TinyOptConfig(dtype, true)},
          {"GPT-NeoX", TinyNeoXConfig(dtype, true)},
          {"GPT-NeoX, one after the other", TinyNeoXConfig(dtype, false)}};
}

class Recompute : public ::testing::TestWithParam<DType> {};

// Lengths at the edges of pages and segments; shares of some segments and of all.
TEST_P(Recompute, AgreesWithAllResidentForEveryShape) {
  for (const Shape& shape : Shapes(GetParam())) {
    const std::unique_ptr<Model> model = Tiny(shape.config);
    for (const int64_t length : {1, 16, 17, 33, 65, 200}) {
      const std::vector<TokenId> tokens = RandomTokens(length, 96, static_cast<uint64_t>(length));
      const int64_t decode = std::min<int64_t>(length - 1, 20);
      const LogitRows expected = RunTokens(*model, HarnessConfig{}, tokens, decode);
      for (const int segments : {1, 3, kAll}) {
        ExpectNear(*model, expected, RunTokens(*model, Recomputing(segments), tokens, decode),
                   std::string(shape.name) + ", length " + std::to_string(length) + ", first " +
                       std::to_string(segments));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Pages that a chunk filled: products of many rows add in one order, whatever their number.
TEST(RecomputeExactly, IsWhatTheStepComputed) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "products of other shapes add in another order";
  for (const Shape& shape : Shapes(DType::kF32)) {
    const std::unique_ptr<Model> model = Tiny(shape.config);
    for (const int64_t prompt : {32, 99, 192}) {
      const std::vector<TokenId> tokens = RandomTokens(prompt + 12, 96, 5);
      const LogitRows expected = RunTokens(*model, HarnessConfig{}, tokens, 12);
      for (const int segments : {1, kAll}) {
        for (const int64_t gather_pages : {2, 40}) {
          HarnessConfig config = Recomputing(segments);
          config.gather_pages = gather_pages;
          ExpectSameBits(expected, RunTokens(*model, config, tokens, 12),
                         std::string(shape.name) + ", prompt " + std::to_string(prompt) +
                             ", first " + std::to_string(segments) + ", gathers of " +
                             std::to_string(gather_pages));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Chunks, segments, gathers, staging buffers and placements of the rest.
TEST_P(Recompute, AgreesWithAllResidentInAnyCut) {
  Random random(3);
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  for (int round = 0; round < 24; ++round) {
    const std::vector<TokenId> tokens = RandomTokens(20 + random.Below(180), 96, 100 + round);
    HarnessConfig resident;
    resident.segment_pages = 1 + random.Below(5);
    resident.chunk = 1 + random.Below(90);
    HarnessConfig config = resident;
    config.x_segments = 1 + static_cast<int>(random.Below(6));
    config.gather_pages = resident.segment_pages * (1 + random.Below(4));
    config.placement = static_cast<kv::PlacementKind>(random.Below(4));
    config.device_slabs = random.Below(6);
    config.host_slabs = random.Below(2) == 0 ? 18 : 1 << 20;
    config.staging_slabs = 1 + static_cast<int>(random.Below(3));
    config.host_share = config.placement == kv::PlacementKind::kDiskOnly || round % 3 > 0
                            ? 0.0
                            : static_cast<double>(random.Uniform());
    const std::string what = "round " + std::to_string(round) + " tokens " +
                             std::to_string(tokens.size()) + " first " +
                             std::to_string(config.x_segments);
    const LogitRows expected = RunTokens(*model, resident, tokens, 15);
    const LogitRows got = RunTokens(*model, config, tokens, 15);
    ExpectNear(*model, expected, got, what);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Recompute, GivesTheSameBitsEveryTime) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 2);
  HarnessConfig config = Recomputing(3);
  const LogitRows expected = RunTokens(*model, config, tokens, 20);
  for (int threads : {1, 3}) {
    config.threads = threads;
    ExpectSameBits(expected, RunTokens(*model, config, tokens, 20), "once more");
  }
  config.threads = 2;
  config.staging_slabs = 5;
  config.placement = kv::PlacementKind::kFirstFit;
  config.device_slabs = 4;
  ExpectSameBits(expected, RunTokens(*model, config, tokens, 20), "the rest elsewhere");
  for (const int layers : {0, 1}) {
    HarnessConfig streamed = config;
    streamed.weight_layers = layers;
    const std::unique_ptr<Model> other = Tiny(TinyConfig(GetParam()));
    ExpectSameBits(expected, RunTokens(*other, streamed, tokens, 20), "weights stream");
  }
}

// Slabs of several sequences are recomputed together.
TEST_P(Recompute, ABatchAgreesWithAllResident) {
  HarnessConfig together = Recomputing(kAll), first_fit = Recomputing(2);
  together.gather_pages = 9;
  first_fit.placement = kv::PlacementKind::kFirstFit;
  first_fit.device_slabs = 5;
  ExpectBatchesNear(*Tiny(TinyConfig(GetParam())),
                    {HarnessConfig{}, Recomputing(1), Recomputing(kAll), together, first_fit});
}

INSTANTIATE_TEST_SUITE_P(DTypes, Recompute,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// X takes its own bytes of host memory and of the bus, half of those of keys and values here.
TEST(RecomputeBytes, AreThoseOfX) {
  ModelConfig mha = TinyConfig(DType::kBF16);
  mha.shape.kv_heads = mha.shape.query_heads = 3;
  const std::unique_ptr<Model> model = Tiny(mha);
  const std::vector<TokenId> tokens = RandomTokens(128, 96, 1);
  const RopeFrequencies rope = RopeOf(*model, 128);
  int64_t bytes[2] = {};
  for (const int x_segments : {0, kAll}) {
    Result<std::unique_ptr<StepHarness>> h =
        StepHarness::Create(*model, Recomputing(x_segments), 1, 128);
    ASSERT_TRUE(h.ok()) << h.status().message();
    ASSERT_TRUE((*h)->Append(*(*h)->NewSequence(), tokens, rope).ok());
    const kv::TierUsage usage = (*h)->store().Usage(Tier::kHost);
    bytes[x_segments > 0] = usage.tokens_bytes;
    EXPECT_EQ(usage.slabs, 3 * 4);
    EXPECT_EQ((*h)->store().Usage(Tier::kDevice).slabs, 0);
  }
  EXPECT_EQ(bytes[0], 2 * bytes[1]);
}

TEST(RecomputeBytes, ABudgetThatIsTooSmallSaysSo) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  HarnessConfig config = Recomputing(kAll);
  config.host_slabs = 0;
  const RopeFrequencies rope = RopeOf(*model, 128);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 128);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId id = *(*h)->NewSequence();
  const Status status = (*h)->Append(id, RandomTokens(128, 96, 1), rope).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_NE(status.message().find("keys and values are recomputed from"), std::string::npos)
      << status.message();
  // What fits goes on.
  EXPECT_TRUE((*h)->Append(id, RandomTokens(10, 96, 1), rope).ok());
}

EngineOptions DemoOptions() {
  EngineOptions options;
  options.device = TestDevice();
  options.placement = "host-only";
  options.segment = 64;
  options.threads = 2;
  if (TestDevice() != "cpu") options.host_memory = 64 << 20;
  return options;
}

const char* const kDemo = HEADWAY_SOURCE_DIR "/models/demo";

// Through the public API, in two requests of unequal lengths, one after another in the same slots.
TEST(RecomputeOptions, ReachTheSteps) {
  const auto run = [&](double share, PlanReport* plan) {
    EngineOptions options = DemoOptions();
    options.recompute_share = share;
    Result<std::unique_ptr<Engine>> engine = Engine::Open(kDemo, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{400, 260}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    *plan = (*context)->plan();
    std::vector<TokenId> tokens;
    for (int round = 0; round < 2; ++round) {
      std::vector<Request> requests(2);
      for (int i = 0; i < 2; ++i) {
        const int64_t length = i == 0 ? 350 : 231 + round;
        requests[static_cast<size_t>(i)].prompt =
            RandomTokens(length, (*engine)->info().vocab, static_cast<uint64_t>(i + round));
        requests[static_cast<size_t>(i)].max_tokens = 8;
        requests[static_cast<size_t>(i)].ignore_eos = true;
      }
      Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
      EXPECT_TRUE(made.ok()) << made.status().message();
      for (const Generation& one : *made) {
        tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
      }
    }
    EXPECT_GT((*context)->TierBytes(1), 0);
    // Synthetic caches have X, too.
    EXPECT_TRUE((*context)->FillSynthetic(0, 300, 3).ok());
    Request request;
    request.prompt.assign(301, 0);
    request.max_tokens = 4;
    request.ignore_eos = true;
    EXPECT_TRUE((*context)->Generate({&request, 1}, {}).ok());
    return tokens;
  };
  PlanReport off, some, all;
  run(0.0, &off);
  EXPECT_EQ(off.x_slabs, 0);
  const std::vector<TokenId> first = run(0.6, &some);
  EXPECT_NEAR(some.recompute_share, 0.6, 0.05);
  EXPECT_EQ(run(0.6, &some), first);
  run(1.0, &all);
  EXPECT_EQ(all.recompute_share, 1.0);
  EXPECT_EQ(all.slabs[1], 0);
  EXPECT_LT(all.kv_bytes, off.kv_bytes);
}

// With dynamic RoPE each sequence of a batch has frequencies of its own, and one gather keys of
// several.
TEST(RecomputeOptions, KeysAreRotatedAsTheirSequenceIs) {
  const auto run = [](double share) {
    EngineOptions options = DemoOptions();
    options.device = "cpu";  // in f32, as the model is, X is not rounded
    options.recompute_share = share;
    Result<std::unique_ptr<Engine>> engine =
        Engine::Open(HEADWAY_SOURCE_DIR "/tests/golden/models/llama-dynamic", options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{440, 240, 140}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    EXPECT_EQ((*context)->plan().x_slabs > 0, share > 0.0);
    std::vector<Request> requests(3);
    for (size_t i = 0; i < 3; ++i) {
      requests[i].prompt = RandomTokens(400 / (1 << i), (*engine)->info().vocab, i + 1);
      requests[i].max_tokens = 32;
      requests[i].ignore_eos = true;
    }
    std::vector<std::vector<TokenId>> tokens;
    Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
    EXPECT_TRUE(made.ok()) << made.status().message();
    for (const Generation& one : *made) tokens.push_back(one.tokens);
    return tokens;
  };
  EXPECT_EQ(run(1.0), run(0.0));
}

// X and the slabs of keys and values share the host's budget to the last byte.
TEST(RecomputeOptions, TheSmallestHostMemoryHoldsBoth) {
  for (const double share : {0.2, 0.5, 0.8, 1.0}) {
    EngineOptions options = DemoOptions();
    options.recompute_share = share;
    const Workload workload = {{400, 260}};
    Result<std::unique_ptr<Engine>> planner = Engine::Open(kDemo, options);
    ASSERT_TRUE(planner.ok()) << planner.status().message();
    options.host_memory = (*planner)->Plan(workload)->smallest_host_memory;
    Result<std::unique_ptr<Engine>> engine = Engine::Open(kDemo, options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext(workload);
    ASSERT_TRUE(context.ok()) << context.status().message();
    for (const int slot : {1, 0}) {
      const Status filled =
          (*context)->FillSynthetic(slot, workload.lengths[static_cast<size_t>(slot)], 3);
      EXPECT_TRUE(filled.ok()) << share << ": " << filled.message();
    }
  }
}

TEST(RecomputeOptions, WhatCannotBeSaysWhy) {
  const auto why = [](auto change) {
    EngineOptions options = DemoOptions();
    options.recompute_share = 0.5;
    change(options);
    Result<std::unique_ptr<Engine>> engine = Engine::Open(kDemo, options);
    if (!engine.ok()) return engine.status().message();
    return (*engine)->Plan({{800}}).status().message();
  };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  EXPECT_EQ(why([](EngineOptions&) {}), "");
  expect(why([](EngineOptions& o) { o.recompute_share = 1.5; }), "0 to 1, or auto");
  expect(why([](EngineOptions& o) { o.session = "/nowhere/session"; }), "leave out session");
  expect(why([](EngineOptions& o) { o.kv_encoding = "int8"; }), "leave out kv_encoding");
  expect(why([](EngineOptions& o) { o.head_group = 1; }), "leave out head_group");
  expect(why([](EngineOptions& o) {
           o.placement = "disk-only";
           o.disk_memory = 1 << 30;
         }),
         "leave out placement disk-only");
  expect(why([](EngineOptions& o) {
           o.policy = "kvpr";
           o.placement = "first-fit";
           o.segment = 0;
         }),
         "policy kvpr fixes what is recomputed");
  // A session with auto recomputes nothing, and says no word.
  EXPECT_EQ(why([](EngineOptions& o) {
              o.recompute_share = kRecomputeAuto;
              o.head_group = 1;
            }),
            "");
}

}  // namespace
}  // namespace headway::testing
