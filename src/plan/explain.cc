// What would make a plan faster, found by planning again: no second model of what matters.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "plan/plan.h"
#include "plan/selection_cost.h"

namespace headway::plan {
namespace {

constexpr double kWorthSaying = 0.005;  // of a step's time

Curve Faster(Curve curve, double factor) {
  for (auto& point : curve.points) point.second *= factor;
  return curve;
}

// "decode 3.2 instead of 2.9 tokens a second (+10 %)"; empty for what changes next to nothing.
std::string Change(const char* phase, double tokens, double before, double after) {
  if (before <= 0.0 || after <= 0.0 || std::abs(before / after - 1.0) < kWorthSaying) return "";
  const auto rate = [tokens](double seconds) {
    const double value = tokens / seconds;
    return value < 1000.0 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value);
  };
  return fmt::format("{} {} instead of {} tokens a second ({:+.0f} %)", phase, rate(after),
                     rate(before), 100.0 * (before / after - 1.0));
}

// The same of what is faster; else empty.
std::string Gain(const char* phase, double tokens, double before, double after) {
  return after < before ? Change(phase, tokens, before, after) : "";
}

// What choosing keys is worth: the same plan, predicted with all keys.
std::string SaySelection(const PlanRequest& request, const Plan& plan) {
  PlanRequest all = request;
  all.selection = {};
  Plan exact = plan;
  Predict(all, &exact);
  double tokens = 0.0;
  for (int64_t length : request.lengths) tokens += static_cast<double>(length);
  const auto sequences = static_cast<double>(request.lengths.size());
  const auto bytes = [&](const PlanRequest& of) {
    const double read = CacheBytesRead(SubjectOf(of, plan.cache), request.lengths);
    return FormatBytes(std::llround(read / sequences));
  };
  std::string gains = Change("decode", sequences, exact.decode.seconds, plan.decode.seconds);
  if (gains.empty()) gains = "decode as fast";
  const std::string prefill =
      Change("prefill", tokens, exact.prefill.seconds, plan.prefill.seconds);
  if (!prefill.empty()) gains += "; " + prefill;
  return "choosing keys, beside this plan with all of them: " + gains +
         "; a token of a decode reads " + bytes(request) + " instead of " + bytes(all) +
         " of the cache";
}

// Where the share of chosen keys that need not cross the bus is from.
std::string SayFound(const PlanRequest& request, const Plan& plan) {
  const double share = FoundShare(request.selection, ExecutionOf(plan, request.lengths));
  const std::string found = fmt::format(
      "of the chosen keys in host memory {:.1f} % are found in the page cache, ", 100.0 * share);
  if (plan.found.tokens <= 0.0) {
    return found +
           "as assumed: no run of this model with this selection and as many lines has "
           "told yet";
  }
  return found + fmt::format(
                     "measured in earlier runs: {:.1f} % of {:.0f} tokens, beside what is "
                     "assumed, which counts as {:.0f}",
                     100.0 * plan.found.share, plan.found.tokens, kAssumedTokens);
}

// The same of pages on disk.
std::string SayListed(const PlanRequest& request, const Plan& plan) {
  return fmt::format(
      "of the listed pages on disk {:.1f} %, as assumed, are still in host memory, which has room "
      "for those of {:.1f} steps",
      100.0 * ListedPageShare(request.selection, plan.listed_steps), plan.listed_steps);
}

// Plans again with one thing changed, and says what that gives.
class Asker {
 public:
  Asker(const PlanRequest& request, const Plan& plan) : request_(request), plan_(plan) {
    for (int64_t length : request.lengths) tokens_ += static_cast<double>(length);
  }

  template <typename Change>
  void WithBudgets(const std::string& what, const Change& change) {
    PlanRequest changed = request_;
    change(changed.budgets);
    Ask(what, changed);
  }

  template <typename Change>
  void WithMachine(const std::string& what, const Change& change) {
    MachineProfile machine = *request_.machine;
    change(machine);
    PlanRequest changed = request_;
    changed.machine = &machine;
    Ask(what, changed);
  }

  std::vector<std::string> sentences() && { return std::move(sentences_); }

