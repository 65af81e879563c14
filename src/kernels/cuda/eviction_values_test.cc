// What eviction asks of queries, keys and values, of a GPU's kernels against the definition.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/eviction.h"
#include "kernels/testing/attention_problem.h"
#include "kernels/testing/eviction_values_problem.h"

namespace headway::cuda {
namespace {

class CudaEvictionValuesTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no NVIDIA GPU can be used";
    }
  }
  PageFormat Format(int head_dim, int slots) const {
    return {.dtype = GetParam(), .page_slots = slots, .head_dim = head_dim};
  }
  static PageLayout Layout(Random& random) {
    return {.alignment = 16,
            .page_gap = 16 * random.Below(5),
            .descending = random.Below(2) == 0,
            .values_first = random.Below(2) == 0};
  }
};

struct MomentsOnGpu {
  MomentsOnGpu(int heads, const PageFormat& format, int64_t rows, Random& random)
      : problem(heads, format, rows, random),
        q(EncodedAs(format.dtype, problem.q)),
        sums(problem.sums),
        products(problem.products) {}
  QueryMomentsItem Item() {
    QueryMomentsItem item = problem.Item();
    item.q = q.at();
    item.sums = sums.at();
    item.products = products.at();
    return item;
  }

  QueryMomentsProblem problem;
  DeviceArray<std::byte> q;
  DeviceArray<float> sums, products;
};

TEST_P(CudaEvictionValuesTest, MomentsAgreeWithTheDefinition) {
  Random random(1);
  for (const int head_dim : {64, 80, 128, 256, 8}) {
    for (int round = 0; round < 4; ++round) {
      const PageFormat format = Format(head_dim, 1);
      const int heads = static_cast<int>(1 + random.Below(4));
      std::vector<std::unique_ptr<MomentsOnGpu>> problems;
      std::vector<QueryMomentsItem> items;
      for (const int64_t rows : {random.Below(100), random.Below(33)}) {
        problems.push_back(std::make_unique<MomentsOnGpu>(heads, format, rows, random));
        items.push_back(problems.back()->Item());
      }
      ASSERT_EQ(QueryMoments(nullptr, {GetParam(), head_dim, heads}, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (const auto& each : problems) {
        ASSERT_EQ(each->problem.Disagreement(each->sums.Read(each->problem.sums.size()),
                                             each->products.Read(each->problem.products.size())),
                  "");
      }
    }
  }
}

struct ExpectedOnGpu {
  ExpectedOnGpu(const PageFormat& format, const PageLayout& layout, int group, Random& random)
      : problem(format, layout, group, random),
        keys(problem.kv.memory()),
        mean(problem.mean),
        covariance(problem.covariance),
        logits(problem.logits) {}
  ExpectedLogitsItem Item() {
    ExpectedLogitsItem item = problem.Item();
    item.keys.pages = problem.kv.RunIn(keys.at());
    item.mean = mean.at();
    item.covariance = covariance.at();
    item.logits = logits.at();
    return item;
  }

  ExpectedLogitsProblem problem;
  DeviceArray<std::byte> keys;
  DeviceArray<float> mean, covariance, logits;
};

TEST_P(CudaEvictionValuesTest, ExpectedLogitsAgreeWithTheDefinition) {
  Random random(2);
  for (const int head_dim : {64, 80, 128, 256, 8}) {
    for (int round = 0; round < 4; ++round) {
      const PageFormat format = Format(head_dim, Pick(random, {1, 16, 64}));
      const int group = static_cast<int>(1 + random.Below(4));
      std::vector<std::unique_ptr<ExpectedOnGpu>> problems;
      std::vector<ExpectedLogitsItem> items;
      for (int i = 0; i < 2; ++i) {
        problems.push_back(std::make_unique<ExpectedOnGpu>(format, Layout(random), group, random));
        items.push_back(problems.back()->Item());
      }
      const KeyLogitsCall call = {format, format.dtype, group, problems[0]->problem.scale};
      ASSERT_TRUE(CanExpect(call, items));
      ASSERT_EQ(ExpectedLogits(nullptr, call, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (const auto& each : problems) {
        ASSERT_EQ(each->problem.Disagreement(each->logits.Read(each->problem.logits.size())), "");
      }
    }
  }
}

struct NormsOnGpu {
  NormsOnGpu(const PageFormat& format, const PageLayout& layout, int group, Random& random)
      : problem(format, layout, group, random),
        values(problem.kv.memory()),
        weight(problem.weight),
        norms(problem.norms),
        projected(problem.norms) {}
  ValueNormsItem Values() { return {problem.kv.RunIn(values.at()), norms.at()}; }
  ProjectedNormsItem Projected() {
    ProjectedNormsItem item = problem.Projected();
    item.values = problem.kv.RunIn(values.at());
    item.weight.data = weight.at();
    item.norms = projected.at();
    return item;
  }

  NormsProblem problem;
  DeviceArray<std::byte> values, weight;
  DeviceArray<float> norms, projected;
};

TEST_P(CudaEvictionValuesTest, NormsAgreeWithTheDefinition) {
  Random random(3);
  for (const int head_dim : {64, 80, 128, 256, 8}) {
    for (int round = 0; round < 4; ++round) {
      const PageFormat format = Format(head_dim, Pick(random, {1, 16, 64}));
      const int group = static_cast<int>(1 + random.Below(4));
      std::vector<std::unique_ptr<NormsOnGpu>> problems;
      std::vector<ValueNormsItem> values;
      std::vector<ProjectedNormsItem> projected;
      for (int i = 0; i < 2; ++i) {
        problems.push_back(std::make_unique<NormsOnGpu>(format, Layout(random), group, random));
        values.push_back(problems.back()->Values());
        projected.push_back(problems.back()->Projected());
      }
      ASSERT_EQ(ValueNorms(nullptr, format, values), cudaSuccess);
      ASSERT_TRUE(CanProject(format, projected));
      ASSERT_EQ(ProjectedNorms(nullptr, format, group, projected), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (const auto& each : problems) {
        const size_t count = each->problem.norms.size();
        ASSERT_EQ(each->problem.ValuesDisagreement(each->norms.Read(count)), "");
        ASSERT_EQ(each->problem.ProjectedDisagreement(each->projected.Read(count)), "");
      }
    }
  }
}

TEST_P(CudaEvictionValuesTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte memory[64] = {};
  const PageFormat format = Format(64, 16);
  ProjectedNormsItem item = {.values = {.k = memory, .v = memory, .page_stride = 4096, .count = 16},
                             .weight = {memory, GetParam(), 32, 128}};
  EXPECT_TRUE(CanProject(format, {&item, 1}));
  item.first_column = 4;
  EXPECT_FALSE(CanProject(format, {&item, 1}));
  item.first_column = 0;
  item.weight.dtype = GetParam() == DType::kF16 ? DType::kBF16 : DType::kF16;
  EXPECT_FALSE(CanProject(format, {&item, 1}));
  const KeyLogitsCall call = {format, GetParam(), 4, 1.0f};
  ExpectedLogitsItem expected = {.keys = {.pages = item.values},
                                 .covariance = reinterpret_cast<const float*>(memory)};
  EXPECT_TRUE(CanExpect(call, {&expected, 1}));
  expected.covariance += 1;
  EXPECT_FALSE(CanExpect(call, {&expected, 1}));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaEvictionValuesTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
