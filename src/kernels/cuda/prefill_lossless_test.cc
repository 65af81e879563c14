// Attention of prefill over lossless pages: the bits of the pages that were encoded.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/page_codec.h"
#include "kernels/cuda/prefill.h"
#include "kernels/page_codec.h"

namespace headway::cuda {
namespace {

constexpr int kHeads = 4, kGroup = 2, kHeadDim = 128;
constexpr int64_t kWidth = int64_t{kHeads} * kGroup * kHeadDim;
constexpr PageFormat kFormat = {DType::kBF16, 64, kHeadDim, Encoding::kLossless};

std::vector<std::byte> Drawn(Random& random, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * 2);
  for (int64_t i = 0; i < count; ++i) {
    // Some escape.
    const float scale = random.Below(4096) == 0 ? 1e-6f : 1.0f;
    StoreFloat(bytes.data(), i, DType::kBF16, scale * random.Normal());
  }
  return bytes;
}

struct Range {
  int64_t tokens, keys, readable;
  bool merge, result;
};

class LosslessPrefillTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Sdpa>> made = Sdpa::Create(0);
    if (!made.ok()) GTEST_SKIP() << "no cuDNN";
    sdpa_ = std::move(*made);
  }

  // Of a slab with room for `readable` keys a head.
  void Check(const Range& range) {
    SCOPED_TRACE(std::to_string(range.tokens) + " tokens, " + std::to_string(range.keys) +
                 " keys, room for " + std::to_string(range.readable));
    Random random(32);
    const DeviceArray<std::byte> q(Drawn(random, 2 * range.tokens * kWidth));
    const int64_t pages = range.readable / kFormat.page_slots;
    const auto plain_stride = static_cast<int64_t>(kFormat.bytes());
    const auto code_stride = static_cast<int64_t>(kFormat.closed_bytes());
    const int64_t param_stride = RoundUp(ParamBytes(kFormat), 16);
    const DeviceArray<std::byte> k(Drawn(random, kHeads * range.readable * kHeadDim));
    const DeviceArray<std::byte> v(Drawn(random, kHeads * range.readable * kHeadDim));
    const DeviceArray<std::byte> codes(static_cast<size_t>(2 * kHeads * pages * code_stride));
    const DeviceArray<std::byte> params(static_cast<size_t>(kHeads * pages * param_stride));
    const PageRun plain = {.k = k.at(),
                           .v = v.at(),
                           .page_stride = plain_stride,
                           .head_stride = pages * plain_stride,
                           .count = range.keys,
                           .readable = range.readable};
    const PageRun encoded = {.k = codes.at(),
                             .v = codes.at() + kHeads * pages * code_stride,
                             .page_stride = code_stride,
                             .head_stride = pages * code_stride,
                             .count = range.keys,
                             .readable = range.readable,
                             .params = params.at(),
                             .params_page_stride = param_stride,
                             .params_head_stride = pages * param_stride};
    const DeviceArray<int32_t> unfit(std::vector<int32_t>{0});
    const EncodePagesItem item = {plain, encoded, kHeads, unfit.at()};
    ASSERT_EQ(EncodePages(nullptr, kFormat, {&item, 1}), cudaSuccess);
    const auto expected = Attended(range, q.at(), plain);
    const auto actual = Attended(range, q.at(), encoded);
    ASSERT_EQ(unfit.Read(1)[0], 0);
    ASSERT_TRUE(expected == actual);
  }

 private:
  // The bytes of o, lse and the result.
  std::vector<std::byte> Attended(const Range& range, const std::byte* q, const PageRun& pages) {
    Random random(33);
    KernelLimits limits;
    limits.rows = range.tokens;
    limits.head_dim = kHeadDim;
    limits.group = kGroup;
    limits.query_heads = kHeads * kGroup;
    limits.activation = DType::kBF16;
    limits.encoding = Encoding::kLossless;
    const DeviceArray<std::byte> memory(static_cast<size_t>(PrefillLayout(limits).total()));
    const DeviceArray<std::byte> decoded(static_cast<size_t>(DecodedBytes(limits)));
    const size_t count = static_cast<size_t>(range.tokens * kWidth);
    std::vector<float> state(count);
    for (float& value : state) value = random.Normal();
    const DeviceArray<float> o(state);
    state.resize(static_cast<size_t>(range.tokens * kHeads * kGroup));
    const DeviceArray<float> lse(state);
    const DeviceArray<std::byte> result(count * 2);
    AttentionItem item;
    item.q = q;
    item.q_stride = kWidth;
    item.tokens = range.tokens;
    item.q_position = range.keys;
    item.heads = kHeads;
    item.keys.pages = pages;
    item.o = o.at();
    item.o_stride = kWidth;
    item.lse = lse.at();
    item.lse_stride = kHeads * kGroup;
    item.merge = range.merge;
    if (range.result) {
      item.result = result.at();
      item.result_stride = kWidth;
    }
    const Status status = AttendPrefill(nullptr, {memory.at(), decoded.at(), limits, sdpa_.get()},
                                        kFormat, kGroup, {.scale = 0.08f}, item);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    std::vector<std::byte> bytes = result.Read(count * 2);
    if (range.result) return bytes;  // o and lse hold anything
    for (const DeviceArray<float>* array : {&o, &lse}) {
      const std::vector<float> values = array->Read(array == &o ? count : state.size());
      const auto* const first = reinterpret_cast<const std::byte*>(values.data());
      bytes.insert(bytes.end(), first, first + values.size() * sizeof(float));
    }
    return bytes;
  }

  std::unique_ptr<Sdpa> sdpa_;
};

// Full slabs and others, sizes that plans are for and others, more than all heads have room for at
// once, and few queries, which the tile kernel takes.
TEST_F(LosslessPrefillTest, HasTheBitsOfPlainPages) {
  for (const auto& [keys, readable] : {std::pair<int64_t, int64_t>{64, 64},
                                       {640, 640},
                                       {640, 4096},
                                       {8960, 16384},
                                       {16448, 16448},
                                       {57344, 65536},
                                       {57344, 57344},
                                       {131072, 131072}}) {
    for (const int64_t tokens : {40, 250, 256}) {
      const bool odd = tokens == 250;
      Check({tokens, keys, readable, /*merge=*/odd, /*result=*/!odd});
      if (HasFatalFailure()) return;
      if (keys < 1000) Check({tokens, keys, readable, !odd, odd});
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headway::cuda
