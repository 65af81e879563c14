#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "headway/plan.h"
#include "plan/choose.h"
#include "plan/fit.h"
#include "plan/selection_cost.h"
#include "plan/words.h"

namespace headway::plan {
namespace {

Status CheckRequest(const PlanRequest& request) {
  const FixedCut& fixed = request.fixed;
  const int64_t chunk = fixed.chunk.value_or(1), segment = fixed.segment_tokens.value_or(0);
  if (chunk < 1 || fixed.group_heads.value_or(1) < 1 || segment < 0) {
    return Status(StatusCode::kInvalidArgument, "chunk, head group and segment must be positive");
  }
  if (std::max(chunk, segment) > kMaxLength) {
    return Status(StatusCode::kInvalidArgument,
                  "a chunk or segment has at most " + std::to_string(kMaxLength) + " tokens");
  }
  if (segment % request.page_slots != 0) {
    return Status(StatusCode::kInvalidArgument, "a segment of " + std::to_string(segment) +
                                                    " tokens is not a multiple of the page's " +
                                                    std::to_string(request.page_slots) + " slots");
  }
  if (fixed.staging_slabs.value_or(0) < 0) {
    return Status(StatusCode::kInvalidArgument, "staging buffers cannot be fewer than 0");
  }
  for (int64_t length : request.lengths) {
    if (length <= 0) return Status(StatusCode::kInvalidArgument, "a sequence has no tokens");
  }
  return OkStatus();
}

void FillTable(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const CacheBytes bytes = request.costs.cache(plan->cache);
  const auto add = [&](Tier tier, const char* tag, int64_t n) {
    if (n > 0) plan->memory.push_back({tier, tag, n});
  };
  plan->slab_bytes = bytes.slab;
  std::copy(std::begin(fit.slabs), std::end(fit.slabs), std::begin(plan->slabs));
  plan->x_slabs = fit.x_slabs;
  plan->listed_slabs = fit.listed_slabs;
  plan->listed_steps = fit.listed_steps;
  plan->page_cache = fit.page_cache;
  plan->page_cache_steps = PageCacheSteps(request, fit);
  if (IsOfCache(request.found, plan->page_cache_steps)) plan->found = request.found;
  add(Tier::kDevice, "driver and libraries", request.driver_bytes);
  add(Tier::kDevice, "page tables of host memory", fit.page_tables);
  const WeightSplit weights = SplitWeights(request, fit.weight_layers, fit.disk_layers);
  add(Tier::kDevice, "weights", weights.resident);
  add(Tier::kDevice, "weights: buffers", weights.buffers);
  add(Tier::kDevice, "activations", request.costs.activations(plan->cache));
  add(Tier::kDevice, "workspace", request.costs.workspace(plan->cache));
  add(Tier::kDevice, "KV: open pages", bytes.open_pages);
  add(Tier::kDevice, "KV: append buffer", bytes.append_buffer);
  add(Tier::kDevice, "KV: streaming heads", bytes.streaming_heads);
  add(Tier::kDevice, "KV: staging", bytes.staging);
  add(Tier::kDevice, "KV: summaries", bytes.summaries);
  add(Tier::kDevice, "KV: keys in 2 bits", bytes.sketches);
  add(Tier::kDevice, "KV: page cache", fit.page_cache);
  add(Tier::kDevice, "KV: kept tokens", bytes.kept);
  add(Tier::kDevice, "KV: resident slabs", fit.slabs[0] * bytes.slab);
  const std::vector<MemoryRow>& beside = request.beside.rows;
  plan->memory.insert(plan->memory.end(), beside.begin(), beside.end());
  add(Tier::kHost, "weights", weights.host);
  add(Tier::kHost, "weights: bounce buffers", weights.bounce);
  add(Tier::kHost, "KV: host slabs", fit.slabs[1] * bytes.slab);
  add(Tier::kHost, "KV: host slabs of X", fit.x_slabs * bytes.x_slab);
  add(Tier::kHost, "KV: keys in 2 bits", bytes.host_sketches);
  add(Tier::kHost, "prompts between layers", bytes.hidden);
  add(Tier::kHost, request.kept.plain ? "KV: kept tokens" : "KV: demoted tokens", bytes.on_host);
  add(Tier::kHost, "KV: bounce buffers", fit.bounce);
  add(Tier::kHost, "KV: pages from disk", fit.listed_slabs * bytes.slab);
  add(Tier::kHost, "observed weights", bytes.kept_host);
  add(Tier::kHost, "program, tokenizer, text", request.other_bytes);
  const int64_t apart = std::min(weights.disk, fit.disk_layers * request.layer_disk_bytes);
  add(Tier::kDisk, "weights, in the model's files", weights.disk - apart);
  add(Tier::kDisk, "weights", apart);
  add(Tier::kDisk, "KV: disk slabs", fit.slabs[2] * bytes.slab);
}

}  // namespace

int64_t Plan::Bytes(Tier tier) const {
  int64_t sum = 0;
  for (const MemoryRow& row : memory) sum += row.tier == tier ? row.bytes : 0;
  return sum;
}

Result<Plan> MakePlan(const PlanRequest& request) {
  Result<Plan> plan = MakeSilentPlan(request);
  if (!plan.ok())
    return plan.status().code() == StatusCode::kOutOfBudget ? DoesNotFit(request) : plan;
  GiveReasons(request, TryFit(request, plan->cache), &*plan);
  CompareWithResident(request, &*plan);
  return plan;
}

Result<Plan> MakeSilentPlan(const PlanRequest& request) {
  if (Status s = CheckRequest(request); !s.ok()) return s;
  const std::optional<ScoredCut> chosen = ChooseCut(request);
  if (!chosen.has_value()) return Status(StatusCode::kOutOfBudget, "no cut fits");
  Plan plan;
  plan.cache = chosen->choice;
  plan.host_share = chosen->host_share;
  const Fit fit = TryFit(request, plan.cache);
  plan.weight_layers = fit.weight_layers;
  const WeightSplit weights = SplitWeights(request, fit.weight_layers, fit.disk_layers);
  plan.streamed_weight_bytes = weights.streamed();
  plan.disk_layers = fit.disk_layers;
  plan.disk_weight_bytes = weights.disk;
  const WeightShares shares = SharesOf(request, fit);
  plan.weights_streamed = shares.streamed;
  plan.weights_on_disk = shares.on_disk;
  plan.weight_code = shares.code;
  FillTable(request, fit, &plan);
  const double token_bytes =
      SubjectOf(request, plan.cache).closed_bytes * static_cast<double>(SlabHeads(request));
  plan.x_segments = XSegments(plan.cache.recompute, request.lengths, plan.cache.segment_tokens);
  plan.gather_tokens = GatherTokens(plan.cache, request.lengths);
  const int64_t x_bytes = int64_t{request.shape.layers} * request.shape.d_model *
                          static_cast<int64_t>(DTypeBytes(request.shape.dtype));
  for (size_t i = 0; i < request.lengths.size(); ++i) {
    const int64_t of_x =
        std::min(request.lengths[i], plan.x_segments[i] * plan.cache.segment_tokens);
    plan.kv_bytes +=
        std::llround(static_cast<double>(request.lengths[i] - of_x) * token_bytes) + of_x * x_bytes;
  }
  plan.kv_bytes += request.costs.cache(plan.cache).streaming_heads;
  if (request.machine != nullptr) Predict(request, &plan);
  return plan;
}

void Predict(const PlanRequest& request, Plan* plan) {
  const Execution run = ExecutionOf(*plan, request.lengths);
  const Subject subject = SubjectOf(request, plan->cache);
  plan->prefill = PredictPrefills(*request.machine, subject, run, request.lengths);
  plan->decode = DecodeAt(*request.machine, request, *plan,
                          request.kept.count ? request.kept.lengths : request.lengths);
}

namespace {

// What choosing tokens on the host, and reading these where they lie, adds to a decode step:
// attention waits for both.
double ChosenOnHostSeconds(const MachineProfile& machine, const KeptTokens& kept, Subject subject,
                           std::span<const int64_t> lengths) {
  if (!kept.best_of || !kept.on_host) return 0.0;
  subject.selection.summary_bytes = kept.summary_bytes;
  double seconds = 0.0;
  for (const int64_t length : lengths) {
    const auto all = static_cast<double>(kept.best_of(length));
    const double bytes =
        static_cast<double>(kept.on_host(length)) * subject.shape.kv_heads * HeadBytes(subject);
    if (all > 0.0) seconds += ChoiceSeconds(machine, subject, all) / kept.refresh;
    seconds += bytes / InPlaceRate(machine);
  }
  return seconds * subject.shape.layers;
}

// What tokens that are not encoded take more than others, in tokens that are.
int64_t MoreThanEncoded(const KeptTokens& kept, const Subject& subject, int64_t length) {
  if (!kept.plain) return 0;
  Subject plain = subject;
  plain.closed_bytes = 0.0;
  const double times = std::max(1.0, HeadBytes(plain) / HeadBytes(subject));
  return std::llround((times - 1.0) * static_cast<double>(kept.plain(length)));
}

}  // namespace

StepTime DecodeAt(const MachineProfile& machine, const PlanRequest& request, const Plan& plan,
                  const std::vector<int64_t>& lengths) {
  Subject subject = SubjectOf(request, plan.cache);
  if (!request.kept.count) {
    return PredictDecode(machine, subject, ExecutionOf(plan, request.lengths), lengths);
  }
  if (request.kept.closed_bytes > 0.0) subject.closed_bytes = request.kept.closed_bytes;
  std::vector<int64_t> kept;
  int64_t on_host = 0;
  for (const int64_t length : lengths) {
    const int64_t more = MoreThanEncoded(request.kept, subject, length);
    kept.push_back(request.kept.count(length) + more);
    const int64_t there = request.kept.on_host ? request.kept.on_host(length) : 0;
    if (there > 0) on_host += there + more;
  }
  Plan steps = plan;
  std::fill(std::begin(steps.slabs), std::end(steps.slabs), 0);
  steps.slabs[static_cast<size_t>(Tier::kDevice)] =
      std::reduce(kept.begin(), kept.end(), int64_t{0}) - on_host;
  steps.slabs[static_cast<size_t>(Tier::kHost)] = on_host;
  steps.host_share = on_host > 0 ? request.kept.by_cores : 0.0;
  StepTime step = PredictDecode(machine, subject, ExecutionOf(steps, kept), kept);
  const double chosen = ChosenOnHostSeconds(machine, request.kept, subject, lengths);
  step.attention += chosen;
  step.seconds += chosen;
  step.busy[static_cast<size_t>(CostLane::kDevice)] += chosen;
  return step;
}

Execution ExecutionOf(const Plan& plan, const std::vector<int64_t>& lengths) {
  Execution run =
      ExecutionFor(plan.cache, plan.slabs, plan.x_slabs, plan.host_share,
                   {plan.weights_streamed, plan.weights_on_disk, plan.weight_code}, lengths);
  run.page_cache_steps = plan.page_cache_steps;
  run.found = plan.found;
  run.listed_steps = plan.listed_steps;
  return run;
}

Subject SubjectOf(const PlanRequest& request, const CacheChoice& choice) {
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  // Slabs move as they are: encoded, and with what pads their pages.
  const auto slots = static_cast<double>(choice.segment_tokens * choice.group_heads);
  KeySelection selection = request.selection;
  selection.sketches = choice.sketches;
  return {request.shape,
          request.window,
          static_cast<double>(SlabHeads(request)) / static_cast<double>(heads),
          static_cast<double>(request.costs.cache(choice).slab) / slots,
          selection,
          request.lossless,
          request.group};
}

}  // namespace headway::plan
