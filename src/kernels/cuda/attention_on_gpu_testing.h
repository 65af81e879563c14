// The shared attention problems of kernels/testing in memory of a GPU.
#ifndef HEADWAY_KERNELS_CUDA_ATTENTION_ON_GPU_TESTING_H_
#define HEADWAY_KERNELS_CUDA_ATTENTION_ON_GPU_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {

inline std::vector<std::byte> EncodedAs(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

// A problem's memory on the GPU.
class OnGpu {
 public:
  explicit OnGpu(AttentionProblem& problem)
      : problem_(problem),
        q_(EncodedAs(problem.spec.activation, problem.q)),
        kv_(problem.kv.memory()),
        positions_(problem.positions),
        o_(problem.outputs.o),
        lse_(problem.outputs.lse),
        number_(1) {}

  // Features that no GPU has yet get a pointer that is never followed.
  AttentionItem Item() {
    AttentionItem item = problem_.Item();
    item.q = q_.at();
    item.keys.pages = problem_.kv.RunIn(kv_.at());
    if (item.keys.positions != nullptr) item.keys.positions = positions_.at();
    if (item.transform.inv_freq != nullptr) item.transform.inv_freq = number_.at();
    if (item.key_mass != nullptr) item.key_mass = number_.at();
    item.o = o_.at();
    item.lse = lse_.at();
    return item;
  }
  AttentionOutputs Outputs() const {
    return {o_.Read(problem_.outputs.o.size()), lse_.Read(problem_.outputs.lse.size()), {}};
  }

 private:
  AttentionProblem& problem_;
  DeviceArray<std::byte> q_, kv_;
  DeviceArray<int32_t> positions_;
  DeviceArray<float> o_, lse_, number_;
};

// What nothing writes is NaN.
inline bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_ATTENTION_ON_GPU_TESTING_H_
