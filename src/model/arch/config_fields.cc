#include "model/arch/config_fields.h"

#include <fmt/format.h>

#include <string>

#include "base/json/json.h"

namespace headway::arch {

namespace {

// Null means no window; 4096 is what Transformers takes when the key is not there.
int64_t ReadWindow(ConfigReader& config) {
  if (config.Find("sliding_window") == nullptr && config.HasKey("sliding_window")) return 0;
  return config.Int("sliding_window", 1, kMaxPosition, 4096);
}

// Says so where the heads do not divide d_model.
void CheckHeadsDivideModel(ConfigReader& config, const ModelShape& shape) {
  if (shape.d_model % shape.query_heads == 0) return;
  config.Fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                          shape.d_model, shape.query_heads));
}

}  // namespace

void ReadWidths(ConfigReader& config, const char* d_ff_key, ModelShape* shape) {
  const auto read = [&config](const char* key, int64_t high) {
    return static_cast<int>(config.Int(key, 1, high, std::nullopt));
  };
  shape->layers = read("num_hidden_layers", kMaxLayers);
  shape->d_model = read("hidden_size", kMaxWidth);
  shape->d_ff = read(d_ff_key, kMaxWidth);
  shape->vocab = read("vocab_size", kMaxVocab);
  shape->query_heads = read("num_attention_heads", kMaxHeads);
}

void CheckHeadDim(ConfigReader& config, const ModelShape& shape) {
  if (shape.head_dim % 2 == 0 && shape.head_dim >= 2 && shape.head_dim <= kMaxHeadDim) return;
  config.Fail(
      fmt::format("head_dim is {}, not an even number from 2 to {}", shape.head_dim, kMaxHeadDim));
}

void ReadGroupedHeads(ConfigReader& config, const HeadDefaults& defaults, ModelShape* shape) {
  const bool kv_default = !config.HasKey("num_key_value_heads") && defaults.kv_heads != 0;
  shape->kv_heads =
      static_cast<int>(config.Int("num_key_value_heads", 1, kMaxHeads,
                                  kv_default ? defaults.kv_heads : int64_t{shape->query_heads}));
  if (shape->query_heads % shape->kv_heads != 0) {
    config.Fail(fmt::format("{} query heads are not a multiple of {} KV heads", shape->query_heads,
                            shape->kv_heads));
  }

  const bool derived =
      config.Find("head_dim") == nullptr && (config.HasKey("head_dim") || defaults.head_dim == 0);
  if (derived) CheckHeadsDivideModel(config, *shape);
  const int64_t fallback =
      derived ? int64_t{shape->d_model} / shape->query_heads : defaults.head_dim;
  shape->head_dim = static_cast<int>(config.Int("head_dim", 2, kMaxHeadDim, fallback));
  CheckHeadDim(config, *shape);
  if (int64_t{shape->query_heads} * shape->head_dim > kMaxWidth) {
    config.Fail(fmt::format("{} query heads of {} are wider than {}", shape->query_heads,
                            shape->head_dim, kMaxWidth));
  }
}

void ReadEqualHeads(ConfigReader& config, ModelShape* shape) {
  shape->kv_heads = shape->query_heads;
  CheckHeadsDivideModel(config, *shape);
  shape->head_dim = shape->d_model / shape->query_heads;
  CheckHeadDim(config, *shape);
}

void ReadWindowOfAllLayers(ConfigReader& config, ModelConfig* model) {
  model->windows.assign(model->windows.size(), ReadWindow(config));
}

void ReadWindowsByLayer(ConfigReader& config, ModelConfig* model) {
  std::vector<int64_t>& windows = model->windows;
  int64_t window = ReadWindow(config);
  if (!config.Bool("use_sliding_window", false)) window = 0;
  const int64_t full_layers = config.Int("max_window_layers", 0, kMaxPosition, 28);
  const nlohmann::json* types = config.Find("layer_types");
  if (types == nullptr) {
    for (size_t i = 0; i < windows.size(); ++i) {
      if (static_cast<int64_t>(i) >= full_layers) windows[i] = window;
    }
    return;
  }
  if (!types->is_array() || types->size() != windows.size()) {
    return config.Fail("layer_types is not a list of one entry a layer");
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
}

}  // namespace headway::arch
