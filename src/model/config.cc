#include "model/config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json/json.h"
#include "model/foreign.h"

namespace headway {

namespace {

// No published model is near these; they keep every product of a few of them far inside int64.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;  // d_model, d_ff, heads * head_dim
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxTable = int64_t{1} << 24;  // learned positions
constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxEos = 1024;

// Configured: by attention_bias and mlp_bias, or by enable_bias.
enum class Biases { kNone, kQkv, kConfigured };
enum class Windows { kNone, kEveryLayer, kByLayer };

// What config.json leaves out: the ways in which the architectures differ, and the defaults of
// Transformers' config classes for keys that may be absent.
struct Family {
  const char* architecture;
  const char* model_type;
  TensorNames names;  // and so the keys of config.json
  Biases biases;
  Windows windows;
  bool qk_norm;
  int64_t default_kv_heads;  // 0: as many as query heads
  int64_t default_head_dim;  // 0: hidden_size / num_attention_heads
  int64_t default_max_position;
  TokenId default_bos;  // -1: none
  TokenId default_eos;
};

constexpr TensorNames kLlama = TensorNames::kLlama;
constexpr std::array<Family, 5> kFamilies = {{
    {"LlamaForCausalLM", "llama", kLlama, Biases::kConfigured, Windows::kNone, false, 0, 0, 2048, 1,
     2},
    {"MistralForCausalLM", "mistral", kLlama, Biases::kNone, Windows::kEveryLayer, false, 8, 0,
     131072, 1, 2},
    {"Qwen2ForCausalLM", "qwen2", kLlama, Biases::kQkv, Windows::kByLayer, false, 32, 0, 32768, -1,
     -1},
    {"Qwen3ForCausalLM", "qwen3", kLlama, Biases::kConfigured, Windows::kByLayer, true, 32, 128,
     32768, -1, -1},
    {"OPTForCausalLM", "opt", TensorNames::kOpt, Biases::kConfigured, Windows::kNone, false, 0, 0,
     2048, 2, 2},
}};

std::string Shown(const nlohmann::json& value) {
  // A list or an object may be nested so deep that printing it would exhaust the stack.
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return Printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

// Reads keys of one JSON object and remembers the first thing that was wrong, so that a list of
// reads needs one check at its end.
class KeyReader {
 public:
  KeyReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const Status& status() const { return status_; }

  // Null when absent or JSON null.
  const nlohmann::json* Find(const char* key) const {
    auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool HasKey(const char* key) const { return object_.contains(key); }

  // A whole number in [low, high]; `fallback` when absent, an error when that is empty.
  int64_t Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(fmt::format("no {}", key));
      return fallback.value_or(low);
    }
    // As unsigned, what exceeds int64 would turn negative.
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
      Fail(
          fmt::format("{} is {}, not a whole number from {} to {}", key, Shown(*value), low, high));
      return low;
    }
    return value->get<int64_t>();
  }

  // A number in [low, high].
  double Number(const char* key, double low, double high, std::optional<double> fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Fail(fmt::format("no {}", key));
      return fallback.value_or(low);
    }
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
      Fail(fmt::format("{} is {}, not a number from {} to {}", key, Shown(*value), low, high));
      return low;
    }
    return value->get<double>();
  }

  std::optional<double> MaybeNumber(const char* key, double low, double high) {
    if (Find(key) == nullptr) return std::nullopt;
    return Number(key, low, high, std::nullopt);
  }

  bool Bool(const char* key, bool fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Fail(fmt::format("{} is neither true nor false", key));
      return fallback;
    }
    return value->get<bool>();
  }

  std::string String(const char* key, const char* fallback) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      Fail(fmt::format("{} is not a string", key));
      return fallback;
    }
    return value->get<std::string>();
  }

  void Fail(const std::string& what, StatusCode code = StatusCode::kCorrupt) {
    if (status_.ok()) status_ = Status(code, fmt::format("{}: {}", where_, what));
  }
  void Adopt(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  void Unsupported(const std::string& what) { Fail(what, StatusCode::kUnsupported); }

 private:
  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

void ReadYarn(KeyReader& scaling, int64_t max_position, RopeConfig* rope) {
  // Without a factor, the stretch is that of the lengths.
  const double ratio =
      static_cast<double>(max_position) / static_cast<double>(rope->original_max_position);
  rope->factor = scaling.Number("factor", 1e-6, kMaxFactor, ratio);
  rope->attention_factor = scaling.MaybeNumber("attention_factor", 0.0, kMaxFactor);
  // Zero counts as not given, as in Transformers.
  rope->beta_fast = scaling.Number("beta_fast", 0.0, kMaxFactor, 32.0);
  rope->beta_slow = scaling.Number("beta_slow", 0.0, kMaxFactor, 1.0);
  if (rope->beta_fast == 0.0) rope->beta_fast = 32.0;
  if (rope->beta_slow == 0.0) rope->beta_slow = 1.0;
  rope->mscale = scaling.Number("mscale", 0.0, kMaxFactor, 0.0);
  rope->mscale_all_dim = scaling.Number("mscale_all_dim", 0.0, kMaxFactor, 0.0);
  rope->truncate = scaling.Bool("truncate", true);
}

void ReadLlama3(KeyReader& scaling, RopeConfig* rope) {
  rope->factor = scaling.Number("factor", 1e-6, kMaxFactor, std::nullopt);
  rope->low_freq_factor = scaling.Number("low_freq_factor", 1e-6, kMaxFactor, std::nullopt);
  rope->high_freq_factor = scaling.Number("high_freq_factor", 1e-6, kMaxFactor, std::nullopt);
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    scaling.Fail("high_freq_factor is not above low_freq_factor");
  }
}

