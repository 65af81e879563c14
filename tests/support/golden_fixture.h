// Golden models as parameters of tests that read beside them in double precision.
#ifndef HEADWAY_TESTS_SUPPORT_GOLDEN_FIXTURE_H_
#define HEADWAY_TESTS_SUPPORT_GOLDEN_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_reading.h"
#include "support/golden.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {

class GoldenModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    golden_ = std::move(*golden);
    model_ = Load();
    ASSERT_NE(model_, nullptr);
  }
  std::unique_ptr<Model> Load() const {
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden_.folder);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  Golden golden_;
  std::unique_ptr<Model> model_;
};

// With its prompt, and `more` tokens behind it.
class GoldenText : public GoldenModel {
 protected:
  explicit GoldenText(int64_t more) : more_(more) {}

  void SetUp() override {
    GoldenModel::SetUp();
    if (HasFatalFailure()) return;
    tokens_ = golden_.prompt;
    // What follows it is as good as any other text.
    while (std::ssize(tokens_) < std::ssize(golden_.prompt) + more_) {
      tokens_.push_back(golden_.prompt[(tokens_.size() * 7) % golden_.prompt.size()]);
    }
  }
  // Both sides are as far from exact as one may be from Transformers.
  double Tolerance(std::span<const float> values) const {
    const ModelShape& shape = model_->shape();
    const DType activations = TestDevice() == "cpu" ? DType::kF32 : shape.dtype;
    return 2 * GoldenTolerance(shape, std::ssize(tokens_), shape.dtype, values, activations);
  }
  // The logits of a decode are those of attention to its lists; `queries` become that attention's,
  // as ListedLogits has them.
  template <typename Decode>
  void ExpectListed(const Decode& decode, std::vector<std::vector<float>>* queries) const {
    const std::unique_ptr<Model> plain = Load();  // a model that is not moved to a GPU
    const LogitRows expected =
        ListedLogits(*plain, std::span(tokens_).first(decode.length()), decode.lists(), queries);
    ASSERT_EQ(expected.size(), decode.rows().size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(MaxDifference(decode.rows()[i], expected[i]), Tolerance(expected[i])) << i;
    }
  }

  std::vector<TokenId> tokens_;

 private:
  const int64_t more_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_GOLDEN_FIXTURE_H_
