#include "kernels/cuda/scoring.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/ref/ref_sampling.h"
#include "kernels/score_testing.h"

namespace headway::cuda {
namespace {

constexpr Scored kPoison = {-1.0f, -1.0f, 1};

// The definition's bits for rows of any length and alignment, call after call.
TEST(CudaScoreTest, FindsTheBitsOfTheDefinition) {
  Random random(1);
  DeviceArray<std::byte> memory(static_cast<size_t>(kScoreMemoryBytes));
  DeviceArray<Scored> results(kScoreRowsMax);
  DeviceArray<float> logits(size_t{1} << 21);
  for (int round = 0; round < 300; ++round) {
    const bool large = round % 20 == 0;
    const auto rows = static_cast<size_t>(1 + random.Below(large ? 4 : kScoreRowsMax));
    std::vector<ScoreCase> cases;
    std::vector<ScoreItem> items;
    std::vector<float> all(static_cast<size_t>(random.Below(4)));
    for (size_t i = 0; i < rows; ++i) {
      const int64_t vocab = large                  ? 50257 + 77999 * random.Below(4)
                            : random.Below(3) == 0 ? 1 + random.Below(33)
                                                   : 1 + random.Below(10000);
      cases.push_back(RandomScoreCase(random, vocab));
      items.push_back(cases.back().Item(results.at() + i));
      items.back().logits = logits.at() + all.size();
      all.insert(all.end(), cases.back().logits.begin(), cases.back().logits.end());
    }
    ASSERT_LE(all.size(), size_t{1} << 21);
    logits.Write(all);
    results.Write(std::vector<Scored>(rows, kPoison));
    ASSERT_EQ(Score(nullptr, items, memory.at()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const std::vector<Scored> scored = results.Read(rows);
    for (size_t i = 0; i < rows; ++i) {
      const Scored expected = ref::Score(cases[i].Item(nullptr));
      ASSERT_TRUE(SameScore(scored[i], expected))
          << "round " << round << " row " << i << " " << cases[i].name << ": " << scored[i].largest
          << " " << scored[i].sum << " is not " << expected.largest << " " << expected.sum;
    }
  }
}

// The interface takes more rows than a launch does.
TEST(CudaScoreTest, TakesAnyNumberOfRows) {
  Budget budget("test", kUnlimited);
  Result<std::unique_ptr<Device>> device = NewCudaDevice({}, Env::Default(), nullptr);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Result<std::unique_ptr<Kernels>> kernels = NewCudaKernels(0);
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  KernelLimits limits;
  limits.rows = limits.max_in = limits.max_out = limits.head_dim = 64;
  limits.group = limits.query_heads = 1;
  ASSERT_TRUE((*kernels)->Prepare(limits, **device, budget).ok());
  const std::unique_ptr<Stream> stream = *(*device)->NewStream(Lane::kCompute);
  constexpr size_t kRows = 300;
  constexpr int64_t kVocab = 1025;
  Random random(2);
  std::vector<ScoreCase> cases;
  std::vector<float> all;
  for (size_t i = 0; i < kRows; ++i) {
    cases.push_back(RandomScoreCase(random, kVocab));
    all.insert(all.end(), cases.back().logits.begin(), cases.back().logits.end());
  }
  DeviceArray<float> logits(all);
  DeviceArray<Scored> results(std::vector<Scored>(kRows, kPoison));
  std::vector<ScoreItem> items;
  for (size_t i = 0; i < kRows; ++i) {
    items.push_back(cases[i].Item(results.at() + i));
    items.back().logits = logits.at() + static_cast<int64_t>(i) * kVocab;
  }
  (*kernels)->Score(*stream, items);
  ASSERT_TRUE(stream->Synchronize().ok());
  const std::vector<Scored> scored = results.Read(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    ASSERT_TRUE(SameScore(scored[i], ref::Score(cases[i].Item(nullptr)))) << cases[i].name;
  }
}

TEST(CudaScoreTest, RefusesWhatItCannotDo) {
  const std::vector<ScoreItem> many(kScoreRowsMax + 1);
  EXPECT_EQ(Score(nullptr, many, nullptr), cudaErrorInvalidValue);
  ScoreItem item;
  item.vocab = 5;
  for (const TokenId target : {-1, 5}) {
    item.target = target;
    EXPECT_EQ(Score(nullptr, {&item, 1}, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(Score(nullptr, {}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace headway::cuda
