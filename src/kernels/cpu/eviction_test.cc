// Eviction's kernels of CPUs against the definition.
#include "kernels/cpu/eviction.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/testing/attention_problem.h"
#include "kernels/testing/eviction_problem.h"

namespace headway {
namespace {

class CpuEvictionTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool_, nullptr, GetParam());
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    cpu_ = std::move(*kernels);
  }

  ThreadPool pool_{3};
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
  std::unique_ptr<Kernels> cpu_;
};

TEST_P(CpuEvictionTest, LogitsAgreeWithTheDefinition) {
  Random random(41);
  for (int round = 0; round < 60; ++round) {
    const PageFormat format = {Pick(random, {DType::kF32, DType::kF16, DType::kBF16}),
                               Pick(random, {1, 8, 24, 64}),
                               Pick(random, {4, 20, 64, 80, 128, 256})};
    const PageLayout layout = {.alignment = 4,
                               .page_gap = 4 * random.Below(20),
                               .descending = random.Below(2) == 0,
                               .values_first = random.Below(2) == 0};
    std::vector<std::unique_ptr<KeyLogitsProblem>> problems;
    std::vector<KeyLogitsItem> items;
    KeyLogitsCase first = RandomKeyLogits(format, layout, random);
    if (round == 0) first.count = 1200;  // pieces for several threads
    for (int64_t i = 1 + random.Below(3); i > 0; --i) {
      KeyLogitsCase c = RandomKeyLogits(format, layout, random);
      c.group = first.group;
      problems.push_back(std::make_unique<KeyLogitsProblem>(i == 1 ? first : c, random));
      items.push_back(problems.back()->Item());
    }
    cpu_->KeyLogits(*stream_, format, first.group, first.scale, items);
    for (const auto& problem : problems) {
      ASSERT_EQ(problem->Disagreement(1.0, problem->logits), "");
    }
  }
}

TEST_P(CpuEvictionTest, WeightsAgreeWithTheDefinition) {
  Random random(42);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::unique_ptr<KeyWeightsProblem>> problems;
    std::vector<KeyWeightsItem> items;
    for (int64_t i = random.Below(4); i > 0; --i) {
      const int64_t columns = Pick<int64_t>(random, {1, 63, 1024, 2500});
      problems.push_back(std::make_unique<KeyWeightsProblem>(1 + random.Below(60), columns,
                                                             random.Below(2) == 0, random));
      items.push_back(problems.back()->Item());
    }
    cpu_->KeyWeights(*stream_, items);
    for (const auto& problem : problems) ASSERT_EQ(problem->Disagreement(problem->outputs), "");
  }
}

TEST_P(CpuEvictionTest, SlotsAreGatheredAsTheDefinitionDoes) {
  Random random(43);
  for (int round = 0; round < 30; ++round) {
    const PageFormat format =
        AnyEncoding({Pick(random, {DType::kF32, DType::kF16, DType::kBF16}),
                     Pick(random, {1, 24, 64}), Pick(random, {4, 20, 72, 128})},
                    random);
    const PageLayout layout = {.page_gap = 4, .descending = random.Below(2) == 0};
    GatherSlotsProblem first(format, layout, {.values_first = true}, random);
    GatherSlotsProblem second(format, {}, layout, random);
    std::vector<std::byte> first_from = first.from.memory(), first_to = first.to.memory();
    std::vector<std::byte> second_from = second.from.memory(), second_to = second.to.memory();
    const std::vector<GatherSlotsItem> items = {
        first.ItemIn(first_from.data(), first_to.data(), first.slots.data()),
        second.ItemIn(second_from.data(), second_to.data(), second.slots.data())};
    cpu_->GatherSlots(*stream_, format, items);
    EXPECT_TRUE(first_to == first.Expected());
    EXPECT_TRUE(second_to == second.Expected());
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuEvictionTest, testing::ValuesIn(CpuIsas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace headway
