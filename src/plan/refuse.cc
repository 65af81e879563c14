// What would make a plan fit: budgets, lengths, another cut.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "plan/choose.h"
#include "plan/fit.h"
#include "plan/words.h"

namespace headway::plan {
namespace {

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

}  // namespace

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

namespace {

// The same with everything resident.
PlanRequest WithoutBudgets(PlanRequest request) {
  request.budgets = {kUnbounded, kUnbounded, 0, kUnbounded};
  request.keep_on_device = request.keep_on_host = true;
  request.weight_layers = request.disk_layers = std::nullopt;
  return request;
}

}  // namespace

void CompareWithResident(const PlanRequest& request, Plan* plan) {
  const std::optional<ScoredCut> resident = ChooseCut(WithoutBudgets(request));
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

SmallestBudgets FindSmallestBudgets(const PlanRequest& request) {
  SmallestBudgets smallest;
  if (request.budgets.device != kUnbounded) smallest.device = SmallestOf(request, &Budgets::device);
  smallest.kv = SmallestOf(request, &Budgets::kv);
  smallest.host = SmallestOf(request, &Budgets::host);
  smallest.disk = SmallestOf(request, &Budgets::disk);
  return smallest;
}

}  // namespace headway::plan
