#include "kernels/cuda/elementwise.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <span>
#include <vector>

#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/elementwise_testing.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/uploads.h"
#include "kernels/testing/held_problem.h"

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

// From memory of the host that is written again behind each call.
TEST_F(ElementwiseTest, WriteFrom) {
  constexpr size_t kMost = 100000;
  std::byte* pinned = nullptr;
  ASSERT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&pinned), kMost));
  for (const size_t size : {size_t{1}, size_t{16}, size_t{17}, size_t{4096}, size_t{5000}, kMost}) {
    const std::span bytes(pinned, size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.Below(256));
    Memory to(kMost + 64);
    ASSERT_CUDA(WriteFrom(nullptr, bytes, to.data()));
    const std::vector<std::byte> read = to.Bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), read.begin()));
    for (size_t i = (size + 15) / 16 * 16; i < read.size(); ++i)
      ASSERT_EQ(read[i], std::byte{0xFF});
  }
  EXPECT_EQ(WriteFrom(nullptr, {pinned + 4, 16}, pinned), cudaErrorInvalidValue);
  ASSERT_CUDA(cudaFreeHost(pinned));
}

// Where memory of the host could not be pinned, no kernel reads it.
TEST_F(ElementwiseTest, UploadsComeFromAnyMemory) {
  constexpr int64_t kBytes = 8192;
  std::vector<std::byte> host(kUploads * kBytes);
  Memory device(kUploads * kBytes);
  Uploads uploads;
  ASSERT_CUDA(uploads.Prepare(host.data(), static_cast<std::byte*>(device.data()), kBytes,
                              Uploads::By::kCopy));
  for (int i = 0; i < 3 * kUploads; ++i) {
    std::vector<std::byte> bytes(Count(1 + random_.Below(kBytes)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.Below(256));
    const std::byte* at = nullptr;
    ASSERT_CUDA(uploads.Put(nullptr, bytes, &at));
    std::vector<std::byte> read(bytes.size());
    ASSERT_CUDA(cudaMemcpy(read.data(), at, read.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(read, bytes);
  }
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
                            {reinterpret_cast<const TokenId*>(id_memory.data()), ids.size()},
                            add ? EmbedResult::kAdd : EmbedResult::kWrite, to.floats()));
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

TEST_F(ElementwiseTest, GeluInPlace) {
  constexpr float kExtremes[] = {-200.0f, 200.0f, 0.0f, -3e4f, 3e4f};
  for (const DType activation : kDTypes) {
    for (const int64_t width : {5, 64, 2056}) {
      for (const int64_t padding : {0, 3, 8}) {
        for (const LinearResult kind : {LinearResult::kGelu, LinearResult::kGeluTanh}) {
          const int64_t rows = 1 + random_.Below(9), stride = width + padding;
          std::vector<float> x = Numbers(rows * stride, activation, 3.0f);
          std::copy(std::begin(kExtremes), std::end(kExtremes), x.begin());
          Memory memory(activation, x);
          ASSERT_CUDA(GeluInPlace(nullptr, activation, kind, {memory.data(), rows, width, stride}));
          const std::vector<float> got = memory.Values(activation);
          const std::vector<float> before = Memory(activation, x).Values(activation);
          for (int64_t i = 0; i < rows * stride; ++i) {
            const float value = before[Count(i)];
            if (i % stride >= width) {
              ASSERT_EQ(got[Count(i)], value);
              continue;
            }
            const double want = GeluOf(kind, value);
            // What is left of a number far below zero is a difference of two near one.
            const double error = 8 * kFloatEpsilon * std::abs(double{value});
            ASSERT_NEAR(got[Count(i)], want, error + Rounding(activation, want)) << value;
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

TEST_F(ElementwiseTest, CorrectRows) {
  for (const DType activation : kDTypes) {
    for (const int64_t rows : {1, 64, 131}) {
      for (const int64_t every : {1, 3, 64}) {
        const int64_t width = 1 + random_.Below(600);
        CorrectRowsItem item = {.rows = rows, .width = width, .every = every};
        const std::vector<float> x = Numbers(rows * width, activation);
        const std::vector<float> exact = Floats(item.blocks() * width);
        Memory x_memory(activation, x);
        Memory exact_memory(DType::kF32, exact);
        item.x = x_memory.data();
        item.exact = exact_memory.floats();
        ASSERT_CUDA(CorrectRows(nullptr, activation, item));
        const std::vector<float> got = x_memory.Values(activation);
        for (int64_t i = 0; i < rows * width; ++i) {
          const int64_t block = i / width / every;
          const int64_t column = i % width;
          const double change = double{exact[Count(block * width + column)]} -
                                double{x[Count(block * every * width + column)]};
          const double value = x[Count(i)] + change;
          const double error = 4 * kFloatEpsilon * (std::abs(change) + std::abs(x[Count(i)]));
          ASSERT_NEAR(got[Count(i)], value, error + Rounding(activation, value));
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, ScaleHeld) {
  for (const DType activation : kDTypes) {
    for (int round = 0; round < 20; ++round) {
      HeldProblem problem(random_);
      Memory lse(DType::kF32, problem.lse);
      std::deque<Memory> outputs, froms;
      std::vector<std::vector<float>> given;
      std::vector<ScaleHeldItem> items;
      for (int holder = 0; holder < problem.holders; ++holder) {
        const bool elsewhere = (round + holder) % 2 == 0;
        given.push_back(problem.o[Count(holder)]);
        outputs.emplace_back(activation, given.back());
        if (!elsewhere) given.back() = outputs.back().Values(activation);
        ScaleHeldItem item = problem.ItemOf(holder);
        item.lse = lse.floats();
        item.o = outputs.back().data();
        if (elsewhere) {
          froms.emplace_back(DType::kF32, given.back());
          item.from = froms.back().floats();
        }
        items.push_back(item);
      }
      // More than one launch takes.
      std::vector<ScaleHeldItem> all(13, items.front());
      for (ScaleHeldItem& item : all) item.rows = 0;
      all.insert(all.end(), items.begin(), items.end());
      ASSERT_CUDA(ScaleHeld(nullptr, activation, {problem.head_dim, problem.group}, all));
      for (int holder = 0; holder < problem.holders; ++holder) {
        const std::vector<float> got = outputs[Count(holder)].Values(activation);
        for (int64_t row = 0; row < problem.rows; ++row) {
          for (int head = 0; head < problem.group; ++head) {
            double sum = 0.0;
            const double own = problem.LseOf(holder, row, head);
            for (int i = 0; i < problem.holders; ++i) {
              sum += std::exp(double{problem.LseOf(i, row, head)} - own);
            }
            for (int i = 0; i < problem.head_dim; ++i) {
              const int64_t at = row * problem.stride + head * problem.head_dim + i;
              const bool empty = own == HeldProblem::kNoKeys;
              const double value = empty ? 0.0 : given[Count(holder)][Count(at)] / sum;
              ASSERT_NEAR(got[Count(at)], value,
                          1e-5 * std::abs(value) + Rounding(activation, value) + 1e-35);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway::cuda
