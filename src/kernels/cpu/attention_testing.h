// Random attention problems, for tests and benchmarks of the kernels.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/attention.h"
#include "kernels/page_codec.h"

namespace headway {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// K and V of one KV head in pages some way apart, in random order with pages of slack between them,
// every slot but [first_slot, first_slot + count) poisoned with NaN. In an encoding the pages are
// full, and all around their codes and parameters is poisoned.
class PagedKv {
 public:
  PagedKv(const PageFormat& format, int64_t first_slot, int64_t count, Random& random)
      : format_(format), first_slot_(first_slot), count_(count) {
    const int64_t pages = CeilDiv(first_slot + count, format.page_slots);
    const auto page_bytes = static_cast<int64_t>(format.bytes());
    // K and V pages take turns, forwards or backwards, a page of slack or more between them.
    const int64_t apart = (4 + random.Below(3)) * page_bytes;
    memory_.resize(static_cast<size_t>(pages * apart + 3 * page_bytes));
    for (size_t at = 0; at + format.bytes() <= memory_.size(); at += format.bytes()) {
      for (int64_t e = 0; e < format.page_slots * format.head_dim; ++e) {
        StoreFloat(memory_.data() + at, e, format.dtype, kPoison);
      }
    }
    const bool backwards = random.Below(2) == 1;
    stride_ = backwards ? -apart : apart;
    k_ = memory_.data() + page_bytes + (backwards ? (pages - 1) * apart : 0);
    v_ = k_ + 2 * page_bytes;
    if (random.Below(2) == 1) std::swap(k_, v_);
    for (int64_t key = 0; key < count; ++key) {
      for (int64_t i = 0; i < format.head_dim; ++i) {
        SetK(key, i, random.Normal());
        SetV(key, i, random.Normal());
      }
    }
    if (format.encoding != Encoding::kNone) Encode(pages, random);
  }
  PagedKv(const PagedKv&) = delete;
  PagedKv& operator=(const PagedKv&) = delete;

  // Keys [begin, end) of the whole.
  PageRun Run(int64_t begin, int64_t end) const {
    const int64_t slot = first_slot_ + begin;
    const int64_t page = slot / format_.page_slots;
    if (!codes_.empty()) {
      PageRun run = coded_;
      run.k += page * run.page_stride;
      run.v += page * run.page_stride;
      run.params += page * run.params_page_stride;
      run.first_slot = slot % format_.page_slots;
      run.count = end - begin;
      return run;
    }
    const int64_t offset = page * stride_;
    return {.k = k_ + offset,
            .v = v_ + offset,
            .page_stride = stride_,
            .first_slot = slot % format_.page_slots,
            .count = end - begin};
  }
  PageRun Run() const { return Run(0, count_); }

  void SetK(int64_t key, int64_t i, float value) { Set(k_, key, i, value); }
  void SetV(int64_t key, int64_t i, float value) { Set(v_, key, i, value); }
  float K(int64_t key, int64_t i) const { return Get(k_, key, i); }
  float V(int64_t key, int64_t i) const { return Get(v_, key, i); }
  // How large what is added up for an element can be: of codes, the zero and the rest apart.
  double KReach(int64_t key, int64_t i) const {
    return codes_.empty() ? std::abs(double{K(key, i)}) : Reach(true, key, i);
  }
  double VReach(int64_t key, int64_t i) const {
    return codes_.empty() ? std::abs(double{V(key, i)}) : Reach(false, key, i);
  }

 private:
  void Encode(int64_t pages, Random& random) {
    for (int64_t slot = -first_slot_; slot < pages * format_.page_slots - first_slot_; ++slot) {
      if (slot >= 0 && slot < count_) continue;
      for (int64_t i = 0; i < format_.head_dim; ++i) {
        SetK(slot, i, random.Normal());
        SetV(slot, i, random.Normal());
      }
    }
    const auto bytes = static_cast<int64_t>(format_.closed_bytes());
    const int64_t params = ParamBytes(format_);
    coded_.page_stride = 2 * bytes + params + 2 * (1 + random.Below(20));
    coded_.params_page_stride = coded_.page_stride;
    codes_.resize(static_cast<size_t>(pages * coded_.page_stride), std::byte{0xFF});
    coded_.params = codes_.data();
    coded_.k = codes_.data() + params;
    coded_.v = coded_.k + bytes;
    for (int64_t page = 0; page < pages; ++page) {
      const int64_t to = page * coded_.page_stride;
      EncodePage(format_, k_ + page * stride_, v_ + page * stride_, coded_.k + to, coded_.v + to,
                 coded_.params + to);
    }
  }
  double Reach(bool of_keys, int64_t key, int64_t i) const {
    const int64_t page = (first_slot_ + key) / format_.page_slots;
    const int64_t slot = (first_slot_ + key) % format_.page_slots;
    const std::byte* params = coded_.params + page * coded_.params_page_stride;
    std::vector<double> row(static_cast<size_t>(format_.head_dim));
    double zero = 0;
    if (of_keys) {
      DecodeKeyRow(format_, coded_.k + page * coded_.page_stride, params, slot, row.data());
      zero = LoadAsFloat(params, format_.head_dim + i, DType::kBF16);
    } else {
      DecodeValueRow(format_, coded_.v + page * coded_.page_stride, params, slot, row.data());
      const int64_t groups = ValueGroups(format_) * format_.page_slots;
      zero = LoadAsFloat(params + KeyParamBytes(format_),
                         groups + i / kValueGroup * format_.page_slots + slot, DType::kBF16);
    }
    return std::abs(zero) + std::abs(row[static_cast<size_t>(i)] - zero);
  }
  int64_t Element(int64_t key, int64_t i) const {
    return (first_slot_ + key) % format_.page_slots * format_.head_dim + i;
  }
  std::byte* Page(std::byte* pages, int64_t key) const {
    return pages + (first_slot_ + key) / format_.page_slots * stride_;
  }
  void Set(std::byte* pages, int64_t key, int64_t i, float value) {
    StoreFloat(Page(pages, key), Element(key, i), format_.dtype, value);
  }
  float Get(std::byte* pages, int64_t key, int64_t i) const {
    return LoadAsFloat(Page(pages, key), Element(key, i), format_.dtype);
  }

