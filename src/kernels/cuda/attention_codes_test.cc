// Attention over encoded pages on a GPU: in place against the definition in f64, and prefills that
// decode them first. page_codec_test.cc instantiates the suite.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/page_codec_testing.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/workspace.h"
#include "kernels/page_codec.h"

namespace headway::cuda {
namespace {

constexpr double kMaxValue = 8;  // no random value is larger

std::vector<float> Floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One attention item over encoded pages.
struct Case {
  PageFormat format;
  int group = 1;
  AttentionParams params;
  int64_t tokens = 1;
  int heads = 1;
  int64_t first_slot = 0;
  int64_t count = 0;
  int64_t position = 0;
  int64_t q_position = 0;
  bool positions = false;  // with random gaps
  int64_t split = 0;
  bool merge = false;
  float key_size = 1.0f;

  std::string Name() const {
    return std::string(DTypeName(format.dtype)) + " " + EncodingName(format.encoding) + " dim " +
           std::to_string(format.head_dim) + " slots " + std::to_string(format.page_slots) +
           " group " + std::to_string(group) + " tokens " + std::to_string(tokens) + " heads " +
           std::to_string(heads) + " first slot " + std::to_string(first_slot) + " count " +
           std::to_string(count) + " position " + std::to_string(position) + " q position " +
           std::to_string(q_position) + (positions ? " positions" : "") + " window " +
           std::to_string(params.window) + " softcap " + std::to_string(params.softcap) +
           " split " + std::to_string(split) + (merge ? " merge" : "") + " keys " +
           std::to_string(key_size);
  }
};

class Problem {
 public:
  // `decoded`: the kernel rounds K and V, and weights, to the dtype.
  Problem(const Case& c, bool decoded, Random& random)
      : c_(c),
        decoded_(decoded),
        parts_(c.split == 0 ? 1 : CeilDiv(c.count, c.split)),
        row_(int64_t{c.heads} * c.group * c.format.head_dim),
        q_stride_(row_ + 8),
        o_stride_(row_ + 6),
        lse_stride_(c.heads * c.group + 1),
        pages_(c.format, c.heads,
               std::max<int64_t>(1, CeilDiv(c.first_slot + c.count, c.format.page_slots)), true,
               random) {
    const int64_t pages = pages_.run.count / c.format.page_slots;
    CodecPages plain(c.format, c.heads, pages, false, random);
    Fill(c.format, c.heads, pages, false, &plain, random);
    for (int64_t i = 0; i < c.heads * pages; ++i) {
      const int64_t at = i / pages * plain.run.head_stride + i % pages * plain.run.page_stride;
      for (int64_t e = 0; e < c.format.page_slots * c.format.head_dim; ++e) {
        std::byte* k = plain.k.data() + at;
        // Channels of unequal size.
        const float size = c.key_size * (e % c.format.head_dim == 3 ? 16.0f : 1.0f);
        StoreFloat(k, e, c.format.dtype, size * LoadAsFloat(k, e, c.format.dtype));
      }
    }
    const EncodePagesItem item = {plain.Here(), pages_.Here(), c.heads};
    for (int64_t i = 0; i < c.heads * pages; ++i)
      EncodePageOf(c.format, item, i / pages, i % pages);
    for (int64_t i = 0; i < c.tokens * q_stride_; ++i) {
      q_.push_back(i % q_stride_ < row_ ? random.Normal() : kPoison);
    }
    auto position = static_cast<int32_t>(c.position);
    for (int64_t key = 0; key < c.count; ++key) {
      positions_.push_back(position);
      position += c.positions ? 1 + static_cast<int32_t>(random.Below(3)) : 1;
    }
    o_.assign(static_cast<size_t>(parts_ * c.tokens * o_stride_), kPoison);
    lse_.assign(static_cast<size_t>(parts_ * c.tokens * lse_stride_), kPoison);
    for (int64_t i = 0; c.merge && i < c.tokens * c.heads * c.group; ++i) {
      const int64_t token = i / (c.heads * c.group), head = i % (c.heads * c.group);
      const bool none = random.Below(4) == 0;
      lse_[LseAt(0, token, head)] = none ? static_cast<float>(kEmptyLse) : 4 * random.Normal();
      for (int64_t e = 0; e < c.format.head_dim && !none; ++e) {
        o_[OAt(0, token, head) + static_cast<size_t>(e)] = random.Normal();
      }
    }
  }

