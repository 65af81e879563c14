// What the tokens of a prompt score in the eyes of an EvictionPolicy, and in which order a head
// takes them.
#ifndef HEADWAY_KV_POLICY_EVICTION_SCORES_H_
#define HEADWAY_KV_POLICY_EVICTION_SCORES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/policy/eviction.h"

namespace headway::kv {

// The scores of one layer's tokens in front of the window, the earlier ones being pooled as well as
// those that are candidates. What is no number counts as no attention, and as no value.
class EvictionScores {
 public:
  // `free` is what each head chooses, or what those that share choose on average: [heads]. All of
  // it outlives this. The error is that of the sums over ranks.
  static Result<EvictionScores> Create(const EvictionPolicy& policy,
                                       const ObservedWeights& observed,
                                       std::span<const int64_t> free, const SharingHeads& sharing);

  // Infinite where a token is chosen whatever the others score.
  std::vector<double> OfHead(int head) const;
  // Of a token that a head has not chosen when the first half is.
  double AtLast(double score, int head, size_t token) const;

 private:
  EvictionScores(const EvictionPolicy& policy, const ObservedWeights& observed,
                 std::span<const int64_t> free);

  // What scores of a head take of all of them.
  Status AddUpHeads(const SharingHeads& sharing);
  const float* Row(std::span<const float> all, int head) const;
  std::vector<double> Pooled(std::span<const float> weights) const;
  double NormOf(int head, size_t token) const;
  // The tokens that have most of the mean attention.
  void TakeMost(int head, std::vector<double>* scores) const;

  const EvictionPolicy& policy_;
  const ObservedWeights& observed_;
  const size_t tokens_;
  const std::span<const int64_t> free_;
  // Of all heads that share, where the largest weights count: the share of their mean attention
  // that the window has, and the sum of a token's norms.
  double of_window_ = 0.0;
  std::vector<double> norms_;  // [tokens]
};

// A candidate of a head.
struct EvictionCandidate {
  double score = 0.0;
  int32_t position = 0;
  int32_t head = 0;

  // Whether this one is taken first.
  bool operator<(const EvictionCandidate& other) const {
    if (score != other.score) return score > other.score;
    return position != other.position ? position < other.position : head < other.head;
  }
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_EVICTION_SCORES_H_
