// Encoded pages on a GPU: the host's codes bit for bit, and rows decoded from them.
#include "kernels/cuda/page_codec.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/page_codec_testing.h"
#include "kernels/page_codec.h"

namespace headway::cuda {
namespace {

constexpr double kMaxValue = 8;  // no random value is larger

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
      CodecPages plain(format, heads, pages, false, random);
      Fill(format, heads, pages, false, &plain, random);
      CodecPages closed(format, heads, pages, true, random);
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
          Encode(std::vector<float>(size + 8, kPoison), format.dtype);
      const OnDevice to_k(nothing), to_v(nothing);
      ASSERT_EQ(DecodePages(nullptr, format, {run, heads, begin, count, to_k.data(), to_v.data()}),
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
