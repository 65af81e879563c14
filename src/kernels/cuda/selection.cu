// The calls of selection: what they take, and their launches.
#include "kernels/cuda/selection.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/attention_decode_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/selection_attend.h"
#include "kernels/cuda/selection_by_keys.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_prefill.h"
#include "kernels/cuda/selection_rows.h"
#include "kernels/cuda/workspace.h"
#include "kernels/selection_scratch.h"

namespace headway::cuda {
namespace {

constexpr int64_t kGridMax = 65535;  // in its second dimension
constexpr int kHeadsMax = kGridMax / kSelectGroupMax;
constexpr int64_t kBlocksMax = int64_t{1} << 24;

// Places that one launch brings into the table.
constexpr int kPlacesPerLaunch = 320;
struct PlacesWork {
  const std::byte** to;
  uint32_t* to_versions;
  int32_t count;
  const std::byte* places[kPlacesPerLaunch];
  uint32_t versions[kPlacesPerLaunch];
};
static_assert(sizeof(PlacesWork) <= 4096);
static_assert(sizeof(ScoreWork) <= 4096);
// Two tables: more than launches took before CUDA 12.1.
static_assert(sizeof(SketchWork) <= 8192);
static_assert(sizeof(CandidateWork) <= 4096);
static_assert(sizeof(AttendWork) <= 4096);

__global__ void __launch_bounds__(kPlacesPerLaunch)
    WritePlaces(const __grid_constant__ PlacesWork work) {
  FollowPrevious();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= work.count) return;
  work.to[i] = work.places[i];
  work.to_versions[i] = work.versions[i];
}

bool TakesKeys(const SelectionShape& shape, const BlockedKeys& keys) {
  return keys.heads > 0 && keys.heads <= kHeadsMax && keys.group_heads > 0 &&
         keys.blocks <= kBlocksMax && keys.segment_blocks > 0 &&
         std::ssize(keys.segments) % keys.head_groups() == 0 &&
         keys.group_segments() * keys.segment_blocks >= keys.blocks &&
         SupportsSelection(shape.format, shape.summary, shape.group);
}

bool PagesAligned(const SelectionShape& shape, const BlockedKeys& keys) {
  const bool encoded = shape.format.encoding != Encoding::kNone;
  const bool lossless = shape.format.encoding == Encoding::kLossless;
  return std::all_of(keys.segments.begin(), keys.segments.end(),
                     [](const SegmentPlace& place) { return Aligned(place.slab); }) &&
         keys.page_stride % 16 == 0 && keys.head_stride % 16 == 0 && keys.v_offset % 16 == 0 &&
         (!encoded || (keys.params_offset % 4 == 0 && keys.params_page_stride % 4 == 0 &&
                       keys.params_head_stride % 4 == 0)) &&
         (!lossless || ParamsAligned(keys));
}

// Whether decode takes blocks of host memory through a cache.
bool CachesBlocks(const SelectionShape& shape, const AttendBlocksItem& item) {
  return TakesLines(shape, item) && item.split / shape.summary.block_slots <= kPartLinesMax;
}

}  // namespace

bool TakesLines(const SelectionShape& shape, const AttendBlocksItem& item) {
  const BlockedKeys& keys = item.keys;
  return item.cache.lines != nullptr && item.cache.sets > 0 &&
         keys.segment_blocks * keys.group_heads <= int64_t{1} << block_cache::kNumberBits &&
         BlockBytes(shape.format, shape.summary.block_slots) % 16 == 0 &&
         (shape.format.encoding == Encoding::kNone || ParamsAligned(keys));
}

bool SummariesAligned(const BlockedKeys& keys, int head_dim, int64_t bytes) {
  return std::all_of(keys.segments.begin(), keys.segments.end(),
                     [&](const SegmentPlace& place) {
                       return Aligned(place.summary, static_cast<size_t>(bytes));
                     }) &&
         keys.codes_offset % bytes == 0 && keys.codes_head_stride % bytes == 0 &&
         head_dim % bytes == 0 && keys.scales_offset % 8 == 0 && keys.scales_head_stride % 2 == 0;
}