  PageFormat format_;
  int64_t first_slot_;
  int64_t count_;
  std::vector<std::byte> memory_;
  int64_t stride_ = 0;
  std::byte* k_ = nullptr;
  std::byte* v_ = nullptr;
  std::vector<std::byte> codes_;  // and parameters
  PageRun coded_;
};

struct AttentionCase {
  PageFormat format;
  int group = 1;
  AttentionParams params;
  int64_t tokens = 1;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t key_position = 0;
  int64_t q_position = 0;
  bool positions = false;  // random gaps between the keys' positions
  int rotary_dim = 0;      // not 0: keys are rotated at attention time
  bool rotate_to = false;  // to positions of their own
  bool key_mass = false;
  bool merge = false;
};

// One item with its memory. `o` and `lse` are poisoned, or hold a random state to merge into.
class AttentionProblem {
 public:
  AttentionProblem(const AttentionCase& c, Random& random)
      : spec(c), kv(c.format, c.first_slot, c.count, random) {
    const int64_t row = c.group * c.format.head_dim;
    q_stride = row + 3;
    o_stride = row + 5;
    lse_stride = c.group + 1;
    q.resize(static_cast<size_t>(c.tokens * q_stride), kPoison);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < row; ++i) q[static_cast<size_t>(t * q_stride + i)] = random.Normal();
    }
    int32_t position = static_cast<int32_t>(c.key_position);
    for (int64_t key = 0; key < c.count; ++key) {
      positions.push_back(position);
      position += 1 + static_cast<int32_t>(random.Below(3));
      rotate_to.push_back(static_cast<int32_t>(random.Below(1000)));
    }
    for (int i = 0; i < c.rotary_dim / 2; ++i) {
      inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / c.rotary_dim));
    }
    o.resize(static_cast<size_t>(c.tokens * o_stride), kPoison);
    lse.resize(static_cast<size_t>(c.tokens * lse_stride), kPoison);
    mass.resize(static_cast<size_t>(c.count), 0.25f);
    if (c.merge) FillState(random);
  }

  AttentionItem Item() {
    return {.q = q.data(),
            .q_stride = q_stride,
            .tokens = spec.tokens,
            .q_position = spec.q_position,
            .keys = {.pages = kv.Run(),
                     .position = spec.positions ? -1 : spec.key_position,
                     .positions = spec.positions ? positions.data() : nullptr},
            .transform = {.inv_freq = spec.rotary_dim > 0 ? inv_freq.data() : nullptr,
                          .rotary_dim = spec.rotary_dim,
                          .rotate_to = spec.rotate_to ? rotate_to.data() : nullptr},
            .o = o.data(),
            .o_stride = o_stride,
            .lse = lse.data(),
            .lse_stride = lse_stride,
            .merge = spec.merge,
            .key_mass = spec.key_mass ? mass.data() : nullptr};
  }

  // What Attend writes, to be put back before it runs again.
  struct Outputs {
    std::vector<float> o;
    std::vector<float> lse;
    std::vector<float> mass;
  };
  Outputs outputs() const { return {o, lse, mass}; }
  void Reset(const Outputs& to) {
    o = to.o;
    lse = to.lse;
    mass = to.mass;
  }

  AttentionCase spec;
  PagedKv kv;
  int64_t q_stride = 0;
  int64_t o_stride = 0;
  int64_t lse_stride = 0;
  std::vector<float> q;
  std::vector<int32_t> positions;
  std::vector<int32_t> rotate_to;
  std::vector<float> inv_freq;
  std::vector<float> o;
  std::vector<float> lse;
  std::vector<float> mass;

 private:
  // Some of the states to merge into have seen no key yet; their o is 0.
  void FillState(Random& random) {
    for (int64_t t = 0; t < spec.tokens; ++t) {
      for (int64_t h = 0; h < spec.group; ++h) {
        const bool none = random.Below(4) == 0;
        lse[static_cast<size_t>(t * lse_stride + h)] =
            none ? -std::numeric_limits<float>::infinity() : 4 * random.Normal();
        for (int64_t i = 0; i < spec.format.head_dim; ++i) {
          o[static_cast<size_t>(t * o_stride + h * spec.format.head_dim + i)] =
              none ? 0.0f : random.Normal();
        }
      }
    }
  }
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_
