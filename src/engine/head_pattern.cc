#include "engine/head_pattern.h"

#include <string>

#include "headway/refusal.h"

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
    return Status(StatusCode::kInvalidArgument,
                  Refusal{{"a session keeps every head's whole cache; leave out ", Option::kSession,
                           " or ", Option::kHeadPattern}});
  }
  return pattern;
}

}  // namespace headway
