#include "kernels/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
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

// The lowest token of the largest logit.
Result<TokenId> Largest(std::span<const float> logits) {
  // In lanes that compilers turn into vector code: a vocabulary has 100,000 tokens and more.
  constexpr size_t kLanes = 32;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -kInfinity);
  int bad[kLanes] = {};
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float logit = logits[i + j];
      bad[j] |= static_cast<int>(!(logit < kInfinity));  // a NaN, too
      lanes[j] = logit > lanes[j] ? logit : lanes[j];
    }
  }
  for (size_t i = whole; i < logits.size(); ++i) {
    bad[0] |= static_cast<int>(!(logits[i] < kInfinity));
    lanes[0] = std::max(lanes[0], logits[i]);
  }
  if (std::any_of(std::begin(bad), std::end(bad), [](int b) { return b != 0; })) {
    const auto at = std::find_if(logits.begin(), logits.end(),
                                 [](float logit) { return !(logit < kInfinity); });
    return Status(StatusCode::kCorrupt,
                  fmt::format("the model computed {} as the logit of token {}: its weights are "
                              "damaged or overflow; check the model's files",
                              *at, at - logits.begin()));
  }
  const float largest = *std::max_element(std::begin(lanes), std::end(lanes));
  if (largest == -kInfinity) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("none of the {} logits is finite: the model's weights are damaged; "
                              "check its files",
                              logits.size()));
  }
  return static_cast<TokenId>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
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

Sampler::Sampler(const SamplingOptions& params) : params_(params), random_(params.seed) {
  HEADWAY_CHECK(params.Validate().ok());
}

void Sampler::AcceptPrompt(std::span<const TokenId> tokens) {
  if (params_.repetition_penalty == 1.0f) return;
  for (const TokenId token : tokens) counts_.try_emplace(token, 0);
}

void Sampler::Accept(TokenId token) { ++counts_[token]; }

void Sampler::ApplyPenalties(std::span<float> logits) const {
  if (params_.repetition_penalty == 1.0f && params_.presence_penalty == 0.0f &&
      params_.frequency_penalty == 0.0f) {
    return;
  }
  for (const auto& [token, count] : counts_) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (count > 0) {
      logit -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }
}

// One comparison a logit, nearly always: the heap changes about k ln(vocab / k) times.
void Sampler::KeepTopK(std::span<const float> logits) {
  const auto k = static_cast<size_t>(params_.top_k);
  if (k == 0 || k >= logits.size()) return;
  largest_.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(k));
  std::make_heap(largest_.begin(), largest_.end(), std::greater<>());
  for (const float logit : logits.subspan(k)) {
    if (logit <= largest_.front()) continue;
    std::pop_heap(largest_.begin(), largest_.end(), std::greater<>());
    largest_.back() = logit;
    std::push_heap(largest_.begin(), largest_.end(), std::greater<>());
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < largest_.front()) weights_[i] = 0.0f;
  }
}

// Quickselect by mass: partitions the candidates around a pivot and goes on in the part in which
// the sum of the weights passes top_p; linear on average.
void Sampler::KeepTopP() {
  if (params_.top_p >= 1.0f) return;
  candidates_.clear();
  double total = 0.0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0f) continue;
    candidates_.push_back({.weight = weights_[i], .token = static_cast<TokenId>(i)});
    total += weights_[i];
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  const double wanted = total * params_.top_p;
  double kept = 0.0;  // mass of the candidates before `first`, which stay
  auto first = candidates_.begin();
  auto last = candidates_.end();
  // In [first, last) lies the last candidate that stays.
  while (last - first > 1) {
    auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    double mass = 0.0;
    for (auto it = first; it != middle; ++it) mass += it->weight;
    if (kept + mass >= wanted) {
      last = middle;
    } else {
      kept += mass;
      first = middle;
    }
  }
  for (auto it = last; it != candidates_.end(); ++it) {
    weights_[static_cast<size_t>(it->token)] = 0.0f;
  }
}

// In the order of tokens, so that the same draw means the same token whatever was dropped behind
// it, and rounding in the logits cannot permute the answer.
TokenId Sampler::Draw() {
  double total = 0.0;
  for (const float weight : weights_) total += weight;
  const double target = random_.Uniform() * total;
  double sum = 0.0;
  size_t drawn = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0f) continue;
    drawn = i;
    sum += weights_[i];
    if (sum > target) break;
  }
  return static_cast<TokenId>(drawn);
}

Result<TokenId> Sampler::Sample(std::span<float> logits) {
  ApplyPenalties(logits);
  const Result<TokenId> best = Largest(logits);
  if (!best.ok() || params_.temperature == 0.0f) return best;
  const float largest = logits[static_cast<size_t>(*best)];
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((logits[i] - largest) / params_.temperature);
  }
  KeepTopK(logits);
  KeepTopP();
  for (float& weight : weights_) {
    if (weight < params_.min_p) weight = 0.0f;  // the likeliest weighs 1
  }
  return Draw();
}

}  // namespace headway
