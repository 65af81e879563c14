// How fast keys are chosen and what is listed is attended to: by summaries that lie in the first
// half of the meter's memory by turns, and lists in the second half.
#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "hardware/meter.h"
#include "kernels/page_codec.h"

namespace headway::hardware {
namespace {

constexpr SummaryFormat kSummary = {
    .kind = SummaryKind::kMoments, .block_slots = 16, .sketch = SketchKind::kTwoBits};
constexpr int64_t kSink = 256, kRecent = 1024;  // keys that are always listed
constexpr int64_t kShare = 64;                  // of the other blocks one is listed
constexpr int64_t kBreadth = 8;                 // candidates of a second look for each of these
constexpr float kScale = 0.01f;

SelectionBudget BudgetFor(int64_t blocks, Meter::Looks looks) {
  SelectionBudget budget;
  budget.far_begin = kSink / kSummary.block_slots;
  budget.far_end = blocks - kRecent / kSummary.block_slots;
  budget.far_blocks = blocks / kShare;
  if (looks == Meter::Looks::kTwo) budget.candidates = kBreadth * budget.far_blocks;
  return budget;
}

// Blocks that a head lists, on average.
int64_t Listed(int64_t blocks, const SelectionBudget& budget) {
  return blocks - (budget.far_end - budget.far_begin) + budget.far_blocks;
}

}  // namespace

double Meter::ChoiceBytes(int64_t keys) const {
  return static_cast<double>(sizes_.heads * (keys / kSummary.block_slots) *
                             (kSummary.code_bytes(sizes_.head_dim) + SummaryFormat::scale_bytes()));
}

double Meter::CandidateBytes(int64_t keys) const {
  const int64_t blocks = keys / kSummary.block_slots;
  const SelectionBudget first = BudgetFor(blocks, Looks::kTwo).OfCandidates();
  return static_cast<double>(sizes_.heads * Listed(blocks, first) *
                             kSummary.bytes(sizes_.head_dim));
}

double Meter::ListedKeys(int64_t keys) const {
  const int64_t blocks = keys / kSummary.block_slots;
  return static_cast<double>(Listed(blocks, BudgetFor(blocks, Looks::kOne)) * kSummary.block_slots);
}

// Stages as InfiniteHiP has them: chunks, of which some survive, and the blocks of these.
constexpr SummaryFormat kStages = {.kind = SummaryKind::kStages, .block_slots = 8};
constexpr int64_t kChunk = 256, kSurvivors = 32, kStageKeys = 2048;

SelectionBudget StagesFor(int64_t blocks) {
  SelectionBudget budget;
  budget.far_begin = kSink / kStages.block_slots;
  budget.far_end = blocks - kRecent / kStages.block_slots;
  budget.far_blocks = kStageKeys / kStages.block_slots;
  budget.share = BudgetShare::kHead;
  budget.stages[0] = {kChunk / kStages.block_slots, kSurvivors};
  return budget;
}

// Blocks of keys that fill one segment, and the two calls' items, with memory for `rows` rows.
struct Meter::Selection {
  SegmentPlace place;
  SelectItem select;
  AttendBlocksItem attend;
  int64_t sketch_offset = 0;  // in a summary
  int64_t summary_bytes = 0;
  int64_t page_bytes = 0;  // of all heads, with their parameters

