#include "kernels/cuda/cuda_kernels.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/elementwise_testing.h"
#include "kernels/cuda/merge.h"

namespace headway {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

// How far rounding to `dtype` is off at most, relatively.
double Unit(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

class CudaKernelsTest : public testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kRowsMax = 300;
  static constexpr int64_t kWidthMax = 1024;

  void SetUp() override {
    if (!CountCudaDevices().ok()) GTEST_SKIP() << "no NVIDIA GPU can be used";
    Result<std::unique_ptr<Device>> device = NewCudaDevice({}, Env::Default(), nullptr);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    Result<std::unique_ptr<Kernels>> kernels = NewCudaKernels(0);
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    kernels_ = std::move(*kernels);
    KernelLimits limits;
    limits.rows = kRowsMax;
    limits.max_in = kWidthMax;
    limits.max_out = kWidthMax;
    limits.head_dim = 64;
    limits.group = 1;
    limits.query_heads = 1;
    limits.activation = GetParam();
    const Status prepared = kernels_->Prepare(limits, *device_, budget_);
    ASSERT_TRUE(prepared.ok()) << prepared.message();
    stream_ = *device_->NewStream(Lane::kCompute);
  }

  std::byte* Upload(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
    }
    Result<std::unique_ptr<Buffer>> buffer = device_->Allocate(budget_, bytes.size(), "test");
    EXPECT_TRUE(buffer.ok());
    buffers_.push_back(std::move(*buffer));
    EXPECT_EQ(cuda::CopyToGpu(buffers_.back()->data(), bytes.data(), bytes.size()), cudaSuccess);
    return buffers_.back()->data();
  }
  std::vector<float> Read(const void* from, size_t count, DType dtype) {
    const Status status = stream_->Synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<std::byte> bytes(count * DTypeBytes(dtype));
    EXPECT_EQ(cudaMemcpy(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = LoadAsFloat(bytes.data(), static_cast<int64_t>(i), dtype);
    }
    return values;
  }
  // Normal numbers as `dtype` holds them.
  std::vector<float> Numbers(int64_t count, DType dtype) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      std::byte raw[4];
      StoreFloat(raw, 0, dtype, random_.Normal());
      value = LoadAsFloat(raw, 0, dtype);
    }
    return values;
  }

  Random random_{31};
  Budget budget_{"test", kUnlimited};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Three matrices of the same rows side by side, of which some have a bias, into columns of one
