#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_sampling.h"
#include "kernels/score_testing.h"
#include "kernels/scoring.h"

namespace headway {
namespace {

// Vocabularies at the edges of vectors, small ones, and some of models.
int64_t RandomVocab(Random& random, int round) {
  if (round % 100 == 0) return round % 200 == 0 ? 50257 : 128256;
  return random.Below(3) == 0 ? 1 + random.Below(33) : 1 + random.Below(3000);
}

TEST(RefScoreTest, IsTheDefinitionInDouble) {
  Random random(1);
  for (int round = 0; round < 1000; ++round) {
    const ScoreCase made = RandomScoreCase(random, RandomVocab(random, round));
    SCOPED_TRACE(made.name);
    const Result<double> loss = NegativeLogLikelihood(ref::Score(made.Item(nullptr)));
    ASSERT_EQ(loss.ok(), std::isfinite(made.Loss()));
    if (loss.ok()) {
      ASSERT_NEAR(*loss, made.Loss(), made.Tolerance());
    }
  }
}

class CpuScoreTest : public testing::TestWithParam<std::string> {};

TEST_P(CpuScoreTest, FindsTheBitsOfTheDefinition) {
  ThreadPool pool(3);
  Trace trace;
  Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool, &trace, GetParam());
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
  Random random(2);
  int round = 0;
  for (const size_t rows : {1, 2, 7, 64, 300, 300}) {
    std::vector<ScoreCase> cases;
    std::vector<ScoreItem> items;
    std::vector<Scored> results(rows, Scored{-1.0f, -1.0f, 1});
    for (size_t i = 0; i < rows; ++i) {
      cases.push_back(RandomScoreCase(random, RandomVocab(random, ++round)));
      items.push_back(cases.back().Item(&results[i]));
    }
    (*kernels)->Score(*stream, items);
    ASSERT_TRUE(stream->Synchronize().ok());
    for (size_t i = 0; i < rows; ++i) {
      ASSERT_TRUE(SameScore(results[i], ref::Score(items[i])))
          << cases[i].name << ": " << results[i].sum << " is not " << ref::Score(items[i]).sum;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuScoreTest, testing::ValuesIn(CpuIsas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace headway
