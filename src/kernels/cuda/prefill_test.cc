// Attention of prefill as a whole, whose pieces are merged; prefill_host_test.cc says what they
// are.
#include "kernels/cuda/prefill.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/ref/ref_attention.h"

namespace headway::cuda {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr DType kDType = DType::kBF16;
constexpr double kUnit = 0x1p-8;  // of its rounding
constexpr int kHeads = 2, kGroup = 2, kHeadDim = 64;
constexpr int64_t kTokens = 128;
constexpr int64_t kWidth = int64_t{kHeads} * kGroup * kHeadDim;
constexpr PageFormat kFormat = {.dtype = kDType, .page_slots = 64, .head_dim = kHeadDim};

std::vector<std::byte> Encode(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(kDType));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), kDType, values[i]);
  }
  return bytes;
}

std::vector<std::byte> Drawn(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.Normal();
  return Encode(values);
}

// A slab of `keys` keys that all queries see, all of it full and nothing readable behind it.
struct Slab {
  int64_t keys = 0;
  bool merge = false;   // into a state of other keys
  bool result = false;  // to activations, as the last range
};

class CudaPrefillTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<std::unique_ptr<Sdpa>> made = Sdpa::Create(0);
    if (made.ok()) sdpa_ = std::move(*made);
  }
  static void TearDownTestSuite() { sdpa_.reset(); }
  void SetUp() override {
    if (sdpa_ == nullptr) GTEST_SKIP() << "no cuDNN";
  }

  static void Check(const Slab& slab);
  static std::unique_ptr<Sdpa> sdpa_;
};

std::unique_ptr<Sdpa> CudaPrefillTest::sdpa_;

void CudaPrefillTest::Check(const Slab& slab) {
  SCOPED_TRACE(std::to_string(slab.keys) + " keys" + (slab.merge ? ", merged" : "") +
               (slab.result ? ", to activations" : ""));
  Random random(31);
  const std::vector<std::byte> q = Drawn(random, kTokens * kWidth);
  // The memory of a head ends where the next one's begins: NaN behind the last.
  const int64_t plane = kHeads * slab.keys * kHeadDim;
  std::vector<std::byte> k = Drawn(random, plane);
  std::vector<std::byte> v = Drawn(random, plane);
  std::vector<float> o(static_cast<size_t>(kTokens * kWidth), kPoison);
  std::vector<float> lse(static_cast<size_t>(kTokens * kHeads * kGroup), kPoison);
  if (slab.merge) {
    for (float& value : o) value = random.Normal();
    for (float& value : lse) value = 8 + random.Normal();
  }
  AttentionItem item;
  item.q = q.data();
  item.q_stride = kWidth;
  item.tokens = kTokens;
  item.q_position = slab.keys + 5;
  item.heads = kHeads;
  item.keys.position = 5;
  item.keys.pages = {.k = k.data(),
                     .v = v.data(),
                     .page_stride = static_cast<int64_t>(kFormat.bytes()),
                     .head_stride = slab.keys * kHeadDim * 2,
                     .count = slab.keys,
                     .readable = slab.keys};
  std::vector<float> want_o = o;
  std::vector<float> want_lse = lse;
  item.o = want_o.data();
  item.o_stride = kWidth;
  item.lse = want_lse.data();
  item.lse_stride = kHeads * kGroup;
  item.merge = slab.merge;
  const AttentionParams params = {.scale = 0.125f};
  {
    // The definition takes queries in f32.
    std::vector<float> q_floats(static_cast<size_t>(kTokens * kWidth));
    for (size_t i = 0; i < q_floats.size(); ++i) {
      q_floats[i] = LoadAsFloat(q.data(), static_cast<int64_t>(i), kDType);
    }
    item.q = q_floats.data();
    ref::Attend(kFormat, kGroup, params, {&item, 1});
  }

  KernelLimits limits;
  limits.rows = kTokens;
  limits.head_dim = kHeadDim;
  limits.group = kGroup;
  limits.query_heads = kHeads * kGroup;
  limits.activation = kDType;
  const DeviceArray<std::byte> memory(static_cast<size_t>(PrefillLayout(limits).total()));
  const DeviceArray<std::byte> d_q(q);
  const std::vector<std::byte> poison(8192, std::byte{0xFF});
  k.insert(k.end(), poison.begin(), poison.end());
  v.insert(v.end(), poison.begin(), poison.end());
  const DeviceArray<std::byte> d_k(k);
  const DeviceArray<std::byte> d_v(v);
  const DeviceArray<float> d_o(o);
  const DeviceArray<float> d_lse(lse);
  const DeviceArray<std::byte> d_result(Encode(std::vector<float>(o.size(), kPoison)));
  item.q = d_q.at();
  item.keys.pages.k = d_k.at();
  item.keys.pages.v = d_v.at();
  item.o = d_o.at();
  item.lse = d_lse.at();
  if (slab.result) {
    item.result = d_result.at();
    item.result_stride = kWidth;
  }
  const Status status = AttendPrefill(nullptr, {memory.at(), nullptr, limits, sdpa_.get()}, kFormat,
                                      kGroup, params, item);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);

  const std::vector<std::byte> result = d_result.Read(o.size() * 2);
  const std::vector<float> got_o = d_o.Read(o.size());
  const std::vector<float> got_lse = d_lse.Read(lse.size());
  for (size_t i = 0; i < o.size(); ++i) {
    // Weights are rounded before they meet v, whose magnitude is below 6, a part's o behind it, and
    // the result again.
    const float got =
        slab.result ? LoadAsFloat(result.data(), static_cast<int64_t>(i), kDType) : got_o[i];
    ASSERT_NEAR(got, want_o[i], kUnit * (1.0 + 2 * std::abs(double{want_o[i]})) + 1e-4) << i;
  }
  for (size_t i = 0; i < lse.size() && !slab.result; ++i) {
    ASSERT_NEAR(got_lse[i], want_lse[i], 1e-4 * (1 + std::abs(double{want_lse[i]}))) << i;
  }
}

// One to three pages more than plans of cuDNN cover, and one alone.
TEST_F(CudaPrefillTest, PagesLeftOverAreMerged) {
  for (const int64_t keys : {320, 448, 512, 576, 640, 704, 832}) {
    for (const bool merge : {false, true}) {
      for (const bool result : {false, true}) {
        Check({keys, merge, result});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaPrefillTest, AFullSlabHasAPlanOfItsOwn) {
  const int64_t plans = sdpa_->plans();
  for (const int64_t keys : {16'384 + 64, 16'384 + 192}) {
    Check({keys, true, false});
    Check({keys, false, true});
    if (HasFatalFailure()) return;
  }
  // With the result where it is wanted, and beside other states.
  EXPECT_LE(sdpa_->plans() - plans, 4);
}

}  // namespace
}  // namespace headway::cuda
