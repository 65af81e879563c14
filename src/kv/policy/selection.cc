#include "kv/policy/selection.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/bytes.h"
#include "kernels/selection_bound.h"

namespace headway::kv {
namespace {

constexpr double kAllOfTopP = int64_t{1} << kTopPBits;

double KeyBytes(const PageFormat& page) {
  return static_cast<double>(page.closed_bytes()) / page.page_slots;
}

// Of a key that is read alone: its row, and where pages are encoded their parameters of keys, which
// about four reads share.
double LoneKeyBytes(const PageFormat& page) {
  constexpr double kReads = 4.0;
  const bool encoded = page.encoding != Encoding::kNone;
  const double params = encoded ? 2.0 * page.head_dim * double{sizeof(uint16_t)} : 0.0;
  return KeyBytes(page) + params / kReads;
}

// Of the keys of a chunk, the share that is read to find the one that stands for it: two for each
// halving.
double KeysRead(int64_t chunk) {
  return 2.0 * std::log2(static_cast<double>(chunk)) / static_cast<double>(chunk);
}

// What survives a stage holds the `keys` that are chosen, which a share of the sequence may make
// more than it keeps otherwise.
std::array<ChunkStage, kChunkStages> StagesOf(const SelectionPolicy& policy, int64_t keys) {
  std::array<ChunkStage, kChunkStages> stages = {};
  for (size_t i = 0; i < stages.size(); ++i) {
    const SelectionPolicy::Stage& stage = policy.stages[i];
    if (stage.chunk == 0) continue;
    stages[i] = {stage.chunk / policy.summary.block_slots,
                 CeilDiv(std::max(stage.keys, keys), stage.chunk)};
  }
  return stages;
}

}  // namespace

double DeviationsOf(double delta) {
  // Halves an interval until nothing lies between its ends.
  double least = 0.0;
  double most = 40.0;  // which no double is as improbable as
  for (double middle = 20.0; least < middle && middle < most; middle = 0.5 * (least + most)) {
    const double probability = 0.5 * std::erfc(middle * std::numbers::sqrt2 / 2.0);
    (probability > delta ? least : most) = middle;
  }
  return most;
}

uint64_t SampleSeed(int64_t position, int layer) {
  return selection::MixedBits(selection::MixedBits(static_cast<uint64_t>(position)) ^
                              static_cast<uint64_t>(layer));
}

int64_t SelectionPolicy::KeysAt(int64_t length) const {
  return std::max(keys, static_cast<int64_t>(growth * static_cast<double>(length)));
}

SelectionPolicy SelectionPolicy::InLayer(int layer, int layers) const {
  SelectionPolicy policy = *this;
  policy.outer_keys = 0;
  if (outer_keys > 0 && (layer < kOuterLayers || layer + 1 == layers)) policy.keys = outer_keys;
  return policy;
}

double SelectionPolicy::MeanKeys(int layers, int64_t length) const {
  int64_t sum = 0;
  for (int layer = 0; layer < layers; ++layer) sum += InLayer(layer, layers).KeysAt(length);
  return static_cast<double>(sum) / layers;
}

double SelectionPolicy::ScoredBytes(const PageFormat& page) const {
  if (summary.kept()) {
    return static_cast<double>(summary.code_bytes(page.head_dim) + SummaryFormat::scale_bytes()) /
           (summary.block_slots * search_run());
  }
  if (summary.kind == SummaryKind::kMasses) return KeyBytes(page);
  return LoneKeyBytes(page) * KeysRead(stages[0].chunk > 0 ? stages[0].chunk : summary.block_slots);
}

double SelectionPolicy::SurvivorBytes(const PageFormat& page, int64_t length) const {
  const int64_t served = ChoiceSteps(page.page_slots);
  double keys_read = 0.0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].chunk == 0) continue;
    const bool last = i + 1 == stages.size() || stages[i + 1].chunk == 0;
    const int64_t chunk = last ? summary.block_slots : stages[i + 1].chunk;
    const int64_t refreshed =
        last ? served : std::min<int64_t>(stages[i + 1].refresh, page.page_slots);
    const auto survivors = static_cast<double>(std::min(stages[i].keys, length));
    keys_read += survivors * KeysRead(chunk) * static_cast<double>(served) /
                 static_cast<double>(std::max(served, refreshed));
  }
  return keys_read * LoneKeyBytes(page);
}

double SelectionPolicy::SurvivorBytesAnew(const PageFormat& page, int64_t length) const {
  SelectionPolicy anew = *this;
  anew.refresh = 1;
  for (Stage& stage : anew.stages) stage.refresh = 1;
  return anew.SurvivorBytes(page, length);
}

