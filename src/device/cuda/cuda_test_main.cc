// The main of test programs that need a GPU. Where none can be used they end with the code that
// ctest takes for "skipped".
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in cmake/Headway.cmake
  testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("skipped: no NVIDIA GPU can be used: %s\n", cudaGetErrorString(error));
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
