#include "kernels/cuda/sdpa.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/cuda_testing.h"

namespace headway::cuda {
namespace {

// Large, finite, and not a sum of what the tests draw: what must not get into a result.
constexpr float kFinitePoison = 30000.0f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kKvHeads = 2;
// Elements between the rows of q, k, v and o that belong to nobody.
constexpr int64_t kGap = 16;

uint16_t Encode(float value, DType dtype) {
  return dtype == DType::kBF16 ? ToBF16(value).bits : ToF16(value).bits;
}

double Decode(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
}

// Half a unit in the last place of 1: what rounding a number to the dtype changes it by at most.
double RoundingError(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

// Device memory with a copy on the host.
template <typename T>
class Array {
 public:
  explicit Array(size_t count, T value) : host_(count, value) {
    EXPECT_EQ(cudaMalloc(&device_, count * sizeof(T)), cudaSuccess);
  }
  ~Array() { cudaFree(device_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void Upload() {
    EXPECT_EQ(cuda::CopyToGpu(device_, host_.data(), host_.size() * sizeof(T)), cudaSuccess);
  }
  void Download() {
    EXPECT_EQ(cudaMemcpy(host_.data(), device_, host_.size() * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
  }
  T& operator[](int64_t i) { return host_[static_cast<size_t>(i)]; }
  int64_t size() const { return static_cast<int64_t>(host_.size()); }
  T* device() { return static_cast<T*>(device_); }

 private:
  std::vector<T> host_;
  void* device_ = nullptr;
};

struct Sizes {
  int64_t tokens;
  int64_t keys;
  bool causal;
  bool head_major;  // k and v are [heads, keys, head_dim] instead of [keys, heads, head_dim]
};

void PrintTo(const Sizes& sizes, std::ostream* out) {
  *out << sizes.tokens << "x" << sizes.keys << (sizes.causal ? " causal" : "")
       << (sizes.head_major ? " head-major" : "");
}

SdpaShape ShapeOf(DType dtype, int group, int head_dim, const Sizes& sizes) {
  const int query_heads = group * kKvHeads;
  const int64_t q_row = query_heads * head_dim + kGap;
  const int64_t kv_rows = SdpaBucket(sizes.keys);
  return {.dtype = dtype,
          .query_heads = query_heads,
          .kv_heads = kKvHeads,
          .head_dim = head_dim,
          .tokens = sizes.tokens,
          .keys = sizes.keys,
          .causal = sizes.causal,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .q_token_stride = q_row,
          .q_head_stride = head_dim,
          .kv_token_stride = sizes.head_major ? head_dim : kKvHeads * head_dim + kGap,
          .kv_head_stride = sizes.head_major ? kv_rows * head_dim : head_dim,
          .o_token_stride = q_row,
          .o_head_stride = head_dim};
}

// One random problem: runs it and compares it with the definition, in double.
void Check(Sdpa& sdpa, const SdpaShape& shape, uint64_t seed) {
  const int group = shape.query_heads / shape.kv_heads;
  const int64_t head_dim = shape.head_dim;
  const int64_t q_rows = SdpaBucket(shape.tokens);
  const int64_t kv_rows = SdpaBucket(shape.keys);
  const uint16_t nan = Encode(kNan, shape.dtype);
  const uint16_t poison = shape.exact_keys ? nan : Encode(kFinitePoison, shape.dtype);

  // A row of nobody's behind the last one of o and of each head of lse.
  Array<uint16_t> q(static_cast<size_t>(q_rows * shape.q_token_stride), nan);
  Array<uint16_t> k(static_cast<size_t>(kv_rows * (kKvHeads * head_dim + kGap)), poison);
  Array<uint16_t> v(static_cast<size_t>(kv_rows * (kKvHeads * head_dim + kGap)), poison);
  Array<uint16_t> o(static_cast<size_t>((q_rows + 1) * shape.o_token_stride), nan);
  Array<float> lse(static_cast<size_t>(shape.query_heads * q_rows + 1), kNan);
  Random random(seed);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int h = 0; h < shape.query_heads; ++h) {
      for (int64_t i = 0; i < head_dim; ++i) {
        q[t * shape.q_token_stride + h * shape.q_head_stride + i] =
            Encode(random.Normal(), shape.dtype);
      }
    }
  }
  for (int64_t key = 0; key < shape.keys; ++key) {
    for (int h = 0; h < shape.kv_heads; ++h) {
      for (int64_t i = 0; i < head_dim; ++i) {
        const int64_t at = key * shape.kv_token_stride + h * shape.kv_head_stride + i;
        k[at] = Encode(random.Normal(), shape.dtype);
        v[at] = Encode(random.Normal(), shape.dtype);
      }
    }
  }
  q.Upload();
  k.Upload();
  v.Upload();
  o.Upload();
  lse.Upload();

  const Status prepared = sdpa.Prepare(shape);
  ASSERT_TRUE(prepared.ok()) << prepared.message();
  const int64_t workspace_bytes = sdpa.WorkspaceBytes(shape);
  Array<std::byte> workspace(static_cast<size_t>(workspace_bytes), std::byte{0xFF});
  workspace.Upload();
  const Status ran = sdpa.Run(nullptr, shape,
                              {q.device(), k.device(), v.device(), o.device(), lse.device(),
                               workspace.device(), workspace_bytes});
  ASSERT_TRUE(ran.ok()) << ran.message();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  o.Download();
  lse.Download();

  const double rounding = RoundingError(shape.dtype);
  std::vector<double> weights(static_cast<size_t>(shape.keys));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const int64_t visible = shape.causal ? shape.keys - shape.tokens + t + 1 : shape.keys;
    for (int h = 0; h < shape.query_heads; ++h) {
      const int64_t q_at = t * shape.q_token_stride + h * shape.q_head_stride;
      const int64_t kv_at = h / group * shape.kv_head_stride;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t key = 0; key < visible; ++key) {
        double logit = 0;
        for (int64_t i = 0; i < head_dim; ++i) {
          logit += Decode(q[q_at + i], shape.dtype) *
                   Decode(k[kv_at + key * shape.kv_token_stride + i], shape.dtype);
        }
        logit *= static_cast<double>(shape.scale);
        weights[static_cast<size_t>(key)] = logit;
        max = std::max(max, logit);
      }
      double sum = 0;
      for (int64_t key = 0; key < visible; ++key) {
        double& weight = weights[static_cast<size_t>(key)];
        weight = std::exp(weight - max);
        sum += weight;
      }
      // Logits, exponentials and their sum are f32, the sums of products in the order of the
      // tensor cores.
      const double want_lse = max + std::log(sum);
      ASSERT_NEAR(lse[h * q_rows + t], want_lse, 1e-4 * (1 + std::abs(want_lse)))
          << "token " << t << ", head " << h;
      for (int64_t i = 0; i < head_dim; ++i) {
        double want = 0;
        double magnitude = 0;
        for (int64_t key = 0; key < visible; ++key) {
          const double product = weights[static_cast<size_t>(key)] / sum *
                                 Decode(v[kv_at + key * shape.kv_token_stride + i], shape.dtype);
          want += product;
          magnitude += std::abs(product);
        }
        // The weights are rounded to the dtype before they meet v, and o is rounded at the end.
        // The small rest is f32.
        const double tolerance = rounding * (magnitude + std::abs(want)) + 1e-4;
        ASSERT_NEAR(Decode(o[t * shape.o_token_stride + h * shape.o_head_stride + i], shape.dtype),
                    want, tolerance)
            << "token " << t << ", head " << h << ", element " << i;
      }
    }
  }
  for (int64_t row = 0; row <= q_rows; ++row) {
    const int64_t used = row < q_rows ? shape.query_heads * head_dim : 0;
    for (int64_t i = used; i < shape.o_token_stride; ++i) {
      ASSERT_EQ(o[row * shape.o_token_stride + i], nan) << "row " << row << ", element " << i;
    }
  }
  ASSERT_TRUE(std::isnan(lse[lse.size() - 1]));
}

// One for all tests: its plans are what takes the time.
class SdpaTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    Result<std::unique_ptr<Sdpa>> created = Sdpa::Create(0);
    if (created.ok()) {
      sdpa_ = std::move(*created).release();
    } else {
      error_ = new std::string(created.status().message());
    }
  }
  static void TearDownTestSuite() {
    delete sdpa_;
    delete error_;
    sdpa_ = nullptr;
    error_ = nullptr;
  }
  void SetUp() override {
    if (sdpa_ == nullptr) GTEST_SKIP() << (error_ != nullptr ? *error_ : "no CUDA device");
  }

