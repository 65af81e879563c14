#include "engine/eviction_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fnv.h"
#include "engine/model_info.h"
#include "engine/refused.h"
#include "headway/types.h"
#include "kv/policy/eviction_budgets.h"
#include "kv/policy/head_profile.h"

namespace headway {
namespace {

constexpr int64_t kMaxWindow = 256;
constexpr int kMaxPool = 255;
constexpr double kMaxSteepness = 1000.0;
constexpr int64_t kMaxFuture = 65536;
// DefensiveKV's, where the others have SnapKV's.
constexpr int kDefensivePool = 5;
// Of what heads let go of, that a decode step reads.
constexpr int64_t kDemotedKeys = 512;
// HeadKV's beta is 1.2: the share of a budget that is not in the pool.
constexpr double kHeadKvSafeguard = 1.0 - 1.0 / 1.2;

// All of the text, as a number.
template <typename T>
bool Parse(std::string_view text, T* value) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *value);
  return read.ec == std::errc() && read.ptr == end;
}

// "1024" or "25%".
Status ReadBudget(const std::string& given, kv::EvictionPolicy* policy) {
  std::string_view text = given.empty() ? std::string_view(kDefaultEvictBudget) : given;
  bool good = false;
  if (text.ends_with('%')) {
    text.remove_suffix(1);
    double percent = 0.0;
    good = Parse(text, &percent) && percent > 0.0 && percent <= 100.0;
    policy->share = percent / 100.0;
  } else {
    good = Parse(text, &policy->budget) && policy->budget >= 1 && policy->budget <= kMaxLength;
  }
  if (good) return OkStatus();
  return Wrong({Option::kEvictBudget,
                ": '" + given +
                    "' is neither a number of tokens from 1 on nor a share of the prompt such as "
                    "25%"});
}

// "7", "7:mean" or "7:max".
Status ReadPool(const std::string& given, kv::EvictionPolicy* policy) {
  if (given.empty()) return OkStatus();
  std::string_view text = given;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view pooling = colon < text.size() ? text.substr(colon + 1) : "mean";
  using Pool = kv::EvictionPolicy::Pool;
  policy->pooling = pooling == "max" ? Pool::kMax : Pool::kMean;
  const bool good = Parse(text.substr(0, colon), &policy->pool) && policy->pool >= 1 &&
                    policy->pool <= kMaxPool && policy->pool % 2 == 1 &&
                    (pooling == "mean" || pooling == "max");
  if (good) return OkStatus();
  return Wrong({Option::kEvictPool, ": '" + given + "' is not an odd number of neighbours up to " +
                                        std::to_string(kMaxPool) +
                                        ", which :mean or :max may follow"});
}

// The numbers that stand for themselves; NaN is in no range.
Status ReadNumbers(const EngineOptions& options, kv::EvictionPolicy* policy) {
  const EngineOptions absent;
  if (options.evict_window != absent.evict_window) policy->window = options.evict_window;
  if (options.evict_sink != absent.evict_sink) policy->sink = options.evict_sink;
  if (options.evict_safeguard != absent.evict_safeguard) {
    policy->safeguard = options.evict_safeguard;
  }
  if (options.evict_steepness != absent.evict_steepness) {
    policy->steepness = options.evict_steepness;
  }
  if (options.evict_future != absent.evict_future) policy->future = options.evict_future;
  if (options.evict_room != absent.evict_room) policy->room = options.evict_room;
  if (policy->window < 1 || policy->window > kMaxWindow) {
    return Wrong({Option::kEvictWindow, " is 1 to " + std::to_string(kMaxWindow) + " tokens"});
  }
  if (policy->sink < 0 || policy->sink > kMaxLength) {
    return Wrong({Option::kEvictSink, " is 0 tokens or more, as many as a sequence may have"});
  }
  if (!(policy->safeguard >= 0.0 && policy->safeguard <= 1.0)) {
    return Wrong({Option::kEvictSafeguard, " is a share of a head's budget, between 0 and 1"});
  }
  if (!(policy->steepness >= 1.0 && policy->steepness <= kMaxSteepness)) {
    return Wrong({Option::kEvictSteepness, " is between 1, for even budgets, and 1000"});
  }
  if (policy->future < 1 || policy->future > kMaxFuture) {
    return Wrong({Option::kEvictFuture, " is 1 to " + std::to_string(kMaxFuture) + " positions"});
  }
  if (policy->room < 1 || policy->room > kMaxLength) {
    return Wrong({Option::kEvictRoom, " is 1 token or more, as many as a sequence may have"});
  }
  return OkStatus();
}

