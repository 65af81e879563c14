#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/testing/attention_problem.h"

namespace headway {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

TEST(CpuStates, MergeEqualsTheDefinition) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const int head_dim = Pick(random, {5, 64, 80});
    std::vector<std::vector<float>> part_o;
    std::vector<std::vector<float>> part_lse;
    std::vector<std::vector<float>> extra_o;
    std::vector<std::vector<float>> extra_lse;
    std::vector<std::vector<float>> o;
    std::vector<std::vector<float>> lse;
    std::vector<MergeItem> items;
    for (int64_t item = 0; item < 4; ++item) {
      const int parts = static_cast<int>(random.Below(5));
      const int64_t rows = random.Below(70);
      part_o.emplace_back(static_cast<size_t>(parts * rows * head_dim));
      part_lse.emplace_back(static_cast<size_t>(parts * rows));
      for (float& value : part_o.back()) value = random.Normal();
      for (float& value : part_lse.back()) {
        value = random.Below(3) == 0 ? kNoKeys : 5 * random.Normal();
      }
      extra_o.emplace_back(static_cast<size_t>(rows * head_dim), kPoison);
      extra_lse.emplace_back(static_cast<size_t>(rows), kNoKeys);
      for (int64_t row = 0; row < rows; ++row) {
        if (random.Below(3) == 0) continue;  // what is there without a key is not read
        extra_lse.back()[static_cast<size_t>(row)] = 5 * random.Normal();
        for (int64_t i = 0; i < head_dim; ++i) {
          extra_o.back()[static_cast<size_t>(row * head_dim + i)] = random.Normal();
        }
      }
      const bool extra = item % 2 == 1;
      o.emplace_back(static_cast<size_t>(rows * head_dim), kPoison);
      lse.emplace_back(static_cast<size_t>(rows), kPoison);
      items.push_back({.part_o = part_o.back().data(),
                       .o_part_stride = rows * head_dim,
                       .part_lse = part_lse.back().data(),
                       .lse_part_stride = rows,
                       .parts = parts,
                       .extra_o = extra ? extra_o.back().data() : nullptr,
                       .extra_lse = extra ? extra_lse.back().data() : nullptr,
                       .rows = rows,
                       .o = o.back().data(),
                       .lse = item == 2 ? nullptr : lse.back().data()});
    }
    ref::Merge(head_dim, items);
    const auto expected_o = o;
    const auto expected_lse = lse;
    for (auto& values : o) std::fill(values.begin(), values.end(), kPoison);
    for (auto& values : lse) std::fill(values.begin(), values.end(), kPoison);
    ThreadPool pool(2);
    cpu::Merge(pool, head_dim, items);
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t j = 0; j < o[i].size(); ++j) {
        ASSERT_NEAR(expected_o[i][j], o[i][j], 1e-5) << "seed " << seed << " item " << i;
      }
      for (size_t j = 0; i != 2 && j < lse[i].size(); ++j) {
        if (expected_lse[i][j] == kNoKeys) {
          ASSERT_EQ(kNoKeys, lse[i][j]) << "seed " << seed << " item " << i;
        } else {
          ASSERT_NEAR(expected_lse[i][j], lse[i][j], 1e-5) << "seed " << seed << " item " << i;
        }
      }
    }
  }
}

// A logit that no key owns is a state of its own: with a value of nothing it takes its share of the
// softmax over `logits`.
TEST(CpuStates, ASinkLogitIsAState) {
  Random random(3);
  for (const float sink : {1.5f, -2.0f, 30.0f, kNoKeys}) {
    constexpr int kKeys = 7;
    double logits[kKeys], values[kKeys];
    double sum = 0, sum_with_sink = std::exp(double{sink}), weighed = 0;
    for (int key = 0; key < kKeys; ++key) {
      logits[key] = 3 * random.Normal();
      values[key] = random.Normal();
      sum += std::exp(logits[key]);
      weighed += std::exp(logits[key]) * values[key];
    }
    sum_with_sink += sum;
    // The keys' state, and the sink's behind it.
    const float part_o = static_cast<float>(weighed / sum);
    const float part_lse = static_cast<float>(std::log(sum));
    const float nothing = 0;
    float o = kPoison, lse = kPoison;
    const MergeItem item = {.part_o = &part_o,
                            .part_lse = &part_lse,
                            .parts = 1,
                            .extra_o = &nothing,
                            .extra_lse = &sink,
                            .rows = 1,
                            .o = &o,
                            .lse = &lse};
    ThreadPool pool(1);
    for (const bool defined : {true, false}) {
      o = lse = kPoison;
      defined ? ref::Merge(1, {&item, 1}) : cpu::Merge(pool, 1, {&item, 1});
      // Of numbers below 40, whose exponentials are off by as many units.
      EXPECT_NEAR(o, weighed / sum_with_sink, 40 * 4 * kUnit * (1 + std::abs(part_o)));
      EXPECT_NEAR(lse, std::log(sum_with_sink), 40 * 4 * kUnit);
    }
  }
}

// Pages written by the definition and by every instruction set have the same bytes, NaN, infinities
// and denormals included, and nothing is written but the slots.
TEST(CpuCache, StoresTheSameBytesAsTheDefinition) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int head_dim : {1, 16, 37, 80}) {
      Random random(static_cast<uint64_t>(head_dim));
      const PageFormat format = {dtype, 4, head_dim};
      const int64_t count = 61;
      const int64_t stride = head_dim + 2;
      std::vector<float> k(static_cast<size_t>(count * stride));
      std::vector<float> v(k.size());
      for (size_t i = 0; i < k.size(); ++i) {
        // Any bits at all, and numbers near rounding boundaries.
        k[i] = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
        v[i] = random.Normal() * std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
      }
      PagedKv expected({.format = format, .first_slot = 3, .count = count}, random);
      ref::StoreKv(format,
                   std::vector<StoreKvItem>{{k.data(), v.data(), stride, 1, expected.Run()}});
      for (Isa isa : SupportedIsas()) {
        PagedKv actual({.format = format, .first_slot = 3, .count = count}, random);
        ThreadPool pool(2);
        cpu::StoreKv(pool, isa, format,
                     std::vector<StoreKvItem>{{k.data(), v.data(), stride, 1, actual.Run()}});
        const PageRun run = expected.Run();
        for (int64_t page = 0; page < CeilDiv(run.first_slot + count, 4); ++page) {
          const PageRun to = actual.Run();
          ASSERT_EQ(0, std::memcmp(run.k + page * run.page_stride, to.k + page * to.page_stride,
                                   format.bytes()))
              << DTypeName(dtype) << " " << head_dim << " " << IsaName(isa) << " page " << page;
          ASSERT_EQ(0, std::memcmp(run.v + page * run.page_stride, to.v + page * to.page_stride,
                                   format.bytes()))
              << DTypeName(dtype) << " " << head_dim << " " << IsaName(isa) << " page " << page;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway
