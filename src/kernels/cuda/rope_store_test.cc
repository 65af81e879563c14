#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "base/types.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/elementwise_testing.h"

namespace headway::cuda {
namespace {

class RopeAnglesTest : public ElementwiseTest, public testing::WithParamInterface<RopeProduct> {};

TEST_P(RopeAnglesTest, AreRightFarAway) {
  for (const int half : {1, 32, 64}) {
    const int64_t tokens = 77;
    std::vector<int32_t> positions(Count(tokens));
    for (int32_t& position : positions) position = static_cast<int32_t>(random_.Below(4000000));
    positions[0] = 0;
    std::vector<float> inv_freq(Count(half));
    for (int i = 0; i < half; ++i) {
      inv_freq[Count(i)] = std::pow(500000.0f, -static_cast<float>(i) / static_cast<float>(half));
    }
    const float scale = 1.25f;
    Memory position_memory(positions.size() * sizeof(int32_t));
    ASSERT_CUDA(cuda::CopyToGpu(position_memory.data(), positions.data(),
                                positions.size() * sizeof(int32_t)));
    Memory inv_freq_memory(DType::kF32, inv_freq);
    Memory cos(Count(tokens * half) * sizeof(float));
    Memory sin(Count(tokens * half) * sizeof(float));
    ASSERT_CUDA(RopeAngles(
        nullptr,
        {.positions = {reinterpret_cast<const int32_t*>(position_memory.data()), positions.size()},
         .inv_freq = inv_freq_memory.floats(),
         .rotary_dim = 2 * half,
         .scale = scale,
         .product = GetParam(),
         .cos = cos.floats(),
         .sin = sin.floats()}));
    const std::vector<float> c = cos.Values(DType::kF32);
    const std::vector<float> s = sin.Values(DType::kF32);
    for (int64_t i = 0; i < tokens * half; ++i) {
      const double angle =
          RopeAngle(GetParam(), positions[Count(i / half)], inv_freq[Count(i % half)]);
      ASSERT_NEAR(c[Count(i)], std::cos(angle) * scale, 4 * kFloatEpsilon);
      ASSERT_NEAR(s[Count(i)], std::sin(angle) * scale, 4 * kFloatEpsilon);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Products, RopeAnglesTest,
                         testing::Values(RopeProduct::kRounded, RopeProduct::kExact));

// Angles of a step, on the host and on the device.
struct Angles {
  Angles(Random* random, int64_t tokens, int dim) : rotary_dim(dim) {
    for (int64_t i = 0; i < tokens * (rotary_dim / 2); ++i) {
      const double angle = random->Uniform() * 6.28;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    cos_memory = std::make_unique<Memory>(DType::kF32, cos);
    sin_memory = std::make_unique<Memory>(DType::kF32, sin);
  }
  RopeTable table() const { return {cos_memory->floats(), sin_memory->floats(), rotary_dim}; }

  // Whether `got` [heads, head_dim] is `x` of `token`, rotated.
  void ExpectRotated(DType dtype, int64_t token, int heads, int head_dim, std::span<const float> x,
                     std::span<const float> got) const {
    const int half = rotary_dim / 2;
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < head_dim; ++i) {
        const size_t at = Count(int64_t{head} * head_dim + i);
        if (i >= rotary_dim) {
          ASSERT_EQ(got[at], x[at]);
          continue;
        }
        const size_t angle = Count(token * half + i % half);
        const bool low = i < half;
        const double other = low ? -x[at + Count(half)] : x[at - Count(half)];
        const double value = double{x[at]} * cos[angle] + other * sin[angle];
        const double summing = 2 * kFloatEpsilon * (std::abs(x[at]) + std::abs(other));
        ASSERT_NEAR(got[at], value, summing + Rounding(dtype, value)) << "element " << i;
      }
    }
  }

  int rotary_dim;
  std::vector<float> cos;
  std::vector<float> sin;
  std::unique_ptr<Memory> cos_memory;
  std::unique_ptr<Memory> sin_memory;
};

TEST_F(ElementwiseTest, Rope) {
  struct Shape {
    int head_dim;
    int rotary_dim;
    int64_t gap;
  };
  for (const DType activation : kDTypes) {
    for (const Shape& shape : {Shape{128, 128, 0}, Shape{64, 32, 16}, Shape{80, 20, 0},
                               Shape{128, 128, 3}, Shape{6, 6, 1}, Shape{256, 64, 0}}) {
      const int64_t tokens = 1 + random_.Below(30);
      const int heads = 1 + static_cast<int>(random_.Below(33));
      SCOPED_TRACE(testing::Message() << DTypeName(activation) << " head_dim " << shape.head_dim
                                      << " rotary_dim " << shape.rotary_dim);
      const int64_t width = int64_t{heads} * shape.head_dim;
      const int64_t stride = width + shape.gap;
      const Angles angles(&random_, tokens, shape.rotary_dim);
      const std::vector<float> x = Numbers(tokens * stride, activation);
      Memory x_memory(activation, x);
      ASSERT_CUDA(Rope(nullptr, activation, angles.table(),
                       {x_memory.data(), tokens, heads, shape.head_dim, stride}));
      const std::vector<float> got = x_memory.Values(activation);
      for (int64_t token = 0; token < tokens; ++token) {
        const size_t at = Count(token * stride);
        angles.ExpectRotated(activation, token, heads, shape.head_dim,
                             std::span(x).subspan(at, Count(width)),
                             std::span(got).subspan(at, Count(width)));
        for (int64_t i = width; i < stride; ++i) {
          ASSERT_EQ(got[at + Count(i)], x[at + Count(i)]);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// K and V pages of several heads, on the device and as they should be.
class Pages {
 public:
  Pages(const PageFormat& format, int heads, int64_t first_slot, int64_t count, int64_t padding,
        size_t offset)
      : format_(format),
        heads_(heads),
        first_slot_(first_slot),
        count_(count),
        page_stride_(static_cast<int64_t>(format.bytes()) + padding),
        head_stride_(page_stride_ * CeilDiv(first_slot + count, format.page_slots)),
        k_(Count(head_stride_ * heads), std::byte{0xFF}),
        v_(k_),
        k_memory_(k_.size(), offset),
        v_memory_(v_.size(), offset) {}

  PageRun run() {
    return {k_memory_.data(), v_memory_.data(), page_stride_, head_stride_, first_slot_, count_};
  }

  // What storing k and v [count, heads, head_dim], tokens `stride` apart, should leave.
  void Store(std::span<const float> k, std::span<const float> v, int64_t stride) {
    for (int64_t slot = 0; slot < count_; ++slot) {
      const int64_t at = first_slot_ + slot;
      for (int head = 0; head < heads_; ++head) {
        const size_t page = Count(head * head_stride_ + at / format_.page_slots * page_stride_);
        for (int i = 0; i < format_.head_dim; ++i) {
          const int64_t to = at % format_.page_slots * format_.head_dim + i;
          const size_t from = Count(slot * stride + int64_t{head} * format_.head_dim + i);
          StoreFloat(k_.data() + page, to, format_.dtype, k[from]);
          StoreFloat(v_.data() + page, to, format_.dtype, v[from]);
        }
      }
    }
  }

  Memory& k_memory() { return k_memory_; }
  const std::vector<std::byte>& k_bytes() const { return k_; }
  // Of the element `column` of a slot's key, counted from the first page.
  int64_t ElementAt(int64_t slot, int head, int column) const {
    const int64_t at = first_slot_ + slot;
    const int64_t page = head * head_stride_ + at / format_.page_slots * page_stride_;
    return page / static_cast<int64_t>(DTypeBytes(format_.dtype)) +
           at % format_.page_slots * format_.head_dim + column;
  }

  // Every byte, also those between pages and outside the run.
  void ExpectStored() {
    EXPECT_TRUE(k_memory_.Bytes() == k_);
    EXPECT_TRUE(v_memory_.Bytes() == v_);
  }

 private:
  PageFormat format_;
  int heads_;
  int64_t first_slot_;
  int64_t count_;
  int64_t page_stride_;
  int64_t head_stride_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
  Memory k_memory_;
  Memory v_memory_;
};

TEST_F(ElementwiseTest, StoreKv) {
  for (const DType activation : kDTypes) {
    for (const DType page : kDTypes) {
      for (const int head_dim : {128, 24, 7}) {
        for (const int item_count : {1, 3, 40}) {
          SCOPED_TRACE(testing::Message() << DTypeName(activation) << " to " << DTypeName(page)
                                          << " head_dim " << head_dim << " items " << item_count);
          const PageFormat format{page, 16, head_dim};
          std::vector<std::unique_ptr<Pages>> pages;
          std::vector<std::unique_ptr<Memory>> inputs;
          std::vector<StoreKvItem> items;
          for (int i = 0; i < item_count; ++i) {
            const int heads = 1 + static_cast<int>(random_.Below(4));
            const int64_t count = i == 1 ? 0 : 1 + random_.Below(40);
            const int64_t stride = int64_t{heads} * head_dim + (i % 3 == 2 ? 5 : 0);
            const std::vector<float> k = Numbers(count * stride, activation);
            const std::vector<float> v = Numbers(count * stride, activation);
            inputs.push_back(std::make_unique<Memory>(activation, k));
            inputs.push_back(std::make_unique<Memory>(activation, v));
            pages.push_back(std::make_unique<Pages>(format, heads, random_.Below(40), count,
                                                    i % 2 == 0 ? 0 : 48,
                                                    i % 5 == 4 ? DTypeBytes(page) : 0));
            pages.back()->Store(k, v, stride);
            items.push_back({(*(inputs.end() - 2))->data(), inputs.back()->data(), stride, heads,
                             pages.back()->run()});
          }
          ASSERT_CUDA(StoreKv(nullptr, activation, format, items));
          for (const auto& each : pages) each->ExpectStored();
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, RopeStoreKv) {
  struct Shape {
    int head_dim;
    int rotary_dim;
    int64_t gap;
  };
  for (const DType activation : kDTypes) {
    for (const DType page : kDTypes) {
      for (const Shape& shape : {Shape{128, 128, 0}, Shape{64, 32, 8}, Shape{96, 0, 0},
                                 Shape{20, 10, 0}, Shape{64, 64, 1}}) {
        for (const int64_t tokens : {int64_t{1}, 2 + random_.Below(50)}) {
          SCOPED_TRACE(testing::Message() << DTypeName(activation) << " to " << DTypeName(page)
                                          << " head_dim " << shape.head_dim << " rotary_dim "
                                          << shape.rotary_dim << " tokens " << tokens);
          const PageFormat format{page, 16, shape.head_dim};
          const int heads = 1 + static_cast<int>(random_.Below(4));
          const int q_heads = heads * 3;
          const int64_t q_width = int64_t{q_heads} * shape.head_dim;
          const int64_t kv_width = int64_t{heads} * shape.head_dim;
          const int64_t q_stride = q_width + shape.gap;
          const int64_t kv_stride = kv_width + shape.gap;
          const Angles angles(&random_, tokens, shape.rotary_dim);
          const std::vector<float> q = Numbers(tokens * q_stride, activation);
          const std::vector<float> k = Numbers(tokens * kv_stride, activation);
          const std::vector<float> v = Numbers(tokens * kv_stride, activation);
          Memory q_memory(activation, q);
          Memory k_memory(activation, k);
          Memory v_memory(activation, v);
          Pages pages(format, heads, random_.Below(40), tokens, 32, 0);
          const StoreKvItem item{k_memory.data(), v_memory.data(), kv_stride, heads, pages.run()};
          const RopeStoreItem whole{q_memory.data(), q_stride, q_heads, angles.table(), item};
          ASSERT_CUDA(RopeStoreKv(nullptr, activation, format, {&whole, 1}));
          const std::vector<float> rotated_q = q_memory.Values(activation);
          const std::vector<float> rotated_k = k_memory.Values(activation);
          for (int64_t token = 0; token < tokens; ++token) {
            const size_t q_at = Count(token * q_stride);
            const size_t k_at = Count(token * kv_stride);
            angles.ExpectRotated(activation, token, q_heads, shape.head_dim,
                                 std::span(q).subspan(q_at, Count(q_width)),
                                 std::span(rotated_q).subspan(q_at, Count(q_width)));
            angles.ExpectRotated(activation, token, heads, shape.head_dim,
                                 std::span(k).subspan(k_at, Count(kv_width)),
                                 std::span(rotated_k).subspan(k_at, Count(kv_width)));
            if (HasFatalFailure()) return;
          }
          EXPECT_EQ(v_memory.Values(activation), v);
          // The pages hold what the activations were rounded to.
          pages.Store(rotated_k, v, kv_stride);
          pages.ExpectStored();
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The sequences of a batch, of unequal lengths, some of them where they are read element by
// element: as one by one.
TEST_F(ElementwiseTest, RopeStoreKvOfABatch) {
  const DType dtype = DType::kF16;
  for (const int rotary_dim : {64, 0}) {
    const PageFormat format{dtype, 16, 64};
    constexpr int kHeads = 3;
    constexpr int64_t kStride = kHeads * 64;
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<std::unique_ptr<Angles>> angles;
    std::vector<std::unique_ptr<Pages>> pages;
    std::vector<RopeStoreItem> items;
    std::vector<std::vector<float>> qs, ks, vs;
    const auto upload = [&](const std::vector<float>& values, size_t offset) {
      memories.push_back(std::make_unique<Memory>(dtype, values, offset));
      return memories.back()->data();
    };
    for (int i = 0; i < 71; ++i) {
      const int64_t tokens = i % 5 == 0 ? 1 + random_.Below(4) : 1;
      const size_t offset = i % 7 == 0 ? 2 : 0;
      qs.push_back(Numbers(tokens * kStride, dtype));
      ks.push_back(Numbers(tokens * kStride, dtype));
      vs.push_back(Numbers(tokens * kStride, dtype));
      angles.push_back(std::make_unique<Angles>(&random_, tokens, rotary_dim));
      pages.push_back(std::make_unique<Pages>(format, kHeads, random_.Below(40), tokens, 32, 0));
      RopeStoreItem item;
      item.q = upload(qs.back(), offset);
      item.q_stride = kStride;
      item.query_heads = kHeads;
      item.table = angles.back()->table();
      item.kv.k = upload(ks.back(), offset);
      item.kv.v = upload(vs.back(), offset);
      item.kv.kv_stride = kStride;
      item.kv.heads = kHeads;
      item.kv.to = pages.back()->run();
      items.push_back(item);
    }
    ASSERT_CUDA(RopeStoreKv(nullptr, dtype, format, items));
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(i);
      const std::vector<float> q = memories[3 * i]->Values(dtype);
      const std::vector<float> k = memories[3 * i + 1]->Values(dtype);
      for (int64_t token = 0; token < items[i].kv.to.count; ++token) {
        const size_t at = Count(token * kStride);
        angles[i]->ExpectRotated(dtype, token, kHeads, 64,
                                 std::span(qs[i]).subspan(at, Count(kStride)),
                                 std::span(q).subspan(at, Count(kStride)));
        angles[i]->ExpectRotated(dtype, token, kHeads, 64,
                                 std::span(ks[i]).subspan(at, Count(kStride)),
                                 std::span(k).subspan(at, Count(kStride)));
      }
      pages[i]->Store(k, vs[i], kStride);
      pages[i]->ExpectStored();
      if (HasFailure()) return;
    }
  }
}

// Keys of pages, turned into pages that are poisoned: nothing but their slots is written.
TEST_F(ElementwiseTest, TurnKeys) {
  struct Shape {
    int head_dim;
    int rotary_dim;
    size_t offset;
  };
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : {Shape{128, 128, 0}, Shape{64, 32, 0}, Shape{80, 20, 0},
                               Shape{96, 0, 0}, Shape{128, 128, DTypeBytes(dtype)}}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << shape.head_dim
                                      << " rotary_dim " << shape.rotary_dim);
      const PageFormat format{dtype, 16, shape.head_dim};
      const int heads = 1 + static_cast<int>(random_.Below(4));
      const int64_t count = 1 + random_.Below(90), first_slot = random_.Below(16);
      const int64_t width = int64_t{heads} * shape.head_dim;
      const Angles angles(&random_, count, shape.rotary_dim);
      const std::vector<float> k = Numbers(count * width, dtype);
      Memory k_memory(dtype, k);
      Pages from(format, heads, first_slot, count, 32, shape.offset);
      Pages to(format, heads, first_slot, count, 32, shape.offset);
      const StoreKvItem store{k_memory.data(), k_memory.data(), width, heads, from.run()};
      ASSERT_CUDA(StoreKv(nullptr, dtype, format, {&store, 1}));
      Memory& turned = to.k_memory();
      ASSERT_CUDA(TurnKeys(nullptr, format, {from.run(), turned.data(), heads, angles.table()}));
      const std::vector<std::byte> bytes = turned.Bytes();
      std::vector<float> got(Count(count * width));
      for (int64_t slot = 0; slot < count; ++slot) {
        for (int head = 0; head < heads; ++head) {
          for (int i = 0; i < shape.head_dim; ++i) {
            got[Count(slot * width + int64_t{head} * shape.head_dim + i)] =
                LoadAsFloat(bytes.data(), to.ElementAt(slot, head, i), dtype);
          }
        }
        angles.ExpectRotated(dtype, slot, heads, shape.head_dim,
                             std::span(k).subspan(Count(slot * width), Count(width)),
                             std::span(got).subspan(Count(slot * width), Count(width)));
        if (HasFatalFailure()) return;
      }
      // What the slots hold put back, all bytes are as they were but those.
      to.Store(got, got, width);
      EXPECT_TRUE(bytes == to.k_bytes());
    }
  }
}

}  // namespace
}  // namespace headway::cuda
