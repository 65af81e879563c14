// What users read when there is no GPU to use, or not enough of it. Runs without one.
#include "device/cuda/cuda_errors.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "device/cuda/cuda_device.h"

namespace headway::cuda {
namespace {

TEST(CudaErrors, NoGpuSaysWhatThereIsAndWhatIsNeeded) {
  const auto text = [](const NoGpu& found) {
    const Status status = StatusOf(found);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_EQ(text({cudaErrorInsufficientDriver, 12020, 13010, nullptr}),
            "no NVIDIA GPU can be used: the NVIDIA driver is too old: it knows CUDA 12.2, and this "
            "build needs 13.0 or newer; update the driver; or use device cpu");
  EXPECT_EQ(text({cudaErrorInsufficientDriver, 0, 13010, nullptr}),
            "no NVIDIA GPU can be used: no NVIDIA driver is installed; this build needs one for "
            "CUDA 13.0 or newer; or use device cpu");
  EXPECT_EQ(text({cudaErrorNoDevice, 13000, 13010, ""}),
            "no NVIDIA GPU can be used: none is visible (CUDA_VISIBLE_DEVICES is \"\"); or use "
            "device cpu");
  EXPECT_EQ(text({cudaSuccess, 13000, 13010, nullptr}),
            "no NVIDIA GPU can be used: none is visible; or use device cpu");
}

TEST(CudaErrors, AskingWhereThereIsNoneIsAnError) {
  const Result<int> count = CountCudaDevices();
  if (count.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(count.status().message().find("no NVIDIA GPU can be used: "), 0u)
      << count.status().message();
  EXPECT_EQ(DescribeCudaDevice(0).status().message(), count.status().message());
}

TEST(CudaErrors, ErrorsThatEndTheProcessSaySo) {
  EXPECT_TRUE(StatusOf(cudaSuccess, "a copy").ok());
  EXPECT_EQ(StatusOf(cudaErrorInvalidValue, "a copy").message(), "a copy: invalid argument");
  EXPECT_EQ(StatusOf(cudaErrorIllegalAddress, "a copy").message(),
            "a copy: an illegal memory access was encountered; this process cannot use the GPU any "
            "longer: start it again (what a session saved before is kept)");
  EXPECT_EQ(StatusOf(cudaErrorMemoryAllocation, "x").code(), StatusCode::kOutOfBudget);
}

TEST(CudaErrors, MemoryThatIsNotThere) {
  EXPECT_EQ(OutOfGpuMemory("weights", 15 * kGiB, 2 * kGiB).message(),
            "weights: 15.0 GiB of the GPU's memory are needed, and 2.0 GiB are free; end other "
            "programs on it, or give a smaller gpu_memory");
  EXPECT_EQ(PageableWarning("KV slabs", kGiB, cudaErrorMemoryAllocation, 6.04e9, 55e9),
            "1.0 GiB of host memory for KV slabs cannot be pinned (out of memory): copies to the "
            "GPU wait for one another and run at 6.0 GB/s, pinned ones at 55.0 GB/s");
  EXPECT_EQ(PageableWarning("KV slabs", kGiB, cudaErrorMemoryAllocation, 0.0, 0.0),
            "1.0 GiB of host memory for KV slabs cannot be pinned (out of memory): copies to the "
            "GPU wait for one another and run at an unknown rate");
}

}  // namespace
}  // namespace headway::cuda
