#include "engine/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "base/fnv.h"
#include "engine/blueprint.h"
#include "model/config_identity.h"

namespace headway {

int64_t ProgramBytes(int64_t tokens) {
  constexpr int64_t kProgramBytes = 12 * kMiB;
  constexpr int64_t kBytesPerToken = 100;
  return kProgramBytes + kBytesPerToken * tokens;
}

Result<ModelConfig> ReadRandomConfig(Env& env, const std::string& path) {
  const std::string file = env.IsDirectory(path) ? path + "/config.json" : path;
  Result<std::string> json = env.ReadFile(file, kMaxConfigBytes);
  if (!json.ok()) return json.status();
  return ParseModelConfig(*json, "", file);
}

namespace {

// Out of bounds where the file is: Validate says so to who uses them.
SamplingOptions ProposedSampling(const GenerationDefaults& file) {
  SamplingOptions proposed;
  // Transformers' temperature is 1 where the file samples and gives none.
  if (file.do_sample.value_or(false)) {
    proposed.temperature = static_cast<float>(file.temperature.value_or(1.0));
  }
  proposed.top_k = static_cast<int>(
      std::clamp<int64_t>(file.top_k.value_or(0), 0, std::numeric_limits<int>::max()));
  if (file.top_p.has_value()) proposed.top_p = static_cast<float>(*file.top_p);
  if (file.min_p.has_value()) proposed.min_p = static_cast<float>(*file.min_p);
  if (file.repetition_penalty.has_value()) {
    proposed.repetition_penalty = static_cast<float>(*file.repetition_penalty);
  }
  return proposed;
}

}  // namespace

std::string ConfigHash(const ModelConfig& config) {
  return fmt::format("{:016x}", Fnv1a(ConfigIdentity(config)));
}

ModelInfo ModelInfoOf(const ModelConfig& config, const WeightBytes& weights,
                      const std::string& folder, const Settings& settings) {
  const ModelShape& shape = config.shape;
  ModelInfo info;
  info.folder = folder;
  info.architecture = config.architecture;
  info.dtype = DTypeName(shape.dtype);
  info.layers = shape.layers;
  info.d_model = shape.d_model;
  info.query_heads = shape.query_heads;
  info.kv_heads = shape.kv_heads;
  info.head_dim = shape.head_dim;
  info.d_ff = shape.d_ff;
  info.vocab = shape.vocab;
  info.max_position = config.max_position;
  info.weight_bytes = weights.total();
  info.step_weight_bytes = weights.total() - weights.row_tables;
  const Encoding* codes = std::get_if<Encoding>(&settings.encoding);
  info.kv_bytes_per_token =
      ClosedBytesPerToken(shape, {shape.dtype, settings.cut.page_slots, shape.head_dim,
                                  codes == nullptr ? Encoding::kNone : *codes});
  info.rope_type = RopeTypeName(config.rope.type);
  info.config_hash = ConfigHash(config);
  info.bos = config.bos;
  info.eos = config.eos;
  info.sampling = ProposedSampling(config.generation);
  return info;
}

}  // namespace headway
