// For tests that hand kernels memory of their own.
#ifndef HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_
#define HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headway::cuda {

// Copies to the GPU, and waits until the data is there: cudaMemcpy may return before, and streams
// that do not wait for the default one begin with what was there.
inline cudaError_t CopyToGpu(void* to, const void* from, size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

// Device memory of `count` elements, zeros.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) {
    const size_t bytes = std::max<size_t>(count, 1) * sizeof(T);
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0, bytes), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& data) : DeviceArray(data.size()) { Write(data); }
  ~DeviceArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* at() const { return static_cast<T*>(data_); }
  void Write(const std::vector<T>& data) {
    EXPECT_EQ(CopyToGpu(data_, data.data(), data.size() * sizeof(T)), cudaSuccess);
  }
  std::vector<T> Read(size_t count) const {
    std::vector<T> data(count);
    EXPECT_EQ(cudaMemcpy(data.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return data;
  }

 private:
  void* data_ = nullptr;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_CUDA_TESTING_H_
