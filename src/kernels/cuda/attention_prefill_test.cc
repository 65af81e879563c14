#include "kernels/cuda/attention_prefill.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {
namespace {

// Sums of products are f32; weights are rounded to the dtype where they meet V, so that the output
// is off by a share of the weighted magnitudes. The other units are those of the products with
// scale and log2(e), of the cap and of the exponential.
AttentionPrecision PrefillPrecision(DType dtype, bool to_activations) {
  return {.dim_units = 0.5,
          .more_units = 52,
          .slack = 2,
          .magnitude = UnitOf(dtype),
          .values = 8,
          .result = to_activations ? UnitOf(dtype) : 0};
}

enum class Output { kState, kActivations };

// Where a prefill writes activations: rows further apart than those of the state, poison between
// them.
class Activations {
 public:
  explicit Activations(const AttentionProblem& problem)
      : dtype_(problem.spec.activation),
        tokens_(problem.spec.tokens),
        row_(problem.query_heads() * problem.spec.format.head_dim),
        numbers_(static_cast<size_t>(tokens_ * stride()), kPoison),
        memory_(EncodedAs(dtype_, numbers_)) {}

  std::byte* at() const { return memory_.at(); }
  int64_t stride() const { return row_ + 4; }
  // What was written, in the rows of the problem's outputs.
  AttentionOutputs Outputs(const AttentionProblem& problem) const {
    const std::vector<std::byte> bytes = memory_.Read(numbers_.size() * DTypeBytes(dtype_));
    AttentionOutputs outputs;
    outputs.o.assign(problem.outputs.o.size(), kPoison);
    for (int64_t token = 0; token < tokens_; ++token) {
      for (int64_t i = 0; i < stride(); ++i) {
        const float number = LoadAsFloat(bytes.data(), token * stride() + i, dtype_);
        if (i < row_) {
          outputs.o[static_cast<size_t>(token * problem.o_stride + i)] = number;
        } else {
          EXPECT_TRUE(std::isnan(number)) << "token " << token << " column " << i;
        }
      }
    }
    return outputs;
  }

 private:
  const DType dtype_;
  const int64_t tokens_;
  const int64_t row_;
  const std::vector<float> numbers_;
  DeviceArray<std::byte> memory_;
};

// Runs the case and compares it with the definition.
void Check(AttentionCase c, Output output, Random& random) {
  SCOPED_TRACE(c.Name() + (output == Output::kActivations ? " to activations" : ""));
  c.activation = c.format.dtype;
  c.layout.alignment = 16;
  c.row_gap = 8;
  c.o_gap = 2;
  AttentionProblem problem(c, random);
  OnGpu on_gpu(problem);
  const Activations activations(problem);
  AttentionItem item = on_gpu.Item();
  const bool to_activations = output == Output::kActivations;
  if (to_activations) item.result = activations.at();
  item.result_stride = activations.stride();
  ASSERT_TRUE(CanAttendTiles(c.format, c.activation, c.group, c.params, item));
  ASSERT_EQ(AttendTiles(nullptr, c.format, c.activation, c.group, c.params, item), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  const AttentionOutputs written = activations.Outputs(problem);
  const AttentionPrecision precision = PrefillPrecision(c.format.dtype, to_activations);
  const AttentionOutputs actual = to_activations ? written : on_gpu.Outputs();
  ASSERT_EQ("", problem.Disagreement(precision, problem.Expected(), actual));
}

class AttentionPrefillTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionPrefillTest, AgreesWithTheDefinition) {
  Random random(11);
  for (int head_dim : {64, 128, 80, 96, 256, 8, 40, 136, 192}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      AttentionCase c;
      c.format = {
          .dtype = GetParam(), .page_slots = Pick(random, {1, 16, 64}), .head_dim = head_dim};
      c.group = Pick(random, {1, 2, 3, 4, 8});
      c.heads = 1 + static_cast<int>(random.Below(2));
      c.params = {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                  .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
                  .window = Pick<int64_t>(random, {0, 0, 1, 7, 64, 100, 4096})};
      c.tokens = Pick<int64_t>(random, {1, 16, 17, 1 + random.Below(64), 1 + random.Below(200)});
      c.count = Pick<int64_t>(random, {0, 1, 64, random.Below(64), random.Below(300)});
      c.first_slot = random.Below(2 * c.format.page_slots);
      c.layout.page_gap = c.layout.head_gap = 16 * random.Below(4);
      c.key_position = random.Below(50);
      c.positions = random.Below(4) == 0;
      c.q_position = std::max<int64_t>(
          0, c.key_position + (c.positions ? 2 : 1) * c.count - random.Below(c.tokens + 1) -
                 Pick<int64_t>(random, {0, 0, -random.Below(100), random.Below(c.count + 60)}));
      c.merge = random.Below(3) == 0;
      c.key_size = Pick(random, {0.1f, 1.0f, 4.0f});
      Check(c, random.Below(3) == 0 ? Output::kActivations : Output::kState, random);
    }
  }
}