// result: one product for the GPU.
TEST_P(CudaKernelsTest, LinearAddsBiases) {
  const DType dtype = GetParam();
  constexpr int64_t kIn = 256;
  constexpr int64_t kOuts[] = {128, 64, 72};
  constexpr int64_t kOut = 264;
  constexpr int64_t kStride = 272;
  for (const int64_t rows : {1, 5, 9, 64, 300}) {
    for (const LinearResult result :
         {LinearResult::kActivation, LinearResult::kRelu, LinearResult::kGelu,
          LinearResult::kGeluTanh, LinearResult::kFloat, LinearResult::kAddFloat}) {
      for (const unsigned with_bias : {0u, 1u, 5u, 7u}) {
        SCOPED_TRACE(std::to_string(rows) + " rows, result " +
                     std::to_string(static_cast<int>(result)) + ", biases " +
                     std::to_string(with_bias));
        const DType y_dtype = IsActivation(result) ? dtype : DType::kF32;
        const std::vector<float> x = Numbers(rows * kIn, dtype);
        const std::vector<float> weight = Numbers(kOut * kIn, dtype);
        const std::vector<float> bias = Numbers(kOut, DType::kF32);
        std::vector<float> before(static_cast<size_t>(rows * kStride), kPoison);
        if (result == LinearResult::kAddFloat) before = Numbers(rows * kStride, DType::kF32);
        const std::byte* d_x = Upload(x, dtype);
        const std::byte* d_weight = Upload(weight, dtype);
        const auto* d_bias = reinterpret_cast<const float*>(Upload(bias, DType::kF32));
        std::byte* d_y = Upload(before, y_dtype);
        std::vector<LinearOp> ops;
        std::vector<bool> biased;
        int64_t at = 0;
        for (size_t i = 0; i < 3; ++i) {
          const bool has = (with_bias >> i & 1) != 0;
          LinearOp op;
          op.weight = {d_weight + at * kIn * static_cast<int64_t>(DTypeBytes(dtype)), dtype,
                       kOuts[i], kIn};
          op.bias = has ? d_bias + at : nullptr;
          op.y = d_y + at * static_cast<int64_t>(DTypeBytes(y_dtype));
          op.y_stride = kStride;
          op.result = result;
          ops.push_back(op);
          biased.insert(biased.end(), static_cast<size_t>(kOuts[i]), has);
          at += kOuts[i];
        }
        kernels_->Linear(*stream_, d_x, rows, ops);
        const std::vector<float> y = Read(d_y, before.size(), y_dtype);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t out = 0; out < kStride; ++out) {
            const auto y_at = static_cast<size_t>(row * kStride + out);
            if (out >= kOut) {
              ASSERT_TRUE(y[y_at] == before[y_at] || std::isnan(before[y_at]));
              ASSERT_EQ(std::isnan(y[y_at]), std::isnan(before[y_at]));
              continue;
            }
            const double added =
                biased[static_cast<size_t>(out)] ? bias[static_cast<size_t>(out)] : 0.0;
            double want = added;
            if (result == LinearResult::kAddFloat) want += before[y_at];
            double magnitude = std::abs(want);
            for (int64_t k = 0; k < kIn; ++k) {
              const double term = double{x[static_cast<size_t>(row * kIn + k)]} *
                                  weight[static_cast<size_t>(out * kIn + k)];
              want += term;
              magnitude += std::abs(term);
            }
            // Sums are f32 in any order; a bias is rounded to the dtype of y, and so is y.
            double tolerance = static_cast<double>(kIn) * 0x1p-24 * magnitude +
                               Unit(y_dtype) * (std::abs(added) + std::abs(want));
            if (result == LinearResult::kRelu) want = std::max(want, 0.0);
            if (IsGelu(result)) {
              // GELU, which is nowhere steeper than 1.13, is of what was rounded, and rounds.
              want = cuda::GeluOf(result, want);
              tolerance = 1.13 * tolerance + (Unit(y_dtype) + 0x1p-20) * std::abs(want);
            }
            ASSERT_NEAR(y[y_at], want, tolerance) << "row " << row << " output " << out;
          }
        }
        buffers_.clear();
      }
    }
  }
}

