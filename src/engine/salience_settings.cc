#include "engine/salience_settings.h"

#include <string>
#include <utility>

#include "base/types.h"
#include "engine/refused.h"
#include "headway/types.h"
#include "kv/policy/salient_blocks.h"
#include "kv/policy/selection.h"
#include "plan/cost.h"

namespace headway {
namespace {

constexpr double kMostBeta = 1e6;
constexpr int64_t kMostQueries = 256;

// NaN is in no range.
Status ReadNumbers(const EngineOptions& options, kv::SaliencePolicy* policy) {
  const EngineOptions absent;
  policy->beta = options.hgca;
  policy->reselect = options.hgca_reselect;
  if (options.hgca_window != absent.hgca_window) policy->window = options.hgca_window;
  if (options.hgca_alpha != absent.hgca_alpha) policy->alpha = options.hgca_alpha;
  if (options.hgca_every != absent.hgca_every) policy->every = options.hgca_every;
  if (options.hgca_most != absent.hgca_most) policy->most = options.hgca_most;
  if (options.hgca_queries != absent.hgca_queries) policy->queries = options.hgca_queries;
  if (!policy->reselects() && !(policy->beta >= 0.0 && policy->beta <= kMostBeta)) {
    return Wrong(
        {Option::kHgca, " is 0, for exact attention, or a number of even shares above it"});
  }
  if (policy->window < 1 || policy->window > kMaxLength) {
    return Wrong({Option::kHgcaWindow, " is 1 token or more, as many as a sequence may have"});
  }
  if (!(policy->alpha > 0.0 && policy->alpha <= 1.0)) {
    return Wrong({Option::kHgcaAlpha, " is above 0 and at most 1"});
  }
  if (policy->every < 1 || policy->every > policy->window) {
    return Wrong({Option::kHgcaEvery, " is 1 step to as many as the window has tokens"});
  }
  if (!(policy->most > 0.0 && policy->most <= 1.0)) {
    return Wrong({Option::kHgcaMost, " is a share of the tokens, above 0 and at most 1"});
  }
  if (policy->reselects()) return OkStatus();  // there are no masses
  if (policy->queries < 1 || policy->queries > kMostQueries) {
    return Wrong({Option::kHgcaQueries, " is 1 to " + std::to_string(kMostQueries) + " queries"});
  }
  if (policy->queries > policy->window) {
    return Wrong({Option::kHgcaQueries, " " + std::to_string(policy->queries) +
                                            ": queries come from the window, which is of " +
                                            std::to_string(policy->window) + " tokens"});
  }
  return OkStatus();
}

// What heads leave out is bounded by keys that the host's cores read.
Status ReadBound(const EngineOptions& options, Settings* settings) {
  if (!(options.hgca_epsilon >= 0.0 && options.hgca_epsilon < 1.0)) {
    return Wrong({Option::kHgcaEpsilon, " is a share of the attention, from 0 to less than 1"});
  }
  if (!(options.hgca_delta > 0.0 && options.hgca_delta <= 0.5)) {
    return Wrong({Option::kHgcaDelta, " is a probability above 0, and at most 0.5"});
  }
  if (options.hgca_epsilon == 0.0) {
    if (options.hgca_delta == EngineOptions().hgca_delta) return OkStatus();
    return Wrong({Option::kHgcaDelta, " needs ", Option::kHgcaEpsilon});
  }
  if (options.hgca_on == "device") {
    return Wrong({Option::kHgcaEpsilon,
                  ": the host's cores read what heads leave out, and salient tokens with it; leave "
                  "out ",
                  Option::kHgcaOn, " device"});
  }
  settings->salience.bound.epsilon = options.hgca_epsilon;
  settings->salience.bound.deviations = kv::DeviationsOf(options.hgca_delta);
  settings->salience.delta = options.hgca_delta;
  settings->salient_on_host = true;
  return OkStatus();
}

Status CheckTogether(const EngineOptions& options, const Settings& settings) {
  const std::pair<bool, Option> others[] = {
      {settings.selection.selects(), AskedForBy(settings.selection)},
      {settings.eviction.evicts(), Option::kEvict},
      {settings.streaming_heads.has_value(), Option::kHeadPattern},
      {!options.self_extend.empty(), Option::kSelfExtend},
      {settings.recompute_share.value_or(0.0) > 0.0, Option::kRecompute},
      {settings.policy == Policy::kKvpr, Option::kPolicy}};
  for (const auto& [given, option] : others) {
    if (given) {
      return Wrong({AskedForBy(settings.salience), " and ", option, " do not go together"});
    }
  }
  if (settings.host_share.value_or(0.0) == 0.0) return OkStatus();
  if (settings.salience.is_bounded() && settings.host_share != 1.0) {
    return Wrong({Option::kHgcaEpsilon, ": the host's cores read all salient tokens; leave out ",
                  Option::kHostAttention});
  }
  if (settings.salient_on_host != true) {
    return Wrong({Option::kHostAttention, " beside ", AskedForBy(settings.salience),
                  " is the cores' share of salient tokens on the host; give ", Option::kHgcaOn,
                  " host"});
  }
  return OkStatus();
}

// What says how masses are made says nothing where there are none.
Status CheckReselection(const EngineOptions& options) {
  const EngineOptions absent;
  if (options.hgca_reselect < 0 || options.hgca_reselect > kMaxLength) {
    return Wrong({Option::kHgcaReselect, " is a number of steps, or 0"});
  }
  if (options.hgca_reselect == 0) return OkStatus();
  const std::pair<bool, Option> given[] = {
      {options.hgca != absent.hgca, Option::kHgca},
      {options.hgca_alpha != absent.hgca_alpha, Option::kHgcaAlpha},
      {options.hgca_every != absent.hgca_every, Option::kHgcaEvery},
      {options.hgca_queries != absent.hgca_queries, Option::kHgcaQueries}};
  for (const auto& [is, option] : given) {
    if (is) return Wrong({Option::kHgcaReselect, " chooses without masses; leave out ", option});
  }
  constexpr int kBlock = kv::SalientBlocks::kSummary.block_slots;
  if (options.page_slots % kBlock == 0) return OkStatus();
  return Wrong({Option::kHgcaReselect, ": a page of " + std::to_string(options.page_slots) +
                                           " tokens cannot be cut into blocks of " +
                                           std::to_string(kBlock)});
}

}  // namespace

Option AskedForBy(const kv::SaliencePolicy& policy) {
  return policy.reselects() ? Option::kHgcaReselect : Option::kHgca;
}

Status ReadSalience(const EngineOptions& options, Settings* settings) {
  const EngineOptions absent;
  const std::pair<bool, Option> given[] = {
      {options.hgca_window != absent.hgca_window, Option::kHgcaWindow},
      {options.hgca_alpha != absent.hgca_alpha, Option::kHgcaAlpha},
      {options.hgca_every != absent.hgca_every, Option::kHgcaEvery},
      {options.hgca_most != absent.hgca_most, Option::kHgcaMost},
      {options.hgca_queries != absent.hgca_queries, Option::kHgcaQueries},
      {options.hgca_on != absent.hgca_on, Option::kHgcaOn},
      {options.hgca_epsilon != absent.hgca_epsilon, Option::kHgcaEpsilon},
      {options.hgca_delta != absent.hgca_delta, Option::kHgcaDelta}};
  if (Status s = CheckReselection(options); !s.ok()) return s;
  if (options.hgca == absent.hgca && options.hgca_reselect == 0) {
    for (const auto& [is, option] : given) {
      if (is) return Wrong({option, " needs ", Option::kHgca, " or ", Option::kHgcaReselect});
    }
    return OkStatus();
  }
  if (Status s = ReadNumbers(options, &settings->salience); !s.ok()) return s;
  if (!settings->salience.chooses()) return OkStatus();
  if (options.hgca_on != "auto" && options.hgca_on != "host" && options.hgca_on != "device") {
    return Wrong({Option::kHgcaOn, ": '" + options.hgca_on + "' is none of auto, host, device"});
  }
  if (options.hgca_on != "auto") settings->salient_on_host = options.hgca_on == "host";
  if (Status s = ReadBound(options, settings); !s.ok()) return s;
  if (options.placement == kAutoPlacement && settings->policy == Policy::kAuto) {
    settings->placement = kv::PlacementKind::kRecent;
  }
  return CheckTogether(options, *settings);
}

Status CheckBound(const Settings& settings, bool own_memory) {
  if (!settings.salience.is_bounded() || !own_memory ||
      settings.placement == kv::PlacementKind::kHostOnly) {
    return OkStatus();
  }
  return Unsupported({Option::kHgcaEpsilon,
                      ": the host's cores read keys before the window, and cannot where they "
                      "lie in a GPU's memory; give ",
                      Option::kPlacement, " host-only"});
}

double SalientByCores(const Settings& settings, const MachineProfile* machine) {
  if (settings.salience.is_bounded()) return 1.0;
  if (settings.host_share.has_value()) return *settings.host_share;
  return machine == nullptr || !machine->own_memory ? 1.0 : plan::BalancedInPlaceShare(*machine);
}

plan::KeptTokens KeptOf(const kv::SaliencePolicy& policy, const std::vector<int64_t>& lengths,
                        std::optional<double> by_cores) {
  if (!policy.chooses()) return {};
  const auto salient = [policy](int64_t length) {
    return kv::MostSalient(policy, std::max<int64_t>(0, length - policy.window));
  };
  plan::KeptTokens kept;
  kept.lengths = lengths;
  kept.count = [policy, salient](int64_t length) {
    return std::min(length, policy.window) + salient(length);
  };
  if (by_cores.has_value()) {
    kept.on_host = salient;
    kept.by_cores = *by_cores;
  }
  kept.plain = salient;
  return kept;
}

}  // namespace headway
