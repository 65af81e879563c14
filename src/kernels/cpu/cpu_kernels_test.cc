#include "kernels/cpu/cpu_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"

namespace headway {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = 0x1p-23;

std::vector<float> RandomVector(Random& random, int64_t count, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = scale * random.Normal();
  return values;
}

std::vector<float> Poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), kPoison);
}

class CpuKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(&pool_, &trace_, GetParam());
    ASSERT_TRUE(kernels.ok()) << kernels.status().message();
    cpu_ = std::move(*kernels);
  }

  ThreadPool pool_{3};
  Trace trace_;
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
  std::unique_ptr<Kernels> ref_ = NewRefKernels();
  std::unique_ptr<Kernels> cpu_;
};

TEST_P(CpuKernelsTest, EmbedConvertsTheRowsExactly) {
  Random random(21);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t width : {1, 15, 16, 33, 384, 5000}) {
      constexpr int64_t kVocab = 37;
      const size_t offset = 3;  // tensors in files need not be aligned
      std::vector<std::byte> table(offset + static_cast<size_t>(kVocab * width) * 4);
      for (int64_t i = 0; i < kVocab * width; ++i) {
        StoreFloat(table.data() + offset, i, dtype, random.Normal());
      }
      const WeightView view = {table.data() + offset, dtype, kVocab, width};
      std::vector<TokenId> ids = {0, kVocab - 1, 5, 5};
      for (int i = 0; i < 30; ++i) ids.push_back(static_cast<TokenId>(random.Below(kVocab)));
      const int64_t count = static_cast<int64_t>(ids.size()) * width;
      std::vector<float> expected = Poisoned(count);
      std::vector<float> actual = Poisoned(count);
      ref_->Embed(*stream_, view, ids, EmbedResult::kWrite, expected.data());
      cpu_->Embed(*stream_, view, ids, EmbedResult::kWrite, actual.data());
      EXPECT_EQ(actual, expected) << DTypeName(dtype) << " width " << width;
      // A sum of two numbers is rounded once.
      actual = expected = RandomVector(random, count, 1.0f);
      ref_->Embed(*stream_, view, ids, EmbedResult::kAdd, expected.data());
      cpu_->Embed(*stream_, view, ids, EmbedResult::kAdd, actual.data());
      EXPECT_EQ(actual, expected) << DTypeName(dtype) << " width " << width;
    }
  }
}

TEST_P(CpuKernelsTest, RmsNorm) {
  Random random(22);
  for (const int64_t width : {1, 7, 64, 100, 384, 1023, 4096}) {
    for (const int64_t rows : {1, 3, 65}) {
      const std::vector<float> x = RandomVector(random, rows * width, 3.0f);
      const std::vector<float> weight = RandomVector(random, width, 1.0f);
      std::vector<float> expected = Poisoned(rows * width);
      std::vector<float> actual = Poisoned(rows * width);
      std::vector<float> in_place = x;
      const NormView norm = {NormKind::kRms, weight.data(), nullptr, 1e-5f};
      ref_->Norm(*stream_, x.data(), norm, rows, width, expected.data());
      cpu_->Norm(*stream_, x.data(), norm, rows, width, actual.data());
      cpu_->NormInPlace(*stream_, norm, rows, width, in_place.data());
      EXPECT_EQ(in_place, actual);
      // The sum of squares has one sign: its relative error is at most the additions of one of its
      // chains (width / 16 at worst, a random walk) half an eps each, and half of it is left after
      // the root; then five roundings.
      const double tolerance = (5.0 + std::sqrt(static_cast<double>(width))) * kEps / 2;
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], tolerance * std::fabs(expected[i]))
            << "width " << width;
      }
    }
  }
}

