#include "engine/paths/selection.h"

#include <algorithm>

#include "engine/paths/listed_segments.h"
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

class SelectionPath : public AttentionPath {
 public:
  explicit SelectionPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        policy_(context_.limits.selection),
        cut_(SelectedStates(context_.shape, context_.limits, context_.kernels)),
        memory_(context_.shape, context_.limits),
        keys_(BlockedKeysIn(context_.store.format())),
        segments_(context_) {}

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
  bool Choose(int layer, int entry);

  const PathParts parts_;
  StepContext& context_;
  const kv::SelectionPolicy& policy_;
  const StateCut cut_;
  const EntryMemory memory_;
  const BlockedKeys keys_;   // but for their segments and number
  ListedSegments segments_;  // of the entry and layer at hand
  // Of the step:
  std::vector<Choice> choices_;  // layer by layer
  std::vector<size_t> first_;    // [layers + 1]: the first of each layer
  std::vector<kv::SlabRead> reads_;
  std::vector<kv::BlockSpan> spans_;
  // Of the layer at hand:
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

// Whether the entry's segments are taken: something of them is left out, or they are moved.
bool SelectionPath::Choose(int layer, int entry) {
  if (segments_.empty()) return false;
  const int64_t position = parts_.batch[entry].position;
  Choice choice = {.entry = entry,
                   .first_span = spans_.size(),
                   .spans = segments_.spans().size(),
                   .first = reads_.size(),
                   .blocks = segments_.blocks(),
                   .end = segments_.end(),
                   .budget = BudgetOf(policy_.InLayer(layer, context_.shape.layers),
                                      segments_.spans(), position)};
  const bool all = choice.budget.far_blocks >= choice.budget.far_end - choice.budget.far_begin ||
                   position < policy_.from;
  if (all && !policy_.reaches()) return false;
  spans_.insert(spans_.end(), segments_.spans().begin(), segments_.spans().end());
  segments_.AddReads(&reads_);
  choice.reads = reads_.size() - choice.first;
  for (size_t i = choice.first; i < reads_.size(); ++i) parts_.reads.HoldInPlace(reads_[i]);
  choices_.push_back(choice);
  return true;
}

void SelectionPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const AttentionObserver* observer = parts_.board.observer();
  const bool watched = observer != nullptr;
  const bool all = context_.WindowOf(layer) > 0 || (watched && !observer->WantsLists());
  for (int entry = 0; !all && entry < parts_.batch.size(); ++entry) {
    if (!parts_.batch[entry].decode) continue;
    segments_.Find(layer, entry, *ranges);
    if (!Choose(layer, entry) || watched) continue;
    std::erase_if(*ranges, [&](const SlabRange& range) {
      return range.slab.entry == entry && segments_.Has(range.slab.segment);
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
