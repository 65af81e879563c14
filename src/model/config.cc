#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/json/json.h"
#include "model/arch/family.h"
#include "model/config_reader.h"
#include "model/foreign.h"

namespace headway {

namespace {

constexpr size_t kMaxEos = 1024;

using Families = std::span<const arch::Family* const>;

std::string SupportedArchitectures(Families families) {
  std::string list;
  for (const arch::Family* family : families) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", family->architecture);
  }
  return list;
}

// Of the family, or of its base class, which is saved without the head.
bool IsArchitecture(const arch::Family& family, std::string_view architecture) {
  std::string_view stem = family.architecture;
  if (architecture == stem) return true;
  constexpr std::string_view kHead = "ForCausalLM";
  if (!stem.ends_with(kHead)) return false;
  stem.remove_suffix(kHead.size());
  return architecture == fmt::format("{}Model", stem);
}

// By `architectures` and `model_type`, which must agree where both are there.
const arch::Family* FindFamily(ConfigReader& config, Families families) {
  const std::string model_type = config.String("model_type", "");
  std::string architecture;
  const nlohmann::json* list = config.Find("architectures");
  if (list != nullptr && list->is_array() && !list->empty() && list->front().is_string()) {
    architecture = list->front().get<std::string>();
  }
  for (const arch::Family* family : families) {
    if ((architecture.empty() || IsArchitecture(*family, architecture)) &&
        (model_type.empty() || model_type == family->model_type) &&
        !(architecture.empty() && model_type.empty())) {
      return family;
    }
  }
  config.Unsupported(fmt::format(
      "architecture '{}' (model_type '{}') is not supported; supported are {}",
      Printable(architecture), Printable(model_type), SupportedArchitectures(families)));
  return nullptr;
}

void RefuseUnsupported(ConfigReader& config, const arch::Family& family) {
  const arch::ActivationKey& known = family.activation;
  const std::string activation = config.String(known.key, known.names.front());
  if (std::find(known.names.begin(), known.names.end(), activation) == known.names.end()) {
    config.Unsupported(fmt::format("{} '{}' is not supported; supported {} {}", known.key,
                                   Printable(activation), known.names.size() == 1 ? "is" : "are",
                                   fmt::join(known.names, ", ")));
  }
  if (const nlohmann::json* quantization = config.Find("quantization_config")) {
    std::string method = "unknown";
    if (quantization->is_object()) {
      method = ConfigReader(*quantization, "").String("quant_method", "unknown");
    }
    config.Unsupported(fmt::format(
        "quantised weights (quantization_config: {}) are not supported; use the model in F32, F16 "
        "or BF16",
        Printable(method)));
  }
}

DType ReadDType(ConfigReader& config) {
  const std::string name = config.String("dtype", config.String("torch_dtype", "float32").c_str());
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name != "float32") {
    config.Unsupported(fmt::format(
        "dtype '{}' is not supported; supported are bfloat16, float16, float32", Printable(name)));
  }
  return DType::kF32;
}

// One id or a list of them; `fallback` below zero: none.
std::vector<TokenId> ReadTokens(ConfigReader& reader, const char* key, TokenId fallback) {
  const nlohmann::json* value = reader.Find(key);
  std::vector<TokenId> tokens;
  if (value == nullptr) {
    if (fallback >= 0) tokens.push_back(fallback);
    return tokens;
  }
  if (!value->is_array()) {
    tokens.push_back(static_cast<TokenId>(reader.Int(key, 0, kMaxPosition, std::nullopt)));
    return tokens;
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{kMaxPosition} ||
        tokens.size() == kMaxEos) {
      reader.Fail(fmt::format("{} is not a token id or a short list of them", key));
      return tokens;
    }
    tokens.push_back(static_cast<TokenId>(item.get<uint64_t>()));
  }
  return tokens;
}

// The ids of generation_config.json come before those of config.json.
void ReadSpecialTokens(ConfigReader& config, ConfigReader& generation, const arch::Family& family,
                       ModelConfig* model) {
  const TokenId bos_default = config.HasKey("bos_token_id") ? -1 : family.default_bos;
  const TokenId eos_default = config.HasKey("eos_token_id") ? -1 : family.default_eos;
  std::vector<TokenId> bos = ReadTokens(config, "bos_token_id", bos_default);
  model->eos = ReadTokens(config, "eos_token_id", eos_default);
  if (generation.Find("bos_token_id") != nullptr) bos = ReadTokens(generation, "bos_token_id", -1);
  if (generation.Find("eos_token_id") != nullptr) {
    model->eos = ReadTokens(generation, "eos_token_id", -1);
  }
  if (!bos.empty()) model->bos = bos.front();
}

