#include "engine/paths/selection.h"

#include <algorithm>

#include "base/check.h"
#include "engine/step/selected_states.h"
#include "engine/step/turns.h"

namespace headway {
namespace {

// The device memory that the choice of one entry takes; one layer's at a time.
struct EntryMemory {
  kv::SelectionBounds bounds;
  int64_t lists = 0, counts = 0, scratch = 0;  // bytes

  EntryMemory(const ModelShape& shape, const ExecutorLimits& limits)
      : bounds(BoundsOf(limits.selection, limits.length, shape.kv_heads)) {
    constexpr int64_t kLine = 256;
    // At most one head group a head.
    const int64_t segments = CeilDiv(limits.length, limits.segment_tokens) * shape.kv_heads;
    lists = RoundUp(shape.kv_heads * bounds.capacity * int64_t{sizeof(int32_t)}, kLine);
    counts = RoundUp(shape.kv_heads * int64_t{sizeof(int32_t)}, kLine);
    scratch = SelectScratchBytes(shape.kv_heads, shape.group(), bounds.blocks, segments, 1,
                                 bounds.candidates);
    if (limits.selection.summary.kind == SummaryKind::kStages) {
      scratch += StageScratchBytes(shape.kv_heads, bounds.blocks);
    }
  }
  int64_t bytes() const { return lists + counts + scratch; }
};

// How the blocks of any sequence and layer lie; which ones there are is not set.
BlockedKeys KeysIn(const kv::CacheFormat& format) {
  BlockedKeys keys;
  keys.heads = format.kv_heads;
  keys.group_heads = format.group_heads;
  keys.segment_blocks = format.segment_blocks();
  keys.page_stride = format.closed_stride();
  keys.head_stride = format.head_stride();
  keys.v_offset = format.VOffset(0, 0) - format.KOffset(0, 0);
  keys.params_offset = format.ParamOffset(0);
  keys.params_page_stride = format.param_stride();
  keys.params_head_stride = format.param_bytes();
  keys.codes_head_stride = format.summary_head_stride();
  keys.scales_offset = format.summary_scales_offset();
  keys.scales_head_stride = 2 * format.segment_blocks();
  keys.sketch_offset = format.sketch_offset();
  keys.sketch_head_stride = format.sketch_head_stride();
  return keys;
}

class SelectionPath : public AttentionPath {
 public:
  explicit SelectionPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        policy_(context_.limits.selection),
        cut_(SelectedStates(context_.shape, context_.limits, context_.kernels)),
        memory_(context_.shape, context_.limits),
        keys_(KeysIn(context_.store.format())) {}

  void BeginStep() override;
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int /*layer*/, int /*group*/) override { return OkStatus(); }

 private:
  // What is taken of an entry in a layer.
  struct Choice {
    int entry = 0;
    size_t first_span = 0;  // in spans_
    size_t spans = 0;
    size_t first = 0;  // in reads_: [head groups, segments]
    size_t reads = 0;
    int64_t blocks = 0;
    int64_t end = 0;  // the position behind them
    SelectionBudget budget;
  };
  std::span<const Choice> ChoicesOf(int layer) const {
    const size_t first = first_[static_cast<size_t>(layer)];
    return std::span(choices_).subspan(first, first_[static_cast<size_t>(layer) + 1] - first);
  }
  std::span<const kv::SlabRead> ReadsOf(int layer) const {
    const std::span<const Choice> choices = ChoicesOf(layer);
    const Choice& last = choices.back();
    return std::span(reads_).subspan(choices[0].first, last.first + last.reads - choices[0].first);
  }
  std::span<const kv::BlockSpan> SpansOf(const Choice& choice) const {
    return std::span(spans_).subspan(choice.first_span, choice.spans);
  }
  struct Segment {
    int segment = 0;
    int groups = 0;  // of which it may be taken
    int pages = 0;
  };
  std::vector<Segment>::iterator Find(int segment);
  bool FindSegments(int layer, int entry, std::span<const SlabRange> ranges);
  bool Choose(int layer, int entry);

