// Encoded closed pages: the same bits wherever they lie, the results of the reference kernels, and
// a change that is as small as the encoding's steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class Encodings : public ::testing::TestWithParam<Encoding> {
 protected:
  static HarnessConfig Config() {
    HarnessConfig config = HarnessConfig::Default();
    config.encoding = GetParam();
    return config;
  }
};

// The largest difference of any two logits.
double Distance(const LogitRows& a, const LogitRows& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      largest = std::max(largest, std::abs(double{a[i][j]} - double{b[i][j]}));
    }
  }
  return largest;
}

TEST_P(Encodings, ResidenceAndHeadGroupNeverChangeABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const HarnessConfig config = Config();
  const int64_t page = config.page_slots;
  for (const int64_t length : {page - 1, page, page + 1, 9 * page + 3}) {
    const std::vector<TokenId> tokens = RandomTokens(length, 96, static_cast<uint64_t>(length));
    const int64_t decode = std::min<int64_t>(length - 1, page + 2);
    HarnessConfig resident = config;
    resident.placement = kv::PlacementKind::kFirstFit;
    resident.device_slabs = 1 << 20;
    resident.group_heads = 0;
    const LogitRows expected = RunTokens(*model, resident, tokens, decode);
    for (const kv::PlacementKind placement :
         {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
          kv::PlacementKind::kDiskOnly}) {
      for (const int group : {1, 2, 3}) {
        HarnessConfig other = config;
        other.placement = placement;
        other.group_heads = group;
        other.device_slabs = 3;
        other.host_slabs = 5;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, decode),
                       "length " + std::to_string(length) + " placement " +
                           std::to_string(static_cast<int>(placement)) + " group " +
                           std::to_string(group));
      }
    }
  }
}

// With one chunk and one layer the encoded pages are those of the same numbers, so that only the
// order of additions differs.
TEST_P(Encodings, EqualTheReferenceKernels) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "compares two kinds of kernels for CPUs";
  if (GetParam() == Encoding::kLossless)
    GTEST_SKIP() << "changes nothing; see engine_lossless_test";
  ModelConfig tiny = TinyConfig(DType::kF32);
  tiny.shape.layers = 1;
  tiny.windows = {0};
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(120, 96, 6);
  HarnessConfig ref = Config();
  ref.use_ref_kernels = true;
  const LogitRows expected = RunTokens(*Tiny(tiny), ref, tokens, 40);
  const LogitRows actual = RunTokens(*model, Config(), tokens, 40);
  HarnessConfig exact = Config();
  exact.encoding = Encoding::kNone;
  const LogitRows plain = RunTokens(*model, exact, tokens, 40);
  // A number half way between two codes may fall to either side, so the difference is of the
  // encoding's own size now and then, but for one number in thousands.
  EXPECT_LT(Distance(expected, actual), 0.1 * Distance(plain, actual));
  EXPECT_GT(Distance(plain, actual), 0.0);
}

TEST_P(Encodings, ABatchEqualsItsSequencesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  HarnessConfig config = Config();
  config.placement = kv::PlacementKind::kHostOnly;
  const std::vector<int64_t> lengths = {15, 16, 40};
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 3, 80);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 80);
  std::vector<kv::SequenceId> ids;
  std::vector<std::vector<TokenId>> tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    ids.push_back(*(*h)->NewSequence());
    tokens.push_back(RandomTokens(lengths[i] + 20, 96, 100 + i));
    ASSERT_TRUE((*h)->Append(ids[i], std::span(tokens[i]).first(lengths[i]), rope).ok());
  }
  std::vector<LogitRows> got(lengths.size());
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<StepInput> inputs;
    for (size_t i = 0; i < ids.size(); ++i) {
      inputs.push_back(
          {ids[i], std::span(tokens[i]).subspan(lengths[i] + step, 1), &rope, LogitsMode::kAll});
    }
    Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    for (size_t i = 0; i < ids.size(); ++i) got[i].push_back(std::move((*rows)[i][0]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const LogitRows alone = RunTokens(*model, config, tokens[i], 20);
    const LogitRows last(alone.end() - 20, alone.end());
    const std::string what = "sequence " + std::to_string(i);
    // A GPU has other products for one row.
    if (TestDevice() == "cpu") {
      ExpectSameBits(last, got[i], what);
    } else {
      ExpectNear(*model, last, got[i], what);
    }
  }
}

