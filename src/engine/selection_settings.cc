#include "engine/selection_settings.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/refused.h"
#include "engine/stage_settings.h"
#include "headway/plan.h"

namespace headway {
namespace {

template <typename T>
std::optional<T> MoreThan(T value, T absent) {
  return value > absent ? std::optional<T>(value) : std::nullopt;
}

struct Selector {
  const char* name;
  SummaryKind kind;
  BudgetShare share;
  int block;  // unless the user says otherwise
};
constexpr const char* kStagedSelector = "infinitehip";
constexpr Selector kSelectors[] = {
    {"pages", SummaryKind::kMoments, BudgetShare::kLayer, 16},
    {"quest", SummaryKind::kBoxes, BudgetShare::kHead, 16},
    {"oracle", SummaryKind::kMasses, BudgetShare::kLayer, 16},
    {"oracle-heads", SummaryKind::kMasses, BudgetShare::kHead, 16},
    {"infllm", SummaryKind::kPairs, BudgetShare::kHead, 64},
    {kStagedSelector, SummaryKind::kStages, BudgetShare::kHead, 8},
};

constexpr const char* kNoSelector = "none";

// Where keys count that infinitehip scores, in the first layers and in the others.
struct HipPositions {
  const char* name;
  KeyPositions first;
  KeyPositions others;
};
constexpr HipPositions kHipPositions[] = {
    {"published", KeyPositions::kChunks, KeyPositions::kBranches},
    {"chunk", KeyPositions::kChunks, KeyPositions::kChunks},
    {"relative", KeyPositions::kBranches, KeyPositions::kBranches},
    {"one", KeyPositions::kOne, KeyPositions::kOne},
};

Result<Settings::Reach> ReadReach(const std::string& name) {
  if (name == "auto") return Settings::Reach::kAuto;
  if (name == "on") return Settings::Reach::kOn;
  if (name == "off") return Settings::Reach::kOff;
  return Wrong({Option::kReach, " " + name + ": auto, on and off are known"});
}

// Positions of keys that infinitehip scores, which say something beyond the window alone.
Status ReadHipPositions(const EngineOptions& options, Settings* settings) {
  const auto wanted =
      std::find_if(std::begin(kHipPositions), std::end(kHipPositions),
                   [&](const HipPositions& each) { return options.hip_positions == each.name; });
  if (wanted == std::end(kHipPositions)) {
    return Wrong({Option::kHipPositions,
                  " " + options.hip_positions + ": published, chunk, relative and one are known"});
  }
  const bool staged = options.selector == kStagedSelector;
  const bool asked = options.hip_positions != EngineOptions{}.hip_positions;
  if (asked && staged && settings->reach == Settings::Reach::kOff) {
    return Wrong({Option::kHipPositions, " is for contexts beyond the trained window; leave out ",
                  Option::kReach, " off"});
  }
  if (!staged) return OkStatus();
  settings->selection.first_positions = wanted->first;
  settings->selection.positions = wanted->others;
  return OkStatus();
}

// Where keys count beyond the window, and whether there is a beyond.
Status ReadPositions(const EngineOptions& options, Settings* settings) {
  Result<Settings::Reach> reach = ReadReach(options.reach);
  if (!reach.ok()) return reach.status();
  settings->reach = *reach;
  using FarPositions = kv::SelectionPolicy::FarPositions;
  FarPositions& positions = settings->selection.far_positions;
  if (options.reach_positions == FarPositionsName(FarPositions::kTogether)) {
    positions = FarPositions::kTogether;
  } else if (options.reach_positions != FarPositionsName(FarPositions::kConsecutive)) {
    return Wrong({"positions " + options.reach_positions +
                  " of far keys: streamingllm and infllm are known"});
  }
  return ReadHipPositions(options, settings);
}

// The numbers of a selection that stand for themselves.
Status CheckSelectionNumbers(const EngineOptions& options) {
  const struct {
    Option option;
    int64_t tokens, least;
  } counts[] = {{Option::kSparseKeys, options.sparse_keys, 1},
                {Option::kSparseSink, options.sparse_sink, 0},
                {Option::kSparseRecent, options.sparse_recent, 1},
                {Option::kSparseRefresh, options.sparse_refresh, 1},
                {Option::kSparseCandidatesRefresh, options.sparse_candidates_refresh, 1}};
  for (const auto& each : counts) {
    if (each.tokens >= each.least && each.tokens <= kMaxLength) continue;
    return Wrong({each.option, " is at least " + std::to_string(each.least) +
                                   ", and not more than the tokens that a sequence may have"});
  }
  if (!(options.sparse_share >= 0.0 && options.sparse_share <= 1.0)) {
    return Wrong({Option::kSparseShare, " is a share of the keys, between 0 and 1"});
  }
  if (!(options.sparse_top_p >= 0.0 && options.sparse_top_p <= 1.0)) {
    return Wrong({Option::kSparseTopP, " is a share of the attention, between 0 and 1"});
  }
  if (options.sparse_top_p > 0.0 &&
      (options.sparse_least < 1 || options.sparse_least > options.sparse_keys)) {
    return Wrong({Option::kSparseLeast, " is at least 1, and not more than ", Option::kSparseKeys,
                  ", " + std::to_string(options.sparse_keys)});
  }
  if (!(options.sparse_epsilon >= 0.0 && options.sparse_epsilon < 1.0)) {
    return Wrong({Option::kSparseEpsilon, " is a share of the attention, from 0 to less than 1"});
  }
  if (!(options.sparse_delta > 0.0 && options.sparse_delta <= 0.5)) {
    return Wrong({Option::kSparseDelta, " is a probability above 0, and at most 0.5"});
  }
  if (options.sparse_looks < 1 || options.sparse_looks > 2) {
    return Wrong({Option::kSparseLooks, " is 1 or 2"});
  }
  return OkStatus();
}

// Where sketches lie.
Status ReadSketches(const EngineOptions& options, kv::SelectionPolicy* policy) {
  const std::string& tier = options.sparse_sketches;
  if (tier == "auto") return OkStatus();
  if (tier != "device" && tier != "host") {
    return Wrong({Option::kSparseSketches, ": '" + tier + "' is none of auto, device, host"});
  }
  if (options.sparse_looks != 2) {
    return Wrong({Option::kSparseSketches,
                  " says where the bits of keys lie that a second look reads; give ",
                  Option::kSparseLooks, " 2, or leave it out"});
  }
  policy->sketches = tier == "host" ? Tier::kHost : Tier::kDevice;
  return OkStatus();
}

// A second look at sketches, or at the summaries of candidates that serve some tokens.
Status ReadLooks(const EngineOptions& options, int block, kv::SelectionPolicy* policy) {
  if (options.sparse_looks == 2) {
    if (policy->summary.kind != SummaryKind::kMoments || block % 8 != 0 || block > 64) {
      return Wrong(
          {Option::kSparseLooks, " 2: only pages looks twice, at blocks of 8, 16, 32 or 64 keys"});
    }
    policy->breadth = kv::SelectionPolicy::kTwoLooks;
    policy->summary.sketch = SketchKind::kTwoBits;
  }
  if (Status s = ReadSketches(options, policy); !s.ok()) return s;
  if (options.sparse_candidates_refresh > 1) {
    if (!HasSummaries(policy->summary.kind)) {
      return Wrong({Option::kSparseCandidatesRefresh,
                    ": only pages, quest and infllm keep candidates for later tokens"});
    }
    if (options.sparse_candidates_refresh <= options.sparse_refresh) {
      return Wrong({Option::kSparseCandidatesRefresh, " is more than ", Option::kSparseRefresh,
                    ", " + std::to_string(options.sparse_refresh)});
    }
    policy->breadth = kv::SelectionPolicy::kTwoLooks;
  }
  if (options.sparse_levels < kSparseLevelsAuto || options.sparse_levels > 2) {
    return Wrong({Option::kSparseLevels, " is 1 or 2, or left out"});
  }
  if (options.sparse_levels == 2) {
    if (!HasSummaries(policy->summary.kind) || block == options.page_slots) {
      return Wrong(
          {Option::kSparseLevels,
           " 2: summaries of pages in front of those of blocks need pages, quest or infllm, "
           "and blocks that are smaller than pages of " +
               std::to_string(options.page_slots)});
    }
    policy->breadth = kv::SelectionPolicy::kTwoLooks;
    policy->search_slots = options.page_slots;
  }
  return OkStatus();
}

// What prompts choose.
Status ReadPrompts(const EngineOptions& options, Settings* settings) {
  kv::SelectionPolicy* policy = &settings->selection;
  const bool reaches = settings->reach == Settings::Reach::kOn;
  if ((reaches || options.sparse_prefill) && !TakesRows(policy->summary.kind)) {
    Message refused;
    if (reaches) refused += {Option::kReach, " on: "};
    refused += {"selector " + options.selector + " chooses keys in decode alone; " +
                "pages, quest and infinitehip do in prompts and beyond the trained window, too"};
    return Wrong(std::move(refused));
  }
  if (options.sparse_dense_every < 0 || options.sparse_dense_every > kMaxLength) {
    return Wrong({Option::kSparseDenseEvery, " is a number of tokens, or 0"});
  }
  if (options.sparse_dense_every > 0 && !options.sparse_prefill) {
    return Wrong({Option::kSparseDenseEvery, " is for prompts that choose keys (sparse prefill)"});
  }
  if (options.sparse_prefill) policy->prompts = kv::SelectionPolicy::Prompts::kSelected;
  policy->dense_every = options.sparse_dense_every;
  return OkStatus();
}

// Lists as long as a bound asks for: of each head, by its summaries, in each decode step.
Status ReadBound(const EngineOptions& options, kv::SelectionPolicy* policy) {
  if (options.sparse_epsilon == 0.0) return OkStatus();
  if (!HasSummaries(policy->summary.kind)) {
    return Wrong(
        {Option::kSparseEpsilon, " needs summaries: only pages, quest and infllm have them"});
  }
  if (options.sparse_top_p > 0.0) {
    return Wrong({"give ", Option::kSparseEpsilon, " or ", Option::kSparseTopP, ", not both"});
  }
  if (options.sparse_looks != 1 || options.sparse_levels > 1 || options.sparse_refresh != 1 ||
      options.sparse_candidates_refresh != 1) {
    return Wrong({Option::kSparseEpsilon,
                  " bounds the error of one look, made for each token; leave out second looks and "
                  "choices for several tokens"});
  }
  if (options.sparse_prefill) {
    return Wrong({Option::kSparseEpsilon, " is for decode; prompts are read exactly beside it"});
  }
  policy->bound.epsilon = options.sparse_epsilon;
  policy->bound.deviations = kv::DeviationsOf(options.sparse_delta);
  policy->delta = options.sparse_delta;
  policy->share = BudgetShare::kHead;
  return OkStatus();
}

// What would count for nothing: parts of a selection where none is asked for, stages of another
// selector than infinitehip, and what belongs to an option that is left out.
Status CheckGiven(const EngineOptions& options) {
  using Given = std::pair<Option, bool>;
  using O = EngineOptions;
  const O absent;
  const auto is = [&](auto member) { return options.*member != absent.*member; };
  const bool selects = options.selector != kNoSelector || options.draft == kSparseDrafts;
  for (const auto& [option, given] : std::initializer_list<Given>{
           {Option::kSparseKeys, is(&O::sparse_keys)},
           {Option::kSparseSink, is(&O::sparse_sink)},
           {Option::kSparseRecent, is(&O::sparse_recent)},
           {Option::kSparseShare, is(&O::sparse_share)},
           {Option::kSparseTopP, is(&O::sparse_top_p)},
           {Option::kSparseLeast, is(&O::sparse_least)},
           {Option::kSparseBlock, is(&O::sparse_block)},
           {Option::kSparseLooks, is(&O::sparse_looks)},
           {Option::kSparseSketches, is(&O::sparse_sketches)},
           {Option::kSparseLevels, is(&O::sparse_levels)},
           {Option::kSparseRefresh, is(&O::sparse_refresh)},
           {Option::kSparseCandidatesRefresh, is(&O::sparse_candidates_refresh)},
           {Option::kSparseFrom, is(&O::sparse_from)},
           {Option::kSparseEpsilon, is(&O::sparse_epsilon)},
           {Option::kSparseDelta, is(&O::sparse_delta)},
           {Option::kPageCache, is(&O::sparse_cache)}}) {
    if (given && !selects) {
      return Wrong({option, " needs ", Option::kSelector, " or ", Option::kDraft, " sparse"});
    }
  }
  for (const auto& [option, given] :
       std::initializer_list<Given>{{Option::kHipStages, is(&O::hip_stages)},
                                    {Option::kHipRefresh, is(&O::hip_refresh)},
                                    {Option::kHipOuterKeys, is(&O::hip_outer_keys)},
                                    {Option::kHipPositions, is(&O::hip_positions)}}) {
    if (given && options.selector != kStagedSelector) {
      return Wrong({option,
                    ": only infinitehip reads it; leave it out, or choose infinitehip as the "
                    "selector"});
    }
  }
  if (is(&O::sparse_least) && options.sparse_top_p == 0.0) {
    return Wrong({Option::kSparseLeast, " needs ", Option::kSparseTopP});
  }
  if (is(&O::sparse_delta) && options.sparse_epsilon == 0.0) {
    return Wrong({Option::kSparseDelta, " needs ", Option::kSparseEpsilon});
  }
  return OkStatus();
}

// Without a selector nothing may be asked of one, but by drafts, which have theirs.
Status CheckSelector(const EngineOptions& options, const Settings& settings) {
  const bool drafts = options.draft == kSparseDrafts;
  if (options.selector != kNoSelector) {
    if (!drafts) return OkStatus();
    return Wrong({Option::kDraft,
                  " sparse chooses keys to draft by, and answers are exact; leave out ",
                  Option::kSelector});
  }
  using FarPositions = kv::SelectionPolicy::FarPositions;
  if (options.sparse_prefill || options.sparse_dense_every != 0 ||
      settings.reach == Settings::Reach::kOn ||
      settings.selection.far_positions == FarPositions::kTogether) {
    Message refused = {"chosen keys in prompts, or beyond the trained window, need ",
                       Option::kSelector};
    if (drafts) refused += {", and no ", Option::kDraft};
    return Wrong(std::move(refused));
  }
  return OkStatus();
}

}  // namespace

Option AskedForBy(const kv::SelectionPolicy& policy) {
  return policy.drafts() ? Option::kDraft : Option::kSelector;
}

const char* SelectorName(const kv::SelectionPolicy& policy) {
  // Heads may have budgets of their own for other reasons, too: a bound, or a reach beyond the
  // window.
  const char* name = "none";
  for (const Selector& each : kSelectors) {
    if (each.kind != policy.summary.kind) continue;
    if (each.share == policy.share) return each.name;
    name = each.name;
  }
  return name;
}

const char* HipPositionsName(const kv::SelectionPolicy& policy) {
  if (policy.summary.kind != SummaryKind::kStages) return "";
  const auto is = std::find_if(
      std::begin(kHipPositions), std::end(kHipPositions), [&](const HipPositions& each) {
        return policy.first_positions == each.first && policy.positions == each.others;
      });
  HEADWAY_CHECK(is != std::end(kHipPositions));
  return is->name;
}

Status ReadSelection(const EngineOptions& options, Settings* settings) {
  if (Status s = ReadPositions(options, settings); !s.ok()) return s;
  if (Status s = CheckSelector(options, *settings); !s.ok()) return s;
  if (Status s = CheckGiven(options); !s.ok()) return s;
  const bool drafts = options.draft == kSparseDrafts;
  if (options.selector == kNoSelector && !drafts) return OkStatus();
  kv::SelectionPolicy& policy = settings->selection;
  const std::string wanted = drafts ? "pages" : options.selector;
  const auto selector = std::find_if(std::begin(kSelectors), std::end(kSelectors),
                                     [&](const Selector& each) { return wanted == each.name; });
  if (selector == std::end(kSelectors)) {
    std::string known = "none";
    for (const Selector& each : kSelectors) known += std::string(", ") + each.name;
    return Wrong({"selector " + options.selector + ": there are " + known});
  }
  policy.summary.kind = selector->kind;
  policy.share = selector->share;
  if (drafts) policy.steps = kv::SelectionPolicy::Steps::kDrafting;
  if (Status s = CheckSelectionNumbers(options); !s.ok()) return s;
  const int block = options.sparse_block == 0 ? selector->block : options.sparse_block;
  if (block < 1 || options.page_slots % block != 0) {
    return Wrong({Option::kSparseBlock, ": a page of " + std::to_string(options.page_slots) +
                                            " tokens cannot be cut into blocks of " +
                                            std::to_string(block)});
  }
  if (Status s = ReadLooks(options, block, &policy); !s.ok()) return s;
  if (Status s = ReadBound(options, &policy); !s.ok()) return s;
  if (!options.head_pattern.empty()) {
    return Wrong({AskedForBy(policy), " and ", Option::kHeadPattern, " do not go together"});
  }
  if (Status s = ReadPrompts(options, settings); !s.ok()) return s;
  settings->sparse_from = MoreThan(options.sparse_from, kSparseFromAuto);
  settings->levels_by_plan = !drafts && options.sparse_levels == kSparseLevelsAuto;
  settings->blocks_by_plan =
      !drafts && options.sparse_block == 0 && policy.summary.kind == SummaryKind::kMoments;
  settings->page_cache = MoreThan(options.sparse_cache, kSparseCacheAuto);
  policy.summary.block_slots = block;
  policy.keys = options.sparse_keys;
  policy.refresh = options.sparse_refresh;
  policy.candidates_refresh = options.sparse_candidates_refresh;
  policy.growth = options.sparse_share;
  policy.top_p = options.sparse_top_p;
  policy.least_keys = options.sparse_least;
  policy.sink = options.sparse_sink;
  policy.recent = options.sparse_recent;
  if (policy.summary.kind == SummaryKind::kStages) {
    if (Status s = ReadStages(options, &policy); !s.ok()) return s;
  }
  // What every step reads lies on the device, unless the user has another place for it.
  if (settings->policy == Policy::kAuto && options.placement == kAutoPlacement) {
    settings->placement = kv::PlacementKind::kRecent;
  }
  return OkStatus();
}

}  // namespace headway
