// Attention over lossless pages on a GPU: the states of the pages that were encoded, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/attention_decode_testing.h"

namespace headway::cuda {
namespace {

// The problem over the same keys and values in bf16.
std::unique_ptr<AttentionProblem> Plain(const AttentionProblem& problem, uint64_t seed) {
  AttentionCase plain = problem.spec;
  plain.format.encoding = Encoding::kNone;
  Random random(seed);
  auto same = std::make_unique<AttentionProblem>(plain, random);
  same->q = problem.q;
  same->positions = problem.positions;
  same->outputs = problem.outputs;
  return same;
}

AttentionOutputs Attended(AttentionProblem& problem) {
  OnGpu on_gpu(problem);
  const AttentionCase& c = problem.spec;
  const AttentionItem item = on_gpu.Item();
  EXPECT_TRUE(CanAttendDecode(c.format, c.activation, c.group, c.params, item)) << c.Name();
  EXPECT_EQ(AttendDecode({}, c.format, c.activation, c.group, c.params, {&item, 1}), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return on_gpu.Outputs();
}

TEST(LosslessAttentionTest, HasTheBitsOfPlainPages) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no NVIDIA GPU can be used";
  }
  Random random(56);
  for (int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 24 && !HasFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      const int group = 1 + static_cast<int>(random.Below(16));
      const PageFormat format = {DType::kBF16, Pick(random, {1, 5, 16, 64, 64, 160}), head_dim,
                                 Encoding::kLossless};
      AttentionCase c = RandomItem(format, group, params, std::max(1, 64 / group), random);
      // A channel far above the others, so that numbers escape.
      c.uneven_keys = true;
      c.layout.params_by_page = true;
      c.layout.params_alignment = 4;
      c.layout.params_gap = 4 * random.Below(3);
      const auto seed = static_cast<uint64_t>(random.Below(1 << 30));
      Random of_problem(seed);
      AttentionProblem problem(c, of_problem);
      const std::unique_ptr<AttentionProblem> plain = Plain(problem, seed);
      const AttentionOutputs expected = Attended(*plain);
      const AttentionOutputs actual = Attended(problem);
      ASSERT_TRUE(SameBytes(expected.o, actual.o)) << c.Name();
      ASSERT_TRUE(SameBytes(expected.lse, actual.lse)) << c.Name();
    }
  }
}

}  // namespace
}  // namespace headway::cuda
