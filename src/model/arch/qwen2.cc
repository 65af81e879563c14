// Qwen2 and Qwen2.5: Llama with biases of q, k and v whatever the configuration says, and with
// windows in some layers if they are used at all.
#include "model/arch/family.h"
#include "model/arch/llama.h"

namespace headway::arch {

constinit const Family kQwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .read_shape = [](ConfigReader& config,
                     ModelShape* shape) { ReadLlamaShape(config, {.kv_heads = 32}, shape); },
    .read =
        [](ConfigReader& config, ModelConfig* model) {
          ReadLlamaFields(config, 32768, model);
          model->qkv_bias = true;
          ReadLlamaRope(config, model);
          ReadWindowsByLayer(config, model);
        },
    .build = BuildLlama,
};

}  // namespace headway::arch
