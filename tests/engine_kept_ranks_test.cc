// What heads keep of prompts on ranks that share a golden model, under random placements of the
// heads: what they keep on one rank. On a GPU, which all ranks share, through HEADWAY_TEST_DEVICE.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/rope.h"
#include "support/cache_reading.h"
#include "support/grid.h"
#include "support/rank_case.h"

namespace headway::testing {
namespace {

using kv::EvictionMethod;
using kv::EvictionPolicy;

// What a run has kept of the prompt, and the logits of a token behind it.
struct Kept {
  Lists lists;  // of the model's heads; of a rank's own
  std::vector<float> logits;
};

// What a rank runs on, which lives until all have ended.
struct RankParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<StepHarness> harness;
};

// `shard` and `heads` are null where one rank has all.
Result<Kept> RunRank(const Case& test, const Shard* shard, const HarnessConfig& config,
                     RankParts* parts) {
  Result<std::unique_ptr<WeightSource>> source = OpenWeights(*Env::Default(), test.golden.folder);
  if (!source.ok()) return source.status();
  Result<std::unique_ptr<Model>> model =
      Model::Load(Env::Default(), test.config, std::move(*source), shard);
  if (!model.ok()) return model.status();
  parts->model = std::move(*model);
  const std::vector<TokenId>& prompt = test.golden.prompt;
  Result<std::unique_ptr<StepHarness>> made =
      StepHarness::Create(*parts->model, config, 1, std::ssize(prompt) + 1);
  if (!made.ok()) return made.status();
  parts->harness = std::move(*made);
  StepHarness& h = *parts->harness;
  const Result<kv::SequenceId> sequence = h.NewSequence();
  if (!sequence.ok()) return sequence.status();
  if (config.communicator != nullptr) {
    // Ranks that share a GPU take no memory of it while one waits for another there.
    if (const auto all = config.communicator->OfFirst(0); !all.ok()) return all.status();
  }
  const RopeFrequencies rope =
      ComputeRope(test.config.rope, test.config.shape.head_dim, std::ssize(prompt));
  if (const auto read = h.Append(*sequence, prompt, rope); !read.ok()) return read.status();
  const Result<kv::SequenceId> kept = h.evictor().Evict(*sequence);
  if (!kept.ok()) return kept.status();
  const ModelShape& whole = test.config.shape;
  const RankHeads alone = RankHeads::Alone(whole.layers, whole.kv_heads);
  const RankHeads& heads = config.heads == nullptr ? alone : *config.heads;
  Kept result;
  for (int layer = 0; layer < whole.layers; ++layer) {
    result.lists.emplace_back(static_cast<size_t>(whole.kv_heads));
    const std::vector<int>& own = heads.In(layer).heads;
    for (int slot = 0; slot < parts->model->shape().kv_heads; ++slot) {
      const Cached some = ReadHead(h, h.kept_store(), *kept, layer, slot);
      const auto at = static_cast<size_t>(slot);
      if (at >= own.size()) {
        // Of zeros nothing is kept but what the open page has.
        EXPECT_LT(some.tokens(), config.page_slots);
        continue;
      }
      result.lists.back()[static_cast<size_t>(own[at])] =
          PositionsOf(some, ReadHead(h, h.store(), *sequence, layer, slot));
    }
  }
  const StepInput input{*kept, std::span(test.golden.tokens).first(1), &rope, LogitsMode::kAll};
  Result<std::vector<LogitRows>> step = h.StepKept({&input, 1});
  if (!step.ok()) return step.status();
  result.logits = std::move((*step)[0][0]);
  return result;
}

// Of all ranks together.
Kept RunRanks(const Case& test, const Placement& placement, const HarnessConfig& config) {
  const std::vector<Shard> shards = CutShards(test.config.shape, placement);
  const std::unique_ptr<RankGroup> group = NewGroup(static_cast<int>(shards.size()));
  std::vector<Kept> of_ranks(shards.size());
  std::vector<RankParts> parts(shards.size());
  std::vector<RankHeads> heads;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    heads.push_back({test.config.shape.kv_heads, rank, placement});
  }
  const Status status = group->Run([&](int rank) {
    const auto index = static_cast<size_t>(rank);
    HarnessConfig own = config;
    own.communicator = &group->communicator(rank);
    own.heads = &heads[index];
    Result<Kept> made = RunRank(test, &shards[index], own, &parts[index]);
    if (made.ok()) of_ranks[index] = std::move(*made);
    return made.status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  Kept all = std::move(of_ranks[0]);
  for (size_t rank = 1; status.ok() && rank < of_ranks.size(); ++rank) {
    EXPECT_EQ(of_ranks[rank].logits, all.logits);
    for (size_t layer = 0; layer < all.lists.size(); ++layer) {
      for (const int head : placement[rank][layer].heads) {
        const auto at = static_cast<size_t>(head);
        all.lists[layer][at] = std::move(of_ranks[rank].lists[layer][at]);
      }
    }
  }
  return all;
}

// Tokens that one of them keeps and the other does not, and all that `b` keeps.
std::pair<int64_t, int64_t> Differences(const Kept& a, const Kept& b) {
  int64_t different = 0, all = 0;
  for (size_t layer = 0; layer < b.lists.size(); ++layer) {
    for (size_t head = 0; head < b.lists[layer].size(); ++head) {
      const std::vector<int64_t>&x = a.lists[layer][head], &y = b.lists[layer][head];
      std::vector<int64_t> of_one;
      std::set_symmetric_difference(x.begin(), x.end(), y.begin(), y.end(),
                                    std::back_inserter(of_one));
      different += std::ssize(of_one);
      all += std::ssize(y);
    }
  }
  return {different, all};
}

EvictionPolicy PolicyOf(EvictionMethod method, const ModelShape& shape, bool profiled) {
  EvictionPolicy policy;
  policy.method = method;
  policy.budget = 48;
  policy.window = policy.scores() && method != EvictionMethod::kHeavy ? 8 : 1;
  policy.pool = 3;
  policy.profiled = profiled;
  const auto heads = static_cast<size_t>(shape.layers * shape.kv_heads);
  for (size_t i = 0; profiled && i < heads; ++i) policy.shares.push_back(i % 2 == 0 ? 1.5 : 0.5);
  if (heads % 2 == 1 && profiled) policy.shares.back() = 1.0;
  return policy;
}

HarnessConfig Config() {
  HarnessConfig config;
  config.chunk = 37;
  config.page_slots = 4;
  config.threads = 1;
  config.poison_freed = true;
  return config;
}

class EngineKeptRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineKeptRanks, KeepWhatOneRankKeeps) {
  const Case test(GetParam());
  const ModelShape& shape = test.config.shape;
  const bool windows = std::any_of(test.config.windows.begin(), test.config.windows.end(),
                                   [](int64_t window) { return window > 0; });
  if (windows) GTEST_SKIP() << "refused";
  // Of the others keys are rounded, by more than some scores differ.
  const bool exact = shape.dtype == DType::kF32 && TestDevice() == "cpu";
  for (const auto& [method, profiled] : {std::pair{EvictionMethod::kAdaSnap, false},
                                         {EvictionMethod::kAdaPyramid, false},
                                         {EvictionMethod::kCriticalAdaSnap, false},
                                         {EvictionMethod::kDefensive, false},
                                         {EvictionMethod::kHeavy, false},
                                         {EvictionMethod::kAdaSnap, true}}) {
    HarnessConfig config = Config();
    config.eviction = PolicyOf(method, shape, profiled);
    RankParts parts;
    const Result<Kept> one = RunRank(test, nullptr, config, &parts);
    ASSERT_TRUE(one.ok()) << one.status().message();
    for (int ranks = 1; ranks <= 4; ++ranks) {
      SCOPED_TRACE(std::string(EvictionName(method)) + " on " + std::to_string(ranks));
      const Kept shared =
          RunRanks(test, RandomPlacement(shape, ranks, static_cast<uint64_t>(7 * ranks)), config);
      ASSERT_FALSE(HasFailure());
      const auto [different, all] = Differences(shared, *one);
      EXPECT_LE(different, exact ? 0 : all / 20) << "of " << all;
      if (different > 0) continue;
      const double tolerance = 2 * GoldenTolerance(shape, test.length(), shape.dtype, one->logits);
      EXPECT_LE(MaxDifference(shared.logits, one->logits), tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineKeptRanks, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

// Ranks that come late change nothing.
TEST(EngineKeptRanksTest, LateRanksKeepTheSame) {
  for (const char* name : {"neox-sequential", "qwen2"}) {
    const Case test(name);
    const Placement placement = RandomPlacement(test.config.shape, 3, 5);
    for (const EvictionMethod method : {EvictionMethod::kAdaSnap, EvictionMethod::kDefensive}) {
      HarnessConfig config = Config();
      config.eviction = PolicyOf(method, test.config.shape, false);
      const Kept once = RunRanks(test, placement, config);
      Delays delays(3);
      delays.Set(Lane::kCompute, 200, 50, 500);
      config.delays = &delays;
      const Kept late = RunRanks(test, placement, config);
      EXPECT_EQ(late.lists, once.lists);
      EXPECT_EQ(late.logits, once.logits);
      EXPECT_GT(delays.slept(), 0);
    }
  }
}

// A rank that fails before it says what its heads scored ends all, with its error.
TEST(EngineKeptRanksTest, OneRankThatFailsEndsAll) {
  const Case test("qwen2");
  const Placement placement = RandomPlacement(test.config.shape, 3, 2);
  const std::vector<Shard> shards = CutShards(test.config.shape, placement);
  const std::unique_ptr<RankGroup> group = NewGroup(3);
  std::vector<RankParts> parts(3);
  const Status status = group->Run([&](int rank) {
    const auto index = static_cast<size_t>(rank);
    const RankHeads heads = {test.config.shape.kv_heads, rank, placement};
    HarnessConfig own = Config();
    own.communicator = &group->communicator(rank);
    own.heads = &heads;
    own.eviction = PolicyOf(EvictionMethod::kAdaSnap, test.config.shape, false);
    // What it reads lies on disk, where nothing is chosen from.
    if (rank == 1) own.placement = kv::PlacementKind::kDiskOnly;
    return RunRank(test, &shards[index], own, &parts[index]).status();
  });
  EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
  EXPECT_NE(status.message().find("rank 1 of 3: "), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headway::testing
