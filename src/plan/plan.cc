#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/bytes.h"
#include "plan/choose.h"
#include "plan/fit.h"
#include "plan/optimize.h"

namespace headway::plan {
namespace {

// Of a chunk and a segment: pages of one are counted in an int.
constexpr int64_t kMostTokens = int64_t{1} << 30;

Status CheckRequest(const PlanRequest& request) {
  const FixedCut& fixed = request.fixed;
  const int64_t chunk = fixed.chunk.value_or(1), segment = fixed.segment_tokens.value_or(0);
  if (chunk < 1 || fixed.group_heads.value_or(1) < 1 || segment < 0) {
    return Status(StatusCode::kInvalidArgument, "chunk, head group and segment must be positive");
  }
  if (std::max(chunk, segment) > kMostTokens) {
    return Status(StatusCode::kInvalidArgument,
                  "a chunk or segment has at most " + std::to_string(kMostTokens) + " tokens");
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

bool Fits(PlanRequest request, Budgets budgets) {
  request.budgets = budgets;
  const std::vector<CacheChoice> candidates = Candidates(request);
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](const CacheChoice& choice) { return TryFit(request, choice).ok; });
}

// The smallest value of one budget with which the request fits, by bisection over 4 KiB.
int64_t SmallestOf(const PlanRequest& request, int64_t Budgets::*field) {
  constexpr int64_t kStep = 4096;
  Budgets budgets = request.budgets;
  int64_t high = int64_t{1} << 52;
  budgets.*field = high;
  if (!Fits(request, budgets)) return -1;
  int64_t low = 0;  // multiples of kStep; `high` fits
  budgets.*field = 0;
  if (Fits(request, budgets)) return 0;
  while (high - low > kStep) {
    const int64_t middle = RoundUp((low + high) / 2, kStep);
    if (middle >= high) break;
    budgets.*field = middle;
    (Fits(request, budgets) ? high : low) = middle;
  }
  return high;
}

// The longest length for all sequences that fits as things are, in pages; 0: none.
int64_t LongestThatFits(PlanRequest request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  const std::vector<int64_t> lengths = request.lengths;
  int64_t low = 0, high = CeilDiv(longest, request.page_slots);  // pages; `low` fits
  while (low + 1 < high) {
    const int64_t middle = (low + high) / 2;
    for (size_t i = 0; i < lengths.size(); ++i) {
      request.lengths[i] = std::min(lengths[i], middle * request.page_slots);
    }
    (Fits(request, request.budgets) ? low : high) = middle;
  }
  return low * request.page_slots;
}

// Each budget that alone would make the request fit, the cheapest first: a byte of disk costs about
// a fiftieth of one of RAM, and that a twentieth of one of a GPU.
std::vector<Remedy> BudgetsThatWouldDo(const PlanRequest& request) {
  const SmallestBudgets smallest = FindSmallestBudgets(request);
  struct Offer {
    double price;
    Remedy remedy;
  };
  std::vector<Offer> offers;
  const auto offer = [&](Option budget, int64_t have, int64_t need, double price) {
    // No host tier may do where a small one, which pays for the disk's buffers, does not.
    if (need < 0 || (need > 0 && need <= have)) return;
    offers.push_back({price * static_cast<double>(need - have), {budget, need, have}});
  };
  const bool own = request.budgets.device != kUnbounded;
  if (own) offer(Option::kGpuMemory, request.budgets.device, smallest.device, 1000.0);
  offer(Option::kKvMemory, request.budgets.kv, smallest.kv, own ? 1000.0 : 50.0);
  offer(Option::kHostMemory, request.budgets.host, smallest.host, 50.0);
  offer(Option::kDiskMemory, request.budgets.disk, smallest.disk, 1.0);
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.price < b.price; });
  std::vector<Remedy> remedies;
  for (const Offer& o : offers) remedies.push_back(o.remedy);
  return remedies;
}

// "kv_memory 2816KiB (2.8 MiB, now 500.0 KiB)"
Message Say(const Remedy& remedy) {
  return {remedy.budget, " " + std::to_string(CeilDiv(remedy.need, kKiB)) + "KiB (" +
                             FormatBytes(remedy.need) + ", now " + FormatBytes(remedy.have) + ")"};
}

