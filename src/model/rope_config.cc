#include "model/rope_config.h"

#include <fmt/format.h>

#include <string>

#include "base/json/json.h"

namespace headway {

namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

void ReadYarn(ConfigReader& scaling, int64_t max_position, RopeConfig* rope) {
  // Without a factor, the stretch is that of the lengths.
  const double ratio =
      static_cast<double>(max_position) / static_cast<double>(rope->original_max_position);
  rope->factor = scaling.Number("factor", 1e-6, kMaxFactor, ratio);
  rope->attention_factor = scaling.MaybeNumber("attention_factor", 0.0, kMaxFactor);
  // Zero counts as not given, as in Transformers.
  rope->beta_fast = scaling.Number("beta_fast", 0.0, kMaxFactor, 32.0);
  rope->beta_slow = scaling.Number("beta_slow", 0.0, kMaxFactor, 1.0);
  if (rope->beta_fast == 0.0) rope->beta_fast = 32.0;
  if (rope->beta_slow == 0.0) rope->beta_slow = 1.0;
  rope->mscale = scaling.Number("mscale", 0.0, kMaxFactor, 0.0);
  rope->mscale_all_dim = scaling.Number("mscale_all_dim", 0.0, kMaxFactor, 0.0);
  rope->truncate = scaling.Bool("truncate", true);
}

void ReadLlama3(ConfigReader& scaling, RopeConfig* rope) {
  rope->factor = scaling.Number("factor", 1e-6, kMaxFactor, std::nullopt);
  rope->low_freq_factor = scaling.Number("low_freq_factor", 1e-6, kMaxFactor, std::nullopt);
  rope->high_freq_factor = scaling.Number("high_freq_factor", 1e-6, kMaxFactor, std::nullopt);
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    scaling.Fail("high_freq_factor is not above low_freq_factor");
  }
}

void ReadShare(ConfigReader& config, ConfigReader& scaling, const RopeKeys& keys,
               RopeConfig* rope) {
  const char* key = "partial_rotary_factor";
  if (keys.share != nullptr) {
    rope->share = config.Number(keys.share, 0.0, 1.0, keys.default_share);
    rope->share = scaling.Number(key, 0.0, 1.0, rope->share);
    return;
  }
  for (ConfigReader* reader : {&config, &scaling}) {
    if (reader->Number(key, 0.0, 1.0, 1.0) != 1.0) {
      reader->Unsupported("partial_rotary_factor other than 1 is not supported");
    }
  }
}

}  // namespace

const char* RopeTypeName(RopeType type) {
  switch (type) {
    case RopeType::kNone:
      return "none";
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLlama3:
      return "llama3";
  }
  return "?";
}

int RotaryDim(const RopeConfig& rope, int head_dim) {
  return rope.type == RopeType::kNone ? 0 : static_cast<int>(head_dim * rope.share);
}

void CheckRotaryDim(ConfigReader& config, const RopeConfig& rope, int head_dim) {
  const int rotary_dim = RotaryDim(rope, head_dim);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    config.Unsupported(
        fmt::format("{} of a head's {} elements rotate; supported are even numbers from 2 on",
                    rotary_dim, head_dim));
  }
  if (rope.type == RopeType::kDynamic && rotary_dim < 4) {
    config.Fail("rope type dynamic needs 4 elements of a head that rotate at least");
  }
}

RopeConfig ReadRope(ConfigReader& config, int64_t max_position, const RopeKeys& keys) {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const char* key = config.Find("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* parameters = config.Find(key);
  RopeConfig rope;
  if (parameters != nullptr && !parameters->is_object()) {
    config.Fail(fmt::format("{} is not an object", key));
    return rope;
  }
  ConfigReader scaling(parameters != nullptr ? *parameters : kEmpty,
                       fmt::format("{}: {}", config.where(), key));
  rope.theta = config.Number(keys.theta, 1.0, kMaxTheta, 10000.0);
  rope.theta = scaling.Number("rope_theta", 1.0, kMaxTheta, rope.theta);
  if (rope.theta <= 1.0) config.Fail(fmt::format("{} is not above 1", keys.theta));
  rope.max_position = max_position;
  rope.original_max_position = max_position;

  const std::string type = scaling.String("rope_type", scaling.String("type", "default").c_str());
  ReadShare(config, scaling, keys, &rope);
  if (type == "llama3" || type == "yarn") {
    const char* original = "original_max_position_embeddings";
    rope.original_max_position = scaling.Int(original, 1, kMaxPosition, max_position);
    rope.original_max_position = config.Int(original, 1, kMaxPosition, rope.original_max_position);
  }
  if (type == "default") {
    rope.type = RopeType::kDefault;
  } else if (type == "linear" || type == "dynamic") {
    rope.type = type == "linear" ? RopeType::kLinear : RopeType::kDynamic;
    rope.factor = scaling.Number("factor", 1e-6, kMaxFactor, std::nullopt);
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    ReadYarn(scaling, max_position, &rope);
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    ReadLlama3(scaling, &rope);
  } else {
    scaling.Unsupported(fmt::format(
        "rope type '{}' is not supported; supported are default, linear, dynamic, yarn, llama3",
        Printable(type)));
  }
  config.Adopt(scaling.status());
  return rope;
}

}  // namespace headway
