// Memory of a GPU for random problems of selection.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/testing/selection_problem.h"

namespace headway::cuda {

// Memory of the GPU; what is put first, the pages, may lie in pinned host memory instead.
class GpuMemory : public SelectionHost {
 public:
  enum class Pages { kOnDevice, kPinned };
  explicit GpuMemory(Pages pages) : pages_(pages) {}
  ~GpuMemory() override {
    for (void* copy : device_) EXPECT_EQ(cudaFree(copy), cudaSuccess);
    for (void* copy : pinned_) EXPECT_EQ(cudaFreeHost(copy), cudaSuccess);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* Put(const std::vector<std::byte>& bytes) override {
    const size_t size = std::max<size_t>(bytes.size(), 1);
    void* copy = nullptr;
    if (std::exchange(first_, false) && pages_ == Pages::kPinned) {
      EXPECT_EQ(cudaMallocHost(&copy, size), cudaSuccess);
      pinned_.push_back(copy);
      std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy));
    } else {
      EXPECT_EQ(cudaMalloc(&copy, size), cudaSuccess);
      device_.push_back(copy);
      EXPECT_EQ(CopyToGpu(copy, bytes.data(), bytes.size()), cudaSuccess);
    }
    return static_cast<std::byte*>(copy);
  }
  std::vector<std::byte> Get(const std::byte* at, size_t size) override {
    std::vector<std::byte> bytes(size);
    EXPECT_EQ(cudaMemcpy(bytes.data(), at, size, cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }

 private:
  const Pages pages_;
  bool first_ = true;
  std::vector<void*> device_, pinned_;
};

// Memory of a BlockCache, whose lines hold NaN.
struct CachedLines {
  CachedLines(const SelectionCase& c, uint32_t sets) {
    const auto entries = static_cast<size_t>(sets) * BlockCache::kWays;
    const auto bytes =
        static_cast<size_t>(CacheLineBytes(c.format, c.summary.block_slots)) * entries;
    cache.sets = sets;
    cache.lines = static_cast<std::byte*>(Allocate(bytes, 0xFF));
    cache.entries = static_cast<uint64_t*>(Allocate(entries * sizeof(uint64_t), 0));
    cache.reads = static_cast<uint64_t*>(Allocate(BlockCache::kReads * sizeof(uint64_t), 0));
  }
  ~CachedLines() {
    for (void* memory : {static_cast<void*>(cache.lines), static_cast<void*>(cache.entries),
                         static_cast<void*>(cache.reads)}) {
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    }
  }
  CachedLines(const CachedLines&) = delete;
  CachedLines& operator=(const CachedLines&) = delete;

  std::array<uint64_t, BlockCache::kReads> Reads() const {
    std::array<uint64_t, BlockCache::kReads> reads = {};
    EXPECT_EQ(cudaMemcpy(reads.data(), cache.reads, sizeof(reads), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return reads;
  }

  BlockCache cache;

 private:
  static void* Allocate(size_t bytes, int fill) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory, fill, bytes), cudaSuccess);
    return memory;
  }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_
