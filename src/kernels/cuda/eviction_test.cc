// Eviction's kernels of a GPU against the definition.
#include "kernels/cuda/eviction.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/testing/attention_problem.h"
#include "kernels/testing/eviction_problem.h"

namespace headway::cuda {
namespace {

class CudaEvictionTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no NVIDIA GPU can be used";
    }
  }
  PageFormat Format(int head_dim, int slots) const {
    return {.dtype = GetParam(), .page_slots = slots, .head_dim = head_dim};
  }
  static PageLayout Layout(Random& random) {
    return {.alignment = 16,
            .page_gap = 16 * random.Below(5),
            .descending = random.Below(2) == 0,
            .values_first = random.Below(2) == 0};
  }
};

// A problem's memory on the GPU, or its keys in pinned memory of the host.
class LogitsOnGpu {
 public:
  LogitsOnGpu(const KeyLogitsCase& c, bool keys_on_host, Random& random)
      : problem_(c, random),
        q_(EncodedAs(c.activation, problem_.q)),
        keys_(problem_.kv.memory()),
        logits_(problem_.logits) {
    if (!keys_on_host) return;
    const std::vector<std::byte>& memory = problem_.kv.memory();
    EXPECT_EQ(cudaMallocHost(&pinned_, memory.size()), cudaSuccess);
    std::copy(memory.begin(), memory.end(), static_cast<std::byte*>(pinned_));
    keys_.Write(std::vector<std::byte>(memory.size(), std::byte{0xFF}));
  }
  ~LogitsOnGpu() { EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess); }
  LogitsOnGpu(const LogitsOnGpu&) = delete;
  LogitsOnGpu& operator=(const LogitsOnGpu&) = delete;

  KeyLogitsItem Item() {
    KeyLogitsItem item = problem_.Item();
    item.q = q_.at();
    std::byte* const keys = pinned_ != nullptr ? static_cast<std::byte*>(pinned_) : keys_.at();
    item.keys.pages = problem_.kv.RunIn(keys);
    item.logits = logits_.at();
    return item;
  }
  // Tensor cores round each sum of eight products towards zero, so an element may cost a unit.
  std::string Disagreement() {
    return problem_.Disagreement(1.0, logits_.Read(problem_.logits.size()));
  }

 private:
  KeyLogitsProblem problem_;
  DeviceArray<std::byte> q_, keys_;
  DeviceArray<float> logits_;
  void* pinned_ = nullptr;
};

KeyLogitsCase OnGpu(KeyLogitsCase c) {
  c.activation = c.format.dtype;
  c.row_gap = 8;
  return c;
}