// The host's cores attend to encoded pages in its memory. No page closes in these decodes: a key
// that is off by its rounding may fall to another code.
TEST_P(Encodings, TheHostPathAgreesWithAllResident) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    if (GetParam() == Encoding::kLossless && dtype != DType::kBF16) continue;
    const std::unique_ptr<Model> model = Tiny(TinyConfig(dtype));
    for (const int64_t length : {20, 70, 190}) {
      const std::vector<TokenId> tokens = RandomTokens(length, 96, 40 + length);
      const int64_t decode = length % Config().page_slots;
      HarnessConfig resident = Config();
      resident.placement = kv::PlacementKind::kFirstFit;
      resident.device_slabs = 1 << 20;
      resident.host_share = 0.0;
      const LogitRows expected = RunTokens(*model, resident, tokens, decode);
      for (const double share : {0.4, 1.0}) {
        HarnessConfig config = Config();
        config.placement = kv::PlacementKind::kHostOnly;
        config.host_share = share;
        ExpectNear(*model, expected, RunTokens(*model, config, tokens, decode),
                   "length " + std::to_string(length) + " share " + std::to_string(share));
      }
    }
  }
}

// Streaming heads keep the model's dtype beside encoded slabs of the others.
TEST_P(Encodings, StreamingHeadsStayAsTheyAre) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 12);
  HarnessConfig config = Config();
  config.pattern = {4, 20, {{true, false, false}, {false, true, true}, {false, false, true}}};
  config.placement = kv::PlacementKind::kFirstFit;
  config.device_slabs = 1 << 20;
  const LogitRows expected = RunTokens(*model, config, tokens, 40);
  for (const int group : {1, 2}) {
    HarnessConfig other = config;
    other.group_heads = group;
    other.device_slabs = 2;
    other.host_slabs = 4;
    ExpectSameAnywhere(*model, other, expected, RunTokens(*model, other, tokens, 40),
                       "group " + std::to_string(group));
  }
  // With every head streaming nothing is encoded.
  config.pattern.streaming = {{true, true, true}, {true, true, true}, {true, true, true}};
  HarnessConfig exact = config;
  exact.encoding = Encoding::kNone;
  ExpectSameBits(RunTokens(*model, exact, tokens, 40), RunTokens(*model, config, tokens, 40),
                 "all streaming");
}

// Forks share encoded slabs and copy a half-filled one; what was given up is encoded again.
TEST_P(Encodings, ForksAndTruncationGiveTheSameBitsAnywhere) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const RopeFrequencies rope = RopeOf(*model, 160);
  std::vector<LogitRows> all;
  HarnessConfig resident = Config();
  resident.host_share = 0.0;
  HarnessConfig host = resident;
  host.placement = kv::PlacementKind::kHostOnly;
  HarnessConfig mixed = resident;
  mixed.placement = kv::PlacementKind::kLru;
  mixed.device_slabs = 4;
  mixed.host_slabs = 5;
  for (const HarnessConfig& config : {resident, host, mixed}) {
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 2, 160);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId first = *(*h)->NewSequence();
    LogitRows got;
    const auto append = [&](kv::SequenceId id, int64_t count, uint64_t seed) {
      Result<LogitRows> rows = (*h)->Append(id, RandomTokens(count, 96, seed), rope);
      ASSERT_TRUE(rows.ok()) << rows.status().message();
      got.insert(got.end(), rows->begin(), rows->end());
    };
    append(first, 75, 1);
    const Result<kv::SequenceId> fork = (*h)->store().Fork(first);
    ASSERT_TRUE(fork.ok());
    append(*fork, 40, 2);
    append(first, 20, 3);
    const Result<int64_t> kept = (*h)->store().Truncate(*fork, 70);
    ASSERT_TRUE(kept.ok());
    EXPECT_EQ(*kept, 70 / config.page_slots * config.page_slots);
    append(*fork, 50, 4);
    append(first, 1, 5);
    append(*fork, 1, 6);
    all.push_back(std::move(got));
  }
  ExpectSameBits(all[0], all[1], "host");
  ExpectSameBits(all[0], all[2], "mixed");
}

INSTANTIATE_TEST_SUITE_P(All, Encodings,
                         ::testing::Values(Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4,
                                           Encoding::kLossless),
                         [](const auto& param) { return std::string(EncodingName(param.param)); });

}  // namespace
}  // namespace headway::testing
