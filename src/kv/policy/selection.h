// SelectionPolicy: which closed keys a step reads, as a function of positions and of how well
// blocks score (kernels/selection.h).
#ifndef HEADWAY_KV_POLICY_SELECTION_H_
#define HEADWAY_KV_POLICY_SELECTION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/types.h"
#include "kernels/selection.h"

namespace headway::kv {

struct SelectionPolicy {
  SummaryFormat summary;  // without blocks: every key is read
  int64_t keys = 0;       // far keys that a KV head reads, on average with BudgetShare::kLayer
  int64_t sink = 0;       // the first keys of a sequence are always read
  int64_t recent = 0;     // so are the last ones, the query's own among them
  BudgetShare share = BudgetShare::kLayer;
  // Far keys that a KV head reads for each key of the sequence, where these are more.
  double growth = 0.0;
  // Above 0: heads read the fewest far keys to which summaries give this share of all far
  // attention, from least_keys to as many as KeysAt.
  double top_p = 0.0;
  int64_t least_keys = 0;
  // With an epsilon above 0: heads read KeysAt far keys or more, up to all, so that what they leave
  // out has at most that share of the attention, but with a probability of `delta`.
  MassBound bound = {};
  double delta = 0.0;
  // Candidates that a first look lists for each key that a second one chooses; 1: one look.
  int64_t breadth = 1;
  static constexpr int64_t kTwoLooks = 8;  // where there are two (docs/decisions/selection.md)
  // Where those that it reads lie; absent: the planner's choice.
  std::optional<Tier> sketches = std::nullopt;
  // Above 0: the first of decode's two looks is at summaries of whole pages, of so many slots, and
  // lists pages.
  int search_slots = 0;
  // Decode steps of a sequence, one after the other, that choose among the same candidates, unless
  // a page closes between them.
  int64_t candidates_refresh = 1;
  // Of SummaryKind::kStages: the stages before the last, and `keys` of the outer layers, which are
  // the first kOuterLayers and the last one; 0: all layers read as many.
  struct Stage {
    int64_t chunk = 0;  // keys
    int64_t keys = 0;   // of the chunks that survive
    // Decode steps of a sequence, one after the other, that choose among the same survivors, unless
    // a page closes between them: a whole number of times those of the next stage, and of the last
    // one's, which is `refresh`; 1: each choice has its own.
    int64_t refresh = 1;
  };
  std::array<Stage, kChunkStages> stages = {};
  int64_t outer_keys = 0;

  // Decode steps of a sequence, one after the other, that read the same choice, unless a page
  // closes between them.
  int64_t refresh = 1;

  // The decode steps that choose: all, or those that draft tokens, which steps that read every key
  // verify.
  enum class Steps : uint8_t { kAll, kDrafting };
  Steps steps = Steps::kAll;

  // Chunks of prompts attend to what is listed of the pages before them, too.
  enum class Prompts : uint8_t { kExact, kSelected };
  Prompts prompts = Prompts::kExact;
  // There: every so many rows of a chunk, from the first on, one attends to all keys, too, and what
  // that changes in its output is added to those of the rows up to the next (Willette et al.,
  // "Delta Attention", 2025). 0: none does.
  int64_t dense_every = 0;
  // Candidates that the first of their two looks lists for each key that the second one chooses.
  static constexpr int64_t kPromptBreadth = 8;
  // Beyond the window that a model was trained for: summaries are of keys without their rotation,
  // queries are scored as if every key were so far behind them, and what is listed is moved
  // together (BlockMove). 0: keys are scored, and attended to, where they are.
  int64_t distance = 0;
  // Where they count while SummaryKind::kStages scores them (KeyPositions), in the first
  // kFirstLayers layers and in the others; at kOne in both, as above. Else `distance` is the number
  // of recent keys.
  static constexpr int kFirstLayers = 3;
  KeyPositions first_positions = KeyPositions::kOne;
  KeyPositions positions = KeyPositions::kOne;
  // Where listed blocks count then: one behind the other (Xiao et al., "StreamingLLM"), or those
  // that are not recent all in one place, before the recent ones (Xiao et al., "InfLLM").
  enum class FarPositions : uint8_t { kConsecutive, kTogether };
  FarPositions far_positions = FarPositions::kConsecutive;
  // Sequences of up to so many tokens are read whole, where distance is 0.
  int64_t from = 0;

