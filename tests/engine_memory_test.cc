// The public API under budgets: what they change of a result, which is nothing, and what they
// refuse.
#include <gtest/gtest.h>

#include <utility>

#include "headway/engine.h"
#include "support/api.h"

namespace headway {
namespace {

TEST(EngineApi, ASmallBudgetGivesTheTokensOfNoBudget) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 3000, 1), 24);
  const Generation expected = Fresh(kDemo, {}, request);
  EXPECT_EQ(expected.tokens.size(), 24u);
  EngineOptions small;
  small.kv_memory = 6 << 20;
  small.host_memory = 8 << 20;
  small.disk_memory = 1 << 30;
  const Generation got = Fresh(kDemo, small, request);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.text, expected.text);
}

// A disk that is allowed and not needed takes no buffers on the host.
TEST(EngineApi, ACacheOnTheDeviceNeedsNoHostMemory) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 700, 1), 4);
  EngineOptions options;
  options.host_memory = 0;
  options.disk_memory = 1 << 30;
  for (const char* placement : {"first-fit", "lru"}) {
    options.placement = placement;
    EXPECT_EQ(Fresh(kDemo, options, request).tokens, Fresh(kDemo, {}, request).tokens);
  }
}

// On the CPU, too: there the weights move from RAM to RAM, which only shows that they can.
TEST(EngineApi, WeightsThatStreamGiveTheSameTokens) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 900, 1), 12);
  const Generation expected = Fresh(kDemo, {}, request);
  for (const auto& [layers, encoding] :
       {std::pair(0, "none"), std::pair(1, "none"), std::pair(7, "none"), std::pair(0, "lossless"),
        std::pair(5, "lossless")}) {
    EngineOptions options;
    options.gpu_layers = layers;
    options.weight_encoding = encoding;
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    // The second context shares what the first has moved.
    for (int context = 0; context < 2; ++context) {
      Result<std::unique_ptr<Context>> made = engine->NewContext({{912}});
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_EQ((*made)->plan().weight_layers, layers);
      EXPECT_GT((*made)->plan().streamed_weight_bytes, 0);
      Result<Generation> got = GenerateOne(**made, request);
      ASSERT_TRUE(got.ok()) << got.status().message();
      EXPECT_EQ(got->tokens, expected.tokens) << layers << " layers, " << encoding;
    }
  }
}

TEST(EngineApi, LosslessWeightsTakeThreeQuartersOfHostMemory) {
  EngineOptions options;
  options.gpu_layers = 2;
  const Result<PlanReport> plain = Open(kDemo, options)->Plan({{100}});
  options.weight_encoding = "lossless";
  const Result<PlanReport> code = Open(kDemo, options)->Plan({{100}});
  ASSERT_TRUE(plain.ok() && code.ok());
  const auto share = static_cast<double>(code->streamed_weight_bytes) /
                     static_cast<double>(plain->streamed_weight_bytes);
  EXPECT_GT(share, 0.75);
  EXPECT_LT(share, 0.78);
}

TEST(EngineApi, OnlyWeightsOfBf16AreLossless) {
  EngineOptions options;
  options.weight_encoding = "lossless";
  const auto opened = Engine::Open(HEADWAY_SOURCE_DIR "/tests/golden/models/llama-f16", options);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::kUnsupported);
  options.weight_encoding = "zip";
  EXPECT_EQ(Engine::Open(kDemo, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineApi, HostMemoryTooSmallForWeightsIsSaid) {
  EngineOptions options;
  options.gpu_layers = 0;
  options.host_memory = 1 << 20;
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{100}});
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), StatusCode::kOutOfBudget);
  EXPECT_NE(context.status().message().find("host_memory"), std::string::npos)
      << context.status().message();
  // And the smallest that it names does.
  const Refusal* refusal = context.status().refusal();
  ASSERT_NE(refusal, nullptr);
  ASSERT_EQ(refusal->remedies.front().budget, Option::kHostMemory);
  options.host_memory = refusal->remedies.front().need;
  engine = Open(kDemo, options);
  context = engine->NewContext({{100}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->plan().disk_layers.size(), 8u);
  const Request request = RequestOf(Quoting(*engine, 90, 1), 4);
  Result<Generation> got = GenerateOne(**context, request);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->tokens, Fresh(kDemo, {}, request).tokens);
}

// Some layers of a small host are on disk, and a demo model's text is what it is in memory.
void ExpectDiskLayers(const EngineOptions& options, const Generation& expected) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 600, 1), 12);
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  size_t on_disk = 0;
  // The second context finds the weights where the first has put them, and less than they need of
  // the rest.
  for (const int64_t length : {612, 3000}) {
    Result<std::unique_ptr<Context>> made = engine->NewContext({{length}});
    ASSERT_TRUE(made.ok()) << made.status().message();
    const PlanReport& plan = (*made)->plan();
    EXPECT_GT(plan.disk_layers.size(), 0u);
    EXPECT_LT(plan.disk_layers.size(), 7u);
    EXPECT_GT(plan.streamed_weight_bytes, plan.disk_weight_bytes);
    EXPECT_TRUE(on_disk == 0 || plan.disk_layers.size() == on_disk);
    on_disk = plan.disk_layers.size();
    int64_t host = 0;
    for (const MemoryLine& line : plan.memory) {
      if (line.tier == "host" && line.what != "program, tokenizer, text") host += line.bytes;
    }
    EXPECT_LE(host, options.host_memory);
    Result<Generation> got = GenerateOne(**made, request);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->tokens, expected.tokens) << length;
  }
}

TEST(EngineApi, WeightsThatHostMemoryDoesNotHoldComeFromDisk) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 600, 1), 12);
  const Generation expected = Fresh(kDemo, {}, request);
  EngineOptions options;
  options.gpu_layers = 1;
  options.kv_memory = 8 << 20;
  options.host_memory = 24 << 20;
  options.disk_memory = 64 << 20;
  ExpectDiskLayers(options, expected);
  options.weight_encoding = "lossless";
  options.host_memory = 20 << 20;
  ExpectDiskLayers(options, expected);
}

// The published methods keep nothing on the device beside two buffers, each with the whole cache of
// one head, or of one layer.
TEST(EngineApi, PoliciesMoveTheCacheAsTheirMethodsDo) {
  const Request request = RequestOf(Quoting(*Open(kDemo), 990, 2), 10);
  EngineOptions options;
  options.chunk = 256;
  const std::vector<TokenId> expected = Fresh(kDemo, options, request).tokens;
  const int kv_heads = Open(kDemo)->info().kv_heads;
  for (const auto& [policy, heads] :
       {std::pair("headinfer", 1), std::pair("layerwise", kv_heads)}) {
    options.policy = policy;
    Result<PlanReport> plan = Open(kDemo, options)->Plan({{1000}});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->head_group, heads);
    EXPECT_EQ(plan->segment, 1024);
    EXPECT_EQ(plan->slabs[0], 0);
    EXPECT_EQ(plan->slabs[1], Open(kDemo)->info().layers * kv_heads / heads);
    EXPECT_EQ(Fresh(kDemo, options, request).tokens, expected) << policy;
  }
}

TEST(EngineApi, TheSmallestBudgetsDoAndLessDoesNot) {
  EngineOptions options;
  options.kv_memory = 100;
  Result<PlanReport> refused = Open(kDemo, options)->Plan({{2000}});
  ASSERT_FALSE(refused.ok());
  options.kv_memory = 8 << 20;
  Result<PlanReport> plan = Open(kDemo, options)->Plan({{2000}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Request request = RequestOf(Quoting(*Open(kDemo), 1990, 2), 10);
  options.kv_memory = plan->smallest_kv_memory;
  EXPECT_EQ(Fresh(kDemo, options, request).tokens, Fresh(kDemo, {}, request).tokens);
  options.kv_memory -= 4096;
  EXPECT_FALSE(Open(kDemo, options)->NewContext({{2000}}).ok());
}

// Budgets are hard: what is planned keeps to them, and a little less does not do.
TEST(EngineApi, SketchesLieOnTheHostWhereTheDeviceHasNoRoomForThem) {
  EngineOptions options;
  options.selector = "pages";
  options.sparse_from = 0;
  options.sparse_looks = 2;
  options.sparse_keys = 128;
  options.sparse_sink = 16;
  options.sparse_recent = 64;
  const auto plan = [&](const char* sketches) {
    options.sparse_sketches = sketches;
    return Open(kDemo, options)->Plan({{1500}});
  };
  const auto bytes = [](const PlanReport& report, const std::string& tier, bool all) {
    int64_t sum = 0;
    for (const auto& row : report.memory) {
      if (row.tier == tier && (all || row.what == "KV: keys in 2 bits")) sum += row.bytes;
    }
    return sum;
  };
  const Result<PlanReport> free = plan("auto");
  ASSERT_TRUE(free.ok()) << free.status().message();
  EXPECT_EQ(free->selection->sketches, "device");
  EXPECT_EQ(bytes(*free, "host", false), 0);
  const int64_t on_device = plan("device")->smallest_kv_memory;
  const int64_t on_host = plan("host")->smallest_kv_memory;
  EXPECT_LT(on_host, on_device);
  EXPECT_EQ(free->smallest_kv_memory, on_host);

  options.kv_memory = on_host;
  Result<PlanReport> refused = plan("device");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("kv_memory"), std::string::npos);
  const Result<PlanReport> tight = plan("auto");
  ASSERT_TRUE(tight.ok()) << tight.status().message();
  EXPECT_EQ(tight->selection->sketches, "host");
  EXPECT_GT(bytes(*tight, "host", false), 0);
  options.host_memory = tight->smallest_host_memory;
  const Result<PlanReport> tightest = plan("auto");
  ASSERT_TRUE(tightest.ok()) << tightest.status().message();
  // The same cut with room for all on the device.
  EngineOptions ample = options;
  ample.kv_memory = EngineOptions().kv_memory;
  ample.host_memory = EngineOptions().host_memory;
  ample.chunk = tightest->chunk;
  ample.head_group = tightest->head_group;
  ample.segment = tightest->segment;
  ample.sparse_sketches = "device";
  const Request request = RequestOf(Quoting(*Open(kDemo), 1470, 2), 20);
  EXPECT_EQ(Fresh(kDemo, options, request).tokens, Fresh(kDemo, ample, request).tokens);
  options.host_memory -= 4096;
  EXPECT_FALSE(plan("auto").ok());
  options.host_memory += 4096;
  options.kv_memory -= 4096;
  EXPECT_FALSE(plan("auto").ok());
}

}  // namespace
}  // namespace headway
