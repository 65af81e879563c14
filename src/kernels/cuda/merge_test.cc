#include "kernels/cuda/merge.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/testing/attention_problem.h"

namespace headway::cuda {
namespace {

// Floats in pinned memory of the host, which kernels read over the bus.
class PinnedFloats {
 public:
  explicit PinnedFloats(std::span<const float> values) {
    EXPECT_EQ(cudaHostAlloc(&data_, values.size_bytes(), cudaHostAllocDefault), cudaSuccess);
    std::copy(values.begin(), values.end(), data());
  }
  ~PinnedFloats() { cudaFreeHost(data_); }
  PinnedFloats(const PinnedFloats&) = delete;
  PinnedFloats& operator=(const PinnedFloats&) = delete;
  float* data() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

// The logarithm of the sum of a query that has seen no key.
constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

// A state of one query in f64.
struct State {
  std::vector<double> o;
  double lse = kEmptyLse;
};

void MergeInto(State& state, const State& other) {
  if (other.lse == kEmptyLse) return;
  if (state.lse == kEmptyLse) {
    state = other;
    return;
  }
  const double max = std::max(state.lse, other.lse);
  const double mine = std::exp(state.lse - max);
  const double theirs = std::exp(other.lse - max);
  for (size_t i = 0; i < state.o.size(); ++i) {
    state.o[i] = (mine * state.o[i] + theirs * other.o[i]) / (mine + theirs);
  }
  state.lse = max + std::log(mine + theirs);
}

class MergeTest : public testing::TestWithParam<DType> {};

void ExpectState(const State& expected, const float* lse, const std::byte* o, DType dtype,
                 double error) {
  if (lse != nullptr) {
    if (expected.lse == kEmptyLse) {
      ASSERT_EQ(*lse, kEmptyLse);
    } else {
      ASSERT_NEAR(*lse, expected.lse, error + 8 * kUnit * std::abs(expected.lse));
    }
  }
  for (size_t i = 0; i < expected.o.size(); ++i) {
    ASSERT_NEAR(LoadAsFloat(o, static_cast<int64_t>(i), dtype), expected.o[i],
                8 * error + UnitOf(dtype) * std::abs(expected.o[i]) + 0x1p-24);
  }
}

TEST_P(MergeTest, MergesParts) {
  Random random(4);
  const DType dtype = GetParam();
  for (int head_dim : {8, 64, 80, 128, 136, 256, 300}) {
    struct Memory {
      int parts;
      int64_t rows, o_part_stride, lse_part_stride;
      std::vector<float> o, lse;
      std::unique_ptr<DeviceArray<float>> part_o, part_lse, result_lse;
      std::unique_ptr<DeviceArray<std::byte>> result;
      std::unique_ptr<PinnedFloats> extra_o, extra_lse;  // the last part, or null
    };
    std::vector<Memory> all;
    std::vector<MergeItem> items;
    for (int i = 0; i < 60; ++i) {
      Memory m;
      m.parts = Pick<int>(random, {1, 2, 8, 9, 40, i == 0 ? 3000 : 5});
      m.rows = i == 7 ? 0 : 1 + random.Below(i == 0 ? 3 : 20);
      m.o_part_stride = m.rows * head_dim + 3;
      m.lse_part_stride = m.rows + 1;
      m.o.assign(static_cast<size_t>(m.parts * m.o_part_stride), kPoison);
      m.lse.assign(static_cast<size_t>(m.parts * m.lse_part_stride), kPoison);
      const int64_t empty_in = Pick<int64_t>(random, {1, 2, 1000});
      for (int64_t part = 0; part < m.parts; ++part) {
        for (int64_t row = 0; row < m.rows; ++row) {
          const bool none = random.Below(empty_in) == 0;
          m.lse[static_cast<size_t>(part * m.lse_part_stride + row)] =
              none ? static_cast<float>(kEmptyLse) : 8 * random.Normal();
          for (int64_t e = 0; e < head_dim && !none; ++e) {
            m.o[static_cast<size_t>(part * m.o_part_stride + row * head_dim + e)] = random.Normal();
          }
        }
      }
      m.part_o = std::make_unique<DeviceArray<float>>(m.o);
      m.part_lse = std::make_unique<DeviceArray<float>>(m.lse);
      const auto rows = static_cast<size_t>(m.rows);
      m.result = std::make_unique<DeviceArray<std::byte>>(
          EncodedAs(dtype, std::vector<float>(rows * static_cast<size_t>(head_dim), kPoison)));
      m.result_lse = std::make_unique<DeviceArray<float>>(std::vector<float>(rows, kPoison));
      items.push_back({.part_o = m.part_o->at(),
                       .o_part_stride = m.o_part_stride,
                       .part_lse = m.part_lse->at(),
                       .lse_part_stride = m.lse_part_stride,
                       .parts = m.parts,
                       .rows = m.rows,
                       .o = m.result->at(),
                       .lse = i % 3 == 1 ? nullptr : m.result_lse->at()});
      if (i % 2 == 1 && m.rows > 0) {
        const auto last = static_cast<size_t>(m.parts - 1);
        m.extra_o = std::make_unique<PinnedFloats>(
            std::span(m.o).subspan(last * static_cast<size_t>(m.o_part_stride)));
        m.extra_lse = std::make_unique<PinnedFloats>(
            std::span(m.lse).subspan(last * static_cast<size_t>(m.lse_part_stride)));
        items.back().parts = m.parts - 1;
        items.back().extra_o = m.extra_o->data();
        items.back().extra_lse = m.extra_lse->data();
      }
      all.push_back(std::move(m));
    }
    ASSERT_EQ(Merge(nullptr, dtype, head_dim, items), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    for (size_t i = 0; i < all.size(); ++i) {
      const Memory& m = all[i];
      SCOPED_TRACE("dim " + std::to_string(head_dim) + " item " + std::to_string(i) + " parts " +
                   std::to_string(m.parts));
      const auto rows = static_cast<size_t>(m.rows);
      const std::vector<std::byte> o =
          m.result->Read(rows * static_cast<size_t>(head_dim) * DTypeBytes(dtype));
      const std::vector<float> lse = m.result_lse->Read(rows);
      for (int64_t row = 0; row < m.rows; ++row) {
        State state{std::vector<double>(static_cast<size_t>(head_dim)), kEmptyLse};
        for (int64_t part = 0; part < m.parts; ++part) {
          const float* from = m.o.data() + part * m.o_part_stride + row * head_dim;
          MergeInto(state, {{from, from + head_dim},
                            m.lse[static_cast<size_t>(part * m.lse_part_stride + row)]});
        }
        const size_t at =
            static_cast<size_t>(row) * static_cast<size_t>(head_dim) * DTypeBytes(dtype);
        // The logarithms are up to 40 apart, and rounded before they are exponents.
        ASSERT_NO_FATAL_FAILURE(
            ExpectState(state, items[i].lse == nullptr ? nullptr : &lse[static_cast<size_t>(row)],
                        o.data() + at, dtype, (m.parts + 128.0) * kUnit));
        if (items[i].lse == nullptr) {
          ASSERT_TRUE(std::isnan(lse[static_cast<size_t>(row)]));
        }
      }
    }
  }
}

// As the heads of a batch of many sequences: their states lie in one memory.
TEST_P(MergeTest, MergesMoreItemsThanALaunchOfMany) {
  constexpr int kItems = 1200;
  constexpr int kDim = 64;
  constexpr int kParts = 20;
  Random random(6);
  const DType dtype = GetParam();
  std::vector<int64_t> first_row = {0};
  for (int i = 0; i < kItems; ++i) first_row.push_back(first_row.back() + 1 + random.Below(3));
  const int64_t rows = first_row.back();
  std::vector<float> o(static_cast<size_t>(kParts * rows * kDim));
  std::vector<float> lse(static_cast<size_t>(kParts * rows));
  for (float& value : o) value = random.Normal();
  for (float& value : lse) value = 8 * random.Normal();
  const DeviceArray<float> part_o(o);
  const DeviceArray<float> part_lse(lse);
  const DeviceArray<std::byte> result(
      EncodedAs(dtype, std::vector<float>(static_cast<size_t>(rows * kDim), kPoison)));
  const DeviceArray<float> result_lse(std::vector<float>(static_cast<size_t>(rows), kPoison));
  std::vector<MergeItem> items;
  for (int i = 0; i < kItems; ++i) {
    const int64_t row = first_row[static_cast<size_t>(i)];
    // Some have the states of every other part.
    const int step = i % 300 == 17 ? 2 : 1;
    items.push_back({.part_o = part_o.at() + row * kDim,
                     .o_part_stride = step * rows * kDim,
                     .part_lse = part_lse.at() + row,
                     .lse_part_stride = step * rows,
                     .parts = 1 + static_cast<int>(random.Below(kParts / step)),
                     .rows = first_row[static_cast<size_t>(i) + 1] - row,
                     .o = result.at() + row * kDim * static_cast<int64_t>(DTypeBytes(dtype)),
                     .lse = result_lse.at() + row});
  }
  ASSERT_EQ(Merge(nullptr, dtype, kDim, items), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  const std::vector<std::byte> got =
      result.Read(static_cast<size_t>(rows) * kDim * DTypeBytes(dtype));
  const std::vector<float> got_lse = result_lse.Read(static_cast<size_t>(rows));
  for (int i = 0; i < kItems; ++i) {
    const MergeItem& item = items[static_cast<size_t>(i)];
    SCOPED_TRACE("item " + std::to_string(i) + " parts " + std::to_string(item.parts));
    for (int64_t row = first_row[static_cast<size_t>(i)];
         row < first_row[static_cast<size_t>(i) + 1]; ++row) {
      State state{std::vector<double>(kDim), kEmptyLse};
      for (int part = 0; part < item.parts; ++part) {
        const float* from = o.data() + part * item.o_part_stride + row * kDim;
        MergeInto(state, {{from, from + kDim},
                          lse[static_cast<size_t>(part * item.lse_part_stride + row)]});
      }
      ASSERT_NO_FATAL_FAILURE(
          ExpectState(state, &got_lse[static_cast<size_t>(row)],
                      got.data() + static_cast<size_t>(row) * kDim * DTypeBytes(dtype), dtype,
                      (item.parts + 128.0) * kUnit));
    }
  }
}

TEST_P(MergeTest, PassesOnNan) {
  for (int parts : {1, 3, 20}) {
    for (float others : {0.0f, static_cast<float>(kEmptyLse)}) {
      std::vector<float> lse(static_cast<size_t>(parts), others);
      lse.back() = kPoison;
      const DeviceArray<float> part_lse(lse);
      const DeviceArray<float> part_o(std::vector<float>(static_cast<size_t>(parts) * 8, 1.0f));
      const DeviceArray<std::byte> o(8 * DTypeBytes(GetParam()));
      const DeviceArray<float> result(1);
      const MergeItem item = {.part_o = part_o.at(),
                              .o_part_stride = 8,
                              .part_lse = part_lse.at(),
                              .lse_part_stride = 1,
                              .parts = parts,
                              .rows = 1,
                              .o = o.at(),
                              .lse = result.at()};
      ASSERT_EQ(Merge(nullptr, GetParam(), 8, {&item, 1}), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      EXPECT_TRUE(std::isnan(result.Read(1)[0]));
      for (int i = 0; i < 8; ++i) {
        const std::vector<std::byte> got = o.Read(8 * DTypeBytes(GetParam()));
        EXPECT_TRUE(std::isnan(LoadAsFloat(got.data(), i, GetParam())));
      }
    }
  }
}

TEST_P(MergeTest, MergesAState) {
  Random random(5);
  const DType dtype = GetParam();
  for (int round = 0; round < 40; ++round) {
    const int head_dim = Pick(random, {8, 64, 80, 128, 136, 256, 300});
    const int64_t tokens = random.Below(30);
    const int heads = 1 + static_cast<int>(random.Below(9));
    StateMerge merge = {.o_stride = heads * head_dim + 3,
                        .lse_stride = heads + 2,
                        .tokens = tokens,
                        .heads = heads,
                        .first = random.Below(3) == 0};
    // Parts lie head by head, as some kernels leave them, or token by token.
    if (random.Below(2) == 0) {
      merge.part_o_head_stride = tokens * head_dim + 1;
      merge.part_o_token_stride = head_dim;
      merge.part_lse_head_stride = tokens + 1;
      merge.part_lse_token_stride = 1;
    } else {
      merge.part_o_head_stride = head_dim;
      merge.part_o_token_stride = heads * head_dim + 1;
      merge.part_lse_head_stride = 1;
      merge.part_lse_token_stride = heads + 1;
    }
    const auto part_o_size = static_cast<size_t>((tokens + 1) * (heads + 1) * (head_dim + 1));
    const auto part_lse_size = static_cast<size_t>((tokens + 1) * (heads + 1));
    std::vector<float> o(static_cast<size_t>(tokens * merge.o_stride), kPoison);
    std::vector<float> lse(static_cast<size_t>(tokens * merge.lse_stride), kPoison);
    std::vector<float> part_o(part_o_size, kPoison);
    std::vector<float> part_lse(part_lse_size, kPoison);
    const auto each_row = [&](auto&& visit) {
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t head = 0; head < heads; ++head) {
          visit(static_cast<size_t>(token * merge.o_stride + head * head_dim),
                static_cast<size_t>(token * merge.lse_stride + head),
                static_cast<size_t>(token * merge.part_o_token_stride +
                                    head * merge.part_o_head_stride),
                static_cast<size_t>(token * merge.part_lse_token_stride +
                                    head * merge.part_lse_head_stride));
        }
      }
    };
    each_row([&](size_t o_at, size_t lse_at, size_t part_o_at, size_t part_lse_at) {
      const bool none = random.Below(4) == 0;
      const bool part_none = random.Below(4) == 0;
      part_lse[part_lse_at] = part_none ? static_cast<float>(kEmptyLse) : 4 * random.Normal();
      if (!merge.first) lse[lse_at] = none ? static_cast<float>(kEmptyLse) : 4 * random.Normal();
      for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
        if (!part_none) part_o[part_o_at + i] = random.Normal();
        if (!none && !merge.first) o[o_at + i] = random.Normal();
      }
    });
    const std::vector<std::byte> encoded = EncodedAs(dtype, part_o);
    const DeviceArray<float> d_o(o);
    const DeviceArray<float> d_lse(lse);
    const DeviceArray<std::byte> d_part_o(encoded);
    const DeviceArray<float> d_part_lse(part_lse);
    merge.o = d_o.at();
    merge.lse = d_lse.at();
    merge.part_o = d_part_o.at();
    merge.part_lse = d_part_lse.at();
    ASSERT_EQ(MergeState(nullptr, dtype, head_dim, merge), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const std::vector<float> new_o = d_o.Read(o.size());
    const std::vector<float> new_lse = d_lse.Read(lse.size());
    each_row([&](size_t o_at, size_t lse_at, size_t part_o_at, size_t part_lse_at) {
      State state{std::vector<double>(static_cast<size_t>(head_dim)), kEmptyLse};
      if (!merge.first) {
        MergeInto(state, {{o.data() + o_at, o.data() + o_at + head_dim}, lse[lse_at]});
      }
      State part{{}, part_lse[part_lse_at]};
      for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
        part.o.push_back(LoadAsFloat(encoded.data(), static_cast<int64_t>(part_o_at + i), dtype));
      }
      MergeInto(state, part);
      ASSERT_NO_FATAL_FAILURE(ExpectState(state, &new_lse[lse_at],
                                          reinterpret_cast<const std::byte*>(new_o.data() + o_at),
                                          DType::kF32, 64 * kUnit));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MergeTest, testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
