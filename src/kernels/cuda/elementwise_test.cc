#include "kernels/cuda/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/elementwise_testing.h"

namespace headway::cuda {
namespace {

TEST_F(ElementwiseTest, WriteSmall) {
  for (const size_t size : {1, 3, 4, 100, 1023, kSmallBytesMax}) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.Below(256));
    Memory to(kSmallBytesMax + 64);
    ASSERT_CUDA(WriteSmall(nullptr, bytes, to.data()));
    const std::vector<std::byte> read = to.Bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), read.begin()));
    for (size_t i = (size + 3) / 4 * 4; i < read.size(); ++i) ASSERT_EQ(read[i], std::byte{0xFF});
  }
  const std::vector<std::byte> large(kSmallBytesMax + 1);
  EXPECT_EQ(WriteSmall(nullptr, large, nullptr), cudaErrorInvalidValue);
}

TEST_F(ElementwiseTest, Embed) {
  for (const DType dtype : kDTypes) {
    for (const int64_t width : {1, 13, 64, 2056}) {
      for (const size_t offset : {0, 2}) {
        const int64_t vocab = 50;
        const int64_t tokens = 1 + random_.Below(70);
        const std::vector<float> table = Numbers(vocab * width, dtype);
        std::vector<TokenId> ids(Count(tokens));
        for (TokenId& id : ids) id = static_cast<TokenId>(random_.Below(vocab));
        Memory table_memory(dtype, table, offset);
        Memory id_memory(ids.size() * sizeof(TokenId));
        ASSERT_CUDA(cuda::CopyToGpu(id_memory.data(), ids.data(), ids.size() * sizeof(TokenId)));
        const std::vector<float> before = Floats(tokens * width);
        for (const bool add : {false, true}) {
          Memory x(Count(tokens * width) * sizeof(float));
          Memory sum(DType::kF32, before);
          Memory& to = add ? sum : x;
          ASSERT_CUDA(Embed(nullptr, {table_memory.data(), dtype, vocab, width},
                            reinterpret_cast<const TokenId*>(id_memory.data()), tokens, add,
                            to.floats()));
          const std::vector<float> got = to.Values(DType::kF32);
          for (int64_t i = 0; i < tokens * width; ++i) {
            const float row = table[Count(ids[Count(i / width)] * width + i % width)];
            ASSERT_EQ(got[Count(i)], add ? before[Count(i)] + row : row);
          }
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, SwiGlu) {
  for (const DType activation : kDTypes) {
    for (const int64_t count : {1, 7, 8, 2048, 10001}) {
      for (const bool in_place : {false, true}) {
        for (const size_t offset : {size_t{0}, DTypeBytes(activation)}) {
          std::vector<float> gate = Numbers(count, activation, 10.0f);
          gate[0] = -200.0f;  // whose exponential overflows
          const std::vector<float> up = Numbers(count, activation);
          Memory gate_memory(activation, gate, offset);
          Memory up_memory(activation, up);
          Memory y(Count(count) * DTypeBytes(activation));
          Memory& to = in_place ? gate_memory : y;
          ASSERT_CUDA(
              SwiGlu(nullptr, activation, gate_memory.data(), up_memory.data(), count, to.data()));
          const std::vector<float> got = to.Values(activation);
          for (size_t i = 0; i < gate.size(); ++i) {
            const double value = Silu(gate[i]) * up[i];
            // The exponent's rounding counts as often as it is large.
            const double error = (8 + 2 * std::abs(gate[i])) * kFloatEpsilon * std::abs(value);
            ASSERT_NEAR(got[i], value, error + Rounding(activation, value) + 1e-35) << gate[i];
          }
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, AddSinks) {
  for (const int head_dim : {64, 128, 7}) {
    const int64_t tokens = 23;
    const int heads = 5;
    const int64_t rows = tokens * heads;
    std::vector<float> o = Floats(rows * head_dim);
    std::vector<float> lse = Numbers(rows, DType::kF32, 20.0f);
    std::vector<float> sinks = Numbers(heads, DType::kF32, 20.0f);
    sinks[2] = -kInfinity;
    for (int64_t row = 0; row < rows;
         row += 7) {  // rows that saw no key, whose o is not to be read
      lse[Count(row)] = -kInfinity;
      std::fill_n(o.begin() + row * head_dim, head_dim, std::nanf(""));
    }
    Memory o_memory(DType::kF32, o);
    Memory lse_memory(DType::kF32, lse);
    Memory sink_memory(DType::kF32, sinks);
    ASSERT_CUDA(AddSinks(nullptr, sink_memory.floats(), tokens, heads, head_dim, o_memory.floats(),
                         lse_memory.floats()));
    const std::vector<float> got_o = o_memory.Values(DType::kF32);
    const std::vector<float> got_lse = lse_memory.Values(DType::kF32);
    for (int64_t row = 0; row < rows; ++row) {
      const double mine = lse[Count(row)];
      const double sink = sinks[Count(row % heads)];
      const bool empty = mine == -kInfinity;
      const double max = std::max(mine, sink);
      if (max == -kInfinity) {
        ASSERT_EQ(got_lse[Count(row)], -kInfinity);
      } else {
        const double sum = max + std::log(std::exp(mine - max) + std::exp(sink - max));
        ASSERT_NEAR(got_lse[Count(row)], sum, 4 * kFloatEpsilon * (1 + std::abs(sum)));
      }
      const double scale = empty ? 0.0 : 1.0 / (1.0 + std::exp(sink - mine));
      for (int i = 0; i < head_dim; ++i) {
        const size_t at = Count(row * head_dim + i);
        const double value = empty ? 0.0 : o[at] * scale;
        // The difference of two logits is rounded before its exponential is taken.
        const double error = 8 * kFloatEpsilon * (1 + std::abs(empty ? 0.0 : mine) + 60);
        ASSERT_NEAR(got_o[at], value, error * std::abs(value) + 1e-36);
      }
    }
  }
}

}  // namespace
}  // namespace headway::cuda
