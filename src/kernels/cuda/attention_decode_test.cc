#include "kernels/cuda/attention_decode.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_decode_testing.h"
#include "kernels/cuda/eviction.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {
namespace {

class AttentionDecodeTest : public testing::TestWithParam<DType> {
 protected:
  PageFormat Format(int head_dim, int slots) const {
    return {.dtype = GetParam(), .page_slots = slots, .head_dim = head_dim};
  }
  // Of `count` items with up to `tokens` tokens, each changed by change(its number, it, random).
  template <typename Change>
  void ExpectItemsDecoded(uint64_t seed, int count, int tokens, const Change& change) const {
    Random random(seed);
    std::vector<std::unique_ptr<AttentionProblem>> problems;
    for (int i = 0; i < count; ++i) {
      AttentionCase c = RandomItem(Format(64, 16), 4, {.scale = 0.125f}, tokens, random);
      change(i, c, random);
      problems.push_back(std::make_unique<AttentionProblem>(c, random));
    }
    ExpectDecoded(problems);
  }
};

TEST_P(AttentionDecodeTest, AgreesWithTheDefinition) {
  Random random(1);
  for (int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      // More than a block takes at a time now and then.
      const auto group =
          static_cast<int>(round == 5 ? 65 + random.Below(64) : 1 + random.Below(16));
      const PageFormat format = Format(head_dim, Pick(random, {1, 5, 16, 64}));
      std::vector<std::unique_ptr<AttentionProblem>> problems;
      for (int64_t items = 1 + random.Below(3); items > 0; --items) {
        problems.push_back(std::make_unique<AttentionProblem>(
            RandomItem(format, group, params, std::max(1, 64 / group), random), random));
      }
      ExpectDecoded(problems);
    }
  }
}

TEST_P(AttentionDecodeTest, TakesMoreItemsThanALaunch) {
  for (const bool positions : {true, false}) {
    ExpectItemsDecoded(2, 70, 16, [&](int, AttentionCase& c, Random& random) {
      c.tokens = random.Below(3);  // sometimes nothing to do
      c.positions = c.positions && positions;
    });
  }
}

// As the heads of a batch that keep tokens of their own.
TEST_P(AttentionDecodeTest, TakesMoreItemsThanALaunchOfMany) {
  ExpectItemsDecoded(4, 800, 1, [](int, AttentionCase& c, Random& random) {
    c.tokens = random.Below(4) == 0 ? 2 : 1;  // some with a draft
    c.heads = 1;
    c.count = random.Below(150);
    c.positions = c.merge = false;
    c.split =
        Pick<int64_t>(random, {0, 64, 3});  // some of so many parts that an upload has no room
  });
}

// Parts of one item that an upload has no room for.
TEST_P(AttentionDecodeTest, TakesAnItemOfManyPartsAmongMany) {
  ExpectItemsDecoded(5, 30, 1, [](int i, AttentionCase& c, Random&) {
    c.tokens = 1;
    c.positions = c.merge = false;
    if (i != 17) return;
    c.heads = 3;
    c.count = 700;
    c.split = 1;
  });
}

// Keys of earlier steps are read before the kernels ahead are done: not so what these gather.
TEST_P(AttentionDecodeTest, SeesWhatWasJustGathered) {
  Random random(9);
  AttentionCase c;
  c.format = Format(128, 16);
  c.activation = GetParam();
  c.group = 4;
  c.heads = 8;
  c.tokens = 1;
  c.count = 4096;
  c.q_position = c.count;
  c.split = 256;
  c.layout.alignment = 16;
  AttentionProblem problem(c, random);
  const std::vector<std::byte>& memory = problem.kv.memory();
  const std::vector<std::byte> nothing(memory.size());
  OnGpu on_gpu(problem);
  const DeviceArray<std::byte> source(memory);
  DeviceArray<std::byte> target(memory);
  const PageRun to = problem.kv.RunIn(target.at());
  AttentionItem item = on_gpu.Item();
  item.keys.pages = to;
  const PageRun from = problem.kv.RunIn(source.at());
  std::vector<GatherSlotsItem> gathers;
  for (int head = 0; head < c.heads; ++head) {
    GatherSlotsItem& gather = gathers.emplace_back();
    gather.from = from;
    gather.from.k += head * from.head_stride;
    gather.from.v += head * from.head_stride;
    gather.to = to;
    gather.to.k += head * to.head_stride;
    gather.to.v += head * to.head_stride;
    gather.count = c.count;
  }
  const auto attend = [&] {
    EXPECT_EQ(AttendDecode({}, c.format, c.activation, c.group, c.params, {&item, 1}), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    return on_gpu.Outputs();
  };
  const AttentionOutputs expected = attend();
  for (int round = 0; round < 30 && !HasFailure(); ++round) {
    target.Write(nothing);
    ASSERT_EQ(GatherSlots(nullptr, c.format, gathers), cudaSuccess);
    const AttentionOutputs got = attend();
    EXPECT_TRUE(SameBytes(got.o, expected.o) && SameBytes(got.lse, expected.lse))
        << "round " << round;
  }
}

TEST_P(AttentionDecodeTest, PassesOnNan) {
  Random random(3);
  for (int64_t poisoned : {0, 37, 99}) {
    AttentionCase c;
    c.format = Format(128, 16);
    c.activation = GetParam();
    c.group = 4;
    c.params = {.scale = 0.1f};
    c.heads = 2;
    c.count = 100;
    c.q_position = 99;
    c.split = 50;
    c.layout.alignment = 16;
    std::vector<std::unique_ptr<AttentionProblem>> problems;
    problems.push_back(std::make_unique<AttentionProblem>(c, random));
    problems.back()->kv.SetK(1, poisoned, 1, kPoison);
    ExpectDecoded(problems);
  }
}

TEST_P(AttentionDecodeTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte page[64] = {};
  const PageFormat format = {.dtype = GetParam(), .page_slots = 16, .head_dim = 64};
  const AttentionParams params;
  const AttentionItem item = {
      .tokens = 16,
      .keys = {.pages = {.k = page, .v = page, .page_stride = 4096, .count = 16}},
      .transform = {}};
  const DType other = GetParam() == DType::kF16 ? DType::kBF16 : DType::kF16;
  EXPECT_TRUE(CanAttendDecode(format, GetParam(), 4, params, item));
  EXPECT_FALSE(CanAttendDecode(format, other, 4, params, item));
  PageFormat odd = format;
  odd.head_dim = 68;
  EXPECT_FALSE(CanAttendDecode(odd, GetParam(), 4, params, item));
  odd.head_dim = 264;
  EXPECT_FALSE(CanAttendDecode(odd, GetParam(), 4, params, item));
  float number = 0;
  AttentionItem with = item;
  with.key_mass = &number;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  with = item;
  with.transform.inv_freq = &number;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  with = item;
  with.keys.pages.k += 2;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  EXPECT_EQ(AttendDecode({}, format, GetParam(), 4, params, {&with, 1}), cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionDecodeTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