// What becomes of tokens that are not kept.
Status ReadDemotion(const EngineOptions& options, kv::DemotionPolicy* policy) {
  const EngineOptions absent;
  if (options.evicted != "drop" && options.evicted != "demote") {
    return Wrong({Option::kEvicted, ": '" + options.evicted + "' is neither drop nor demote"});
  }
  const bool demotes = options.evicted == "demote";
  const std::pair<bool, Option> given[] = {
      {options.evicted_keys != absent.evicted_keys, Option::kEvictedKeys},
      {options.evicted_refresh != absent.evicted_refresh, Option::kEvictedRefresh}};
  for (const auto& [is, option] : given) {
    if (is && !demotes) return Wrong({option, " needs ", Option::kEvicted, " demote"});
  }
  if (!demotes) return OkStatus();
  policy->keys = kDemotedKeys;
  if (options.evicted_keys != absent.evicted_keys) policy->keys = options.evicted_keys;
  if (options.evicted_refresh != absent.evicted_refresh) policy->refresh = options.evicted_refresh;
  if (policy->keys < 1 || policy->keys > kMaxLength) {
    return Wrong({Option::kEvictedKeys, " is 1 token or more, as many as a sequence may have"});
  }
  if (policy->refresh < 1 || policy->refresh > kMaxLength) {
    return Wrong({Option::kEvictedRefresh, " is 1 step or more"});
  }
  constexpr int kBlock = kv::DemotionPolicy::kSummary.block_slots;
  if (options.page_slots % kBlock != 0) {
    return Wrong({Option::kEvicted, " demote: a page of " + std::to_string(options.page_slots) +
                                        " tokens cannot be cut into blocks of " +
                                        std::to_string(kBlock)});
  }
  if (!options.session.empty()) {
    return Wrong({Option::kEvicted, " demote and ", Option::kSession, " do not go together yet"});
  }
  if (options.kv_encoding == "lossless") {
    return Wrong({Option::kEvicted, " demote and ", Option::kKvEncoding,
                  " lossless do not go together yet"});
  }
  return OkStatus();
}

// What is given without a method, or for one that does not read it.
Status CheckGiven(const EngineOptions& options, const kv::EvictionPolicy& policy) {
  using kv::EvictionMethod;
  const EngineOptions absent;
  const std::string name = kv::EvictionName(policy.method);
  const struct {
    Option option;
    bool given, read;
    std::string why;  // it is not read
  } all[] = {
      {Option::kEvictBudget, options.evict_budget != absent.evict_budget, true, ""},
      {Option::kEvictProfile, options.evict_profile != absent.evict_profile, true, ""},
      {Option::kEvictRoom, options.evict_room != absent.evict_room, true, ""},
      {Option::kEvicted, options.evicted != absent.evicted, true, ""},
      {Option::kEvictWindow, options.evict_window != absent.evict_window, policy.observes(),
       name + " observes no queries"},
      {Option::kEvictPool, options.evict_pool != absent.evict_pool, policy.observes(),
       name + " has no scores to pool"},
      {Option::kEvictSink, options.evict_sink != absent.evict_sink, policy.keeps_sink(),
       "only streamingllm, expectedattention and kvzip keep the first tokens whatever their "
       "attention"},
      {Option::kEvictSafeguard, options.evict_safeguard != absent.evict_safeguard, policy.safe(),
       policy.profiled ? "the profile says what heads have"
                       : "only in ada-snapkv, ada-pyramidkv, critical-ada-snapkv and headkv heads "
                         "that share a budget have a part of their own"},
      {Option::kEvictSteepness, options.evict_steepness != absent.evict_steepness, policy.falls(),
       policy.profiled ? "the profile says what layers have"
                       : "only in pyramidkv and ada-pyramidkv budgets fall from layer to layer"},
      {Option::kEvictFuture, options.evict_future != absent.evict_future,
       policy.method == EvictionMethod::kExpected,
       "only expectedattention looks at queries to come"},
  };
  for (const auto& each : all) {
    if (!each.given) continue;
    if (!policy.evicts()) return Wrong({each.option, " needs ", Option::kEvict});
    if (!each.read) return Wrong({each.option, ": " + each.why});
  }
  return OkStatus();
}

Status CheckTogether(const EngineOptions& options) {
  const EngineOptions absent;
  const struct {
    Option option;
    bool given;
    const char* value;
  } others[] = {
      {Option::kSelector, options.selector != absent.selector, ""},
      {Option::kHeadPattern, !options.head_pattern.empty(), ""},
      {Option::kSelfExtend, options.self_extend != absent.self_extend, ""},
      {Option::kPolicy, options.policy == "kvpr", " kvpr"},
      {Option::kRecompute, options.recompute_share > 0.0, ""},
  };
  for (const auto& other : others) {
    if (!other.given) continue;
    return Wrong(
        {Option::kEvict, " and ", other.option, other.value + std::string(" do not go together")});
  }
  return OkStatus();
}

uint64_t HashOf(const std::vector<double>& shares) {
  return Fnv1a({reinterpret_cast<const char*>(shares.data()), shares.size() * sizeof(double)});
}

}  // namespace

