// The steps of the model with the reference kernels and a plain cache, against Transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"
#include "model/model.h"
#include "model/rope.h"
#include "support/golden.h"

namespace headway {
namespace {

constexpr int64_t kChunk = 37;  // divides nothing

// Runs one sequence: all keys and values of a head in consecutive pages of its own.
class PlainRunner {
 public:
  PlainRunner(const Model& model, DType kv_dtype, int64_t prompt_length, int64_t capacity)
      : model_(model),
        shape_(model.shape()),
        format_{.dtype = kv_dtype, .head_dim = shape_.head_dim},
        device_(NewCpuDevice(Env::Default(), nullptr)),
        stream_(*device_->NewStream(Lane::kCompute)),
        kernels_(NewRefKernels()),
        rope_(ComputeRope(model.config().rope, shape_.head_dim, prompt_length)),
        activations_(static_cast<size_t>(Activations::Bytes(shape_, DType::kF32, kChunk) / 4 + 16),
                     NaN()),
        lse_(static_cast<size_t>(kChunk * shape_.query_heads), NaN()),
        scratch_(static_cast<size_t>(HeadScratchBytes(shape_, DType::kF32, 1) / 4), NaN()) {
    pages_ = CeilDiv(capacity, format_.page_slots);
    const int64_t planes = int64_t{2} * shape_.layers * shape_.kv_heads;
    memory_.resize(static_cast<size_t>(planes * pages_) * format_.bytes(), std::byte{0xFF});
  }

  // The logits behind each of `ids`, which follow what ran before.
  std::vector<std::vector<float>> Run(std::span<const TokenId> ids) {
    std::vector<std::vector<float>> logits;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
      Chunk(ids.subspan(begin, std::min<size_t>(kChunk, ids.size() - begin)), &logits);
    }
    return logits;
  }

 private:
  static float NaN() { return std::numeric_limits<float>::quiet_NaN(); }

  PageRun Pages(int layer, int64_t begin, int64_t count) {
    const auto page = static_cast<int64_t>(format_.bytes());
    std::byte* k = memory_.data() + 2 * layer * shape_.kv_heads * pages_ * page +
                   begin / format_.page_slots * page;
    return {.k = k,
            .v = k + pages_ * page,
            .page_stride = page,
            .head_stride = 2 * pages_ * page,
            .first_slot = begin % format_.page_slots,
            .count = count};
  }

  void Attention(int layer, const RopeTable& table, int64_t tokens, const Activations& a) {
    const int64_t head_dim = shape_.head_dim;
    const StoreKvItem store = {.k = a.k,
                               .v = a.v,
                               .kv_stride = a.qkv_stride,
                               .heads = shape_.kv_heads,
                               .to = Pages(layer, length_, tokens)};
    const RopeStoreItem rotated = {.q = a.q,
                                   .q_stride = a.qkv_stride,
                                   .query_heads = shape_.query_heads,
                                   .table = table,
                                   .kv = store};
    kernels_->RopeStoreKv(*stream_, format_, {&rotated, 1});
    AttentionItem item;
    item.q = a.q;
    item.q_stride = a.qkv_stride;
    item.tokens = tokens;
    item.q_position = length_;
    item.heads = shape_.kv_heads;
    item.keys.pages = Pages(layer, 0, length_ + tokens);
    item.o = static_cast<float*>(a.o);
    item.o_stride = shape_.query_heads * head_dim;
    item.lse = lse_.data();
    item.lse_stride = shape_.query_heads;
    const AttentionParams params = {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                    .window = model_.config().windows[static_cast<size_t>(layer)]};
    kernels_->Attend(*stream_, format_, shape_.group(), params, {&item, 1});
  }

  void Chunk(std::span<const TokenId> ids, std::vector<std::vector<float>>* logits) {
    const auto tokens = static_cast<int64_t>(ids.size());
    void* start = activations_.data();
    size_t space = activations_.size() * sizeof(float);
    ASSERT_NE(std::align(64, space - 64, start, space), nullptr);
    const Activations a =
        Activations::Place(shape_, DType::kF32, tokens, static_cast<std::byte*>(start));
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<int32_t>(length_ + i));
    kernels_->RopeAngles(*stream_, positions, rope_.inv_freq.data(), rope_.rotary_dim(),
                         rope_.scale, a.cos, a.sin);
    const RopeTable table = {.cos = a.cos, .sin = a.sin, .rotary_dim = rope_.rotary_dim()};

