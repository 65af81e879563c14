#include "engine/paths/selection.h"

#include <algorithm>
#include <array>

#include "engine/paths/listed_from_disk.h"
#include "engine/paths/listed_segments.h"
#include "engine/step/selected_states.h"
#include "engine/step/turns.h"
#include "kernels/selection_scratch.h"

namespace headway {
namespace {

// The device memory that choices take: lists of each entry, of one layer at a time or, where later
// steps read them again, of each; what its search lists likewise; and scratch of each entry.
struct ChoiceMemory {
  // What a search lists: the candidates, or what survives each stage.
  struct Search {
    CandidateLists candidates;
    std::array<CandidateLists, kChunkStages> survivors;
  };
  static constexpr int64_t kLine = 256;
  kv::SelectionBounds bounds;
  int kv_heads = 0;
  int64_t layers = 0;         // that have lists of their own
  int64_t search_layers = 0;  // and those of a search
  int64_t entries = 0;
  int64_t lists = 0, counts = 0, search = 0, scratch = 0;  // bytes of one
  int64_t listed = 0;                                      // of both ListedCount::by_worth

  ChoiceMemory(const ModelShape& shape, const ExecutorLimits& limits)
      : bounds(BoundsOf(limits.selection, limits.length, shape.kv_heads)),
        kv_heads(shape.kv_heads),
        layers(limits.selection.refresh > 1 ? shape.layers : 1),
        search_layers(limits.selection.SearchRefresh() > 1 ? shape.layers : 1),
        entries(limits.entries) {
    // At most one head group a head. Attention to pages from disk has their frames beside these,
    // though its blocks are more than those that are chosen among (AttendScratchBytes).
    const int64_t of_group = CeilDiv(limits.length, limits.segment_tokens);
    const int64_t segments = of_group * shape.kv_heads + limits.listed_frames;
    const int64_t blocks = of_group * limits.segment_tokens / limits.selection.summary.block_slots;
    lists = OfHeads(bounds.capacity);
    counts = OfHeads(1);
    search = OfHeads(bounds.candidates) + counts;
    for (const int64_t chunks : bounds.survivors) search += OfHeads(chunks) + counts;
    scratch = SelectScratchBytes(shape.kv_heads, shape.group(), blocks, segments, 1,
                                 limits.selection.summary.sketched()
                                     ? bounds.candidates * limits.selection.search_run()
                                     : 0);
    if (limits.selection.top_p > 0.0 || limits.selection.is_bounded()) listed = kLine;
  }
  int64_t bytes() const { return ScratchAt(static_cast<int>(entries)) + listed; }
  // Of some blocks for each head.
  int64_t OfHeads(int64_t blocks) const {
    return RoundUp(kv_heads * blocks * int64_t{sizeof(int32_t)}, kLine);
  }
  // Offsets of the lists of a sequence: counts lie behind lists.
  int64_t ListsAt(int layer, int place) const {
    return (layer % layers * entries + place) * (lists + counts);
  }
  Search SearchAt(std::byte* memory, int layer, int place) const {
    std::byte* at = memory + entries * layers * (lists + counts) +
                    (layer % search_layers * entries + place) * search;
    const auto take = [&](int64_t capacity) {
      std::byte* const blocks = at;
      at += OfHeads(capacity) + counts;
      return CandidateLists{reinterpret_cast<int32_t*>(blocks), capacity,
                            reinterpret_cast<int32_t*>(at - counts)};
    };
    Search lists_of = {take(bounds.candidates), {}};
    for (size_t i = 0; i < bounds.survivors.size(); ++i) {
      lists_of.survivors[i] = take(bounds.survivors[i]);
    }
    return lists_of;
  }
  int64_t ScratchAt(int entry) const {
    return entries * (layers * (lists + counts) + search_layers * search) + entry * scratch;
  }
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
        where_(context_.store.reads().ReadsPages() ? ListedSegments::Where::kAnywhere
                                                   : ListedSegments::Where::kInMemory),
        segments_(context_),
        from_disk_(context_),
        kept_(static_cast<size_t>(context_.shape.layers * context_.limits.entries)) {
    if (memory_.listed == 0) return;
    std::byte* const sum = parts.memory + memory_.ScratchAt(static_cast<int>(memory_.entries));
    context_.listed.by_worth = reinterpret_cast<uint64_t*>(sum);
    context_.listed_of_prompts.by_worth = context_.listed.by_worth + 1;
  }