// A prompt in chunks, as the engine does it: the keys of earlier chunks, then the chunk's own.
TEST_P(AttentionPrefillTest, SlidesItsWindowOverChunks) {
  Random random(12);
  for (int64_t window : {1, 7, 63, 64, 65, 128, 200}) {
    AttentionCase c;
    c.format = {.dtype = GetParam(), .page_slots = 64, .head_dim = 64};
    c.group = 2;
    c.params = {.scale = 0.125f, .window = window};
    c.tokens = 150;
    c.q_position = 300;
    c.count = 300;
    Check(c, Output::kState, random);
    c.key_position = 300;
    c.count = 150;
    c.merge = true;
    Check(c, Output::kActivations, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionPrefillTest, PassesOnNan) {
  AttentionCase c;
  c.format = {.dtype = GetParam(), .page_slots = 64, .head_dim = 64};
  c.tokens = 20;
  c.count = 20;
  constexpr size_t kElements = 20 * 64;
  std::vector<float> keys(kElements, 1.0f);
  keys[5 * 64 + 3] = kPoison;
  const DeviceArray<std::byte> q(EncodedAs(GetParam(), std::vector<float>(kElements, 1.0f)));
  const DeviceArray<std::byte> k(EncodedAs(GetParam(), keys));
  const DeviceArray<std::byte> v(EncodedAs(GetParam(), std::vector<float>(kElements, 1.0f)));
  const DeviceArray<float> o(std::vector<float>(kElements, 0.0f));
  const DeviceArray<float> lse(std::vector<float>(20, 0.0f));
  AttentionItem item;
  item.q = q.at();
  item.q_stride = 64;
  item.tokens = 20;
  item.keys.pages = {.k = k.at(),
                     .v = v.at(),
                     .page_stride = static_cast<int64_t>(c.format.bytes()),
                     .head_stride = static_cast<int64_t>(c.format.bytes()),
                     .count = 20};
  item.o = o.at();
  item.o_stride = 64;
  item.lse = lse.at();
  item.lse_stride = 1;
  for (bool merge : {false, true}) {
    item.merge = merge;
    ASSERT_EQ(AttendTiles(nullptr, c.format, GetParam(), 1, c.params, item), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    // Tokens before the key do not see it.
    for (size_t token = 0; token < 20; ++token) {
      EXPECT_EQ(std::isnan(lse.Read(20)[token]), token >= 5) << token;
      EXPECT_EQ(std::isnan(o.Read(kElements)[token * 64]), token >= 5) << token;
    }
  }
}

TEST_P(AttentionPrefillTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte page[64] = {};
  const PageFormat format = {.dtype = GetParam(), .page_slots = 16, .head_dim = 64};
  const AttentionParams params;
  AttentionItem item;
  item.tokens = 16;
  item.keys.pages = {.k = page, .v = page, .page_stride = 4096, .count = 16};
  EXPECT_TRUE(CanAttendTiles(format, GetParam(), 4, params, item));
  EXPECT_FALSE(CanAttendTiles(format, DType::kF32, 4, params, item));
  for (int head_dim : {0, 68, 264}) {
    PageFormat other = format;
    other.head_dim = head_dim;
    EXPECT_FALSE(CanAttendTiles(other, GetParam(), 4, params, item));
  }
  PageFormat other = format;
  other.page_slots = 24;
  EXPECT_FALSE(CanAttendTiles(other, GetParam(), 4, params, item));
  AttentionItem with = item;
  with.split = 64;
  EXPECT_FALSE(CanAttendTiles(format, GetParam(), 4, params, with));
  with = item;
  with.keys.pages.k += 2;
  EXPECT_FALSE(CanAttendTiles(format, GetParam(), 4, params, with));
  EXPECT_EQ(AttendTiles(nullptr, format, GetParam(), 4, params, with), cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionPrefillTest, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
