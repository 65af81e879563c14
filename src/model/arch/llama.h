// What the families that descend from Llama share: RMSNorm, grouped heads, RoPE, and a gated MLP
// with SiLU.
#ifndef HEADWAY_MODEL_ARCH_LLAMA_H_
#define HEADWAY_MODEL_ARCH_LLAMA_H_

#include <cstdint>

#include "model/arch/config_fields.h"
#include "model/arch/program.h"
#include "model/config.h"
#include "model/config_reader.h"

namespace headway::arch {

void ReadLlamaShape(ConfigReader& config, const HeadDefaults& defaults, ModelShape* shape);

// Trained length, epsilon of the norms, and whether the embeddings are tied. A config.json that
// does not say how long means its family's default, as it does to Transformers.
void ReadLlamaFields(ConfigReader& config, int64_t default_max_position, ModelConfig* model);

void ReadLlamaRope(ConfigReader& config, ModelConfig* model);

// With biases and norms of heads where the configuration has them.
Program BuildLlama(const ModelConfig& config);

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_LLAMA_H_
