#include "kernels/sampler.h"

#include <limits>

#include <fmt/format.h>

#include "base/check.h"

namespace headway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Status OutOfBounds(const char* name, double value, const char* bounds) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}, but must be {}", name, value, bounds));
}

}  // namespace

Status SamplingOptions::Validate() const {
  // Written so that NaN fails.
  if (!(temperature >= 0.0f && temperature < kInfinity)) {
    return OutOfBounds("temperature", temperature, "0 (greedy) or more");
  }
  if (top_k < 0) return OutOfBounds("top_k", top_k, "0 (off) or more");
  if (!(top_p > 0.0f && top_p <= 1.0f)) return OutOfBounds("top_p", top_p, "in (0, 1]");
  if (!(min_p >= 0.0f && min_p <= 1.0f)) return OutOfBounds("min_p", min_p, "in [0, 1]");
  if (!(repetition_penalty >= 0.01f && repetition_penalty <= 100.0f)) {
    return OutOfBounds("repetition_penalty", repetition_penalty, "in [0.01, 100]");
  }
  if (!(presence_penalty >= -2.0f && presence_penalty <= 2.0f)) {
    return OutOfBounds("presence_penalty", presence_penalty, "in [-2, 2]");
  }
  if (!(frequency_penalty >= -2.0f && frequency_penalty <= 2.0f)) {
    return OutOfBounds("frequency_penalty", frequency_penalty, "in [-2, 2]");
  }
  return OkStatus();
}

Sampler::Sampler(const SamplingOptions& params)
    : params_(params), random_(params.seed), before_(random_) {
  HEADWAY_CHECK(params.Validate().ok());
}

void Sampler::AcceptPrompt(std::span<const TokenId> tokens) {
  if (params_.repetition_penalty == 1.0f) return;
  for (const TokenId token : tokens) counts_.try_emplace(token, 0);
}

void Sampler::Accept(TokenId token) { ++counts_[token]; }

std::vector<TokenPenalty> Sampler::Penalties() const {
  std::vector<TokenPenalty> penalties;
  if (params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
      params_.frequency_penalty != 0.0f) {
    for (const auto& [token, count] : counts_) {
      const float often = params_.frequency_penalty * static_cast<float>(count);
      penalties.push_back({token, count > 0 ? params_.presence_penalty + often : 0.0f});
    }
  }
  return penalties;
}

std::span<const SampleItem> Sampler::Next(std::span<const TokenId> drafts) {
  items_.clear();
  penalties_.clear();
  behind_.clear();
  std::vector<TokenId> unseen;  // drafts that no token before has been
  before_ = random_;
  for (size_t i = 0; i <= drafts.size(); ++i) {
    SampleItem& item = items_.emplace_back();
    item.temperature = params_.temperature;
    item.top_k = params_.top_k;
    item.top_p = params_.top_p;
    item.min_p = params_.min_p;
    item.repetition_penalty = params_.repetition_penalty;
    item.penalties = penalties_.emplace_back(Penalties());
    Random random = i == 0 ? random_ : behind_.back();
    if (params_.temperature > 0.0f) item.draw = random.Next();
    behind_.push_back(random);
    if (i == drafts.size()) continue;
    const auto [counted, added] = counts_.try_emplace(drafts[i], 0);
    ++counted->second;
    if (added) unseen.push_back(drafts[i]);
  }
  for (const TokenId draft : drafts) --counts_[draft];
  for (const TokenId draft : unseen) counts_.erase(draft);
  random_ = behind_.front();
  return items_;
}

Result<TokenId> TokenOf(const Sampled& sampled) {
  if (!(sampled.logit < kInfinity)) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("the model computed {} as the logit of token {}: its weights are "
                              "damaged or overflow; check the model's files",
                              sampled.logit, sampled.token));
  }
  if (sampled.logit == -kInfinity) {
    return Status(StatusCode::kCorrupt,
                  "none of the logits is finite: the model's weights are damaged; check its files");
  }
  return sampled.token;
}

}  // namespace headway
