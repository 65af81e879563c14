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
  void SetUp() override {
    if (TestDevice() != "cpu") GTEST_SKIP() << "only CPUs read encoded pages";
  }
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
    ExpectSameBits(LogitRows(alone.end() - 20, alone.end()), got[i],
                   "sequence " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Encodings,
                         ::testing::Values(Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4),
                         [](const auto& param) { return std::string(EncodingName(param.param)); });

}  // namespace
}  // namespace headway::testing
