#include "engine/paths/selected_prefill.h"

#include <algorithm>

#include "engine/paths/listed_segments.h"
#include "engine/step/turns.h"
#include "kernels/selection_scratch.h"

namespace headway {
namespace {

// The device memory of the lists of a step's rows, and of choosing for one entry at a time.
struct PrefillMemory {
  kv::SelectionBounds bounds;
  int64_t row_blocks = 0;                      // of all entries
  int64_t lists = 0, counts = 0, scratch = 0;  // bytes

  PrefillMemory(const ModelShape& shape, const ExecutorLimits& limits)
      : bounds(BoundsOf(limits.selection, limits.length, shape.kv_heads)),
        row_blocks(CeilDiv(limits.step_tokens, kSelectRows) + limits.entries) {
    constexpr int64_t kLine = 256;
    // At most one head group a head.
    const int64_t segments = CeilDiv(limits.length, limits.segment_tokens) * shape.kv_heads;
    const int64_t all = row_blocks * shape.kv_heads;
    lists = RoundUp(all * bounds.capacity * int64_t{sizeof(int32_t)}, kLine);
    counts = RoundUp(all * int64_t{sizeof(int32_t)}, kLine);
    scratch = limits.selection.summary.kind == SummaryKind::kStages
                  ? SelectStagesBytes(shape.kv_heads, shape.group(), bounds.blocks, segments,
                                      limits.step_tokens, bounds.stage_entries)
                  : SelectScratchBytes(shape.kv_heads, shape.group(), bounds.blocks, segments,
                                       limits.step_tokens, bounds.prompt_candidates);
  }
  int64_t bytes() const { return lists + counts + scratch; }
};

class SelectedPrefillPath : public AttentionPath {
 public:
  explicit SelectedPrefillPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        policy_(context_.limits.selection),
        memory_(context_.shape, context_.limits),
        keys_(BlockedKeysIn(context_.store.format())),
        segments_(context_) {}

  void BeginStep() override;
  bool TakesResident() const override { return true; }
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;

 private:
  // What is taken of an entry in a layer.
  struct Choice {
    int entry = 0;
    size_t first = 0;  // in reads_: [head groups, segments]
    size_t reads = 0;
    int64_t blocks = 0;
    int64_t end = 0;  // the position behind them
    SelectionBudget budget;
  };
  bool Choose(int layer, int entry);
  void Run(int layer, const Choice& choice, int64_t row_block);

