// What the tests of attention over pages share: memory on the device, states in f64, random numbers
// and how far rounding may be off.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_TESTING_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/items.h"

namespace headway::cuda {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
// The logarithm of the sum of a query that has seen no key.
inline constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();
inline constexpr double kUnit = 0x1p-24;  // rounding to f32 is off by at most this, relatively

// A copy of host memory on the device.
class DeviceBytes {
 public:
  DeviceBytes(const void* data, size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(size, 1)), cudaSuccess);
    if (size > 0) {
      EXPECT_EQ(CopyToGpu(data_, data, size), cudaSuccess);
    }
  }
  template <typename T>
  explicit DeviceBytes(const std::vector<T>& data)
      : DeviceBytes(data.data(), data.size() * sizeof(T)) {}
  ~DeviceBytes() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::vector<T> Read() const {
    std::vector<T> data(size_ / sizeof(T));
    if (!data.empty()) {
      EXPECT_EQ(cudaMemcpy(data.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    }
    return data;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

inline std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

// How far rounding to `dtype` is off at most, relatively.
inline double Unit(DType dtype) {
  return dtype == DType::kF32 ? kUnit : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

// A state of one query in f64.
struct State {
  std::vector<double> o;
  double lse = kEmptyLse;
};

inline void MergeInto(State& state, const State& other) {
  if (other.lse == kEmptyLse) return;
  if (state.lse == kEmptyLse) {
    state = other;
    return;
  }
  const double max = std::max(state.lse, other.lse);
  const double mine = std::exp(state.lse - max);
  const double theirs = std::exp(other.lse - max);
  for (size_t i = 0; i < state.o.size(); ++i) {
    state.o[i] = (mine * state.o[i] + theirs * other.o[i]) / (mine + theirs);
  }
  state.lse = max + std::log(mine + theirs);
}

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.Below(static_cast<int64_t>(choices.size()))];
}

inline AttentionParams RandomParams(int head_dim, Random& random) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
          .window = Pick<int64_t>(random, {0, 0, 1, 30, 1000})};
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_TESTING_H_
