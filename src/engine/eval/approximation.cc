#include "engine/eval/approximation.h"

namespace headway::eval {
namespace {

// A parameter that is not left to its default.
template <typename T>
void AddGiven(const char* name, const T& value, const T& absent, Approximation* to) {
  if (value != absent) to->parameters.push_back({name, value});
}

Approximation EvictionOf(const EngineOptions& options) {
  const EngineOptions defaults;
  Approximation eviction{
      "eviction",
      {{"method", options.evict},
       {"budget", options.evict_budget.empty() ? kDefaultEvictBudget : options.evict_budget}}};
  AddGiven("window", options.evict_window, defaults.evict_window, &eviction);
  AddGiven("pool", options.evict_pool, defaults.evict_pool, &eviction);
  AddGiven("sink", options.evict_sink, defaults.evict_sink, &eviction);
  AddGiven("safeguard", options.evict_safeguard, defaults.evict_safeguard, &eviction);
  AddGiven("steepness", options.evict_steepness, defaults.evict_steepness, &eviction);
  AddGiven("future", options.evict_future, defaults.evict_future, &eviction);
  AddGiven("profile", options.evict_profile, defaults.evict_profile, &eviction);
  AddGiven("evicted", options.evicted, defaults.evicted, &eviction);
  AddGiven("evicted_keys", options.evicted_keys, defaults.evicted_keys, &eviction);
  AddGiven("evicted_refresh", options.evicted_refresh, defaults.evicted_refresh, &eviction);
  return eviction;
}

Approximation HgcaOf(const EngineOptions& options) {
  const EngineOptions defaults;
  Approximation hgca{"hgca", {}};
  AddGiven("beta", options.hgca, defaults.hgca, &hgca);
  AddGiven("reselect", options.hgca_reselect, defaults.hgca_reselect, &hgca);
  AddGiven("window", options.hgca_window, defaults.hgca_window, &hgca);
  AddGiven("alpha", options.hgca_alpha, defaults.hgca_alpha, &hgca);
  AddGiven("every", options.hgca_every, defaults.hgca_every, &hgca);
  AddGiven("most", options.hgca_most, defaults.hgca_most, &hgca);
  AddGiven("queries", options.hgca_queries, defaults.hgca_queries, &hgca);
  AddGiven("epsilon", options.hgca_epsilon, defaults.hgca_epsilon, &hgca);
  AddGiven("delta", options.hgca_delta, defaults.hgca_delta, &hgca);
  return hgca;
}

}  // namespace

EngineOptions ExactOptions(EngineOptions options) {
  const EngineOptions defaults;
  options.kv_encoding = defaults.kv_encoding;
  options.head_pattern = defaults.head_pattern;
  options.sparsity = defaults.sparsity;
  options.sink_tokens = defaults.sink_tokens;
  options.recent_tokens = defaults.recent_tokens;
  options.selector = defaults.selector;
  options.sparse_keys = defaults.sparse_keys;
  options.sparse_sink = defaults.sparse_sink;
  options.sparse_recent = defaults.sparse_recent;
  options.sparse_share = defaults.sparse_share;
  options.sparse_top_p = defaults.sparse_top_p;
  options.sparse_least = defaults.sparse_least;
  options.sparse_epsilon = defaults.sparse_epsilon;
  options.sparse_delta = defaults.sparse_delta;
  options.sparse_block = defaults.sparse_block;
  options.sparse_looks = defaults.sparse_looks;
  options.sparse_sketches = defaults.sparse_sketches;
  options.sparse_levels = defaults.sparse_levels;
  options.sparse_refresh = defaults.sparse_refresh;
  options.sparse_candidates_refresh = defaults.sparse_candidates_refresh;
  options.sparse_from = defaults.sparse_from;
  options.sparse_cache = defaults.sparse_cache;
  options.sparse_prefill = defaults.sparse_prefill;
  options.sparse_dense_every = defaults.sparse_dense_every;
  options.reach = defaults.reach;
  options.reach_positions = defaults.reach_positions;
  options.hip_stages = defaults.hip_stages;
  options.hip_refresh = defaults.hip_refresh;
  options.hip_outer_keys = defaults.hip_outer_keys;
  options.hip_positions = defaults.hip_positions;
  options.self_extend = defaults.self_extend;
  options.evict = defaults.evict;
  options.evict_budget = defaults.evict_budget;
  options.evict_window = defaults.evict_window;
  options.evict_pool = defaults.evict_pool;
  options.evict_sink = defaults.evict_sink;
  options.evict_safeguard = defaults.evict_safeguard;
  options.evict_steepness = defaults.evict_steepness;
  options.evict_future = defaults.evict_future;
  options.evict_profile = defaults.evict_profile;
  options.evict_room = defaults.evict_room;
  options.evicted = defaults.evicted;
  options.evicted_keys = defaults.evicted_keys;
  options.evicted_refresh = defaults.evicted_refresh;
  options.hgca = defaults.hgca;
  options.hgca_window = defaults.hgca_window;
  options.hgca_alpha = defaults.hgca_alpha;
  options.hgca_every = defaults.hgca_every;
  options.hgca_most = defaults.hgca_most;
  options.hgca_queries = defaults.hgca_queries;
  options.hgca_reselect = defaults.hgca_reselect;
  options.hgca_on = defaults.hgca_on;
  options.hgca_epsilon = defaults.hgca_epsilon;
  options.hgca_delta = defaults.hgca_delta;
  options.session = defaults.session;
  options.session_recut = defaults.session_recut;
  options.trace = defaults.trace;
  return options;
}

std::vector<Approximation> ApproximationsOf(const EngineOptions& options) {
  const EngineOptions defaults;
  std::vector<Approximation> all;
  if (options.kv_encoding != defaults.kv_encoding && options.kv_encoding != "none" &&
      options.kv_encoding != "lossless") {
    all.push_back({"kv-encoding", {{"encoding", options.kv_encoding}}});
  }
  if (!options.head_pattern.empty()) {
    Approximation heads{"streaming-heads", {{"pattern", options.head_pattern}}};
    if (options.sparsity >= 0.0) heads.parameters.push_back({"sparsity", options.sparsity});
    if (options.sink_tokens >= 0) heads.parameters.push_back({"sink_tokens", options.sink_tokens});
    if (options.recent_tokens > 0) {
      heads.parameters.push_back({"recent_tokens", options.recent_tokens});
    }
    all.push_back(heads);
  }
  if (options.selector != defaults.selector) {
    Approximation selection{"selection",
                            {{"selector", options.selector},
                             {"keys", options.sparse_keys},
                             {"sink", options.sparse_sink},
                             {"recent", options.sparse_recent}}};
    if (options.sparse_block > 0) {
      selection.parameters.push_back({"block", int64_t{options.sparse_block}});
    }
    if (options.selector == "infinitehip") {
      selection.parameters.push_back({"stages", options.hip_stages});
      selection.parameters.push_back({"outer_keys", options.hip_outer_keys});
      selection.parameters.push_back({"key_positions", options.hip_positions});
      if (!options.hip_refresh.empty()) {
        selection.parameters.push_back({"stage_refresh", options.hip_refresh});
      }
    }
    if (options.selector == "pages") {
      selection.parameters.push_back({"looks", int64_t{options.sparse_looks}});
    }
    if (options.sparse_levels > 1) {
      selection.parameters.push_back({"levels", int64_t{options.sparse_levels}});
    }
    if (options.sparse_top_p > 0) {
      selection.parameters.push_back({"top_p", options.sparse_top_p});
      selection.parameters.push_back({"least", options.sparse_least});
    }
    if (options.sparse_epsilon > 0) {
      selection.parameters.push_back({"epsilon", options.sparse_epsilon});
      selection.parameters.push_back({"delta", options.sparse_delta});
    }
    if (options.sparse_refresh > 1) {
      selection.parameters.push_back({"refresh", options.sparse_refresh});
    }
    if (options.sparse_candidates_refresh > 1) {
      selection.parameters.push_back({"candidates_refresh", options.sparse_candidates_refresh});
    }
    if (options.sparse_share > 0) selection.parameters.push_back({"share", options.sparse_share});
    selection.parameters.push_back({"prompts", options.sparse_prefill ? "selected" : "exact"});
    if (options.sparse_dense_every > 0) {
      selection.parameters.push_back({"dense_every", options.sparse_dense_every});
    }
    selection.parameters.push_back({"reach", options.reach});
    selection.parameters.push_back({"reach_positions", options.reach_positions});
    all.push_back(selection);
  }
  if (!options.self_extend.empty()) {
    all.push_back({"self-extend", {{"positions", options.self_extend}}});
  }
  if (options.evict != defaults.evict) all.push_back(EvictionOf(options));
  if (options.hgca > 0.0 || options.hgca_reselect > 0) all.push_back(HgcaOf(options));
  return all;
}

}  // namespace headway::eval
