// Attention of blocks of rows to what they list: which kernel takes an item.
#include "kernels/cuda/selection_prefill.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_keys.h"

namespace headway::cuda {
namespace {

// Segments that one launch brings into the table.
constexpr int kSegmentsPerLaunch = 248;
struct SegmentsWork {
  PlacedSegment* to;
  int32_t count;
  PlacedSegment segments[kSegmentsPerLaunch];
};
static_assert(sizeof(SegmentsWork) <= 4096 && sizeof(ListedWork) <= 4096);

__global__ void __launch_bounds__(kSegmentsPerLaunch)
    WriteSegments(const __grid_constant__ SegmentsWork work) {
  FollowPrevious();
  const int i = static_cast<int>(threadIdx.x);
  if (i < work.count) work.to[i] = work.segments[i];
}

int64_t TileBytes(Rows rows, int head_dim) {
  switch (rows) {
    case Rows::kInt8:
    case Rows::kFp8E4M3:
      return ListedTileBytes<Rows::kInt8>(head_dim);
    case Rows::kInt4:
      return ListedTileBytes<Rows::kInt4>(head_dim);
    case Rows::kLossless:
      return ListedTileBytes<Rows::kLossless>(head_dim);
    default:
      return ListedTileBytes<Rows::kBF16>(head_dim);
  }
}

bool HasShared(int64_t bytes) {
  int device = 0;
  int most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             cudaSuccess &&
         bytes <= most;
}

// Whether its numbers are no numbers of the pages' dtype.
bool IsCode(Encoding encoding) {
  return encoding != Encoding::kNone && encoding != Encoding::kLossless;
}

bool TakesTiles(const SelectionShape& shape, const ListedWork& work) {
  const PageFormat& format = shape.format;
  return shape.activation != DType::kF32 &&
         (IsCode(format.encoding) || format.dtype == shape.activation) && shape.scale > 0 &&
         work.rotary_dim % 4 == 0 && Aligned(work.q) && work.q_stride % 8 == 0 &&
         Aligned(work.o, 8) && work.o_stride % 2 == 0 &&
         HasShared(TileBytes(RowsOf(format), format.head_dim));
}

template <DType kType>
cudaError_t LaunchTiles(cudaStream_t stream, const PageFormat& format, const ListedWork& work,
                        int32_t* order) {
  switch (format.encoding) {
    case Encoding::kInt8:
      return LaunchListedTiles<kType, Rows::kInt8>(stream, work);
    case Encoding::kFp8E4M3:
      return LaunchListedTiles<kType, Rows::kFp8E4M3>(stream, work);
    case Encoding::kInt4:
      return LaunchListedTiles<kType, Rows::kInt4>(stream, work);
    case Encoding::kLossless:
      if constexpr (kType == DType::kBF16) {
        return LaunchListedTiles<kType, Rows::kLossless>(stream, work);
      }
      return cudaErrorInvalidValue;
    case Encoding::kNone:
      break;
  }
  if (TakesWideTiles(work)) return LaunchWideTiles<kType>(stream, work, order);
  return LaunchListedTiles<kType, kPlainRowsOf<kType>>(stream, work);
}

}  // namespace

cudaError_t PlaceSegments(cudaStream_t stream, const BlockedKeys& keys, PlacedSegment* to) {
  const size_t segments = keys.segments.size();
  for (size_t at = 0; at < segments; at += kSegmentsPerLaunch) {
    SegmentsWork work = {};
    const size_t count = std::min(segments - at, size_t{kSegmentsPerLaunch});
    work.to = to + at;
    work.count = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      const SegmentPlace& place = keys.segments[at + i];
      work.segments[i] = {place.slab, static_cast<int32_t>(place.position), place.version};
    }
    const cudaError_t error = LaunchKernel(WriteSegments, 1, kSegmentsPerLaunch, 0, stream, work);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t AttendRows(cudaStream_t stream, const SelectionShape& shape,
                       const AttendBlocksItem& item) {
  const BlockedKeys& keys = item.keys;
  const PageFormat& format = shape.format;
  const BlockMove& move = item.move;
  if (item.rows < 0 || item.rows * shape.group > std::numeric_limits<int32_t>::max() / 2) {
    return cudaErrorInvalidValue;
  }
  if (item.rows == 0) return cudaSuccess;
  ListedWork work = {};
  work.q = item.q;
  work.q_stride = item.q_stride;
  work.rows = static_cast<int32_t>(item.rows * shape.group);
  work.group = shape.group;
  work.head_dim = format.head_dim;
  work.scale = shape.scale;
  work.o = item.o;
  work.o_stride = item.o_stride;
  work.lse = item.lse;
  work.lse_stride = item.lse_stride;
  work.merge = item.merge;
  work.listed = item.blocks;
  work.counts = item.counts;
  work.capacity = item.capacity;
  auto* const segments = reinterpret_cast<PlacedSegment*>(item.scratch);
  work.segments = segments;
  work.page_stride = keys.page_stride;
  work.head_stride = keys.head_stride;
  work.v_offset = keys.v_offset;
  work.params_offset = keys.params_offset;
  work.params_page_stride = keys.params_page_stride;
  work.params_head_stride = keys.params_head_stride;
  work.group_segments = static_cast<int32_t>(keys.group_segments());
  work.group_heads = keys.group_heads;
  work.segment_blocks = static_cast<int32_t>(
      std::min<int64_t>(keys.segment_blocks, std::numeric_limits<int32_t>::max()));
  work.heads = keys.heads;
  work.block_slots = shape.summary.block_slots;
  work.page_slots = format.page_slots;
  work.params_aligned = ParamsAligned(keys) ? 1 : 0;
  work.q_dtype = static_cast<int32_t>(shape.activation);
  work.inv_freq = move.inv_freq;
  work.rotary_dim = move.inv_freq == nullptr ? 0 : move.rotary_dim;
  work.to = {move.end, move.least};
  if (const cudaError_t error = PlaceSegments(stream, keys, segments); error != cudaSuccess) {
    return error;
  }
  // What the choice had of the scratch memory is free: behind the segments, for each head, at least
  // four bytes of a block and histograms of 8 KiB, or of stages four bytes of a list and more.
  auto* const line_of = reinterpret_cast<int32_t*>(
      item.scratch + RoundUp(std::ssize(keys.segments) * int64_t{sizeof(SegmentPlace)}, 256));
  auto* const order = line_of + RoundUp(keys.heads * keys.blocks, 64);
  static_assert(kWideRowsMost / kSelectRows * sizeof(int32_t) <= 8192);
  if (TakesLines(shape, item)) {
    work.cache = item.cache;
    work.blocks = keys.blocks;
    work.block_bytes = BlockBytes(format, work.block_slots);
    work.line_bytes = CacheLineBytes(format, work.block_slots);
    work.line_of = line_of;
    const cudaError_t error = BringListed(stream, RowsOf(format), work);
    if (error != cudaSuccess) return error;
  }
  if (!TakesTiles(shape, work)) return LaunchListedRows(stream, RowsOf(format), work);
  return shape.activation == DType::kBF16 ? LaunchTiles<DType::kBF16>(stream, format, work, order)
                                          : LaunchTiles<DType::kF16>(stream, format, work, order);
}

}  // namespace headway::cuda
