#include "kernels/cuda/attention_decode.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/attention_decode_launch.h"
#include "kernels/cuda/attention_lossless.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/workspace.h"
#include "kernels/items.h"

namespace headway::cuda {
namespace {

// Launches of so many items are compiled for 16-bit numbers alone.
cudaError_t Launch(cudaStream_t stream, DType dtype, Encoding /*none*/,
                   const DecodeManyBatch& batch, int block_queries, int blocks) {
  return dtype == DType::kBF16 ? LaunchMma<DType::kBF16>(stream, batch, block_queries, blocks)
                               : LaunchMma<DType::kF16>(stream, batch, block_queries, blocks);
}

cudaError_t Launch(cudaStream_t stream, DType dtype, Encoding encoding, const DecodeBatch& batch,
                   int block_queries, int blocks) {
  switch (encoding) {
    case Encoding::kInt8:
      return LaunchCodes<Encoding::kInt8>(stream, batch, block_queries, blocks);
    case Encoding::kFp8E4M3:
      return LaunchCodes<Encoding::kFp8E4M3>(stream, batch, block_queries, blocks);
    case Encoding::kInt4:
      return LaunchCodes<Encoding::kInt4>(stream, batch, block_queries, blocks);
    case Encoding::kLossless:
      return LaunchLossless(stream, batch, block_queries, blocks);
    case Encoding::kNone:
      break;
  }
  switch (dtype) {
    case DType::kBF16:
      return LaunchMma<DType::kBF16>(stream, batch, block_queries, blocks);
    case DType::kF16:
      return LaunchMma<DType::kF16>(stream, batch, block_queries, blocks);
    case DType::kF32:
      return LaunchPlain(stream, batch, blocks);
  }
  return cudaErrorInvalidValue;
}

// Queries that one block does: as many as the registers hold.
int BlockQueries(DType dtype, Encoding encoding, int head_dim, int64_t queries) {
  if (dtype == DType::kF32 && encoding == Encoding::kNone) return kPlainQueries;
  return queries > 8 && head_dim <= 128 ? 16 : 8;
}

DecodeItem ToDecodeItem(const AttentionItem& item, int group, int block_queries) {
  const int64_t count = item.keys.pages.count;
  const int64_t split = item.split == 0 ? count : std::min(item.split, count);
  return {
      .q = item.q,
      .q_stride = item.q_stride,
      .q_position = item.q_position,
      .k = item.keys.pages.k,
      .v = item.keys.pages.v,
      .params = item.keys.pages.params,
      .params_page_stride = item.keys.pages.params_page_stride,
      .params_head_stride = item.keys.pages.params_head_stride,
      .page_stride = item.keys.pages.page_stride,
      .head_stride = item.keys.pages.head_stride,
      .position = item.keys.position,
      .positions = item.keys.positions,
      .o = item.o,
      .o_stride = item.o_stride,
      .o_part_stride = item.o_part_stride,
      .lse = item.lse,
      .lse_stride = item.lse_stride,
      .lse_part_stride = item.lse_part_stride,
      .tokens = static_cast<int32_t>(item.tokens),
      .first_slot = static_cast<int32_t>(item.keys.pages.first_slot),
      .count = static_cast<int32_t>(count),
      .split = static_cast<int32_t>(split),
      .merge = item.merge ? 1 : 0,
      .parts = Divisor::Of(PartsOf(item)),
      .tiles = Divisor::Of(CeilDiv(item.tokens * group, block_queries)),
  };
}

// Parameters on 4 bytes are what there is; on 16 they are read faster.
bool ParamsAligned(const PageRun& pages, int64_t bytes) {
  return Aligned(pages.params, static_cast<size_t>(bytes)) &&
         pages.params_page_stride % bytes == 0 && pages.params_head_stride % bytes == 0;
}

// Those of the items that are in the format's encoding, or in none where it has none, as many in a
// launch as a batch takes.
template <typename Batch>
cudaError_t AttendAlike(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                        const AttentionParams& params, std::span<const AttentionItem> items) {
  const bool encoded = format.encoding != Encoding::kNone;
  const auto takes = [&](const AttentionItem& item) {
    return (item.keys.pages.params != nullptr) == encoded;
  };
  Batch batch = {};
  batch.aligned = 1;
  int64_t queries = 0;
  for (const AttentionItem& item : items) {
    if (!takes(item)) continue;
    queries = std::max(queries, item.tokens * group);
    if (encoded && !ParamsAligned(item.keys.pages, 16)) batch.aligned = 0;
  }
  const int block_queries = BlockQueries(format.dtype, format.encoding, format.head_dim, queries);

  batch.head_dim = format.head_dim;
  batch.group = Divisor::Of(group);
  batch.page_slots = Divisor::Of(format.page_slots);
  batch.capped = params.softcap != 0.0f ? 1 : 0;
  batch.logit_scale = (batch.capped != 0 ? params.softcap : params.scale) * kLog2E;
  batch.cap_scale = batch.capped != 0 ? params.scale / params.softcap : 0.0f;
  batch.window = params.window;
  batch.q_dtype = static_cast<int32_t>(activation);

  int64_t blocks = 0;
  auto flush = [&] {
    const cudaError_t error = blocks == 0 ? cudaSuccess
                                          : Launch(stream, format.dtype, format.encoding, batch,
                                                   block_queries, static_cast<int>(blocks));
    batch.items_count = 0;
    blocks = 0;
    return error;
  };
  for (const AttentionItem& item : items) {
    if (!takes(item)) continue;
    const int64_t more =
        CeilDiv(item.tokens * group, block_queries) * PartsOf(item) * int64_t{item.heads};
    if (more == 0) continue;
    if (more > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
    const DecodeItem on_gpu = ToDecodeItem(item, group, block_queries);
    if (!batch.Takes(on_gpu) || blocks + more > std::numeric_limits<int32_t>::max()) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    batch.first_block[batch.items_count] = static_cast<int32_t>(blocks);
    batch.Put(on_gpu);
    ++batch.items_count;
    blocks += more;
  }
  return flush();
}

}  // namespace

bool CanAttendDecode(const PageFormat& format, DType activation, int group,
                     const AttentionParams& params, const AttentionItem& item) {
  constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max() / 2;
  const PageRun& pages = item.keys.pages;
  return format.dtype == activation && format.head_dim >= 8 && format.head_dim <= kHeadDimMax &&
         format.head_dim % 8 == 0 && format.page_slots > 0 && params.window >= 0 && group > 0 &&
         item.tokens * group <= kMaxSlots && item.key_mass == nullptr &&
         item.transform.inv_freq == nullptr && !(item.merge && item.split != 0) &&
         Aligned(pages.k) && Aligned(pages.v) && pages.page_stride % 16 == 0 &&
         pages.head_stride % 16 == 0 && pages.first_slot + pages.count <= kMaxSlots &&
         (pages.params == nullptr ||
          (format.encoding != Encoding::kNone && ParamsAligned(pages, 4) &&
           (format.encoding != Encoding::kLossless || CanAttendLossless(format))));
}

cudaError_t AttendDecode(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                         const AttentionParams& params, std::span<const AttentionItem> items) {
  for (const AttentionItem& item : items) {
    if (!CanAttendDecode(format, activation, group, params, item)) return cudaErrorInvalidValue;
  }
  if (format.encoding != Encoding::kNone) {
    const cudaError_t error =
        AttendAlike<DecodeBatch>(stream, format, activation, group, params, items);
    if (error != cudaSuccess) return error;
  }
  PageFormat plain = format;
  plain.encoding = Encoding::kNone;
  const bool many = items.size() > DecodeBatch::kItems && plain.dtype != DType::kF32 &&
                    std::all_of(items.begin(), items.end(), [](const AttentionItem& item) {
                      return item.keys.positions == nullptr;
                    });
  return many ? AttendAlike<DecodeManyBatch>(stream, plain, activation, group, params, items)
              : AttendAlike<DecodeBatch>(stream, plain, activation, group, params, items);
}

}  // namespace headway::cuda