 private:
  void Ask(const std::string& what, const PlanRequest& changed) {
    const Result<Plan> faster = MakeSilentPlan(changed);
    if (!faster.ok()) return;
    const auto sequences = static_cast<double>(request_.lengths.size());
    const std::string prefill =
        Gain("prefill", tokens_, plan_.prefill.seconds, faster->prefill.seconds);
    const std::string decode =
        Gain("decode", sequences, plan_.decode.seconds, faster->decode.seconds);
    std::string gains = prefill;
    if (!prefill.empty() && !decode.empty()) gains += "; ";
    gains += decode;
    sentences_.push_back(what + ": " + (gains.empty() ? "no faster" : gains));
  }

  const PlanRequest& request_;
  const Plan& plan_;
  double tokens_ = 0.0;
  std::vector<std::string> sentences_;
};

// A budget that is not given does not bind.
void Raise(int64_t* budget) {
  if (*budget < std::numeric_limits<int64_t>::max() - kGiB) *budget += kGiB;
}

}  // namespace

std::vector<std::string> ExplainSpeed(const PlanRequest& request, const Plan& plan) {
  if (request.machine == nullptr) return {};
  Asker asker(request, plan);
  const bool bounded = request.budgets.device < std::numeric_limits<int64_t>::max();
  const bool streams_weights = plan.streamed_weight_bytes > 0;
  const bool streams = plan.slabs[1] + plan.slabs[2] > 0 || streams_weights;
  if (streams && (request.keep_on_device || streams_weights)) {
    asker.WithBudgets(bounded ? "1 GiB more on the GPU" : "1 GiB more for the fast tier",
                      [](Budgets& budgets) {
                        Raise(&budgets.device);
                        Raise(&budgets.kv);
                      });
  }
  const bool reads_disk = plan.slabs[2] > 0 || plan.disk_layers > 0;
  if (reads_disk) {
    asker.WithBudgets("1 GiB more of host memory", [](Budgets& budgets) { Raise(&budgets.host); });
  }
  if (streams && request.machine->own_memory) {
    asker.WithMachine("a bus twice as fast", [](MachineProfile& m) {
      m.host_to_device = Faster(m.host_to_device, 2.0);
      m.device_to_host = Faster(m.device_to_host, 2.0);
      m.both_directions *= 2.0;
      m.read_in_place *= 2.0;
      m.host_to_device_reading *= 2.0;
    });
  }
  if (plan.host_share > 0.0) {
    asker.WithMachine("host memory twice as fast", [](MachineProfile& m) {
      m.host_read = Faster(m.host_read, 2.0);
      m.host_read_copying = Faster(m.host_read_copying, 2.0);
    });
  }
  if (reads_disk) {
    asker.WithMachine("a disk twice as fast", [](MachineProfile& m) {
      m.disk_read *= 2.0;
      m.disk_write *= 2.0;
      m.disk_pieces = Faster(m.disk_pieces, 2.0);
    });
  }
  asker.WithMachine("device memory twice as fast", [](MachineProfile& m) {
    m.device_read *= 2.0;
    m.decode_attention = Faster(m.decode_attention, 2.0);
    m.selection = Faster(m.selection, 2.0);
  });
  asker.WithMachine("arithmetic twice as fast", [](MachineProfile& m) {
    m.gemm = Faster(m.gemm, 2.0);
    m.attention = Faster(m.attention, 2.0);
    m.second_look = Faster(m.second_look, 2.0);
    m.key_choice = Faster(m.key_choice, 2.0);
    m.turned_key_choice = Faster(m.turned_key_choice, 2.0);
    m.prompt_scores *= 2.0;
    m.listed_attention *= 2.0;
    m.moved_attention *= 2.0;
    m.coded_listed_attention *= 2.0;
    m.coded_moved_attention *= 2.0;
  });
  std::vector<std::string> sentences = std::move(asker).sentences();
  if (request.selection.keys > 0.0) {
    sentences.insert(sentences.begin(), SaySelection(request, plan));
    if (plan.page_cache > 0) sentences.insert(sentences.begin() + 1, SayFound(request, plan));
    if (plan.listed_slabs > 0) sentences.insert(sentences.begin() + 1, SayListed(request, plan));
  }
  return sentences;
}

}  // namespace headway::plan
