#include "engine/selection_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "engine/refused.h"
#include "headway/types.h"
#include "kv/policy/salient_blocks.h"
#include "kv/tiers/page_cache.h"

namespace headway {
namespace {

// A chunk attends to itself exactly, which costs more the longer it is.
constexpr int64_t kSelectedChunk = 2048;

int64_t Longest(const std::vector<int64_t>& lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

// Tokens of a chunk that reaches beyond the window together with what it chooses of a sequence of
// `length` tokens, so that no distance is longer than the window. What is read are whole blocks.
int64_t ReachingChunk(const kv::SelectionPolicy& policy, const ModelConfig& config,
                      int64_t length) {
  const int64_t block = policy.summary.block_slots;
  const int64_t recent = policy.recent + block - 1;  // these begin anywhere in a block
  const bool together = policy.far_positions == kv::SelectionPolicy::FarPositions::kTogether;
  const int64_t most = std::max(policy.KeysAt(length), policy.outer_keys);
  const int64_t far = together ? block : RoundUp(policy.sink, block) + RoundUp(most, block);
  const int64_t listed = far + recent;
  return std::min(kSelectedChunk, config.max_position - listed);
}

// Chunks that count one by one behind the recent keys are within the window, too.
Status CheckChunks(const kv::SelectionPolicy& policy, const ModelConfig& config, int64_t length) {
  if (policy.first_positions != KeyPositions::kChunks &&
      policy.positions != KeyPositions::kChunks) {
    return OkStatus();
  }
  const int64_t chunks = BoundsOf(policy, length, config.shape.kv_heads).stage_chunks;
  if (policy.distance + chunks < config.max_position) return OkStatus();
  return Wrong({Option::kHipPositions,
                " by chunk: a stage has up to " + std::to_string(chunks) +
                    " chunks, which with the recent keys do not fit into the " +
                    std::to_string(config.max_position) +
                    " tokens that this model was trained for; give longer chunks, or relative, or "
                    "one"});
}

}  // namespace

Result<kv::SelectionPolicy> SelectionFor(const BlueprintInputs& inputs, const Workload& workload) {
  const Settings& settings = *inputs.settings;
  const ModelConfig& config = *inputs.config;
  // At which queries score what lies far behind them; of 1,024 to 4,096 the first found most.
  constexpr int64_t kDistance = 1024;
  const int64_t longest = Longest(workload.lengths);
  kv::SelectionPolicy policy = settings.selection;
  // What is verified is exact, and so keeps to the distances that the model has.
  if (!policy.selects() || policy.drafts() || settings.reach == Settings::Reach::kOff) {
    return policy;
  }
  const bool rotates = config.rope.type != RopeType::kNone && config.max_position > 0;
  if (settings.reach == Settings::Reach::kOn && !rotates) {
    return Unsupported({Option::kReach, " on: this model does not rotate its keys"});
  }
  const bool longer = longest > config.max_position && TakesRows(policy.summary.kind);
  const bool wanted = longer && inputs.kernels->SelectsInPrompts();
  if (!rotates || (settings.reach == Settings::Reach::kAuto && !wanted)) return policy;
  if (!config.max_position_given) {
    return Unsupported({Option::kReach,
                        ": this model's config.json does not say for how many tokens it was "
                        "trained; give it max_position_embeddings, or ",
                        Option::kReach, " off"});
  }
  if (policy.is_bounded()) {
    return Unsupported({Option::kSparseEpsilon,
                        ": no error is bounded beyond the window of " +
                            std::to_string(config.max_position) +
                            " tokens that this model was trained for, where exact attention is no "
                            "measure; leave it out, or give ",
                        Option::kReach, " off"});
  }
  if (policy.dense_every > 0) {
    return Unsupported({Option::kSparseDenseEvery,
                        ": beyond the window of " + std::to_string(config.max_position) +
                            " tokens that this model was trained for no token attends to all keys; "
                            "leave it out, or give ",
                        Option::kReach, " off"});
  }
  const int64_t chunk = ReachingChunk(policy, config, longest);
  const bool none_fits = chunk < settings.cut.page_slots;
  if (none_fits || settings.cut.chunk.value_or(0) > chunk) {
    Message wrong = {"this model was trained for " + std::to_string(config.max_position) +
                     " tokens, which a chunk has to fit into with the keys that it chooses: choose "
                     "fewer keys, or give "};
    if (!none_fits) wrong += {"at most ", Option::kChunk, " " + std::to_string(chunk) + ", or "};
    wrong += {Option::kReach, " off"};
    return Wrong(std::move(wrong));
  }
  policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
  policy.share = BudgetShare::kHead;  // a head that took others' shares would see longer distances
  policy.distance = std::min(kDistance, config.max_position / 4);
  const bool positions =
      policy.first_positions != KeyPositions::kOne || policy.positions != KeyPositions::kOne;
  if (positions) policy.distance = policy.recent;
  if (Status s = CheckChunks(policy, config, longest); !s.ok()) return s;
  return policy;
}

int64_t ReadWhole(const BlueprintInputs& inputs, const plan::PlanRequest& request,
                  const plan::Plan& plan) {
  const Settings& settings = *inputs.settings;
  if (settings.sparse_from.has_value()) return *settings.sparse_from;
  if (settings.selection.drafts()) return 0;  // such a step would draft nothing
  // Others are there to be compared, which they cannot where they do not choose.
  if (settings.selection.summary.kind != SummaryKind::kMoments) return 0;
  if (request.machine != nullptr) return plan::WholeUpTo(request, plan);
  // Without a machine's speeds: measured (docs/BENCHMARKS.md, "Selection").
  constexpr int64_t kOnGpu = 32 * 1024, kOnCpu = 4 * 1024;
  if (!inputs.backend.own_memory) return kOnCpu;
  const bool resident = plan.slabs[1] == 0 && plan.slabs[2] == 0;
  return resident ? kOnGpu : 0;
}

Status CheckReach(const kv::SelectionPolicy& policy, const plan::Plan& plan) {
  if (!policy.reaches() || plan.slabs[2] == 0) return OkStatus();
  return Unsupported(
      {"beyond the window that a model was trained for the cache stays in memory: "
       "give more ",
       Option::kHostMemory, ", or ", Option::kReach, " off"});
}

int64_t ChunkFor(const LayoutBasis& basis) {
  const kv::SelectionPolicy& policy = basis.selection;
  const bool selected =
      policy.selects() && policy.prompts == kv::SelectionPolicy::Prompts::kSelected;
  if (!selected) return kMaxLength;
  return policy.reaches() ? ReachingChunk(policy, basis.config, Longest(basis.lengths))
                          : kSelectedChunk;
}

plan::KeySelection KeysChosen(const LayoutBasis& basis, kv::PlacementKind placement) {
  const kv::SelectionPolicy& policy = basis.selection;
  plan::KeySelection chosen;
  if (!policy.selects()) return chosen;
  const ModelShape& shape = basis.config.shape;
  const int64_t longest = Longest(basis.lengths);
  const auto always = static_cast<double>(policy.sink + policy.recent);
  const PageFormat page = {shape.dtype, basis.page_slots, shape.head_dim, basis.encoding};
  const double scored = policy.ScoredBytes(page);
  chosen.keys = always + policy.MeanKeys(shape.layers, longest);
  chosen.refresh = static_cast<double>(policy.ChoiceSteps(basis.page_slots));
  (policy.summary.kept() ? chosen.summary_bytes : chosen.key_bytes) = scored;
  chosen.survivor_bytes = policy.SurvivorBytes(page, longest);
  const auto steps = static_cast<double>(policy.SearchSteps(basis.page_slots));
  chosen.choices = std::max(1.0, steps / chosen.refresh);
  if (policy.looks_twice()) {
    const int64_t keys = policy.CandidatesAt(longest) + policy.sink + policy.recent;
    const int64_t blocks = CeilDiv(std::min(keys, longest), int64_t{policy.summary.block_slots});
    (policy.summary.sketched() ? chosen.sketch_bytes : chosen.candidate_bytes) =
        static_cast<double>(blocks * policy.summary.bytes(shape.head_dim));
    chosen.sketch_bits = static_cast<double>(blocks * policy.summary.sketch_bytes(shape.head_dim));
  }
  if (placement == kv::PlacementKind::kRecent || placement == kv::PlacementKind::kHostOnly ||
      placement == kv::PlacementKind::kDiskOnly) {
    chosen.sink = static_cast<double>(policy.sink);
    chosen.recent = static_cast<double>(policy.recent);
  }
  chosen.block_keys = static_cast<double>(policy.summary.block_slots);
  if (policy.lists_by_summaries()) chosen.page_keys = static_cast<double>(basis.page_slots);
  // A page is closed when it is full, so that on average the last one is half full.
  chosen.open_keys = static_cast<double>(basis.page_slots) / 2.0;
  if (policy.prompts == kv::SelectionPolicy::Prompts::kSelected) {
    chosen.prompts = plan::KeySelection::Prompts::kSelected;
    chosen.prompt_survivor_bytes = policy.SurvivorBytesAnew(page, longest);
    chosen.pool_tokens = static_cast<double>(kPoolRows);
    chosen.list_tokens = static_cast<double>(kSelectRows);
    chosen.search_tokens = static_cast<double>(kSearchRows);
    chosen.prompt_candidates = always + static_cast<double>(policy.PromptCandidatesAt(longest));
    chosen.moved = policy.reaches();
    if (policy.recent_ends_with_rows()) chosen.prompt_recent = static_cast<double>(policy.recent);
    chosen.dense_every = static_cast<double>(policy.dense_every);
  }
  return chosen;
}

Result<plan::PageCacheRequest> PageCacheFor(const BlueprintInputs& inputs,
                                            const LayoutBasis& basis) {
  const kv::SelectionPolicy& policy = basis.selection;
  // Steps whose chosen keys it holds (docs/decisions/selection.md). Beside drafts exact steps want
  // the memory for keys that they need not bring, if any may lie there.
  const kv::PlacementKind placement = inputs.settings->placement;
  const bool below =
      placement == kv::PlacementKind::kHostOnly || placement == kv::PlacementKind::kDiskOnly;
  const int64_t steps = policy.drafts() && !below ? 2 : 8;
  const std::optional<int64_t>& bytes = inputs.settings->page_cache;
  if (!policy.selects()) return plan::PageCacheRequest{};
  const ModelShape& shape = basis.config.shape;
  const PageFormat page = {shape.dtype, basis.page_slots, shape.head_dim, basis.encoding};
  const int block = policy.summary.block_slots;
  if (!inputs.backend.own_memory) {
    if (bytes.value_or(0) == 0) return plan::PageCacheRequest{};
    return Unsupported(
        {Option::kPageCache, ": this device reads host memory where it lies; leave it out"});
  }
  int64_t blocks = 0;
  for (const int64_t length : basis.lengths) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      if (!basis.config.windows.empty() && basis.config.windows[static_cast<size_t>(layer)] > 0) {
        continue;  // chooses nothing
      }
      const int64_t keys = policy.InLayer(layer, shape.layers).KeysAt(length);
      blocks += CeilDiv(std::min(keys, length), int64_t{block}) * shape.kv_heads;
    }
  }
  const int64_t line = CacheLineBytes(page, block);
  if (bytes.has_value() && *bytes > 0 && kv::PageCacheSets(line, *bytes) == 0) {
    return Wrong({Option::kPageCache, " of " + FormatBytes(*bytes) +
                                          " holds nothing; give 0 or at "
                                          "least " +
                                          FormatBytes(kv::PageCacheBytes(line, 1))});
  }
  const int64_t step = blocks * line;
  return plan::PageCacheRequest{bytes.value_or(steps * step), step, kv::PageCacheBytes(line, 1),
                                bytes.has_value()};
}

