#include "engine/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/draft_settings.h"
#include "engine/eviction_settings.h"
#include "engine/head_assignment.h"
#include "engine/layer_ranks.h"
#include "engine/ranks.h"
#include "engine/refused.h"
#include "engine/salience_settings.h"
#include "engine/selection_settings.h"
#include "headway/plan.h"

namespace headway {
namespace {

template <typename T>
std::optional<T> Unless(T value, T absent) {
  return value == absent ? std::nullopt : std::optional<T>(std::move(value));
}

template <typename T>
std::optional<T> MoreThan(T value, T absent) {
  return value > absent ? std::optional<T>(value) : std::nullopt;
}

Result<Policy> ReadPolicy(const std::string& name) {
  for (Policy policy : {Policy::kAuto, Policy::kHeadInfer, Policy::kLayerwise, Policy::kKvpr}) {
    if (name == PolicyName(policy)) return policy;
  }
  return Wrong({"unknown policy '" + name + "'; there are auto, headinfer, layerwise, kvpr"});
}

// "auto" is first-fit unless what else is asked for says otherwise.
Result<kv::PlacementKind> ReadPlacement(const std::string& name) {
  if (name == "first-fit" || name == kAutoPlacement) return kv::PlacementKind::kFirstFit;
  if (name == "lru") return kv::PlacementKind::kLru;
  if (name == "recent") return kv::PlacementKind::kRecent;
  if (name == "host-only") return kv::PlacementKind::kHostOnly;
  if (name == "disk-only") return kv::PlacementKind::kDiskOnly;
  return Wrong({"unknown placement '" + name +
                "'; there are auto, first-fit, lru, recent, host-only, disk-only"});
}

Result<PageEncoding> ReadEncoding(const std::string& name) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (name == DTypeName(dtype)) return PageEncoding(dtype);
  }
  Result<Encoding> encoding = ParseEncoding(name);
  if (!encoding.ok()) return encoding.status();
  return PageEncoding(*encoding);
}

Result<plan::PromptOrder> ReadPromptOrder(const std::string& name) {
  if (name == "auto") return plan::PromptOrder::kAuto;
  if (name == "chunks") return plan::PromptOrder::kChunks;
  if (name == "layers") return plan::PromptOrder::kLayers;
  return Wrong({Option::kPromptOrder, ": '" + name + "' is none of auto, chunks, layers"});
}

// The policy, and the placement that it has or the user asks for.
Status ReadPolicies(const EngineOptions& options, Settings* settings) {
  Result<Policy> policy = ReadPolicy(options.policy);
  if (!policy.ok()) return policy.status();
  settings->policy = *policy;
  const Result<plan::PromptOrder> order = ReadPromptOrder(options.prompt_order);
  if (!order.ok()) return order.status();
  settings->prompt_order = *order;
  if (*policy != Policy::kAuto) {
    if (options.head_group != 0 || options.segment != 0 || options.staging_slabs != 0 ||
        (options.placement != kAutoPlacement && options.placement != "first-fit")) {
      return Wrong({"policy " + options.policy +
                    " fixes head group, segment, staging buffers and placement; leave them out"});
    }
    settings->placement = kv::PlacementKind::kHostOnly;
    return OkStatus();
  }
  Result<kv::PlacementKind> placement = ReadPlacement(options.placement);
  if (!placement.ok()) return placement.status();
  settings->placement = *placement;
  return OkStatus();
}

Status ReadShares(const EngineOptions& options, Settings* settings) {
  // NaN is neither.
  const auto is_share = [](double share, double automatic) {
    return share == automatic || (share >= 0.0 && share <= 1.0);
  };
  if (!is_share(options.host_share, kHostShareAuto)) {
    return Wrong({"the host's share must be 0 to 1, or auto"});
  }
  if (!is_share(options.recompute_share, kRecomputeAuto)) {
    return Wrong({"the share to recompute must be 0 to 1, or auto"});
  }
  settings->host_share = Unless(options.host_share, kHostShareAuto);
  settings->recompute_share = Unless(options.recompute_share, kRecomputeAuto);
  if (settings->policy == Policy::kKvpr &&
      (options.recompute_share > 0.0 || options.host_share > 0.0)) {
    return Wrong({"policy kvpr fixes what is recomputed and streams the rest; leave out ",
                  Option::kRecompute, " and ", Option::kHostAttention});
  }
  return OkStatus();
}

