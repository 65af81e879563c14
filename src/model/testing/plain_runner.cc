#include "model/testing/plain_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"

namespace headway::testing {

namespace {

constexpr int64_t kChunk = 37;  // divides nothing

float NaN() { return std::numeric_limits<float>::quiet_NaN(); }

}  // namespace

PlainRunner::PlainRunner(const Model& model, DType kv_dtype, int64_t prompt_length,
                         int64_t capacity)
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

std::vector<std::vector<float>> PlainRunner::Run(std::span<const TokenId> ids) {
  std::vector<std::vector<float>> logits;
  for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
    Chunk(ids.subspan(begin, std::min<size_t>(kChunk, ids.size() - begin)), &logits);
  }
  return logits;
}

PageRun PlainRunner::Pages(int layer, int64_t begin, int64_t count) {
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

void PlainRunner::Attention(int layer, const RopeTable& table, int64_t tokens,
                            const Activations& a) {
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

void PlainRunner::Chunk(std::span<const TokenId> ids, std::vector<std::vector<float>>* logits) {
  const auto tokens = static_cast<int64_t>(ids.size());
  void* start = activations_.data();
  size_t space = activations_.size() * sizeof(float);
  ASSERT_NE(std::align(64, space - 64, start, space), nullptr);
  const Activations a =
      Activations::Place(shape_, DType::kF32, tokens, static_cast<std::byte*>(start));
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<int32_t>(length_ + i));
  kernels_->RopeAngles(*stream_, AnglesOf(rope_, positions, a.cos, a.sin));
  const RopeTable table = {.cos = a.cos, .sin = a.sin, .rotary_dim = rope_.rotary_dim()};

  model_.Embed(*kernels_, *stream_, ids, positions, a);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    model_.Qkv(*kernels_, *stream_, {layer, tokens}, a, Normed::kDropped);
    Attention(layer, table, tokens, a);
    model_.AfterAttention(*kernels_, *stream_, {layer, tokens}, a);
  }
  length_ += tokens;
  for (int64_t i = 0; i < tokens; ++i) {
    logits->emplace_back(static_cast<size_t>(shape_.vocab), NaN());
    model_.Head(*kernels_, *stream_, 1, a.x + i * shape_.d_model, scratch_.data(),
                logits->back().data());
  }
  ASSERT_TRUE(stream_->Synchronize().ok());
}

}  // namespace headway::testing