Status CheckSelection(const LayoutBasis& basis) {
  const bool reselects = basis.salience.reselects();
  const bool demotes = basis.eviction.demotion.demotes();
  if (!basis.selection.selects() && !reselects && !demotes) return OkStatus();
  const SummaryFormat& summary = reselects ? kv::SalientBlocks::kSummary
                                 : demotes ? kv::DemotionPolicy::kSummary
                                           : basis.selection.summary;
  const ModelShape& shape = basis.config.shape;
  const PageFormat page = {shape.dtype, basis.page_slots, shape.head_dim, basis.encoding};
  const bool prompts =
      demotes || basis.selection.prompts == kv::SelectionPolicy::Prompts::kSelected;
  if (prompts && !basis.kernels->SelectsInPrompts()) {
    return Unsupported(
        {"this device does not choose keys in prompts, nor beyond the trained "
         "window; use ",
         Option::kDevice, " cpu"});
  }
  const bool pages = basis.selection.searches_pages();
  const auto supports = [&](const PageFormat& format) {
    const auto takes = [&](const SummaryFormat& blocks) {
      return basis.kernels->SupportsSelection(format, blocks, shape.group());
    };
    return takes(summary) && (!pages || takes({summary.kind, basis.page_slots}));
  };
  if (supports(page)) return OkStatus();
  const Option asked = reselects ? Option::kHgcaReselect
                       : demotes ? Option::kEvicted
                                 : AskedForBy(basis.selection);
  PageFormat plain = page;
  plain.encoding = Encoding::kNone;
  if (supports(plain)) {
    return Unsupported({asked, " and ", Option::kKvEncoding,
                        std::string(" ") + EncodingName(page.encoding) + " in pages of " +
                            std::to_string(basis.page_slots) +
                            " tokens do not go together on this device"});
  }
  return Unsupported(
      {asked, ": this device does not choose blocks of " + std::to_string(summary.block_slots) +
                  (pages ? " keys, or of pages, with heads of " : " keys with heads of ") +
                  std::to_string(shape.head_dim) + " elements and groups of " +
                  std::to_string(shape.group())});
}

}  // namespace headway
