#include "engine/paths/host_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_attention.h"

namespace headway {
namespace {

constexpr int kHeads = 2, kGroup = 2, kDim = 32, kSlots = 16;
constexpr int64_t kWidth = kHeads * kGroup * kDim;
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Sequences, each with ranges of whole pages behind one another and some keys left out.
struct Problem {
  PageFormat format{DType::kBF16, kSlots, kDim};
  std::vector<std::vector<KeyRun>> ranges;
  std::vector<int64_t> positions;
  DType activation;
  std::vector<float> q;  // numbers that an activation can be
  std::vector<std::byte> memory;

  explicit Problem(Random& random, int64_t segment, std::vector<int64_t> lengths)
      : positions(std::move(lengths)),
        activation(static_cast<DType>(random.Below(3))),
        q(positions.size() * kWidth) {
    const auto page = static_cast<int64_t>(format.bytes());
    int64_t keys = 0;
    for (const int64_t length : positions) keys += length;
    memory.resize(static_cast<size_t>(2 * kHeads * keys * kDim * 2));
    for (int64_t i = 0; i < 2 * kHeads * keys * kDim; ++i) {
      StoreFloat(memory.data(), i, DType::kBF16, random.Normal());
    }
    std::byte* at = memory.data();
    for (const int64_t length : positions) {
      ranges.emplace_back();
      for (int64_t first = 0; first < length; first += segment) {
        const int64_t pages = (std::min(segment, length - first)) / kSlots;
        const int64_t skipped = random.Below(pages + 1);
        const int64_t plane = kHeads * pages * page;
        KeyRun keys_of;
        keys_of.position = first + skipped * kSlots;
        keys_of.pages = {.k = at + skipped * page,
                         .v = at + plane + skipped * page,
                         .page_stride = page,
                         .head_stride = pages * page,
                         .count = (pages - skipped) * kSlots};
        ranges.back().push_back(keys_of);
        at += 2 * plane;
      }
    }
    std::byte rounded[sizeof(float)];
    for (float& value : q) {
      StoreFloat(rounded, 0, activation, random.Normal());
      value = LoadAsFloat(rounded, 0, activation);
    }
  }
};

std::vector<float> Attend(const Problem& problem, int64_t segment, int threads, int64_t window) {
  ThreadPool pool(threads);
  Budget budget("test", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  HostAttentionLimits limits;
  limits.shape.layers = 1;
  limits.shape.query_heads = kHeads * kGroup;
  limits.shape.kv_heads = kHeads;
  limits.shape.head_dim = kDim;
  limits.format = problem.format;
  limits.entries = static_cast<int64_t>(problem.positions.size());
  for (const int64_t length : problem.positions) limits.length = std::max(limits.length, length);
  ++limits.length;
  limits.segment_tokens = segment;
  limits.activation = problem.activation;
  Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(limits, *NewCpuKernels(&pool, nullptr, "auto"), *device, budget);
  EXPECT_TRUE(made.ok());
  HostAttention& host = **made;
  host.Begin();
  for (size_t i = 0; i < problem.q.size(); ++i) {
    StoreFloat(host.Queries(0), static_cast<int64_t>(i), problem.activation, problem.q[i]);
  }
  for (int entry = 0; entry < limits.entries; ++entry) {
    host.Add({entry, problem.positions[static_cast<size_t>(entry)]}, {0, kHeads, 0},
             problem.ranges[static_cast<size_t>(entry)]);
  }
  EXPECT_TRUE(host.Work(window)().ok());
  std::vector<float> results;
  for (int entry = 0; entry < limits.entries; ++entry) {
    results.insert(results.end(), host.o(entry), host.o(entry) + kWidth);
    results.insert(results.end(), host.lse(entry), host.lse(entry) + kHeads * kGroup);
  }
  return results;
}

// The same, range after range.
std::vector<float> Expected(const Problem& problem, int64_t window) {
  std::vector<float> results;
  AttentionParams params;
  params.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  params.window = window;
  for (size_t entry = 0; entry < problem.positions.size(); ++entry) {
    std::vector<float> o(kWidth, kPoison);
    std::vector<float> lse(kHeads * kGroup, kPoison);
    AttentionItem item;
    item.q = problem.q.data() + entry * kWidth;
    item.q_stride = kWidth;
    item.tokens = 1;
    item.q_position = problem.positions[entry];
    item.heads = kHeads;
    item.o = o.data();
    item.lse = lse.data();
    for (const KeyRun& keys : problem.ranges[entry]) {
      item.keys = keys;
      ref::Attend(problem.format, kGroup, params, {&item, 1});
      item.merge = true;
    }
    results.insert(results.end(), o.begin(), o.end());
    results.insert(results.end(), lse.begin(), lse.end());
  }
  return results;
}

TEST(HostAttention, HeadsThatItsKernelsDoNotAttendToAreRefused) {
  ThreadPool pool(1);
  Budget budget("test", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  HostAttentionLimits limits;
  limits.shape = {1, 20, 4, 2, 5, 80, 96, DType::kBF16};
  limits.format = {DType::kBF16, kSlots, 5, Encoding::kInt8};
  limits.entries = limits.length = limits.segment_tokens = kSlots;
  const Status refused =
      HostAttention::Create(limits, *NewCpuKernels(&pool, nullptr, "auto"), *device, budget)
          .status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.message(),
            "host_share: the host's cores do not attend to heads of 5 elements in this cache; "
            "turn it off");
  EXPECT_EQ(budget.used(), 0);
  limits.format.encoding = Encoding::kNone;
  EXPECT_TRUE(
      HostAttention::Create(limits, *NewCpuKernels(&pool, nullptr, "auto"), *device, budget).ok());
}

// Whatever the lengths that decide how keys are cut, and the window: pieces that no core needs,
// long and short ones, ranges that end in between, sequences of one piece and of none.
TEST(HostAttentionCuts, AgreeWithTheDefinition) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const int64_t segment = kSlots * (1 + random.Below(200));
    const int64_t longest = seed == 1 ? 40000 : 6000;
    const Problem problem(
        random, segment,
        {kSlots * (1 + random.Below(longest / kSlots)), kSlots * (1 + random.Below(32)),
         kSlots * (1 + random.Below(300)), kSlots});
    const int64_t window = random.Below(3) == 0 ? 1000 : 0;
    const std::string what = "seed " + std::to_string(seed);
    const std::vector<float> expected = Expected(problem, window);
    const std::vector<float> actual = Attend(problem, segment, 1, window);
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      if (std::isinf(expected[i])) {
        ASSERT_EQ(expected[i], actual[i]) << what << " at " << i;
      } else {
        // Weights are off by 2^-16 of themselves, sums by a unit a key of either side.
        ASSERT_NEAR(expected[i], actual[i], 5 * 0x1p-16 + 40000 * 0x1p-23) << what << " at " << i;
      }
    }
    for (const int threads : {2, 5}) {
      const std::vector<float> again = Attend(problem, segment, threads, window);
      ASSERT_EQ(0, std::memcmp(actual.data(), again.data(), actual.size() * sizeof(float))) << what;
    }
  }
}

