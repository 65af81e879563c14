// The steps of the model with the reference kernels and a plain cache, against Transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/model.h"
#include "model/testing/plain_runner.h"
#include "support/golden.h"

namespace headway {
namespace {

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Compare(DType kv_dtype) {
    Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_GE(golden->tokens.size(), 64u);

    const auto prompt_length = static_cast<int64_t>(golden->prompt.size());
    const int64_t length = prompt_length + static_cast<int64_t>(golden->tokens.size());
    testing::PlainRunner runner(**model, kv_dtype, prompt_length, length);
    std::vector<std::vector<float>> logits = runner.Run(golden->prompt);
    // Teacher-forced: each step is compared on its own, whatever the step before chose.
    for (TokenId token : golden->tokens) {
      std::vector<std::vector<float>> next = runner.Run({&token, 1});
      ASSERT_EQ(next.size(), 1u);
      logits.push_back(std::move(next.front()));
    }
    ASSERT_EQ(static_cast<int64_t>(logits.size()), length);
    CompareLogits(*golden, (*model)->shape(), kv_dtype, logits);
    CompareTokens(*golden, (*model)->shape(), kv_dtype, logits);
  }

  static void CompareLogits(const Golden& golden, const ModelShape& shape, DType kv_dtype,
                            const std::vector<std::vector<float>>& logits) {
    double worst = 0.0;
    for (size_t i = 0; i < golden.rows.size(); ++i) {
      const auto row = static_cast<size_t>(golden.rows[i]);
      const double tolerance =
          GoldenTolerance(shape, golden.rows[i] + 1, kv_dtype, golden.logits[i]);
      const double difference = MaxDifference(golden.logits[i], logits[row]);
      EXPECT_LE(difference, tolerance) << "position " << row;
      worst = std::max(worst, difference / tolerance);
    }
    ::testing::Test::RecordProperty("share_of_tolerance", std::to_string(worst));
  }

  static void CompareTokens(const Golden& golden, const ModelShape& shape, DType kv_dtype,
                            const std::vector<std::vector<float>>& logits) {
    size_t decided = 0;
    for (size_t i = 0; i < golden.tokens.size(); ++i) {
      const std::vector<float>& row = logits[golden.prompt.size() - 1 + i];
      const auto context = static_cast<int64_t>(golden.prompt.size() + i);
      // Both of the two best may be off.
      if (golden.margins[i] <= 2.0 * GoldenTolerance(shape, context, kv_dtype, row)) continue;
      ++decided;
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(best, golden.tokens[i]) << "step " << i << ", margin " << golden.margins[i];
    }
    // Otherwise the comparison above says little.
    const size_t wanted = kv_dtype == DType::kF32 ? golden.tokens.size() * 9 / 10 : 1;
    EXPECT_GE(decided, wanted);
    ::testing::Test::RecordProperty("decided", std::to_string(decided));
  }
};

TEST_P(GoldenTest, AgreesWithTransformers) { Compare(DType::kF32); }

TEST_P(GoldenTest, AgreesWithACacheOf16Bits) {
  Compare(DType::kF16);
  Compare(DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace headway
