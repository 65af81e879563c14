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

// Launches over uploaded items are compiled for 16-bit numbers alone.
cudaError_t LaunchMany(cudaStream_t stream, DType dtype, const DecodeManyBatch& batch,
                       int block_queries, int blocks) {
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

// What all items of a call share.
DecodeShape ShapeOf(const PageFormat& format, DType activation, int group,
                    const AttentionParams& params) {
  DecodeShape shape = {};
  shape.aligned = 1;
  shape.head_dim = format.head_dim;
  shape.group = Divisor::Of(group);
  shape.page_slots = Divisor::Of(format.page_slots);
  shape.capped = params.softcap != 0.0f ? 1 : 0;
  shape.logit_scale = (shape.capped != 0 ? params.softcap : params.scale) * kLog2E;
  shape.cap_scale = shape.capped != 0 ? params.scale / params.softcap : 0.0f;
  shape.window = params.window;
  shape.q_dtype = static_cast<int32_t>(activation);
  return shape;
}

// Blocks of threads of an item; beyond kMostBlocks none.
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
int64_t BlocksOf(const AttentionItem& item, int group, int block_queries) {
  return CeilDiv(item.tokens * group, block_queries) * PartsOf(item) * int64_t{item.heads};
}

// Those of the items that are in the format's encoding, or in none where it has none, as many in a
// launch as a batch takes.
cudaError_t AttendAlike(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                        const AttentionParams& params, std::span<const AttentionItem> items) {
  const bool encoded = format.encoding != Encoding::kNone;
  const auto takes = [&](const AttentionItem& item) {
    return (item.keys.pages.params != nullptr) == encoded;
  };
  DecodeBatch batch;  // its items are left as they are until there are some
  static_cast<DecodeShape&>(batch) = ShapeOf(format, activation, group, params);
  int64_t queries = 0;
  for (const AttentionItem& item : items) {
    if (!takes(item)) continue;
    queries = std::max(queries, item.tokens * group);
    if (encoded && !ParamsAligned(item.keys.pages, 16)) batch.aligned = 0;
  }
  const int block_queries = BlockQueries(format.dtype, format.encoding, format.head_dim, queries);

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
    const int64_t more = BlocksOf(item, group, block_queries);
    if (more == 0) continue;
    if (more > kMostBlocks) return cudaErrorInvalidValue;
    if (batch.items_count == DecodeBatch::kItems || blocks + more > kMostBlocks) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    batch.first_block[batch.items_count] = static_cast<int32_t>(blocks);
    batch.items[batch.items_count++] = ToDecodeItem(item, group, block_queries);
    blocks += more;
  }
  return flush();
}

// Of many items a quarter of an upload says whose blocks of threads are whose.
int64_t MostOfMany(const Uploads& uploads) {
  return uploads.bytes() / 4 * 3 / static_cast<int64_t>(sizeof(ManyItem));
}
int64_t MostBlocksOfMany(const Uploads& uploads) {
  return uploads.bytes() / 4 / static_cast<int64_t>(sizeof(int32_t));
}

// Whether the items in pages without parameters are many, at positions that ascend by one, 16 bits
// a number.
bool HasMany(const DecodeResources& resources, DType dtype, int group,
             std::span<const AttentionItem> items) {
  if (resources.uploads == nullptr || dtype == DType::kF32 ||
      std::ssize(items) <= DecodeBatch::kItems) {
    return false;
  }
  int64_t count = 0;
  for (const AttentionItem& item : items) {
    if (item.keys.pages.params != nullptr) continue;
    if (item.keys.positions != nullptr ||
        BlocksOf(item, group, 1) > MostBlocksOfMany(*resources.uploads)) {
      return false;
    }
    ++count;
  }
  return count > DecodeBatch::kItems;
}

