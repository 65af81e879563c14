#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/env.h"
#include "base/exceptions.h"
#include "headway/engine.h"
#include "kv/session/slab_file.h"
#include "model/config.h"
#include "model/locate.h"
#include "model/rope.h"
#include "model/weights/open_weights.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {
namespace {

// Of a session of what heads keep.
std::string DescribeKept(const kv::SavedKept& kept) {
  size_t tokens = 0;
  for (const std::vector<int32_t>& positions : kept.positions) tokens += positions.size();
  return fmt::format("{}: {} of {} tokens of the prompt a head", kept.policy,
                     tokens / std::max<size_t>(kept.positions.size(), 1), kept.from);
}

Inspection InspectionOfSession(const std::string& path, const kv::Manifest& manifest) {
  const kv::CacheFormat& format = manifest.format;
  const auto& page = format.page;
  return {
      "session file",
      path,
      {{"tokens", std::to_string(manifest.tokens.size())},
       {"layers", std::to_string(format.layers)},
       {"KV heads", fmt::format("{} (head group {})", format.kv_heads, format.group_heads)},
       {"head dimension", fmt::format("{}, {}", page.head_dim, DTypeName(page.dtype))},
       {"page", fmt::format("{} slots", page.page_slots)},
       {"segment", fmt::format("{} tokens", format.segment_tokens())},
       {"slabs", fmt::format("{} of {}", manifest.slabs.size(), FormatBytes(format.slab_bytes()))},
       {"keys", manifest.keys_rotated ? "after RoPE" : "before RoPE"},
       {"attention", manifest.kept.has_value() ? "of tokens behind the prompt, to what is kept"
                     : manifest.approximate    ? "of some tokens, to chosen keys (selection)"
                                               : "exact"},
       {"kept", manifest.kept.has_value() ? DescribeKept(*manifest.kept) : "all tokens"},
       {"weights hash", fmt::format("{:016x}", manifest.weights_hash)},
       {"tokenizer hash", fmt::format("{:016x}", manifest.tokenizer_hash)},
       {"RoPE hash", fmt::format("{:016x}", manifest.rope_hash)}}};
}

// What generation_config.json proposes for sampling. Headway decodes greedily unless asked.
std::string DescribeSampling(const GenerationDefaults& defaults) {
  std::string text = defaults.do_sample.value_or(false) ? "sampled" : "greedy";
  const auto add = [&](const char* name, const auto& value) {
    if (value.has_value()) text += fmt::format(", {} {}", name, *value);
  };
  add("temperature", defaults.temperature);
  add("top-k", defaults.top_k);
  add("top-p", defaults.top_p);
  add("min-p", defaults.min_p);
  add("repetition penalty", defaults.repetition_penalty);
  return text;
}

// Where not all of a head rotates.
std::string DescribeRotaryDim(const ModelConfig& config) {
  const int head_dim = config.shape.head_dim;
  const int rotary_dim = RotaryDim(config.rope, head_dim);
  if (rotary_dim == head_dim) return "";
  return fmt::format(", {} of {} elements of a head", rotary_dim, head_dim);
}

Inspection InspectFolder(const std::string& folder, const ModelConfig& config,
                         const WeightSource& weights) {
  const ModelShape& shape = config.shape;
  Inspection inspection{
      "model folder",
      folder,
      {{"architecture", config.architecture},
       {"layers", std::to_string(shape.layers)},
       {"d_model", fmt::format("{}, d_ff {}", shape.d_model, shape.d_ff)},
       {"query heads", fmt::format("{}, KV heads {} (group {})", shape.query_heads, shape.kv_heads,
                                   shape.group())},
       {"head dimension", std::to_string(shape.head_dim)},
       {"vocabulary",
        fmt::format("{}{}", shape.vocab, config.tied_embeddings ? ", tied embeddings" : "")},
       {"trained length", config.learned_positions
                              ? fmt::format("{} learned positions", config.max_position)
                              : fmt::format("{} tokens, RoPE {} (theta {}{})", config.max_position,
                                            RopeTypeName(config.rope.type), config.rope.theta,
                                            DescribeRotaryDim(config))}}};
  const auto add = [&](const char* name, std::string value) {
    inspection.fields.emplace_back(name, std::move(value));
  };
  int64_t windowed = 0, window = 0;
  for (int64_t w : config.windows) {
    windowed += w > 0 ? 1 : 0;
    window = std::max(window, w);
  }
  if (windowed > 0) {
    add("sliding window", fmt::format("{} tokens in {} layers", window, windowed));
  }
  add("proposes", DescribeSampling(config.generation) + " (generation_config.json)");
  add("weights",
      fmt::format("{} tensors, {}", weights.Names().size(), FormatBytes(weights.file_bytes())));
  add("KV cache",
      fmt::format("{} a token ({})", FormatBytes(shape.KvBytesPerToken()), DTypeName(shape.dtype)));
  return inspection;
}

// What stands in the folder, or why it cannot be used.
template <typename Loaded>
std::string Availability(const Result<Loaded>& loaded, const std::string& found) {
  if (loaded.ok()) return found;
  return loaded.status().code() == StatusCode::kNotFound ? "none" : loaded.status().message();
}

}  // namespace

Result<Inspection> Inspect(const std::string& path) try {
  Env* env = Env::Default();
  if (env->Exists(path) && !env->IsDirectory(path)) {
    Result<kv::Manifest> manifest = kv::InspectSession(env, path);
    if (manifest.status().code() == StatusCode::kInvalidArgument) {
      return Status(StatusCode::kInvalidArgument,
                    path + " is not a Headway session; a model is inspected by its folder");
    }
    if (!manifest.ok()) return manifest.status();
    return InspectionOfSession(path, *manifest);
  }
  Result<std::string> folder = LocateModel(*env, path, ProcessEnvironment());
  if (!folder.ok()) return folder.status();
  Result<ModelConfig> config = ReadModelConfig(*env, *folder);
  if (!config.ok()) return config.status();
  Result<std::unique_ptr<WeightSource>> weights = OpenWeights(*env, *folder);
  if (!weights.ok()) return weights.status();
  Inspection inspection = InspectFolder(*folder, *config, **weights);
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(env, *folder);
  const std::string tokens =
      tokenizer.ok() ? fmt::format("{} tokens", (*tokenizer)->vocab_size()) : "";
  inspection.fields.emplace_back("tokenizer", Availability(tokenizer, tokens));
  inspection.fields.emplace_back("chat template",
                                 Availability(ChatTemplate::Load(env, *folder), "yes"));
  return inspection;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
