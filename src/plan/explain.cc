// What would make a plan faster, found by planning again: no second model of what matters.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "plan/plan.h"

namespace headway::plan {
namespace {

constexpr double kWorthSaying = 0.005;  // of a step's time

Curve Faster(Curve curve, double factor) {
  for (auto& point : curve.points) point.second *= factor;
  return curve;
}

// "decode 3.2 instead of 2.9 tokens a second (+10 %)"; empty for what changes next to nothing.
std::string Gain(const char* phase, double tokens, double before, double after) {
  if (before <= 0.0 || after <= 0.0 || before / after < 1.0 + kWorthSaying) return "";
  const auto rate = [tokens](double seconds) {
    const double value = tokens / seconds;
    return value < 1000.0 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value);
  };
  return fmt::format("{} {} instead of {} tokens a second (+{:.0f} %)", phase, rate(after),
                     rate(before), 100.0 * (before / after - 1.0));
}

}  // namespace

std::vector<std::string> ExplainSpeed(const PlanRequest& request, const Plan& plan) {
  std::vector<std::string> sentences;
  if (request.machine == nullptr) return sentences;
  const auto sequences = static_cast<double>(request.lengths.size());
  double tokens = 0.0;
  for (int64_t length : request.lengths) tokens += static_cast<double>(length);
  const auto add = [&](const std::string& what, const PlanRequest& changed) {
    const Result<Plan> faster = MakePlan(changed);
    if (!faster.ok()) return;
    const std::string prefill =
        Gain("prefill", tokens, plan.prefill.seconds, faster->prefill.seconds);
    const std::string decode =
        Gain("decode", sequences, plan.decode.seconds, faster->decode.seconds);
    std::string gains = prefill;
    if (!prefill.empty() && !decode.empty()) gains += "; ";
    gains += decode;
    sentences.push_back(what + ": " + (gains.empty() ? "no faster" : gains));
  };
  const bool bounded = request.budgets.device < std::numeric_limits<int64_t>::max();
  const bool streams_weights = plan.streamed_weight_bytes > 0;
  const bool streams = plan.slabs[1] + plan.slabs[2] > 0 || streams_weights;
  // A budget that is not given does not bind.
  const auto raise = [](int64_t* budget) {
    if (*budget < std::numeric_limits<int64_t>::max() - kGiB) *budget += kGiB;
  };
  if (streams && (request.keep_on_device || streams_weights)) {
    PlanRequest more = request;
    raise(&more.budgets.device);
    raise(&more.budgets.kv);
    add(bounded ? "1 GiB more on the GPU" : "1 GiB more for the fast tier", more);
  }
  const bool reads_disk = plan.slabs[2] > 0 || plan.disk_layers > 0;
  if (reads_disk) {
    PlanRequest more = request;
    raise(&more.budgets.host);
    add("1 GiB more of host memory", more);
  }
  const auto with = [&](const std::string& what, const auto& change) {
    MachineProfile machine = *request.machine;
    change(machine);
    PlanRequest changed = request;
    changed.machine = &machine;
    add(what, changed);
  };
  if (streams && request.machine->own_memory) {
    with("a bus twice as fast", [](MachineProfile& m) {
      m.host_to_device = Faster(m.host_to_device, 2.0);
      m.device_to_host = Faster(m.device_to_host, 2.0);
      m.both_directions *= 2.0;
      m.host_to_device_reading *= 2.0;
    });
  }
  if (plan.host_share > 0.0) {
    with("host memory twice as fast", [](MachineProfile& m) {
      m.host_read = Faster(m.host_read, 2.0);
      m.host_read_copying = Faster(m.host_read_copying, 2.0);
    });
  }
  if (reads_disk) {
    with("a disk twice as fast", [](MachineProfile& m) {
      m.disk_read *= 2.0;
      m.disk_write *= 2.0;
    });
  }
  with("device memory twice as fast", [](MachineProfile& m) {
    m.device_read *= 2.0;
    m.decode_attention = Faster(m.decode_attention, 2.0);
  });
  with("arithmetic twice as fast", [](MachineProfile& m) {
    m.gemm = Faster(m.gemm, 2.0);
    m.attention = Faster(m.attention, 2.0);
  });
  return sentences;
}

}  // namespace headway::plan