  static Sdpa* sdpa_;
  static std::string* error_;
};

Sdpa* SdpaTest::sdpa_ = nullptr;
std::string* SdpaTest::error_ = nullptr;

class SdpaShapeTest : public SdpaTest,
                      public testing::WithParamInterface<std::tuple<DType, int, int, Sizes>> {};

TEST_P(SdpaShapeTest, AgreesWithTheDefinition) {
  const auto& [dtype, group, head_dim, sizes] = GetParam();
  Check(*sdpa_, ShapeOf(dtype, group, head_dim, sizes), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SdpaShapeTest,
    testing::Combine(testing::Values(DType::kBF16, DType::kF16), testing::Values(1, 4, 8),
                     testing::Values(64, 128, 256),
                     testing::Values(Sizes{128, 256, false, false}, Sizes{128, 128, true, true},
                                     Sizes{128, 384, true, false}, Sizes{1, 300, false, true},
                                     Sizes{100, 200, false, false}, Sizes{77, 77, true, false},
                                     Sizes{50, 131, true, true}, Sizes{150, 163, true, false})));

TEST_F(SdpaTest, SizesOfABucketShareItsPlan) {
  const SdpaShape first = ShapeOf(DType::kBF16, 4, 128, {300, 600, true, false});
  Check(*sdpa_, first, 1);
  const int64_t plans = sdpa_->plans();
  for (const auto& [tokens, keys] :
       {std::pair<int64_t, int64_t>{257, 513}, {383, 768}, {384, 767}}) {
    SdpaShape shape = first;
    shape.tokens = tokens;
    shape.keys = keys;
    Check(*sdpa_, shape, 2);
  }
  EXPECT_EQ(sdpa_->plans(), plans);
}

// A plan for just so many keys reads nothing behind them, and is another one.
TEST_F(SdpaTest, ExactKeysHaveAPlanOfTheirOwn) {
  SdpaShape shape = ShapeOf(DType::kBF16, 4, 128, {128, 576, false, false});
  shape.exact_keys = true;
  Check(*sdpa_, shape, 3);
  const int64_t plans = sdpa_->plans();
  shape.exact_keys = false;
  Check(*sdpa_, shape, 3);
  EXPECT_EQ(sdpa_->plans(), plans + 1);
  // Tokens may be fewer than a bucket's.
  shape.exact_keys = true;
  shape.tokens = 100;
  Check(*sdpa_, shape, 3);
  // Of a bucket's size it is the bucket's.
  shape = ShapeOf(DType::kBF16, 4, 128, {128, 512, false, false});
  Check(*sdpa_, shape, 3);
  const int64_t all = sdpa_->plans();
  shape.exact_keys = true;
  Check(*sdpa_, shape, 3);
  EXPECT_EQ(sdpa_->plans(), all);
}

// Each Run finds its own sizes, also when the host is far ahead of the device.
TEST_F(SdpaTest, RunsQueueUp) {
  const SdpaShape shape = ShapeOf(DType::kBF16, 1, 64, {128, 129, false, false});
  ASSERT_TRUE(sdpa_->Prepare(shape).ok());
  const int64_t workspace_bytes = sdpa_->WorkspaceBytes(shape);
  Array<std::byte> workspace(static_cast<size_t>(workspace_bytes), std::byte{0xFF});
  const int64_t rows = SdpaBucket(shape.keys);
  const uint16_t zero = Encode(0.0f, shape.dtype);
  Array<uint16_t> zeros(static_cast<size_t>(rows * shape.q_token_stride), zero);
  zeros.Upload();
  Array<uint16_t> o(static_cast<size_t>(SdpaBucket(shape.tokens) * shape.o_token_stride), zero);
  const int64_t lse_count = shape.query_heads * SdpaBucket(shape.tokens);
  constexpr int64_t kRuns = 60;
  Array<float> lse(static_cast<size_t>(kRuns * lse_count), kNan);
  lse.Upload();
  for (int64_t run = 0; run < kRuns; ++run) {
    SdpaShape longer = shape;
    longer.keys += run;
    const Status status =
        sdpa_->Run(nullptr, longer,
                   {zeros.device(), zeros.device(), zeros.device(), o.device(),
                    lse.device() + run * lse_count, workspace.device(), workspace_bytes});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  lse.Download();
  for (int64_t run = 0; run < kRuns; ++run) {
    // All logits are 0.
    EXPECT_NEAR(lse[run * lse_count], std::log(static_cast<double>(shape.keys + run)), 1e-4);
  }
}

TEST_F(SdpaTest, SaysWhatItDoesNotDo) {
  SdpaShape shape = ShapeOf(DType::kF32, 1, 64, {128, 128, false, false});
  EXPECT_EQ(sdpa_->Prepare(shape).code(), StatusCode::kUnsupported);
  shape = ShapeOf(DType::kBF16, 1, 64, {128, 127, true, false});
  EXPECT_EQ(sdpa_->Prepare(shape).code(), StatusCode::kInvalidArgument);
  shape = ShapeOf(DType::kBF16, 1, 64, {128, 0, false, false});
  EXPECT_EQ(sdpa_->Prepare(shape).code(), StatusCode::kInvalidArgument);
  // cuDNN wants multiples of 8.
  shape = ShapeOf(DType::kBF16, 1, 60, {128, 128, false, false});
  EXPECT_EQ(sdpa_->Prepare(shape).code(), StatusCode::kUnsupported);
}

TEST(SdpaBucketTest, IsTheSmallestThatHolds) {
  EXPECT_EQ(SdpaBucket(1), 128);
  EXPECT_EQ(SdpaBucket(128), 128);
  EXPECT_EQ(SdpaBucket(129), 192);
  EXPECT_EQ(SdpaBucket(192), 192);
  EXPECT_EQ(SdpaBucket(193), 256);
  EXPECT_EQ(SdpaBucket(256), 256);
  EXPECT_EQ(SdpaBucket(257), 384);
  EXPECT_EQ(SdpaBucket(100000), 131072);
  EXPECT_EQ(SdpaBucket(98304), 98304);
}

}  // namespace
}  // namespace headway::cuda
