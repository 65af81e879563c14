#include "kernels/cuda/prefill.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/page_codec.h"
#include "kernels/cuda/workspace.h"
#include "kernels/items.h"

namespace headway::cuda {
namespace {

// Below, a plan for 128 tokens would mostly compute what is thrown away.
constexpr int64_t kDenseTokensMin = 96;

bool Multiple16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A slab that is full gets a plan of its own size from so many keys on: two pieces cost 0.9 % more
// at 100,000 keys, and a plan is worth it where a context has many such slabs. These are of one
// size.
constexpr int64_t kExactKeysMin = 16384;
// Of which a plan's keys are a multiple: cuDNN's tiles.
constexpr int64_t kExactKeysStep = 64;

// A plan that is told its size takes 10 to 16 % longer for a key than one of that very size (40,960
// and 57,344 keys, an H200), and another piece as long as 850 keys, for its merge.
constexpr int64_t kWholePlanMin = 8192;

// Splits off what a plan of a fixed size can do without reading beyond `readable` keys, and without
// being told its size where that pays; `whole`: the queries are a plan's.
int64_t PieceOf(int64_t count, int64_t readable, bool whole) {
  const bool exact = SdpaBucket(count) == count;
  if (SdpaBucket(count) <= readable && (exact || !whole || count <= kWholePlanMin)) return count;
  int64_t piece = SdpaBucket(count);
  while (piece > count) {
    // 128, 192, 256, 384, ...: the one below.
    const bool power = (piece & (piece - 1)) == 0;
    piece = power ? piece / 4 * 3 : piece / 3 * 2;
    if (piece < 128) return 0;
  }
  return piece;
}

// A piece of an item, and its place among them.
struct PlacedPiece {
  const AttentionItem& item;
  const PrefillPiece& piece;
  bool first;  // its state is not merged into one that is there
  bool last;   // the item's result is made behind it
};

Status RunPiece(cudaStream_t stream, const PrefillResources& resources, const PageFormat& format,
                int group, const AttentionParams& params, const PlacedPiece& placed) {
  const auto& [item, piece, first, last] = placed;
  const DType activation = resources.limits.activation;
  Sdpa& sdpa = *resources.sdpa;
  const auto element = static_cast<int64_t>(DTypeBytes(activation));
  const int64_t row_bytes = format.head_dim * element;
  const int query_heads = item.heads * group;
  const int64_t bucket = SdpaBucket(item.tokens);
  SdpaShape shape;
  shape.dtype = activation;
  shape.query_heads = query_heads;
  shape.kv_heads = item.heads;
  shape.head_dim = format.head_dim;
  shape.tokens = item.tokens;
  shape.keys = piece.count;
  shape.exact_keys = piece.by == PrefillPiece::By::kExact;
  shape.causal = piece.causal;
  shape.scale = params.scale;
  shape.q_token_stride = item.q_stride;
  shape.q_head_stride = format.head_dim;
  shape.kv_token_stride = format.head_dim;
  shape.kv_head_stride = item.keys.pages.head_stride / element;
  // The only part there is goes where the result is wanted, if a plan for exactly so many tokens
  // writes nothing behind them.
  const bool direct = first && last && item.result != nullptr && item.tokens == bucket &&
                      Multiple16(item.result) && item.result_stride * element % 16 == 0;
  shape.o_token_stride = direct ? item.result_stride : int64_t{query_heads} * format.head_dim;
  shape.o_head_stride = format.head_dim;
  if (Status s = sdpa.Prepare(shape); !s.ok()) return s;
  if (sdpa.WorkspaceBytes(shape) > kSdpaWorkspaceBytes) {
    return Status(StatusCode::kUnsupported, "cuDNN's attention wants too much memory");
  }
  const PrefillLayout layout(resources.limits);
  std::byte* part_o = resources.data + kSdpaWorkspaceBytes;
  auto* part_lse = reinterpret_cast<float*>(part_o + layout.o);
  const int64_t at = (item.keys.pages.first_slot + piece.begin) * row_bytes;
  if (Status s = sdpa.Run(stream, shape,
                          {.q = item.q,
                           .k = item.keys.pages.k + at,
                           .v = item.keys.pages.v + at,
                           .o = direct ? item.result : part_o,
                           .lse = part_lse,
                           .workspace = resources.data,
                           .workspace_bytes = kSdpaWorkspaceBytes});
      !s.ok() || direct) {
    return s;
  }
  StateMerge merge;
  merge.o = item.o;
  merge.o_stride = item.o_stride;
  merge.lse = item.lse;
  merge.lse_stride = item.lse_stride;
  merge.part_o = part_o;
  merge.part_o_token_stride = shape.o_token_stride;
  merge.part_o_head_stride = shape.o_head_stride;
  merge.part_lse = part_lse;
  merge.part_lse_token_stride = 1;
  merge.part_lse_head_stride = bucket;
  merge.tokens = item.tokens;
  merge.heads = query_heads;
  merge.first = first;
  if (last) {
    merge.result = item.result;
    merge.result_stride = item.result_stride;
  }
  return StatusOf(MergeState(stream, activation, format.head_dim, merge), "merge");
}

// By the decode kernel, as many tokens at a time as it takes: every slice reads all keys. For f32,
// which the kernels of prefill do not take.
Status RunSlices(cudaStream_t stream, const PageFormat& format, DType activation, int group,
                 const AttentionParams& params, const AttentionItem& item) {
  const int64_t step = std::max<int64_t>(1, kFewQueriesMax / group);
  const auto element = static_cast<int64_t>(DTypeBytes(activation));
  std::vector<AttentionItem> slices;
  for (int64_t token = 0; token < item.tokens; token += step) {
    AttentionItem slice = item;
    slice.q = static_cast<const std::byte*>(item.q) + token * item.q_stride * element;
    slice.q_position += token;
    slice.tokens = std::min(step, item.tokens - token);
    slice.o += token * item.o_stride;
    slice.lse += token * item.lse_stride;
    if (!CanAttendDecode(format, activation, group, params, slice)) {
      return Status(StatusCode::kUnsupported, "the CUDA kernels have no attention for " +
                                                  std::to_string(group) +
                                                  " query heads a KV head of " +
                                                  std::to_string(format.head_dim) + " elements");
    }
    slices.push_back(slice);
  }
  const cudaError_t error = AttendDecode({stream}, format, activation, group, params, slices);
  if (error != cudaSuccess || item.result == nullptr) return StatusOf(error, "attention");
  StateMerge convert;
  convert.o = item.o;
  convert.o_stride = item.o_stride;
  convert.lse = item.lse;
  convert.lse_stride = item.lse_stride;
  convert.tokens = item.tokens;
  convert.heads = item.heads * group;
  convert.result = item.result;
  convert.result_stride = item.result_stride;
  return StatusOf(MergeState(stream, activation, format.head_dim, convert), "merge");
}

// The piece as an item of its own.
AttentionItem PartOf(const PlacedPiece& placed) {
  const auto& [item, piece, first, last] = placed;
  AttentionItem part = item;
  part.keys.pages.first_slot += piece.begin;
  part.keys.pages.count = piece.count;
  part.keys.position += piece.begin;
  part.merge = !first;
  if (!last) part.result = nullptr;
  return part;
}

}  // namespace

std::vector<PrefillPiece> PrefillPieces(const PageFormat& format, DType activation, int group,
                                        const AttentionParams& params, const AttentionItem& item) {
  const PageRun& run = item.keys.pages;
  const auto element = static_cast<int64_t>(DTypeBytes(activation));
  const int64_t row_bytes = format.head_dim * element;
  const bool strided = run.page_stride == static_cast<int64_t>(format.bytes()) ||
                       run.first_slot + run.count <= format.page_slots;
  if (!strided || format.dtype != activation || element != 2 || row_bytes % 16 != 0 ||
      params.softcap != 0 || item.keys.positions != nullptr || run.count == 0 ||
      item.tokens < kDenseTokensMin || item.q_stride * element % 16 != 0 ||
      run.head_stride % 16 != 0 || !Multiple16(item.q) || !Multiple16(run.k) ||
      !Multiple16(run.v) || group < 1) {
    return {};
  }
  const int64_t last_token = item.q_position + item.tokens - 1;
  const int64_t last_key = item.keys.position + run.count - 1;
  if (params.window > 0 && last_token - params.window >= item.keys.position) return {};
  const bool all_seen = last_key <= item.q_position;
  if (!all_seen && (last_key != last_token || item.tokens > run.count)) return {};

  const int64_t readable = std::max(run.readable, run.first_slot + run.count) - run.first_slot;
  std::vector<PrefillPiece> pieces;
  // Keys that every query sees come first; the diagonal is taken with them where a plan fits.
  int64_t seen = all_seen ? run.count : run.count - item.tokens;
  const bool whole = !all_seen && SdpaBucket(run.count) <= readable;
  if (whole) {
    pieces.push_back({0, run.count, true});
    return pieces;
  }
  const bool full = all_seen && run.count == readable && SdpaBucket(run.count) > readable;
  if (full && run.count >= kExactKeysMin && run.count % kExactKeysStep == 0) {
    pieces.push_back({0, run.count, false, PrefillPiece::By::kExact});
    return pieces;
  }
  const bool whole_queries = SdpaBucket(item.tokens) == item.tokens;
  int64_t begin = 0;
  while (begin < seen) {
    const int64_t count = PieceOf(seen - begin, readable - begin, whole_queries);
    if (count == 0) break;
    pieces.push_back({begin, count, false});
    begin += count;
  }
  if (begin < seen) {  // fewer keys are left than the smallest plan has
    const PrefillPiece rest = {begin, seen - begin, false, PrefillPiece::By::kTiles};
    const AttentionItem part = PartOf({.item = item, .piece = rest, .first = false, .last = true});
    if (begin == 0 || !CanAttendTiles(format, activation, group, params, part)) return {};
    pieces.push_back(rest);
  }
  if (all_seen) return pieces;
  if (SdpaBucket(item.tokens) > readable - seen) return {};
  pieces.push_back({seen, item.tokens, true});
  return pieces;
}

PageFormat DecodedFormat(const PageFormat& format) {
  // Rows lie side by side, so that any pages will do.
  return {.dtype = format.dtype, .page_slots = kDefaultPageSlots, .head_dim = format.head_dim};
}

namespace {

// The item's heads [first, first + heads).
AttentionItem HeadsOf(const PageFormat& format, int group, const AttentionItem& item, int first,
                      int heads) {
  const int64_t query_head = int64_t{first} * group;
  const int64_t at = query_head * format.head_dim;
  const int64_t bytes = at * static_cast<int64_t>(DTypeBytes(format.dtype));
  AttentionItem some = item;
  some.heads = heads;
  some.q = static_cast<const std::byte*>(item.q) + bytes;
  some.o += at;
  some.lse += query_head;
  if (some.result != nullptr) some.result = static_cast<std::byte*>(item.result) + bytes;
  return some;
}

}  // namespace

std::vector<DecodedPiece> DecodedPieces(const PageFormat& format, int group,
                                        const AttentionItem& item,
                                        const PrefillResources& resources) {
  const PageFormat plain = DecodedFormat(format);
  const auto row_bytes = static_cast<int64_t>(plain.bytes()) / plain.page_slots;
  const PageRun& run = item.keys.pages;
  const int64_t readable = std::max(run.readable, run.first_slot + run.count) - run.first_slot;
  const int64_t span =
      std::clamp<int64_t>(readable, 1, std::min(SdpaBucket(run.count), kDecodedSlots));
  const int at_once = static_cast<int>(std::min<int64_t>(item.heads, kDecodedSlots / span));
  std::vector<DecodedPiece> pieces;
  for (int first = 0; first < item.heads; first += at_once) {
    const int heads = std::min(at_once, item.heads - first);
    int64_t begin = 0;
    do {
      const int64_t count = std::min(span, run.count - begin);
      DecodedPiece piece = {KeysOf(format, item.keys, first, begin, count).pages,
                            HeadsOf(format, group, item, first, heads)};
      AttentionItem& part = piece.item;
      part.keys.pages = {.k = resources.decoded,
                         .v = resources.decoded + kDecodedSlots * row_bytes,
                         .page_stride = static_cast<int64_t>(plain.bytes()),
                         .head_stride = span * row_bytes,
                         .count = count,
                         .readable = span};
      part.keys.position += begin;
      if (part.keys.positions != nullptr) part.keys.positions += begin;
      part.merge = item.merge || begin > 0;
      begin += count;
      if (begin < run.count) part.result = nullptr;
      pieces.push_back(piece);
    } while (begin < run.count);
  }
  return pieces;
}

Status AttendPrefill(cudaStream_t stream, const PrefillResources& resources,
                     const PageFormat& format, int group, const AttentionParams& params,
                     const AttentionItem& item) {
  const DType activation = resources.limits.activation;
  HEADWAY_CHECK(item.split == 0 && item.tokens <= resources.limits.rows);
  if (item.keys.pages.params != nullptr && activation != DType::kF32) {
    for (const auto& [from, piece] : DecodedPieces(format, group, item, resources)) {
      const PageRun& run = piece.keys.pages;
      const cudaError_t error = DecodePages(stream, format,
                                            {.from = from,
                                             .heads = piece.heads,
                                             .count = run.count,
                                             .k = run.k,
                                             .v = run.v,
                                             .head_rows = run.readable});
      if (error != cudaSuccess) return StatusOf(error, "decoding pages");
      if (Status s = AttendPrefill(stream, resources, DecodedFormat(format), group, params, piece);
          !s.ok()) {
        return s;
      }
    }
    return OkStatus();
  }
  if (resources.sdpa != nullptr) {
    const std::vector<PrefillPiece> pieces = PrefillPieces(format, activation, group, params, item);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const PlacedPiece placed = {.item = item,
                                  .piece = pieces[i],
                                  .first = i == 0 && !item.merge,
                                  .last = i + 1 == pieces.size()};
      const Status status =
          pieces[i].by == PrefillPiece::By::kTiles
              ? StatusOf(AttendTiles(stream, format, activation, group, params, PartOf(placed)),
                         "attention")
              : RunPiece(stream, resources, format, group, params, placed);
      // What cuDNN refuses it refuses at once, unless the pieces differ in kind.
      if (i == 0 && status.code() == StatusCode::kUnsupported) break;
      if (!status.ok() || placed.last) return status;
    }
  }
  if (CanAttendTiles(format, activation, group, params, item)) {
    return StatusOf(AttendTiles(stream, format, activation, group, params, item), "attention");
  }
  return RunSlices(stream, format, activation, group, params, item);
}

}  // namespace headway::cuda