  void BeginStep() override;
  bool TakesResident() const override { return true; }
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;

 private:
  // What is taken of an entry in a layer.
  struct Choice {
    int entry = 0;
    size_t first_span = 0;  // in spans_
    size_t spans = 0;
    size_t first = 0;  // in reads_: [head groups, segments]
    size_t reads = 0;
    int64_t blocks = 0;
    int64_t end = 0;       // the position behind them
    bool on_disk = false;  // some of them lie there
    SelectionBudget budget;
    bool made = true;      // by this step; else by an earlier one
    bool searched = true;  // its candidates, if it has any, are of this step
    int first_stage = 0;   // of those that this step renews, if it has any
  };
  // What a sequence's lists in a layer were made for.
  struct Kept {
    kv::SequenceId sequence = -1;
    int64_t made = 0;        // the position of the query that chose
    int64_t searched = 0;    // of the one that listed candidates
    int64_t candidates = 0;  // of a head, on average; 0: there are none
    int64_t read = 0;        // of the last query that read the lists
    // Of stages: the query that renewed each, and the budget since the first of them was.
    std::array<int64_t, kChunkStages> renewed = {};
    SelectionBudget budget;
    std::vector<kv::BlockSpan> spans;
  };
  std::span<Choice> ChoicesOf(int layer) {
    const size_t first = first_[static_cast<size_t>(layer)];
    return std::span(choices_).subspan(first, first_[static_cast<size_t>(layer) + 1] - first);
  }
  std::span<const kv::SlabRead> ReadsOf(int layer) {
    const std::span<const Choice> choices = ChoicesOf(layer);
    const Choice& last = choices.back();
    return std::span(reads_).subspan(choices[0].first, last.first + last.reads - choices[0].first);
  }
  std::span<const kv::BlockSpan> SpansOf(const Choice& choice) const {
    return std::span(spans_).subspan(choice.first_span, choice.spans);
  }
  bool Chooses(const BatchEntry& entry) const {
    return entry.decode && (entry.drafting || !policy_.drafts());
  }
  bool Choose(int layer, int entry);
  SelectItem SelectOf(int layer, const Choice& choice,
                      std::span<const SegmentPlace> segments) const;
  SelectItem SearchOf(const SelectItem& select) const;
  DecodeRest RestOf(int layer, const Choice& choice);
  AttendBlocksItem AttendTo(int layer, const Choice& choice, const SelectItem& select);
  // Lists are a sequence's, wherever it is in a step, and whether it is in all of them.
  int PlaceOf(const Choice& choice) const {
    return context_.store.reads().PlaceOfEntry(choice.entry);
  }
  Kept& KeptOf(int layer, const Choice& choice) {
    return kept_[static_cast<size_t>(layer * context_.limits.entries + PlaceOf(choice))];
  }
  // Finds out what the lists that are there serve of a choice, and notes what will be there.
  void Reuse(Choice* choice, Kept* kept) const;
  void ReuseStages(bool follows, Choice* choice, Kept* kept) const;

