// Encoded pages on a GPU: the host's codes bit for bit, attention that reads them in place against
// the definition in f64, and prefills that decode them first.
#include "kernels/cuda/page_codec.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/workspace.h"
#include "kernels/page_codec.h"

namespace headway::cuda {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr double kNoKeys = -std::numeric_limits<double>::infinity();
constexpr double kUnit = 0x1p-24;
constexpr double kMaxValue = 8;  // no random value is larger

double Unit(DType dtype) {
  return dtype == DType::kF32 ? kUnit : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

// A copy of host memory on the device.
class OnDevice {
 public:
  explicit OnDevice(const std::vector<std::byte>& data) : size_(data.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(size_, 1)), cudaSuccess);
    EXPECT_EQ(cuda::CopyToGpu(data_, data.data(), size_), cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> Read() const {
    std::vector<std::byte> data(size_);
    EXPECT_EQ(cudaMemcpy(data.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    return data;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

std::vector<std::byte> Bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFloat(bytes.data(), static_cast<int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

std::vector<float> Floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.Below(static_cast<int64_t>(choices.size()))];
}

// Pages of K, V and parameters of `heads` heads, strides as drawn; bits that nothing writes are
// set.
struct Pages {
  Pages(const PageFormat& format, int heads, int64_t pages, bool closed, Random& random) {
    const auto page = static_cast<int64_t>(closed ? format.closed_bytes() : format.bytes());
    run.page_stride = RoundUp(page, 16) + 16 * random.Below(3);
    run.head_stride = pages * run.page_stride + 16 * random.Below(3);
    run.params_page_stride = RoundUp(heads * ParamBytes(format), 4) + 4 * random.Below(3);
    run.params_head_stride = ParamBytes(format);
    run.count = pages * format.page_slots;
    k.assign(static_cast<size_t>(heads * run.head_stride), std::byte{0xFF});
    v = k;
    if (closed) {
      params.assign(static_cast<size_t>(pages * run.params_page_stride), std::byte{0xFF});
    }
  }
  // The run, in these vectors or in copies of them.
  PageRun In(std::byte* in_k, std::byte* in_v, std::byte* in_params) const {
    PageRun at = run;
    at.k = in_k;
    at.v = in_v;
    at.params = in_params;
    return at;
  }
  PageRun Here() { return In(k.data(), v.data(), params.empty() ? nullptr : params.data()); }

  PageRun run;
  std::vector<std::byte> k, v, params;
};

// Numbers of all kinds, a kind a channel of K or a token of V: normal ones, outliers, constants,
// zeros of both signs, tiny ones, and ones that are not finite.
float Draw(int64_t kind, Random& random) {
  switch (kind) {
    case 0:
      return 100.0f + 1000.0f * random.Normal();
    case 1:
      return 3.0f;
    case 2:
      return random.Below(2) == 0 ? 0.0f : -0.0f;
    case 3:
      return 1e-6f * random.Normal();
    case 4:
      return random.Below(40) == 0 ? kPoison : random.Normal();
    case 5:
      return random.Below(40) == 0 ? -std::numeric_limits<float>::infinity() : random.Normal();
    default:
      return random.Normal();
  }
}

void Fill(const PageFormat& format, int heads, int64_t pages, bool wild, Pages* plain,
          Random& random) {
  const int64_t dim = format.head_dim;
  for (int64_t i = 0; i < heads * pages; ++i) {
    const int64_t at = i / pages * plain->run.head_stride + i % pages * plain->run.page_stride;
    std::vector<int64_t> kinds;
    for (int64_t n = 0; n < dim + format.page_slots; ++n) {
      kinds.push_back(wild ? random.Below(12) : 100);
    }
    for (int64_t e = 0; e < format.page_slots * dim; ++e) {
      const auto channel = static_cast<size_t>(e % dim);
      const auto slot = static_cast<size_t>(dim + e / dim);
      StoreFloat(plain->k.data() + at, e, format.dtype, Draw(kinds[channel], random));
      StoreFloat(plain->v.data() + at, e, format.dtype, Draw(kinds[slot], random));
    }
  }
}

class PageCodecTest : public testing::TestWithParam<std::tuple<DType, Encoding>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no NVIDIA GPU can be used";
    }
  }
  PageFormat Format(int head_dim, int slots) const {
    return {std::get<0>(GetParam()), slots, head_dim, std::get<1>(GetParam())};
  }
};

TEST_P(PageCodecTest, WritesTheHostsCodes) {
  Random random(51);
  for (int head_dim : {8, 40, 64, 80, 128, 256}) {
    for (int slots : {5, 16, 64}) {
      const PageFormat format = Format(head_dim, slots);
      const int heads = 1 + static_cast<int>(random.Below(3));
      const int64_t pages = 1 + random.Below(4);
      Pages plain(format, heads, pages, false, random);
      Fill(format, heads, pages, true, &plain, random);
      Pages host(format, heads, pages, true, random);
      const OnDevice k(plain.k), v(plain.v), to_k(host.k), to_v(host.v), to_params(host.params);
      const EncodePagesItem there = {plain.In(k.data(), v.data(), nullptr),
                                     host.In(to_k.data(), to_v.data(), to_params.data()), heads};
      const EncodePagesItem here = {plain.Here(), host.Here(), heads};
      for (int64_t i = 0; i < heads * pages; ++i) EncodePageOf(format, here, i / pages, i % pages);
      // More items than a launch takes; all write the same.
      const std::vector<EncodePagesItem> items(slots == 5 ? 19 : 1, there);
      ASSERT_EQ(EncodePages(nullptr, format, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      SCOPED_TRACE("dim " + std::to_string(head_dim) + " slots " + std::to_string(slots));
      ASSERT_TRUE(to_k.Read() == host.k);
      ASSERT_TRUE(to_v.Read() == host.v);
      ASSERT_TRUE(to_params.Read() == host.params);
    }
  }
}

TEST_P(PageCodecTest, DecodesRows) {
  if (std::get<0>(GetParam()) == DType::kF32) return;
  Random random(52);
  for (int head_dim : {8, 40, 64, 80, 128, 256}) {
    for (int slots : {5, 16, 64}) {
      const PageFormat format = Format(head_dim, slots);
      const int heads = 1 + static_cast<int>(random.Below(3));
      const int64_t pages = 1 + random.Below(4);
      Pages plain(format, heads, pages, false, random);
      Fill(format, heads, pages, false, &plain, random);
      Pages closed(format, heads, pages, true, random);
      const EncodePagesItem item = {plain.Here(), closed.Here(), heads};
      for (int64_t i = 0; i < heads * pages; ++i) EncodePageOf(format, item, i / pages, i % pages);
      const OnDevice k(closed.k), v(closed.v), params(closed.params);
      PageRun run = closed.In(k.data(), v.data(), params.data());
      run.first_slot = random.Below(slots);
      run.count -= run.first_slot;
      const int64_t begin = random.Below(run.count);
      const int64_t count = run.count - begin;
      const size_t size = static_cast<size_t>(heads * count * head_dim);
      const std::vector<std::byte> nothing =
          Bytes(std::vector<float>(size + 8, kPoison), format.dtype);
      const OnDevice to_k(nothing), to_v(nothing);
      ASSERT_EQ(DecodePages(nullptr, format, run, heads, begin, count, to_k.data(), to_v.data()),
                cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      const std::vector<std::byte> got_k = to_k.Read(), got_v = to_v.Read();
      std::vector<double> row(static_cast<size_t>(head_dim));
      for (int64_t i = 0; i < heads * count; ++i) {
        const int64_t head = i / count, slot = run.first_slot + begin + i % count;
        const int64_t at = head * run.head_stride + slot / slots * run.page_stride;
        const std::byte* of_page = closed.params.data() + head * run.params_head_stride +
                                   slot / slots * run.params_page_stride;
        for (const bool of_k : {true, false}) {
          const auto decode = of_k ? DecodeKeyRow : DecodeValueRow;
          decode(format, (of_k ? closed.k : closed.v).data() + at, of_page, slot % slots,
                 row.data());
          for (int64_t e = 0; e < head_dim; ++e) {
            const double want = row[static_cast<size_t>(e)];
            const double got =
                LoadAsFloat((of_k ? got_k : got_v).data(), i * head_dim + e, format.dtype);
            // Rounded products and sums of numbers that are no larger than twice the range.
            ASSERT_NEAR(got, want, Unit(format.dtype) * std::abs(want) + 8 * kUnit * kMaxValue);
          }
        }
      }
      for (int64_t e = 0; e < 8; ++e) {
        const auto behind = static_cast<int64_t>(size) + e;
        ASSERT_TRUE(std::isnan(LoadAsFloat(got_k.data(), behind, format.dtype)));
        ASSERT_TRUE(std::isnan(LoadAsFloat(got_v.data(), behind, format.dtype)));
      }
    }
  }
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
    Pages plain(c.format, c.heads, pages, false, random);
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
      lse_[LseAt(0, token, head)] = none ? static_cast<float>(kNoKeys) : 4 * random.Normal();
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
    q_bytes_ = Bytes(q_, c_.format.dtype);
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
        if (state.lse == kNoKeys) {
          ASSERT_EQ(lse[lse_at], kNoKeys);
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
    double lse = kNoKeys;
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
    double top = kNoKeys, logit_error = 0;
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
    State state{std::vector<double>(static_cast<size_t>(dim)), kNoKeys};
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
    if (c_.merge && lse_[LseAt(0, token, head)] != kNoKeys) {
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
  Pages pages_;
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

AttentionParams RandomParams(int head_dim, Random& random) {
  return {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .softcap = Pick(random, {0.0f, 0.0f, 3.0f}),
          .window = Pick<int64_t>(random, {0, 0, 1, 30, 1000})};
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
      const Status status = AttendPrefill(nullptr, nullptr, {nullptr, decoded.data(), limits},
                                          format, format.dtype, group, params, problem.Upload());
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      problem.Check();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PageCodecTest,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                                          testing::Values(Encoding::kInt8, Encoding::kFp8E4M3,
                                                          Encoding::kInt4)),
                         [](const auto& which) {
                           return std::string(DTypeName(std::get<0>(which.param))) + "_" +
                                  EncodingName(std::get<1>(which.param));
                         });

}  // namespace
}  // namespace headway::cuda
