#include "engine/eval/approximation.h"

namespace headway::eval {

EngineOptions ExactOptions(EngineOptions options) {
  const EngineOptions defaults;
  options.kv_encoding = defaults.kv_encoding;
  options.head_pattern = defaults.head_pattern;
  options.sparsity = defaults.sparsity;
  options.sink_tokens = defaults.sink_tokens;
  options.recent_tokens = defaults.recent_tokens;
  options.selector = defaults.selector;
  options.sparse_prefill = defaults.sparse_prefill;
  options.reach = defaults.reach;
  options.session = defaults.session;
  options.session_recut = defaults.session_recut;
  options.trace = defaults.trace;
  return options;
}

std::vector<Approximation> ApproximationsOf(const EngineOptions& options) {
  const EngineOptions defaults;
  std::vector<Approximation> all;
  if (options.kv_encoding != defaults.kv_encoding) {
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
    all.push_back({"selection",
                   {{"selector", options.selector},
                    {"keys", options.sparse_keys},
                    {"sink", options.sparse_sink},
                    {"recent", options.sparse_recent},
                    {"block", int64_t{options.sparse_block}},
                    {"prompts", options.sparse_prefill ? "selected" : "exact"},
                    {"reach", options.reach}}});
  }
  return all;
}

}  // namespace headway::eval
