// Keys of config.json that several families read alike.
#ifndef HEADWAY_MODEL_ARCH_CONFIG_FIELDS_H_
#define HEADWAY_MODEL_ARCH_CONFIG_FIELDS_H_

#include <cstdint>

#include "base/types.h"
#include "model/config.h"
#include "model/config_reader.h"

namespace headway::arch {

// Layers, d_model, d_ff under the family's key, vocab and query heads.
void ReadWidths(ConfigReader& config, const char* d_ff_key, ModelShape* shape);

// Says so where head_dim is odd or out of bounds.
void CheckHeadDim(ConfigReader& config, const ModelShape& shape);

// For keys that are absent. A null asks for what is derived.
struct HeadDefaults {
  int64_t kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
};
// KV heads and head_dim, behind ReadWidths.
void ReadGroupedHeads(ConfigReader& config, const HeadDefaults& defaults, ModelShape* shape);
// The same of as many KV heads as query heads, which share d_model.
void ReadEqualHeads(ConfigReader& config, ModelShape* shape);

// sliding_window in every layer.
void ReadWindowOfAllLayers(ConfigReader& config, ModelConfig* model);
// sliding_window in the layers that layer_types or max_window_layers name, if it is used at all.
void ReadWindowsByLayer(ConfigReader& config, ModelConfig* model);

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_CONFIG_FIELDS_H_
