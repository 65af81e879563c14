// Weights in their lossless form: what comes back, and what does not fit.
#include "kernels/weight_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/half.h"
#include "base/random.h"

namespace headway {
namespace {

constexpr std::byte kGuard{0xA5};

std::vector<std::byte> NormalNumbers(int64_t bytes, Random& random) {
  std::vector<std::byte> block(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes / 2; ++i) {
    StoreFloat(block.data(), i, DType::kBF16, 0.02f * random.Normal());
  }
  return block;
}

TEST(WeightCode, GivesBackEveryBit) {
  Random random(1);
  for (const int64_t bytes : {0, 2, 4096, 32768, 32770, 65536, 100000, 300000}) {
    std::vector<std::byte> block = NormalNumbers(bytes, random);
    // A row of zeros, which fits, and a few numbers that escape.
    const int64_t zeros = std::min<int64_t>(bytes, 256);
    std::fill_n(block.begin(), zeros, std::byte{0});
    for (int64_t i = 256; i + 2 <= bytes; i += 1024) {
      StoreFloat(block.data(), i / 2, DType::kBF16, 1e-30f);
    }
    const WeightCode layout(bytes);
    std::vector<std::byte> code(static_cast<size_t>(layout.bytes()) + 1, kGuard);
    for (int64_t page = 0; page < layout.pages(); ++page) {
      ASSERT_TRUE(EncodeWeightPage(layout, block.data(), page, code.data())) << bytes;
    }
    CopyWeightTail(layout, block.data(), code.data());
    EXPECT_EQ(code.back(), kGuard);
    std::vector<std::byte> back(block.size() + 1, kGuard);
    DecodeWeights(layout, code.data(), back.data());
    EXPECT_EQ(back.back(), kGuard);
    back.pop_back();
    EXPECT_TRUE(back == block) << bytes;
  }
}

TEST(WeightCode, TakesThreeQuartersOfTheBytes) {
  for (const int64_t mib : {1, 416}) {
    const auto share =
        static_cast<double>(WeightCode(mib << 20).bytes()) / static_cast<double>(mib << 20);
    EXPECT_GT(share, 0.75);
    EXPECT_LT(share, 0.764);
  }
}

TEST(WeightCode, SaysWhatDoesNotFit) {
  Random random(2);
  const WeightCode layout(65536);
  std::vector<std::byte> block = NormalNumbers(65536, random);
  for (int64_t i = 20000; i < 21000; i += 10) {  // values of the first page
    StoreFloat(block.data(), i, DType::kBF16, 1e-30f);
  }
  std::vector<std::byte> code(static_cast<size_t>(layout.bytes()));
  EXPECT_FALSE(EncodeWeightPage(layout, block.data(), 0, code.data()));
  EXPECT_TRUE(EncodeWeightPage(layout, block.data(), 1, code.data()));
}

}  // namespace
}  // namespace headway
