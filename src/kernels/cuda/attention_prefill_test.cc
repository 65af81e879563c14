#include "kernels/cuda/attention_prefill.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/ref/ref_attention.h"

namespace headway::cuda {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;  // rounding to f32 is off by at most this, relatively

double Unit(DType dtype) { return dtype == DType::kF16 ? 0x1p-11 : 0x1p-8; }

// Memory of the device, filled from the host's and copied back.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(1, Bytes())), cudaSuccess);
    EXPECT_EQ(cuda::CopyToGpu(data_, host.data(), Bytes()), cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, Bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t Bytes() const { return size_ * sizeof(T); }
  size_t size_;
  void* data_ = nullptr;
};

std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

struct Case {
  PageFormat format;
  int group = 1;
  int heads = 1;
  AttentionParams params;
  int64_t tokens = 1;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t gap = 0;  // bytes between pages, and between heads
  int64_t position = 0;
  int64_t q_position = 0;
  bool positions = false;  // keys lie at random ascending positions
  bool merge = false;
  bool result = false;  // to activations

  std::string Name() const {
    return std::string(DTypeName(format.dtype)) + " dim " + std::to_string(format.head_dim) +
           " slots " + std::to_string(format.page_slots) + " group " + std::to_string(group) +
           " heads " + std::to_string(heads) + " tokens " + std::to_string(tokens) + " count " +
           std::to_string(count) + " first slot " + std::to_string(first_slot) + " position " +
           std::to_string(position) + " q position " + std::to_string(q_position) + " window " +
           std::to_string(params.window) + " softcap " + std::to_string(params.softcap) +
           (positions ? " positions" : "") + (merge ? " merge" : "") + (result ? " result" : "");
  }
};

// The pages of one case: NaN wherever no key lies.
struct Pages {
  std::vector<std::byte> bytes;
  int64_t page_stride = 0;
  int64_t head_stride = 0;

