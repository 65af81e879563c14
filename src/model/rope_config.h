// RopeConfig: what a model's configuration says of rotary position embedding.
#ifndef HEADWAY_MODEL_ROPE_CONFIG_H_
#define HEADWAY_MODEL_ROPE_CONFIG_H_

#include <cstdint>
#include <optional>

#include "model/config_reader.h"

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
  double share = 1.0;                      // of each head, from its start, that rotates

  bool operator==(const RopeConfig&) const = default;
};

// What a user may ask of a model that was trained with kDefault: the window grows by `factor`.
struct RopeScaling {
  RopeType type = RopeType::kYarn;  // or kLinear, kDynamic
  double factor = 1.0;
};

// How many elements of a head rotate, as Transformers rounds; 0 where none do.
int RotaryDim(const RopeConfig& rope, int head_dim);

// What config.json calls what stands beside `rope_scaling`.
struct RopeKeys {
  const char* theta = "rope_theta";
  const char* share = nullptr;  // null: heads rotate as a whole
  double default_share = 1.0;
};

// Two spellings are known: `rope_theta` beside `rope_scaling` {type or rope_type, ...}, and since
// Transformers 5 one `rope_parameters` that holds all. `max_position` is the trained length.
RopeConfig ReadRope(ConfigReader& config, int64_t max_position, const RopeKeys& keys = {});

// Says so where a share of these heads cannot rotate.
void CheckRotaryDim(ConfigReader& config, const RopeConfig& rope, int head_dim);

}  // namespace headway

#endif  // HEADWAY_MODEL_ROPE_CONFIG_H_
