// Ranks in one process: golden models whose heads, MLP and vocabulary are shared between ranks that
// add up what each has, under random placements of the heads. Run again under other cache
// configurations through HEADWAY_TEST_CONFIG, and on a GPU, which all ranks share, through
// HEADWAY_TEST_DEVICE.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "model/rope.h"
#include "support/golden.h"
#include "support/rank_case.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

HarnessConfig Config() {
  HarnessConfig config = HarnessConfig::Default();
  config.chunk = 37;  // divides nothing
  config.threads = 1;
  return config;
}

// What a rank runs on, which lives until all have ended.
struct RankParts {
  std::unique_ptr<Model> model;
  std::unique_ptr<StepHarness> harness;
};

// What one rank makes of the prompt and, token by token, of what follows it.
Result<LogitRows> RunRank(const Case& test, const Shard& shard, const HarnessConfig& config,
                          RankParts* parts) {
  Result<std::unique_ptr<WeightSource>> source = OpenWeights(*Env::Default(), test.golden.folder);
  if (!source.ok()) return source.status();
  Result<std::unique_ptr<Model>> model =
      Model::Load(Env::Default(), test.config, std::move(*source), &shard);
  if (!model.ok()) return model.status();
  parts->model = std::move(*model);
  Result<std::unique_ptr<StepHarness>> made =
      StepHarness::Create(*parts->model, config, 1, test.length());
  if (!made.ok()) return made.status();
  parts->harness = std::move(*made);
  StepHarness& h = *parts->harness;
  const Result<kv::SequenceId> sequence = h.NewSequence();
  if (!sequence.ok()) return sequence.status();
  // Ranks that share a GPU take no memory of it while one waits for another there.
  if (const Result<int64_t> all = config.communicator->OfFirst(0); !all.ok()) return all.status();
  const RopeFrequencies rope =
      ComputeRope(test.config.rope, test.config.shape.head_dim, std::ssize(test.golden.prompt));
  Result<LogitRows> rows = h.Append(*sequence, test.golden.prompt, rope);
  if (!rows.ok()) return rows.status();
  for (const TokenId& token : test.golden.tokens) {  // teacher-forced
    Result<LogitRows> next = h.Append(*sequence, {&token, 1}, rope);
    if (!next.ok()) return next.status();
    rows->push_back(std::move((*next)[0]));
  }
  return rows;
}

bool SameBits(const LogitRows& a, const LogitRows& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

// The logits of every rank.
Status TryRanks(const Case& test, const Placement& placement, const HarnessConfig& config,
                std::vector<LogitRows>* of_ranks) {
  const std::vector<Shard> shards = CutShards(test.config.shape, placement);
  of_ranks->resize(shards.size());
  const std::unique_ptr<RankGroup> group = NewGroup(static_cast<int>(shards.size()));
  std::vector<RankParts> parts(shards.size());
  return group->Run([&](int rank) {
    HarnessConfig own = config;
    own.communicator = &group->communicator(rank);
    const auto index = static_cast<size_t>(rank);
    Result<LogitRows> made = RunRank(test, shards[index], own, &parts[index]);
    // Where a wait is left out, sums may still use what other ranks would take away.
    if (parts[index].harness != nullptr) parts[index].harness->lanes().Drain();
    if (made.ok()) (*of_ranks)[index] = std::move(*made);
    return made.status();
  });
}

// Those that all have.
LogitRows RunRanks(const Case& test, const Placement& placement, const HarnessConfig& config) {
  std::vector<LogitRows> rows;
  const Status status = TryRanks(test, placement, config, &rows);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const LogitRows& of_rank : rows) EXPECT_TRUE(SameBits(of_rank, rows[0]));
  return std::move(rows[0]);
}

class EngineRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineRanks, LogitsEqualTransformersOnAnyNumberOfRanks) {
  const Case test(GetParam());
  const ModelShape& shape = test.config.shape;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    // Many have no heads; on a GPU they would have more streams than it has queues.
    if (ranks == 8 && (TestDevice() != "cpu" || std::getenv("HEADWAY_TEST_CONFIG") != nullptr)) {
      continue;
    }
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    const Placement placement = RandomPlacement(shape, ranks, static_cast<uint64_t>(ranks));
    HarnessConfig config = Config();
    if (ranks == 4) config.sum_rows = 9;  // four pieces of a chunk, whose sums run beside products
    if (ranks == 3) {                     // pieces of a row or two
      config.sum_rows = 1;
      config.chunk = 5;
    }
    const LogitRows logits = RunRanks(test, placement, config);
    ASSERT_EQ(std::ssize(logits), test.length());
    for (size_t i = 0; i < test.golden.rows.size(); ++i) {
      const std::vector<float>& expected = test.golden.logits[i];
      const double tolerance = GoldenTolerance(shape, test.length(), shape.dtype, expected);
      EXPECT_LE(MaxDifference(logits[static_cast<size_t>(test.golden.rows[i])], expected),
                tolerance)
          << "position " << test.golden.rows[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineRanks, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Pieces change no bit. (Of 16 rows at least: fewer have kernels of products of their own.)
TEST(EngineRanksTest, PiecesOfSumsChangeNoBit) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "products of other shapes have other bits";
  for (const char* name : {"llama31", "qwen2", "opt", "neox-sequential", "neox"}) {
    SCOPED_TRACE(name);
    const Case test(name);
    for (const int ranks : {2, 3, 5}) {
      const Placement placement = RandomPlacement(test.config.shape, ranks, 5);
      HarnessConfig config = Config();
      config.chunk = 100;
      const LogitRows whole = RunRanks(test, placement, config);
      for (const int64_t rows : {17, 25, 33, 50}) {
        config.sum_rows = rows;
        EXPECT_TRUE(SameBits(RunRanks(test, placement, config), whole)) << ranks << " " << rows;
      }
    }
  }
}

// Late lanes and late ranks change nothing, nor does another run.
TEST(EngineRanksTest, BitsAreTheSameFromRunToRun) {
  for (const char* name : {"neox-sequential", "qwen2"}) {
    const Case test(name);
    const Placement placement = RandomPlacement(test.config.shape, 3, 5);
    const LogitRows once = RunRanks(test, placement, Config());
    EXPECT_TRUE(SameBits(RunRanks(test, placement, Config()), once));
    Delays delays(3);
    delays.Set(Lane::kCompute, 200, 50, 500);
    HarnessConfig late = Config();
    late.delays = &delays;
    EXPECT_TRUE(SameBits(RunRanks(test, placement, late), once));
    EXPECT_GT(delays.slept(), 0);
  }
}

// Weights that stream have the bits of those that stay, from host memory or disk. There columns,
// and zeros in the places of heads that a rank does not have, lie in a file of their own.
TEST(EngineRanksTest, WeightsMayLieOnDisk) {
  for (const char* name : {"llama31", "neox", "opt-f16"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      const Case test(name);
      const Placement placement =
          RandomPlacement(test.config.shape, ranks, static_cast<uint64_t>(ranks + 3));
      const LogitRows once = RunRanks(test, placement, Config());
      for (const int on_disk : {0, 1, test.config.shape.layers}) {
        HarnessConfig config = Config();
        config.weight_layers = 0;
        config.disk_layers = on_disk;
        EXPECT_TRUE(SameBits(RunRanks(test, placement, config), once)) << on_disk;
      }
    }
  }
}

// Sums of pieces, on a lane of their own: a late lane changes no bit, and each of the two waits is
// needed.
TEST(EngineRanksTest, SumsOfPiecesWaitAndAreAwaited) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "lanes are late where kernels run behind the caller";
  const Case test("llama31");
  const Placement placement = RandomPlacement(test.config.shape, 2, 5);
  HarnessConfig config = Config();
  config.sum_rows = 9;
  const LogitRows once = RunRanks(test, placement, config);
  for (const Lane late : {Lane::kCompute, Lane::kRanks}) {
    SCOPED_TRACE(LaneName(late));
    Delays delays(3);
    delays.Set(late, 2, 500, 1000);
    HarnessConfig delayed = config;
    delayed.delays = &delays;
    EXPECT_TRUE(SameBits(RunRanks(test, placement, delayed), once));
    EXPECT_GT(delays.slept(), 0);
    delayed.wait_filter = [late](const LaneWait& wait) {
      return wait.awaited != late || !std::string(wait.file).ends_with("residual_sums.cc");
    };
    // Other logits, or ranks that meet in different calls.
    std::vector<LogitRows> rows;
    const Status status = TryRanks(test, placement, delayed, &rows);
    EXPECT_FALSE(status.ok() && SameBits(rows[0], once));
  }
}

// Closed pages are encoded by the rank that has the head: the same codes as on one rank but where
// other sums turned a rounding, by one step of a code.
TEST(EngineRanksTest, EncodedPagesAreThoseOfOneRank) {
  const Case test("llama31");
  const ModelShape& shape = test.config.shape;
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3}) {
    HarnessConfig config = Config();
    config.x_segments = 0;  // encoded keys are not made of X
    config.encoding = encoding;
    const LogitRows one = RunRanks(test, RandomPlacement(shape, 1, 1), config);
    const LogitRows two = RunRanks(test, RandomPlacement(shape, 2, 4), config);
    ASSERT_EQ(one.size(), two.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_LE(MaxDifference(one[i], two[i]),
                GoldenTolerance(shape, test.length(), DType::kBF16, one[i]));
    }
  }
}

// A rank whose disk or memory fails ends all, with its error.
TEST(EngineRanksTest, OneRankThatFailsEndsAll) {
  const Case test("llama31");
  const std::vector<Shard> shards =
      CutShards(test.config.shape, RandomPlacement(test.config.shape, 3, 2));
  const std::unique_ptr<RankGroup> group = NewGroup(3);
  std::vector<RankParts> parts(3);
  const Status status = group->Run([&](int rank) {
    HarnessConfig own = Config();
    own.communicator = &group->communicator(rank);
    // Its store is not made.
    if (rank == 2) own.device_slabs = own.host_slabs = -(1 << 20);
    const auto index = static_cast<size_t>(rank);
    return RunRank(test, shards[index], own, &parts[index]).status();
  });
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget) << status.message();
  EXPECT_NE(status.message().find("rank 2 of 3: "), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headway::testing
