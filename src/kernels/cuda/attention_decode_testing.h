// What the tests of decode on a GPU share: random items, what the kernels round, and the comparison
// of a call with the definition.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_TESTING_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {

// Sums of products are f32, and so is what is added to them in turn; weights in 16 bits are kept as
// two numbers. Of codes, two numbers of f16 stand for each factor, zeros and codes are multiplied
// apart, and the products of both are added up. The exponential and the product with log2(e) take
// some units more.
inline AttentionPrecision DecodePrecision(const AttentionCase& c) {
  const bool encoded =
      c.format.encoding != Encoding::kNone && c.format.encoding != Encoding::kLossless;
  const double unit = c.format.dtype == DType::kF32 ? 0 : UnitOf(c.format.dtype);
  return {.dim_units = encoded ? 3.0 : 0.5,
          .more_units = encoded ? 44.0 : 40.0,
          .slack = 2,
          .weight = encoded ? 0 : unit * unit,
          .values = 8};
}

inline AttentionParams RandomParams(int head_dim, Random& random) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
          .window = Pick<int64_t>(random, {0, 0, 1, 30, 1000})};
}

// An item of up to `most_tokens` tokens; pages begin and end anywhere that a GPU takes them.
inline AttentionCase RandomItem(const PageFormat& format, int group, const AttentionParams& params,
                                int64_t most_tokens, Random& random) {
  AttentionCase c;
  c.format = format;
  c.activation = format.dtype;
  c.group = group;
  c.params = params;
  c.tokens = random.Below(2) == 0 ? 1 : 1 + random.Below(most_tokens);
  c.heads = 1 + static_cast<int>(random.Below(3));
  c.count = Pick<int64_t>(random, {0, 1, random.Below(20), random.Below(300), random.Below(700)});
  c.first_slot = random.Below(3) == 0 ? 0 : random.Below(2 * format.page_slots);
  c.key_position = random.Below(50);
  c.positions = random.Below(3) == 0;
  c.q_position = c.key_position + (c.positions ? 2 : 1) * c.count - random.Below(c.tokens + 1) -
                 Pick<int64_t>(random, {0, 0, random.Below(c.count + 60)});
  c.merge = random.Below(3) == 0;
  if (!c.merge) c.split = Pick<int64_t>(random, {0, 7, 64, 100, 256, 5000});
  c.key_size = Pick(random, {0.1f, 1.0f, 4.0f});
  c.layout.alignment = 16;
  c.layout.page_gap = 16 * random.Below(4);
  c.layout.head_gap = 16 * random.Below(4);
  return c;
}

// Uploads of 32 KiB, so that some hundred items are several.
class SmallUploads {
 public:
  SmallUploads() : device_(std::vector<std::byte>(kUploads * kBytes)) {
    EXPECT_EQ(cudaMallocHost(reinterpret_cast<void**>(&host_), kUploads * kBytes), cudaSuccess);
    EXPECT_EQ(uploads_.Prepare(host_, device_.at(), kBytes, Uploads::By::kKernel), cudaSuccess);
  }
  ~SmallUploads() { cudaFreeHost(host_); }
  SmallUploads(const SmallUploads&) = delete;
  SmallUploads& operator=(const SmallUploads&) = delete;
  Uploads* get() { return &uploads_; }

 private:
  static constexpr int64_t kBytes = int64_t{32} << 10;
  std::byte* host_ = nullptr;
  DeviceArray<std::byte> device_;
  Uploads uploads_;
};

// Attends to all items in one call; they share format, group and parameters.
inline void ExpectDecoded(const std::vector<std::unique_ptr<AttentionProblem>>& problems) {
  std::vector<std::unique_ptr<OnGpu>> on_gpu;
  std::vector<AttentionItem> items;
  const AttentionCase& shared = problems.back()->spec;
  for (const auto& problem : problems) {
    on_gpu.push_back(std::make_unique<OnGpu>(*problem));
    items.push_back(on_gpu.back()->Item());
    ASSERT_TRUE(CanAttendDecode(shared.format, shared.activation, shared.group, shared.params,
                                items.back()));
  }
  SmallUploads uploads;
  ASSERT_EQ(AttendDecode({nullptr, uploads.get()}, shared.format, shared.activation, shared.group,
                         shared.params, items),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (size_t i = 0; i < problems.size(); ++i) {
    AttentionProblem& problem = *problems[i];
    SCOPED_TRACE(problem.spec.Name());
    ASSERT_EQ("", problem.Disagreement(DecodePrecision(problem.spec), problem.Expected(),
                                       on_gpu[i]->Outputs()));
  }
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_DECODE_TESTING_H_
