// What the tests of products, norms, rotations and other small kernels share: memory at any
// address, random numbers, and how far rounding may be off.
#ifndef HEADWAY_KERNELS_CUDA_ELEMENTWISE_TESTING_H_
#define HEADWAY_KERNELS_CUDA_ELEMENTWISE_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/linear.h"

namespace headway::cuda {

inline constexpr uint64_t kSeed = 20260102;
inline constexpr std::array kDTypes = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr double kFloatEpsilon = 0x1p-23;

// Twice what rounding to `dtype` can do to 1.
inline double Epsilon(DType dtype) {
  if (dtype == DType::kF32) return kFloatEpsilon;
  return dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
}

// More than rounding to `dtype` can do to `value`.
inline double Rounding(DType dtype, double value) {
  const double subnormal = dtype == DType::kF16 ? 0x1p-24 : 0.0;
  return Epsilon(dtype) * std::abs(value) + subnormal;
}

inline double Silu(double value) { return value / (1.0 + std::exp(-value)); }

// Of `kind` kGelu or kGeluTanh.
inline double GeluOf(LinearResult kind, double value) {
  if (kind == LinearResult::kGelu) return 0.5 * value * std::erfc(-value / std::numbers::sqrt2);
  const double cubic = value + 0.044715 * value * value * value;
  return 0.5 * value * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * cubic));
}

#define ASSERT_CUDA(expression)                                                        \
  do {                                                                                 \
    const cudaError_t error = (expression);                                            \
    ASSERT_EQ(error, cudaSuccess) << #expression << ": " << cudaGetErrorString(error); \
  } while (false)

// The numbers of `values` in `dtype`, as bytes.
inline std::vector<std::byte> Encode(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

// Device memory whose first byte lies `offset` bytes past a boundary of 256. Filled with ones: NaN
// in every dtype.
class Memory {
 public:
  explicit Memory(size_t size, size_t offset = 0) : size_(size), offset_(offset) {
    Check(cudaMalloc(&base_, size + offset + 1));  // a byte more, so that it is never empty
    Check(cudaMemset(base_, 0xFF, size + offset + 1));
  }
  explicit Memory(const std::vector<std::byte>& bytes, size_t offset = 0)
      : Memory(bytes.size(), offset) {
    Check(CopyToGpu(data(), bytes.data(), size_));
  }
  Memory(DType dtype, std::span<const float> values, size_t offset = 0)
      : Memory(Encode(dtype, values), offset) {}
  ~Memory() { EXPECT_EQ(cudaFree(base_), cudaSuccess); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() { return static_cast<std::byte*>(base_) + offset_; }
  float* floats() { return reinterpret_cast<float*>(data()); }

  std::vector<std::byte> Bytes() {
    std::vector<std::byte> bytes(size_);
    Check(cudaDeviceSynchronize());
    Check(cudaMemcpy(bytes.data(), data(), size_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  std::vector<float> Values(DType dtype) {
    const std::vector<std::byte> bytes = Bytes();
    std::vector<float> values(size_ / DTypeBytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = LoadAsFloat(bytes.data(), static_cast<int64_t>(i), dtype);
    }
    return values;
  }

 private:
  static void Check(cudaError_t error) {
    EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }

  void* base_ = nullptr;
  size_t size_;
  size_t offset_;
};

inline size_t Count(int64_t count) { return static_cast<size_t>(count); }

class ElementwiseTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }

  // Normal numbers times `scale`, as `dtype` holds them.
  std::vector<float> Numbers(int64_t count, DType dtype, float scale = 1.0f) {
    std::vector<float> values(Count(count));
    for (float& value : values) {
      value = random_.Normal() * scale;
      StoreFloat(&value, 0, dtype, value);
      value = LoadAsFloat(&value, 0, dtype);
    }
    return values;
  }
  std::vector<float> Floats(int64_t count) { return Numbers(count, DType::kF32); }

  Random random_{kSeed};
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ELEMENTWISE_TESTING_H_