TEST_P(CudaEvictionTest, LogitsAgreeWithTheDefinition) {
  Random random(1);
  for (const int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 10; ++round) {
      const PageFormat format = Format(head_dim, Pick(random, {1, 5, 16, 64}));
      const KeyLogitsCase first = OnGpu(RandomKeyLogits(format, Layout(random), random));
      std::vector<std::unique_ptr<LogitsOnGpu>> problems;
      std::vector<KeyLogitsItem> items;
      // More items than a launch now and then.
      for (int64_t i = round == 0 ? 70 : 1 + random.Below(3); i > 0; --i) {
        KeyLogitsCase c = OnGpu(RandomKeyLogits(format, Layout(random), random));
        c.group = first.group;
        problems.push_back(
            std::make_unique<LogitsOnGpu>(i == 1 ? first : c, random.Below(3) == 0, random));
        items.push_back(problems.back()->Item());
      }
      const KeyLogitsCall call = {format, format.dtype, first.group, first.scale};
      ASSERT_TRUE(CanMakeLogits(call, items));
      ASSERT_EQ(KeyLogits(nullptr, call, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (const auto& problem : problems) ASSERT_EQ(problem->Disagreement(), "");
    }
  }
}

TEST_P(CudaEvictionTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte memory[64] = {};
  const KeyLogitsCall call = {Format(64, 16), GetParam(), 4, 1.0f};
  const KeyLogitsItem item = {
      .q = memory,
      .q_stride = 256,
      .rows = 1,
      .keys = {.pages = {.k = memory, .v = memory, .page_stride = 4096, .count = 16}}};
  EXPECT_TRUE(CanMakeLogits(call, {&item, 1}));
  KeyLogitsCall other = call;
  other.activation = GetParam() == DType::kF16 ? DType::kBF16 : DType::kF16;
  EXPECT_FALSE(CanMakeLogits(other, {&item, 1}));
  other = call;
  other.format.head_dim = 68;
  EXPECT_FALSE(CanMakeLogits(other, {&item, 1}));
  other.format.head_dim = 264;
  EXPECT_FALSE(CanMakeLogits(other, {&item, 1}));
  KeyLogitsItem moved = item;
  moved.keys.pages.k += 4;
  EXPECT_FALSE(CanMakeLogits(call, {&moved, 1}));
  moved = item;
  moved.q = memory + 4;
  EXPECT_FALSE(CanMakeLogits(call, {&moved, 1}));
  GatherSlotsItem gather = {.from = item.keys.pages, .to = item.keys.pages};
  EXPECT_TRUE(CanGather(call.format, {&gather, 1}));
  gather.to.v += 8;
  EXPECT_FALSE(CanGather(call.format, {&gather, 1}));
  gather.to.v = nullptr;
  EXPECT_TRUE(CanGather(call.format, {&gather, 1}));
  gather.from.params = memory;
  EXPECT_FALSE(CanGather(call.format, {&gather, 1}));
  PageFormat codes = call.format;
  EXPECT_FALSE(CanGatherCodes(codes, {&gather, 1}));
  codes.encoding = Encoding::kInt8;
  EXPECT_TRUE(CanGatherCodes(codes, {&gather, 1}));
  gather.from.k += 2;
  EXPECT_FALSE(CanGatherCodes(codes, {&gather, 1}));
}

TEST_P(CudaEvictionTest, SlotsAreGatheredAsTheDefinitionDoes) {
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    const PageFormat format =
        AnyEncoding(Format(Pick(random, {8, 64, 80, 128}), Pick(random, {1, 24, 64})), random);
    const bool codes = format.encoding != Encoding::kNone;
    std::vector<std::unique_ptr<GatherSlotsProblem>> problems;
    std::vector<std::unique_ptr<DeviceArray<std::byte>>> from, to;
    std::vector<std::unique_ptr<DeviceArray<int32_t>>> slots;
    std::vector<GatherSlotsItem> items;
    for (int64_t i = round == 0 ? 60 : 1 + random.Below(3); i > 0; --i) {
      const PageLayout to_layout = Layout(random);
      problems.push_back(
          std::make_unique<GatherSlotsProblem>(format, Layout(random), to_layout, random));
      GatherSlotsProblem& problem = *problems.back();
      from.push_back(std::make_unique<DeviceArray<std::byte>>(problem.from.memory()));
      to.push_back(std::make_unique<DeviceArray<std::byte>>(problem.to.memory()));
      slots.push_back(std::make_unique<DeviceArray<int32_t>>(problem.slots));
      items.push_back(problem.ItemIn(from.back()->at(), to.back()->at(), slots.back()->at()));
    }
    ASSERT_TRUE(codes ? CanGatherCodes(format, items) : CanGather(format, items));
    ASSERT_EQ((codes ? GatherCodes : GatherSlots)(nullptr, format, items), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    for (size_t i = 0; i < problems.size(); ++i) {
      const std::vector<std::byte> got = to[i]->Read(problems[i]->to.memory().size());
      ASSERT_TRUE(got == problems[i]->Expected()) << "item " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaEvictionTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

// A problem's memory on the GPU.
struct WeightsOnGpu {
  WeightsOnGpu(int64_t rows, int64_t columns, Random& random)
      : problem(rows, columns, random.Below(2) == 0, random),
        logits(problem.logits),
        sum(problem.outputs.sum),
        max(problem.outputs.max),
        row_lse(problem.outputs.row_lse) {}

  KeyWeightsItem Item() {
    KeyWeightsItem item = problem.Item();
    item.logits = logits.at();
    item.sum = sum.at();
    if (item.max != nullptr) item.max = max.at();
    item.row_lse = row_lse.at();
    return item;
  }
  KeyWeightsOutputs Outputs() const {
    return {sum.Read(problem.outputs.sum.size()), max.Read(problem.outputs.max.size()),
            row_lse.Read(problem.outputs.row_lse.size())};
  }

  KeyWeightsProblem problem;
  DeviceArray<float> logits, sum, max, row_lse;
};

TEST(CudaKeyWeightsTest, AgreeWithTheDefinitionAndRepeatTheirBits) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no NVIDIA GPU can be used";
  }
  Random random(2);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::unique_ptr<WeightsOnGpu>> problems;
    std::vector<KeyWeightsItem> items;
    for (int64_t i = round == 0 ? 80 : 1 + random.Below(3); i > 0; --i) {
      const int64_t columns = Pick<int64_t>(random, {1, 255, 4096, 4097, 20000});
      problems.push_back(std::make_unique<WeightsOnGpu>(1 + random.Below(70), columns, random));
      items.push_back(problems.back()->Item());
    }
    std::vector<KeyWeightsOutputs> first;
    for (int turn = 0; turn < 2; ++turn) {
      for (const auto& problem : problems) problem->sum.Write(problem->problem.before.sum);
      ASSERT_EQ(KeyWeights(nullptr, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (size_t i = 0; i < problems.size(); ++i) {
        const KeyWeightsOutputs outputs = problems[i]->Outputs();
        ASSERT_EQ(problems[i]->problem.Disagreement(outputs), "");
        const auto columns = static_cast<std::ptrdiff_t>(problems[i]->problem.columns);
        if (turn == 0) {
          first.push_back(outputs);
        } else {
          // Bits: of a ring some slots stay poisoned.
          EXPECT_EQ(std::memcmp(outputs.sum.data(), first[i].sum.data(),
                                static_cast<size_t>(columns) * sizeof(float)),
                    0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway::cuda
