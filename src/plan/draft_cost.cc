#include "plan/draft_cost.h"

#include <algorithm>

#include "plan/cost.h"

namespace headway::plan {
namespace {

// Tokens of a page that steps without drafts decode: none closes with a draft in it.
constexpr double kAloneOfPage = 2.0;

// A step that verifies so many drafts of each sequence. The host's share follows its lanes, and its
// cores are slower for several tokens.
double VerifySeconds(const PlanRequest& request, const Plan& plan,
                     const std::vector<int64_t>& lengths, int64_t drafts) {
  constexpr int kShares = 16;
  const Subject subject = SubjectOf(request, plan.cache);
  std::vector<SequenceStep> entries;
  for (const int64_t length : lengths) entries.push_back({length, 1, drafts});
  const Execution run = ExecutionOf(plan, request.lengths);
  double least = 0.0;
  for (int i = kShares; i > kShares / 2; --i) {
    Execution some = run;
    some.split.host = run.split.host * i / kShares;
    some.split.stream += run.split.host - some.split.host;
    const double seconds =
        PredictStep(*request.machine, subject, some, entries, LogitsWanted::kYes).seconds;
    if (i == kShares || seconds < least) least = seconds;
    if (run.split.host <= 0.0) break;
  }
  return least;
}

// A draft of each sequence.
double MakeSeconds(const PlanRequest& request, const Plan& plan,
                   const std::vector<int64_t>& lengths) {
  if (request.drafts.chosen.keys <= 0.0) return request.drafts.seconds;
  PlanRequest drafting = request;
  drafting.selection = request.drafts.chosen;
  return DecodeAt(*request.machine, drafting, plan, lengths).seconds;
}

}  // namespace

DraftSpeed PredictDrafts(const PlanRequest& request, const Plan& plan,
                         const std::vector<int64_t>& lengths, double accepted) {
  const double plain = DecodeAt(*request.machine, request, plan, lengths).seconds;
  const double made = MakeSeconds(request, plan, lengths);
  const auto page = static_cast<double>(request.page_slots);
  DraftSpeed best = {accepted, 0, plain};
  double tokens = 1.0, right = 1.0;
  for (int64_t drafts = 1; drafts <= request.drafts.most; ++drafts) {
    right *= accepted;
    tokens += right;
    const double step =
        VerifySeconds(request, plan, lengths, drafts) + static_cast<double>(drafts) * made;
    const double seconds = ((page - kAloneOfPage) * step / tokens + kAloneOfPage * plain) / page;
    if (seconds < best.seconds) best = {accepted, drafts, seconds};
  }
  return best;
}

}  // namespace headway::plan