Status ReadStreamingHeads(const EngineOptions& options, Settings* settings) {
  StreamingHeadsSettings heads;
  heads.pattern = options.head_pattern;
  if (options.sparsity >= 0.0) heads.sparsity = options.sparsity;
  heads.sink = MoreThan<int64_t>(options.sink_tokens, -1);
  heads.recent = MoreThan<int64_t>(options.recent_tokens, 0);
  if (!heads.pattern.empty()) {
    settings->streaming_heads = std::move(heads);
    return OkStatus();
  }
  if (heads.sparsity.has_value() || heads.sink.has_value() || heads.recent.has_value()) {
    return Wrong({"streaming heads are chosen by their scores; give a ", Option::kHeadPattern,
                  " file, which headway profile-heads makes"});
  }
  return OkStatus();
}

// "yarn:4".
Result<std::optional<RopeScaling>> ReadRopeScaling(const std::string& text) {
  if (text.empty()) return std::optional<RopeScaling>();
  for (const RopeType type : {RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn}) {
    const std::string name = RopeTypeName(type) + std::string(":");
    if (!text.starts_with(name)) continue;
    double factor = 0.0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + name.size(), end, factor);
    if (read.ec != std::errc() || read.ptr != end || !(factor >= 1.0 && factor <= 1e4)) break;
    return std::optional<RopeScaling>({type, factor});
  }
  return Wrong({Option::kRopeScaling, " " + text +
                                          ": linear:F, dynamic:F and yarn:F are known, by factors "
                                          "from 1 to 10000"});
}

// "8:4096".
Status ReadSelfExtend(const EngineOptions& options, Settings* settings) {
  const std::string& text = options.self_extend;
  if (text.empty()) return OkStatus();
  SelfExtend& extend = settings->self_extend;
  const char* const end = text.data() + text.size();
  const auto group = std::from_chars(text.data(), end, extend.group);
  const bool two = group.ec == std::errc() && group.ptr != end && *group.ptr == ':';
  const auto window = std::from_chars(two ? group.ptr + 1 : end, end, extend.window);
  if (window.ec != std::errc() || window.ptr != end || extend.group < 1 ||
      extend.group > kMaxLength || extend.window > kMaxLength ||
      extend.window < 2 * int64_t{options.page_slots}) {
    return Wrong({Option::kSelfExtend,
                  " " + text +
                      ": G:W is known, groups of at least 1 token behind a window of at "
                      "least two pages, " +
                      std::to_string(2 * options.page_slots) + " tokens"});
  }
  const Encoding* codes = std::get_if<Encoding>(&settings->encoding);
  const std::pair<bool, Option> others[] = {
      {settings->selection.selects(), AskedForBy(settings->selection)},
      {settings->streaming_heads.has_value(), Option::kHeadPattern},
      {settings->rope_scaling.has_value(), Option::kRopeScaling},
      {codes != nullptr && *codes != Encoding::kNone, Option::kKvEncoding},
      {settings->host_share.value_or(0.0) > 0.0, Option::kHostAttention},
      {settings->recompute_share.value_or(0.0) > 0.0, Option::kRecompute},
      {settings->policy == Policy::kKvpr, Option::kPolicy}};
  for (const auto& [given, option] : others) {
    if (given) return Wrong({Option::kSelfExtend, " and ", option, " do not go together"});
  }
  return OkStatus();
}

std::string DiskDirectory(const std::string& path) {
  if (!path.empty()) return path;
  const char* directory = std::getenv("TMPDIR");
  return directory != nullptr && *directory != '\0' ? directory : "/tmp";
}

}  // namespace

const char* FarPositionsName(kv::SelectionPolicy::FarPositions positions) {
  return positions == kv::SelectionPolicy::FarPositions::kTogether ? "infllm" : "streamingllm";
}

const char* PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return "auto";
    case Policy::kHeadInfer:
      return "headinfer";
    case Policy::kLayerwise:
      return "layerwise";
    case Policy::kKvpr:
      return "kvpr";
  }
  return "?";
}