  explicit Pages(const Case& c) {
    page_stride = static_cast<int64_t>(c.format.bytes()) + c.gap;
    head_stride = CeilDiv(c.first_slot + c.count, c.format.page_slots) * page_stride + c.gap;
    bytes.assign(static_cast<size_t>(c.heads * head_stride), std::byte{0xFF});
  }
  // value(number that was there or is drawn) of every element.
  template <typename Function>
  void Each(const Case& c, Function function) {
    for (int head = 0; head < c.heads; ++head) {
      for (int64_t key = 0; key < c.count; ++key) {
        const int64_t slot = c.first_slot + key;
        std::byte* page =
            bytes.data() + head * head_stride + slot / c.format.page_slots * page_stride;
        for (int64_t i = 0; i < c.format.head_dim; ++i) {
          const int64_t at = slot % c.format.page_slots * c.format.head_dim + i;
          StoreFloat(page, at, c.format.dtype, function(LoadAsFloat(page, at, c.format.dtype)));
        }
      }
    }
  }
};

// Runs the case and compares it with the definition.
void Check(const Case& c, Random& random, float key_size = 1.0f) {
  SCOPED_TRACE(c.Name());
  const DType dtype = c.format.dtype;
  const int64_t dim = c.format.head_dim;
  const int64_t q_heads = int64_t{c.heads} * c.group;
  const int64_t q_stride = q_heads * dim + 8;
  const int64_t o_stride = q_heads * dim + 2;
  const int64_t lse_stride = q_heads + 1;
  const int64_t result_stride = q_heads * dim + 4;

  std::vector<float> q(static_cast<size_t>(c.tokens * q_stride), kPoison);
  double q_norm = 0;
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t head = 0; head < q_heads; ++head) {
      double squares = 0;
      for (int64_t i = 0; i < dim; ++i) {
        std::byte rounded[4];
        StoreFloat(rounded, 0, dtype, random.Normal());
        const float value = LoadAsFloat(rounded, 0, dtype);
        q[static_cast<size_t>(token * q_stride + head * dim + i)] = value;
        squares += double{value} * value;
      }
      q_norm = std::max(q_norm, std::sqrt(squares));
    }
  }
  Pages k(c);
  Pages v(c);
  double k_norm = 0;
  double squares = 0;
  int64_t drawn = 0;
  k.Each(c, [&](float) {
    const float value = key_size * random.Normal();
    squares += double{value} * value;
    if (++drawn % dim == 0) {
      k_norm = std::max(k_norm, std::sqrt(squares));
      squares = 0;
    }
    return value;
  });
  v.Each(c, [&](float) { return random.Normal(); });
  std::vector<int32_t> positions;
  auto next = static_cast<int32_t>(c.position);
  for (int64_t key = 0; key < c.count; ++key) {
    positions.push_back(next);
    next += c.positions ? 1 + static_cast<int32_t>(random.Below(3)) : 1;
  }
  std::vector<float> o(static_cast<size_t>(c.tokens * o_stride), kPoison);
  std::vector<float> lse(static_cast<size_t>(c.tokens * lse_stride), kPoison);
  for (int64_t token = 0; c.merge && token < c.tokens; ++token) {
    for (int64_t head = 0; head < q_heads; ++head) {
      // Some have seen no key yet: their o stays poisoned.
      const bool none = random.Below(4) == 0;
      lse[static_cast<size_t>(token * lse_stride + head)] = none ? kNoKeys : 4 * random.Normal();
      for (int64_t i = 0; i < dim && !none; ++i) {
        o[static_cast<size_t>(token * o_stride + head * dim + i)] = random.Normal();
      }
    }
  }

  AttentionItem item;
  item.q = q.data();
  item.q_stride = q_stride;
  item.tokens = c.tokens;
  item.q_position = c.q_position;
  item.heads = c.heads;
  item.keys.pages = {.k = k.bytes.data(),
                     .v = v.bytes.data(),
                     .page_stride = k.page_stride,
                     .head_stride = k.head_stride,
                     .first_slot = c.first_slot,
                     .count = c.count};
  item.keys.position = c.positions ? -1 : c.position;
  if (c.positions) item.keys.positions = positions.data();
  std::vector<float> want_o = o;
  std::vector<float> want_lse = lse;
  item.o = want_o.data();
  item.o_stride = o_stride;
  item.lse = want_lse.data();
  item.lse_stride = lse_stride;
  item.merge = c.merge;
  ref::Attend(c.format, c.group, c.params, {&item, 1});
  // The weighted sums of magnitudes, which the roundings of the weights are relative to.
  Pages magnitudes = v;
  magnitudes.Each(c, [](float value) { return std::abs(value); });
  AttentionItem sizes = item;
  std::vector<float> size(o.size());
  std::vector<float> unused(lse.size());
  sizes.keys.pages.v = magnitudes.bytes.data();
  sizes.o = size.data();
  sizes.lse = unused.data();
  sizes.merge = false;
  ref::Attend(c.format, c.group, c.params, {&sizes, 1});

  const OnDevice<std::byte> d_q(Encode(q, dtype));
  const OnDevice<std::byte> d_k(k.bytes);
  const OnDevice<std::byte> d_v(v.bytes);
  const OnDevice<int32_t> d_positions(positions);
  const OnDevice<float> d_o(o);
  const OnDevice<float> d_lse(lse);
  const OnDevice<std::byte> d_result(
      Encode(std::vector<float>(static_cast<size_t>(c.tokens * result_stride), kPoison), dtype));
  item.q = d_q.data();
  item.keys.pages.k = d_k.data();
  item.keys.pages.v = d_v.data();
  if (c.positions) item.keys.positions = d_positions.data();
  item.o = d_o.data();
  item.lse = d_lse.data();
  if (c.result) item.result = d_result.data();
  item.result_stride = result_stride;
  ASSERT_TRUE(CanAttendTiles(c.format, dtype, c.group, c.params, item));
  ASSERT_EQ(AttendTiles(nullptr, c.format, dtype, c.group, c.params, item), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);

  const std::vector<float> got_o = d_o.Read();
  const std::vector<float> got_lse = d_lse.Read();
  const std::vector<std::byte> result = d_result.Read();
  // Sums of products are f32, at most |q| |k| large (Cauchy-Schwarz); the last terms are the
  // products with scale and log2(e), the cap, and the exponential.
  const double logits = q_norm * k_norm * double{c.params.scale};
  const double logit_error = (static_cast<double>(dim) / 2 + 8) * kUnit * logits +
                             8 * kUnit * (logits + double{c.params.softcap});
  const double weight_error = 2 * logit_error + (static_cast<double>(c.count) + 40) * 2 * kUnit;
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t column = 0; column < o_stride; ++column) {
      const auto at = static_cast<size_t>(token * o_stride + column);
      if (column >= q_heads * dim) {
        ASSERT_TRUE(std::isnan(got_o[at]));
        continue;
      }
      // Values are no larger than 8.
      double tolerance = Unit(dtype) * double{size[at]} + 2 * weight_error * 8;
      float got = got_o[at];
      if (c.result) {
        got = LoadAsFloat(result.data(), token * result_stride + column, dtype);
        tolerance += Unit(dtype) * std::abs(double{want_o[at]}) + kUnit;
      }
      ASSERT_NEAR(got, want_o[at], tolerance) << "token " << token << " column " << column;
    }
    for (int64_t column = q_heads * dim; column < result_stride; ++column) {
      ASSERT_TRUE(std::isnan(LoadAsFloat(result.data(), token * result_stride + column, dtype)));
    }
    for (int64_t head = 0; head < lse_stride && !c.result; ++head) {
      const auto at = static_cast<size_t>(token * lse_stride + head);
      if (head == q_heads) {
        ASSERT_TRUE(std::isnan(got_lse[at]));
      } else if (want_lse[at] == kNoKeys) {
        ASSERT_EQ(got_lse[at], kNoKeys) << "token " << token << " head " << head;
      } else {
        ASSERT_NEAR(got_lse[at], want_lse[at],
                    weight_error + 8 * kUnit * std::abs(double{want_lse[at]}))
            << "token " << token << " head " << head;
      }
    }
  }
}

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.Below(static_cast<int64_t>(choices.size()))];
}

class AttentionPrefillTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionPrefillTest, AgreesWithTheDefinition) {
  Random random(11);
  for (int head_dim : {64, 128, 80, 96, 256, 8, 40, 136, 192}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      Case c;
      c.format = {
          .dtype = GetParam(), .page_slots = Pick(random, {1, 16, 64}), .head_dim = head_dim};
      c.group = Pick(random, {1, 2, 3, 4, 8});
      c.heads = 1 + static_cast<int>(random.Below(2));
      c.params = {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                  .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
                  .window = Pick<int64_t>(random, {0, 0, 1, 7, 64, 100, 4096})};
      c.tokens = Pick<int64_t>(random, {1, 16, 17, 1 + random.Below(64), 1 + random.Below(200)});
      c.count = Pick<int64_t>(random, {0, 1, 64, random.Below(64), random.Below(300)});
      c.first_slot = random.Below(2 * c.format.page_slots);
      c.gap = 16 * random.Below(4);
      c.position = random.Below(50);
      c.positions = random.Below(4) == 0;
      c.q_position = std::max<int64_t>(
          0, c.position + (c.positions ? 2 : 1) * c.count - random.Below(c.tokens + 1) -
                 Pick<int64_t>(random, {0, 0, -random.Below(100), random.Below(c.count + 60)}));
      c.merge = random.Below(3) == 0;
      c.result = random.Below(3) == 0;
      Check(c, random, Pick(random, {0.1f, 1.0f, 4.0f}));
    }
  }
}

