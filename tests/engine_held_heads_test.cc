// Heads of golden models that several ranks hold, each a part of what is kept of prompts: under
// random placements ranks keep together what one rank keeps, and make its logits of it. On a GPU,
// which all ranks share, through HEADWAY_TEST_DEVICE.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

constexpr int64_t kDrafts = 5;

// What a run has kept of its prompts, and the logits of the steps behind them.
struct Held {
  std::vector<Lists> lists;  // of each sequence, of the model's heads
  std::vector<LogitRows> steps;
  LogitRows prompt;  // of the first one

  bool operator==(const Held&) const = default;
};

// What a rank runs on, which lives until all have ended.
struct RankParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<StepHarness> harness;
};

// How many tokens of the prompt each sequence has.
int64_t LengthOf(const Case& test, int sequence) {
  return std::ssize(test.golden.prompt) - 7 * sequence;
}

class Rank {
 public:
  // `shard` and the configuration's heads are null where one rank has all.
  static Result<Held> Run(const Case& test, const Shard* shard, const HarnessConfig& config,
                          int sequences, RankParts* parts) {
    Result<std::unique_ptr<WeightSource>> source = OpenWeights(*Env::Default(), test.golden.folder);
    if (!source.ok()) return source.status();
    Result<std::unique_ptr<Model>> model =
        Model::Load(Env::Default(), test.config, std::move(*source), shard);
    if (!model.ok()) return model.status();
    parts->model = std::move(*model);
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(*parts->model, config, sequences, std::ssize(test.golden.prompt) + 64);
    if (!made.ok()) return made.status();
    parts->harness = std::move(*made);
    if (config.communicator != nullptr) {
      // Ranks that share a GPU take no memory of it while one waits for another there.
      if (const auto all = config.communicator->OfFirst(0); !all.ok()) return all.status();
    }
    Rank rank(test, config, *parts->harness, parts->model->shape().kv_heads);
    for (int i = 0; i < sequences; ++i) {
      if (Status s = rank.Read(i); !s.ok()) return s;
    }
    if (Status s = rank.Steps(); !s.ok()) return s;
    return std::move(rank.held_);
  }

 private:
  Rank(const Case& test, const HarnessConfig& config, StepHarness& harness, int slots)
      : test_(test),
        harness_(harness),
        heads_(config.heads == nullptr
                   ? RankHeads::Alone(test.config.shape.layers, test.config.shape.kv_heads)
                   : *config.heads),
        slots_(slots),
        page_slots_(config.page_slots),
        encoded_(config.encoding != Encoding::kNone),
        rope_(ComputeRope(test.config.rope, test.config.shape.head_dim,
                          std::ssize(test.golden.prompt))) {}

  Status Read(int at) {
    const Result<kv::SequenceId> sequence = harness_.NewSequence();
    if (!sequence.ok()) return sequence.status();
    const std::span<const TokenId> prompt =
        std::span(test_.golden.prompt).first(static_cast<size_t>(LengthOf(test_, at)));
    Result<LogitRows> read = harness_.Append(*sequence, prompt, rope_);
    if (!read.ok()) return read.status();
    if (at == 0) held_.prompt = std::move(*read);
    const Result<kv::SequenceId> kept = harness_.evictor().Evict(*sequence, at);
    if (!kept.ok()) return kept.status();
    kept_.push_back(*kept);
    if (!encoded_) ReadLists(*sequence, *kept);
    harness_.store().Drop(*sequence);
    return OkStatus();
  }

  // Rows are looked up by their bits, which an encoding changes.
  void ReadLists(kv::SequenceId sequence, kv::SequenceId kept) {
    Lists& lists = held_.lists.emplace_back();
    for (int layer = 0; layer < test_.config.shape.layers; ++layer) {
      lists.emplace_back(static_cast<size_t>(heads_.kv_heads));
      const std::vector<int>& own = heads_.In(layer).heads;
      for (int slot = 0; slot < slots_; ++slot) {
        const Cached some = ReadHead(harness_, harness_.kept_store(), kept, layer, slot);
        if (static_cast<size_t>(slot) < own.size()) {
          lists.back()[static_cast<size_t>(own[static_cast<size_t>(slot)])] =
              PositionsOf(some, ReadHead(harness_, harness_.store(), sequence, layer, slot));
        } else {
          // Of zeros nothing is kept but what the open page has.
          EXPECT_LT(some.tokens(), page_slots_);
        }
      }
    }
  }

