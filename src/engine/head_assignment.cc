#include "engine/head_assignment.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/refused.h"
#include "headway/types.h"
#include "kv/policy/eviction_budgets.h"

namespace headway {
namespace {

using plan::AssignmentMethod;

constexpr int kMostCopies = 4;

constexpr std::array<std::pair<AssignmentMethod, const char*>, 4> kNames = {{
    {AssignmentMethod::kBalanced, "balanced"},
    {AssignmentMethod::kFairKv, "fairkv"},
    {AssignmentMethod::kStatic, "static"},
    {AssignmentMethod::kTokens, "tokens"},
}};

// What heads keep of a prompt that is longer than any of them keeps, by the profile of the
// assignment, or that of the eviction.
kv::EvictionPolicy PolicyOfLoads(const Settings& settings) {
  kv::EvictionPolicy policy = settings.eviction;
  if (settings.assignment_shares.empty()) return policy;
  policy.profiled = true;
  policy.shares = settings.assignment_shares;
  return policy;
}

plan::HeadLoads LoadsOf(const ModelShape& shape, const kv::EvictionPolicy& policy) {
  const auto heads = static_cast<size_t>(shape.kv_heads);
  plan::HeadLoads loads(static_cast<size_t>(shape.layers), std::vector<double>(heads, 1.0));
  if (!policy.profiled) return loads;
  const std::vector<int64_t> budgets =
      kv::HeadBudgets(policy, shape.layers, shape.kv_heads, kMaxLength);
  for (size_t i = 0; i < budgets.size(); ++i) {
    loads[i / heads][i % heads] = static_cast<double>(budgets[i]);
  }
  return loads;
}

// Ranks share what heads keep of prompts; prompts themselves each of them reads.
Status CheckSharing(const EngineOptions& options, AssignmentMethod method) {
  const EngineOptions absent;
  const bool tokens = method == AssignmentMethod::kTokens;
  const int copies = options.assignment_copies;
  if (!tokens && copies == 0) return OkStatus();
  if (copies < 0 || copies > kMostCopies) {
    return Wrong(
        {Option::kAssignmentCopies, fmt::format(" {}: 0 to {} are possible", copies, kMostCopies)});
  }
  if (copies > 0 && (tokens || method == AssignmentMethod::kStatic)) {
    return Wrong({Option::kAssignmentCopies, " goes with ", Option::kAssignment,
                  " balanced or fairkv, not with " + options.assignment});
  }
  const Message asked =
      tokens ? Message{Option::kAssignment, " tokens"} : Message{Option::kAssignmentCopies};
  if (options.evict == absent.evict) {
    return Wrong(asked).Within(
        {}, {": ranks share what heads keep of prompts; it needs ", Option::kEvict});
  }
  if (options.evicted != absent.evicted) {
    return Wrong(asked).Within(
        {}, {" and ", Option::kEvicted, " demote do not go together yet; leave one of them out"});
  }
  if (!options.session.empty()) {
    return Wrong(asked).Within(
        {}, {" and ", Option::kSession, " do not go together yet; leave one of them out"});
  }
  return OkStatus();
}

}  // namespace

RankHeads HeadAssignment::Of(int rank) const {
  RankHeads heads = {static_cast<int>(loads.front().size()), rank, {}};
  if (method == AssignmentMethod::kTokens) heads.split = HeadSplit::kTokens;
  heads.ranks.resize(assignment.layers.front().loads.size());
  for (size_t of = 0; of < heads.ranks.size(); ++of) {
    for (const plan::LayerAssignment& layer : assignment.layers) {
      const auto holder = static_cast<int>(of);
      heads.ranks[of].push_back({plan::HeadsOf(layer, holder), plan::SharesOf(layer, holder)});
    }
  }
  return heads;
}

Result<AssignmentMethod> ReadAssignment(const EngineOptions& options) {
  const EngineOptions absent;
  const std::pair<bool, Option> given[] = {
      {options.assignment != absent.assignment, Option::kAssignment},
      {options.assignment_copies != absent.assignment_copies, Option::kAssignmentCopies},
      {!options.assignment_profile.empty(), Option::kAssignmentProfile}};
  for (const auto& [is_given, option] : given) {
    if (is_given && options.tensor_parallel == 1) {
      return Wrong(
          {option, " says which rank has which heads; it needs ", Option::kTensorParallel});
    }
  }
  if (!options.assignment_profile.empty() && options.evict == absent.evict) {
    return Wrong({Option::kAssignmentProfile, " says what heads keep of prompts; it needs ",
                  Option::kEvict});
  }
  for (const auto& [method, name] : kNames) {
    if (options.assignment != name) continue;
    const Status status = CheckSharing(options, method);
    return status.ok() ? Result<AssignmentMethod>(method) : status;
  }
  return Wrong({Option::kAssignment, ": unknown '" + options.assignment +
                                         "'; there are balanced, fairkv, static, tokens"});
}

const char* AssignmentName(AssignmentMethod method) {
  for (const auto& [known, name] : kNames) {
    if (known == method) return name;
  }
  return "none";
}

HeadAssignment AssignHeads(const ModelShape& shape, const Settings& settings) {
  const kv::EvictionPolicy policy = PolicyOfLoads(settings);
  HeadAssignment made;
  made.method = settings.assignment;
  made.profiled = policy.profiled;
  made.loads = LoadsOf(shape, policy);
  plan::AssignmentRequest request;
  request.loads = made.loads;
  request.ranks = settings.ranks;
  request.most_heads = CeilDiv(shape.kv_heads, settings.ranks);
  made.copies = request.copies = settings.assignment_copies;
  if (made.copies > 0 || made.method == AssignmentMethod::kTokens) ++request.most_heads;
  made.assignment = plan::Assign(request, made.method);
  made.static_busy = plan::Assign(request, AssignmentMethod::kStatic).BusyShare();
  return made;
}

RanksReport RanksReportOf(const HeadAssignment& assignment) {
  const std::vector<plan::LayerAssignment>& layers = assignment.assignment.layers;
  const size_t ranks = layers.front().loads.size();
  const double seconds = assignment.assignment.Seconds();
  RanksReport report;
  const bool shares = assignment.Of(0).Shares();
  report.assignment = AssignmentName(assignment.method);
  report.copies = assignment.copies;
  report.profiled = assignment.profiled;
  report.busy_share = assignment.assignment.BusyShare();
  report.static_busy_share = assignment.static_busy;
  report.keys.assign(ranks, 0.0);
  for (const plan::LayerAssignment& layer : layers) {
    std::vector<std::vector<int>>& heads = report.heads.emplace_back();
    for (size_t rank = 0; rank < ranks; ++rank) {
      report.keys[rank] += layer.loads[rank];
      heads.push_back(plan::HeadsOf(layer, static_cast<int>(rank)));
    }
    if (!shares) continue;
    std::vector<std::vector<double>>& of_layer = report.shares.emplace_back();
    for (size_t rank = 0; rank < ranks; ++rank) {
      of_layer.push_back(plan::SharesOf(layer, static_cast<int>(rank)));
    }
  }
  for (const double keys : report.keys) report.busy.push_back(keys / seconds);
  return report;
}

}  // namespace headway
