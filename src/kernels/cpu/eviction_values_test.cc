// What eviction asks of queries, keys and values, of CPUs' kernels against the definition.
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
#include "kernels/testing/eviction_values_problem.h"

namespace headway {
namespace {

class CpuEvictionValuesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool_, nullptr, GetParam());
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    cpu_ = std::move(*kernels);
  }
  static PageFormat Format(Random& random) {
    return {Pick(random, {DType::kF32, DType::kF16, DType::kBF16}), Pick(random, {1, 24, 64}),
            Pick(random, {4, 20, 64, 128})};
  }

  ThreadPool pool_{3};
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
  std::unique_ptr<Kernels> cpu_;
};

TEST_P(CpuEvictionValuesTest, MomentsAgreeWithTheDefinition) {
  Random random(44);
  for (int round = 0; round < 20; ++round) {
    PageFormat format = Format(random);
    format.dtype = DType::kF32;
    const int heads = static_cast<int>(1 + random.Below(5));
    QueryMomentsProblem problems[] = {{heads, format, random.Below(40), random},
                                      {heads, format, random.Below(9), random}};
    std::vector<float> sums[] = {problems[0].sums, problems[1].sums};
    std::vector<float> products[] = {problems[0].products, problems[1].products};
    QueryMomentsItem items[] = {problems[0].Item(), problems[1].Item()};
    for (size_t i = 0; i < 2; ++i) {
      items[i].sums = sums[i].data();
      items[i].products = products[i].data();
    }
    cpu_->QueryMoments(*stream_, format, heads, items);
    for (size_t i = 0; i < 2; ++i) ASSERT_EQ(problems[i].Disagreement(sums[i], products[i]), "");
  }
}

TEST_P(CpuEvictionValuesTest, ExpectedLogitsAgreeWithTheDefinition) {
  Random random(45);
  for (int round = 0; round < 20; ++round) {
    const PageFormat format = Format(random);
    const PageLayout layout = {.alignment = 4, .descending = random.Below(2) == 0};
    const int group = static_cast<int>(1 + random.Below(4));
    ExpectedLogitsProblem problems[] = {{format, layout, group, random},
                                        {format, {.values_first = true}, group, random}};
    std::vector<float> logits[] = {problems[0].logits, problems[1].logits};
    ExpectedLogitsItem items[] = {problems[0].Item(), problems[1].Item()};
    for (size_t i = 0; i < 2; ++i) items[i].logits = logits[i].data();
    cpu_->ExpectedLogits(*stream_, format, group, problems[0].scale, items);
    for (size_t i = 0; i < 2; ++i) ASSERT_EQ(problems[i].Disagreement(logits[i]), "");
  }
}

TEST_P(CpuEvictionValuesTest, NormsAgreeWithTheDefinition) {
  Random random(46);
  for (int round = 0; round < 20; ++round) {
    const PageFormat format = Format(random);
    const PageLayout layout = {.alignment = 4, .descending = random.Below(2) == 0};
    const int group = static_cast<int>(1 + random.Below(4));
    NormsProblem problems[] = {{format, layout, group, random},
                               {format, {.values_first = true}, group, random}};
    std::vector<float> norms[] = {problems[0].norms, problems[1].norms};
    std::vector<float> projected[] = {problems[0].norms, problems[1].norms};
    ValueNormsItem values[] = {problems[0].Values(), problems[1].Values()};
    ProjectedNormsItem behind[] = {problems[0].Projected(), problems[1].Projected()};
    for (size_t i = 0; i < 2; ++i) {
      values[i].norms = norms[i].data();
      behind[i].norms = projected[i].data();
    }
    cpu_->ValueNorms(*stream_, format, values);
    cpu_->ProjectedNorms(*stream_, format, group, behind);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(problems[i].ValuesDisagreement(norms[i]), "");
      ASSERT_EQ(problems[i].ProjectedDisagreement(projected[i]), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuEvictionValuesTest, testing::ValuesIn(CpuIsas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace headway
