#include "kernels/cuda/attention_decode.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/merge.h"

namespace headway::cuda {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr double kNoKeys = -std::numeric_limits<double>::infinity();
constexpr double kUnit = 0x1p-24;  // rounding to f32 is off by at most this, relatively

// A copy of host memory on the device.
class DeviceBytes {
 public:
  DeviceBytes(const void* data, size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(size, 1)), cudaSuccess);
    if (size > 0) {
      EXPECT_EQ(cuda::CopyToGpu(data_, data, size), cudaSuccess);
    }
  }
  template <typename T>
  explicit DeviceBytes(const std::vector<T>& data)
      : DeviceBytes(data.data(), data.size() * sizeof(T)) {}
  ~DeviceBytes() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::vector<T> Read() const {
    std::vector<T> data(size_ / sizeof(T));
    if (!data.empty()) {
      EXPECT_EQ(cudaMemcpy(data.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    }
    return data;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

// How far rounding to `dtype` is off at most, relatively.
double Unit(DType dtype) {
  return dtype == DType::kF32 ? kUnit : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

// A state of one query in f64.
struct State {
  std::vector<double> o;
  double lse = kNoKeys;
};

void MergeInto(State& state, const State& other) {
  if (other.lse == kNoKeys) return;
  if (state.lse == kNoKeys) {
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

struct Case {
  PageFormat format;
  int group = 1;
  AttentionParams params;
  int64_t tokens = 1;
  int heads = 1;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t page_gap = 0;  // bytes between pages
  int64_t head_gap = 0;
  int64_t position = 0;
  int64_t q_position = 0;
  bool positions = false;  // with random gaps
  int64_t split = 0;
  bool merge = false;
  float key_size = 1.0f;

  std::string Name() const {
    return std::string(DTypeName(format.dtype)) + " dim " + std::to_string(format.head_dim) +
           " slots " + std::to_string(format.page_slots) + " group " + std::to_string(group) +
           " tokens " + std::to_string(tokens) + " heads " + std::to_string(heads) + " count " +
           std::to_string(count) + " first slot " + std::to_string(first_slot) + " position " +
           std::to_string(position) + " q position " + std::to_string(q_position) + " window " +
           std::to_string(params.window) + " softcap " + std::to_string(params.softcap) +
           (positions ? " positions" : "") + " split " + std::to_string(split) +
           (merge ? " merge" : "");
  }
};

// One item with its memory on both sides.
class Problem {
 public:
  Problem(const Case& c, Random& random) : spec_(c), parts_(Parts(c)) {
    const DType dtype = c.format.dtype;
    const int64_t row = c.heads * c.group * c.format.head_dim;
    q_stride_ = row + 3;
    o_stride_ = row + 5;
    lse_stride_ = c.heads * c.group + 1;
    o_part_stride_ = c.tokens * o_stride_ + 7;
    lse_part_stride_ = c.tokens * lse_stride_ + 2;
    for (int64_t i = 0; i < c.tokens * q_stride_; ++i) {
      q_.push_back(i % q_stride_ < row ? random.Normal() : kPoison);
    }
    const int64_t page_stride = static_cast<int64_t>(c.format.bytes()) + c.page_gap;
    const int64_t pages = CeilDiv(c.first_slot + c.count, c.format.page_slots);
    const int64_t head_stride = pages * page_stride + c.head_gap;
    // All bits set are NaN in every dtype: what no key owns must not be read into a result.
    const auto size = static_cast<size_t>(c.heads * head_stride);
    k_.assign(size, std::byte{0xFF});
    v_.assign(size, std::byte{0xFF});
    for (int head = 0; head < c.heads; ++head) {
      for (int64_t key = 0; key < c.count; ++key) {
        const int64_t slot = c.first_slot + key;
        const int64_t at = head * head_stride + slot / c.format.page_slots * page_stride;
        const int64_t element = slot % c.format.page_slots * c.format.head_dim;
        key_at_.push_back(at + element * static_cast<int64_t>(DTypeBytes(dtype)));
        for (int64_t i = 0; i < c.format.head_dim; ++i) {
          StoreFloat(k_.data() + at, element + i, dtype, c.key_size * random.Normal());
          StoreFloat(v_.data() + at, element + i, dtype, random.Normal());
        }
      }
    }
    run_ = {.page_stride = page_stride,
            .head_stride = head_stride,
            .first_slot = c.first_slot,
            .count = c.count};
    auto position = static_cast<int32_t>(c.position);
    for (int64_t key = 0; key < c.count; ++key) {
      positions_.push_back(position);
      position += c.positions ? 1 + static_cast<int32_t>(random.Below(3)) : 1;
    }
    o_.assign(static_cast<size_t>(parts_ * o_part_stride_), kPoison);
    lse_.assign(static_cast<size_t>(parts_ * lse_part_stride_), kPoison);
    if (c.merge) FillState(random);
  }

  void PoisonKey(int head, int64_t key) {
    const auto at = static_cast<size_t>(key_at_[static_cast<size_t>(head * spec_.count + key)]);
    StoreFloat(k_.data() + at, 1, spec_.format.dtype, kPoison);
  }

  // Copies everything to the device.
  AttentionItem Upload() {
    d_q_ = std::make_unique<DeviceBytes>(Encode(q_, spec_.format.dtype));
    d_k_ = std::make_unique<DeviceBytes>(k_);
    d_v_ = std::make_unique<DeviceBytes>(v_);
    d_positions_ = std::make_unique<DeviceBytes>(positions_);
    d_o_ = std::make_unique<DeviceBytes>(o_);
    d_lse_ = std::make_unique<DeviceBytes>(lse_);
    PageRun run = run_;
    run.k = d_k_->as<std::byte>();
    run.v = d_v_->as<std::byte>();
    return {.q = d_q_->as<void>(),
            .q_stride = q_stride_,
            .tokens = spec_.tokens,
            .q_position = spec_.q_position,
            .heads = spec_.heads,
            .keys = {.pages = run,
                     .position = spec_.positions ? -1 : spec_.position,
                     .positions = spec_.positions ? d_positions_->as<int32_t>() : nullptr},
            .transform = {},
            .split = spec_.split,
            .o = d_o_->as<float>(),
            .o_stride = o_stride_,
            .o_part_stride = o_part_stride_,
            .lse = d_lse_->as<float>(),
            .lse_stride = lse_stride_,
            .lse_part_stride = lse_part_stride_,
            .merge = spec_.merge};
  }

  void Check() const {
    SCOPED_TRACE(spec_.Name());
    const std::vector<float> o = d_o_->Read<float>();
    const std::vector<float> lse = d_lse_->Read<float>();
    std::vector<bool> o_written(o.size());
    std::vector<bool> lse_written(lse.size());
    for (int64_t part = 0; part < parts_; ++part) {
      for (int64_t token = 0; token < spec_.tokens; ++token) {
        for (int64_t head = 0; head < spec_.heads * spec_.group; ++head) {
          const size_t o_at = OAt(part, token, head);
          const size_t lse_at = LseAt(part, token, head);
          double weight_error = 0;
          const State state = Reference(part, token, head, &weight_error);
          lse_written[lse_at] = true;
          if (state.lse == kNoKeys || std::isnan(state.lse)) {
            ASSERT_TRUE(std::isnan(state.lse) ? std::isnan(lse[lse_at]) : lse[lse_at] == kNoKeys);
          } else {
            ASSERT_NEAR(lse[lse_at], state.lse, weight_error + 8 * kUnit * std::abs(state.lse));
          }
          for (size_t i = 0; i < state.o.size(); ++i) {
            o_written[o_at + i] = true;
            if (std::isnan(state.lse)) {
              ASSERT_TRUE(std::isnan(o[o_at + i]));
            } else {
              ASSERT_NEAR(o[o_at + i], state.o[i], 2 * weight_error * MaxValue())
                  << "part " << part << " token " << token << " head " << head << " element " << i;
            }
          }
        }
      }
    }
    for (size_t i = 0; i < o.size(); ++i) ASSERT_TRUE(o_written[i] || std::isnan(o[i]));
    for (size_t i = 0; i < lse.size(); ++i) ASSERT_TRUE(lse_written[i] || std::isnan(lse[i]));
  }

 private:
  static int64_t Parts(const Case& c) { return c.split == 0 ? 1 : CeilDiv(c.count, c.split); }
  static double MaxValue() { return 8; }  // no random value is larger

  size_t OAt(int64_t part, int64_t token, int64_t head) const {
    return static_cast<size_t>(part * o_part_stride_ + token * o_stride_ +
                               head * spec_.format.head_dim);
  }
  size_t LseAt(int64_t part, int64_t token, int64_t head) const {
    return static_cast<size_t>(part * lse_part_stride_ + token * lse_stride_ + head);
  }

  // Some of the states to merge into have seen no key yet: their o stays poisoned.
  void FillState(Random& random) {
    for (int64_t token = 0; token < spec_.tokens; ++token) {
      for (int64_t head = 0; head < spec_.heads * spec_.group; ++head) {
        const bool none = random.Below(4) == 0;
        lse_[LseAt(0, token, head)] = none ? static_cast<float>(kNoKeys) : 4 * random.Normal();
        for (int64_t i = 0; i < spec_.format.head_dim && !none; ++i) {
          o_[OAt(0, token, head) + static_cast<size_t>(i)] = random.Normal();
        }
      }
    }
  }

  // *weight_error is what rounding may do to the weights of the softmax, relatively.
  State Reference(int64_t part, int64_t token, int64_t head, double* weight_error) const {
    const DType dtype = spec_.format.dtype;
    const int64_t dim = spec_.format.head_dim;
    const int64_t step = spec_.split == 0 ? spec_.count : spec_.split;
    const int64_t end = std::min((part + 1) * step, spec_.count);
    const int64_t q_position = spec_.q_position + token;
    const std::vector<std::byte> q = Encode(q_, dtype);
    std::vector<double> logits;
    std::vector<int64_t> rows;
    double top = kNoKeys;
    double logit_error = 0;
    bool poisoned = false;
    for (int64_t key = part * step; key < end; ++key) {
      const int64_t position = positions_[static_cast<size_t>(key)];
      if (position > q_position) continue;
      if (spec_.params.window != 0 && position <= q_position - spec_.params.window) continue;
      const int64_t at = key_at_[static_cast<size_t>(head / spec_.group * spec_.count + key)];
      double dot = 0;
      double size = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double product =
            double{LoadAsFloat(q.data(), token * q_stride_ + head * dim + i, dtype)} *
            LoadAsFloat(k_.data() + at, i, dtype);
        dot += product;
        size += std::abs(product);
      }
      const double cap = spec_.params.softcap;
      double logit = dot * spec_.params.scale;
      if (cap != 0) logit = cap * std::tanh(logit / cap);
      logits.push_back(logit);
      rows.push_back(at);
      top = std::max(top, logit);
      poisoned = poisoned || std::isnan(logit);
      // The last term is the product with log2(e) and the exponential of it.
      logit_error = std::max(
          logit_error, (static_cast<double>(dim) / 2 + 8) * kUnit * size * spec_.params.scale +
                           8 * kUnit * (std::abs(logit) + std::abs(cap)));
    }
    State state{std::vector<double>(static_cast<size_t>(dim)), kNoKeys};
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp(logits[i] - top);
      sum += weight;
      for (int64_t e = 0; e < dim; ++e) {
        state.o[static_cast<size_t>(e)] += weight * LoadAsFloat(v_.data() + rows[i], e, dtype);
      }
    }
    if (!logits.empty()) {
      for (double& value : state.o) value /= sum;
      state.lse = poisoned ? kPoison : top + std::log(sum);
    }
    // Weights in 16 bits are kept as two numbers.
    const double split_error = dtype == DType::kF32 ? 0 : Unit(dtype) * Unit(dtype);
    *weight_error =
        2 * logit_error + split_error + (static_cast<double>(logits.size()) + 32) * 2 * kUnit;
    if (spec_.merge) {
      State old{std::vector<double>(static_cast<size_t>(dim)), lse_[LseAt(0, token, head)]};
      for (size_t i = 0; i < old.o.size(); ++i) old.o[i] = o_[OAt(0, token, head) + i];
      if (!poisoned) MergeInto(state, old);
    }
    return state;
  }

  Case spec_;
  int64_t parts_;
  int64_t q_stride_ = 0;
  int64_t o_stride_ = 0;
  int64_t o_part_stride_ = 0;
  int64_t lse_stride_ = 0;
  int64_t lse_part_stride_ = 0;
  std::vector<float> q_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
  std::vector<int64_t> key_at_;  // bytes, [heads, count]
  PageRun run_;
  std::vector<int32_t> positions_;
  std::vector<float> o_;
  std::vector<float> lse_;
  std::unique_ptr<DeviceBytes> d_q_;
  std::unique_ptr<DeviceBytes> d_k_;
  std::unique_ptr<DeviceBytes> d_v_;
  std::unique_ptr<DeviceBytes> d_positions_;
  std::unique_ptr<DeviceBytes> d_o_;
  std::unique_ptr<DeviceBytes> d_lse_;
};

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.Below(static_cast<int64_t>(choices.size()))];
}

Case RandomCase(DType dtype, int head_dim, int group, const AttentionParams& params, int slots,
                Random& random) {
  Case c;
  c.format = {.dtype = dtype, .page_slots = slots, .head_dim = head_dim};
  c.group = group;
  c.params = params;
  c.tokens = random.Below(2) == 0 ? 1 : 1 + random.Below(std::max(1, 64 / group));
  c.heads = 1 + static_cast<int>(random.Below(3));
  c.count = Pick<int64_t>(random, {0, 1, random.Below(20), random.Below(300), random.Below(700)});
  c.first_slot = random.Below(2 * slots);
  c.page_gap = 16 * random.Below(4);
  c.head_gap = 16 * random.Below(4);
  c.position = random.Below(50);
  c.positions = random.Below(3) == 0;
  c.q_position = c.position + (c.positions ? 2 : 1) * c.count - random.Below(c.tokens + 1) -
                 Pick<int64_t>(random, {0, 0, random.Below(c.count + 60)});
  if (random.Below(3) == 0) {
    c.merge = true;
  } else {
    c.split = Pick<int64_t>(random, {0, 7, 64, 100, 256, 5000});
  }
  c.key_size = Pick(random, {0.1f, 1.0f, 4.0f});
  return c;
}

AttentionParams RandomParams(int head_dim, Random& random) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
          .window = Pick<int64_t>(random, {0, 0, 1, 30, 1000})};
}

