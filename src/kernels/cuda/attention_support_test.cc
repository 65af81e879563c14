// What CudaKernels say that they support they do as the definition does; what they do not support
// is an error of the stream.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/attention_decode_testing.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {
namespace {

class AttentionSupportTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionSupportTest, DoesWhatItSupportsAndRefusesTheRest) {
  for (const AttentionCase& c : FeatureCases(GetParam(), GetParam())) {
    SCOPED_TRACE(c.Name());
    Result<std::unique_ptr<Device>> device = NewCudaDevice({}, Env::Default(), nullptr);
    ASSERT_TRUE(device.ok()) << device.status().message();
    Budget budget("test", int64_t{1} << 30);
    Result<std::unique_ptr<Kernels>> made = NewCudaKernels(0);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const std::unique_ptr<Kernels> kernels = std::move(*made);
    const KernelLimits limits = {.rows = c.tokens,
                                 .max_in = 64,
                                 .max_out = 64,
                                 .head_dim = c.format.head_dim,
                                 .group = c.group,
                                 .query_heads = int64_t{c.heads} * c.group,
                                 .activation = GetParam(),
                                 .encoding = c.format.encoding};
    ASSERT_TRUE(kernels->Prepare(limits, **device, budget).ok());
    std::unique_ptr<Stream> stream = *(*device)->NewStream(Lane::kCompute);
    Random random(7);
    AttentionProblem problem(c, random);
    OnGpu on_gpu(problem);
    const AttentionItem item = on_gpu.Item();
    kernels->Attend(*stream, c.format, c.group, c.params, {&item, 1});
    const Status status = stream->Synchronize();
    if (kernels->SupportsAttention(c.Request())) {
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ("", problem.Disagreement(DecodePrecision(c), problem.Expected(), on_gpu.Outputs()));
    } else {
      ASSERT_EQ(status.code(), StatusCode::kUnsupported);
      ASSERT_TRUE(c.key_mass || c.rotary_dim > 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionSupportTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