// One row takes the kernel that norms on the way, more take two kernels.
TEST_P(CudaKernelsTest, NormLinear) {
  const DType dtype = GetParam();
  constexpr int64_t kIn = 512;
  constexpr int64_t kOut = 96;
  constexpr float kEps = 1e-5f;
  for (const NormKind kind : {NormKind::kNone, NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t rows : {1, 2, 40, 64}) {
      const bool biased = rows % 3 == 1;
      const bool layer = kind == NormKind::kLayer;
      SCOPED_TRACE("norm " + std::to_string(static_cast<int>(kind)));
      std::vector<float> x = Numbers(rows * kIn, DType::kF32);
      for (float& value : x) value += layer ? 5.0f : 0.0f;
      const std::vector<float> norm = Numbers(kIn, DType::kF32);
      const std::vector<float> shift = Numbers(kIn, DType::kF32);
      const std::vector<float> weight = Numbers(kOut * kIn, dtype);
      const std::vector<float> bias = Numbers(kOut, DType::kF32);
      LinearOp op;
      op.weight = {Upload(weight, dtype), dtype, kOut, kIn};
      op.bias = biased ? reinterpret_cast<const float*>(Upload(bias, DType::kF32)) : nullptr;
      const std::vector<float> poison(static_cast<size_t>(rows * kIn), kPoison);
      std::byte* y = Upload(poison, DType::kF32);
      op.y = y;
      op.y_stride = kOut;
      op.result = LinearResult::kFloat;
      NormView view = {.kind = kind, .eps = kEps};
      if (kind != NormKind::kNone) {
        view.weight = reinterpret_cast<const float*>(Upload(norm, DType::kF32));
      }
      if (layer) view.bias = reinterpret_cast<const float*>(Upload(shift, DType::kF32));
      kernels_->NormLinear(*stream_,
                           {.x = reinterpret_cast<const float*>(Upload(x, DType::kF32)),
                            .norm = view,
                            .rows = rows,
                            .normed = Upload(poison, dtype)},
                           {&op, 1});
      const std::vector<float> got = Read(y, static_cast<size_t>(rows * kOut), DType::kF32);
      for (int64_t row = 0; row < rows; ++row) {
        const float* x_row = x.data() + row * kIn;
        double mean = 0;
        for (int64_t k = 0; layer && k < kIn; ++k) mean += double{x_row[k]} / kIn;
        double squares = 0;
        for (int64_t k = 0; k < kIn; ++k) squares += (x_row[k] - mean) * (x_row[k] - mean);
        const double scale = kind == NormKind::kNone ? 1.0 : 1.0 / std::sqrt(squares / kIn + kEps);
        for (int64_t out = 0; out < kOut; ++out) {
          double want = biased ? bias[static_cast<size_t>(out)] : 0.0;
          double magnitude = std::abs(want);
          for (int64_t k = 0; k < kIn; ++k) {
            const auto k_at = static_cast<size_t>(k);
            double normed = (x_row[k] - mean) * scale;
            if (kind != NormKind::kNone) normed *= norm[k_at];
            if (layer) normed += shift[k_at];
            const double by = weight[static_cast<size_t>(out * kIn + k)];
            want += normed * by;
            // What is taken off and added is rounded, too.
            magnitude += std::abs(normed * by);
            if (layer) magnitude += std::abs((mean * scale * norm[k_at] + shift[k_at]) * by);
          }
          // The normed row may be rounded to an activation on the way.
          const double tolerance = (static_cast<double>(kIn) * 0x1p-24 + Unit(dtype)) * magnitude;
          ASSERT_NEAR(got[static_cast<size_t>(row * kOut + out)], want, tolerance)
              << rows << " rows, row " << row << " output " << out;
        }
      }
      buffers_.clear();
    }
  }
}