void RunAndCheck(const Case& shared, std::vector<std::unique_ptr<Problem>>& problems) {
  std::vector<AttentionItem> items;
  for (auto& problem : problems) {
    items.push_back(problem->Upload());
    ASSERT_TRUE(CanAttendDecode(shared.format, shared.format.dtype, shared.group, shared.params,
                                items.back()));
  }
  ASSERT_EQ(
      AttendDecode(nullptr, shared.format, shared.format.dtype, shared.group, shared.params, items),
      cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (auto& problem : problems) problem->Check();
}

class AttentionDecodeTest : public testing::TestWithParam<DType> {};

TEST_P(AttentionDecodeTest, AgreesWithTheDefinition) {
  Random random(1);
  for (int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      // More than a block takes at a time now and then.
      const auto group =
          static_cast<int>(round == 5 ? 65 + random.Below(64) : 1 + random.Below(16));
      const int slots = Pick(random, {1, 5, 16, 64});
      std::vector<std::unique_ptr<Problem>> problems;
      Case c;
      for (int64_t items = 1 + random.Below(3); items > 0; --items) {
        c = RandomCase(GetParam(), head_dim, group, params, slots, random);
        problems.push_back(std::make_unique<Problem>(c, random));
      }
      RunAndCheck(c, problems);
    }
  }
}

