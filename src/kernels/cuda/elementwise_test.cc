#include "kernels/cuda/elementwise.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/matvec.h"

namespace headway::cuda {
namespace {

constexpr uint64_t kSeed = 20260102;
constexpr std::array kDTypes = {DType::kF32, DType::kF16, DType::kBF16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kFloatEpsilon = 0x1p-23;

// Twice what rounding to `dtype` can do to 1.
double Epsilon(DType dtype) {
  if (dtype == DType::kF32) return kFloatEpsilon;
  return dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
}

// More than rounding to `dtype` can do to `value`.
double Rounding(DType dtype, double value) {
  const double subnormal = dtype == DType::kF16 ? 0x1p-24 : 0.0;
  return Epsilon(dtype) * std::abs(value) + subnormal;
}

double Silu(double value) { return value / (1.0 + std::exp(-value)); }

#define ASSERT_CUDA(expression)                                                        \
  do {                                                                                 \
    const cudaError_t error = (expression);                                            \
    ASSERT_EQ(error, cudaSuccess) << #expression << ": " << cudaGetErrorString(error); \
  } while (false)

// The numbers of `values` in `dtype`, as bytes.
std::vector<std::byte> Encode(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

// Device memory whose first byte lies `offset` bytes past a boundary of 256. Filled with ones: NaN
// in every dtype.
class Memory {
 public:
  explicit Memory(size_t size, size_t offset = 0) : size_(size), offset_(offset) {
    Check(cudaMalloc(&base_, size + offset + 1));  // a byte more, so that it is never empty
    Check(cudaMemset(base_, 0xFF, size + offset + 1));
  }
  explicit Memory(const std::vector<std::byte>& bytes, size_t offset = 0)
      : Memory(bytes.size(), offset) {
    Check(cuda::CopyToGpu(data(), bytes.data(), size_));
  }
  Memory(DType dtype, std::span<const float> values, size_t offset = 0)
      : Memory(Encode(dtype, values), offset) {}
  ~Memory() { EXPECT_EQ(cudaFree(base_), cudaSuccess); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() { return static_cast<std::byte*>(base_) + offset_; }
  float* floats() { return reinterpret_cast<float*>(data()); }

  std::vector<std::byte> Bytes() {
    std::vector<std::byte> bytes(size_);
    Check(cudaDeviceSynchronize());
    Check(cudaMemcpy(bytes.data(), data(), size_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  std::vector<float> Values(DType dtype) {
    const std::vector<std::byte> bytes = Bytes();
    std::vector<float> values(size_ / DTypeBytes(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = LoadAsFloat(bytes.data(), static_cast<int64_t>(i), dtype);
    }
    return values;
  }

 private:
  static void Check(cudaError_t error) {
    EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }

  void* base_ = nullptr;
  size_t size_;
  size_t offset_;
};

size_t Count(int64_t count) { return static_cast<size_t>(count); }

class ElementwiseTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }

  // Normal numbers times `scale`, as `dtype` holds them.
  std::vector<float> Numbers(int64_t count, DType dtype, float scale = 1.0f) {
    std::vector<float> values(Count(count));
    for (float& value : values) {
      value = random_.Normal() * scale;
      StoreFloat(&value, 0, dtype, value);
      value = LoadAsFloat(&value, 0, dtype);
    }
    return values;
  }
  std::vector<float> Floats(int64_t count) { return Numbers(count, DType::kF32); }

  Random random_{kSeed};
};

// A dot product, and how far a sum in f32 may be from it.
struct Dot {
  double value = 0;
  double error = 0;
};

Dot DotOf(std::span<const float> x, std::span<const float> weight) {
  Dot dot;
  double magnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double product = static_cast<double>(x[i]) * weight[i];
    dot.value += product;
    magnitude += std::abs(product);
  }
  // Sums are chains of at most a 32nd of the products, and what adds those up.
  dot.error = (static_cast<double>(x.size()) / 16 + 16) * kFloatEpsilon * magnitude;
  return dot;
}

// One op of a test on the host.
struct HostOp {
  DType dtype;
  int64_t out;
  size_t offset;  // of the weights, bytes
  LinearResult result;
  bool has_bias;
};

class MatVecTest : public ElementwiseTest {
 protected:
  void Run(DType activation, int64_t rows, int64_t in, std::span<const HostOp> host_ops,
           size_t x_offset = 0) {
    SCOPED_TRACE(testing::Message()
                 << "activation " << DTypeName(activation) << " rows " << rows << " in " << in);
    const std::vector<float> x = Numbers(rows * in, activation);
    Memory x_memory(activation, x, x_offset);
    struct Sides {
      std::vector<float> weight;
      std::vector<float> bias;
      std::vector<float> before;
      std::unique_ptr<Memory> weight_memory;
      std::unique_ptr<Memory> bias_memory;
      std::unique_ptr<Memory> y;
    };
    std::vector<Sides> sides;
    std::vector<LinearOp> ops;
    for (const HostOp& host : host_ops) {
      Sides& side = sides.emplace_back();
      side.weight = Numbers(host.out * in, host.dtype, 1.0f / std::sqrt(static_cast<float>(in)));
      side.weight_memory = std::make_unique<Memory>(host.dtype, side.weight, host.offset);
      side.bias = Floats(host.out);
      side.bias_memory = std::make_unique<Memory>(DType::kF32, side.bias);
      const int64_t stride = host.out + 3;
      const DType y_dtype = host.result == LinearResult::kActivation ? activation : DType::kF32;
      if (host.result == LinearResult::kAddFloat) {
        side.before = Floats(rows * stride);
        side.y = std::make_unique<Memory>(y_dtype, side.before);
      } else {
        side.y = std::make_unique<Memory>(Count(rows * stride) * DTypeBytes(y_dtype));
      }
      ops.push_back({.weight = {side.weight_memory->data(), host.dtype, host.out, in},
                     .bias = host.has_bias ? side.bias_memory->floats() : nullptr,
                     .y = side.y->data(),
                     .y_stride = stride,
                     .result = host.result});
    }
    ASSERT_CUDA(MatVec(nullptr, activation, x_memory.data(), rows, ops));
    for (size_t i = 0; i < sides.size(); ++i) {
      const HostOp& host = host_ops[i];
      SCOPED_TRACE(testing::Message() << "op " << i << " " << DTypeName(host.dtype) << " out "
                                      << host.out << " offset " << host.offset);
      Compare(activation, rows, in, host, x, sides[i].weight, sides[i].bias, sides[i].before,
              sides[i].y.get());
      if (HasFailure()) return;
    }
  }

  static void Compare(DType activation, int64_t rows, int64_t in, const HostOp& host,
                      std::span<const float> x, std::span<const float> weight,
                      std::span<const float> bias, std::span<const float> before, Memory* y) {
    const int64_t stride = host.out + 3;
    const DType y_dtype = host.result == LinearResult::kActivation ? activation : DType::kF32;
    const std::vector<float> got = y->Values(y_dtype);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t out = 0; out < stride; ++out) {
        const size_t at = Count(row * stride + out);
        if (out >= host.out) {  // between rows: as it was
          ASSERT_TRUE(before.empty() ? std::isnan(got[at]) : got[at] == before[at]);
          continue;
        }
        const Dot dot = DotOf(x.subspan(Count(row * in), Count(in)),
                              weight.subspan(Count(out * in), Count(in)));
        const double value = dot.value + (host.has_bias ? bias[Count(out)] : 0.0) +
                             (before.empty() ? 0.0 : before[at]);
        const double rounding =
            Rounding(y_dtype, value) + 2 * kFloatEpsilon * (std::abs(dot.value) + 8);
        ASSERT_NEAR(got[at], value, dot.error + rounding) << "row " << row << " out " << out;
      }
    }
  }
};

TEST_F(MatVecTest, AllDTypesAndRows) {
  for (const DType activation : kDTypes) {
    for (const DType weight : kDTypes) {
      for (int64_t rows = 1; rows <= kMatVecRowsMax; ++rows) {
        const HostOp ops[] = {{weight, 37, 0, LinearResult::kActivation, true},
                              {weight, 70, 0, LinearResult::kFloat, false},
                              {weight, 1, 0, LinearResult::kAddFloat, true}};
        Run(activation, rows, 1288, ops);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MatVecTest, UnalignedWeightsAndOddWidths) {
  for (const DType activation : kDTypes) {
    for (const DType weight : kDTypes) {
      for (const int64_t in : {1, 13, 100, 264}) {
        const int64_t rows = 1 + random_.Below(kMatVecRowsMax);
        const HostOp ops[] = {{weight, 19, 2, LinearResult::kActivation, false},
                              {weight, 33, 0, LinearResult::kAddFloat, true},
                              {weight, 8, 6, LinearResult::kFloat, true}};
        Run(activation, rows, in, ops);
        Run(activation, rows, in, ops, DTypeBytes(activation));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MatVecTest, MoreOpsThanALaunchTakes) {
  for (const int64_t rows : {1, 5}) {
    const HostOp ops[] = {{DType::kBF16, 16, 0, LinearResult::kActivation, true},
                          {DType::kBF16, 24, 0, LinearResult::kFloat, false},
                          {DType::kF32, 9, 0, LinearResult::kFloat, false},
                          {DType::kBF16, 3, 2, LinearResult::kAddFloat, false},
                          {DType::kBF16, 40, 0, LinearResult::kAddFloat, true},
                          {DType::kF16, 11, 0, LinearResult::kActivation, true},
                          {DType::kBF16, 17, 0, LinearResult::kActivation, false},
                          {DType::kBF16, 31, 0, LinearResult::kActivation, true}};
    Run(DType::kBF16, rows, 520, ops);
  }
}

// Shapes that split lines, that take several waves of blocks, and whose x is too much for shared
// memory at once or at all.
TEST_F(MatVecTest, ManyShapes) {
  struct Shape {
    int64_t out;
    int64_t in;
  };
  for (const Shape& shape : {Shape{3, 8}, Shape{16, 14336}, Shape{150, 9000}, Shape{24, 65536},
                             Shape{700, 4096}, Shape{21000, 64}, Shape{9001, 512}}) {
    for (const DType activation : {DType::kF32, DType::kBF16}) {
      for (const int64_t rows : {1, 2, 8}) {
        const HostOp ops[] = {
            {DType::kBF16, shape.out, 0, LinearResult::kFloat, true},
            {DType::kBF16, 1 + random_.Below(40), 0, LinearResult::kActivation, false}};
        Run(activation, rows, shape.in, ops);
        if (HasFailure()) return;
      }
    }
  }
  // One matrix as large as those of real models, in the launch that serves them.
  const HostOp large[] = {{DType::kBF16, 4096, 0, LinearResult::kAddFloat, false}};
  Run(DType::kBF16, 1, 4096, large);
}

TEST_F(MatVecTest, EmptyAndInvalid) {
  Memory x(1024);
  LinearOp op{.weight = {x.data(), DType::kBF16, 4, 8}, .y = x.data(), .y_stride = 4};
  ASSERT_CUDA(MatVec(nullptr, DType::kBF16, x.data(), 0, {&op, 1}));
  ASSERT_CUDA(MatVec(nullptr, DType::kBF16, x.data(), 1, {}));
  EXPECT_EQ(MatVec(nullptr, DType::kBF16, x.data(), kMatVecRowsMax + 1, {&op, 1}),
            cudaErrorInvalidValue);
}

TEST_F(MatVecTest, SwiGluFused) {
  struct Shape {
    int64_t out;
    int64_t in;
    size_t offset;
  };
  for (const DType activation : kDTypes) {
    for (const DType weight : kDTypes) {
      for (const Shape& shape : {Shape{1, 8, 0}, Shape{45, 1040, 0}, Shape{12, 33, 0},
                                 Shape{30, 64, 2}, Shape{6000, 256, 0}}) {
        const int64_t rows = 1 + random_.Below(kMatVecRowsMax);
        SCOPED_TRACE(testing::Message()
                     << DTypeName(activation) << " " << DTypeName(weight) << " rows " << rows
                     << " out " << shape.out << " in " << shape.in);
        const float scale = 1.0f / std::sqrt(static_cast<float>(shape.in));
        const std::vector<float> x = Numbers(rows * shape.in, activation);
        const std::vector<float> gate = Numbers(shape.out * shape.in, weight, scale);
        const std::vector<float> up = Numbers(shape.out * shape.in, weight, scale);
        const std::vector<float> gate_bias = Floats(shape.out);
        Memory x_memory(activation, x);
        Memory gate_memory(weight, gate, shape.offset);
        Memory up_memory(weight, up);
        Memory bias_memory(DType::kF32, gate_bias);
        Memory y(Count(rows * shape.out) * DTypeBytes(activation));
        const LinearOp gate_op{.weight = {gate_memory.data(), weight, shape.out, shape.in},
                               .bias = bias_memory.floats()};
        const LinearOp up_op{.weight = {up_memory.data(), weight, shape.out, shape.in}};
        ASSERT_CUDA(
            MatVecSwiGlu(nullptr, activation, x_memory.data(), rows, gate_op, up_op, y.data()));
        const std::vector<float> got = y.Values(activation);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t out = 0; out < shape.out; ++out) {
            const auto x_row = std::span(x).subspan(Count(row * shape.in), Count(shape.in));
            const size_t line = Count(out * shape.in);
            const Dot g = DotOf(x_row, std::span(gate).subspan(line, Count(shape.in)));
            const Dot u = DotOf(x_row, std::span(up).subspan(line, Count(shape.in)));
            const double activated = Silu(g.value + gate_bias[Count(out)]);
            const double value = activated * u.value;
            // The slope of silu is below 1.1.
            const double error = 1.1 * (g.error + 8 * kFloatEpsilon) * std::abs(u.value) +
                                 (std::abs(activated) + g.error) * u.error +
                                 8 * kFloatEpsilon * std::abs(value) + Rounding(activation, value);
            ASSERT_NEAR(got[Count(row * shape.out + out)], value, error)
                << "row " << row << " out " << out;
          }
        }
      }
    }
  }
}

TEST_F(MatVecTest, SameBitsEveryTime) {
  for (const int64_t rows : {1, 6}) {
    const int64_t in = 4096;
    const int64_t out = 1000;
    Memory x(DType::kBF16, Numbers(rows * in, DType::kBF16));
    Memory weight(DType::kBF16, Numbers(out * in, DType::kBF16));
    std::vector<std::byte> first;
    for (int run = 0; run < 5; ++run) {
      Memory y(Count(rows * out) * sizeof(float));
      const LinearOp op{.weight = {weight.data(), DType::kBF16, out, in},
                        .y = y.data(),
                        .y_stride = out,
                        .result = LinearResult::kFloat};
      ASSERT_CUDA(MatVec(nullptr, DType::kBF16, x.data(), rows, {&op, 1}));
      if (run == 0) first = y.Bytes();
      EXPECT_EQ(y.Bytes(), first);
    }
  }
}

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

// What `values` become under a norm; the sum and the products are f32.
void ExpectNormed(DType dtype, std::span<const float> values, std::span<const float> weight,
                  double eps, std::span<const float> got) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(values.size()) + eps);
  const double summing = (static_cast<double>(values.size()) / 32 + 16) * kFloatEpsilon;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i] * scale * weight[i];
    ASSERT_NEAR(got[i], value, summing * std::abs(value) + Rounding(dtype, value)) << i;
  }
}

TEST_F(ElementwiseTest, RmsNorm) {
  for (const DType activation : kDTypes) {
    for (const int64_t width : {1, 31, 64, 516, 1024, 1028, 4096, 8200, 20000, 40000}) {
      for (const int64_t rows : {int64_t{1}, 2 + random_.Below(9), int64_t{300}}) {
        if (rows * width > kMiB * 2) continue;
        SCOPED_TRACE(testing::Message() << DTypeName(activation) << " " << rows << "x" << width);
        const std::vector<float> x = Floats(rows * width);
        const std::vector<float> weight = Floats(width);
        Memory x_memory(DType::kF32, x);
        Memory weight_memory(DType::kF32, weight);
        Memory y(Count(rows * width) * DTypeBytes(activation));
        ASSERT_CUDA(Norm(nullptr, activation, x_memory.floats(),
                         {NormKind::kRms, weight_memory.floats(), nullptr, 1e-5f}, rows, width,
                         y.data()));
        const std::vector<float> got = y.Values(activation);
        for (int64_t row = 0; row < rows; ++row) {
          ExpectNormed(activation, std::span(x).subspan(Count(row * width), Count(width)), weight,
                       1e-5f, std::span(got).subspan(Count(row * width), Count(width)));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows whose mean is far from 0, as residual streams have some; also where they lie.
TEST_F(ElementwiseTest, LayerNorm) {
  constexpr float kShift = 30.0f;
  for (const DType result : kDTypes) {
    for (const int64_t width : {31, 64, 516, 1024, 1030, 4096, 7168, 20000}) {
      for (const int64_t rows : {int64_t{1}, 2 + random_.Below(9), int64_t{64}, int64_t{300}}) {
        if (rows * width > kMiB * 2) continue;
        for (const bool affine : {true, false}) {
          SCOPED_TRACE(testing::Message() << DTypeName(result) << " " << rows << "x" << width
                                          << (affine ? "" : " without weights"));
          std::vector<float> x = Floats(rows * width);
          for (float& value : x) value += kShift;
          const std::vector<float> weight = Floats(width);
          const std::vector<float> bias = Floats(width);
          Memory x_memory(DType::kF32, x);
          Memory weight_memory(DType::kF32, weight);
          Memory bias_memory(DType::kF32, bias);
          Memory y(Count(rows * width) * DTypeBytes(result));
          const NormView norm = {NormKind::kLayer, affine ? weight_memory.floats() : nullptr,
                                 affine ? bias_memory.floats() : nullptr, 1e-5f};
          void* const to = result == DType::kF32 ? x_memory.data() : y.data();
          ASSERT_CUDA(Norm(nullptr, result, x_memory.floats(), norm, rows, width, to));
          const std::vector<float> got = (result == DType::kF32 ? x_memory : y).Values(result);
          const auto n = static_cast<double>(width);
          for (int64_t row = 0; row < rows; ++row) {
            const std::span<const float> values =
                std::span(x).subspan(Count(row * width), Count(width));
            double mean = 0;
            for (const float value : values) mean += value;
            mean /= n;
            double squares = 0;
            for (const float value : values) squares += (value - mean) * (value - mean);
            const double scale = 1.0 / std::sqrt(squares / n + 1e-5);
            // Errors of the sum of one thread's elements and of those of the threads.
            const double summing = (n / 32 + 16) * kFloatEpsilon;
            for (int64_t i = 0; i < width; ++i) {
              const double by = affine ? weight[Count(i)] : 1.0;
              const double add = affine ? bias[Count(i)] : 0.0;
              const double normed = (values[Count(i)] - mean) * scale * by;
              // The mean's error moves the difference; the scale's is relative.
              const double error = summing * (std::abs(mean * scale * by) + std::abs(normed)) +
                                   4 * kFloatEpsilon * (std::abs(normed) + std::abs(add));
              ASSERT_NEAR(got[Count(row * width + i)], normed + add,
                          error + Rounding(result, normed + add))
                  << i;
            }
          }
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, NoNormConverts) {
  for (const DType result : kDTypes) {
    for (const int64_t width : {13, 512}) {
      const std::vector<float> x = Numbers(7 * width, result);
      Memory x_memory(DType::kF32, x);
      Memory y(x.size() * DTypeBytes(result));
      ASSERT_CUDA(
          Norm(nullptr, result, x_memory.floats(), {.kind = NormKind::kNone}, 7, width, y.data()));
      EXPECT_EQ(y.Values(result), x);
    }
  }
}

TEST_F(ElementwiseTest, HeadNorm) {
  for (const DType activation : kDTypes) {
    for (const int head_dim : {8, 17, 64, 80, 128, 256, 320}) {
      for (const int64_t gap : {0, 5, 64}) {
        const int64_t tokens = 1 + random_.Below(40);
        const int heads = 1 + static_cast<int>(random_.Below(9));
        SCOPED_TRACE(testing::Message() << DTypeName(activation) << " head_dim " << head_dim
                                        << " heads " << heads << " tokens " << tokens);
        const int64_t stride = int64_t{heads} * head_dim + gap;
        const std::vector<float> x = Numbers(tokens * stride, activation);
        const std::vector<float> weight = Floats(head_dim);
        Memory x_memory(activation, x);
        Memory weight_memory(DType::kF32, weight);
        ASSERT_CUDA(HeadNorm(nullptr, activation, weight_memory.floats(), 1e-6f, tokens, heads,
                             head_dim, x_memory.data(), stride));
        const std::vector<float> got = x_memory.Values(activation);
        for (int64_t token = 0; token < tokens; ++token) {
          for (int head = 0; head < heads; ++head) {
            const size_t at = Count(token * stride + int64_t{head} * head_dim);
            ExpectNormed(activation, std::span(x).subspan(at, Count(head_dim)), weight, 1e-6f,
                         std::span(got).subspan(at, Count(head_dim)));
            if (HasFatalFailure()) return;
          }
          for (int64_t i = stride - gap; i < stride; ++i) {
            ASSERT_EQ(got[Count(token * stride + i)], x[Count(token * stride + i)]);
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

TEST_F(ElementwiseTest, RopeAngles) {
  for (const int half : {1, 32, 64}) {
    const int64_t tokens = 77;
    std::vector<int32_t> positions(Count(tokens));
    for (int32_t& position : positions) position = static_cast<int32_t>(random_.Below(4000000));
    positions[0] = 0;
    std::vector<float> inv_freq(Count(half));
    for (int i = 0; i < half; ++i) {
      inv_freq[Count(i)] = std::pow(500000.0f, -static_cast<float>(i) / static_cast<float>(half));
    }
    const float scale = 1.25f;
    Memory position_memory(positions.size() * sizeof(int32_t));
    ASSERT_CUDA(cuda::CopyToGpu(position_memory.data(), positions.data(),
                                positions.size() * sizeof(int32_t)));
    Memory inv_freq_memory(DType::kF32, inv_freq);
    Memory cos(Count(tokens * half) * sizeof(float));
    Memory sin(Count(tokens * half) * sizeof(float));
    ASSERT_CUDA(RopeAngles(nullptr, reinterpret_cast<const int32_t*>(position_memory.data()),
                           tokens, inv_freq_memory.floats(), 2 * half, scale, cos.floats(),
                           sin.floats()));
    const std::vector<float> c = cos.Values(DType::kF32);
    const std::vector<float> s = sin.Values(DType::kF32);
    for (int64_t i = 0; i < tokens * half; ++i) {
      const float angle =
          static_cast<float>(positions[Count(i / half)]) * inv_freq[Count(i % half)];
      ASSERT_NEAR(c[Count(i)], std::cos(static_cast<double>(angle)) * scale, 4 * kFloatEpsilon);
      ASSERT_NEAR(s[Count(i)], std::sin(static_cast<double>(angle)) * scale, 4 * kFloatEpsilon);
    }
  }
}

// Angles of a step, on the host and on the device.
struct Angles {
  Angles(Random* random, int64_t tokens, int dim) : rotary_dim(dim) {
    for (int64_t i = 0; i < tokens * (rotary_dim / 2); ++i) {
      const double angle = random->Uniform() * 6.28;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    cos_memory = std::make_unique<Memory>(DType::kF32, cos);
    sin_memory = std::make_unique<Memory>(DType::kF32, sin);
  }
  RopeTable table() const { return {cos_memory->floats(), sin_memory->floats(), rotary_dim}; }

  // Whether `got` [heads, head_dim] is `x` of `token`, rotated.
  void ExpectRotated(DType dtype, int64_t token, int heads, int head_dim, std::span<const float> x,
                     std::span<const float> got) const {
    const int half = rotary_dim / 2;
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < head_dim; ++i) {
        const size_t at = Count(int64_t{head} * head_dim + i);
        if (i >= rotary_dim) {
          ASSERT_EQ(got[at], x[at]);
          continue;
        }
        const size_t angle = Count(token * half + i % half);
        const bool low = i < half;
        const double other = low ? -x[at + Count(half)] : x[at - Count(half)];
        const double value = double{x[at]} * cos[angle] + other * sin[angle];
        const double summing = 2 * kFloatEpsilon * (std::abs(x[at]) + std::abs(other));
        ASSERT_NEAR(got[at], value, summing + Rounding(dtype, value)) << "element " << i;
      }
    }
  }

  int rotary_dim;
  std::vector<float> cos;
  std::vector<float> sin;
  std::unique_ptr<Memory> cos_memory;
  std::unique_ptr<Memory> sin_memory;
};

TEST_F(ElementwiseTest, Rope) {
  struct Shape {
    int head_dim;
    int rotary_dim;
    int64_t gap;
  };
  for (const DType activation : kDTypes) {
    for (const Shape& shape : {Shape{128, 128, 0}, Shape{64, 32, 16}, Shape{80, 20, 0},
                               Shape{128, 128, 3}, Shape{6, 6, 1}, Shape{256, 64, 0}}) {
      const int64_t tokens = 1 + random_.Below(30);
      const int heads = 1 + static_cast<int>(random_.Below(33));
      SCOPED_TRACE(testing::Message() << DTypeName(activation) << " head_dim " << shape.head_dim
                                      << " rotary_dim " << shape.rotary_dim);
      const int64_t width = int64_t{heads} * shape.head_dim;
      const int64_t stride = width + shape.gap;
      const Angles angles(&random_, tokens, shape.rotary_dim);
      const std::vector<float> x = Numbers(tokens * stride, activation);
      Memory x_memory(activation, x);
      ASSERT_CUDA(Rope(nullptr, activation, angles.table(), tokens, heads, shape.head_dim,
                       x_memory.data(), stride));
      const std::vector<float> got = x_memory.Values(activation);
      for (int64_t token = 0; token < tokens; ++token) {
        const size_t at = Count(token * stride);
        angles.ExpectRotated(activation, token, heads, shape.head_dim,
                             std::span(x).subspan(at, Count(width)),
                             std::span(got).subspan(at, Count(width)));
        for (int64_t i = width; i < stride; ++i) {
          ASSERT_EQ(got[at + Count(i)], x[at + Count(i)]);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// K and V pages of several heads, on the device and as they should be.
class Pages {
 public:
  Pages(const PageFormat& format, int heads, int64_t first_slot, int64_t count, int64_t padding,
        size_t offset)
      : format_(format),
        heads_(heads),
        first_slot_(first_slot),
        count_(count),
        page_stride_(static_cast<int64_t>(format.bytes()) + padding),
        head_stride_(page_stride_ * CeilDiv(first_slot + count, format.page_slots)),
        k_(Count(head_stride_ * heads), std::byte{0xFF}),
        v_(k_),
        k_memory_(k_.size(), offset),
        v_memory_(v_.size(), offset) {}

  PageRun run() {
    return {k_memory_.data(), v_memory_.data(), page_stride_, head_stride_, first_slot_, count_};
  }

  // What storing k and v [count, heads, head_dim], tokens `stride` apart, should leave.
  void Store(std::span<const float> k, std::span<const float> v, int64_t stride) {
    for (int64_t slot = 0; slot < count_; ++slot) {
      const int64_t at = first_slot_ + slot;
      for (int head = 0; head < heads_; ++head) {
        const size_t page = Count(head * head_stride_ + at / format_.page_slots * page_stride_);
        for (int i = 0; i < format_.head_dim; ++i) {
          const int64_t to = at % format_.page_slots * format_.head_dim + i;
          const size_t from = Count(slot * stride + int64_t{head} * format_.head_dim + i);
          StoreFloat(k_.data() + page, to, format_.dtype, k[from]);
          StoreFloat(v_.data() + page, to, format_.dtype, v[from]);
        }
      }
    }
  }

  // Every byte, also those between pages and outside the run.
  void ExpectStored() {
    EXPECT_TRUE(k_memory_.Bytes() == k_);
    EXPECT_TRUE(v_memory_.Bytes() == v_);
  }

 private:
  PageFormat format_;
  int heads_;
  int64_t first_slot_;
  int64_t count_;
  int64_t page_stride_;
  int64_t head_stride_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
  Memory k_memory_;
  Memory v_memory_;
};

TEST_F(ElementwiseTest, StoreKv) {
  for (const DType activation : kDTypes) {
    for (const DType page : kDTypes) {
      for (const int head_dim : {128, 24, 7}) {
        for (const int item_count : {1, 3, 40}) {
          SCOPED_TRACE(testing::Message() << DTypeName(activation) << " to " << DTypeName(page)
                                          << " head_dim " << head_dim << " items " << item_count);
          const PageFormat format{page, 16, head_dim};
          std::vector<std::unique_ptr<Pages>> pages;
          std::vector<std::unique_ptr<Memory>> inputs;
          std::vector<StoreKvItem> items;
          for (int i = 0; i < item_count; ++i) {
            const int heads = 1 + static_cast<int>(random_.Below(4));
            const int64_t count = i == 1 ? 0 : 1 + random_.Below(40);
            const int64_t stride = int64_t{heads} * head_dim + (i % 3 == 2 ? 5 : 0);
            const std::vector<float> k = Numbers(count * stride, activation);
            const std::vector<float> v = Numbers(count * stride, activation);
            inputs.push_back(std::make_unique<Memory>(activation, k));
            inputs.push_back(std::make_unique<Memory>(activation, v));
            pages.push_back(std::make_unique<Pages>(format, heads, random_.Below(40), count,
                                                    i % 2 == 0 ? 0 : 48,
                                                    i % 5 == 4 ? DTypeBytes(page) : 0));
            pages.back()->Store(k, v, stride);
            items.push_back({(*(inputs.end() - 2))->data(), inputs.back()->data(), stride, heads,
                             pages.back()->run()});
          }
          ASSERT_CUDA(StoreKv(nullptr, activation, format, items));
          for (const auto& each : pages) each->ExpectStored();
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, RopeStoreKv) {
  struct Shape {
    int head_dim;
    int rotary_dim;
    int64_t gap;
  };
  for (const DType activation : kDTypes) {
    for (const DType page : kDTypes) {
      for (const Shape& shape : {Shape{128, 128, 0}, Shape{64, 32, 8}, Shape{96, 0, 0},
                                 Shape{20, 10, 0}, Shape{64, 64, 1}}) {
        for (const int64_t tokens : {int64_t{1}, 2 + random_.Below(50)}) {
          SCOPED_TRACE(testing::Message() << DTypeName(activation) << " to " << DTypeName(page)
                                          << " head_dim " << shape.head_dim << " rotary_dim "
                                          << shape.rotary_dim << " tokens " << tokens);
          const PageFormat format{page, 16, shape.head_dim};
          const int heads = 1 + static_cast<int>(random_.Below(4));
          const int q_heads = heads * 3;
          const int64_t q_width = int64_t{q_heads} * shape.head_dim;
          const int64_t kv_width = int64_t{heads} * shape.head_dim;
          const int64_t q_stride = q_width + shape.gap;
          const int64_t kv_stride = kv_width + shape.gap;
          const Angles angles(&random_, tokens, shape.rotary_dim);
          const std::vector<float> q = Numbers(tokens * q_stride, activation);
          const std::vector<float> k = Numbers(tokens * kv_stride, activation);
          const std::vector<float> v = Numbers(tokens * kv_stride, activation);
          Memory q_memory(activation, q);
          Memory k_memory(activation, k);
          Memory v_memory(activation, v);
          Pages pages(format, heads, random_.Below(40), tokens, 32, 0);
          const StoreKvItem item{k_memory.data(), v_memory.data(), kv_stride, heads, pages.run()};
          const RopeStoreItem whole{q_memory.data(), q_stride, q_heads, angles.table(), item};
          ASSERT_CUDA(RopeStoreKv(nullptr, activation, format, {&whole, 1}));
          const std::vector<float> rotated_q = q_memory.Values(activation);
          const std::vector<float> rotated_k = k_memory.Values(activation);
          for (int64_t token = 0; token < tokens; ++token) {
            const size_t q_at = Count(token * q_stride);
            const size_t k_at = Count(token * kv_stride);
            angles.ExpectRotated(activation, token, q_heads, shape.head_dim,
                                 std::span(q).subspan(q_at, Count(q_width)),
                                 std::span(rotated_q).subspan(q_at, Count(q_width)));
            angles.ExpectRotated(activation, token, heads, shape.head_dim,
                                 std::span(k).subspan(k_at, Count(kv_width)),
                                 std::span(rotated_k).subspan(k_at, Count(kv_width)));
            if (HasFatalFailure()) return;
          }
          EXPECT_EQ(v_memory.Values(activation), v);
          // The pages hold what the activations were rounded to.
          pages.Store(rotated_k, v, kv_stride);
          pages.ExpectStored();
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The sequences of a batch, of unequal lengths, some of them where they are read element by
// element: as one by one.
TEST_F(ElementwiseTest, RopeStoreKvOfABatch) {
  const DType dtype = DType::kF16;
  for (const int rotary_dim : {64, 0}) {
    const PageFormat format{dtype, 16, 64};
    constexpr int kHeads = 3;
    constexpr int64_t kStride = kHeads * 64;
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<std::unique_ptr<Angles>> angles;
    std::vector<std::unique_ptr<Pages>> pages;
    std::vector<RopeStoreItem> items;
    std::vector<std::vector<float>> qs, ks, vs;
    const auto upload = [&](const std::vector<float>& values, size_t offset) {
      memories.push_back(std::make_unique<Memory>(dtype, values, offset));
      return memories.back()->data();
    };
    for (int i = 0; i < 71; ++i) {
      const int64_t tokens = i % 5 == 0 ? 1 + random_.Below(4) : 1;
      const size_t offset = i % 7 == 0 ? 2 : 0;
      qs.push_back(Numbers(tokens * kStride, dtype));
      ks.push_back(Numbers(tokens * kStride, dtype));
      vs.push_back(Numbers(tokens * kStride, dtype));
      angles.push_back(std::make_unique<Angles>(&random_, tokens, rotary_dim));
      pages.push_back(std::make_unique<Pages>(format, kHeads, random_.Below(40), tokens, 32, 0));
      RopeStoreItem item;
      item.q = upload(qs.back(), offset);
      item.q_stride = kStride;
      item.query_heads = kHeads;
      item.table = angles.back()->table();
      item.kv.k = upload(ks.back(), offset);
      item.kv.v = upload(vs.back(), offset);
      item.kv.kv_stride = kStride;
      item.kv.heads = kHeads;
      item.kv.to = pages.back()->run();
      items.push_back(item);
    }
    ASSERT_CUDA(RopeStoreKv(nullptr, dtype, format, items));
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(i);
      const std::vector<float> q = memories[3 * i]->Values(dtype);
      const std::vector<float> k = memories[3 * i + 1]->Values(dtype);
      for (int64_t token = 0; token < items[i].kv.to.count; ++token) {
        const size_t at = Count(token * kStride);
        angles[i]->ExpectRotated(dtype, token, kHeads, 64,
                                 std::span(qs[i]).subspan(at, Count(kStride)),
                                 std::span(q).subspan(at, Count(kStride)));
        angles[i]->ExpectRotated(dtype, token, kHeads, 64,
                                 std::span(ks[i]).subspan(at, Count(kStride)),
                                 std::span(k).subspan(at, Count(kStride)));
      }
      pages[i]->Store(k, vs[i], kStride);
      pages[i]->ExpectStored();
      if (HasFailure()) return;
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
