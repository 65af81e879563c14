#include "engine/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "engine/settings.h"
#include "engine/step/weight_stream.h"
#include "plan/draft_cost.h"
#include "plan/selection_cost.h"

namespace headway {

namespace {

// The longest sequence, of up to `length` tokens, of which no layer leaves out a key.
int64_t WholeLength(const kv::SelectionPolicy& policy, int layers, int64_t length) {
  const auto leaves_out = [&](int64_t position) {
    for (int layer = 0; layer < layers; ++layer) {
      if (policy.InLayer(layer, layers).LeavesOut(position)) return true;
    }
    return false;
  };
  int64_t whole = 0;
  for (int64_t beyond = length + 1; whole + 1 < beyond;) {
    const int64_t middle = whole + (beyond - whole) / 2;
    (leaves_out(middle) ? beyond : whole) = middle;
  }
  return whole;
}

std::optional<SelectionReport> SelectionOf(const Blueprint& blueprint) {
  const kv::SelectionPolicy& policy = blueprint.layout.executor.selection;
  if (!policy.approximates()) return std::nullopt;
  SelectionReport report;
  report.selector = SelectorName(policy);
  const int64_t length = blueprint.layout.executor.length;
  const double keys = policy.MeanKeys(blueprint.request.shape.layers, length);
  report.keys = static_cast<int64_t>(keys);
  report.top_p = policy.top_p;
  report.least = policy.top_p > 0.0 ? policy.least_keys : report.keys;
  report.epsilon = policy.bound.epsilon;
  report.delta = policy.delta;
  report.sink = policy.sink;
  report.recent = policy.recent;
  report.block = policy.summary.block_slots;
  report.scored_bytes = policy.ScoredBytes(blueprint.layout.store.format.page);
  report.looks = policy.summary.sketched() ? 2 : 1;
  if (report.looks == 2) report.sketches = TierName(blueprint.plan.cache.sketches);
  report.levels = policy.searches_pages() ? 2 : 1;
  const int page_slots = blueprint.layout.store.format.page.page_slots;
  report.refresh = policy.ChoiceSteps(page_slots);
  report.candidates_refresh = policy.SearchSteps(page_slots);
  report.candidates = std::min(policy.CandidatesAt(length), length);
  const double read = keys + static_cast<double>(policy.sink + policy.recent);
  report.prompts = policy.prompts == kv::SelectionPolicy::Prompts::kSelected;
  if (report.prompts) {
    report.pool = static_cast<int>(kPoolRows);
    report.search = static_cast<int>(kSearchRows);
    report.prompt_candidates = policy.PromptCandidatesAt(length) + policy.sink + policy.recent;
  }
  report.reach = policy.reaches();
  report.reach_positions = FarPositionsName(policy.far_positions);
  report.hip_positions = HipPositionsName(policy);
  report.from = policy.from;
  report.length = length;
  report.whole = WholeLength(policy, blueprint.request.shape.layers, length);
  report.share = length <= policy.from ? 1.0 : std::min(1.0, read / static_cast<double>(length));
  return report;
}

std::optional<PageCacheReport> PageCacheOf(const Blueprint& blueprint) {
  const plan::Plan& plan = blueprint.plan;
  if (plan.page_cache == 0) return std::nullopt;
  const plan::Execution run = plan::ExecutionOf(plan, blueprint.request.lengths);
  return PageCacheReport{
      plan.page_cache, plan.page_cache_steps, plan::FoundShare(blueprint.request.selection, run),
      static_cast<int64_t>(plan.found.tokens), static_cast<int64_t>(plan::kAssumedTokens)};
}

// Where keys count beyond the window.
std::string ReachReason(const SelectionReport& selection) {
  std::string reason = "beyond the window that the model was trained for: ";
  reason +=
      selection.reach_positions == "infllm"
          ? "far keys are attended to as if they lay just before the recent ones, all together"
          : "chosen keys are attended to as if they lay next to each other";
  const std::string& positions = selection.hip_positions;
  if (positions == "published") {
    reason +=
        ", and chosen at positions of their chunks in the first three layers, at relative "
        "ones in the others";
  } else if (positions == "chunk") {
    reason += ", and chosen at positions of their chunks";
  } else if (positions == "relative") {
    reason += ", and chosen at relative positions";
  } else if (positions == "one") {
    reason += ", and chosen at one distance";
  }
  return reason;
}

// Whether there is a prediction of what drafts bring: of full caches there is.
bool PredictsDrafts(const plan::PlanRequest& request) {
  return request.drafts.most > 0 && !request.kept.count;
}

// What steps make the drafts; empty where none do.
std::string DraftReason(const Blueprint& blueprint) {
  if (blueprint.draft != nullptr) {
    return fmt::format(
        "exact, with drafts of another model: {} of the device for its weights, steps and cache",
        FormatBytes(blueprint.request.beside.device));
  }
  const kv::SelectionPolicy& policy = blueprint.layout.executor.selection;
  if (!policy.drafts()) return "";
  const int64_t length = blueprint.layout.executor.length;
  const int64_t keys = policy.sink + policy.KeysAt(length) + policy.recent;
  if (!policy.LeavesOut(length)) {
    return fmt::format("no drafts: steps that draft would read {} keys, which is all of them",
                       keys);
  }
  return fmt::format(
      "exact, with drafts: at the end a step that drafts reads {:.1f} % of the longest sequence's "
      "keys, and one that reads all of them verifies several drafts",
      100.0 * static_cast<double>(keys) / static_cast<double>(length));
}

std::optional<EvictionReport> EvictionReportOf(const Blueprint& blueprint) {
  if (!blueprint.layout.kept.has_value()) return std::nullopt;
  const kv::EvictionPolicy& policy = blueprint.layout.kept->evictor.policy;
  EvictionReport report;
  report.method = kv::EvictionName(policy.method);
  report.budget = policy.budget;
  report.share = policy.share;
  report.window = policy.window;
  report.pool = policy.pool;
  report.pooling = policy.pooling == kv::EvictionPolicy::Pool::kMax ? "max" : "mean";
  report.sink = policy.sink;
  report.safeguard = policy.safeguard;
  report.steepness = policy.steepness;
  report.future = policy.future;
  report.profiled = policy.profiled;
  report.room = policy.room;
  if (const DemotedLimits* const demoted = blueprint.layout.demoted(); demoted != nullptr) {
    report.demoted_keys = demoted->policy.keys;
    report.demoted_refresh = demoted->policy.refresh;
    report.demoted_bytes = Demoted::HostBytes(*demoted) / demoted->sequences;
  }
  report.kept_bytes = blueprint.layout.kept->KeptBytes();
  report.sequence_bytes =
      blueprint.layout.kept->sequence_slabs * blueprint.layout.kept->store.format.slab_bytes();
  if (blueprint.admission.has_value()) {
    report.sequences = blueprint.admission->kept;
    report.whole_sequences = blueprint.admission->whole;
  }
  return report;
}

std::optional<SalienceReport> SalienceReportOf(const Blueprint& blueprint) {
  const std::optional<SalienceLimits>& salience = blueprint.layout.salience;
  if (!salience.has_value()) return std::nullopt;
  const kv::SaliencePolicy& policy = salience->policy;
  return SalienceReport{policy.beta,          policy.window,     policy.alpha,
                        policy.every,         policy.most,       policy.queries,
                        policy.reselect,      salience->on_host, salience->by_cores,
                        policy.bound.epsilon, policy.delta};
}

std::string SalienceReason(const SalienceReport& salience) {
  const std::string unless =
      salience.epsilon > 0.0
          ? fmt::format(", unless these leave out more than {:.4g} % of a head's attention",
                        100.0 * salience.epsilon)
          : "";
  return fmt::format(
      "approximate: before the last {} tokens decode attends to those alone that {}{}; prompts are "
      "read exactly",
      salience.window, salience.reselect > 0 ? "score best by summaries" : "had attention", unless);
}

std::string SelectionReason(const SelectionReport& selection) {
  std::string pages_first;
  if (selection.levels > 1) {
    pages_first = ", in pages that a search finds for ";
    pages_first += selection.candidates_refresh == 1
                       ? "each token"
                       : fmt::format("{} tokens", selection.candidates_refresh);
  }
  return fmt::format(
      "approximate: at the end a step of the longest sequence reads {:.1f} % of its keys, chosen "
      "by {} in blocks of {}{}; prompts are read {}",
      100.0 * selection.share, selection.selector, selection.block, pages_first,
      selection.prompts ? "so, too" : "exactly");
}

// Empty where choices, and what they choose among, serve as many tokens as is asked for, or nothing
// is chosen.
std::string RenewalReason(const Blueprint& blueprint) {
  const kv::SelectionPolicy& policy = blueprint.layout.executor.selection;
  const int page_slots = blueprint.layout.store.format.page.page_slots;
  const int64_t asked = std::max(policy.refresh, policy.SearchRefresh());
  const bool chooses = policy.reaches() || policy.LeavesOut(blueprint.layout.executor.length);
  if (!policy.selects() || !chooses || asked <= page_slots) return "";
  return fmt::format(
      "what is chosen for {} tokens serves at most until a page of {} closes, which renews it",
      asked, page_slots);
}

// Where nothing is gained by lossless pages: of few tokens of small heads padding takes more.
std::string LosslessReason(const kv::CacheFormat& format) {
  if (format.page.encoding != Encoding::kLossless) return "";
  kv::CacheFormat plain = format;
  plain.page.encoding = Encoding::kNone;
  const double share =
      static_cast<double>(format.slab_bytes()) / static_cast<double>(plain.slab_bytes());
  if (share < 1.0) return "";
  return fmt::format(
      "lossless pages of {} tokens take {:.0f} % of what plain ones do, for padding: longer pages, "
      "or none given, take less",
      format.page.page_slots, 100.0 * share);
}

std::string SelfExtendReason(const SelfExtend& extend) {
  return fmt::format(
      "Self-Extend: keys that lie {} or more tokens back count in groups of {}; what "
      "turning them costs is not in predicted times",
      extend.window, extend.group);
}

}  // namespace

PlanReport ReportOf(const Blueprint& blueprint) {
  const plan::Plan& plan = blueprint.plan;
  const plan::SmallestBudgets smallest = plan::FindSmallestBudgets(blueprint.request);
  PlanReport report;
  report.chunk = plan.cache.chunk;
  report.stretch = plan.cache.stretch_tokens;
  report.head_group = plan.cache.group_heads;
  report.segment = plan.cache.segment_tokens;
  report.kv_bytes = plan.kv_bytes;
  report.host_share = plan.host_share;
  report.weight_layers = plan.weight_layers;
  report.streamed_weight_bytes = plan.streamed_weight_bytes;
  report.disk_layers = DiskLayers(
      StreamedLayers(blueprint.request.shape.layers, plan.weight_layers), plan.disk_layers);
  report.disk_weight_bytes = plan.disk_weight_bytes;
  report.slab_bytes = plan.slab_bytes;
  report.x_slabs = plan.x_slabs;
  const int64_t slabs = plan.slabs[0] + plan.slabs[1] + plan.slabs[2] + plan.x_slabs;
  if (plan.x_slabs > 0) {
    report.recompute_share = static_cast<double>(plan.x_slabs) / static_cast<double>(slabs);
  }
  report.staging_slabs = plan.cache.staging_slabs;
  std::copy(std::begin(plan.slabs), std::end(plan.slabs), std::begin(report.slabs));
  for (const plan::MemoryRow& row : plan.memory) {
    report.memory.push_back({TierName(row.tier), row.tag, row.bytes});
    const bool ram =
        row.tier == Tier::kHost || (row.tier == Tier::kDevice && !blueprint.own_memory);
    if (ram) report.memory_bytes += row.bytes;
  }
  report.kv_encoding = EncodingName(blueprint.layout.kernels.encoding);
  report.kv_bytes_per_token = blueprint.kv_bytes_per_token;
  report.reasons = plan.reasons;
  if (!blueprint.encoding_reason.empty()) report.reasons.push_back(blueprint.encoding_reason);
  report.selection = SelectionOf(blueprint);
  report.page_cache = PageCacheOf(blueprint);
  report.eviction = EvictionReportOf(blueprint);
  report.salience = SalienceReportOf(blueprint);
  if (report.salience.has_value()) report.reasons.push_back(SalienceReason(*report.salience));
  if (report.selection.has_value() && report.selection->share < 1.0) {
    report.reasons.push_back(SelectionReason(*report.selection));
  }
  for (const std::string& reason : {LosslessReason(blueprint.layout.store.format),
                                    RenewalReason(blueprint), DraftReason(blueprint)}) {
    if (!reason.empty()) report.reasons.push_back(reason);
  }
  if (report.selection.has_value() && report.selection->reach) {
    report.reasons.push_back(ReachReason(*report.selection));
  }
  if (const SelfExtend& extend = blueprint.layout.executor.self_extend; extend.on()) {
    report.reasons.push_back(SelfExtendReason(extend));
  }
  if (report.selection.has_value() && report.selection->from > 0) {
    report.reasons.push_back(
        fmt::format("sequences of up to {} tokens are read whole, which is faster here",
                    report.selection->from));
  }
  report.cut_notice = plan.cut_notice;
  report.smallest_gpu_memory = smallest.device;
  report.smallest_kv_memory = smallest.kv;
  report.smallest_host_memory = smallest.host;
  report.smallest_disk_memory = smallest.disk;
  return report;
}

Prediction PredictionOf(const Blueprint& blueprint, const hardware::ChosenProfile& profile) {
  const plan::Plan& plan = blueprint.plan;
  const std::vector<int64_t>& lengths = blueprint.request.lengths;
  Prediction prediction;
  prediction.machine = profile.machine.name;
  prediction.origin = profile.origin;
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += length;
  const auto fill = [](const plan::StepTime& time, double made, PhasePrediction* phase) {
    phase->seconds = time.seconds;
    phase->tokens_per_second = time.seconds > 0.0 ? made / time.seconds : 0.0;
    phase->limit = plan::CostLaneName(time.limit());
    for (int lane = 0; lane < plan::kCostLanes; ++lane) {
      if (time.busy[lane] <= 0.0) continue;
      phase->lanes.emplace_back(plan::CostLaneName(static_cast<plan::CostLane>(lane)),
                                time.busy[lane]);
    }
  };
  fill(plan.prefill, static_cast<double>(tokens), &prediction.prefill);
  fill(plan.decode, static_cast<double>(lengths.size()), &prediction.decode);
  const plan::PlanRequest& request = blueprint.request;
  if (!PredictsDrafts(request) || request.machine == nullptr) return prediction;
  for (const double accepted : {0.5, 0.7, 0.9}) {
    const plan::DraftSpeed speed = plan::PredictDrafts(request, plan, lengths, accepted);
    prediction.drafts.push_back(
        {accepted, speed.drafts, static_cast<double>(lengths.size()) / speed.seconds});
  }
  return prediction;
}

namespace {

// Of a token of each sequence; with drafts where a test says how many of them are right.
double TokenSeconds(const MachineProfile& machine, const Blueprint& blueprint,
                    const std::vector<int64_t>& lengths) {
  const std::optional<double>& accepted = blueprint.request.drafts.accepted;
  if (!accepted.has_value() || !PredictsDrafts(blueprint.request)) {
    return plan::DecodeAt(machine, blueprint.request, blueprint.plan, lengths).seconds;
  }
  plan::PlanRequest request = blueprint.request;
  request.machine = &machine;
  return plan::PredictDrafts(request, blueprint.plan, lengths, *accepted).seconds;
}

}  // namespace

double PhaseSeconds(const MachineProfile& machine, const Blueprint& blueprint, const Phase& phase) {
  const plan::PlanRequest& request = blueprint.request;
  const plan::Plan& plan = blueprint.plan;
  const plan::Subject subject = plan::SubjectOf(request, plan.cache);
  const plan::Execution run = plan::ExecutionOf(plan, request.lengths);
  double seconds = 0.0;
  const bool whole = std::all_of(phase.prefixes.begin(), phase.prefixes.end(),
                                 [](int64_t prefix) { return prefix == 0; });
  if (phase.decode_steps == 0 && whole) {
    seconds = plan::PredictPrefills(machine, subject, run, phase.lengths).seconds;
  } else if (phase.decode_steps == 0) {
    for (size_t i = 0; i < phase.lengths.size(); ++i) {
      const int64_t prefix = i < phase.prefixes.size() ? phase.prefixes[i] : 0;
      seconds +=
          plan::PredictPrefill(machine, subject, run, prefix, phase.lengths[i] - prefix).seconds;
    }
  } else {
    // Time is linear in the length but for pages that close: the middle step is the mean.
    std::vector<int64_t> lengths = phase.lengths;
    for (int64_t& length : lengths) length += phase.decode_steps / 2;
    seconds = static_cast<double>(phase.decode_steps) * TokenSeconds(machine, blueprint, lengths);
  }
  return seconds;
}

}  // namespace headway