TEST_P(AttentionDecodeTest, TakesMoreItemsThanALaunch) {
  Random random(2);
  std::vector<std::unique_ptr<Problem>> problems;
  Case c;
  for (int i = 0; i < 70; ++i) {
    c = RandomCase(GetParam(), 64, 4, {.scale = 0.125f}, 16, random);
    c.tokens = random.Below(3);  // sometimes nothing to do
    problems.push_back(std::make_unique<Problem>(c, random));
  }
  RunAndCheck(c, problems);
}

TEST_P(AttentionDecodeTest, PassesOnNan) {
  Random random(3);
  for (int64_t poisoned : {0, 37, 99}) {
    const Case c = {.format = {.dtype = GetParam(), .page_slots = 16, .head_dim = 128},
                    .group = 4,
                    .params = {.scale = 0.1f},
                    .heads = 2,
                    .count = 100,
                    .q_position = 99,
                    .split = 50};
    std::vector<std::unique_ptr<Problem>> problems;
    problems.push_back(std::make_unique<Problem>(c, random));
    problems.back()->PoisonKey(1, poisoned);
    RunAndCheck(c, problems);
  }
}

TEST_P(AttentionDecodeTest, RefusesWhatItCannotDo) {
  alignas(16) std::byte page[64] = {};
  const PageFormat format = {.dtype = GetParam(), .page_slots = 16, .head_dim = 64};
  const AttentionParams params;
  const AttentionItem item = {
      .tokens = 16,
      .keys = {.pages = {.k = page, .v = page, .page_stride = 4096, .count = 16}},
      .transform = {}};
  const DType other = GetParam() == DType::kF16 ? DType::kBF16 : DType::kF16;
  EXPECT_TRUE(CanAttendDecode(format, GetParam(), 4, params, item));
  EXPECT_FALSE(CanAttendDecode(format, other, 4, params, item));
  PageFormat odd = format;
  odd.head_dim = 68;
  EXPECT_FALSE(CanAttendDecode(odd, GetParam(), 4, params, item));
  odd.head_dim = 264;
  EXPECT_FALSE(CanAttendDecode(odd, GetParam(), 4, params, item));
  float number = 0;
  AttentionItem with = item;
  with.key_mass = &number;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  with = item;
  with.transform.inv_freq = &number;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  with = item;
  with.keys.pages.k += 2;
  EXPECT_FALSE(CanAttendDecode(format, GetParam(), 4, params, with));
  EXPECT_EQ(AttendDecode(nullptr, format, GetParam(), 4, params, {&with, 1}),
            cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionDecodeTest,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const auto& which) { return std::string(DTypeName(which.param)); });

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