  void PlaceSummary(const std::byte* at) {
    place.summary = at;
    place.sketch = at + sketch_offset;
  }
};

Meter::Selection Meter::SelectionOf(int64_t rows, int64_t keys, Looks looks, Encoding encoding) {
  const PageFormat format = {DType::kBF16, kDefaultPageSlots, sizes_.head_dim, encoding};
  Selection made;
  SelectItem& select = made.select;
  select.q = x();
  select.q_stride = int64_t{sizes_.heads} * sizes_.group * sizes_.head_dim;
  select.rows = rows;
  BlockedKeys& blocked = select.keys;
  blocked.heads = blocked.group_heads = sizes_.heads;
  blocked.blocks = blocked.segment_blocks = keys / kSummary.block_slots;
  const int64_t pages = keys / kDefaultPageSlots;
  blocked.page_stride = static_cast<int64_t>(format.closed_bytes());
  blocked.head_stride = pages * blocked.page_stride;
  blocked.v_offset = sizes_.heads * blocked.head_stride;
  made.page_bytes = 2 * blocked.v_offset;
  if (encoding != Encoding::kNone) {
    blocked.params_offset = made.page_bytes;
    blocked.params_page_stride = ParamBytes(format);
    blocked.params_head_stride = pages * blocked.params_page_stride;
    made.page_bytes += sizes_.heads * blocked.params_head_stride;
  }
  blocked.codes_head_stride = blocked.blocks * kSummary.code_bytes(sizes_.head_dim);
  blocked.scales_offset = sizes_.heads * blocked.codes_head_stride;
  blocked.scales_head_stride = 2 * blocked.blocks;
  made.sketch_offset =
      blocked.scales_offset + sizes_.heads * blocked.blocks * SummaryFormat::scale_bytes();
  blocked.sketch_head_stride = blocked.blocks * kSummary.sketch_bytes(sizes_.head_dim);
  made.summary_bytes =
      RoundUp(sizes_.heads * blocked.blocks * kSummary.bytes(sizes_.head_dim), 256);
  select.budget = BudgetFor(blocked.blocks, looks);
  select.capacity = select.budget.Capacity(blocked.blocks, sizes_.heads);
  std::byte* const lists = memory_->data() + sizes_.weights * WeightBytes() / 2;
  const int64_t count = select.row_blocks() * sizes_.heads;
  select.counts = reinterpret_cast<int32_t*>(lists);
  select.blocks = reinterpret_cast<int32_t*>(lists + RoundUp(4 * count, 256));
  std::byte* at = lists + RoundUp(4 * count, 256) + RoundUp(4 * count * select.capacity, 256);
  if (select.looks_twice()) {
    CandidateLists& candidates = select.candidates;
    candidates.capacity = select.budget.OfCandidates().Capacity(blocked.blocks, sizes_.heads);
    candidates.counts = reinterpret_cast<int32_t*>(at);
    candidates.blocks = reinterpret_cast<int32_t*>(at + RoundUp(4 * count, 256));
    at += RoundUp(4 * count, 256) + RoundUp(4 * count * candidates.capacity, 256);
  }
  select.scratch = at;
  AttendBlocksItem& attend = made.attend;
  attend.q = select.q;
  attend.q_stride = select.q_stride;
  attend.rows = rows;
  attend.capacity = select.capacity;
  attend.blocks = select.blocks;
  attend.counts = select.counts;
  attend.scratch = select.scratch;
  attend.split = rows == 1 ? 256 : 0;
  attend.parts =
      rows == 1 ? static_cast<int>(CeilDiv(select.capacity * kSummary.block_slots, attend.split))
                : 1;
  attend.o_stride = attend.o_part_stride = select.q_stride;
  attend.lse_stride = attend.lse_part_stride = int64_t{sizes_.heads} * sizes_.group;
  return made;
}

void Meter::Choose(Selection* selection) {
  selection->select.keys.segments = {&selection->place, 1};
  kernels_->SelectBlocks(*compute_, {DType::kBF16, kDefaultPageSlots, sizes_.head_dim}, kSummary,
                         sizes_.group, kScale, {&selection->select, 1});
}

Result<double> Meter::ChoiceSeconds(int64_t tokens, int64_t keys, Looks looks) {
  Selection selection = SelectionOf(tokens, keys, looks);
  const int64_t turns =
      std::max<int64_t>(1, sizes_.weights * WeightBytes() / 2 / selection.summary_bytes);
  int64_t turn = 0;
  return Seconds(*compute_, tokens > 1 ? 1 : 64, [&](int) {
    selection.PlaceSummary(memory_->data() + turn++ % turns * selection.summary_bytes);
    Choose(&selection);
  });
}

double Meter::StageBytes(int64_t keys) const {
  // Two keys for each halving of a chunk.
  const auto read = [](int64_t chunk) {
    return 2.0 * std::log2(static_cast<double>(chunk)) / static_cast<double>(chunk);
  };
  const auto far = static_cast<double>(keys - kSink - kRecent);
  const double survivors = std::min(far, static_cast<double>(kChunk * kSurvivors));
  return (far * read(kChunk) + survivors * read(kStages.block_slots)) * 2.0 * sizes_.heads *
         sizes_.head_dim;
}

Result<double> Meter::StagesSeconds(int64_t tokens, int64_t keys, StageKeys how) {
  SelectItem select = SelectionOf(tokens, keys, Looks::kOne).select;
  select.keys.blocks = select.keys.segment_blocks = keys / kStages.block_slots;
  select.budget = StagesFor(select.keys.blocks);
  // Frequencies are whatever is there: numbers.
  if (how == StageKeys::kTurned) {
    select.rotated = {reinterpret_cast<const float*>(memory_->data()), sizes_.head_dim};
  }
  const int64_t lists = select.row_blocks() * sizes_.heads;
  std::byte* at = memory_->data() + sizes_.weights * WeightBytes() / 2;
  const auto take = [&](int64_t count) {
    at += RoundUp(4 * count, 256);
    return reinterpret_cast<int32_t*>(at - RoundUp(4 * count, 256));
  };
  select.capacity = select.budget.Capacity(select.keys.blocks, sizes_.heads);
  select.counts = take(lists);
  select.blocks = take(lists * select.capacity);
  select.survivors[0].capacity = kSurvivors;
  select.survivors[0].blocks = take(sizes_.heads * kSurvivors);
  select.survivors[0].counts = take(sizes_.heads);
  select.scratch = at;
  // Keys alone are read, and those of other layers between.
  const int64_t key_bytes = select.keys.v_offset;
  const int64_t turns = std::max<int64_t>(1, sizes_.weights * WeightBytes() / 2 / key_bytes);
  int64_t turn = 0;
  SegmentPlace place;
  select.keys.segments = {&place, 1};
  return Seconds(*compute_, 1, [&](int) {
    place.slab = memory_->data() + turn++ % turns * key_bytes;
    kernels_->SelectBlocks(*compute_, {DType::kBF16, kDefaultPageSlots, sizes_.head_dim}, kStages,
                           sizes_.group, kScale, {&select, 1});
  });
}

Result<double> Meter::ListedSeconds(int64_t tokens, int64_t keys, ListedPages pages,
                                    Encoding encoding) {
  Selection selection = SelectionOf(tokens, keys, Looks::kOne, encoding);
  const bool host = pages == ListedPages::kHost;
  const int64_t page_bytes = selection.page_bytes;
  selection.place.slab = host ? pinned_->data() : memory_->data();
  selection.PlaceSummary(memory_->data() + RoundUp(page_bytes, 256));
  Choose(&selection);
  AttendBlocksItem& attend = selection.attend;
  attend.keys = selection.select.keys;
  attend.o = states();
  attend.lse = attend.o + std::max<int64_t>(tokens, attend.parts) * attend.o_stride;
  // Frequencies are whatever is there: numbers.
  if (pages == ListedPages::kMoved) {
    attend.move = {reinterpret_cast<const float*>(memory_->data()), sizes_.head_dim, keys};
  }
  // On the device those of other layers between.
  const int64_t turns =
      host ? 1 : std::max<int64_t>(1, sizes_.weights * WeightBytes() / 2 / page_bytes);
  int64_t turn = 0;
  return Seconds(*compute_, 4, [&](int) {
    if (!host) selection.place.slab = memory_->data() + turn++ % turns * page_bytes;
    kernels_->AttendBlocks(*compute_, {DType::kBF16, kDefaultPageSlots, sizes_.head_dim, encoding},
                           kSummary, sizes_.group, kScale, {&attend, 1});
  });
}

}  // namespace headway::hardware