  bool selects() const { return summary.selects(); }
  bool drafts() const { return steps == Steps::kDrafting; }
  // Whether what is generated depends on what is chosen.
  bool approximates() const { return selects() && !drafts(); }
  // Whether a step behind `position` keys has some that it leaves out.
  bool LeavesOut(int64_t position) const {
    return position >= from && sink + KeysAt(position) + recent < position;
  }
  bool is_bounded() const { return bound.epsilon > 0.0; }
  // Whether no key is read to choose: those of a bound are.
  bool lists_by_summaries() const { return summary.kept() && !is_bounded(); }
  bool looks_twice() const { return breadth > 1; }
  bool searches_pages() const { return search_slots > 0; }
  // Blocks of what a first look lists: of a page, or one.
  int search_run() const { return searches_pages() ? search_slots / summary.block_slots : 1; }
  // Decode steps that one search of all keys serves at most, and perhaps several choices.
  int64_t SearchRefresh() const { return std::max(candidates_refresh, stages[0].refresh); }
  // Steps that one choice serves in pages of so many slots: one that closes renews it.
  int64_t ChoiceSteps(int page_slots) const { return std::min<int64_t>(refresh, page_slots); }
  // Steps that one search serves in pages of so many slots: it is renewed with a choice, and when a
  // page closes.
  int64_t SearchSteps(int page_slots) const {
    return std::min<int64_t>(RoundUp(SearchRefresh(), refresh), page_slots);
  }
  // Whether a step may read what an earlier one has listed.
  bool keeps_lists() const { return refresh > 1 || SearchRefresh() > 1; }
  bool reaches() const { return distance > 0; }
  // Whether recent keys of a prompt's rows end with the row, and not with the chunk's first one:
  // where blocks are moved, recent ones stay where all rows find them.
  bool recent_ends_with_rows() const { return summary.kept() && !reaches(); }
  KeyPositions PositionsIn(int layer) const {
    return layer < kFirstLayers ? first_positions : positions;
  }
  // What holds in a layer of so many.
  static constexpr int kOuterLayers = 4;
  SelectionPolicy InLayer(int layer, int layers) const;
  // Of a sequence of `length` tokens.
  int64_t KeysAt(int64_t length) const;
  int64_t CandidatesAt(int64_t length) const {
    return looks_twice() ? breadth * KeysAt(length) : 0;
  }
  int64_t PromptCandidatesAt(int64_t length) const { return kPromptBreadth * KeysAt(length); }
  // KeysAt, on average over the layers.
  double MeanKeys(int layers, int64_t length) const;
  // What scoring reads of a key and head on average: the summary of its block, or of its page where
  // these are searched, or keys themselves; of stages the first one.
  double ScoredBytes(const PageFormat& page) const;
  // What the stages behind the first one read of a head in one choice of a sequence of `length`
  // tokens, on average over choices that follow one another.
  double SurvivorBytes(const PageFormat& page, int64_t length) const;
  // The same where each choice runs all stages.
  double SurvivorBytesAnew(const PageFormat& page, int64_t length) const;
};

// The standard deviations that a normally distributed number exceeds with a probability of `delta`,
// above 0 and at most a half.
double DeviationsOf(double delta);

// The sample of the step that reads position `position`, in a layer of the model.
uint64_t SampleSeed(int64_t position, int layer);

// Neighbouring blocks of a sequence.
struct BlockSpan {
  int64_t position = 0;  // of the first key
  int64_t blocks = 0;

  bool operator==(const BlockSpan&) const = default;
};

// The budget of a query at `q_position` over these blocks, counted through: blocks that hold keys
// of the sink or recent ones are read whole. It leaves nothing out where far_blocks is the number
// of all far blocks.
SelectionBudget BudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                         int64_t q_position);
// The same of the rows of a prompt's chunk behind the blocks, whose first is at `position`. Recent
// keys end with each block of rows; for all of them with the first row where blocks are moved, of
// selectors without summaries, and where a gap lies before or among recent blocks.
SelectionBudget PromptBudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                               int64_t position);

// What the lists of sequences of up to `length` tokens take at most.
struct SelectionBounds {
  int64_t blocks = 0;                                // of a head
  int64_t capacity = 0;                              // listed blocks of a head
  int64_t candidates = 0;                            // what the first of two looks lists
  int64_t prompt_candidates = 0;                     // of a prompt's
  std::array<int64_t, kChunkStages> survivors = {};  // chunks of a head that survive each stage
  int64_t stage_chunks = 0;                          // SelectionBudget::MostChunks
  int64_t stage_entries = 0;                         // SelectionBudget::StageEntries of a prompt's
};
SelectionBounds BoundsOf(const SelectionPolicy& policy, int64_t length, int kv_heads);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_SELECTION_H_