int Multiprocessors() {
  constexpr int kDevices = 64;
  constexpr int kUnknown = 16;  // fewer than there are
  static std::array<std::atomic<int>, kDevices> known = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return kUnknown;
  std::atomic<int>& count = known[static_cast<size_t>(device)];
  if (count == 0) {
    int value = kUnknown;
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    count = value;
  }
  return count;
}

cudaError_t MakeTable(cudaStream_t stream, const BlockedKeys& keys, PlaceMember member,
                      const std::byte** places, BlockTable& table) {
  const size_t segments = keys.segments.size();
  table.group_segments = static_cast<int32_t>(keys.group_segments());
  table.blocks = static_cast<int32_t>(keys.blocks);
  table.group_heads = Divisor::Of(keys.group_heads);
  table.segment_blocks = Divisor::Of(std::min(keys.segment_blocks, kBlocksMax));
  table.table = nullptr;
  if (segments <= size_t{kInlinePlaces}) {
    for (size_t i = 0; i < segments; ++i) {
      table.places[i] = keys.segments[i].*member;
      table.versions[i] = keys.segments[i].version;
    }
    return cudaSuccess;
  }
  auto* const versions = reinterpret_cast<uint32_t*>(places + segments);
  table.table = places;
  table.version_table = versions;
  for (size_t at = 0; at < segments; at += kPlacesPerLaunch) {
    PlacesWork work = {};
    const size_t count = std::min(segments - at, size_t{kPlacesPerLaunch});
    work.to = places + at;
    work.to_versions = versions + at;
    work.count = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      work.places[i] = keys.segments[at + i].*member;
      work.versions[i] = keys.segments[at + i].version;
    }
    const cudaError_t error = LaunchKernel(WritePlaces, 1, kPlacesPerLaunch, 0, stream, work);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

namespace {

// What is listed without scores, by each block of rows alike.
cudaError_t ListAlike(cudaStream_t stream, ListWork work, const SelectItem& item,
                      int32_t skip_begin, int32_t skip_end) {
  const int64_t at_once = kGridMax / work.heads;
  for (int64_t first = 0; first < item.row_blocks(); first += at_once) {
    ListWork some = work;
    some.heads = static_cast<int32_t>(std::min(at_once, item.row_blocks() - first) * work.heads);
    some.listed = work.listed + first * work.heads * work.capacity;
    some.counts = work.counts + first * work.heads;
    const cudaError_t error = ListAllBut(stream, some, skip_begin, skip_end);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// The steps of a choice by one row.
struct ChoiceWork {
  ScoreWork score;
  ListWork list;
};

bool WideCodes(const SelectionShape& shape, const BlockedKeys& keys) {
  return SummariesAligned(keys, shape.format.head_dim, 16);
}

cudaError_t SelectOnce(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                       ChoiceWork work) {
  // Two blocks of threads a multiprocessor, of 128 of a head's blocks at least.
  constexpr int64_t kTileBlocks = 128;
  const int64_t tiles = std::clamp<int64_t>(int64_t{2} * Multiprocessors() / item.keys.heads, 1,
                                            SelectionScratch::kTilesMax);
  work.list.score_tiles =
      static_cast<int32_t>(std::min(tiles, CeilDiv(item.keys.blocks, kTileBlocks)));
  const cudaError_t error =
      ScoreBlocks(stream, shape.summary.kind,
                  WideCodes(shape, item.keys) ? CodeLoads::kBytes16 : CodeLoads::kBytes8,
                  work.score, work.list.score_tiles);
  return error == cudaSuccess ? ListBest(stream, Look::kAll, work.list) : error;
}

// Lists the candidates, unless an earlier call has.
cudaError_t ListCandidates(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                           const ChoiceWork& work) {
  const SelectionBudget budget = item.budget.OfCandidates();
  if (item.candidates.run != 1 ||
      item.candidates.capacity < budget.Capacity(item.keys.blocks, item.keys.heads)) {
    return cudaErrorInvalidValue;
  }
  ChoiceWork first = work;
  first.list.far_blocks = static_cast<int32_t>(budget.far_blocks);
  first.list.top_p = {};
  first.list.listed = item.candidates.blocks;
  first.list.capacity = item.candidates.capacity;
  first.list.counts = item.candidates.counts;
  first.list.listed_of_all = nullptr;
  first.list.clear_tops = shape.summary.sketched() ? 1 : 0;
  const bool all = budget.far_blocks == budget.far_end - budget.far_begin;
  return all ? ListAllBut(stream, first.list, 0, 0) : SelectOnce(stream, shape, item, first);
}

cudaError_t LookAtCandidates(cudaStream_t stream, const SelectionShape& shape,
                             const SelectItem& item, const ChoiceWork& work) {
  CandidateWork look = {};
  static_cast<SummaryWork&>(look) = work.score;
  look.list = work.list;
  look.kind = shape.summary.kind;
  const int64_t far = item.budget.far_end - item.budget.far_begin;
  return ListBestCandidates(stream,
                            WideCodes(shape, item.keys) ? CodeLoads::kBytes16 : CodeLoads::kBytes8,
                            look, item.keys.blocks - far + item.budget.OfCandidates().far_blocks);
}

// Whether sketches lie on `bytes`.
bool SketchesAligned(const BlockedKeys& keys, int64_t bytes) {
  return std::all_of(keys.segments.begin(), keys.segments.end(),
                     [&](const SegmentPlace& place) {
                       return place.sketch != nullptr &&
                              Aligned(place.sketch, static_cast<size_t>(bytes));
                     }) &&
         keys.sketch_head_stride % bytes == 0;
}

cudaError_t LookAtSketchesOf(cudaStream_t stream, const SelectionShape& shape,
                             const SelectItem& item, const ChoiceWork& work) {
  const BlockedKeys& keys = item.keys;
  if (!SketchesAligned(keys, 8)) return cudaErrorInvalidValue;
  const bool wide = WideCodes(shape, keys) && SketchesAligned(keys, 16);
  const int query_heads = keys.heads * shape.group;
  SketchWork look = {};
  look.score = work.score;
  look.sketch_head_stride = keys.sketch_head_stride;
  look.candidates = item.candidates;
  look.sketches =
      SketchScratch::Of(item.scratch + SelectScratchBytes(keys.heads, shape.group, keys.blocks,
                                                          std::ssize(keys.segments)),
                        query_heads, work.list.stride);
  look.stride = work.list.stride;
  look.block_slots = shape.summary.block_slots;
  // Behind the table of summaries.
  const std::byte** const places =
      work.score.scratch.places + TableBytes(std::ssize(keys.segments)) / sizeof(const std::byte*);
  cudaError_t error = MakeTable(stream, keys, &SegmentPlace::sketch, places, look.table);
  if (error == cudaSuccess && item.candidates_listed) {  // by a call that has used its tops
    error = cudaMemsetAsync(look.score.scratch.tops, 0,
                            static_cast<size_t>(query_heads) * sizeof(uint32_t), stream);
  }
  if (error == cudaSuccess) {
    error = LookAtSketches(stream, wide ? CodeLoads::kBytes16 : CodeLoads::kBytes8, look);
  }
  ListWork list = work.list;
  list.sketches = look.sketches;
  return error == cudaSuccess ? ListBest(stream, Look::kSketches, list) : error;
}

cudaError_t SelectTwice(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                        const ChoiceWork& work) {
  if (!item.candidates_listed) {
    const cudaError_t error = ListCandidates(stream, shape, item, work);
    if (error != cudaSuccess) return error;
  }
  ChoiceWork second = work;
  second.list.candidates = item.candidates;
  second.list.stride = static_cast<int32_t>(
      std::min(item.candidates.capacity * item.candidates.run, item.keys.blocks));
  return shape.summary.sketched() ? LookAtSketchesOf(stream, shape, item, second)
                                  : LookAtCandidates(stream, shape, item, second);
}

// Whether what is left behind the blocks can be done in their launch.
bool TakesRest(const SelectionShape& shape, const AttendBlocksItem& item, size_t counters) {
  const DecodeRest& rest = item.rest;
  if (rest.result == nullptr) return !item.attended;
  return item.rows == 1 && item.parts > 0 && rest.count > 0 &&
         rest.count <= shape.format.page_slots && shape.format.dtype == shape.activation &&
         Aligned(rest.pages) && Aligned(rest.result, 8) && rest.row_stride % 16 == 0 &&
         rest.row_stride / 16 <= std::numeric_limits<int32_t>::max() &&
         static_cast<size_t>(item.keys.heads) * static_cast<size_t>(shape.group) <= counters;
}

}  // namespace

cudaError_t SelectBlocks(cudaStream_t stream, const SelectionShape& shape, const SelectItem& item,
                         bool alone) {
  const BlockedKeys& keys = item.keys;
  const SelectionBudget& budget = item.budget;
  const int head_dim = shape.format.head_dim;
  const bool reads_keys = !shape.summary.kept() || budget.is_bounded();
  const bool aligned = (!shape.summary.kept() || SummariesAligned(keys, head_dim, 8)) &&
                       (!reads_keys || PagesAligned(shape, keys));
  if (!TakesKeys(shape, keys) || !aligned || !item.TakesBound(shape.summary) ||
      budget.far_begin < 0 || budget.far_begin > budget.far_end || budget.far_end > keys.blocks ||
      budget.far_blocks < 0 || budget.far_step < 0 || budget.far_step > kSelectRows ||
      (budget.far_step > 0 && !shape.summary.kept()) ||
      (budget.top_p != 0 && budget.least_blocks < 1) || !RowTurn::Takes(item.turn, head_dim) ||
      (!TakesRows(shape.summary.kind) && (item.rows != 1 || item.turn.rotary_dim != 0)) ||
      item.rotated.rotary_dim < 0 || item.rotated.rotary_dim > head_dim ||
      item.rotated.rotary_dim % 2 != 0 ||
      (item.rotated.rotary_dim != 0 && shape.summary.kind != SummaryKind::kStages) ||
      (keys.codes_offset != 0 && (item.rows != 1 || shape.summary.sketched())) ||
      item.capacity < budget.Capacity(keys.blocks, keys.heads)) {
    return cudaErrorInvalidValue;
  }
  const SelectionScratch scratch =
      SelectionScratch::Of(item.scratch, keys.heads, shape.group, keys.blocks,
                           static_cast<int64_t>(keys.segments.size()));
  const int64_t far = budget.far_end - budget.far_begin;
  ListWork list = {};
  list.scratch = scratch;
  list.stride = static_cast<int32_t>(keys.blocks);
  list.heads = keys.heads;
  list.group = shape.group;
  list.blocks = static_cast<int32_t>(keys.blocks);
  list.far_begin = static_cast<int32_t>(budget.far_begin);
  list.far_end = static_cast<int32_t>(budget.far_end);
  list.far_blocks = static_cast<int32_t>(std::min(budget.far_blocks, far));
  list.top_p = TopP::Of(budget);
  list.layer = budget.share == BudgetShare::kLayer ? 1 : 0;
  list.whole_codes = budget.is_bounded() ? 1 : 0;
  list.alone = alone ? 1 : 0;
  list.listed = item.blocks;
  list.capacity = item.capacity;
  list.counts = item.counts;
  list.listed_of_all = item.listed;
  // Nothing to choose.
  if (list.far_blocks == far) return ListAlike(stream, list, item, 0, 0);
  if (list.far_blocks == 0) {
    return ListAlike(stream, list, item, list.far_begin, list.far_end);
  }
  if (!shape.summary.kept()) return SelectByKeys(stream, shape, item, list);
  if (item.rows != 1) return SelectRows(stream, shape, item);

  ScoreWork score = {};
  score.queries = {item.q, RowTurn::On(item.turn), static_cast<int32_t>(shape.activation), head_dim,
                   shape.scale};
  score.scratch = scratch;
  score.heads = keys.heads;
  score.group = shape.group;
  score.codes_offset = keys.codes_offset;
  score.codes_head_stride = keys.codes_head_stride;
  score.scales_offset = keys.scales_offset;
  score.scales_head_stride = keys.scales_head_stride;
  cudaError_t error = MakeTable(stream, keys, &SegmentPlace::summary, scratch.places, score.table);
  if (error != cudaSuccess) return error;
  if (item.looks_twice()) return SelectTwice(stream, shape, item, {score, list});
  error = SelectOnce(stream, shape, item, {score, list});
  if (error != cudaSuccess || !budget.is_bounded()) return error;
  return LengthenLists(stream, shape, item, list);
}
cudaError_t AttendBlocks(cudaStream_t stream, const SelectionShape& shape,
                         const AttendBlocksItem& item, std::span<uint32_t> arrived) {
  const BlockedKeys& keys = item.keys;
  const int block_slots = shape.summary.block_slots;
  const BlockMove& move = item.move;
  if (!TakesKeys(shape, keys) || !PagesAligned(shape, keys) ||
      !TakesRest(shape, item, arrived.size()) ||
      (move.inv_freq != nullptr && (move.rotary_dim < 0 || move.rotary_dim % 2 != 0 ||
                                    move.rotary_dim > shape.format.head_dim))) {
    return cudaErrorInvalidValue;
  }
  if (item.split == 0) return AttendRows(stream, shape, item);
  if (item.rows != 1 || !Aligned(item.q) || item.split < 0 || item.split % block_slots != 0 ||
      int64_t{item.parts} * keys.heads > std::numeric_limits<int32_t>::max() / 2) {
    return cudaErrorInvalidValue;
  }
  if (item.parts <= 0) return cudaSuccess;
  AttendWork work = {};
  work.q = item.q;
  work.listed = item.blocks;
  work.counts = item.counts;
  work.o = item.o;
  work.lse = item.lse;
  work.capacity = item.capacity;
  work.o_part_stride = item.o_part_stride;
  work.lse_part_stride = item.lse_part_stride;
  work.page_stride = keys.page_stride;
  work.head_stride = keys.head_stride;
  work.v_offset = keys.v_offset;
  work.params_offset = keys.params_offset;
  work.params_page_stride = keys.params_page_stride;
  work.params_head_stride = keys.params_head_stride;
  work.q_scale = shape.scale * kLog2E;
  work.q_dtype = static_cast<int32_t>(shape.activation);
  work.head_dim = shape.format.head_dim;
  work.heads = keys.heads;
  work.group = shape.group;
  work.parts = item.parts;
  work.split_blocks = static_cast<int32_t>(std::min(item.split / block_slots, kBlocksMax));
  work.block_slots = block_slots;
  work.page_slots = shape.format.page_slots;
  work.page_blocks = Divisor::Of(shape.format.page_slots / block_slots);
  work.block_strips = Divisor::Of(block_slots / 8);
  work.params_aligned = ParamsAligned(keys) ? 1 : 0;
  work.result = item.rest.result;
  work.open_pages = item.rest.pages;
  work.open_lines = static_cast<int32_t>(item.rest.row_stride / 16);
  work.open_keys = static_cast<int32_t>(item.rest.count);
  work.attended = item.attended ? 1 : 0;
  work.arrived = arrived.data();
  const int64_t segments = std::ssize(keys.segments);
  auto* const places = reinterpret_cast<const std::byte**>(item.scratch);
  cudaError_t error = MakeTable(stream, keys, &SegmentPlace::slab, places, work.table);
  if (error != cudaSuccess) return error;
  if (CachesBlocks(shape, item)) {
    work.cache = item.cache;
    work.block_bytes = BlockBytes(shape.format, block_slots);
    work.line_bytes = CacheLineBytes(shape.format, block_slots);
    if (!item.attended && shape.group > AttendGroupMax(shape.format)) {
      work.line_of = reinterpret_cast<int32_t*>(
          item.scratch + RoundUp(segments * int64_t{sizeof(SegmentPlace)}, 256));
      error = BringBlocks(stream, RowsOf(shape.format), work);
      if (error != cudaSuccess) return error;
    }
  }
  if (move.inv_freq != nullptr) {
    // Behind places and versions, on 16 bytes.
    auto* const placed = reinterpret_cast<PlacedSegment*>(places + 2 * CeilDiv(3 * segments, 4));
    work.inv_freq = move.inv_freq;
    work.rotary_dim = move.rotary_dim;
    work.to = {move.end, move.least};
    work.segments = placed;
    error = PlaceSegments(stream, keys, placed);
    if (error != cudaSuccess) return error;
  }
  return ForRows(RowsOf(shape.format),
                 [&](auto tag) { return LaunchAttend<decltype(tag)::kRows>(stream, work); });
}

}  // namespace headway::cuda