  // Single tokens, past the end of a page; then a longer text of one sequence beside them.
  Status Steps() {
    for (const int64_t longest : {1, 1, 1, 1, 1, 11, 1, 1}) {
      std::vector<StepInput> inputs;
      for (size_t i = 0; i < kept_.size(); ++i) {
        const auto tokens = static_cast<size_t>(i == kept_.size() / 2 ? longest : 1);
        inputs.push_back(
            {kept_[i], std::span(test_.golden.tokens).first(tokens), &rope_, LogitsMode::kAll});
      }
      Result<std::vector<LogitRows>> step = harness_.StepKept(inputs);
      if (!step.ok()) return step.status();
      held_.steps.insert(held_.steps.end(), step->begin(), step->end());
    }
    for (int i = 0; i < 6; ++i) {
      if (Status s = StepWithDrafts(); !s.ok()) return s;
    }
    return OkStatus();
  }

  // As many drafts as fit the open page, of which the last one is wrong.
  Status StepWithDrafts() {
    std::vector<StepInput> inputs;
    for (const kv::SequenceId kept : kept_) {
      const int64_t open = harness_.kept_store().Length(kept) % page_slots_;
      const int64_t drafts = std::clamp<int64_t>(page_slots_ - 2 - open, 0, kDrafts);
      StepInput input{kept, std::span(test_.golden.tokens).first(static_cast<size_t>(drafts) + 1),
                      &rope_, LogitsMode::kAll};
      input.drafts = drafts;
      inputs.push_back(input);
    }
    Result<std::vector<LogitRows>> step = harness_.StepKept(inputs);
    if (!step.ok()) return step.status();
    held_.steps.insert(held_.steps.end(), step->begin(), step->end());
    for (const StepInput& input : inputs) {
      if (input.drafts == 0) continue;
      if (Status s = harness_.kept_store().TakeBack(input.sequence, 1); !s.ok()) return s;
    }
    return OkStatus();
  }

  const Case& test_;
  StepHarness& harness_;
  const RankHeads heads_;
  const int slots_, page_slots_;
  const bool encoded_;
  const RopeFrequencies rope_;
  std::vector<kv::SequenceId> kept_;
  Held held_;
};

struct Ranks {
  Placement placement;
  HeadSplit split = HeadSplit::kTokens;
};

// Of all ranks together.
Held RunRanks(const Case& test, const Ranks& ranks, const HarnessConfig& config, int sequences) {
  const std::vector<Shard> shards = CutShards(test.config.shape, ranks.placement);
  const std::unique_ptr<RankGroup> group = NewGroup(static_cast<int>(shards.size()));
  std::vector<Held> of_ranks(shards.size());
  std::vector<RankParts> parts(shards.size());
  std::vector<RankHeads> heads;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    heads.push_back({test.config.shape.kv_heads, rank, ranks.placement, ranks.split});
  }
  const Status status = group->Run([&](int rank) {
    const auto index = static_cast<size_t>(rank);
    HarnessConfig own = config;
    own.communicator = &group->communicator(rank);
    own.heads = &heads[index];
    Result<Held> made = Rank::Run(test, &shards[index], own, sequences, &parts[index]);
    if (made.ok()) of_ranks[index] = std::move(*made);
    return made.status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  Held all = of_ranks[0];
  for (size_t rank = 1; status.ok() && rank < of_ranks.size(); ++rank) {
    EXPECT_EQ(of_ranks[rank].steps, all.steps);
    EXPECT_EQ(of_ranks[rank].prompt, all.prompt);
    for (size_t i = 0; i < all.lists.size(); ++i) {
      for (size_t layer = 0; layer < all.lists[i].size(); ++layer) {
        for (size_t head = 0; head < all.lists[i][layer].size(); ++head) {
          const std::vector<int64_t>& more = of_ranks[rank].lists[i][layer][head];
          std::vector<int64_t>& list = all.lists[i][layer][head];
          list.insert(list.end(), more.begin(), more.end());
          // A token that two ranks have is there twice.
          std::sort(list.begin(), list.end());
        }
      }
    }
  }
  return all;
}

EvictionPolicy PolicyOf(EvictionMethod method) {
  EvictionPolicy policy;
  policy.method = method;
  policy.budget = 48;
  policy.window = policy.scores() && method != EvictionMethod::kHeavy ? 8 : 1;
  policy.pool = 3;
  return policy;
}

HarnessConfig Config(EvictionMethod method) {
  HarnessConfig config;
  config.chunk = 37;
  config.page_slots = 4;
  config.threads = 1;
  config.poison_freed = true;
  config.drafts = kDrafts;
  config.eviction = PolicyOf(method);
  return config;
}

void ExpectNear(const Case& test, const LogitRows& made, const LogitRows& expected) {
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    const double tolerance =
        2 * GoldenTolerance(test.config.shape, test.length(), test.config.shape.dtype, expected[i]);
    EXPECT_LE(MaxDifference(made[i], expected[i]), tolerance) << "row " << i;
  }
}

