#include "kernels/cuda/sampling.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/ref/ref_sampling.h"
#include "kernels/sample_testing.h"

namespace headway::cuda {
namespace {

// The definition's token and penalties bit for bit, call after call in the same memory.
TEST(CudaSampleTest, PicksTheTokensOfTheDefinition) {
  constexpr int64_t kVocabMax = 262'144;
  Random random(1);
  DeviceArray<std::byte> memory(static_cast<size_t>(SampleMemoryBytes(kVocabMax)));
  DeviceArray<float> logits(static_cast<size_t>(kSampleRowsMax * kVocabMax));
  DeviceArray<TokenPenalty> penalties(kVocabMax + 4);
  DeviceArray<Sampled> results(kSampleRowsMax);
  for (int round = 0; round < 400; ++round) {
    const int64_t largest = round % 20 == 0 ? kVocabMax : 20'000;
    const auto rows = static_cast<size_t>(1 + random.Below(round % 20 == 0 ? 2 : kSampleRowsMax));
    std::vector<SampleCase> cases;
    std::vector<SampleItem> items;
    std::vector<float> all;
    for (size_t i = 0; i < rows; ++i) {
      cases.push_back(RandomSampleCase(random, largest));
      items.push_back(cases.back().item);
      items.back().logits = logits.at() + all.size();  // on any alignment of a float
      items.back().result = results.at() + i;
      all.insert(all.end(), cases.back().logits.begin(), cases.back().logits.end());
    }
    logits.Write(all);
    results.Write(std::vector<Sampled>(rows, Sampled{-1, -1.0f}));
    for (size_t i = 0; i < rows; ++i) {
      penalties.Write(cases[i].penalties);
      ASSERT_EQ(Penalise(nullptr, items[i], penalties.at(),
                         static_cast<int64_t>(cases[i].penalties.size())),
                cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    }
    ASSERT_EQ(Sample(nullptr, items, memory.at()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const std::vector<Sampled> picked = results.Read(rows);
    all = logits.Read(all.size());
    size_t at = 0;
    for (size_t i = 0; i < rows; ++i) {
      SCOPED_TRACE("round " + std::to_string(round) + " row " + std::to_string(i) + " " +
                   cases[i].name);
      SampleItem item = cases[i].item;
      item.penalties = cases[i].penalties;
      item.logits = cases[i].logits.data();
      const Sampled expected = ref::Sample(item);
      ASSERT_TRUE(SameSample(picked[i], expected))
          << picked[i].token << " (" << picked[i].logit << ") is not " << expected.token << " ("
          << expected.logit << ")";
      for (const float logit : cases[i].logits) ASSERT_TRUE(SameSample({0, all[at++]}, {0, logit}));
    }
  }
}

TEST(CudaSampleTest, RefusesWhatItCannotDo) {
  const std::vector<SampleItem> many(kSampleRowsMax + 1);
  EXPECT_EQ(Sample(nullptr, many, nullptr), cudaErrorInvalidValue);
  const SampleItem empty;
  EXPECT_EQ(Sample(nullptr, {&empty, 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(Sample(nullptr, {}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace headway::cuda
