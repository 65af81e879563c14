// Mistral: Llama without biases, and with a sliding window in every layer.
#include "model/arch/family.h"
#include "model/arch/llama.h"

namespace headway::arch {

constinit const Family kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .default_bos = 1,
    .default_eos = 2,
    .read_shape = [](ConfigReader& config,
                     ModelShape* shape) { ReadLlamaShape(config, {.kv_heads = 8}, shape); },
    .read =
        [](ConfigReader& config, ModelConfig* model) {
          ReadLlamaFields(config, 131072, model);
          ReadLlamaRope(config, model);
          ReadWindowOfAllLayers(config, model);
        },
    .build = BuildLlama,
};

}  // namespace headway::arch
