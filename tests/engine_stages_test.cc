// Keys that are read to choose by stages: what the kernels are told of them in prompts and in
// decode.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class Stages : public ::testing::TestWithParam<DType> {};

// Keys that are read to choose are without their rotation where queries are turned.
TEST_P(Stages, UndoTheRotationOfKeysBeyondTheWindow) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 27);
  for (const int64_t distance : {0, 40}) {
    std::vector<SelectItem> seen;
    HarnessConfig config = HarnessConfig::Default();
    config.selection = StagedInPrompts(40, distance);
    config.wrap_kernels = [&seen](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<SeesChoices>(std::move(kernels), &seen);
    };
    RunTokens(*model, config, tokens, 5);
    int64_t prompts = 0;
    for (const SelectItem& item : seen) {
      prompts += item.rows > 1 ? 1 : 0;
      EXPECT_EQ(item.rotated.rotary_dim, distance > 0 ? model->rotary_dim() : 0);
      EXPECT_EQ(item.turn.rotary_dim, item.rotated.rotary_dim);
      EXPECT_EQ(item.budget.stages[0].blocks, 8);
      EXPECT_FALSE(item.looks_twice());
      if (!item.budget.chooses()) continue;
      EXPECT_EQ(item.budget.far_blocks, 6) << "of an outer layer";
    }
    EXPECT_GE(prompts, 2 * model->shape().layers);
    EXPECT_GT(std::ssize(seen), prompts);
  }
}

// The first three of four layers count their keys by chunks, in prompts and in decode.
TEST_P(Stages, KeysCountByTheirLayer) {
  ModelConfig shape = TinyConfig(GetParam());
  shape.shape.layers = 4;
  shape.windows.assign(4, 0);
  const std::unique_ptr<Model> model = Tiny(shape);
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 27);
  const auto run = [&](KeyPositions first, KeyPositions others, std::vector<SelectItem>* seen) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = StagedInPrompts(40, 20);
    config.selection.first_positions = first;
    config.selection.positions = others;
    config.wrap_kernels = [seen](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<SeesChoices>(std::move(kernels), seen);
    };
    return RunTokens(*model, config, tokens, 5).back();
  };
  std::vector<SelectItem> seen;
  const auto published = run(KeyPositions::kChunks, KeyPositions::kBranches, &seen);
  int layer = 0;
  for (const SelectItem& item : seen) {
    EXPECT_EQ(item.rotated.positions, layer < 3 ? KeyPositions::kChunks : KeyPositions::kBranches);
    layer = (layer + 1) % 4;
  }
  EXPECT_GT(std::ssize(seen), 4 * 5);
  for (const KeyPositions all :
       {KeyPositions::kOne, KeyPositions::kChunks, KeyPositions::kBranches}) {
    EXPECT_NE(run(all, all, &seen), published);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Stages, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& run) { return DTypeName(run.param); });

}  // namespace
}  // namespace headway::testing
