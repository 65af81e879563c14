// The host's cores beside a plain reading of the bound: which heads read all of their keys.
#include "engine/paths/unread_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "engine/paths/host_attention.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/selection_bound.h"
#include "kv/policy/selection.h"

namespace headway {
namespace {

constexpr int kHeads = 2, kGroup = 2, kDim = 32, kSlots = 16;
constexpr int kQueryHeads = kHeads * kGroup;

// A decode whose heads read the first `read` tokens and leave out the others before a window, of
// which cores see kNear keys.
constexpr int64_t kNear = 37;
struct Problem {
  int64_t tokens, read;
  int64_t rows;  // of a head in memory
  PageFormat format{DType::kF32, kSlots, kDim};
  std::vector<float> memory;  // [K, V][heads, tokens, dim]
  std::vector<float> q;       // [query_heads, dim]

  // Keys that are read are nearer to the queries, some more than others.
  Problem(Random& random, int64_t of, int64_t that)
      : tokens(of), read(that), rows(of + 3 * kSlots) {
    memory.resize(static_cast<size_t>(2 * kHeads * rows * kDim));
    q.resize(size_t{kQueryHeads * kDim});
    for (float& x : memory) x = random.Normal();
    for (float& x : q) x = random.Normal();
    for (int head = 0; head < kHeads; ++head) {
      const float near = 0.15f * static_cast<float>(random.Below(8));
      for (int64_t key = 0; key < read; ++key) AddTo(head, key, near);
    }
  }
  float* Key(int head, int64_t key) { return memory.data() + (head * rows + key) * kDim; }
  // A key is nearer to all queries of its head.
  void AddTo(int head, int64_t key, float near) {
    for (int member = 0; member < kGroup; ++member) {
      for (int i = 0; i < kDim; ++i) {
        Key(head, key)[i] += near * q[static_cast<size_t>((head * kGroup + member) * kDim + i)];
      }
    }
  }
  KeyRun Run(int64_t count) {
    KeyRun run;
    run.pages.k = reinterpret_cast<std::byte*>(memory.data());
    run.pages.v = run.pages.k + kHeads * rows * kDim * int64_t{sizeof(float)};
    run.pages.page_stride = static_cast<int64_t>(format.bytes());
    run.pages.head_stride = rows * kDim * int64_t{sizeof(float)};
    run.pages.count = count;
    return run;
  }
  UnreadKeys Unread(int head, uint64_t seed) {
    UnreadKeys unread;
    unread.blocks = tokens / kSlots;
    for (int i = 0; i < selection::SamplesOf(unread.blocks); ++i) {
      const selection::SampledBlock sampled = selection::SampleOf(seed, 0, i, unread.blocks);
      const int64_t first = sampled.block * kSlots;
      if (first + kSlots <= read) continue;
      const KeyRun keys = From(head, first, kSlots);
      const uint32_t there = first < read ? (uint32_t{1} << (read - first)) - 1 : 0;
      unread.sample.push_back({keys, sampled.stratum, 0xFFFFu & ~there});
    }
    // In two pieces.
    unread.near = {From(head, tokens, kSlots), From(head, tokens + kSlots, kNear - kSlots)};
    return unread;
  }
  KeyRun From(int head, int64_t first, int64_t count) {
    KeyRun keys = Run(count);
    keys.position = first;
    const int64_t at = (head * rows + first) * kDim * int64_t{sizeof(float)};
    keys.pages.k += at;
    keys.pages.v += at;
    return keys;
  }

