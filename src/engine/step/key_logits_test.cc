#include "engine/step/key_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"
#include "kernels/testing/paged_kv.h"

namespace headway {
namespace {

constexpr int kGroup = 2;
constexpr int64_t kRows = 3;
constexpr int64_t kKeys = 150;
constexpr float kScale = 0.25f;

// Logits of keys in two runs, as they would be if pages in the encoding were not.
class KeyLogitsTest : public ::testing::TestWithParam<Encoding> {
 protected:
  KeyLogitsItem ItemOf(const PageRun& run, std::vector<float>* logits) const {
    logits->assign(static_cast<size_t>(kRows * kGroup * kKeys), kPoison);
    return {.q = q_.data(),
            .q_stride = kGroup * format_.head_dim,
            .rows = kRows,
            .q_position = 100,  // not all keys are seen
            .keys = {.pages = run, .position = 10},
            .logits = logits->data(),
            .stride = kKeys};
  }
  // The same keys, one behind the other in pages that are not encoded.
  PageRun Decoded(const PagedKv& kv) {
    memory_.resize(static_cast<size_t>(kKeys * format_.head_dim));
    for (int64_t key = 0; key < kKeys; ++key) {
      const std::vector<double> row = kv.KeyRow(0, key);
      for (size_t i = 0; i < row.size(); ++i) {
        memory_[static_cast<size_t>(key) * row.size() + i] = static_cast<float>(row[i]);
      }
    }
    PageRun run;
    run.k = reinterpret_cast<std::byte*>(memory_.data());
    run.page_stride = static_cast<int64_t>(format_.bytes());
    run.count = kKeys;
    return run;
  }

  Random random_{5};
  const PageFormat format_ = {DType::kF32, 16, 24, GetParam()};
  std::vector<float> q_ = [this] {
    std::vector<float> q(static_cast<size_t>(kRows * kGroup * format_.head_dim));
    for (float& x : q) x = random_.Normal();
    return q;
  }();
  std::vector<float> memory_;
  std::unique_ptr<Kernels> kernels_ = NewRefKernels();
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
};

TEST_P(KeyLogitsTest, EncodedPagesAreDecodedInPartsOfAnySize) {
  PagedKv kv({.format = format_, .first_slot = 21, .count = kKeys}, random_);
  PagedKv open({.format = {DType::kF32, 16, 24}, .first_slot = 3, .count = kKeys}, random_);
  std::vector<float> of_codes, of_open, expected, expected_open;
  const KeyLogitsItem items[] = {ItemOf(Decoded(kv), &expected),
                                 ItemOf(open.Run(), &expected_open)};
  kernels_->KeyLogits(*stream_, format_, kGroup, kScale, items);
  for (const int64_t tokens : {1, 16, 40, 1000}) {
    const KeyLogitsItem encoded[] = {ItemOf(kv.Run(), &of_codes), ItemOf(open.Run(), &of_open)};
    std::vector<std::byte> memory(static_cast<size_t>(KeyLogits::Bytes(format_, tokens)));
    KeyLogits logits(*kernels_, *stream_, format_, memory.data(), tokens);
    for (int turn = 0; turn < 2; ++turn) {
      logits.Run(kGroup, kScale, encoded);
      EXPECT_EQ(of_codes, expected) << tokens;
      EXPECT_EQ(of_open, expected_open) << tokens;
    }
  }
}

TEST(KeyLogits, PagesThatAreNotEncodedTakeNoMemory) {
  const PageFormat plain = {DType::kBF16, 64, 128};
  EXPECT_EQ(KeyLogits::Bytes(plain, 1 << 20), 0);
  PageFormat codes = plain;
  codes.encoding = Encoding::kInt8;
  EXPECT_EQ(KeyLogits::Bytes(codes, 100), 2 * 64 * 128 * 2);
  EXPECT_EQ(KeyLogits::Bytes(codes, 1 << 20), 8 << 20);
}

INSTANTIATE_TEST_SUITE_P(All, KeyLogitsTest,
                         ::testing::Values(Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4),
                         [](const auto& param) { return EncodingName(param.param); });

}  // namespace
}  // namespace headway