// Every number is taken: it concerns only who samples by it, and the sampler says what it takes.
GenerationDefaults ReadGeneration(ConfigReader& generation) {
  constexpr double kAny = std::numeric_limits<float>::max();
  GenerationDefaults defaults;
  if (generation.Find("do_sample") != nullptr) {
    defaults.do_sample = generation.Bool("do_sample", false);
  }
  defaults.temperature = generation.MaybeNumber("temperature", -kAny, kAny);
  defaults.top_p = generation.MaybeNumber("top_p", -kAny, kAny);
  defaults.min_p = generation.MaybeNumber("min_p", -kAny, kAny);
  defaults.repetition_penalty = generation.MaybeNumber("repetition_penalty", -kAny, kAny);
  if (generation.Find("top_k") != nullptr) {
    defaults.top_k = generation.Int("top_k", -1, kMaxPosition, std::nullopt);
  }
  return defaults;
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_json,
                                     const std::string& config_path, Families families) {
  const std::string generation_path =
      config_path.substr(0, config_path.find_last_of('/') + 1) + "generation_config.json";
  Result<nlohmann::json> config_object = ParseJsonObject(config_json, config_path);
  if (!config_object.ok()) return config_object.status();
  Result<nlohmann::json> generation_object =
      ParseJsonObject(generation_json.empty() ? "{}" : generation_json, generation_path);
  if (!generation_object.ok()) return generation_object.status();
  ConfigReader config(*config_object, config_path);
  ConfigReader generation(*generation_object, generation_path);

  // What Headway does not run at all comes first: its other keys may mean something else.
  const arch::Family* family = FindFamily(config, families);
  if (family != nullptr) RefuseUnsupported(config, *family);
  if (!config.status().ok()) return config.status();

  ModelConfig model;
  model.architecture = family->architecture;
  model.family = family;
  family->read_shape(config, &model.shape);
  if (!config.status().ok()) return config.status();
  model.shape.dtype = ReadDType(config);
  model.windows.assign(static_cast<size_t>(model.shape.layers), 0);
  family->read(config, &model);
  model.max_position_given = config.HasKey("max_position_embeddings");
  ReadSpecialTokens(config, generation, *family, &model);
  model.generation = ReadGeneration(generation);
  if (!config.status().ok()) return config.status();
  if (!generation.status().ok()) return generation.status();
  return model;
}

Result<ModelConfig> ReadModelConfig(Env& env, const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  const std::string generation_path = folder + "/generation_config.json";
  if (!env.Exists(config_path)) {
    return RefuseFolder(env, folder,
                        "no config.json; a model is a Hugging Face folder with config.json, "
                        "tokenizer.json and safetensors");
  }
  Result<std::string> config = env.ReadFile(config_path, kMaxConfigBytes);
  if (!config.ok()) return config.status();
  std::string generation_text;
  if (env.Exists(generation_path)) {
    Result<std::string> generation = env.ReadFile(generation_path, kMaxConfigBytes);
    if (!generation.ok()) return generation.status();
    if (generation->empty()) {
      return Status(StatusCode::kCorrupt, generation_path + ": an empty file; get it again");
    }
    generation_text = std::move(*generation);
  }
  return ParseModelConfig(*config, generation_text, config_path);
}

Status ScaleRope(const RopeScaling& scaling, ModelConfig* config) {
  if (config->rope.type != RopeType::kDefault || config->max_position <= 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has rotary angles of type {}; those of type default alone can be "
                              "scaled",
                              config->architecture, RopeTypeName(config->rope.type)));
  }
  config->rope.type = scaling.type;
  config->rope.factor = scaling.factor;
  config->max_position =
      static_cast<int64_t>(static_cast<double>(config->max_position) * scaling.factor);
  return OkStatus();
}

ModelConfig LayersOf(const ModelConfig& whole, int begin, int count) {
  ModelConfig run = whole;
  run.first_layer = whole.first_layer + begin;
  run.shape.layers = count;
  run.windows.assign(whole.windows.begin() + begin, whole.windows.begin() + begin + count);
  return run;
}

}  // namespace headway