  double Mass(int query_head, int64_t key) {
    double logit = 0.0;
    const int head = query_head / kGroup;
    for (int i = 0; i < kDim; ++i) {
      logit += double{q[static_cast<size_t>(query_head * kDim + i)]} * double{Key(head, key)[i]};
    }
    return std::exp(logit / std::sqrt(double{kDim}));
  }
  // By how much of its mass the bound holds for a query head.
  double Room(int query_head, const MassBound& bound, uint64_t seed) {
    double core = 0.0, sum = 0.0, squares = 0.0;
    for (int64_t key = 0; key < read; ++key) core += Mass(query_head, key);
    for (int64_t key = tokens; key < tokens + kNear; ++key) core += Mass(query_head, key);
    const int64_t blocks = tokens / kSlots;
    const int samples = static_cast<int>(std::min<int64_t>(blocks, 64));
    for (int i = 0; i < samples; ++i) {
      const selection::SampledBlock sampled = selection::SampleOf(seed, 0, i, blocks);
      double mass = 0.0;
      for (int64_t key = sampled.block * kSlots; key < (sampled.block + 1) * kSlots; ++key) {
        if (key >= read) mass += Mass(query_head, key);
      }
      mass *= (1.0 - bound.epsilon) * static_cast<double>(sampled.stratum);
      sum += mass;
      squares += mass * mass;
    }
    const double variance =
        blocks > samples ? (squares - sum * sum / samples) * samples / (samples - 1.0) : 0.0;
    return (bound.epsilon * core - sum - bound.deviations * std::sqrt(std::max(0.0, variance))) /
           (core + sum);
  }
  // Attention to the first `count` keys is `o`.
  void ExpectAttends(int query_head, int64_t count, const float* o) {
    std::vector<double> expected(kDim);
    double sum = 0.0;
    const float* const v = memory.data() + (kHeads + query_head / kGroup) * rows * kDim;
    for (int64_t key = 0; key < count; ++key) {
      const double mass = Mass(query_head, key);
      sum += mass;
      for (size_t i = 0; i < kDim; ++i) {
        expected[i] += mass * double{v[key * kDim + static_cast<int64_t>(i)]};
      }
    }
    for (size_t i = 0; i < kDim; ++i) {
      ASSERT_NEAR(double{o[i]}, expected[i] / sum, 2e-5) << query_head << " of " << count;
    }
  }
};

// What cores put out, of [query_heads, dim], and how many heads read all.
struct Outcome {
  std::vector<float> o;
  int64_t heads = 0, read_all = 0;
};

Outcome Attend(Problem& problem, const MassBound& bound, uint64_t seed, int threads) {
  ThreadPool pool(threads);
  Budget budget("test", kUnlimited);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  HostAttentionLimits limits;
  limits.shape.layers = 1;
  limits.shape.query_heads = kQueryHeads;
  limits.shape.kv_heads = kHeads;
  limits.shape.head_dim = kDim;
  limits.format = problem.format;
  limits.entries = 1;
  limits.length = limits.segment_tokens = problem.tokens + kNear + 1;
  limits.activation = DType::kF32;
  limits.bound = bound;
  limits.near = kNear;
  Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(limits, *NewCpuKernels(&pool, nullptr, "auto"), *device, budget);
  EXPECT_TRUE(made.ok());
  HostAttention& host = **made;
  host.Begin();
  std::copy(problem.q.begin(), problem.q.end(), reinterpret_cast<float*>(host.Queries(0)));
  const KeyRun read = problem.Run(problem.read), all = problem.Run(problem.tokens);
  for (int head = 0; head < kHeads; ++head) {
    host.Add({0, problem.read}, {head, 1, head}, {&read, 1});
    if (bound.epsilon == 0.0) continue;
    host.AddAll({0, problem.tokens + kNear}, {head, 1, head}, {&all, 1},
                problem.Unread(head, seed));
  }
  EXPECT_TRUE(host.Work(0)().ok());
  Outcome outcome;
  outcome.o.assign(host.o(0), host.o(0) + kQueryHeads * kDim);
  outcome.heads = host.bounded().heads;
  outcome.read_all = host.bounded().read_all;
  return outcome;
}

TEST(UnreadMass, HeadsReadAllWhereAPlainReadingSaysSo) {
  Random random(3);
  int decided = 0, all = 0, read_all = 0;
  for (const int64_t blocks : {9, 64, 65, 150}) {
    for (const double epsilon : {0.05, 0.2, 0.5}) {
      for (int turn = 0; turn < 12; ++turn) {
        const MassBound bound = {.epsilon = epsilon, .deviations = kv::DeviationsOf(0.05)};
        const auto seed = static_cast<uint64_t>(turn);
        // The last block that is read is read in part.
        Problem problem(random, blocks * kSlots, blocks * kSlots / 3 + 5);
        const Outcome outcome = Attend(problem, bound, seed, 1);
        ASSERT_EQ(outcome.heads, kHeads);
        int64_t expected = 0, close = 0;
        for (int head = 0; head < kHeads; ++head) {
          double least = 1e30;
          for (int member = 0; member < kGroup; ++member) {
            least = std::min(least, problem.Room(head * kGroup + member, bound, seed));
          }
          ++all;
          if (std::abs(least) < 1e-4) {
            ++close;
            continue;
          }
          ++decided;
          expected += least < 0.0 ? 1 : 0;
          for (int member = 0; member < kGroup; ++member) {
            const int query_head = head * kGroup + member;
            problem.ExpectAttends(query_head, least < 0.0 ? problem.tokens : problem.read,
                                  outcome.o.data() + query_head * kDim);
          }
          ASSERT_FALSE(HasFatalFailure()) << blocks << " " << epsilon << " " << least;
        }
        EXPECT_GE(outcome.read_all, expected);
        EXPECT_LE(outcome.read_all, expected + close);
        EXPECT_EQ(Attend(problem, bound, seed, 3).o, outcome.o);
        read_all += static_cast<int>(expected);
      }
    }
  }
  EXPECT_GT(decided, all * 9 / 10);
  EXPECT_GT(read_all, decided / 6);
  EXPECT_LT(read_all, decided * 5 / 6);
}

// Where the bound holds nothing changes, to the bit.
TEST(UnreadMass, WhoHoldsChangesNoBit) {
  Random random(4);
  for (const int64_t read : {16, 100, 1600}) {
    Problem problem(random, 1600, read);
    const Outcome outcome = Attend(problem, {.epsilon = 1.0, .deviations = 2.0}, 1, 2);
    EXPECT_EQ(outcome.read_all, 0);
    EXPECT_EQ(outcome.o, Attend(problem, {}, 1, 2).o);
  }
}

// One key that nobody reads has most of the attention of one query head of a group.
TEST(UnreadMass, ANeedleIsRead) {
  Random random(6);
  Problem problem(random, 40 * kSlots, 10 * kSlots);
  for (int64_t key = 0; key < problem.read; ++key) problem.AddTo(0, key, 1.0f);
  for (int64_t key = 0; key < problem.read; ++key) problem.AddTo(1, key, 1.0f);
  const MassBound bound = {.epsilon = 0.2, .deviations = kv::DeviationsOf(0.05)};
  EXPECT_EQ(Attend(problem, bound, 1, 1).read_all, 0);
  float* const needle = problem.Key(1, 500);
  for (int i = 0; i < kDim; ++i) needle[i] = 4.0f * problem.q[static_cast<size_t>(3 * kDim + i)];
  const Outcome outcome = Attend(problem, bound, 1, 1);
  EXPECT_EQ(outcome.read_all, 1);
  problem.ExpectAttends(0, problem.read, outcome.o.data());
  problem.ExpectAttends(2, problem.tokens, outcome.o.data() + 2 * kDim);
  problem.ExpectAttends(3, problem.tokens, outcome.o.data() + 3 * kDim);
}

// Heads that read nothing yet, whose queries come down for the sample alone.
TEST(UnreadMass, WhoReadsNothingReadsAll) {
  Random random(7);
  Problem problem(random, 200 * kSlots, 0);
  const Outcome outcome = Attend(problem, {.epsilon = 0.9, .deviations = 1.0}, 1, 1);
  EXPECT_EQ(outcome.read_all, kHeads);
  for (int i = 0; i < kQueryHeads; ++i) {
    problem.ExpectAttends(i, problem.tokens, outcome.o.data() + i * kDim);
  }
}

}  // namespace
}  // namespace headway