Status DoesNotFit(const PlanRequest& request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  const bool streams = request.weight_layers.value_or(request.shape.layers) < request.shape.layers;
  Refusal refusal;
  refusal.remedies = BudgetsThatWouldDo(request);
  Message& message = refusal.message;
  message = {std::string(streams ? "weights that stream and the" : "the") + " KV cache of " +
             std::to_string(longest) + " tokens" +
             (request.lengths.size() > 1
                  ? " (longest of " + std::to_string(request.lengths.size()) + " sequences)"
                  : "") +
             (streams ? " do" : " does") + " not fit; one of these would do:"};
  for (size_t i = 0; i < refusal.remedies.size(); ++i) {
    message += {i == 0 ? " " : ", or "};
    message += Say(refusal.remedies[i]);
  }
  if (refusal.remedies.empty()) {
    message += {" no single budget alone; raise ", Option::kKvMemory, " together with another"};
  }
  if (refusal.remedies.size() > 1) message += {"; the first is the cheapest"};
  if (const int64_t tokens = LongestThatFits(request); tokens > 0) {
    refusal.longest = tokens;
    message += {"; or a context of at most " + std::to_string(tokens) + " tokens"};
  }
  return Status(StatusCode::kOutOfBudget, std::move(refusal));
}

void FillTable(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const CacheBytes bytes = request.costs.cache(plan->cache);
  const auto add = [&](Tier tier, const char* tag, int64_t n) {
    if (n > 0) plan->memory.push_back({tier, tag, n});
  };
  plan->slab_bytes = bytes.slab;
  std::copy(std::begin(fit.slabs), std::end(fit.slabs), std::begin(plan->slabs));
  plan->x_slabs = fit.x_slabs;
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
  add(Tier::kDevice, "KV: resident slabs", fit.slabs[0] * bytes.slab);
  add(Tier::kHost, "weights", weights.host);
  add(Tier::kHost, "weights: bounce buffers", weights.bounce);
  add(Tier::kHost, "KV: host slabs", fit.slabs[1] * bytes.slab);
  add(Tier::kHost, "KV: host slabs of X", fit.x_slabs * bytes.x_slab);
  add(Tier::kHost, "KV: bounce buffers", fit.bounce);
  add(Tier::kHost, "program, tokenizer, text", request.other_bytes);
  add(Tier::kDisk, request.weights_in_files ? "weights, in the model's files" : "weights",
      weights.disk);
  add(Tier::kDisk, "KV: disk slabs", fit.slabs[2] * bytes.slab);
}

// Why keys and values are recomputed, or not.
void ExplainRecompute(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const int64_t width = static_cast<int64_t>(DTypeBytes(request.shape.dtype));
  const std::string bytes =
      "of a token and layer X is " + FormatBytes(request.shape.d_model * width) + ", K and V are " +
      FormatBytes(2 * int64_t{request.shape.kv_heads} * request.shape.head_dim * width);
  if (fit.x_slabs > 0) {
    plan->reasons.push_back(
        (request.recompute ? "keys and values are recomputed where that takes the device less time "
                             "than their copy takes the bus: "
                           : "so much is recomputed as was asked for: ") +
        bytes);
  } else if (!request.recompute || fit.slabs[1] == 0) {
    return;
  } else if (!XIsSmaller(request.shape)) {
    plan->reasons.push_back("nothing is recomputed: " + bytes + ", so that it never pays");
  } else if (request.machine == nullptr) {
    plan->reasons.push_back(
        "nothing is recomputed: without a machine's profile it is not known whether that pays");
  } else {
    plan->reasons.push_back(
        "nothing is recomputed: the device would take longer than the copies "
        "that it saves");
  }
}

std::string WhyNoLargerGroup(const PlanRequest& request, const Fit& fit, const Plan& plan) {
  if (request.machine == nullptr) {
    return "larger staging buffers would take over half of the fast tier or not fit";
  }
  CacheChoice larger = plan.cache;
  larger.group_heads = std::min(2 * larger.group_heads, request.shape.kv_heads);
  if (!TryFit(request, larger).ok) return "larger staging buffers would not fit";
  if (fit.slabs[0] > 0) {
    return "larger staging buffers would leave less to resident keys than they gain";
  }
  return request.slab_heads.empty() ? "predicted to be faster than a larger one"
                                    : "larger ones would leave more of the slabs empty";
}

// Why a cut's chunk or segment is shorter than `longer`'s, which is the next longer one.
std::string WhyNoLonger(const PlanRequest& request, const CacheChoice& longer,
                        const std::string& what_does_not_fit) {
  if (request.machine != nullptr && TryFit(request, longer).ok) {
    return "predicted to be faster than a longer one";
  }
  return what_does_not_fit + " of a longer one would not fit";
}

