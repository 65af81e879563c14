#include "engine/head_pattern.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "engine/refused.h"

namespace headway {

Result<kv::HeadPattern> LoadHeadPattern(Env& env, const Settings& settings,
                                        const ModelShape& shape) {
  if (!settings.streaming_heads.has_value()) return kv::HeadPattern();
  const StreamingHeadsSettings& heads = *settings.streaming_heads;
  kv::HeadPatternChoice choice;
  choice.layers = shape.layers;
  choice.kv_heads = shape.kv_heads;
  choice.sparsity = heads.sparsity;
  choice.sink = heads.sink;
  choice.recent = heads.recent;

  // As DuoAttention publishes its patterns: a folder with the scores and how they were trained.
  std::string path = heads.pattern;
  if (env.IsDirectory(path)) path += "/full_attention_heads.tsv";
  Result<std::string> text = env.ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) return text.status().Within({Option::kHeadPattern, ": "});
  const size_t slash = path.rfind('/');
  const std::string beside =
      (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + "config.json";
  if (path.ends_with(".tsv") && env.Exists(beside)) {
    Result<std::string> config = env.ReadFile(beside, kMaxConfigBytes);
    if (!config.ok()) return config.status();
    if (Status s = kv::ReadDuoAttentionConfig(*config, beside, &choice); !s.ok()) return s;
  }
  Result<kv::HeadPattern> pattern = kv::ParseHeadPattern(*text, path, choice);
  if (pattern.ok() && pattern->StreamingHeads() > 0 && settings.session.has_value()) {
    return Wrong({"a session keeps every head's whole cache; leave out ", Option::kSession, " or ",
                  Option::kHeadPattern});
  }
  return pattern;
}

std::vector<kv::HeadPattern> PatternsOfRanks(const kv::HeadPattern& whole, const RankHeads& heads,
                                             int places) {
  std::vector<kv::HeadPattern> patterns(heads.ranks.size());
  if (whole.streaming.empty()) return patterns;
  for (size_t rank = 0; rank < patterns.size(); ++rank) {
    kv::HeadPattern& own = patterns[rank];
    own.sink = whole.sink;
    own.recent = whole.recent;
    for (size_t layer = 0; layer < whole.streaming.size(); ++layer) {
      std::vector<bool>& streams = own.streaming.emplace_back(static_cast<size_t>(places), true);
      const std::vector<int>& set = heads.ranks[rank][layer].heads;
      for (size_t at = 0; at < set.size(); ++at) {
        streams[at] = whole.IsStreaming(static_cast<int>(layer), set[at]);
      }
    }
  }
  return patterns;
}

std::vector<int> MostSlabHeads(const std::vector<kv::HeadPattern>& patterns, int places) {
  std::vector<int> most(patterns.front().streaming.size());
  for (const kv::HeadPattern& pattern : patterns) {
    for (size_t layer = 0; layer < most.size(); ++layer) {
      const int slabs = places - pattern.StreamingIn(static_cast<int>(layer));
      most[layer] = std::max(most[layer], slabs);
    }
  }
  return most;
}

kv::HeadPattern MostStreaming(const std::vector<kv::HeadPattern>& patterns) {
  kv::HeadPattern most = patterns.front();
  for (const kv::HeadPattern& pattern : patterns) {
    for (size_t layer = 0; layer < most.streaming.size(); ++layer) {
      const auto index = static_cast<int>(layer);
      if (pattern.StreamingIn(index) <= most.StreamingIn(index)) continue;
      most.streaming[layer] = pattern.streaming[layer];
    }
  }
  return most;
}

}  // namespace headway
