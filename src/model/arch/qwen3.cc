// Qwen3: Llama with norms of the query and key heads, with a head_dim of its own, and with windows
// in some layers if they are used at all. Its MLP has no biases whatever the configuration says.
#include "model/arch/family.h"
#include "model/arch/llama.h"

namespace headway::arch {

constinit const Family kQwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .read_shape =
        [](ConfigReader& config, ModelShape* shape) {
          ReadLlamaShape(config, {.kv_heads = 32, .head_dim = 128}, shape);
        },
    .read =
        [](ConfigReader& config, ModelConfig* model) {
          ReadLlamaFields(config, 32768, model);
          model->qk_norm = true;
          model->qkv_bias = model->o_bias = config.Bool("attention_bias", false);
          ReadLlamaRope(config, model);
          ReadWindowsByLayer(config, model);
        },
    .build = BuildLlama,
};

}  // namespace headway::arch