void Explain(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const auto say = [&](std::string sentence) { plan->reasons.push_back(std::move(sentence)); };
  if (plan->streamed_weight_bytes > 0) {
    const int layers = request.shape.layers;
    const bool all_on_disk = fit.weight_layers + fit.disk_layers == layers;
    say("the weights of " + std::to_string(layers - fit.weight_layers) + " of " +
        std::to_string(layers) + " layers stream from " + (all_on_disk ? "disk" : "host memory") +
        ", " + FormatBytes(plan->streamed_weight_bytes) + " in each step of any size" +
        (request.weight_layers.has_value()
             ? ""
             : "; they do not fit, and those that do come before keys and "
               "values, since a step needs all of them from the first on"));
  }
  if (fit.disk_layers > 0) {
    say("host memory does not hold those of " + std::to_string(fit.disk_layers) +
        " layers, evenly among the others: each step reads their " +
        FormatBytes(plan->disk_weight_bytes) + " from " +
        (request.weights_in_files ? "the model's files" : "a temporary file") +
        " again, a layer ahead");
  }
  if (!request.fixed.chunk.has_value() && plan->cache.chunk > AutoChunk(request)) {
    say("chunk " + std::to_string(plan->cache.chunk) +
        ": the weights cross the bus once for more tokens");
  }
  const int64_t total = fit.slabs[0] + fit.slabs[1] + fit.slabs[2] + fit.x_slabs;
  if (fit.slabs[0] == total) {
    say("everything is resident: the KV cache fits in the fast tier");
  } else {
    const auto share = [&](int64_t slabs) {
      const double percent =
          100.0 * static_cast<double>(slabs) / static_cast<double>(std::max<int64_t>(total, 1));
      return std::to_string(std::lround(percent)) + " %";
    };
    say("of the closed KV " + share(fit.slabs[0]) + " is resident, " + share(fit.slabs[1]) +
        " in host memory, " + share(fit.slabs[2]) + " on disk" +
        (fit.x_slabs > 0 ? ", " + share(fit.x_slabs) + " recomputed from X in host memory" : ""));
  }
  ExplainRecompute(request, fit, plan);
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  if (const int64_t streaming = heads - SlabHeads(request); streaming > 0) {
    say(std::to_string(streaming) + " of " + std::to_string(heads) +
        " KV heads stream: they keep sink and recent tokens, on the device, and no others");
  }
  if (!request.fixed.group_heads.has_value() && plan->cache.group_heads < request.shape.kv_heads) {
    say("head group " + std::to_string(plan->cache.group_heads) + " of " +
        std::to_string(request.shape.kv_heads) + ": " + WhyNoLargerGroup(request, fit, *plan));
  }
  if (!request.fixed.chunk.has_value() && plan->cache.chunk < AutoChunk(request)) {
    CacheChoice longer = plan->cache;
    longer.chunk *= 2;
    say("chunk " + std::to_string(plan->cache.chunk) + ": " +
        WhyNoLonger(request, longer, "the append buffer"));
  }
  if (plan->host_share > 0.0) {
    const int64_t percent = std::lround(100.0 * plan->host_share);
    const char* why = !request.host_attention           ? ", as asked"
                      : percent < 100                   ? ", so that they end with the bus"
                      : plan->streamed_weight_bytes > 0 ? ": the bus brings weights"
                                                        : "";
    say("the host's cores attend to " + std::to_string(percent) + " % of what is in host memory" +
        why);
  }
  if (plan->cache.staging_slabs > kStaging && fit.slabs[2] > 0) {
    say(std::to_string(plan->cache.staging_slabs) +
        " staging buffers: most is read from disk, which is faster with many requests");
  }
  if (!request.fixed.segment_tokens.has_value() && plan->cache.recompute == 0.0 &&
      plan->cache.segment_tokens < AutoSegment(request)) {
    CacheChoice longer = plan->cache;
    longer.segment_tokens *= 2;
    say("segment " + std::to_string(plan->cache.segment_tokens) + ": " +
        WhyNoLonger(request, longer, "the staging buffers"));
  }
}

