#include "kv/policy/eviction_scores.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace headway::kv {
namespace {

constexpr double kChosen = std::numeric_limits<double>::infinity();
// As CriticalKV has it: what has no attention is told apart by its value.
constexpr double kLeastAttention = 1e-4;
// As DefensiveKV has it: the attention that the first tokens and the window have together.
constexpr double kMostAttention = 0.9;

double NumberOf(float value) { return std::max(0.0, double{value}); }

std::span<const float> Around(std::span<const float> weights, size_t at, int pool) {
  const auto half = static_cast<size_t>(pool / 2);
  const size_t begin = at - std::min(at, half);
  return weights.subspan(begin, std::min(weights.size(), at + half + 1) - begin);
}

// Zeros stand for what is beyond either end.
double MeanAround(std::span<const float> weights, size_t at, int pool) {
  double sum = 0.0;
  for (const float weight : Around(weights, at, pool)) sum += NumberOf(weight);
  return sum / pool;
}

double MaxAround(std::span<const float> weights, size_t at, int pool) {
  double max = 0.0;
  for (const float weight : Around(weights, at, pool)) max = std::max(max, NumberOf(weight));
  return max;
}

}  // namespace

EvictionScores::EvictionScores(const EvictionPolicy& policy, const ObservedWeights& observed,
                               std::span<const int64_t> free)
    : policy_(policy),
      observed_(observed),
      tokens_(static_cast<size_t>(
          std::max<int64_t>(0, observed.tokens - policy.WindowOf(observed.tokens)))),
      free_(free) {}

Result<EvictionScores> EvictionScores::Create(const EvictionPolicy& policy,
                                              const ObservedWeights& observed,
                                              std::span<const int64_t> free,
                                              const SharingHeads& sharing) {
  EvictionScores scores(policy, observed, free);
  if (!policy.largest()) return scores;
  if (Status s = scores.AddUpHeads(sharing); !s.ok()) return s;
  return scores;
}

Status EvictionScores::AddUpHeads(const SharingHeads& sharing) {
  std::vector<double> sums(tokens_ + 1, 0.0);  // of norms, and of what the window has
  for (int head = 0; head < observed_.heads; ++head) {
    const float* const row = Row(observed_.sum, head);
    for (auto at = static_cast<int64_t>(tokens_); at < observed_.tokens; ++at) {
      sums.back() += NumberOf(row[at]);
    }
    for (size_t i = 0; i < tokens_; ++i) sums[i] += NormOf(head, i);
  }
  if (Status s = sharing.AddUp(std::span<double>(sums)); !s.ok()) return s;
  of_window_ = sums.back() / static_cast<double>(sharing.all * observed_.queries);
  sums.pop_back();
  norms_ = std::move(sums);
  return OkStatus();
}

const float* EvictionScores::Row(std::span<const float> all, int head) const {
  return all.data() + static_cast<int64_t>(head) * observed_.tokens;
}

std::vector<double> EvictionScores::Pooled(std::span<const float> weights) const {
  std::vector<double> scores(tokens_);
  const bool mean = policy_.pooling == EvictionPolicy::Pool::kMean;
  for (size_t i = 0; i < tokens_; ++i) {
    scores[i] = mean ? MeanAround(weights, i, policy_.pool) : MaxAround(weights, i, policy_.pool);
  }
  return scores;
}

double EvictionScores::NormOf(int head, size_t token) const {
  return NumberOf(Row(observed_.norms, head)[token]);
}

void EvictionScores::TakeMost(int head, std::vector<double>* scores) const {
  const float* const sums = Row(observed_.sum, head);
  std::vector<EvictionCandidate> order(tokens_);
  double all = 0.0;
  for (size_t i = 0; i < tokens_; ++i) {
    order[i] = {NumberOf(sums[i]), static_cast<int32_t>(i), 0};
    all += order[i].score;
  }
  const auto most = std::min(tokens_, static_cast<size_t>(free_[static_cast<size_t>(head)]));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end());
  // A token is taken while those before it and it have less than what is wanted.
  double taken = 0.0;
  for (size_t i = 0; i < most; ++i) {
    taken += order[i].score;
    if (taken >= (kMostAttention - of_window_) * all) return;
    (*scores)[static_cast<size_t>(order[i].position)] = kChosen;
  }
}

std::vector<double> EvictionScores::OfHead(int head) const {
  const bool largest = policy_.largest();
  std::vector<double> scores =
      Pooled({Row(largest ? observed_.max : observed_.sum, head), tokens_});
  if (!largest) {
    const double scale = 1.0 / static_cast<double>(observed_.queries);
    for (double& score : scores) score *= scale;
  }
  if (policy_.method == EvictionMethod::kExpected) {
    for (size_t i = 0; i < tokens_; ++i) scores[i] *= NormOf(head, i);
  }
  if (policy_.keeps_sink()) {
    const auto sink = std::min(tokens_, static_cast<size_t>(policy_.sink));
    std::fill_n(scores.begin(), sink, kChosen);
  }
  if (!largest || tokens_ == 0) return scores;
  const double mean =
      std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(tokens_);
  for (size_t i = 0; i < tokens_; ++i) {
    const double norm = norms_[i] > 0.0 ? NormOf(head, i) / norms_[i] : 0.0;
    scores[i] = std::max(scores[i], mean) * norm;
  }
  TakeMost(head, &scores);
  return scores;
}

double EvictionScores::AtLast(double score, int head, size_t token) const {
  return (score + kLeastAttention) * NormOf(head, token);
}

}  // namespace headway::kv
