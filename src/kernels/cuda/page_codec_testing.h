// The suite of encoded pages on a GPU, of one dtype and encoding at a time.
#ifndef HEADWAY_KERNELS_CUDA_PAGE_CODEC_TESTING_H_
#define HEADWAY_KERNELS_CUDA_PAGE_CODEC_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <tuple>

#include "base/types.h"
#include "kernels/pages.h"

namespace headway::cuda {

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