    model_.Embed(*kernels_, *stream_, ids, positions, a);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      model_.Qkv(*kernels_, *stream_, layer, tokens, a, false);
      Attention(layer, table, tokens, a);
      model_.AttentionOut(*kernels_, *stream_, layer, tokens, a);
      model_.Mlp(*kernels_, *stream_, layer, tokens, a);
    }
    length_ += tokens;
    for (int64_t i = 0; i < tokens; ++i) {
      logits->emplace_back(static_cast<size_t>(shape_.vocab), NaN());
      model_.Head(*kernels_, *stream_, 1, a.x + i * shape_.d_model, scratch_.data(),
                  logits->back().data());
    }
    ASSERT_TRUE(stream_->Synchronize().ok());
  }

  const Model& model_;
  const ModelShape shape_;
  const PageFormat format_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
  const RopeFrequencies rope_;
  std::vector<float> activations_;
  std::vector<float> lse_;
  std::vector<float> scratch_;
  std::vector<std::byte> memory_;  // [layers, kv_heads, K and V, pages_] pages
  int64_t pages_ = 0;
  int64_t length_ = 0;
};

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void Compare(DType kv_dtype) {
    Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_GE(golden->tokens.size(), 64u);

    const auto prompt_length = static_cast<int64_t>(golden->prompt.size());
    const int64_t length = prompt_length + static_cast<int64_t>(golden->tokens.size());
    PlainRunner runner(**model, kv_dtype, prompt_length, length);
    std::vector<std::vector<float>> logits = runner.Run(golden->prompt);
    // Teacher-forced: each step is compared on its own, whatever the step before chose.
    for (TokenId token : golden->tokens) {
      std::vector<std::vector<float>> next = runner.Run({&token, 1});
      ASSERT_EQ(next.size(), 1u);
      logits.push_back(std::move(next.front()));
    }
    ASSERT_EQ(static_cast<int64_t>(logits.size()), length);
    CompareLogits(*golden, (*model)->shape(), kv_dtype, logits);
    CompareTokens(*golden, (*model)->shape(), kv_dtype, logits);
  }

  static void CompareLogits(const Golden& golden, const ModelShape& shape, DType kv_dtype,
                            const std::vector<std::vector<float>>& logits) {
    double worst = 0.0;
    for (size_t i = 0; i < golden.rows.size(); ++i) {
      const auto row = static_cast<size_t>(golden.rows[i]);
      const double tolerance =
          GoldenTolerance(shape, golden.rows[i] + 1, kv_dtype, golden.logits[i]);
      const double difference = MaxDifference(golden.logits[i], logits[row]);
      EXPECT_LE(difference, tolerance) << "position " << row;
      worst = std::max(worst, difference / tolerance);
    }
    testing::Test::RecordProperty("share_of_tolerance", std::to_string(worst));
  }

  static void CompareTokens(const Golden& golden, const ModelShape& shape, DType kv_dtype,
                            const std::vector<std::vector<float>>& logits) {
    size_t decided = 0;
    for (size_t i = 0; i < golden.tokens.size(); ++i) {
      const std::vector<float>& row = logits[golden.prompt.size() - 1 + i];
      const auto context = static_cast<int64_t>(golden.prompt.size() + i);
      // Both of the two best may be off.
      if (golden.margins[i] <= 2.0 * GoldenTolerance(shape, context, kv_dtype, row)) continue;
      ++decided;
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(best, golden.tokens[i]) << "step " << i << ", margin " << golden.margins[i];
    }
    // Otherwise the comparison above says little.
    const size_t wanted = kv_dtype == DType::kF32 ? golden.tokens.size() * 9 / 10 : 1;
    EXPECT_GE(decided, wanted);
    testing::Test::RecordProperty("decided", std::to_string(decided));
  }
};

TEST_P(GoldenTest, AgreesWithTransformers) { Compare(DType::kF32); }

TEST_P(GoldenTest, AgreesWithACacheOf16Bits) {
  Compare(DType::kF16);
  Compare(DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(GoldenNames()),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace headway