class EngineHeldHeads : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineHeldHeads, AreTheHeadsOfOneRank) {
  const Case test(GetParam());
  const bool windows = std::any_of(test.config.windows.begin(), test.config.windows.end(),
                                   [](int64_t window) { return window > 0; });
  if (windows) GTEST_SKIP() << "refused";
  // Of the others keys are rounded, by more than some scores differ.
  const bool exact = test.config.shape.dtype == DType::kF32 && TestDevice() == "cpu";
  for (const EvictionMethod method : {EvictionMethod::kStreaming, EvictionMethod::kAdaSnap,
                                      EvictionMethod::kDefensive, EvictionMethod::kExpected}) {
    if (!exact && method != EvictionMethod::kStreaming) continue;
    const HarnessConfig config = Config(method);
    for (const int sequences : {1, 3}) {
      RankParts parts;
      const Result<Held> one = Rank::Run(test, nullptr, config, sequences, &parts);
      ASSERT_TRUE(one.ok()) << one.status().message();
      for (int ranks = 2; ranks <= 4; ++ranks) {
        const HeadSplit split = (ranks + sequences) % 2 == 0 || method == EvictionMethod::kAdaSnap
                                    ? HeadSplit::kTokens
                                    : HeadSplit::kSequences;
        SCOPED_TRACE(std::string(EvictionName(method)) + ", " + std::to_string(sequences) +
                     " sequences on " + std::to_string(ranks));
        const auto seed = static_cast<uint64_t>(11 * ranks + sequences);
        const Held held = RunRanks(test, {SharedPlacement(test.config.shape, ranks, seed), split},
                                   config, sequences);
        ASSERT_FALSE(HasFailure());
        EXPECT_EQ(held.lists, one->lists);
        ExpectNear(test, held.prompt, one->prompt);
        ASSERT_EQ(held.steps.size(), one->steps.size());
        for (size_t i = 0; i < held.steps.size(); ++i) {
          ExpectNear(test, held.steps[i], one->steps[i]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineHeldHeads, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

// Another run, and ranks that come late, change nothing.
TEST(EngineHeldHeadsTest, BitsAreTheSameFromRunToRun) {
  for (const HeadSplit split : {HeadSplit::kSequences, HeadSplit::kTokens}) {
    const Case test("qwen2");
    const Ranks ranks = {SharedPlacement(test.config.shape, 3, 5), split};
    HarnessConfig config = Config(EvictionMethod::kAdaSnap);
    // Sums of four pieces of a chunk have a lane of their own.
    config.sum_rows = split == HeadSplit::kTokens ? 9 : 0;
    const Held once = RunRanks(test, ranks, config, 2);
    EXPECT_TRUE(RunRanks(test, ranks, config, 2) == once);
    Delays delays(3);
    delays.Set(Lane::kCompute, 200, 50, 500);
    config.delays = &delays;
    EXPECT_TRUE(RunRanks(test, ranks, config, 2) == once);
    EXPECT_GT(delays.slept(), 0);
  }
}

// Pages are encoded alike, whoever has them, but where other sums turned a rounding.
TEST(EngineHeldHeadsTest, EncodedPagesAreThoseOfOneRank) {
  const Case test("llama31");
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3}) {
    HarnessConfig config = Config(EvictionMethod::kStreaming);
    config.encoding = encoding;
    config.page_slots = 16;
    RankParts parts;
    const Result<Held> one = Rank::Run(test, nullptr, config, 2, &parts);
    ASSERT_TRUE(one.ok()) << one.status().message();
    for (const HeadSplit split : {HeadSplit::kSequences, HeadSplit::kTokens}) {
      const Held held =
          RunRanks(test, {SharedPlacement(test.config.shape, 3, 9), split}, config, 2);
      ASSERT_EQ(held.steps.size(), one->steps.size());
      for (size_t i = 0; i < held.steps.size(); ++i) {
        for (size_t row = 0; row < held.steps[i].size(); ++row) {
          EXPECT_LE(
              MaxDifference(held.steps[i][row], one->steps[i][row]),
              GoldenTolerance(test.config.shape, test.length(), DType::kBF16, one->steps[i][row]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway::testing
