// ModelConfig: what config.json and generation_config.json of a Hugging Face folder say about a
// model, checked and in one form. Which keys count, and what they mean, is said by the model's
// family (arch/family.h).
#ifndef HEADWAY_MODEL_CONFIG_H_
#define HEADWAY_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/types.h"
#include "headway/status.h"
#include "model/arch/families.h"
#include "model/rope_config.h"

namespace headway {

// What generation_config.json proposes for sampling; empty where it says nothing.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> top_k;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  // What the other fields mean: which tensors there are, and what is done with them.
  const arch::Family* family = &arch::kLlama;
  // shape.dtype is what config.json says (f32 if nothing); Model::Load puts the weights' in.
  ModelShape shape;
  int first_layer = 0;  // of the files, where it is a run of a model's layers (LayersOf)
  float norm_eps = 1e-6f;
  bool layer_norm = false;   // LayerNorm instead of RMSNorm
  bool norm_affine = true;   // norms have weights, and LayerNorms biases
  bool norm_behind = false;  // norms follow attention and MLP, on the residual stream, and come not
                             // before them
  bool final_norm = true;    // there is one before the head
  int embed_width = 0;       // of the embedding table where it is not d_model: projections between
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;            // RMSNorm over head_dim on q and k, before RoPE
  bool parallel_residual = false;  // attention and MLP read the same residual stream
  bool tanh_gelu = false;          // an MLP with GELU has its tanh formula
  bool tied_embeddings = false;    // the output head is the embedding table
  RopeConfig rope;
  // [layers]: a query at p sees keys at (p - window, p]; 0: all of them.
  std::vector<int64_t> windows;
  int64_t max_position = 0;        // max_position_embeddings
  bool max_position_given = true;  // and not its default where config.json leaves it out
  bool learned_positions = false;  // a table of so many positions, which none exceeds
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;  // any of them ends generation
  GenerationDefaults generation;
};

// Parses the two files' texts (`generation_json` may be empty: the file is optional). Errors name
// `config_path`, and the other file as one beside it. kUnsupported names an architecture,
// activation, rope type or quantisation that Headway does not run; kCorrupt what makes no sense.
Result<ModelConfig> ParseModelConfig(
    std::string_view config_json, std::string_view generation_json, const std::string& config_path,
    std::span<const arch::Family* const> families = arch::Families());

// The same from a model folder.
Result<ModelConfig> ReadModelConfig(Env& env, const std::string& folder);

// The model of layers [begin, begin + count) alone.
ModelConfig LayersOf(const ModelConfig& whole, int begin, int count);

// Stretches rotary angles and the window, as if the configuration said so. kUnsupported where
// nothing rotates, or angles are stretched already.
Status ScaleRope(const RopeScaling& scaling, ModelConfig* config);

}  // namespace headway

#endif  // HEADWAY_MODEL_CONFIG_H_
