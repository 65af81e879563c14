// ModelConfig: what config.json and generation_config.json of a Hugging Face folder say about a
// model, checked and in one form. Llama, Mistral, Qwen2, Qwen3 and OPT are values of it, not
// classes.
#ifndef HEADWAY_MODEL_CONFIG_H_
#define HEADWAY_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/types.h"
#include "headway/status.h"

namespace headway {

enum class RopeType : uint8_t { kNone, kDefault, kLinear, kDynamic, kYarn, kLlama3 };
// As config.json spells it: "default", "linear", ...; "none" where nothing rotates.
const char* RopeTypeName(RopeType type);

// How positions become angles. Fields that the type does not use keep their defaults.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // all but default
  int64_t max_position = 0;                // dynamic: the trained length
  int64_t original_max_position = 0;       // yarn, llama3: the length before stretching
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double beta_fast = 32.0;                 // yarn
  double beta_slow = 1.0;                  // yarn
  std::optional<double> attention_factor;  // yarn: given, or derived from factor and mscale
  double mscale = 0.0;                     // yarn; 0: not given
  double mscale_all_dim = 0.0;             // yarn; 0: not given
  bool truncate = true;                    // yarn: round the ramp's ends to whole dimensions

  bool operator==(const RopeConfig&) const = default;
};

// What generation_config.json proposes for sampling; empty where it says nothing.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> top_k;
};

// How tensors are named in the files.
enum class TensorNames : uint8_t { kLlama, kOpt };

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  TensorNames names = TensorNames::kLlama;
  // shape.dtype is what config.json says (f32 if nothing); Model::Load puts the weights' in.
  ModelShape shape;
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
  bool qk_norm = false;          // RMSNorm over head_dim on q and k, before RoPE
  bool tied_embeddings = false;  // the output head is the embedding table
  RopeConfig rope;
  // [layers]: a query at p sees keys at (p - window, p]; 0: all of them.
  std::vector<int64_t> windows;
  int64_t max_position = 0;        // max_position_embeddings
  bool learned_positions = false;  // a table of so many positions, which none exceeds
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;  // any of them ends generation
  GenerationDefaults generation;
};

// Parses the two files' texts (`generation_json` may be empty: the file is optional). Errors name
// `config_path`, and the other file as one beside it. kUnsupported names an architecture,
// activation, rope type or quantisation that Headway does not run; kCorrupt what makes no sense.
Result<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_json,
                                     const std::string& config_path);

// The same from a model folder.
Result<ModelConfig> ReadModelConfig(Env& env, const std::string& folder);

}  // namespace headway

#endif  // HEADWAY_MODEL_CONFIG_H_