  const PathParts parts_;
  StepContext& context_;
  const kv::SelectionPolicy& policy_;
  const StateCut cut_;
  const EntryMemory memory_;
  const BlockedKeys keys_;  // but for their segments and number
  // Of the step:
  std::vector<Choice> choices_;  // layer by layer
  std::vector<size_t> first_;    // [layers + 1]: the first of each layer
  std::vector<kv::SlabRead> reads_;
  std::vector<kv::BlockSpan> spans_;
  // Of the entry and layer at hand:
  std::vector<Segment> segments_;  // in their order
  std::vector<SegmentPlace> places_;
  std::vector<SelectItem> selects_;
  std::vector<AttendBlocksItem> attends_;
};

void SelectionPath::BeginStep() {
  choices_.clear();
  reads_.clear();
  spans_.clear();
  first_.assign(static_cast<size_t>(context_.shape.layers) + 1, 0);
}

std::vector<SelectionPath::Segment>::iterator SelectionPath::Find(int segment) {
  const auto found =
      std::lower_bound(segments_.begin(), segments_.end(), segment,
                       [](const Segment& each, int number) { return each.segment < number; });
  return found != segments_.end() && found->segment == segment ? found : segments_.end();
}

// The segments of an entry that lie in memory with their summaries, in all head groups.
bool SelectionPath::FindSegments(int layer, int entry, std::span<const SlabRange> ranges) {
  segments_.clear();
  for (const SlabRange& range : ranges) {
    if (range.slab.entry != entry || range.x) continue;
    const kv::SlabPlace place = context_.store.reads().PlaceOf(range.slab);
    const bool scored = place.summarised || !policy_.summary.kept();
    if (place.tier == Tier::kDisk || !scored) continue;
    if (range.slab.group == 0) {
      segments_.push_back({range.slab.segment, 1, place.pages});
      continue;
    }
    const auto found = Find(range.slab.segment);
    if (found != segments_.end()) ++found->groups;
  }
  const int groups = context_.store.format().head_groups(layer);
  std::erase_if(segments_, [&](const Segment& segment) { return segment.groups < groups; });
  return !segments_.empty();
}

// Whether something of the segments is left out; then they are taken.
bool SelectionPath::Choose(int layer, int entry) {
  const kv::CacheFormat& format = context_.store.format();
  Choice choice;
  choice.entry = entry;
  choice.first_span = spans_.size();
  choice.spans = segments_.size();
  choice.first = reads_.size();
  for (const Segment& segment : segments_) {
    const int64_t blocks = segment.pages * format.page_blocks();
    spans_.push_back({segment.segment * format.segment_tokens(), blocks});
    choice.blocks += blocks;
    choice.end = spans_.back().position + blocks * format.summary.block_slots;
  }
  choice.budget = BudgetOf(policy_.InLayer(layer, context_.shape.layers), SpansOf(choice),
                           parts_.batch[entry].position);
  const int64_t far = choice.budget.far_end - choice.budget.far_begin;
  if (!policy_.reaches() &&
      (choice.budget.far_blocks >= far || parts_.batch[entry].position < policy_.from)) {
    spans_.resize(choice.first_span);
    return false;
  }
  for (int group = 0; group < format.head_groups(layer); ++group) {
    for (const Segment& segment : segments_) {
      reads_.push_back({entry, layer, group, segment.segment, 0});
      parts_.reads.HoldInPlace(reads_.back());
    }
  }
  choice.reads = reads_.size() - choice.first;
  choices_.push_back(choice);
  return true;
}

void SelectionPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const AttentionObserver* observer = parts_.board.observer();
  const bool watched = observer != nullptr;
  const bool all = context_.WindowOf(layer) > 0 || (watched && !observer->WantsLists());
  for (int entry = 0; !all && entry < parts_.batch.size(); ++entry) {
    if (!parts_.batch[entry].decode) continue;
    if (!FindSegments(layer, entry, *ranges) || !Choose(layer, entry) || watched) continue;
    std::erase_if(*ranges, [&](const SlabRange& range) {
      return range.slab.entry == entry && Find(range.slab.segment) != segments_.end();
    });
  }
  first_[static_cast<size_t>(layer) + 1] = choices_.size();
}

// Chooses and attends for all heads of the layer at once: their states come first.
void SelectionPath::BeginLayer(int layer) {
  const std::span<const Choice> choices = ChoicesOf(layer);
  if (choices.empty()) return;
  AttentionObserver* const observer = parts_.board.observer();
  // Those of a layer's choices follow one another.
  const std::span<const kv::SlabRead> reads = ReadsOf(layer);
  places_.clear();
  const int64_t segment_tokens = context_.store.format().segment_tokens();
  for (const kv::SlabRead& read : reads) {
    places_.push_back(context_.store.reads().InPlace(read));
    places_.back().position = read.segment * segment_tokens;
  }
  selects_.clear();
  attends_.clear();
  std::byte* at = parts_.memory;
  for (const Choice& choice : choices) {
    SelectItem select;
    select.q = context_.QueryAt(parts_.batch[choice.entry].row, 0);
    select.turn = context_.turns->OfRows(choice.entry);
    select.keys = keys_;
    select.keys.segments =
        std::span(places_).subspan(choice.first - choices[0].first, choice.reads);
    select.keys.blocks = choice.blocks;
    select.budget = choice.budget;
    select.blocks = reinterpret_cast<int32_t*>(at);
    select.capacity = memory_.bounds.capacity;
    select.counts = reinterpret_cast<int32_t*>(at + memory_.lists);
    select.scratch = at + memory_.lists + memory_.counts;
    at += memory_.bytes();
    selects_.push_back(select);
    if (observer != nullptr) continue;  // others attend
    const Board::States states = parts_.board.TakeStates(choice.entry, cut_.parts);
    attends_.push_back({.q = select.q,
                        .move = context_.turns->MoveTo(choice.entry, choice.end),
                        .keys = select.keys,
                        .blocks = select.blocks,
                        .capacity = select.capacity,
                        .counts = select.counts,
                        .split = cut_.split,
                        .parts = cut_.parts,
                        .o = states.o,
                        .o_part_stride = states.o_part_stride,
                        .lse = states.lse,
                        .lse_part_stride = states.lse_part_stride,
                        .scratch = select.scratch});
  }
  Kernels& kernels = context_.kernels;
  const float scale = parts_.board.Params(0).scale;
  context_.store.reads().AwaitInPlace(reads);
  kernels.SelectBlocks(context_.compute, context_.format, policy_.summary, context_.shape.group(),
                       scale, selects_);
  if (observer == nullptr) {
    kernels.AttendBlocks(context_.compute, context_.format, policy_.summary, context_.shape.group(),
                         scale, attends_);
  }
  context_.store.reads().FinishInPlace(reads);
  for (size_t i = 0; observer != nullptr && i < choices.size(); ++i) {
    observer->OnLists(choices[i].entry, selects_[i], SpansOf(choices[i]));
  }
}

int64_t PathBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  if (!limits.selection.selects()) return 0;
  return limits.entries * EntryMemory(shape, limits).bytes();
}

}  // namespace

const PathKind kSelectionPath = {
    .name = "selection",
    .order = path_order::kSelection,
    .bytes = PathBytes,
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (!parts.context.limits.selection.selects()) return nullptr;
      return std::make_unique<SelectionPath>(parts);
    }};

}  // namespace headway
