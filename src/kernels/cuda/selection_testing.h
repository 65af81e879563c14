// Random problems of selection on a GPU: its memory, and what tests of them share.
#ifndef HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_
#define HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/testing/selection_problem.h"
#include "kernels/testing/selection_rest.h"

namespace headway::cuda {

// Memory of the GPU; pages and sketches may lie in pinned host memory instead.
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

  std::byte* Put(Piece piece, const std::vector<std::byte>& bytes) override {
    const size_t size = std::max<size_t>(bytes.size(), 1);
    void* copy = nullptr;
    if (piece != Piece::kWorking && pages_ == Pages::kPinned) {
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
    EXPECT_EQ(cudaMemcpy(bytes.data(), at, size, cudaMemcpyDefault), cudaSuccess);
    return bytes;
  }

 private:
  const Pages pages_;
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

// The exponential and the product with log2(e) take some units more than a sum in f32 does. Factors
// of codes are multiplied in f32. Tensor cores take weights, decoded numbers and keys that were
// moved rounded to the activations' dtype.
inline AttentionPrecision Precision(const SelectionCase& c) {
  const bool encoded =
      c.format.encoding != Encoding::kNone && c.format.encoding != Encoding::kLossless;
  AttentionPrecision precision = {.dim_units = encoded ? 4.0 : 1.0, .more_units = 40, .slack = 2};
  if (c.rows > 1 && c.activation != DType::kF32) {
    const double unit = UnitOf(c.activation);
    precision.logit = unit * ((encoded ? 1 : 0) + (c.move_dim > 0 ? 1 : 0));
    precision.weight = unit * (encoded ? 2 : 1);
    precision.weight_in_sum = false;
  }
  return precision;
}

// Kernels for any problem, whose activations have the dtype.
inline Result<std::unique_ptr<Kernels>> NewSelectionKernels(DType activation, Device& device,
                                                            Budget& budget) {
  Result<std::unique_ptr<Kernels>> made = NewCudaKernels(0);
  if (!made.ok()) return made;
  const KernelLimits limits = {.rows = 256,
                               .max_in = 64,
                               .max_out = 64,
                               .head_dim = 256,
                               .group = 16,
                               .query_heads = 128,
                               .activation = activation};
  if (const Status prepared = (*made)->Prepare(limits, device, budget); !prepared.ok()) {
    return prepared;
  }
  return made;
}

class CudaSelectionTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = NewCudaDevice({}, Env::Default(), nullptr);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    Result<std::unique_ptr<Stream>> stream = device_->NewStream(Lane::kCompute);
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(*stream);
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      Result<std::unique_ptr<Kernels>> made = NewSelectionKernels(dtype, *device_, budget_);
      ASSERT_TRUE(made.ok()) << made.status().message();
      kernels_.emplace_back(dtype, std::move(*made));
    }
  }

  Stream& stream() { return *stream_; }
  // Kernels whose activations have the dtype.
  Kernels& Of(DType activation) {
    for (auto& [dtype, kernels] : kernels_) {
      if (dtype == activation) return *kernels;
    }
    return *kernels_.front().second;
  }

  // The working memory behind a run, which is compared with the definition.
  std::vector<std::byte> Run(SelectionProblem& problem, GpuMemory::Pages pages) {
    GpuMemory memory(pages);
    std::vector<std::byte> working =
        RunSelection(problem, Of(problem.spec.activation), *stream_, memory, {});
    EXPECT_EQ("", problem.Disagreement(Precision(problem.spec), working));
    return working;
  }

  // A problem in pinned memory, and what a run without a cache left: caches of several sizes, lines
  // for all blocks that are listed and for few of them, must change no bit.
  void CheckCached(SelectionProblem& problem, const std::vector<std::byte>& plain) {
    const SelectionCase& c = problem.spec;
    const SelectionOutputs outputs = problem.Outputs(plain);
    const int64_t listed = std::reduce(outputs.counts.begin(), outputs.counts.end(), int64_t{0});
    const auto blocks = static_cast<uint32_t>(ListedBlocks(c, outputs));
    for (const uint32_t sets : {1u, 3u, blocks}) {
      CachedLines lines(c, sets);
      lines.cache.step = 4094;  // entries have 12 bits of it
      GpuMemory memory(GpuMemory::Pages::kPinned);
      const std::vector<std::byte> working =
          RunSelection(problem, Of(c.activation), *stream_, memory, lines.cache);
      EXPECT_TRUE(problem.SameBits(working, plain))
          << "other bits with a cache of " << sets << " sets";
      const std::array<uint64_t, BlockCache::kReads> reads = lines.Reads();
      const uint64_t all = std::reduce(reads.begin(), reads.end());
      if (all == 0) continue;  // for shapes that are read where they lie
      ++cached_;
      EXPECT_EQ(all, static_cast<uint64_t>(kCachedSteps * listed));
      if (sets < 8) continue;
      EXPECT_EQ(reads[BlockCache::kBrought], blocks);
      EXPECT_EQ(reads[BlockCache::kPassed], 0u);
    }
  }
  // Blocks of all heads that some list has.
  static int64_t ListedBlocks(const SelectionCase& c, const SelectionOutputs& outputs) {
    std::set<std::pair<size_t, int32_t>> blocks;  // by head
    auto next = outputs.lists.begin();
    for (size_t list = 0; list < outputs.counts.size(); ++list) {
      for (int32_t i = 0; i < outputs.counts[list]; ++i) {
        blocks.emplace(list % static_cast<size_t>(c.heads), *next++);
      }
    }
    return std::ssize(blocks);
  }
  int cached() const { return cached_; }

  // Compares with the definition; elsewhere and with pages and sketches in pinned memory the bits
  // must be the same.
  void Check(const SelectionCase& c, uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + c.Name());
    ASSERT_TRUE(Of(c.activation).SupportsSelection(c.format, c.summary, c.group));
    Random random(seed), same(seed), places(seed), others(seed + 1000);
    SelectionProblem problem(c, random, places);
    const std::vector<std::byte> working = Run(problem, GpuMemory::Pages::kOnDevice);
    if (HasFailure()) return;
    SelectionProblem elsewhere(c, same, others);
    const std::vector<std::byte> plain = Run(elsewhere, GpuMemory::Pages::kPinned);
    EXPECT_TRUE(problem.Outputs(working) == elsewhere.Outputs(plain))
        << "other bits where pages lie elsewhere";
    CheckCached(elsewhere, plain);
  }

  // Random problems, some with groups of up to 16 query heads.
  void CheckGroups(SelectionCase (*draw)(Random&)) {
    for (uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
      Random random(seed);
      SelectionCase c = draw(random);
      c.activation = c.format.dtype;
      if (seed % 3 == 0) c.group = 16 - static_cast<int>(random.Below(12));
      Check(c, seed);
    }
  }

  // Open pages and the merge in the launch of the blocks; the bits are the same with pages
  // elsewhere, through a cache, from step to step, and in a launch behind that of the blocks.
  void CheckRest(const SelectionCase& c, uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + c.Name());
    Random random(seed);
    SelectionProblem problem(c, random, random);
    RestProblem rest(problem, random);
    AttentionPrecision precision = Precision(c);
    precision.result = UnitOf(c.activation);
    GpuMemory here(GpuMemory::Pages::kOnDevice), elsewhere(GpuMemory::Pages::kPinned);
    const std::vector<float> result = rest.Run(Of(c.activation), *stream_, here);
    EXPECT_EQ("", rest.Disagreement(precision, result));
    CachedLines lines(c, 3);
    lines.cache.step = 1;
    EXPECT_TRUE(result == rest.Run(Of(c.activation), *stream_, elsewhere, lines.cache));
    GpuMemory apart(GpuMemory::Pages::kPinned);
    EXPECT_TRUE(result == rest.Run(Of(c.activation), *stream_, apart, {},
                                   RestProblem::Rest::kBehindAttention));
  }

 private:
  int cached_ = 0;  // runs in which blocks were kept
  std::unique_ptr<Device> device_;
  Budget budget_{"test", int64_t{2} << 30};
  std::unique_ptr<Stream> stream_;
  std::vector<std::pair<DType, std::unique_ptr<Kernels>>> kernels_;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_SELECTION_TESTING_H_
