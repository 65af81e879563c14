#include <fmt/format.h>

#include "base/bytes.h"
#include "base/env.h"
#include "headway/engine.h"
#include "kv/store/slab_file.h"
#include "model/config.h"
#include "model/locate.h"
#include "model/rope.h"
#include "model/safetensors.h"

namespace headway {
namespace {

std::vector<std::string> DescribeSession(const kv::Manifest& manifest) {
  const kv::CacheFormat& format = manifest.format;
  std::vector<std::string> lines;
  lines.push_back("session file");
  lines.push_back(fmt::format("  tokens          {}", manifest.tokens.size()));
  lines.push_back(fmt::format("  layers          {}", format.layers));
  lines.push_back(
      fmt::format("  KV heads        {} (head group {})", format.kv_heads, format.group_heads));
  lines.push_back(
      fmt::format("  head dimension  {}, {}", format.page.head_dim, DTypeName(format.page.dtype)));
  lines.push_back(fmt::format("  page            {} slots", format.page.page_slots));
  lines.push_back(fmt::format("  segment         {} tokens", format.segment_tokens()));
  lines.push_back(fmt::format("  slabs           {} of {}", manifest.slabs.size(),
                              FormatBytes(format.slab_bytes())));
  lines.push_back(
      fmt::format("  keys            {}", manifest.keys_rotated ? "after RoPE" : "before RoPE"));
  lines.push_back(fmt::format("  weights hash    {:016x}", manifest.weights_hash));
  lines.push_back(fmt::format("  tokenizer hash  {:016x}", manifest.tokenizer_hash));
  lines.push_back(fmt::format("  RoPE hash       {:016x}", manifest.rope_hash));
  return lines;
}

std::vector<std::string> DescribeModel(const std::string& folder, const ModelConfig& config,
                                       const Weights& weights) {
  const ModelShape& shape = config.shape;
  std::vector<std::string> lines;
  lines.push_back("model folder " + folder);
  lines.push_back(fmt::format("  architecture    {}", config.architecture));
  lines.push_back(fmt::format("  layers          {}", shape.layers));
  lines.push_back(fmt::format("  d_model         {}, d_ff {}", shape.d_model, shape.d_ff));
  lines.push_back(fmt::format("  query heads     {}, KV heads {} (group {})", shape.query_heads,
                              shape.kv_heads, shape.group()));
  lines.push_back(fmt::format("  head dimension  {}", shape.head_dim));
  lines.push_back(fmt::format("  vocabulary      {}{}", shape.vocab,
                              config.tied_embeddings ? ", tied embeddings" : ""));
  lines.push_back(fmt::format("  trained length  {} tokens, RoPE {} (theta {})",
                              config.max_position, RopeTypeName(config.rope.type),
                              config.rope.theta));
  int64_t windowed = 0, window = 0;
  for (int64_t w : config.windows) {
    windowed += w > 0 ? 1 : 0;
    window = std::max(window, w);
  }
  if (windowed > 0) {
    lines.push_back(fmt::format("  sliding window  {} tokens in {} layers", window, windowed));
  }
  lines.push_back(fmt::format("  weights         {} tensors, {}", weights.Names().size(),
                              FormatBytes(weights.file_bytes())));
  lines.push_back(fmt::format("  KV cache        {} a token ({})",
                              FormatBytes(shape.KvBytesPerToken()), DTypeName(shape.dtype)));
  return lines;
}

}  // namespace

Result<std::vector<std::string>> Inspect(const std::string& path) {
  Env* env = Env::Default();
  if (env->Exists(path) && !env->IsDirectory(path)) {
    Result<kv::Manifest> manifest = kv::InspectSession(env, path);
    if (!manifest.ok()) return manifest.status();
    return DescribeSession(*manifest);
  }
  Result<std::string> folder = LocateModel(*env, path, ProcessEnvironment());
  if (!folder.ok()) return folder.status();
  Result<ModelConfig> config = ReadModelConfig(*env, *folder);
  if (!config.ok()) return config.status();
  Result<Weights> weights = Weights::Open(*env, *folder);
  if (!weights.ok()) return weights.status();
  return DescribeModel(*folder, *config, *weights);
}

}  // namespace headway
