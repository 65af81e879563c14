// Family: all that tells one kind of model from another, as a value. A family says which keys of
// config.json it reads, and of a configuration which tensors a model has and which steps take a
// token through it. To add one, see README.md of the room.
#ifndef HEADWAY_MODEL_ARCH_FAMILY_H_
#define HEADWAY_MODEL_ARCH_FAMILY_H_

#include <span>

#include "base/types.h"
#include "model/arch/families.h"
#include "model/arch/program.h"
#include "model/config.h"
#include "model/config_reader.h"

namespace headway::arch {

// How config.json calls what has different names in different families. Sessions keep the values
// under the same names.
struct ConfigKeys {
  const char* d_ff = "intermediate_size";
  const char* norm_eps = "rms_norm_eps";
  const char* biases = "attention_bias";
};

inline constexpr const char* kSiluNames[] = {"silu", "swish"};

// The key of the MLP's activation, and what it may say; the first where there is no such key.
struct ActivationKey {
  const char* key = "hidden_act";
  std::span<const char* const> names = kSiluNames;
};

struct Family {
  const char* architecture = nullptr;  // of `architectures`: "LlamaForCausalLM"
  const char* model_type = nullptr;
  ConfigKeys keys = {};
  ActivationKey activation = {};
  // Those of Transformers' config class, for a config.json that lacks the keys; below 0: none.
  TokenId default_bos = -1;
  TokenId default_eos = -1;

  // Reads all of the shape but its dtype. Stops at nothing: the reader remembers what was wrong.
  void (*read_shape)(ConfigReader& config, ModelShape* shape) = nullptr;
  // Reads what else the family has, where the shape is right. No layer has a window yet.
  void (*read)(ConfigReader& config, ModelConfig* model) = nullptr;
  // The tensors and steps of a model of this configuration.
  Program (*build)(const ModelConfig& config) = nullptr;
};

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_FAMILY_H_