  // Makes a parameter NaN, as encoding does where a group's numbers are not finite: the scale of
  // channel 3 of K, or of token 5 and its first channels of V.
  void Poison(int head, int64_t page, bool of_k) {
    std::byte* params = pages_.params.data() + head * pages_.run.params_head_stride +
                        page * pages_.run.params_page_stride;
    StoreFloat(params, of_k ? 3 : 2 * c_.format.head_dim + 5, DType::kBF16, kPoison);
  }

  AttentionItem Upload() {
    q_bytes_ = Encode(q_, c_.format.dtype);
    const auto bytes_of = [](const auto& values) {
      const auto* at = reinterpret_cast<const std::byte*>(values.data());
      return std::vector<std::byte>(at, at + values.size() * sizeof(values[0]));
    };
    for (const std::vector<std::byte>& bytes :
         {q_bytes_, pages_.k, pages_.v, pages_.params, bytes_of(positions_), bytes_of(o_),
          bytes_of(lse_)}) {
      memory_.push_back(std::make_unique<OnDevice>(bytes));
    }
    AttentionItem item;
    item.q = memory_[0]->data();
    item.q_stride = q_stride_;
    item.tokens = c_.tokens;
    item.q_position = c_.q_position;
    item.heads = c_.heads;
    item.keys.pages = pages_.In(memory_[1]->data(), memory_[2]->data(), memory_[3]->data());
    item.keys.pages.first_slot = c_.first_slot;
    item.keys.pages.count = c_.count;
    item.keys.position = c_.positions ? -1 : c_.position;
    if (c_.positions) item.keys.positions = reinterpret_cast<int32_t*>(memory_[4]->data());
    item.split = c_.split;
    item.o = reinterpret_cast<float*>(memory_[5]->data());
    item.o_stride = o_stride_;
    item.o_part_stride = c_.tokens * o_stride_;
    item.lse = reinterpret_cast<float*>(memory_[6]->data());
    item.lse_stride = lse_stride_;
    item.lse_part_stride = c_.tokens * lse_stride_;
    item.merge = c_.merge;
    return item;
  }

  void Check() const {
    SCOPED_TRACE(c_.Name());
    const std::vector<float> o = Floats(memory_[5]->Read()), lse = Floats(memory_[6]->Read());
    std::vector<bool> written(o.size()), lse_written(lse.size());
    for (int64_t part = 0; part < parts_; ++part) {
      for (int64_t i = 0; i < c_.tokens * c_.heads * c_.group; ++i) {
        const int64_t token = i / (c_.heads * c_.group), head = i % (c_.heads * c_.group);
        double error = 0;
        const State state = Reference(part, token, head, &error);
        const size_t at = OAt(part, token, head), lse_at = LseAt(part, token, head);
        lse_written[lse_at] = true;
        if (state.lse == kEmptyLse) {
          ASSERT_EQ(lse[lse_at], kEmptyLse);
        } else if (std::isnan(state.lse)) {
          ASSERT_TRUE(std::isnan(lse[lse_at]));
        } else {
          ASSERT_NEAR(lse[lse_at], state.lse, error + 8 * kUnit * std::abs(state.lse));
        }
        for (size_t e = 0; e < state.o.size(); ++e) {
          written[at + e] = true;
          if (std::isnan(state.o[e])) {
            ASSERT_TRUE(std::isnan(o[at + e]));
            continue;
          }
          const double rounding = decoded_ ? Unit(c_.format.dtype) : 0;
          ASSERT_NEAR(o[at + e], state.o[e], (2 * error + rounding) * kMaxValue)
              << "part " << part << " token " << token << " head " << head << " element " << e;
        }
      }
    }
    for (size_t i = 0; i < o.size(); ++i) ASSERT_TRUE(written[i] || std::isnan(o[i]));
    for (size_t i = 0; i < lse.size(); ++i) ASSERT_TRUE(lse_written[i] || std::isnan(lse[i]));
  }

 private:
  struct State {
    std::vector<double> o;
    double lse = kEmptyLse;
  };