// Those, as many in a launch as an upload holds.
cudaError_t AttendMany(const DecodeResources& resources, const PageFormat& format, DType activation,
                       int group, const AttentionParams& params,
                       std::span<const AttentionItem> items) {
  Uploads& uploads = *resources.uploads;
  DecodeManyBatch batch = {};
  static_cast<DecodeShape&>(batch) = ShapeOf(format, activation, group, params);
  int64_t queries = 0;
  for (const AttentionItem& item : items) {
    if (item.keys.pages.params == nullptr) queries = std::max(queries, item.tokens * group);
  }
  const int block_queries = BlockQueries(format.dtype, Encoding::kNone, format.head_dim, queries);

  size_t at = 0;
  while (at < items.size()) {
    std::byte* host = nullptr;
    if (const cudaError_t error = uploads.Begin(&host); error != cudaSuccess) return error;
    const int64_t room = std::min(static_cast<int64_t>(items.size() - at), MostOfMany(uploads));
    const int64_t items_bytes = room * static_cast<int64_t>(sizeof(ManyItem));
    const int64_t most_blocks =
        (uploads.bytes() - items_bytes) / static_cast<int64_t>(sizeof(int32_t));
    auto* const many = reinterpret_cast<ManyItem*>(host);
    auto* const item_of_block = reinterpret_cast<int32_t*>(host + items_bytes);
    int32_t count = 0;
    int64_t blocks = 0;
    for (; at < items.size() && count < room; ++at) {
      const int64_t more = BlocksOf(items[at], group, block_queries);
      if (more == 0 || items[at].keys.pages.params != nullptr) continue;
      const DecodeItem item = ToDecodeItem(items[at], group, block_queries);
      const DecodeItem common = DecodeManyBatch::Common(item);
      if (count > 0 && (common != batch.common || blocks + more > most_blocks)) break;
      batch.common = common;
      many[count] = ManyItem::Of(item, static_cast<int>(blocks));
      std::fill_n(item_of_block + blocks, more, count);
      ++count;
      blocks += more;
    }
    if (count == 0) break;  // no other has keys
    const int64_t bytes = items_bytes + blocks * static_cast<int64_t>(sizeof(int32_t));
    const std::byte* device = nullptr;
    if (const cudaError_t error = uploads.Send(resources.stream, bytes, &device);
        error != cudaSuccess) {
      return error;
    }
    batch.items_count = count;
    batch.items = reinterpret_cast<const ManyItem*>(device);
    batch.item_of_block = reinterpret_cast<const int32_t*>(device + items_bytes);
    const cudaError_t error =
        LaunchMany(resources.stream, format.dtype, batch, block_queries, static_cast<int>(blocks));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
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

cudaError_t AttendDecode(const DecodeResources& resources, const PageFormat& format,
                         DType activation, int group, const AttentionParams& params,
                         std::span<const AttentionItem> items) {
  for (const AttentionItem& item : items) {
    if (!CanAttendDecode(format, activation, group, params, item)) return cudaErrorInvalidValue;
  }
  if (format.encoding != Encoding::kNone) {
    const cudaError_t error =
        AttendAlike(resources.stream, format, activation, group, params, items);
    if (error != cudaSuccess) return error;
  }
  PageFormat plain = format;
  plain.encoding = Encoding::kNone;
  return HasMany(resources, plain.dtype, group, items)
             ? AttendMany(resources, plain, activation, group, params, items)
             : AttendAlike(resources.stream, plain, activation, group, params, items);
}

int DecodeBlocksAtOnce(DType dtype, Encoding encoding, int head_dim) {
  switch (encoding) {
    case Encoding::kInt8:
      return CodesBlocksAtOnce<Encoding::kInt8>(head_dim);
    case Encoding::kFp8E4M3:
      return CodesBlocksAtOnce<Encoding::kFp8E4M3>(head_dim);
    case Encoding::kInt4:
      return CodesBlocksAtOnce<Encoding::kInt4>(head_dim);
    case Encoding::kLossless:  // which has the parts of plain pages, and so their bits
    case Encoding::kNone:
      break;
  }
  switch (dtype) {
    case DType::kBF16:
      return MmaBlocksAtOnce<DType::kBF16>(head_dim);
    case DType::kF16:
      return MmaBlocksAtOnce<DType::kF16>(head_dim);
    case DType::kF32:
      break;
  }
  return 0;
}

}  // namespace headway::cuda