// Rows whose mean is far from 0, as residual streams have some.
TEST_P(CpuKernelsTest, LayerNorm) {
  Random random(28);
  for (const int64_t width : {1, 7, 64, 100, 384, 1023, 4096}) {
    for (const int64_t rows : {1, 3, 65}) {
      std::vector<float> x = RandomVector(random, rows * width, 3.0f);
      const float shift = 30.0f;
      for (float& value : x) value += shift;
      const std::vector<float> weight = RandomVector(random, width, 1.0f);
      const std::vector<float> bias = RandomVector(random, width, 1.0f);
      for (const bool affine : {true, false}) {
        const NormView norm = {NormKind::kLayer, affine ? weight.data() : nullptr,
                               affine ? bias.data() : nullptr, 1e-5f};
        std::vector<float> expected = Poisoned(rows * width);
        std::vector<float> actual = Poisoned(rows * width);
        std::vector<float> in_place = x;
        ref_->Norm(*stream_, x.data(), norm, rows, width, expected.data());
        cpu_->Norm(*stream_, x.data(), norm, rows, width, actual.data());
        cpu_->NormInPlace(*stream_, norm, rows, width, in_place.data());
        EXPECT_EQ(in_place, actual);
        // The mean is off by a random walk of half an eps of it a step, and what it is taken from
        // by a rounding; the scale, 1 / 3 where rows are long, makes that an error of the result.
        // Short rows may lie close together: their scale is at most 1 / sqrt(1e-5).
        const double walk = std::sqrt(static_cast<double>(width)) + 2.0;
        const double scale = width == 1 ? 317.0 : width < 64 ? 4.0 : 0.5;
        const double off = 2.0 * walk * shift * scale * kEps / 2;
        for (size_t i = 0; i < actual.size(); ++i) {
          const double by = affine ? std::fabs(weight[i % static_cast<size_t>(width)]) : 1.0;
          const double add = affine ? std::fabs(bias[i % static_cast<size_t>(width)]) : 0.0;
          const double relative = (6.0 + walk) * kEps / 2;
          ASSERT_NEAR(actual[i], expected[i],
                      off * by + relative * (std::fabs(expected[i]) + 2.0 * add))
              << "width " << width;
        }
      }
    }
  }
}

TEST_P(CpuKernelsTest, NoNormCopies) {
  Random random(29);
  const std::vector<float> x = RandomVector(random, 3 * 77, 3.0f);
  std::vector<float> y = Poisoned(3 * 77);
  cpu_->Norm(*stream_, x.data(), {.kind = NormKind::kNone}, 3, 77, y.data());
  EXPECT_EQ(y, x);
}

// Heads are rows, tokens some way apart; nothing between them is touched.
TEST_P(CpuKernelsTest, HeadNorm) {
  Random random(27);
  for (const int head_dim : {1, 16, 80, 128}) {
    const int64_t tokens = 5;
    const int heads = 3;
    const int64_t stride = heads * head_dim + 7;
    const std::vector<float> x = RandomVector(random, tokens * stride, 3.0f);
    const std::vector<float> weight = RandomVector(random, head_dim, 1.0f);
    std::vector<float> expected = x;
    std::vector<float> actual = x;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> rows(static_cast<size_t>(heads * head_dim));
      cpu_->Norm(*stream_, x.data() + t * stride, {NormKind::kRms, weight.data(), nullptr, 1e-5f},
                 heads, head_dim, rows.data());
      std::copy(rows.begin(), rows.end(), expected.begin() + t * stride);
    }
    cpu_->HeadNorm(*stream_, weight.data(), 1e-5f,
                   {actual.data(), tokens, heads, head_dim, stride});
    EXPECT_EQ(actual, expected) << head_dim;
  }
}

// Rows some way apart, to the bits of the reference; nothing between them is touched.
TEST_P(CpuKernelsTest, Convert) {
  Random random(28);
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int64_t width : {1, 17, 384}) {
        const int64_t rows = 9;
        ConvertItem item = {.from_dtype = from,
                            .from_stride = width + 3,
                            .to_dtype = to,
                            .to_stride = width + 5,
                            .rows = rows,
                            .width = width};
        std::vector<std::byte> x(static_cast<size_t>(rows * item.from_stride) * 4);
        for (int64_t i = 0; i < rows * item.from_stride; ++i) {
          StoreFloat(x.data(), i, from, random.Normal());
        }
        std::vector<float> expected = Poisoned(rows * item.to_stride), actual = expected;
        item.from = x.data();
        item.to = expected.data();
        ref_->Convert(*stream_, item);
        item.to = actual.data();
        cpu_->Convert(*stream_, item);
        EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0)
            << DTypeName(from) << " to " << DTypeName(to) << ", " << width;
      }
    }
  }
}

TEST_P(CpuKernelsTest, CorrectRows) {
  Random random(29);
  for (const int64_t rows : {1, 5, 64, 131}) {
    for (const int64_t every : {1, 2, 64, 200}) {
      for (const int64_t width : {1, 13, 256}) {
        CorrectRowsItem item = {.rows = rows, .width = width, .every = every};
        std::vector<float> expected = RandomVector(random, rows * width, 2.0f);
        std::vector<float> actual = expected;
        const std::vector<float> exact = RandomVector(random, item.blocks() * width, 2.0f);
        item.exact = exact.data();
        item.x = expected.data();
        ref_->CorrectRows(*stream_, item);
        item.x = actual.data();
        cpu_->CorrectRows(*stream_, item);
        EXPECT_EQ(actual, expected) << rows << " rows, every " << every << ", " << width;
        EXPECT_EQ(actual[0], exact[0]);
      }
    }
  }
}