// A work whose stream waited for it tells what comes behind it; another one, that others were
// waited for, too.
TEST(HostAttentionPauses, CountBehindWorksThatTheStreamAwaited) {
  ThreadPool pool(1);
  Budget budget("test", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
  HostAttentionLimits limits;
  limits.shape.layers = 3;
  limits.shape.query_heads = limits.shape.kv_heads = 1;
  limits.shape.head_dim = kDim;
  limits.format = {DType::kBF16, kSlots, kDim};
  limits.entries = limits.length = 1;
  limits.segment_tokens = kSlots;
  Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(limits, *NewCpuKernels(&pool, nullptr, "auto"), *device, budget);
  ASSERT_TRUE(made.ok());
  HostAttention& host = **made;
  const auto run = [&](bool awaited) {
    host.Begin();
    std::fill_n(reinterpret_cast<float*>(host.Queries(0)), kDim, 0.0f);
    host.Add({0, 0}, {0, 1, 0}, {});
    const std::function<Status()> work = host.Work(0);
    if (awaited) host.StreamWaits(*stream);
    ASSERT_TRUE(work().ok());
    if (!awaited) host.StreamWaits(*stream);
  };
  EXPECT_LT(host.PauseSeconds(), 0.0);
  for (const bool awaited : {false, true, false}) run(awaited);
  const double pauses = host.PauseSeconds();
  EXPECT_GT(pauses, 0.0);  // three times that behind the second work
  EXPECT_LT(pauses, 1.0);
  host.ForgetPauses();
  for (const bool awaited : {false, false, true}) run(awaited);
  EXPECT_LT(host.PauseSeconds(), 0.0);
}

}  // namespace
}  // namespace headway
