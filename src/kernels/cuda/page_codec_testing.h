// What the tests of encoded pages share: pages of random numbers, as they are and closed.
#ifndef HEADWAY_KERNELS_CUDA_PAGE_CODEC_TESTING_H_
#define HEADWAY_KERNELS_CUDA_PAGE_CODEC_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_testing.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/page_codec.h"

namespace headway::cuda {

// A copy of host memory on the device.
class OnDevice {
 public:
  explicit OnDevice(const std::vector<std::byte>& data) : size_(data.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(size_, 1)), cudaSuccess);
    EXPECT_EQ(CopyToGpu(data_, data.data(), size_), cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> data(size_);
    EXPECT_EQ(cudaMemcpy(data.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    return data;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// Pages of K, V and parameters of `heads` heads, strides as drawn; bits that nothing writes are
// set.
struct CodecPages {
  CodecPages(const PageFormat& format, int heads, int64_t pages, bool closed, Random& random) {
    const auto page = static_cast<int64_t>(closed ? format.closed_bytes() : format.bytes());
    run.page_stride = RoundUp(page, 16) + 16 * random.Below(3);
    run.head_stride = pages * run.page_stride + 16 * random.Below(3);
    run.params_page_stride = RoundUp(heads * ParamBytes(format), 4) + 4 * random.Below(3);
    run.params_head_stride = ParamBytes(format);
    run.count = pages * format.page_slots;
    k.assign(static_cast<size_t>(heads * run.head_stride), std::byte{0xFF});
    v = k;
    if (closed) {
      params.assign(static_cast<size_t>(pages * run.params_page_stride), std::byte{0xFF});
    }
  }
  // The run, in these vectors or in copies of them.
  PageRun In(std::byte* in_k, std::byte* in_v, std::byte* in_params) const {
    PageRun at = run;
    at.k = in_k;
    at.v = in_v;
    at.params = in_params;
    return at;
  }
  PageRun Here() { return In(k.data(), v.data(), params.empty() ? nullptr : params.data()); }

  PageRun run;
  std::vector<std::byte> k, v, params;
};

// Numbers of all kinds, a kind a channel of K or a token of V: normal ones, outliers, constants,
// zeros of both signs, tiny ones, and ones that are not finite.
inline float Draw(int64_t kind, Random& random) {
  switch (kind) {
    case 0:
      return 100.0f + 1000.0f * random.Normal();
    case 1:
      return 3.0f;
    case 2:
      return random.Below(2) == 0 ? 0.0f : -0.0f;
    case 3:
      return 1e-6f * random.Normal();
    case 4:
      return random.Below(40) == 0 ? kPoison : random.Normal();
    case 5:
      return random.Below(40) == 0 ? -std::numeric_limits<float>::infinity() : random.Normal();
    default:
      return random.Normal();
  }
}

inline void Fill(const PageFormat& format, int heads, int64_t pages, bool wild, CodecPages* plain,
                 Random& random) {
  const int64_t dim = format.head_dim;
  for (int64_t i = 0; i < heads * pages; ++i) {
    const int64_t at = i / pages * plain->run.head_stride + i % pages * plain->run.page_stride;
    std::vector<int64_t> kinds;
    for (int64_t n = 0; n < dim + format.page_slots; ++n) {
      kinds.push_back(wild ? random.Below(12) : 100);
    }
    for (int64_t e = 0; e < format.page_slots * dim; ++e) {
      const auto channel = static_cast<size_t>(e % dim);
      const auto slot = static_cast<size_t>(dim + e / dim);
      StoreFloat(plain->k.data() + at, e, format.dtype, Draw(kinds[channel], random));
      StoreFloat(plain->v.data() + at, e, format.dtype, Draw(kinds[slot], random));
    }
  }
}

class PageCodecTest : public testing::TestWithParam<std::tuple<DType, Encoding>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no NVIDIA GPU can be used";
    }
  }
  PageFormat Format(int head_dim, int slots) const {
    return {std::get<0>(GetParam()), slots, head_dim, std::get<1>(GetParam())};
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_PAGE_CODEC_TESTING_H_
