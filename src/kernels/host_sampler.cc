#include "kernels/host_sampler.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>

#include "kernels/sampling.h"

namespace headway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

__extension__ using Wide = unsigned __int128;

void ApplyPenalties(const SampleItem& item) {
  for (const TokenPenalty& penalty : item.penalties) {
    if (penalty.token < 0 || penalty.token >= item.vocab) continue;
    float& logit = item.logits[penalty.token];
    logit = logit > 0.0f ? logit / item.repetition_penalty : logit * item.repetition_penalty;
    logit -= penalty.subtract;
  }
}

// The lowest token of the largest logit; the first logit that is NaN or +infinity, if one is.
Sampled Largest(std::span<const float> logits) {
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
  const bool any_bad = std::any_of(std::begin(bad), std::end(bad), [](int b) { return b != 0; });
  const float largest = *std::max_element(std::begin(lanes), std::end(lanes));
  const auto at = any_bad ? std::find_if(logits.begin(), logits.end(),
                                         [](float logit) { return !(logit < kInfinity); })
                          : std::find(logits.begin(), logits.end(), largest);
  return {static_cast<TokenId>(at - logits.begin()), any_bad ? *at : largest};
}

}  // namespace

// One comparison a logit, nearly always: the heap changes about k ln(vocab / k) times.
void HostSampler::KeepTopK(std::span<const float> logits, int top_k) {
  const auto k = static_cast<size_t>(top_k);
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
    if (logits[i] < largest_.front()) weights_[i] = 0;
  }
}

// Quickselect by mass: partitions the candidates around a pivot and goes on in the part in which
// the sum of the weights passes top_p; linear on average.
void HostSampler::KeepTopP(std::span<const float> logits, float top_p) {
  if (top_p >= 1.0f) return;
  candidates_.clear();
  uint64_t total = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    candidates_.push_back(
        {.logit = logits[i], .token = static_cast<TokenId>(i), .weight = weights_[i]});
    total += weights_[i];
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const uint64_t wanted = WantedWeight(top_p, total);
  uint64_t kept = 0;  // of the candidates before `first`, which stay
  auto first = candidates_.begin();
  auto last = candidates_.end();
  // In [first, last) lies the last candidate that stays.
  while (last - first > 1) {
    auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    uint64_t mass = 0;
    for (auto it = first; it != middle; ++it) mass += it->weight;
    if (kept + mass >= wanted) {
      last = middle;
    } else {
      kept += mass;
      first = middle;
    }
  }
  for (auto it = last; it != candidates_.end(); ++it) {
    weights_[static_cast<size_t>(it->token)] = 0;
  }
}

TokenId HostSampler::Draw(uint64_t draw) const {
  uint64_t total = 0;
  for (const uint64_t weight : weights_) total += weight;
  const auto target = static_cast<uint64_t>(Wide{draw} * total >> 64);
  uint64_t sum = 0;
  size_t token = 0;
  while ((sum += weights_[token]) <= target) ++token;
  return static_cast<TokenId>(token);
}

Sampled HostSampler::Sample(const SampleItem& item) {
  ApplyPenalties(item);
  const std::span<const float> logits(item.logits, static_cast<size_t>(item.vocab));
  Sampled best = Largest(logits);
  const bool bad = !(best.logit > -kInfinity && best.logit < kInfinity);
  if (bad || item.temperature == 0.0f) return best;
  weights_.resize(logits.size());
  const float scale = WeightScale(item.temperature);
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = SampleWeight(best.logit - logits[i], scale);
  }
  KeepTopK(logits, item.top_k);
  KeepTopP(logits, item.top_p);
  const uint64_t least = LeastWeight(item.min_p);
  for (uint64_t& weight : weights_) {
    if (weight < least) weight = 0;
  }
  const TokenId token = Draw(item.draw);
  return {token, logits[static_cast<size_t>(token)]};
}

}  // namespace headway
