// Engines that choose on one GPU at once. The blocks of threads of a choice wait for one another,
// and must not keep those of another one from running.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/selection_testing.h"

namespace headway::cuda {
namespace {

// So many blocks that a choice takes nearly all multiprocessors of a large GPU, which have no room
// for two.
SelectionCase LargeCase() {
  SelectionCase c;
  c.format = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 64};
  c.summary = {.kind = SummaryKind::kMoments, .block_slots = 16};
  c.heads = 8;
  c.group_heads = 8;
  c.group = 4;
  c.segment_pages = 64;
  c.pages = 2048;
  c.budget = {.far_begin = 3, .far_end = c.blocks() - 5, .far_blocks = 90};
  c.split = 256;
  c.scale = 0.1f;
  c.activation = DType::kBF16;
  return c;
}

class ChoosingEngine {
 public:
  explicit ChoosingEngine(const SelectionProblem& problem) : problem_(problem) {
    device_ = *NewCudaDevice({}, Env::Default(), nullptr);
    stream_ = *device_->NewStream(Lane::kCompute);
    kernels_ = *NewSelectionKernels(DType::kBF16, *device_, budget_);
    piece_ = problem.PutOn(memory_);
    segments_ = problem.Segments(piece_);
    for (const auto& [summary, items] : problem.Summaries(piece_)) {
      kernels_->Summarize(*stream_, problem.spec.format, summary, items);
    }
  }
  ChoosingEngine(const ChoosingEngine&) = delete;
  ChoosingEngine& operator=(const ChoosingEngine&) = delete;

  void Choose(int times) {
    const SelectionCase& c = problem_.spec;
    const auto choices = problem_.Choices(piece_, segments_, DType::kBF16);
    for (int i = 0; i < times; ++i) {
      for (const auto& [summary, choice] : choices) {
        kernels_->SelectBlocks(*stream_, c.format, summary, c.group, c.scale, {&choice, 1});
      }
    }
  }

  SelectionOutputs Outputs() {
    const SelectionCase& c = problem_.spec;
    const AttendBlocksItem attend = problem_.Attend(piece_, segments_, DType::kBF16);
    kernels_->AttendBlocks(*stream_, c.format, c.summary, c.group, c.scale, {&attend, 1});
    EXPECT_TRUE(stream_->Synchronize().ok());
    return problem_.Outputs(problem_.WorkingOn(memory_, piece_));
  }

 private:
  const SelectionProblem& problem_;
  Budget budget_{"test", int64_t{1} << 30};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  GpuMemory memory_{GpuMemory::Pages::kOnDevice};
  std::unique_ptr<Kernels> kernels_;
  SelectionMemory piece_;
  std::vector<SegmentPlace> segments_;
};

// One chooses all the time, alone at first and at times; two others come and go beside it.
TEST(CudaSelectionBesideTest, EnginesThatComeAndGoGetTheListsOfOneAlone) {
  Random random(1), places(2);
  const SelectionProblem problem(LargeCase(), random, places);
  ChoosingEngine first(problem);
  first.Choose(1);
  const SelectionOutputs alone = first.Outputs();
  std::atomic<bool> ends = false;
  std::atomic<int> rounds = 0;
  std::thread all_the_time([&] {
    while (!ends) {
      first.Choose(100);
      EXPECT_TRUE(first.Outputs() == alone);
      ++rounds;
    }
  });
  const auto come_and_go = [&](int choices) {
    for (int i = 0; i < 8; ++i) {
      ChoosingEngine other(problem);
      other.Choose(choices);
      EXPECT_TRUE(other.Outputs() == alone);
    }
  };
  std::thread second([&] { come_and_go(3000); });
  std::thread third([&] { come_and_go(1000); });
  second.join();
  third.join();
  const int before = rounds;
  while (rounds < before + 3) std::this_thread::yield();
  ends = true;
  all_the_time.join();
}

}  // namespace
}  // namespace headway::cuda
