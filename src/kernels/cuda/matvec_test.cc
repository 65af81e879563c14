#include "kernels/cuda/matvec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "kernels/cuda/elementwise_testing.h"

namespace headway::cuda {
namespace {

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
  // What an op reads and writes, on the host and on the device.
  struct Sides {
    std::vector<float> weight;
    std::vector<float> bias;
    std::vector<float> before;
    std::unique_ptr<Memory> weight_memory;
    std::unique_ptr<Memory> bias_memory;
    std::unique_ptr<Memory> y;
  };

  void Run(DType activation, int64_t rows, int64_t in, std::span<const HostOp> host_ops,
           size_t x_offset = 0) {
    SCOPED_TRACE(testing::Message()
                 << "activation " << DTypeName(activation) << " rows " << rows << " in " << in);
    const std::vector<float> x = Numbers(rows * in, activation);
    Memory x_memory(activation, x, x_offset);
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
      Compare(activation, rows, in, host, x, sides[i]);
      if (HasFailure()) return;
    }
  }

  static void Compare(DType activation, int64_t rows, int64_t in, const HostOp& host,
                      std::span<const float> x, const Sides& side) {
    const std::vector<float>& before = side.before;
    const int64_t stride = host.out + 3;
    const DType y_dtype = host.result == LinearResult::kActivation ? activation : DType::kF32;
    const std::vector<float> got = side.y->Values(y_dtype);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t out = 0; out < stride; ++out) {
        const size_t at = Count(row * stride + out);
        if (out >= host.out) {  // between rows: as it was
          ASSERT_TRUE(before.empty() ? std::isnan(got[at]) : got[at] == before[at]);
          continue;
        }
        const Dot dot = DotOf(x.subspan(Count(row * in), Count(in)),
                              std::span(side.weight).subspan(Count(out * in), Count(in)));
        const double value = dot.value + (host.has_bias ? side.bias[Count(out)] : 0.0) +
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
                               .bias = bias_memory.floats(),
                               .y = y.data()};
        const LinearOp up_op{.weight = {up_memory.data(), weight, shape.out, shape.in}};
        ASSERT_CUDA(MatVecSwiGlu(nullptr, activation, x_memory.data(), rows, gate_op, up_op));
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

}  // namespace
}  // namespace headway::cuda