TEST_P(CpuKernelsTest, SwiGlu) {
  Random random(23);
  for (const int64_t count : {1, 5, 16, 31, 1024, 100003}) {
    std::vector<float> gate = RandomVector(random, count, 5.0f);
    const std::vector<float> up = RandomVector(random, count, 2.0f);
    gate[0] = count % 2 == 0 ? 200.0f : -87.0f;
    if (count > 4) {
      gate[1] = -20.0f;
      gate[2] = 0.0f;
      gate[3] = 60.0f;
    }
    std::vector<float> expected = Poisoned(count);
    std::vector<float> actual = Poisoned(count);
    ref_->SwiGlu(*stream_, gate.data(), up.data(), count, expected.data());
    cpu_->SwiGlu(*stream_, gate.data(), up.data(), count, actual.data());
    cpu_->SwiGlu(*stream_, gate.data(), up.data(), count, gate.data());
    EXPECT_EQ(gate, actual);
    for (size_t i = 0; i < actual.size(); ++i) {
      // An exponential within an ulp, and four roundings.
      ASSERT_NEAR(actual[i], expected[i], 4 * kEps * std::fabs(expected[i]) + 1e-37);
    }
  }
}

// Through products of one input, so that every value is seen, in vectors and behind them.
TEST_P(CpuKernelsTest, GeluKeepsItsDigitsInBothTails) {
  constexpr int64_t kOut = 2 * 13 * 64 + 5;
  constexpr float kOne = 1.0f;
  std::vector<float> weight;
  for (int64_t i = 0; i < kOut; ++i) {
    weight.push_back(static_cast<float>(i - kOut / 2) / 64.0f);
  }
  for (const LinearResult result : {LinearResult::kGelu, LinearResult::kGeluTanh}) {
    std::vector<float> expected(weight.size()), actual(weight.size());
    LinearOp op = {
        .weight = {reinterpret_cast<const std::byte*>(weight.data()), DType::kF32, kOut, 1},
        .y = expected.data(),
        .y_stride = kOut,
        .result = result};
    ref_->Linear(*stream_, &kOne, 1, {&op, 1});
    op.y = actual.data();
    cpu_->Linear(*stream_, &kOne, 1, {&op, 1});
    for (size_t i = 0; i < weight.size(); ++i) {
      // The exponent of what is left of x far below zero is up to x² times some roundings off; the
      // rest are a dozen roundings. The definition's own are of f64.
      const double x = double{weight[i]};
      const double cubic = result == LinearResult::kGelu ? 1.0 : 1.0 + 0.1 * std::abs(x);
      EXPECT_NEAR(
          actual[i], expected[i],
          (16.0 + 2.0 * x * x * cubic) * 0x1p-24 * std::abs(expected[i]) + 0x1p-52 * std::abs(x))
          << x;
    }
  }
}

TEST_P(CpuKernelsTest, GeluOfExtremesIsDefined) {
  const std::vector<float> weight = {NAN, INFINITY, 3e38f, -3e38f, -200.0f, 0.0f, -0.0f};
  constexpr float kOne = 1.0f;
  for (const LinearResult result : {LinearResult::kGelu, LinearResult::kGeluTanh}) {
    std::vector<float> y(weight.size());
    const LinearOp op = {.weight = {reinterpret_cast<const std::byte*>(weight.data()), DType::kF32,
                                    static_cast<int64_t>(weight.size()), 1},
                         .y = y.data(),
                         .y_stride = static_cast<int64_t>(weight.size()),
                         .result = result};
    cpu_->Linear(*stream_, &kOne, 1, {&op, 1});
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], INFINITY);
    EXPECT_EQ(y[2], 3e38f);
    for (size_t i = 3; i < y.size(); ++i) EXPECT_NEAR(y[i], 0.0f, 10.0f) << weight[i];
  }
}