  const PathParts parts_;
  StepContext& context_;
  const kv::SelectionPolicy& policy_;
  const PrefillMemory memory_;
  const BlockedKeys keys_;   // but for their segments and number
  ListedSegments segments_;  // of the entry and layer at hand
  // Of the step:
  std::vector<Choice> choices_;  // layer by layer
  std::vector<size_t> first_;    // [layers + 1]: the first of each layer
  std::vector<kv::SlabRead> reads_;
  std::vector<SegmentPlace> places_;  // of a choice
};

void SelectedPrefillPath::BeginStep() {
  choices_.clear();
  reads_.clear();
  first_.assign(static_cast<size_t>(context_.shape.layers) + 1, 0);
}

// Whether the entry's segments are taken: something of them is left out, or they are moved.
bool SelectedPrefillPath::Choose(int layer, int entry) {
  if (segments_.empty()) return false;
  const BatchEntry& rows = parts_.batch[entry];
  Choice choice = {.entry = entry,
                   .first = reads_.size(),
                   .blocks = segments_.blocks(),
                   .end = segments_.end(),
                   .budget = PromptBudgetOf(policy_.InLayer(layer, context_.shape.layers),
                                            segments_.spans(), rows.position)};
  const bool all = choice.budget.far_blocks >= choice.budget.far_end - choice.budget.far_begin ||
                   rows.position + rows.tokens <= policy_.from;
  if (all && !policy_.reaches()) return false;
  segments_.AddReads(&reads_);
  choice.reads = reads_.size() - choice.first;
  for (size_t i = choice.first; i < reads_.size(); ++i) {
    parts_.reads.HoldInPlace(reads_[i]);
    if (policy_.dense_every > 0) parts_.reads.Add(parts_.number, reads_[i]);
  }
  choices_.push_back(choice);
  return true;
}

void SelectedPrefillPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const bool all = context_.WindowOf(layer) > 0 || parts_.board.observer() != nullptr;
  for (int entry = 0; !all && entry < parts_.batch.size(); ++entry) {
    if (parts_.batch[entry].decode) continue;
    segments_.Find(layer, entry, *ranges, ListedSegments::Where::kInMemory);
    if (!Choose(layer, entry)) continue;
    std::erase_if(*ranges, [&](const SlabRange& range) {
      return range.slab.entry == entry && segments_.Has(range.slab.segment);
    });
  }
  first_[static_cast<size_t>(layer) + 1] = choices_.size();
}

// Chooses and attends for all heads of the layer at once: their states come first.
void SelectedPrefillPath::BeginLayer(int layer) {
  int64_t row_block = 0;
  for (size_t i = first_[static_cast<size_t>(layer)]; i < first_[static_cast<size_t>(layer) + 1];
       ++i) {
    Run(layer, choices_[i], row_block);
    row_block += CeilDiv(parts_.batch[choices_[i].entry].tokens, kSelectRows);
  }
}

// Dense rows attend to what the others chose from, which comes to the device for them.
Status SelectedPrefillPath::Attend(int layer, int group) {
  Reads& reads = parts_.reads;
  while (reads.IsNext(parts_.number, layer, group)) {
    const int entry = reads.Peek().entry;
    Result<kv::SlabView> view = reads.Next();
    if (!view.ok()) return view.status();
    parts_.board.AttendWithDenseRows(entry, context_.RunsOf(layer, group), view->keys);
    reads.FinishLater(*view);
    parts_.board.Flush();
  }
  return OkStatus();
}

// With lists behind those of the `row_block` blocks of rows before.
void SelectedPrefillPath::Run(int layer, const Choice& choice, int64_t row_block) {
  const BatchEntry& rows = parts_.batch[choice.entry];
  const std::span<const kv::SlabRead> reads = std::span(reads_).subspan(choice.first, choice.reads);
  kv::StepReads& store = context_.store.reads();
  places_.clear();
  for (const kv::SlabRead& read : reads) {
    places_.push_back(store.InPlace(read));
    places_.back().position = read.segment * context_.store.format().segment_tokens();
  }
  SelectItem select = {.q = context_.QueryAt(rows.row, 0),
                       .q_stride = context_.act.qkv_stride,
                       .rows = rows.tokens,
                       .turn = context_.turns->OfRows(choice.entry),
                       .keys = keys_,
                       .budget = choice.budget};
  if (!policy_.summary.kept()) select.rotated = context_.turns->OfKeys(choice.entry, layer);
  select.keys.segments = places_;
  select.keys.blocks = choice.blocks;
  const int64_t first_list = row_block * context_.shape.kv_heads;
  select.capacity = memory_.bounds.capacity;
  select.blocks = reinterpret_cast<int32_t*>(parts_.memory) + first_list * select.capacity;
  select.counts = reinterpret_cast<int32_t*>(parts_.memory + memory_.lists) + first_list;
  select.scratch = parts_.memory + memory_.lists + memory_.counts;
  context_.listed_of_prompts.Count(&select);
  const Board::RowStates states =
      parts_.board.TakeRowStates(choice.entry, {0, context_.shape.kv_heads, 0});
  AttendBlocksItem attend;
  attend.q = select.q;
  attend.q_stride = select.q_stride;
  attend.rows = select.rows;
  attend.move =
      context_.turns->MoveTo(choice.entry, choice.end, choice.blocks - choice.budget.far_end);
  attend.keys = select.keys;
  attend.blocks = select.blocks;
  attend.capacity = select.capacity;
  attend.counts = select.counts;
  attend.o = states.o;
  attend.o_stride = states.o_stride;
  attend.lse = states.lse;
  attend.lse_stride = states.lse_stride;
  attend.scratch = select.scratch;
  store.LetLinesGo();
  attend.cache = store.block_cache(kv::PageCache::Readers::kPrompts);
  Kernels& kernels = context_.kernels;
  const int group = context_.shape.group();
  const float scale = parts_.board.Params(0).scale;
  store.AwaitInPlace(reads);
  kernels.SelectBlocks(context_.compute, context_.format, policy_.summary, group, scale,
                       {&select, 1});
  kernels.AttendBlocks(context_.compute, context_.format, policy_.summary, group, scale,
                       {&attend, 1});
  store.FinishInPlace(reads);
}

bool Selects(const ExecutorLimits& limits) {
  return limits.selection.selects() &&
         limits.selection.prompts == kv::SelectionPolicy::Prompts::kSelected;
}

int64_t PathBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return Selects(limits) ? PrefillMemory(shape, limits).bytes() : 0;
}

}  // namespace

const PathKind kSelectedPrefillPath = {
    .name = "selected prefill",
    .order = path_order::kSelectedPrefill,
    .bytes = PathBytes,
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (!Selects(parts.context.limits)) return nullptr;
      return std::make_unique<SelectedPrefillPath>(parts);
    }};

}  // namespace headway
