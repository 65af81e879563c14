#include "kernels/cuda/attention_decode.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/attention_testing.h"

namespace headway::cuda {
namespace {

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
          if (state.lse == kEmptyLse || std::isnan(state.lse)) {
            ASSERT_TRUE(std::isnan(state.lse) ? std::isnan(lse[lse_at]) : lse[lse_at] == kEmptyLse);
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
        lse_[LseAt(0, token, head)] = none ? static_cast<float>(kEmptyLse) : 4 * random.Normal();
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
    double top = kEmptyLse;
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
    State state{std::vector<double>(static_cast<size_t>(dim)), kEmptyLse};
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

}  // namespace
}  // namespace headway::cuda
