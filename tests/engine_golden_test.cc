// The whole engine against Transformers: every golden model through store, executor and fast
// kernels, prefilled in chunks and decoded token by token. Run again under other cache
// configurations through HEADWAY_TEST_CONFIG.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/rope.h"
#include "support/golden.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class EngineGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineGolden, LogitsAndGreedyTokensEqualTransformers) {
  Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelShape& shape = (*model)->shape();
  const auto prompt = static_cast<int64_t>(golden->prompt.size());
  const int64_t length = prompt + static_cast<int64_t>(golden->tokens.size());

  HarnessConfig config = HarnessConfig::Default();
  config.chunk = 37;  // divides nothing
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(**model, config, 1, length);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  const RopeFrequencies rope = ComputeRope((*model)->config().rope, shape.head_dim, prompt);
  Result<LogitRows> logits = (*h)->Append(sequence, golden->prompt, rope);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  for (const TokenId& token : golden->tokens) {  // teacher-forced
    Result<LogitRows> next = (*h)->Append(sequence, {&token, 1}, rope);
    ASSERT_TRUE(next.ok()) << next.status().message();
    logits->push_back(std::move((*next)[0]));
  }

  const DType activations = TestDevice() == "cpu" ? DType::kF32 : shape.dtype;
  for (size_t i = 0; i < golden->rows.size(); ++i) {
    const std::vector<float>& expected = golden->logits[i];
    const double tolerance = GoldenTolerance(shape, length, shape.dtype, expected, activations);
    EXPECT_LE(MaxDifference((*logits)[static_cast<size_t>(golden->rows[i])], expected), tolerance)
        << "position " << golden->rows[i];
  }
  int compared = 0;
  for (size_t i = 0; i < golden->tokens.size(); ++i) {
    const std::vector<float>& row = (*logits)[static_cast<size_t>(prompt) - 1 + i];
    if (golden->margins[i] <= 2 * GoldenTolerance(shape, length, shape.dtype, row, activations)) {
      continue;
    }
    ++compared;
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), golden->tokens[i])
        << "step " << i;
  }
  EXPECT_GT(compared, activations == DType::kF32 ? 32 : 16)
      << "too few steps with a margin to mean anything";
}

INSTANTIATE_TEST_SUITE_P(Models, EngineGolden, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

}  // namespace
}  // namespace headway::testing