// Two spellings: `rope_theta` beside `rope_scaling` {type or rope_type, ...}, and since
// Transformers 5 one `rope_parameters` that holds all.
RopeConfig ReadRope(KeyReader& config, int64_t max_position, const std::string& where) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const char* key = config.Find("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* parameters = config.Find(key);
  RopeConfig rope;
  if (parameters != nullptr && !parameters->is_object()) {
    config.Fail(fmt::format("{} is not an object", key));
    return rope;
  }
  KeyReader scaling(parameters != nullptr ? *parameters : kEmpty,
                    fmt::format("{}: {}", where, key));
  rope.theta = config.Number("rope_theta", 1.0, kMaxTheta, 10000.0);
  rope.theta = scaling.Number("rope_theta", 1.0, kMaxTheta, rope.theta);
  if (rope.theta <= 1.0) config.Fail("rope_theta is not above 1");
  rope.max_position = max_position;
  rope.original_max_position = max_position;

  const std::string type = scaling.String("rope_type", scaling.String("type", "default").c_str());
  for (KeyReader* reader : {&config, &scaling}) {
    if (reader->Number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
      reader->Unsupported("partial_rotary_factor other than 1 is not supported");
    }
  }
  if (type == "llama3" || type == "yarn") {
    const char* original = "original_max_position_embeddings";
    rope.original_max_position = scaling.Int(original, 1, kMaxPosition, max_position);
    rope.original_max_position = config.Int(original, 1, kMaxPosition, rope.original_max_position);
  }
  if (type == "default") {
    rope.type = RopeType::kDefault;
  } else if (type == "linear" || type == "dynamic") {
    rope.type = type == "linear" ? RopeType::kLinear : RopeType::kDynamic;
    rope.factor = scaling.Number("factor", 1e-6, kMaxFactor, std::nullopt);
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    ReadYarn(scaling, max_position, &rope);
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    ReadLlama3(scaling, &rope);
  } else {
    scaling.Unsupported(fmt::format(
        "rope type '{}' is not supported; supported are default, linear, dynamic, yarn, llama3",
        Printable(type)));
  }
  config.Adopt(scaling.status());
  return rope;
}

std::string SupportedArchitectures() {
  std::string list;
  for (const Family& family : kFamilies) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", family.architecture);
  }
  return list;
}

// Of the family, or of its base class, which is saved without the head.
bool IsArchitecture(const Family& family, std::string_view architecture) {
  const std::string_view name = family.architecture;
  constexpr std::string_view kHead = "ForCausalLM";
  const std::string_view stem = name.substr(0, name.size() - kHead.size());
  return architecture == name || architecture == fmt::format("{}Model", stem);
}

// By `architectures` and `model_type`, which must agree where both are there.
const Family* FindFamily(KeyReader& config) {
  const std::string model_type = config.String("model_type", "");
  std::string architecture;
  const nlohmann::json* list = config.Find("architectures");
  if (list != nullptr && list->is_array() && !list->empty() && list->front().is_string()) {
    architecture = list->front().get<std::string>();
  }
  for (const Family& family : kFamilies) {
    if ((architecture.empty() || IsArchitecture(family, architecture)) &&
        (model_type.empty() || model_type == family.model_type) &&
        !(architecture.empty() && model_type.empty())) {
      return &family;
    }
  }
  config.Unsupported(
      fmt::format("architecture '{}' (model_type '{}') is not supported; supported are {}",
                  Printable(architecture), Printable(model_type), SupportedArchitectures()));
  return nullptr;
}

void CheckHeadDim(KeyReader& config, const ModelShape& shape) {
  if (shape.head_dim % 2 != 0 || shape.head_dim < 2 || shape.head_dim > kMaxHeadDim) {
    config.Fail(fmt::format("head_dim is {}, not an even number from 2 to {}", shape.head_dim,
                            kMaxHeadDim));
  }
}