int64_t Settings::DiskLimit() const {
  return session.has_value() && memory.disk == 0 ? kNoLimit : memory.disk;
}

Result<Settings> ReadSettings(const EngineOptions& given) {
  EngineOptions options = given;
  const bool page_fixed = options.page_slots != 0;
  if (!page_fixed) options.page_slots = kDefaultPageSlots;
  Settings settings;
  if (Status s = ReadPolicies(options, &settings); !s.ok()) return s;
  if (options.threads < 0 || options.threads > 1024) return Wrong({"threads must be 0 to 1024"});
  settings.target = {options.device, Unless<std::string>(options.isa, "auto"),
                     Unless(options.threads, 0)};
  if (Status s = ReadShares(options, &settings); !s.ok()) return s;
  settings.memory = {MoreThan<int64_t>(options.gpu_memory, 0), options.kv_memory,
                     options.host_memory, options.disk_memory, DiskDirectory(options.disk_path)};
  settings.gpu_layers = MoreThan(options.gpu_layers, -1);
  if (options.weight_encoding != "none" && options.weight_encoding != "lossless") {
    return Wrong({"'" + options.weight_encoding + "' is no form of weights: none or lossless"});
  }
  settings.lossless_weights = options.weight_encoding == "lossless";
  if (options.page_slots < 1 || options.page_slots > 4096) {
    return Wrong({"a page has 1 to 4096 slots"});
  }
  settings.cut = {Unless<int64_t>(options.chunk, 0),
                  Unless(options.head_group, 0),
                  Unless<int64_t>(options.segment, 0),
                  Unless(options.staging_slabs, 0),
                  options.page_slots,
                  page_fixed};
  settings.encoding_by_plan = options.kv_encoding == "auto";
  if (!settings.encoding_by_plan) {
    Result<PageEncoding> encoding = ReadEncoding(options.kv_encoding);
    if (!encoding.ok()) return encoding.status();
    settings.encoding = *encoding;
  }
  if (options.freeze_plan) settings.plans = Settings::Plans::kFrozen;
  if (Status s = ReadStreamingHeads(options, &settings); !s.ok()) return s;
  if (Status s = ReadSelection(options, &settings); !s.ok()) return s;
  Result<kv::EvictionPolicy> eviction = ReadEviction(options);
  if (!eviction.ok()) return eviction.status();
  settings.eviction = *eviction;
  settings.eviction_profile = Unless<std::string>(options.evict_profile, "");
  if (Status s = ReadSalience(options, &settings); !s.ok()) return s;
  // The planner would recompute of its own accord.
  if (eviction->evicts() || settings.salience.chooses()) settings.recompute_share = 0.0;
  Result<std::optional<RopeScaling>> scaling = ReadRopeScaling(options.rope_scaling);
  if (!scaling.ok()) return scaling.status();
  settings.rope_scaling = *scaling;
  if (Status s = ReadSelfExtend(options, &settings); !s.ok()) return s;
  if (!options.found_shares) settings.found_shares = Settings::FoundShares::kNone;
  settings.machine = Unless<std::string>(options.machine, "");
  if (!options.session.empty()) {
    settings.session =
        SessionSettings{options.session, options.session_recut ? SessionSettings::Misfit::kRecut
                                                               : SessionSettings::Misfit::kRefuse};
  }
  settings.trace = Unless<std::string>(options.trace, "");
  settings.time_kernels = options.time_kernels;
  settings.alias_host_memory = MoreThan<int64_t>(options.alias_host_memory, 0);
  if (options.random_weights) settings.weights = Settings::Weights::kRandom;
  settings.ranks = options.tensor_parallel;
  settings.layer_ranks = options.layers_over;
  Result<plan::AssignmentMethod> assignment = ReadAssignment(options);
  if (!assignment.ok()) return assignment.status();
  settings.assignment = *assignment;
  settings.assignment_copies = options.assignment_copies;
  settings.assignment_profile = Unless<std::string>(options.assignment_profile, "");
  if (Status s = CheckLayerRanks(settings); !s.ok()) return s;
  if (Status s = CheckRanks(settings); !s.ok()) return s;
  if (Status s = ReadDrafts(options, &settings); !s.ok()) return s;
  return settings;
}

}  // namespace headway
