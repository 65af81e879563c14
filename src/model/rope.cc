#include "model/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include "base/check.h"
#include "base/fnv.h"

namespace headway {

namespace {

// theta^(i / dim) for i = 0, 2, 4, ...: the wavelength of each pair over 2 pi. The steps and their
// rounding to f32 are those of Transformers, so that angles far out agree; the power itself is
// rounded once, from f64.
std::vector<float> PositionFrequencies(float theta, int dim) {
  std::vector<float> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    frequencies[i] = static_cast<float>(std::pow(double{theta}, double{exponent}));
  }
  return frequencies;
}

// The "NTK-aware" base for a prompt longer than the trained length: the slowest pair then turns as
// far over `total_length` as it was trained to over max_position.
float DynamicTheta(const RopeConfig& config, int dim, int64_t total_length) {
  const auto theta = static_cast<float>(config.theta);
  if (total_length <= config.max_position) return theta;
  const auto factor = static_cast<float>(config.factor);
  const float stretch =
      factor * static_cast<float>(total_length) / static_cast<float>(config.max_position) -
      (factor - 1.0f);
  const auto power = static_cast<float>(static_cast<double>(dim) / (dim - 2));
  return theta * std::pow(stretch, power);
}

// Peng et al., "YaRN" (2023), section 3.4 for the scale.
float YarnScale(const RopeConfig& config) {
  if (config.attention_factor) return static_cast<float>(*config.attention_factor);
  auto scale = [&](double mscale) {
    return config.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(config.factor) + 1.0;
  };
  if (config.mscale != 0.0 && config.mscale_all_dim != 0.0) {
    return static_cast<float>(scale(config.mscale) / scale(config.mscale_all_dim));
  }
  return static_cast<float>(scale(1.0));
}

// YaRN, section 3.2: pairs that turn more than beta_fast times over the original length keep their
// frequency, those that turn less than beta_slow times are interpolated, a ramp between.
std::vector<float> YarnFrequencies(const RopeConfig& config, int dim) {
  // The pair, as a real number of dimensions, that turns `turns` times over the original length.
  auto pair_of = [&](double turns) {
    const auto length = static_cast<double>(config.original_max_position);
    return dim * std::log(length / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  double low = pair_of(config.beta_fast);
  double high = pair_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;

  std::vector<float> inv_freq = PositionFrequencies(static_cast<float>(config.theta), dim);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept = 1.0f - ramp;
    const float extrapolated = 1.0f / inv_freq[i];
    const float interpolated = 1.0f / (static_cast<float>(config.factor) * inv_freq[i]);
    inv_freq[i] = interpolated * (1.0f - kept) + extrapolated * kept;
  }
  return inv_freq;
}

// Llama 3.1: wavelengths above original / low_freq_factor are stretched by the whole factor, those
// below original / high_freq_factor not at all, a ramp between.
void StretchLlama3(const RopeConfig& config, std::vector<float>* inv_freq) {
  const auto original = static_cast<double>(config.original_max_position);
  const auto longest = static_cast<float>(original / config.low_freq_factor);
  const auto shortest = static_cast<float>(original / config.high_freq_factor);
  const auto factor = static_cast<float>(config.factor);
  const auto low = static_cast<float>(config.low_freq_factor);
  const auto span = static_cast<float>(config.high_freq_factor - config.low_freq_factor);
  for (float& frequency : *inv_freq) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / frequency;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      frequency /= factor;
      continue;
    }
    const float smooth = (static_cast<float>(original) / wavelength - low) / span;
    frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
  }
}

}  // namespace

RopeFrequencies ComputeRope(const RopeConfig& config, int head_dim, int64_t total_length) {
  RopeFrequencies result;
  if (config.type == RopeType::kNone) return result;
  const int dim = RotaryDim(config, head_dim);
  HEADWAY_CHECK(dim >= 2 && dim % 2 == 0);
  if (config.type == RopeType::kYarn) {
    result.inv_freq = YarnFrequencies(config, dim);
    result.scale = YarnScale(config);
    return result;
  }
  const float theta = config.type == RopeType::kDynamic ? DynamicTheta(config, dim, total_length)
                                                        : static_cast<float>(config.theta);
  result.inv_freq = PositionFrequencies(theta, dim);
  for (float& frequency : result.inv_freq) frequency = 1.0f / frequency;
  if (config.type == RopeType::kLinear) {
    for (float& frequency : result.inv_freq) frequency /= static_cast<float>(config.factor);
  }
  if (config.type == RopeType::kLlama3) StretchLlama3(config, &result.inv_freq);
  return result;
}

uint64_t RopeFrequencies::Hash() const {
  // Of the bits, the lowest first. Session files hold the value.
  uint64_t hash = kFnvStart;
  const auto add = [&hash](float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      const char byte = static_cast<char>(bits >> shift);
      hash = Fnv1a({&byte, 1}, hash);
    }
  };
  for (const float frequency : inv_freq) add(frequency);
  add(scale);
  // Files of before hold hashes of rounded products, and of positions as they are.
  if (product == RopeProduct::kExact) hash = Fnv1a("exact", hash);
  if (!extend.on()) return hash;
  return Fnv1a("self-extend " + std::to_string(extend.group) + ":" + std::to_string(extend.window),
               hash);
}

}  // namespace headway
