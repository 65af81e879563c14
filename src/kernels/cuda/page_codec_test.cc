// Encoded pages on a GPU: the host's codes bit for bit, and rows decoded from them.
#include "kernels/cuda/page_codec.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/attention_on_gpu_testing.h"
#include "kernels/cuda/page_codec_testing.h"
#include "kernels/lossless_math.h"
#include "kernels/page_codec.h"
#include "kernels/weight_code.h"

namespace headway::cuda {
namespace {

constexpr double kMaxValue = 8;  // no random value is larger

using Bytes = DeviceArray<std::byte>;

// Pages of K, V and parameters of `heads` heads, strides as drawn; bits that nothing writes are
// set.
struct CodecPages {
  CodecPages(const PageFormat& format, int heads, int64_t pages, bool closed, Random& random) {
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

void Fill(const PageFormat& format, int heads, int64_t pages, bool wild, CodecPages* plain,
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

TEST_P(PageCodecTest, WritesTheHostsCodes) {
  Random random(51);
  for (int head_dim : {8, 40, 64, 80, 128, 256}) {
    for (int slots : {5, 16, 64}) {
      const PageFormat format = Format(head_dim, slots);
      const int heads = 1 + static_cast<int>(random.Below(3));
      const int64_t pages = 1 + random.Below(4);
      CodecPages plain(format, heads, pages, false, random);
      Fill(format, heads, pages, true, &plain, random);
      CodecPages host(format, heads, pages, true, random);
      const Bytes k(plain.k), v(plain.v), to_k(host.k), to_v(host.v), to_params(host.params);
      const DeviceArray<int32_t> counter(std::vector<int32_t>{0});
      int32_t unfit = 0;
      const EncodePagesItem there = {plain.In(k.at(), v.at(), nullptr),
                                     host.In(to_k.at(), to_v.at(), to_params.at()), heads,
                                     counter.at()};
      const EncodePagesItem here = {plain.Here(), host.Here(), heads, &unfit};
      for (int64_t i = 0; i < heads * pages; ++i) EncodePageOf(format, here, i / pages, i % pages);
      // More items than a launch takes; all write the same.
      const std::vector<EncodePagesItem> items(slots == 5 ? 19 : 1, there);
      ASSERT_EQ(EncodePages(nullptr, format, items), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      SCOPED_TRACE("dim " + std::to_string(head_dim) + " slots " + std::to_string(slots));
      ASSERT_TRUE(to_k.Read(host.k.size()) == host.k);
      ASSERT_TRUE(to_v.Read(host.v.size()) == host.v);
      ASSERT_TRUE(to_params.Read(host.params.size()) == host.params);
      ASSERT_EQ(counter.Read(1)[0], unfit * static_cast<int32_t>(items.size()));
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
      CodecPages plain(format, heads, pages, false, random);
      Fill(format, heads, pages, false, &plain, random);
      CodecPages closed(format, heads, pages, true, random);
      const EncodePagesItem item = {plain.Here(), closed.Here(), heads};
      for (int64_t i = 0; i < heads * pages; ++i) EncodePageOf(format, item, i / pages, i % pages);
      const Bytes k(closed.k), v(closed.v), params(closed.params);
      PageRun run = closed.In(k.at(), v.at(), params.at());
      run.first_slot = random.Below(slots);
      run.count -= run.first_slot;
      const int64_t begin = random.Below(run.count);
      const int64_t count = run.count - begin;
      const size_t size = static_cast<size_t>(heads * count * head_dim);
      const std::vector<std::byte> nothing =
          EncodedAs(format.dtype, std::vector<float>(size + 8, kPoison));
      const Bytes to_k(nothing), to_v(nothing);
      ASSERT_EQ(DecodePages(nullptr, format, {run, heads, begin, count, to_k.at(), to_v.at()}),
                cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      const std::vector<std::byte> got_k = to_k.Read(nothing.size()),
                                   got_v = to_v.Read(nothing.size());
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
            ASSERT_NEAR(got, want, UnitOf(format.dtype) * std::abs(want) + 8 * kUnit * kMaxValue);
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

// K and V of pages of bf16 [64, 128], one behind the other. First every pattern of 16 bits, two
// rows an exponent. Then every pattern that can escape, as many a half as there is room for, among
// infinities and NaNs of all payloads. In the last half one more escapes.
std::vector<std::vector<uint16_t>> HalvesOfAllPatterns(const PageFormat& format) {
  const auto numbers = static_cast<size_t>(format.page_slots * format.head_dim);
  const auto entries =
      static_cast<size_t>(lossless::EscapeEntries(format.page_slots, format.head_dim));
  std::vector<std::vector<uint16_t>> halves;
  for (uint32_t i = 0; i < 65536; ++i) {
    if (i % numbers == 0) halves.emplace_back();
    const uint32_t exponent = i >> 8, sign = i >> 7 & 1;
    halves.back().push_back(static_cast<uint16_t>(sign << 15 | exponent << 7 | (i & 127)));
  }
  std::vector<uint16_t> background;
  for (uint32_t i = 0; i < numbers; ++i) {
    background.push_back(static_cast<uint16_t>((i >> 7 & 1) << 15 | 0x7F80 | (i & 127)));
  }
  size_t escapes = entries;  // of the last half
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (lossless::ExponentOf(static_cast<uint16_t>(bits)) >= 240) continue;
    if (escapes == entries) {
      halves.push_back(background);
      escapes = 0;
    }
    const size_t at = numbers / entries * escapes++ + halves.size() % (numbers / entries);
    halves.back()[at] = static_cast<uint16_t>(bits);
  }
  EXPECT_EQ(escapes, entries);
  halves.insert(halves.end(), 2, halves.back());
  halves.back().back() = 1;
  return halves;
}

// Host and device give the same bytes, and the numbers back.
TEST(LosslessPagesTest, EveryPatternAndFullListsComeBack) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no NVIDIA GPU can be used";
  }
  const PageFormat format = {DType::kBF16, 64, 128, Encoding::kLossless};
  ASSERT_EQ(lossless::EscapeEntries(64, 128), 48);
  const std::vector<std::vector<uint16_t>> halves = HalvesOfAllPatterns(format);
  const auto pages = std::ssize(halves) / 2;
  ASSERT_EQ(std::ssize(halves), 8 + 240 * 256 / 48 + 2);
  Random random(54);
  CodecPages plain(format, 1, pages, false, random), host(format, 1, pages, true, random);
  for (int64_t i = 0; i < std::ssize(halves); ++i) {
    const std::vector<uint16_t>& half = halves[static_cast<size_t>(i)];
    std::memcpy((i % 2 == 0 ? plain.k : plain.v).data() + i / 2 * plain.run.page_stride,
                half.data(), format.bytes());
  }
  const Bytes k(plain.k), v(plain.v), to_k(host.k), to_v(host.v), to_params(host.params);
  const DeviceArray<int32_t> counter(std::vector<int32_t>{0});
  int32_t unfit = 0;
  const EncodePagesItem here = {plain.Here(), host.Here(), 1, &unfit};
  for (int64_t page = 0; page < pages; ++page) EncodePageOf(format, here, 0, page);
  EXPECT_EQ(unfit, 1);
  const PageRun run = host.In(to_k.at(), to_v.at(), to_params.at());
  const EncodePagesItem there = {plain.In(k.at(), v.at(), nullptr), run, 1, counter.at()};
  ASSERT_EQ(EncodePages(nullptr, format, {&there, 1}), cudaSuccess);
  const size_t numbers = halves[0].size();
  const DeviceArray<uint16_t> rows_k(static_cast<size_t>(pages) * numbers),
      rows_v(static_cast<size_t>(pages) * numbers);
  ASSERT_EQ(DecodePages(nullptr, format, {run, 1, 0, run.count, rows_k.at(), rows_v.at()}),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  ASSERT_EQ(counter.Read(1)[0], 1);
  ASSERT_TRUE(to_k.Read(host.k.size()) == host.k);
  ASSERT_TRUE(to_v.Read(host.v.size()) == host.v);
  ASSERT_TRUE(to_params.Read(host.params.size()) == host.params);
  const std::vector<uint16_t> got[2] = {rows_k.Read(static_cast<size_t>(pages) * numbers),
                                        rows_v.Read(static_cast<size_t>(pages) * numbers)};
  for (size_t i = 0; i < halves.size(); ++i) {
    const std::vector<uint16_t> nothing(numbers, lossless::kUnfitBits);
    const std::vector<uint16_t>& want = i + 1 == halves.size() ? nothing : halves[i];
    const auto at = got[i % 2].begin() + static_cast<ptrdiff_t>(i / 2 * numbers);
    ASSERT_TRUE(std::equal(want.begin(), want.end(), at)) << "half " << i;
  }
}

TEST(WeightCodeTest, ExpandsToTheBitsThatWereEncoded) {
  Random random(53);
  for (const int64_t bytes : {512, 32768, 32784, 98304, 1000000}) {
    std::vector<std::byte> block(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes / 2; ++i) {
      const float size = random.Below(2000) == 0 ? 1e-30f : 0.02f;  // some escape
      StoreFloat(block.data(), i, DType::kBF16, size * random.Normal());
    }
    const WeightCode layout(bytes);
    std::vector<std::byte> code(static_cast<size_t>(layout.bytes()));
    for (int64_t page = 0; page < layout.pages(); ++page) {
      ASSERT_TRUE(EncodeWeightPage(layout, block.data(), page, code.data()));
    }
    CopyWeightTail(layout, block.data(), code.data());
    const Bytes from(code);
    const Bytes to(std::vector<std::byte>(block.size() + 16, std::byte{0xFF}));
    ASSERT_EQ(ExpandWeights(nullptr, from.at(), bytes, to.at()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const std::vector<std::byte> got = to.Read(block.size() + 16);
    ASSERT_TRUE(std::equal(block.begin(), block.end(), got.begin())) << bytes;
    ASSERT_EQ(got.back(), std::byte{0xFF});
    ASSERT_EQ(got[block.size()], std::byte{0xFF});
  }
}

INSTANTIATE_TEST_SUITE_P(Lossless, PageCodecTest,
                         testing::Values(std::tuple(DType::kBF16, Encoding::kLossless)));
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