class MergeTest : public testing::TestWithParam<DType> {};

void ExpectState(const State& expected, const float* lse, const std::byte* o, DType dtype,
                 double error) {
  if (lse != nullptr) {
    if (expected.lse == kNoKeys) {
      ASSERT_EQ(*lse, kNoKeys);
    } else {
      ASSERT_NEAR(*lse, expected.lse, error + 8 * kUnit * std::abs(expected.lse));
    }
  }
  for (size_t i = 0; i < expected.o.size(); ++i) {
    ASSERT_NEAR(LoadAsFloat(o, static_cast<int64_t>(i), dtype), expected.o[i],
                8 * error + Unit(dtype) * std::abs(expected.o[i]) + 0x1p-24);
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
      std::unique_ptr<DeviceBytes> part_o, part_lse, result, result_lse;
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
              none ? static_cast<float>(kNoKeys) : 8 * random.Normal();
          for (int64_t e = 0; e < head_dim && !none; ++e) {
            m.o[static_cast<size_t>(part * m.o_part_stride + row * head_dim + e)] = random.Normal();
          }
        }
      }
      m.part_o = std::make_unique<DeviceBytes>(m.o);
      m.part_lse = std::make_unique<DeviceBytes>(m.lse);
      const auto rows = static_cast<size_t>(m.rows);
      m.result = std::make_unique<DeviceBytes>(
          Encode(std::vector<float>(rows * static_cast<size_t>(head_dim), kPoison), dtype));
      m.result_lse = std::make_unique<DeviceBytes>(std::vector<float>(rows, kPoison));
      items.push_back({.part_o = m.part_o->as<float>(),
                       .o_part_stride = m.o_part_stride,
                       .part_lse = m.part_lse->as<float>(),
                       .lse_part_stride = m.lse_part_stride,
                       .parts = m.parts,
                       .rows = m.rows,
                       .o = m.result->as<void>(),
                       .lse = i % 3 == 1 ? nullptr : m.result_lse->as<float>()});
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
      const std::vector<std::byte> o = m.result->Read<std::byte>();
      const std::vector<float> lse = m.result_lse->Read<float>();
      for (int64_t row = 0; row < m.rows; ++row) {
        State state{std::vector<double>(static_cast<size_t>(head_dim)), kNoKeys};
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

TEST_P(MergeTest, PassesOnNan) {
  for (int parts : {1, 3, 20}) {
    for (float others : {0.0f, static_cast<float>(kNoKeys)}) {
      std::vector<float> lse(static_cast<size_t>(parts), others);
      lse.back() = kPoison;
      const DeviceBytes part_lse(lse);
      const DeviceBytes part_o(std::vector<float>(static_cast<size_t>(parts) * 8, 1.0f));
      const DeviceBytes o(Encode(std::vector<float>(8), GetParam()));
      const DeviceBytes result(std::vector<float>(1));
      const MergeItem item = {.part_o = part_o.as<float>(),
                              .o_part_stride = 8,
                              .part_lse = part_lse.as<float>(),
                              .lse_part_stride = 1,
                              .parts = parts,
                              .rows = 1,
                              .o = o.as<void>(),
                              .lse = result.as<float>()};
      ASSERT_EQ(Merge(nullptr, GetParam(), 8, {&item, 1}), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      EXPECT_TRUE(std::isnan(result.Read<float>()[0]));
      for (int i = 0; i < 8; ++i) {
        EXPECT_TRUE(std::isnan(LoadAsFloat(o.Read<std::byte>().data(), i, GetParam())));
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
      part_lse[part_lse_at] = part_none ? static_cast<float>(kNoKeys) : 4 * random.Normal();
      if (!merge.first) lse[lse_at] = none ? static_cast<float>(kNoKeys) : 4 * random.Normal();
      for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
        if (!part_none) part_o[part_o_at + i] = random.Normal();
        if (!none && !merge.first) o[o_at + i] = random.Normal();
      }
    });
    const std::vector<std::byte> encoded = Encode(part_o, dtype);
    const DeviceBytes d_o(o);
    const DeviceBytes d_lse(lse);
    const DeviceBytes d_part_o(encoded);
    const DeviceBytes d_part_lse(part_lse);
    merge.o = d_o.as<float>();
    merge.lse = d_lse.as<float>();
    merge.part_o = d_part_o.as<void>();
    merge.part_lse = d_part_lse.as<float>();
    ASSERT_EQ(MergeState(nullptr, dtype, head_dim, merge), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const std::vector<float> new_o = d_o.Read<float>();
    const std::vector<float> new_lse = d_lse.Read<float>();
    each_row([&](size_t o_at, size_t lse_at, size_t part_o_at, size_t part_lse_at) {
      State state{std::vector<double>(static_cast<size_t>(head_dim)), kNoKeys};
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
