// Attention over encoded pages on a GPU: in place against the definition, and prefills that decode
// them first. page_codec_test.cc instantiates the suite.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/attention_decode_testing.h"
#include "kernels/cuda/page_codec_testing.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/workspace.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {
namespace {

// Channels of unequal size, parameters as they lie in slabs, anywhere that a GPU takes them.
AttentionCase OverCodes(AttentionCase c, Random& random) {
  c.uneven_keys = true;
  c.layout.params_by_page = true;
  c.layout.params_alignment = 4;
  c.layout.params_gap = 4 * random.Below(3);
  return c;
}

// Of prefills that decode pages: K and V are rounded to the dtype, and weights where they meet V.
AttentionPrecision DecodedPrecision(const AttentionCase& c) {
  AttentionPrecision precision = DecodePrecision(c);
  if (c.format.dtype == DType::kF32) return precision;
  precision.logit = precision.weight = precision.magnitude = UnitOf(c.format.dtype);
  return precision;
}

TEST_P(PageCodecTest, AttendsInPlace) {
  Random random(53);
  for (int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      const auto group =
          static_cast<int>(round == 5 ? 65 + random.Below(64) : 1 + random.Below(16));
      const PageFormat format = Format(head_dim, Pick(random, {1, 5, 16, 64, 64, 160}));
      std::vector<std::unique_ptr<AttentionProblem>> problems;
      for (int64_t i = 1 + random.Below(3); i > 0; --i) {
        const AttentionCase c = RandomItem(format, group, params, std::max(1, 64 / group), random);
        problems.push_back(std::make_unique<AttentionProblem>(OverCodes(c, random), random));
      }
      ExpectDecoded(problems);
    }
  }
}

// Whoever sees a broken key gets NaN, and nobody else.
TEST_P(PageCodecTest, PassesOnNan) {
  if (std::get<1>(GetParam()) == Encoding::kLossless) return;  // has no scales
  Random random(55);
  for (const bool of_keys : {true, false}) {
    AttentionCase c;
    c.format = Format(128, 16);
    c.activation = c.format.dtype;
    c.group = 2;
    c.params.scale = 0.1f;
    c.tokens = 4;
    c.heads = 2;
    c.count = 100;
    c.q_position = of_keys ? 30 : 35;  // the first tokens do not see slots 32 and 37
    c.split = 50;
    c.layout.alignment = 16;
    std::vector<std::unique_ptr<AttentionProblem>> problems;
    problems.push_back(std::make_unique<AttentionProblem>(OverCodes(c, random), random));
    problems.back()->kv.PoisonParams(1, 2, of_keys);
    ExpectDecoded(problems);
  }
}

TEST_P(PageCodecTest, PrefillsFromDecodedPages) {
  Random random(54);
  for (int head_dim : {64, 80, 128, 256}) {
    for (int round = 0; round < 4 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      const int group = 1 + static_cast<int>(random.Below(6));
      const PageFormat format = Format(head_dim, Pick(random, {5, 16, 64}));
      AttentionCase c = OverCodes(RandomItem(format, group, params, 200, random), random);
      c.split = 0;
      c.row_gap = 8;
      c.o_gap = 6;
      SCOPED_TRACE(c.Name());
      KernelLimits limits;
      limits.rows = c.tokens;
      limits.head_dim = head_dim;
      limits.group = group;
      limits.query_heads = c.heads * group;
      limits.activation = format.dtype;
      limits.encoding = format.encoding;
      const DeviceArray<std::byte> decoded(
          std::vector<std::byte>(static_cast<size_t>(DecodedBytes(limits)), std::byte{0xFF}));
      AttentionProblem problem(c, random);
      OnGpu on_gpu(problem);
      const Status status = AttendPrefill(nullptr, {nullptr, decoded.at(), limits, nullptr}, format,
                                          group, params, on_gpu.Item());
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      ASSERT_EQ("",
                problem.Disagreement(DecodedPrecision(c), problem.Expected(), on_gpu.Outputs()));
    }
  }
}

}  // namespace
}  // namespace headway::cuda