TEST_P(CpuKernelsTest, SwiGluOfExtremesIsDefined) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> gate = {-1000.0f, -kMax, 1000.0f, kMax, kPoison, 0.0f};
  const std::vector<float> up = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, kPoison};
  std::vector<float> y(gate.size());
  cpu_->SwiGlu(*stream_, gate.data(), up.data(), static_cast<int64_t>(gate.size()), y.data());
  EXPECT_NEAR(y[0], 0.0f, 1e-30f);
  EXPECT_NEAR(y[1], 0.0f, 4.0f);  // kMax / e^88: as good as 0 beside kMax
  EXPECT_EQ(y[2], 1000.0f);
  EXPECT_EQ(y[3], kMax);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST_P(CpuKernelsTest, RopeAngles) {
  Random random(24);
  for (const RopeProduct product : {RopeProduct::kRounded, RopeProduct::kExact})
    for (const int rotary_dim : {2, 64, 80, 128}) {
      for (const int64_t tokens : {1, 9, 300}) {
        std::vector<int32_t> positions = {0};
        while (static_cast<int64_t>(positions.size()) < tokens) {
          const bool exact = product == RopeProduct::kExact;  // which may turn back, and far
          positions.push_back(static_cast<int32_t>(exact ? random.Below(1 << 23) - (1 << 22)
                                                         : random.Below(1 << 20)));
        }
        std::vector<float> inv_freq;
        for (int i = 0; i < rotary_dim / 2; ++i) {
          inv_freq.push_back(static_cast<float>(std::pow(5e5, -2.0 * i / rotary_dim)));
        }
        const int64_t count = tokens * rotary_dim / 2;
        std::vector<float> cos_ref = Poisoned(count);
        std::vector<float> sin_ref = Poisoned(count);
        std::vector<float> cos_cpu = Poisoned(count);
        std::vector<float> sin_cpu = Poisoned(count);
        RopeAnglesItem item = {.positions = positions,
                               .inv_freq = inv_freq.data(),
                               .rotary_dim = rotary_dim,
                               .scale = 1.25f,
                               .product = product,
                               .cos = cos_ref.data(),
                               .sin = sin_ref.data()};
        ref_->RopeAngles(*stream_, item);
        item.cos = cos_cpu.data();
        item.sin = sin_cpu.data();
        cpu_->RopeAngles(*stream_, item);
        for (size_t i = 0; i < cos_ref.size(); ++i) {
          // The angle is the same float; cosine, sine and the scaling round once each.
          ASSERT_NEAR(cos_cpu[i], cos_ref[i], 2 * kEps);
          ASSERT_NEAR(sin_cpu[i], sin_ref[i], 2 * kEps);
        }
      }
    }
}

TEST_P(CpuKernelsTest, Rope) {
  Random random(25);
  struct Shape {
    int head_dim;
    int rotary_dim;
    int heads;
    int64_t tokens;
  };
  for (const Shape& shape : {Shape{64, 64, 8, 1}, Shape{80, 80, 3, 40}, Shape{128, 128, 5, 77},
                             Shape{96, 32, 2, 10}, Shape{256, 256, 1, 200}, Shape{6, 2, 4, 9}}) {
    const int64_t half = shape.rotary_dim / 2;
    const int64_t stride = shape.heads * shape.head_dim + 7;
    std::vector<float> cos = RandomVector(random, shape.tokens * half, 1.0f);
    std::vector<float> sin = RandomVector(random, shape.tokens * half, 1.0f);
    const RopeTable table = {cos.data(), sin.data(), shape.rotary_dim};
    std::vector<float> expected = RandomVector(random, shape.tokens * stride, 2.0f);
    std::vector<float> actual = expected;
    const std::vector<float> before = expected;
    HeadRows rows = {expected.data(), shape.tokens, shape.heads, shape.head_dim, stride};
    ref_->Rope(*stream_, table, rows);
    rows.x = actual.data();
    cpu_->Rope(*stream_, table, rows);
    for (int64_t i = 0; i < shape.tokens * stride; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t column = i % stride;
      if (column >= shape.heads * shape.head_dim || column % shape.head_dim >= shape.rotary_dim) {
        ASSERT_EQ(actual[at], before[at]) << "changed what does not rotate";
      }
      // Two products below 2 * 8 * 8 in magnitude, three roundings.
      ASSERT_NEAR(actual[at], expected[at], 3 * kEps / 2 * 64.0);
    }
  }
}