// The same with everything resident.
PlanRequest WithoutBudgets(PlanRequest request) {
  request.budgets = {kUnbounded, kUnbounded, 0, kUnbounded};
  request.keep_on_device = request.keep_on_host = true;
  request.weight_layers = request.disk_layers = std::nullopt;
  return request;
}

// Whether the plan cuts the cache as an all-resident run does, and what follows where it does not.
void CompareWithResident(const PlanRequest& request, Plan* plan) {
  const std::optional<Scored> resident = ChooseCut(WithoutBudgets(request));
  if (!resident.has_value() || SameCut(request, plan->cache, resident->choice)) return;
  const CacheChoice& there = resident->choice;
  std::string cut;
  const auto add = [&](const char* what, int64_t tokens, int64_t instead_of) {
    if (tokens == instead_of) return;
    cut += (cut.empty() ? "" : " and ") + std::string(what) + " of " + std::to_string(tokens) +
           " tokens instead of " + std::to_string(instead_of);
  };
  add("chunks", plan->cache.chunk, there.chunk);
  add("segments", plan->cache.segment_tokens, there.segment_tokens);
  PlanRequest same = request;
  same.fixed.chunk = there.chunk;
  same.fixed.segment_tokens = there.segment_tokens;
  plan->cut_notice = {"under these limits the cache is cut into " + cut +
                      ": sums are taken in another order, so the text may differ from that of an "
                      "all-resident run by rounding; "};
  if (Fits(same, same.budgets)) {
    plan->cut_notice += {request.machine != nullptr ? "predicted to be faster than the same cut"
                                                    : "the same cut would hold fewer weights",
                         ", which ",
                         Option::kChunk,
                         " " + std::to_string(there.chunk) + " ",
                         Option::kSegment,
                         " " + std::to_string(there.segment_tokens) + " would keep"};
    return;
  }
  const std::vector<Remedy> offers = BudgetsThatWouldDo(same);
  if (offers.empty()) {
    plan->cut_notice += {"no single budget would hold the same cut"};
  } else {
    plan->cut_notice += Say(offers.front());
    plan->cut_notice += {" would hold the same cut"};
  }
}

}  // namespace

int64_t Plan::Bytes(Tier tier) const {
  int64_t sum = 0;
  for (const MemoryRow& row : memory) sum += row.tier == tier ? row.bytes : 0;
  return sum;
}

Result<Plan> MakePlan(const PlanRequest& request) {
  if (Status s = CheckRequest(request); !s.ok()) return s;
  const std::optional<Scored> chosen = ChooseCut(request);
  if (!chosen.has_value()) return DoesNotFit(request);
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
  FillTable(request, fit, &plan);
  const double token_bytes =
      SubjectOf(request, plan.cache).closed_bytes * static_cast<double>(SlabHeads(request));
  plan.x_segments = XSegments(plan.cache.recompute, request.lengths, plan.cache.segment_tokens);
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
  Explain(request, fit, &plan);
  CompareWithResident(request, &plan);
  return plan;
}

void Predict(const PlanRequest& request, Plan* plan) {
  const Execution run = ExecutionOf(*plan, request.lengths);
  const Subject subject = SubjectOf(request, plan->cache);
  plan->prefill = PredictPrefills(*request.machine, subject, run, request.lengths);
  plan->decode = PredictDecode(*request.machine, subject, run, request.lengths);
}

Execution ExecutionOf(const Plan& plan, const std::vector<int64_t>& lengths) {
  return ExecutionFor(plan.cache, plan.slabs, plan.x_slabs, plan.host_share,
                      {plan.weights_streamed, plan.weights_on_disk}, lengths);
}

Subject SubjectOf(const PlanRequest& request, const CacheChoice& choice) {
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  // Slabs move as they are: encoded, and with what pads their pages.
  const auto slots = static_cast<double>(choice.segment_tokens * choice.group_heads);
  return {request.shape, request.window,
          static_cast<double>(SlabHeads(request)) / static_cast<double>(heads),
          static_cast<double>(request.costs.cache(choice).slab) / slots};
}

SmallestBudgets FindSmallestBudgets(const PlanRequest& request) {
  SmallestBudgets smallest;
  if (request.budgets.device != kUnbounded) smallest.device = SmallestOf(request, &Budgets::device);
  smallest.kv = SmallestOf(request, &Budgets::kv);
  smallest.host = SmallestOf(request, &Budgets::host);
  smallest.disk = SmallestOf(request, &Budgets::disk);
  return smallest;
}

}  // namespace headway::plan
