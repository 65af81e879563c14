#include "engine/head_pattern.h"

#include <string>

namespace headway {

Result<kv::HeadPattern> LoadHeadPattern(Env& env, const EngineOptions& options,
                                        const ModelShape& shape) {
  const auto wrong = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
  };
  if (options.head_pattern.empty()) {
    if (options.sparsity >= 0.0 || options.sink_tokens >= 0 || options.recent_tokens > 0) {
      return wrong(
          "streaming heads are chosen by their scores; give a --head-pattern file, which "
          "headway profile-heads makes");
    }
    return kv::HeadPattern();
  }
  kv::HeadPatternChoice choice;
  choice.layers = shape.layers;
  choice.kv_heads = shape.kv_heads;
  if (options.sparsity >= 0.0) choice.sparsity = options.sparsity;
  if (options.sink_tokens >= 0) choice.sink = options.sink_tokens;
  if (options.recent_tokens > 0) choice.recent = options.recent_tokens;

  // As DuoAttention publishes its patterns: a folder with the scores and how they were trained.
  std::string path = options.head_pattern;
  if (env.IsDirectory(path)) path += "/full_attention_heads.tsv";
  Result<std::string> text = env.ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) return Status(text.status().code(), "--head-pattern: " + text.status().message());
  const size_t slash = path.rfind('/');
  const std::string beside =
      (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + "config.json";
  if (path.ends_with(".tsv") && env.Exists(beside)) {
    Result<std::string> config = env.ReadFile(beside, kMaxConfigBytes);
    if (!config.ok()) return config.status();
    if (Status s = kv::ReadDuoAttentionConfig(*config, beside, &choice); !s.ok()) return s;
  }
  Result<kv::HeadPattern> pattern = kv::ParseHeadPattern(*text, path, choice);
  if (pattern.ok() && pattern->StreamingHeads() > 0 && !options.session.empty()) {
    return wrong("a session keeps every head's whole cache; leave out --session or --head-pattern");
  }
  return pattern;
}

}  // namespace headway