// Rows on 16 bytes, which are read 4 elements at a time, and the merged output as activations.
TEST_P(CudaKernelsTest, MergesStatesIntoAResult) {
  const DType dtype = GetParam();
  constexpr int64_t kTokens = 37;
  constexpr int kHeads = 9;
  for (const int dim : {64, 80, 128, 136, 256}) {
    for (const int kind : {0, 1, 2, 3, 4, 5}) {
      const bool first = kind % 3 == 1;    // there is no state yet
      const bool no_part = kind % 3 == 2;  // the state is only converted
      const bool to_result = kind < 3 || no_part;
      SCOPED_TRACE("dim " + std::to_string(dim) + " kind " + std::to_string(kind));
      const int64_t width = int64_t{kHeads} * dim;
      std::vector<float> o(static_cast<size_t>(kTokens * (width + 4)), kPoison);
      std::vector<float> lse(static_cast<size_t>(kTokens * kHeads), kPoison);
      std::vector<float> part(static_cast<size_t>(kTokens * width), kPoison);
      std::vector<float> part_lse(static_cast<size_t>(kTokens * kHeads), kPoison);
      const std::vector<float> numbers = Numbers(2 * kTokens * width, dtype);
      for (int64_t row = 0; row < kTokens * kHeads; ++row) {
        const bool none = random_.Below(4) == 0;
        const bool part_none = random_.Below(4) == 0;
        const int64_t at = row / kHeads * (width + 4) + row % kHeads * dim;
        // The part lies head by head.
        const int64_t part_at = (row % kHeads * kTokens + row / kHeads) * dim;
        if (!first) lse[static_cast<size_t>(row)] = none ? kNoKeys : 4 * random_.Normal();
        part_lse[static_cast<size_t>(row % kHeads * kTokens + row / kHeads)] =
            part_none ? kNoKeys : 4 * random_.Normal();
        for (int64_t i = 0; i < dim; ++i) {
          const auto number = static_cast<size_t>(2 * (row * dim + i));
          if (!first && !none) o[static_cast<size_t>(at + i)] = numbers[number];
          if (!part_none) part[static_cast<size_t>(part_at + i)] = numbers[number + 1];
        }
      }
      cuda::StateMerge merge;
      merge.o = reinterpret_cast<float*>(Upload(o, DType::kF32));
      merge.o_stride = width + 4;
      merge.lse = reinterpret_cast<float*>(Upload(lse, DType::kF32));
      merge.lse_stride = kHeads;
      merge.tokens = kTokens;
      merge.heads = kHeads;
      merge.first = first;
      if (!no_part) {
        merge.part_o = Upload(part, dtype);
        merge.part_o_token_stride = dim;
        merge.part_o_head_stride = kTokens * dim;
        merge.part_lse = reinterpret_cast<const float*>(Upload(part_lse, DType::kF32));
        merge.part_lse_token_stride = 1;
        merge.part_lse_head_stride = kTokens;
      }
      const std::vector<float> poison(static_cast<size_t>(kTokens * (width + 8)), kPoison);
      std::byte* result = Upload(poison, dtype);
      if (to_result) merge.result = result;
      merge.result_stride = width + 8;
      ASSERT_EQ(cuda::MergeState(nullptr, dtype, dim, merge), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      const std::vector<float> got_o = Read(merge.o, o.size(), DType::kF32);
      const std::vector<float> got_lse = Read(merge.lse, lse.size(), DType::kF32);
      const std::vector<float> got = Read(result, poison.size(), dtype);
      for (int64_t row = 0; row < kTokens * kHeads; ++row) {
        const auto part_row = static_cast<size_t>(row % kHeads * kTokens + row / kHeads);
        const double ours = first ? kNoKeys : lse[static_cast<size_t>(row)];
        const double theirs = no_part ? kNoKeys : part_lse[part_row];
        const double top = std::max(ours, theirs);
        const double our_weight = ours == kNoKeys ? 0 : std::exp(ours - top);
        const double their_weight = theirs == kNoKeys ? 0 : std::exp(theirs - top);
        const double total = our_weight + their_weight;
        if (!to_result && total > 0) {
          const double want = top + std::log(total);
          ASSERT_NEAR(got_lse[static_cast<size_t>(row)], want, 64 * 0x1p-24 * (1 + std::abs(want)));
        }
        for (int64_t i = 0; i < dim; ++i) {
          const auto o_at =
              static_cast<size_t>(row / kHeads * (width + 4) + row % kHeads * dim + i);
          const auto result_at =
              static_cast<size_t>(row / kHeads * (width + 8) + row % kHeads * dim + i);
          if (total == 0 && ours == kNoKeys && !to_result && !first) {
            // A state without keys stays one: its o may be anything.
            ASSERT_EQ(got_lse[static_cast<size_t>(row)], kNoKeys);
            continue;
          }
          double want = 0;
          if (our_weight > 0) want += our_weight / total * o[o_at];
          if (their_weight > 0) {
            want += their_weight / total *
                    part[part_row * static_cast<size_t>(dim) + static_cast<size_t>(i)];
          }
          const DType to = to_result ? dtype : DType::kF32;
          ASSERT_NEAR(to_result ? got[result_at] : got_o[o_at], want,
                      8 * 128 * 0x1p-24 + Unit(to) * std::abs(want) + 0x1p-24);
          if (to_result) {
            ASSERT_EQ(std::memcmp(&got_o[o_at], &o[o_at], sizeof(float)), 0);
          }
        }
      }
      for (int64_t token = 0; token < kTokens; ++token) {
        for (int64_t i = to_result ? width : 0; i < width + 8; ++i) {
          ASSERT_TRUE(std::isnan(got[static_cast<size_t>(token * (width + 8) + i)]));
        }
        for (int64_t i = width; i < width + 4; ++i) {
          ASSERT_TRUE(std::isnan(got_o[static_cast<size_t>(token * (width + 4) + i)]));
        }
      }
      buffers_.clear();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaKernelsTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway
