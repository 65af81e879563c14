// How many blocks lists have is counted, whether budgets say so beforehand or kernels find out.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/test_dir.h"
#include "kernels/selection.h"
#include "kv/policy/selection.h"
#include "support/api.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 700, kTokens = 40;
constexpr int64_t kPage = 64, kBlock = 16;

EngineOptions Options(const std::string& selector) {
  EngineOptions options;
  options.device = TestDevice();
  options.found_shares = false;
  options.selector = selector;
  options.page_slots = kPage;
  options.sparse_block = kBlock;
  options.sparse_keys = 128;
  options.sparse_sink = 64;
  options.sparse_recent = 128;
  options.sparse_from = 0;
  options.hip_outer_keys = selector == "infinitehip" ? 0 : options.hip_outer_keys;
  return options;
}

ListedBlocks Counted(const EngineOptions& options) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Timings timings;
  Fresh(kDemo, options, RequestOf(Quoting(*engine, kPrompt, 100), kTokens), &timings);
  return timings.listed;
}

// The same by the definition of budgets, where each decode step chooses.
ListedBlocks Expected(const EngineOptions& options) {
  const ModelInfo info = Open(kDemo, options)->info();
  const kv::SelectionPolicy policy = {.summary = {SummaryKind::kBoxes, kBlock},
                                      .keys = options.sparse_keys,
                                      .sink = options.sparse_sink,
                                      .recent = options.sparse_recent,
                                      .share = BudgetShare::kHead};
  const int64_t lists = int64_t{info.layers} * info.kv_heads;
  ListedBlocks all;
  for (int64_t position = kPrompt; position < kPrompt + kTokens - 1; ++position) {
    const kv::BlockSpan span = {0, position / kPage * (kPage / kBlock)};
    const SelectionBudget budget = kv::BudgetOf(policy, {&span, 1}, position);
    all.lists += lists;
    all.among += lists * span.blocks;
    all.blocks += lists * (budget.far_begin + budget.far_blocks + span.blocks - budget.far_end);
  }
  return all;
}

void ExpectSame(const ListedBlocks& counted, const ListedBlocks& expected) {
  EXPECT_EQ(counted.lists, expected.lists);
  EXPECT_EQ(counted.blocks, expected.blocks);
  EXPECT_EQ(counted.among, expected.among);
}

TEST(ListedBlocks, AreThoseOfBudgetsThatSayHowMany) {
  for (const std::string selector : {"pages", "quest", "infllm", "infinitehip"}) {
    SCOPED_TRACE(selector);
    const EngineOptions options = Options(selector);
    ExpectSame(Counted(options), Expected(options));
  }
  // In host memory, and by pages in front.
  EngineOptions options = Options("pages");
  options.placement = "host-only";
  ExpectSame(Counted(options), Expected(options));
  options.sparse_levels = 2;
  ExpectSame(Counted(options), Expected(options));
}

TEST(ListedBlocks, AreAddedUpWhereTheQuerySaysHowMany) {
  EngineOptions options = Options("pages");
  const ListedBlocks most = Expected(options);
  // As many as ever: the fewest are the most.
  options.sparse_top_p = 0.5;
  options.sparse_least = options.sparse_keys;
  ExpectSame(Counted(options), most);
  options.sparse_looks = 2;
  ExpectSame(Counted(options), most);
  options.sparse_looks = 1;
  options.sparse_least = kBlock;
  const ListedBlocks fewer = Counted(options);
  EXPECT_EQ(fewer.lists, most.lists);
  EXPECT_LT(fewer.blocks, most.blocks);
  EXPECT_GT(fewer.blocks, most.blocks - most.lists * options.sparse_keys / kBlock);
  EngineOptions bounded = Options("pages");
  bounded.sparse_epsilon = 1e-6;
  const ListedBlocks nearly = Counted(bounded);
  EXPECT_EQ(nearly.lists, most.lists);
  EXPECT_GT(nearly.blocks, most.blocks);
  EXPECT_LE(nearly.blocks, nearly.among);
}

TEST(ListedBlocks, AreThoseOfStepsThatChoose) {
  EngineOptions options = Options("pages");
  options.sparse_refresh = 4;
  const ListedBlocks some = Counted(options);
  const ListedBlocks all = Expected(options);
  EXPECT_LT(some.lists, all.lists / 2);
  EXPECT_GE(some.lists, all.lists / 4);
  options.sparse_refresh = 1;
  options.sparse_keys = 1024;  // which is all of them
  EXPECT_EQ(Counted(options).lists, 0);
  EngineOptions exact;
  exact.device = TestDevice();
  EXPECT_EQ(Counted(exact).lists, 0);
}

// Each 64 rows of a chunk and KV head list blocks of the pages before the chunk.
TEST(ListedBlocks, OfPromptsAreThoseOfTheirChunks) {
  EngineOptions options = Options("pages");
  options.sparse_prefill = true;
  options.chunk = 192;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  const ModelInfo info = engine->info();
  Timings timings;
  Fresh(kDemo, options, RequestOf(Quoting(*engine, kPrompt, 100), 1), &timings);
  const int64_t heads = int64_t{info.layers} * info.kv_heads;
  // Behind 192 tokens nothing is left out.
  ListedBlocks expected;
  for (int64_t begin = 2 * options.chunk; begin < kPrompt; begin += options.chunk) {
    for (int64_t before = 0; before < std::min(options.chunk, kPrompt - begin);
         before += kSelectRows) {
      expected.lists += heads;
      expected.among += heads * begin / kBlock;
      expected.blocks += heads * (options.sparse_sink + options.sparse_keys) / kBlock;
      // Recent keys end with the rows, which have the chunk's before them.
      expected.blocks += heads * std::max<int64_t>(0, options.sparse_recent - before) / kBlock;
    }
  }
  ExpectSame(timings.prompts.listed, expected);
  options.sparse_top_p = 0.5;
  options.sparse_least = options.sparse_keys;
  Fresh(kDemo, options, RequestOf(Quoting(*engine, kPrompt, 100), 1), &timings);
  ExpectSame(timings.prompts.listed, expected);
  options.sparse_least = kBlock;
  Fresh(kDemo, options, RequestOf(Quoting(*engine, kPrompt, 100), 1), &timings);
  EXPECT_EQ(timings.prompts.listed.lists, expected.lists);
  EXPECT_LT(timings.prompts.listed.blocks, expected.blocks);
  EXPECT_GT(timings.prompts.listed.blocks,
            expected.blocks - expected.lists * options.sparse_keys / kBlock);
}

// Sequences of a batch choose in steps of their own: the third one begins where one of the others
// has ended, two steps behind the choice of the one that goes on.
TEST(ListedBlocks, OfABatchAreThoseOfItsSequences) {
  EngineOptions options = Options("pages");
  options.sparse_keys = 256;  // which have what is quoted: batches round otherwise
  options.sparse_refresh = 4;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{14, 40, 21}, {40, 14, 21}}) {
    std::vector<Request> requests;
    std::vector<std::vector<TokenId>> said;
    ListedBlocks sum;
    for (const int64_t tokens : lengths) {
      requests.push_back(RequestOf(Quoting(*engine, kPrompt - tokens, 100), tokens));
      Timings alone;
      said.push_back(Fresh(kDemo, options, requests.back(), &alone).tokens);
      sum.lists += alone.listed.lists;
      sum.blocks += alone.listed.blocks;
      sum.among += alone.listed.among;
    }
    Result<std::unique_ptr<Context>> context = engine->NewContext({{kPrompt, kPrompt}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    const Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    ExpectSame((*context)->timings().listed, sum);
    if (options.device != "cpu") continue;  // products of several rows round otherwise there
    for (size_t i = 0; i < said.size(); ++i) EXPECT_EQ((*made)[i].tokens, said[i]) << i;
  }
}

// The graphs of a trace have a point for each step, and add up to what is counted in all.
TEST(ListedBlocks, AreDrawnInATrace) {
  const TestDir dir;
  EngineOptions options = Options("pages");
  options.trace = dir.File("trace");
  options.placement = "host-only";
  options.sparse_prefill = true;
  options.chunk = 192;
  options.sparse_top_p = 0.5;
  options.sparse_least = kBlock;
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Timings timings;
  Fresh(kDemo, options, RequestOf(Quoting(*engine, kPrompt, 100), kTokens), &timings);
  std::ifstream file(options.trace);
  const nlohmann::json trace = nlohmann::json::parse(file, nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  std::map<std::string, int64_t> sums;  // of graphs and their numbers
  std::map<std::string, int64_t> points;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "C") continue;
    const std::string graph = event["name"];
    ++points[graph];
    for (const auto& [name, value] : event["args"].items()) {
      EXPECT_GE(value, 0);
      sums[graph + ": " + name] += value.get<int64_t>();
    }
  }
  EXPECT_EQ(points["blocks"], kTokens - 1);
  EXPECT_EQ(sums["blocks: chosen"], timings.listed.blocks);
  EXPECT_EQ(sums["blocks: left out"], timings.listed.among - timings.listed.blocks);
  const PageCacheReads& reads = timings.page_cache;  // where the device is a GPU
  EXPECT_EQ(sums["page cache: found"] + sums["page cache: brought"] + sums["page cache: passed"],
            reads.all());
  EXPECT_EQ(sums["page cache, bytes: over the bus"], reads.bytes);
  const PromptReads& prompts = timings.prompts;
  EXPECT_GT(prompts.listed.blocks, 0);
  EXPECT_EQ(sums["blocks, prompts: chosen"], prompts.listed.blocks);
  EXPECT_EQ(sums["blocks, prompts: left out"], prompts.listed.among - prompts.listed.blocks);
  EXPECT_EQ(sums["page cache, prompts: found"] + sums["page cache, prompts: brought"] +
                sums["page cache, prompts: passed"],
            prompts.page_cache.all());
  EXPECT_EQ(sums["page cache, prompts, bytes: over the bus"], prompts.page_cache.bytes);
}

}  // namespace
}  // namespace headway::testing