  const PathParts parts_;
  StepContext& context_;
  const kv::SelectionPolicy& policy_;
  const StateCut cut_;
  const ChoiceMemory memory_;
  const BlockedKeys keys_;  // but for their segments and number
  const ListedSegments::Where where_;
  ListedSegments segments_;   // of the entry and layer at hand
  ListedFromDisk from_disk_;  // of the layer at hand
  std::vector<Kept> kept_;    // [layers, places of sequences]
  // Of the step:
  std::vector<Choice> choices_;  // layer by layer
  std::vector<size_t> first_;    // [layers + 1]: the first of each layer
  std::vector<kv::SlabRead> reads_;
  std::vector<kv::BlockSpan> spans_;
  // Of the layer at hand:
  std::vector<SegmentPlace> places_;
  std::vector<SelectItem> searches_;  // of pages, for those behind
  std::vector<SelectItem> selects_;
  std::vector<AttendBlocksItem> attends_;
  std::vector<SelectItem> watched_;  // where an observer looks on: of each choice
};

void SelectionPath::BeginStep() {
  choices_.clear();
  reads_.clear();
  spans_.clear();
  first_.assign(static_cast<size_t>(context_.shape.layers) + 1, 0);
  // A sequence that is read on from a prompt may have been cut back: it may be another text.
  for (const BatchEntry& entry : parts_.batch.entries()) {
    if (entry.decode || !policy_.keeps_lists()) continue;
    for (Kept& kept : kept_) {
      if (kept.sequence == entry.sequence) kept = Kept{};
    }
  }
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
                   .on_disk = segments_.on_disk(),
                   .budget = BudgetOf(policy_.InLayer(layer, context_.shape.layers),
                                      segments_.spans(), position)};
  choice.budget.bound.seed = kv::SampleSeed(position, context_.LayerOfModel(layer));
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

void SelectionPath::Reuse(Choice* choice, Kept* kept) const {
  if (!policy_.keeps_lists()) return;
  const BatchEntry& entry = parts_.batch[choice->entry];
  const std::span<const kv::BlockSpan> spans = SpansOf(*choice);
  const bool follows =
      entry.sequence == kept->sequence && entry.position == kept->read + 1 &&
      std::equal(spans.begin(), spans.end(), kept->spans.begin(), kept->spans.end());
  choice->made = !follows || entry.position >= kept->made + policy_.refresh;
  choice->searched = !follows || entry.position >= kept->searched + policy_.candidates_refresh ||
                     choice->budget.far_blocks > kept->candidates;
  kept->read = entry.position;
  if (!choice->made) return;
  kept->sequence = entry.sequence;
  kept->made = entry.position;
  kept->spans.assign(spans.begin(), spans.end());
  ReuseStages(follows, choice, kept);
  if (!choice->searched) return;
  kept->searched = entry.position;
  kept->candidates = choice->budget.looks_twice() ? choice->budget.OfCandidates().far_blocks : 0;
}

// The first stage that is due is renewed, and those behind it. Survivors are chunks of the keys
// that were far when the first stage was renewed: until it is again, keys that were recent stay so.
void SelectionPath::ReuseStages(bool follows, Choice* choice, Kept* kept) const {
  const int64_t position = kept->made;
  int& first = choice->first_stage;
  while (follows && first < kChunkStages) {
    const auto stage = static_cast<size_t>(first);
    if (position >= kept->renewed[stage] + policy_.stages[stage].refresh) break;
    ++first;
  }
  if (first == 0) {
    kept->budget = choice->budget;
  } else {
    choice->budget = kept->budget;
  }
  std::fill(kept->renewed.begin() + first, kept->renewed.end(), position);
}

void SelectionPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const AttentionObserver* observer = parts_.board.observer();
  const bool watched = observer != nullptr;
  const bool all = context_.WindowOf(layer) > 0 || (watched && !observer->WantsLists());
  for (int entry = 0; !all && entry < parts_.batch.size(); ++entry) {
    if (!Chooses(parts_.batch[entry])) continue;
    segments_.Find(layer, entry, *ranges, where_);
    if (!Choose(layer, entry) || watched) continue;
    std::erase_if(*ranges, [&](const SlabRange& range) {
      return range.slab.entry == entry && segments_.Has(range.slab.segment);
    });
  }
  first_[static_cast<size_t>(layer) + 1] = choices_.size();
}

SelectItem SelectionPath::SelectOf(int layer, const Choice& choice,
                                   std::span<const SegmentPlace> segments) const {
  std::byte* const lists = parts_.memory + memory_.ListsAt(layer, PlaceOf(choice));
  const ChoiceMemory::Search search = memory_.SearchAt(parts_.memory, layer, PlaceOf(choice));
  SelectItem select;
  select.q = context_.QueryAt(parts_.batch[choice.entry].row, 0);
  select.turn = context_.turns->OfRows(choice.entry);
  if (!policy_.summary.kept()) select.rotated = context_.turns->OfKeys(choice.entry, layer);
  select.keys = keys_;
  select.keys.segments = segments;
  select.keys.blocks = choice.blocks;
  select.budget = choice.budget;
  select.blocks = reinterpret_cast<int32_t*>(lists);
  select.capacity = memory_.bounds.capacity;
  select.counts = reinterpret_cast<int32_t*>(lists + memory_.lists);
  select.candidates = search.candidates;
  select.candidates.run = policy_.search_run();
  select.candidates_listed = !choice.searched || policy_.searches_pages();
  select.survivors = search.survivors;
  select.first_stage = choice.first_stage;
  select.scratch = parts_.memory + memory_.ScratchAt(choice.entry);
  return select;
}

// The choice of pages in front of one among their blocks.
SelectItem SelectionPath::SearchOf(const SelectItem& select) const {
  SelectItem search = select;
  search.keys = PageKeysOf(context_.store.format(), select.keys);
  search.budget = select.budget.OfCoarse(policy_.search_run());
  search.blocks = select.candidates.blocks;
  search.capacity = select.candidates.capacity;
  search.counts = select.candidates.counts;
  search.candidates = {};
  return search;
}

// Where other paths take nothing of the entry but its open page, that is attended to in the same
// call, and all is merged.
DecodeRest SelectionPath::RestOf(int layer, const Choice& choice) {
  const KeyRun tail = context_.store.step().Tail(choice.entry, layer, 0);
  const bool all =
      choice.end == tail.position && choice.blocks * policy_.summary.block_slots == tail.position;
  if (!all) return {};
  return {parts_.board.TakeResult(choice.entry), tail.pages.k, tail.pages.head_stride,
          tail.pages.count};
}

// Attention to what is listed by `select`.
AttendBlocksItem SelectionPath::AttendTo(int layer, const Choice& choice,
                                         const SelectItem& select) {
  const DecodeRest rest = RestOf(layer, choice);
  const Board::States states = parts_.board.TakeStates(
      choice.entry, {0, context_.shape.kv_heads, 0}, cut_.parts + (rest.result == nullptr ? 0 : 1));
  return {.q = select.q,
          .move = context_.turns->MoveTo(choice.entry, choice.end,
                                         choice.blocks - choice.budget.far_end),
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
          .scratch = select.scratch,
          .rest = rest,
          .cache = context_.store.reads().block_cache(kv::PageCache::Readers::kDecode)};
}

// Chooses and attends for all heads of the layer at once: their states come first.
void SelectionPath::BeginLayer(int layer) {
  from_disk_.BeginLayer(layer);
  const std::span<Choice> choices = ChoicesOf(layer);
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
  searches_.clear();
  selects_.clear();
  attends_.clear();
  watched_.clear();
  for (Choice& choice : choices) {
    Reuse(&choice, &KeptOf(layer, choice));
    const SelectItem select = SelectOf(
        layer, choice, std::span(places_).subspan(choice.first - choices[0].first, choice.reads));
    if (choice.made) selects_.push_back(select);
    if (choice.made && observer == nullptr) context_.listed.Count(&selects_.back());
    if (choice.made && choice.searched && policy_.searches_pages()) {
      searches_.push_back(SearchOf(select));
    }
    if (observer == nullptr && choice.on_disk) {
      from_disk_.Add(AttendTo(layer, choice, select),
                     std::span(reads_).subspan(choice.first, choice.reads));
    } else if (observer == nullptr) {
      attends_.push_back(AttendTo(layer, choice, select));
    } else {
      watched_.push_back(select);  // others attend
    }
  }
  Kernels& kernels = context_.kernels;
  const float scale = parts_.board.Params(0).scale;
  context_.store.reads().AwaitInPlace(reads);
  if (!searches_.empty()) {
    kernels.SelectBlocks(context_.compute, context_.format, context_.store.format().page_summary(),
                         context_.shape.group(), scale, searches_);
  }
  if (!selects_.empty()) {
    kernels.SelectBlocks(context_.compute, context_.format, policy_.summary, context_.shape.group(),
                         scale, selects_);
  }
  if (!attends_.empty()) {
    // By the first layer of the step that chooses.
    if (first_[static_cast<size_t>(layer)] == 0) {
      context_.store.reads().CountCachedTokens(std::ssize(attends_));
    }
    kernels.AttendBlocks(context_.compute, context_.format, policy_.summary, context_.shape.group(),
                         scale, attends_);
  }
  context_.store.reads().FinishInPlace(reads);
  for (size_t i = 0; observer != nullptr && i < choices.size(); ++i) {
    observer->OnLists(choices[i].entry, watched_[i], SpansOf(choices[i]));
  }
}

Status SelectionPath::Attend(int layer, int group) {
  if (group > 0 || from_disk_.empty()) return OkStatus();
  Status status = from_disk_.Attend();
  context_.store.reads().FinishInPlace(ReadsOf(layer));  // these kernels come behind the layer's
  return status;
}

int64_t PathBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  if (!limits.selection.selects()) return 0;
  return ChoiceMemory(shape, limits).bytes();
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
