#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/types.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/elementwise_testing.h"

namespace headway::cuda {
namespace {

// What `values` become under a norm; the sum and the products are f32.
void ExpectNormed(DType dtype, std::span<const float> values, std::span<const float> weight,
                  double eps, std::span<const float> got) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(values.size()) + eps);
  const double summing = (static_cast<double>(values.size()) / 32 + 16) * kFloatEpsilon;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i] * scale * weight[i];
    ASSERT_NEAR(got[i], value, summing * std::abs(value) + Rounding(dtype, value)) << i;
  }
}

TEST_F(ElementwiseTest, RmsNorm) {
  for (const DType activation : kDTypes) {
    for (const int64_t width : {1, 31, 64, 516, 1024, 1028, 4096, 8200, 20000, 40000}) {
      for (const int64_t rows : {int64_t{1}, 2 + random_.Below(9), int64_t{300}}) {
        if (rows * width > kMiB * 2) continue;
        SCOPED_TRACE(testing::Message() << DTypeName(activation) << " " << rows << "x" << width);
        const std::vector<float> x = Floats(rows * width);
        const std::vector<float> weight = Floats(width);
        Memory x_memory(DType::kF32, x);
        Memory weight_memory(DType::kF32, weight);
        Memory y(Count(rows * width) * DTypeBytes(activation));
        ASSERT_CUDA(Norm(nullptr, {x_memory.floats(), rows, width},
                         {NormKind::kRms, weight_memory.floats(), nullptr, 1e-5f}, activation,
                         y.data()));
        const std::vector<float> got = y.Values(activation);
        for (int64_t row = 0; row < rows; ++row) {
          ExpectNormed(activation, std::span(x).subspan(Count(row * width), Count(width)), weight,
                       1e-5f, std::span(got).subspan(Count(row * width), Count(width)));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows whose mean is far from 0, as residual streams have some; also where they lie.
TEST_F(ElementwiseTest, LayerNorm) {
  constexpr float kShift = 30.0f;
  for (const DType result : kDTypes) {
    for (const int64_t width : {31, 64, 516, 1024, 1030, 4096, 7168, 20000}) {
      for (const int64_t rows : {int64_t{1}, 2 + random_.Below(9), int64_t{64}, int64_t{300}}) {
        if (rows * width > kMiB * 2) continue;
        for (const bool affine : {true, false}) {
          SCOPED_TRACE(testing::Message() << DTypeName(result) << " " << rows << "x" << width
                                          << (affine ? "" : " without weights"));
          std::vector<float> x = Floats(rows * width);
          for (float& value : x) value += kShift;
          const std::vector<float> weight = Floats(width);
          const std::vector<float> bias = Floats(width);
          Memory x_memory(DType::kF32, x);
          Memory weight_memory(DType::kF32, weight);
          Memory bias_memory(DType::kF32, bias);
          Memory y(Count(rows * width) * DTypeBytes(result));
          const NormView norm = {NormKind::kLayer, affine ? weight_memory.floats() : nullptr,
                                 affine ? bias_memory.floats() : nullptr, 1e-5f};
          void* const to = result == DType::kF32 ? x_memory.data() : y.data();
          ASSERT_CUDA(Norm(nullptr, {x_memory.floats(), rows, width}, norm, result, to));
          const std::vector<float> got = (result == DType::kF32 ? x_memory : y).Values(result);
          const auto n = static_cast<double>(width);
          for (int64_t row = 0; row < rows; ++row) {
            const std::span<const float> values =
                std::span(x).subspan(Count(row * width), Count(width));
            double mean = 0;
            for (const float value : values) mean += value;
            mean /= n;
            double squares = 0;
            for (const float value : values) squares += (value - mean) * (value - mean);
            const double scale = 1.0 / std::sqrt(squares / n + 1e-5);
            // Errors of the sum of one thread's elements and of those of the threads.
            const double summing = (n / 32 + 16) * kFloatEpsilon;
            for (int64_t i = 0; i < width; ++i) {
              const double by = affine ? weight[Count(i)] : 1.0;
              const double add = affine ? bias[Count(i)] : 0.0;
              const double normed = (values[Count(i)] - mean) * scale * by;
              // The mean's error moves the difference; the scale's is relative.
              const double error = summing * (std::abs(mean * scale * by) + std::abs(normed)) +
                                   4 * kFloatEpsilon * (std::abs(normed) + std::abs(add));
              ASSERT_NEAR(got[Count(row * width + i)], normed + add,
                          error + Rounding(result, normed + add))
                  << i;
            }
          }
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, NoNormConverts) {
  for (const DType result : kDTypes) {
    for (const int64_t width : {13, 512}) {
      const std::vector<float> x = Numbers(7 * width, result);
      Memory x_memory(DType::kF32, x);
      Memory y(x.size() * DTypeBytes(result));
      ASSERT_CUDA(Norm(nullptr, {x_memory.floats(), 7, width}, {.kind = NormKind::kNone}, result,
                       y.data()));
      EXPECT_EQ(y.Values(result), x);
    }
  }
}

TEST_F(ElementwiseTest, HeadNorm) {
  for (const DType activation : kDTypes) {
    for (const int head_dim : {8, 17, 64, 80, 128, 256, 320}) {
      for (const int64_t gap : {0, 5, 64}) {
        const int64_t tokens = 1 + random_.Below(40);
        const int heads = 1 + static_cast<int>(random_.Below(9));
        SCOPED_TRACE(testing::Message() << DTypeName(activation) << " head_dim " << head_dim
                                        << " heads " << heads << " tokens " << tokens);
        const int64_t stride = int64_t{heads} * head_dim + gap;
        const std::vector<float> x = Numbers(tokens * stride, activation);
        const std::vector<float> weight = Floats(head_dim);
        Memory x_memory(activation, x);
        Memory weight_memory(DType::kF32, weight);
        ASSERT_CUDA(HeadNorm(nullptr, activation, weight_memory.floats(), 1e-6f,
                             {x_memory.data(), tokens, heads, head_dim, stride}));
        const std::vector<float> got = x_memory.Values(activation);
        for (int64_t token = 0; token < tokens; ++token) {
          for (int head = 0; head < heads; ++head) {
            const size_t at = Count(token * stride + int64_t{head} * head_dim);
            ExpectNormed(activation, std::span(x).subspan(at, Count(head_dim)), weight, 1e-6f,
                         std::span(got).subspan(at, Count(head_dim)));
            if (HasFatalFailure()) return;
          }
          for (int64_t i = stride - gap; i < stride; ++i) {
            ASSERT_EQ(got[Count(token * stride + i)], x[Count(token * stride + i)]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway::cuda