// Into poisoned pages, of which nothing else is written.
TEST_P(CpuKernelsTest, TurnKeys) {
  Random random(27);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [head_dim, rotary_dim] : {std::pair{64, 64}, {80, 20}, {6, 2}, {128, 0}}) {
      const PageFormat format = {.dtype = dtype, .page_slots = 16, .head_dim = head_dim};
      const int heads = 1 + static_cast<int>(random.Below(3));
      PageRun from;
      from.first_slot = random.Below(16);
      from.count = 1 + random.Below(90);
      from.page_stride = static_cast<int64_t>(format.bytes()) + 48;
      from.head_stride = CeilDiv(from.first_slot + from.count, 16) * from.page_stride + 16;
      const int64_t elements = heads * from.head_stride / static_cast<int64_t>(DTypeBytes(dtype));
      std::vector<std::byte> keys(static_cast<size_t>(heads * from.head_stride));
      for (int64_t i = 0; i < elements; ++i) StoreFloat(keys.data(), i, dtype, random.Normal());
      from.k = keys.data();
      std::vector<std::byte> expected(keys.size(), std::byte{0xFF}), actual = expected;
      const std::vector<float> cos = RandomVector(random, from.count * (rotary_dim / 2), 1.0f);
      const std::vector<float> sin = RandomVector(random, from.count * (rotary_dim / 2), 1.0f);
      TurnKeysItem item = {from, expected.data(), heads, {cos.data(), sin.data(), rotary_dim}};
      ref_->TurnKeys(*stream_, format, item);
      item.to = actual.data();
      cpu_->TurnKeys(*stream_, format, item);
      const double unit = dtype == DType::kF32 ? kEps : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
      int64_t written = 0;
      for (int64_t i = 0; i < elements; ++i) {
        const double a = LoadAsFloat(expected.data(), i, dtype);
        const double b = LoadAsFloat(actual.data(), i, dtype);
        ASSERT_EQ(std::isnan(a), std::isnan(b)) << "element " << i;
        if (std::isnan(a)) continue;
        ++written;
        // Two products below 8 * 8 in magnitude, three roundings, and that to the dtype.
        ASSERT_NEAR(a, b, 3 * kEps * 64.0 + unit * std::abs(a)) << "element " << i;
      }
      EXPECT_EQ(written, heads * from.count * head_dim);
    }
  }
}

TEST_P(CpuKernelsTest, LinearInPreparedWorkspace) {
  Random random(26);
  const KernelLimits limits = {
      .rows = 70, .max_in = 200, .max_out = 90, .head_dim = 64, .group = 4};
  const int64_t bytes = cpu_->WorkspaceBytes(limits);
  Budget too_small("fast memory", bytes - 1);
  EXPECT_EQ(cpu_->Prepare(limits, *device_, too_small).code(), StatusCode::kOutOfBudget);
  Budget budget("fast memory", bytes);
  ASSERT_TRUE(cpu_->Prepare(limits, *device_, budget).ok());
  EXPECT_EQ(budget.used(), bytes);

  const std::vector<float> x = RandomVector(random, limits.rows * limits.max_in, 1.0f);
  const std::vector<float> w = RandomVector(random, limits.max_out * limits.max_in, 1.0f);
  const WeightView weight = {reinterpret_cast<const std::byte*>(w.data()), DType::kF32,
                             limits.max_out, limits.max_in};
  for (const int64_t rows : {int64_t{1}, limits.rows}) {
    std::vector<float> expected = Poisoned(rows * limits.max_out);
    std::vector<float> actual = expected;
    LinearOp op = {.weight = weight, .y = expected.data(), .y_stride = limits.max_out};
    ref_->Linear(*stream_, x.data(), rows, {&op, 1});
    op.y = actual.data();
    cpu_->Linear(*stream_, x.data(), rows, {&op, 1});
    // As in linear_test.cc; the terms' magnitudes sum to about 200 * 0.64.
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-3);
  }
  const Trace::LaneTotals totals = trace_.totals(Lane::kCompute);
  EXPECT_EQ(totals.flops, 2 * (limits.rows + 1) * limits.max_in * limits.max_out);
  EXPECT_GT(totals.busy_ns, 0);
  cpu_.reset();
  EXPECT_EQ(budget.used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuKernelsTest, testing::ValuesIn(CpuIsas()),
                         [](const auto& isa) { return isa.param; });

TEST(NewCpuKernelsTest, AutoIsTheBestAndUnknownSetsAreNamed) {
  ThreadPool pool(1);
  const Result<std::unique_ptr<Kernels>> best = NewCpuKernels(&pool, nullptr, "auto");
  ASSERT_TRUE(best.ok());
  EXPECT_EQ((*best)->name(), "cpu " + CpuIsas().front());
  const Result<std::unique_ptr<Kernels>> unknown = NewCpuKernels(&pool, nullptr, "mmx");
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), testing::HasSubstr("mmx"));
  EXPECT_THAT(unknown.status().message(), testing::HasSubstr("avx2"));
}

}  // namespace
}  // namespace headway