  size_t OAt(int64_t part, int64_t token, int64_t head) const {
    return static_cast<size_t>((part * c_.tokens + token) * o_stride_ + head * c_.format.head_dim);
  }
  size_t LseAt(int64_t part, int64_t token, int64_t head) const {
    return static_cast<size_t>((part * c_.tokens + token) * lse_stride_ + head);
  }

  // *error is what rounding may do to the weights of the softmax, relatively.
  State Reference(int64_t part, int64_t token, int64_t head, double* error) const {
    const int64_t dim = c_.format.head_dim, slots = c_.format.page_slots;
    const int64_t step = c_.split == 0 ? c_.count : c_.split;
    const int64_t q_position = c_.q_position + token;
    const double unit = Unit(c_.format.dtype);
    std::vector<double> logits, k(static_cast<size_t>(dim)), v(static_cast<size_t>(dim));
    std::vector<std::vector<double>> values;
    double top = kEmptyLse, logit_error = 0;
    for (int64_t key = part * step; key < std::min((part + 1) * step, c_.count); ++key) {
      const int64_t position = positions_[static_cast<size_t>(key)];
      const int64_t window = c_.params.window;
      if (position > q_position || (window != 0 && position <= q_position - window)) continue;
      const int64_t slot = c_.first_slot + key, kv_head = head / c_.group;
      const int64_t at = kv_head * pages_.run.head_stride + slot / slots * pages_.run.page_stride;
      const std::byte* params = pages_.params.data() + kv_head * pages_.run.params_head_stride +
                                slot / slots * pages_.run.params_page_stride;
      DecodeKeyRow(c_.format, pages_.k.data() + at, params, slot % slots, k.data());
      DecodeValueRow(c_.format, pages_.v.data() + at, params, slot % slots, v.data());
      double dot = 0, size = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double q =
            LoadAsFloat(q_bytes_.data(), token * q_stride_ + head * dim + i, c_.format.dtype);
        dot += q * k[static_cast<size_t>(i)];
        // The zero is no larger than the range's ends, and the code's part than the whole range.
        const double range = 5 * c_.key_size * (i == 3 ? 16 : 1);
        size += std::abs(q) * 3 * range;
      }
      const double cap = c_.params.softcap;
      double logit = dot * c_.params.scale;
      if (cap != 0) logit = cap * std::tanh(logit / cap);
      // Two numbers of f16 stand for each factor: 2^-22. The last term is the product with log2(e)
      // and the exponential of it.
      logit_error =
          std::max(logit_error, ((static_cast<double>(dim) + 16) * kUnit + (decoded_ ? unit : 0)) *
                                        size * c_.params.scale +
                                    8 * kUnit * (std::abs(logit) + std::abs(cap)));
      logits.push_back(logit);
      values.push_back(v);
      top = std::max(top, logit);
    }
    State state{std::vector<double>(static_cast<size_t>(dim)), kEmptyLse};
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double weight = std::exp(logits[i] - top);
      sum += weight;
      for (size_t e = 0; e < state.o.size(); ++e) state.o[e] += weight * values[i][e];
    }
    for (double& value : state.o) value /= logits.empty() ? 1 : sum;
    if (!logits.empty()) state.lse = top + std::log(sum);
    *error = 2 * logit_error + 4 * kUnit + (decoded_ ? unit : 0) +
             (static_cast<double>(logits.size()) + 32) * 2 * kUnit;
    if (c_.merge && lse_[LseAt(0, token, head)] != kEmptyLse) {
      const double old = lse_[LseAt(0, token, head)];
      const double larger = std::max(old, state.lse);
      const double mine = std::exp(state.lse - larger), theirs = std::exp(old - larger);
      for (size_t e = 0; e < state.o.size(); ++e) {
        state.o[e] = (mine * state.o[e] + theirs * o_[OAt(0, token, head) + e]) / (mine + theirs);
      }
      state.lse = larger + std::log(mine + theirs);
    }
    return state;
  }

  const Case c_;
  const bool decoded_;
  const int64_t parts_, row_, q_stride_, o_stride_, lse_stride_;
  CodecPages pages_;
  std::vector<float> q_, o_, lse_;
  std::vector<std::byte> q_bytes_;
  std::vector<int32_t> positions_;
  std::vector<std::unique_ptr<OnDevice>> memory_;  // q, K, V, parameters, positions, o, lse
};