// A KV head for each query head; the heads are as wide as the model.
void ReadOptHeads(KeyReader& config, ModelShape* shape) {
  shape->kv_heads = shape->query_heads;
  if (shape->d_model % shape->query_heads != 0) {
    config.Fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                            shape->d_model, shape->query_heads));
  }
  shape->head_dim = shape->d_model / shape->query_heads;
  CheckHeadDim(config, *shape);
}

void ReadShape(KeyReader& config, const Family& family, ModelShape* shape) {
  shape->layers = static_cast<int>(config.Int("num_hidden_layers", 1, kMaxLayers, std::nullopt));
  shape->d_model = static_cast<int>(config.Int("hidden_size", 1, kMaxWidth, std::nullopt));
  const bool opt = family.names == TensorNames::kOpt;
  shape->gated_mlp = !opt;
  shape->d_ff = static_cast<int>(
      config.Int(opt ? "ffn_dim" : "intermediate_size", 1, kMaxWidth, std::nullopt));
  shape->vocab = static_cast<int>(config.Int("vocab_size", 1, kMaxVocab, std::nullopt));
  shape->query_heads =
      static_cast<int>(config.Int("num_attention_heads", 1, kMaxHeads, std::nullopt));

  if (opt) return ReadOptHeads(config, shape);
  // Null asks for the derived value, absence for the default of the family.
  const bool kv_default = !config.HasKey("num_key_value_heads") && family.default_kv_heads != 0;
  shape->kv_heads = static_cast<int>(
      config.Int("num_key_value_heads", 1, kMaxHeads,
                 kv_default ? family.default_kv_heads : int64_t{shape->query_heads}));
  if (shape->query_heads % shape->kv_heads != 0) {
    config.Fail(fmt::format("{} query heads are not a multiple of {} KV heads", shape->query_heads,
                            shape->kv_heads));
  }

  const bool derived = config.Find("head_dim") == nullptr &&
                       (config.HasKey("head_dim") || family.default_head_dim == 0);
  if (derived && shape->d_model % shape->query_heads != 0) {
    config.Fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                            shape->d_model, shape->query_heads));
  }
  const int64_t fallback =
      derived ? int64_t{shape->d_model} / shape->query_heads : family.default_head_dim;
  shape->head_dim = static_cast<int>(config.Int("head_dim", 2, kMaxHeadDim, fallback));
  CheckHeadDim(config, *shape);
  if (int64_t{shape->query_heads} * shape->head_dim > kMaxWidth) {
    config.Fail(fmt::format("{} query heads of {} are wider than {}", shape->query_heads,
                            shape->head_dim, kMaxWidth));
  }
}

DType ReadDType(KeyReader& config) {
  const std::string name = config.String("dtype", config.String("torch_dtype", "float32").c_str());
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name != "float32") {
    config.Unsupported(fmt::format(
        "dtype '{}' is not supported; supported are bfloat16, float16, float32", Printable(name)));
  }
  return DType::kF32;
}

std::vector<int64_t> ReadWindows(KeyReader& config, const Family& family, int layers) {
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  if (family.windows == Windows::kNone) return windows;
  // Null means no window; 4096 is what Transformers takes when the key is not there.
  int64_t window = 0;
  if (config.Find("sliding_window") != nullptr || !config.HasKey("sliding_window")) {
    window = config.Int("sliding_window", 1, kMaxPosition, 4096);
  }
  if (family.windows == Windows::kEveryLayer) {
    windows.assign(windows.size(), window);
    return windows;
  }
  if (!config.Bool("use_sliding_window", false)) window = 0;
  const int64_t full_layers = config.Int("max_window_layers", 0, kMaxPosition, 28);
  const nlohmann::json* types = config.Find("layer_types");
  if (types == nullptr) {
    for (size_t i = 0; i < windows.size(); ++i) {
      if (static_cast<int64_t>(i) >= full_layers) windows[i] = window;
    }
    return windows;
  }
  if (!types->is_array() || types->size() != windows.size()) {
    config.Fail("layer_types is not a list of one entry a layer");
    return windows;
  }
  for (size_t i = 0; i < windows.size(); ++i) {
    const nlohmann::json& type = (*types)[i];
    if (type == "sliding_attention") {
      if (window == 0) config.Fail("layer_types has sliding_attention without a sliding_window");
      windows[i] = window;
    } else if (type != "full_attention") {
      config.Unsupported(fmt::format("layer type '{}' is not supported",
                                     type.is_string() ? Printable(type.get<std::string>()) : "?"));
    }
  }
  return windows;
}