// A prompt in chunks, as the engine does it: the keys of earlier chunks, then the chunk's own.
TEST_P(AttentionPrefillTest, SlidesItsWindowOverChunks) {
  Random random(12);
  for (int64_t window : {1, 7, 63, 64, 65, 128, 200}) {
    Case c;
    c.format = {.dtype = GetParam(), .page_slots = 64, .head_dim = 64};
    c.group = 2;
    c.params = {.scale = 0.125f, .window = window};
    c.tokens = 150;
    c.q_position = 300;
    c.count = 300;
    Check(c, random);
    c.position = 300;
    c.count = 150;
    c.merge = true;
    c.result = true;
    Check(c, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionPrefillTest, PassesOnNan) {
  Case c;
  c.format = {.dtype = GetParam(), .page_slots = 64, .head_dim = 64};
  c.tokens = 20;
  c.count = 20;
  constexpr size_t kElements = 20 * 64;
  std::vector<float> keys(kElements, 1.0f);
  keys[5 * 64 + 3] = kPoison;
  const OnDevice<std::byte> q(Encode(std::vector<float>(kElements, 1.0f), GetParam()));
  const OnDevice<std::byte> k(Encode(keys, GetParam()));
  const OnDevice<std::byte> v(Encode(std::vector<float>(kElements, 1.0f), GetParam()));
  const OnDevice<float> o(std::vector<float>(kElements, 0.0f));
  const OnDevice<float> lse(std::vector<float>(20, 0.0f));
  AttentionItem item;
  item.q = q.data();
  item.q_stride = 64;
  item.tokens = 20;
  item.keys.pages = {.k = k.data(),
                     .v = v.data(),
                     .page_stride = static_cast<int64_t>(c.format.bytes()),
                     .head_stride = static_cast<int64_t>(c.format.bytes()),
                     .count = 20};
  item.o = o.data();
  item.o_stride = 64;
  item.lse = lse.data();
  item.lse_stride = 1;
  for (bool merge : {false, true}) {
    item.merge = merge;
    ASSERT_EQ(AttendTiles(nullptr, c.format, GetParam(), 1, c.params, item), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    // Tokens before the key do not see it.
    for (size_t token = 0; token < 20; ++token) {
      EXPECT_EQ(std::isnan(lse.Read()[token]), token >= 5) << token;
      EXPECT_EQ(std::isnan(o.Read()[token * 64]), token >= 5) << token;
    }
  }
}

TEST_P(AttentionPrefillTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte page[64] = {};
  const PageFormat format = {.dtype = GetParam(), .page_slots = 16, .head_dim = 64};
  const AttentionParams params;
  AttentionItem item;
  item.tokens = 16;
  item.keys.pages = {.k = page, .v = page, .page_stride = 4096, .count = 16};
  EXPECT_TRUE(CanAttendTiles(format, GetParam(), 4, params, item));
  EXPECT_FALSE(CanAttendTiles(format, DType::kF32, 4, params, item));
  for (int head_dim : {0, 68, 264}) {
    PageFormat other = format;
    other.head_dim = head_dim;
    EXPECT_FALSE(CanAttendTiles(other, GetParam(), 4, params, item));
  }
  PageFormat other = format;
  other.page_slots = 24;
  EXPECT_FALSE(CanAttendTiles(other, GetParam(), 4, params, item));
  AttentionItem with = item;
  with.split = 64;
  EXPECT_FALSE(CanAttendTiles(format, GetParam(), 4, params, with));
  with = item;
  with.keys.pages.k += 2;
  EXPECT_FALSE(CanAttendTiles(format, GetParam(), 4, params, with));
  EXPECT_EQ(AttendTiles(nullptr, format, GetParam(), 4, params, with), cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionPrefillTest, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

}  // namespace
}  // namespace headway::cuda