Case RandomCase(const PageFormat& format, int group, const AttentionParams& params,
                int64_t most_tokens, Random& random) {
  Case c;
  c.format = format;
  c.group = group;
  c.params = params;
  c.tokens = random.Below(2) == 0 ? 1 : 1 + random.Below(most_tokens);
  c.heads = 1 + static_cast<int>(random.Below(3));
  c.count = Pick<int64_t>(random, {0, 1, random.Below(20), random.Below(300), random.Below(700)});
  c.first_slot = random.Below(2) == 0 ? 0 : random.Below(2 * format.page_slots);
  c.position = random.Below(50);
  c.positions = random.Below(3) == 0;
  c.q_position = c.position + (c.positions ? 2 : 1) * c.count - random.Below(c.tokens + 1) -
                 Pick<int64_t>(random, {0, 0, random.Below(c.count + 60)});
  c.merge = random.Below(3) == 0;
  if (!c.merge) c.split = Pick<int64_t>(random, {0, 7, 64, 100, 256, 5000});
  c.key_size = Pick(random, {0.1f, 1.0f, 4.0f});
  return c;
}

TEST_P(PageCodecTest, AttendsInPlace) {
  Random random(53);
  for (int head_dim : {64, 80, 96, 128, 256, 8, 40, 136}) {
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      const auto group =
          static_cast<int>(round == 5 ? 65 + random.Below(64) : 1 + random.Below(16));
      const PageFormat format = Format(head_dim, Pick(random, {1, 5, 16, 64, 64, 160}));
      std::vector<std::unique_ptr<Problem>> problems;
      std::vector<AttentionItem> items;
      for (int64_t i = 1 + random.Below(3); i > 0; --i) {
        const Case c = RandomCase(format, group, params, std::max(1, 64 / group), random);
        problems.push_back(std::make_unique<Problem>(c, false, random));
        items.push_back(problems.back()->Upload());
        ASSERT_TRUE(CanAttendDecode(format, format.dtype, group, params, items.back()));
      }
      ASSERT_EQ(AttendDecode(nullptr, format, format.dtype, group, params, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      for (const auto& problem : problems) problem->Check();
    }
  }
}

// Whoever sees a broken key gets NaN, and nobody else.
TEST_P(PageCodecTest, PassesOnNan) {
  Random random(55);
  for (const bool of_k : {true, false}) {
    Case c;
    c.format = Format(128, 16);
    c.group = 2;
    c.params.scale = 0.1f;
    c.tokens = 4;
    c.heads = 2;
    c.count = 100;
    c.q_position = of_k ? 30 : 35;  // the first tokens do not see slots 32 and 37
    c.split = 50;
    Problem problem(c, false, random);
    problem.Poison(1, 2, of_k);
    const AttentionItem item = problem.Upload();
    ASSERT_EQ(AttendDecode(nullptr, c.format, c.format.dtype, c.group, c.params, {&item, 1}),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    problem.Check();
  }
}

TEST_P(PageCodecTest, PrefillsFromDecodedPages) {
  Random random(54);
  for (int head_dim : {64, 80, 128, 256}) {
    for (int round = 0; round < 4 && !HasFatalFailure(); ++round) {
      const AttentionParams params = RandomParams(head_dim, random);
      const int group = 1 + static_cast<int>(random.Below(6));
      const PageFormat format = Format(head_dim, Pick(random, {5, 16, 64}));
      Case c = RandomCase(format, group, params, 200, random);
      c.split = 0;
      KernelLimits limits;
      limits.rows = c.tokens;
      limits.head_dim = head_dim;
      limits.group = group;
      limits.query_heads = c.heads * group;
      limits.activation = format.dtype;
      limits.encoding = format.encoding;
      const OnDevice decoded(
          std::vector<std::byte>(static_cast<size_t>(DecodedBytes(limits)), std::byte{0xFF}));
      Problem problem(c, format.dtype != DType::kF32, random);
      const Status status = AttendPrefill(nullptr, {nullptr, decoded.data(), limits, nullptr},
                                          format, group, params, problem.Upload());
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      problem.Check();
    }
  }
}

}  // namespace
}  // namespace headway::cuda