SelectionBudget BudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                         int64_t q_position) {
  const int64_t slots = policy.summary.block_slots;
  const int64_t recent = q_position + 1 - policy.recent;  // the first recent position
  SelectionBudget budget;
  for (const BlockSpan& span : spans) {
    // Blocks of the span that begin in the sink, and those that end before the recent keys.
    const int64_t sink = CeilDiv(std::max<int64_t>(0, policy.sink - span.position), slots);
    const int64_t old = std::max<int64_t>(0, recent - span.position) / slots;
    budget.far_begin += std::min(sink, span.blocks);
    budget.far_end += std::min(old, span.blocks);
  }
  budget.far_end = std::max(budget.far_begin, budget.far_end);
  const int64_t length = q_position + 1;
  budget.far_blocks =
      std::min(CeilDiv(policy.KeysAt(length), slots), budget.far_end - budget.far_begin);
  budget.share = policy.share;
  if (policy.top_p > 0.0) {
    budget.top_p = static_cast<uint32_t>(std::max(1.0, std::round(policy.top_p * kAllOfTopP)));
    budget.least_blocks = std::max<int64_t>(1, CeilDiv(policy.least_keys, slots));
  }
  budget.bound = policy.bound;
  budget.candidates = CeilDiv(policy.CandidatesAt(length), slots);
  budget.stages = StagesOf(policy, policy.KeysAt(length));
  return budget;
}

namespace {

// Whether the blocks from `position` on have no gap before or among them.
bool FollowOneAnother(std::span<const BlockSpan> spans, int64_t slots, int64_t position) {
  for (size_t i = 1; i < spans.size(); ++i) {
    const int64_t end = spans[i - 1].position + spans[i - 1].blocks * slots;
    if (spans[i].position > position && end != spans[i].position) return false;
  }
  return true;
}

}  // namespace

SelectionBudget PromptBudgetOf(const SelectionPolicy& policy, std::span<const BlockSpan> spans,
                               int64_t position) {
  // The keys of the chunk are attended to exactly: those before it are recent as its first row has
  // them.
  SelectionBudget budget = BudgetOf(policy, spans, position - 1);
  if (!policy.summary.kept()) return budget;
  const int64_t slots = policy.summary.block_slots;
  budget.candidates = CeilDiv(policy.PromptCandidatesAt(position), slots);
  // Rows further on have the chunk's before them.
  if (policy.recent_ends_with_rows() && FollowOneAnother(spans, slots, position - policy.recent)) {
    budget.far_step = kSelectRows / slots;
  }
  return budget;
}

SelectionBounds BoundsOf(const SelectionPolicy& policy, int64_t length, int kv_heads) {
  const int64_t slots = policy.summary.block_slots;
  const int64_t heads = policy.share == BudgetShare::kLayer ? kv_heads : 1;
  SelectionBounds bounds;
  bounds.blocks = CeilDiv(length, slots);
  // A sequence with gaps may have a further block at each end of the sink and the recent keys.
  const int64_t always = CeilDiv(policy.sink, slots) + CeilDiv(policy.recent, slots) + 2;
  const auto with = [&](int64_t keys) {
    return std::min(bounds.blocks, always + heads * CeilDiv(keys, slots));
  };
  const int64_t keys = std::max(policy.KeysAt(length), policy.outer_keys);
  bounds.capacity = policy.is_bounded() ? bounds.blocks : with(keys);
  if (policy.looks_twice()) {
    // Pages with blocks that are always read are candidates as a whole.
    const int64_t run = policy.search_run();
    const int64_t whole =
        CeilDiv(policy.sink, slots * run) + CeilDiv(policy.recent, slots * run) + 2;
    bounds.candidates = std::min(CeilDiv(bounds.blocks, run),
                                 whole + heads * CeilDiv(policy.CandidatesAt(length), slots * run));
  }
  if (policy.prompts == SelectionPolicy::Prompts::kSelected) {
    bounds.prompt_candidates =
        std::min(bounds.blocks, always + CeilDiv(policy.PromptCandidatesAt(length), slots));
  }
  const SelectionBudget all = {.far_end = bounds.blocks, .stages = StagesOf(policy, keys)};
  for (size_t i = 0; i < all.stages.size(); ++i) {
    bounds.survivors[i] = all.Survivors(all.stages[i]);
  }
  bounds.stage_chunks = all.MostChunks();
  bounds.stage_entries = all.StageEntries();
  return bounds;
}

}  // namespace headway::kv