Result<kv::EvictionPolicy> ReadEviction(const EngineOptions& options) {
  kv::EvictionPolicy policy;
  if (options.evict != EngineOptions{}.evict) {
    Result<kv::EvictionMethod> method = kv::EvictionOf(options.evict);
    if (!method.ok()) return method.status().Within({Option::kEvict, ": "});
    policy.method = *method;
    // Where no window is observed, the budget and the scores alone say which of the last tokens are
    // kept.
    if (!policy.observes()) policy.window = policy.pool = 1;
    if (policy.adds_up()) policy.sink = 0;
    if (policy.largest()) policy.pool = kDefensivePool;
    if (policy.method == kv::EvictionMethod::kHeadKv) policy.safeguard = kHeadKvSafeguard;
    policy.profiled = !options.evict_profile.empty();
  }
  if (Status s = CheckGiven(options, policy); !s.ok()) return s;
  if (Status s = ReadDemotion(options, &policy.demotion); !s.ok()) return s;
  if (!policy.evicts()) return policy;
  if (policy.method == kv::EvictionMethod::kHeadKv && !policy.profiled) {
    return Wrong({Option::kEvict, " headkv needs ", Option::kEvictProfile});
  }
  if (Status s = ReadBudget(options.evict_budget, &policy); !s.ok()) return s;
  if (Status s = ReadPool(options.evict_pool, &policy); !s.ok()) return s;
  if (Status s = ReadNumbers(options, &policy); !s.ok()) return s;
  // What is kept anyway leaves something to choose.
  const int64_t always = policy.keeps_sink() ? policy.sink : policy.window;
  if (policy.budget > 0 && policy.budget <= always) {
    return Wrong({Option::kEvictBudget,
                  " " + std::to_string(policy.budget) + " is not more than the " +
                      std::to_string(always) + " tokens of ",
                  policy.keeps_sink() ? Option::kEvictSink : Option::kEvictWindow});
  }
  if (Status s = CheckTogether(options); !s.ok()) return s;
  return policy;
}

std::string EvictionWords(const kv::EvictionPolicy& policy) {
  using kv::EvictionMethod;
  std::string words = fmt::format("{} (", kv::EvictionName(policy.method));
  words += policy.share > 0.0 ? fmt::format("budget {}%", 100.0 * policy.share)
                              : fmt::format("budget {}", policy.budget);
  if (policy.observes()) {
    words += fmt::format(", window {}, pool {}:{}", policy.window, policy.pool,
                         policy.pooling == kv::EvictionPolicy::Pool::kMax ? "max" : "mean");
  }
  if (policy.keeps_sink()) words += fmt::format(", sink {}", policy.sink);
  if (policy.safe()) words += fmt::format(", safeguard {:.6g}", policy.safeguard);
  if (policy.falls()) words += fmt::format(", steepness {}", policy.steepness);
  if (policy.method == EvictionMethod::kExpected) {
    words += fmt::format(", future {}", policy.future);
  }
  if (policy.profiled) words += fmt::format(", profile {:016x}", HashOf(policy.shares));
  return words + ")";
}

Status LoadShares(Env& env, const ModelConfig& config, Settings* settings) {
  const auto read = [&](const std::optional<std::string>& file, Option option,
                        std::vector<double>* shares) {
    if (!file.has_value()) return OkStatus();
    const Result<std::string> text = env.ReadFile(*file, kMaxConfigBytes);
    if (!text.ok()) return text.status().Within({option, ": "});
    Result<std::vector<double>> parsed = kv::ParseHeadProfile(
        *text, *file, {config.shape.layers, config.shape.kv_heads, ConfigHash(config)});
    if (!parsed.ok()) return parsed.status().Within({option, ": "});
    *shares = std::move(*parsed);
    return OkStatus();
  };
  const Status status =
      read(settings->eviction_profile, Option::kEvictProfile, &settings->eviction.shares);
  if (!status.ok()) return status;
  return read(settings->assignment_profile, Option::kAssignmentProfile,
              &settings->assignment_shares);
}

Status CheckEviction(const kv::EvictionPolicy& policy, const ModelConfig& config) {
  if (policy.repeats() && config.learned_positions) {
    return Unsupported({Option::kEvict,
                        " kvzip: prompts are repeated behind themselves, and this model has "
                        "learned no more positions than its own"});
  }
  const bool windows = std::any_of(config.windows.begin(), config.windows.end(),
                                   [](int64_t window) { return window > 0; });
  if (!policy.evicts() || !windows) return OkStatus();
  return Unsupported({Option::kEvict, std::string(" ") + kv::EvictionName(policy.method) +
                                          ": this model's layers have sliding windows"});
}

plan::KeptTokens KeptOf(const kv::EvictionPolicy& policy, const std::vector<int64_t>& lengths,
                        bool host_reads_device) {
  if (!policy.evicts()) return {};
  const auto demoted = [policy](int64_t length) {
    return std::min(length - policy.MeanOf(length), policy.demotion.keys);
  };
  plan::KeptTokens kept;
  kept.lengths = lengths;
  kept.count = [policy, demoted](int64_t length) {
    return std::max<int64_t>(1, policy.MeanOf(length) + demoted(length));
  };
  kept.by_cores = 0.0;
  if (host_reads_device || !policy.demotion.demotes()) return kept;
  kept.on_host = demoted;
  kept.best_of = [policy](int64_t length) { return length - policy.MeanOf(length); };
  kept.refresh = static_cast<double>(policy.demotion.refresh);
  return kept;
}

}  // namespace headway