// One id or a list of them; `fallback` below zero: none.
std::vector<TokenId> ReadTokens(KeyReader& reader, const char* key, TokenId fallback) {
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
void ReadSpecialTokens(KeyReader& config, KeyReader& generation, const Family& family,
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
GenerationDefaults ReadGeneration(KeyReader& generation) {
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

void RefuseUnsupported(KeyReader& config, const Family& family) {
  const bool opt = family.names == TensorNames::kOpt;
  const char* key = opt ? "activation_function" : "hidden_act";
  const char* supported = opt ? "relu" : "silu";
  const std::string activation = config.String(key, supported);
  if (activation != supported && (opt || activation != "swish")) {
    config.Unsupported(fmt::format("{} '{}' is not supported; supported is {}", key,
                                   Printable(activation), supported));
  }
  if (const nlohmann::json* quantization = config.Find("quantization_config")) {
    std::string method = "unknown";
    if (quantization->is_object()) {
      method = KeyReader(*quantization, "").String("quant_method", "unknown");
    }
    config.Unsupported(fmt::format(
        "quantised weights (quantization_config: {}) are not supported; use the model in F32, F16 "
        "or BF16",
        Printable(method)));
  }
}

// What follows the shape in Llama and the architectures like it.
void ReadLlama(KeyReader& config, const Family& family, const std::string& where,
               ModelConfig* model) {
  model->norm_eps = static_cast<float>(config.Number("rms_norm_eps", 0.0, 1.0, 1e-6));
  model->tied_embeddings = config.Bool("tie_word_embeddings", false);
  model->qk_norm = family.qk_norm;
  if (family.biases == Biases::kConfigured) {
    model->qkv_bias = model->o_bias = config.Bool("attention_bias", false);
    // Qwen3's MLP has no biases whatever its config says.
    model->mlp_bias = !family.qk_norm && config.Bool("mlp_bias", false);
  } else {
    model->qkv_bias = family.biases == Biases::kQkv;
  }
  model->rope = ReadRope(config, model->max_position, where);
  if (model->rope.type == RopeType::kDynamic && model->shape.head_dim < 4) {
    config.Fail("rope type dynamic needs a head_dim of 4 at least");
  }
}

void ReadOpt(KeyReader& config, ModelConfig* model) {
  model->norm_eps = 1e-5f;  // torch.nn.LayerNorm's, which the architecture takes
  model->layer_norm = true;
  model->norm_affine = config.Bool("layer_norm_elementwise_affine", true);
  model->norm_behind = !config.Bool("do_layer_norm_before", true);
  model->final_norm = !model->norm_behind && !config.Bool("_remove_final_layer_norm", false);
  model->tied_embeddings = config.Bool("tie_word_embeddings", true);
  model->qkv_bias = model->o_bias = model->mlp_bias = config.Bool("enable_bias", true);
  model->rope.type = RopeType::kNone;
  model->learned_positions = true;
  const int64_t width = config.Int("word_embed_proj_dim", 1, kMaxWidth, model->shape.d_model);
  if (width > model->shape.d_model) {
    config.Unsupported(fmt::format("word_embed_proj_dim {} above hidden_size {} is not supported",
                                   width, model->shape.d_model));
  }
  if (width != model->shape.d_model) model->embed_width = static_cast<int>(width);
}

}  // namespace

const char* RopeTypeName(RopeType type) {
  switch (type) {
    case RopeType::kNone:
      return "none";
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLlama3:
      return "llama3";
  }
  return "?";
}

Result<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_json,
                                     const std::string& config_path) {
  const std::string generation_path =
      config_path.substr(0, config_path.find_last_of('/') + 1) + "generation_config.json";
  Result<nlohmann::json> config_object = ParseJsonObject(config_json, config_path);
  if (!config_object.ok()) return config_object.status();
  Result<nlohmann::json> generation_object =
      ParseJsonObject(generation_json.empty() ? "{}" : generation_json, generation_path);
  if (!generation_object.ok()) return generation_object.status();
  KeyReader config(*config_object, config_path);
  KeyReader generation(*generation_object, generation_path);

  // What Headway does not run at all comes first: its other keys may mean something else.
  const Family* family = FindFamily(config);
  if (family != nullptr) RefuseUnsupported(config, *family);
  if (!config.status().ok()) return config.status();

  ModelConfig model;
  model.architecture = family->architecture;
  model.names = family->names;
  ReadShape(config, *family, &model.shape);
  if (!config.status().ok()) return config.status();
  model.shape.dtype = ReadDType(config);
  const bool opt = family->names == TensorNames::kOpt;
  model.max_position = config.Int("max_position_embeddings", 1, opt ? kMaxTable : kMaxPosition,
                                  family->default_max_position);
  if (opt) {
    ReadOpt(config, &model);
  } else {
    ReadLlama(config, *family, config_path, &model);
  }
  model.windows = ReadWindows(config, *family, model.shape.layers);
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

}  // namespace headway
