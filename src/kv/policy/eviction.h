// EvictionPolicy: which tokens each KV head keeps of a prompt when it has been read, by the
// attention that they had from the prompt's last queries; the rest is dropped, or demoted
// (demotion.h). Pure functions of scores; kernels/eviction.h makes these, engine/evictor joins the
// two.
#ifndef HEADWAY_KV_POLICY_EVICTION_H_
#define HEADWAY_KV_POLICY_EVICTION_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "kv/policy/demotion.h"
#include "kv/policy/sharing_heads.h"

namespace headway::kv {

enum class EvictionMethod : uint8_t {
  kNone,
  kStreaming,   // StreamingLLM (Xiao et al., 2023): the first tokens and the last ones
  kSnap,        // SnapKV (Li et al., 2024): attention from the window, pooled over neighbours
  kPyramid,     // PyramidKV (Cai et al., 2024): the same, budgets fall from layer to layer
  kAdaSnap,     // Ada-KV (Feng et al., 2024): SnapKV, the heads of a layer share their budget
  kAdaPyramid,  // the same of PyramidKV
  // CriticalKV (Feng et al., 2025) upon SnapKV: half of all by attention, the window among it, the
  // rest by attention times what the token's value reaches behind the output projection
  kCriticalSnap,
  kCriticalAdaSnap,  // the same upon Ada-KV's SnapKV
  // DefensiveKV (Feng et al., 2025) upon CriticalKV, the heads of a layer sharing their budget: the
  // largest attention of window and group, not the mean, and no less than what that is on average
  // over the prompt; pooled here, not for each query
  kDefensive,
  kExpected,  // ExpectedAttention (Devoto et al., 2025): what queries to come are expected to give
  kHeavy,   // H2O (Zhang et al., 2023): half by the attention from all of the prompt's queries, and
            // the last tokens
  kHeadKv,  // HeadKV (Fu et al., 2024): SnapKV, each head in the budget that a profile gives it
  // KVzip (Kim et al., 2025): the largest attention while the model repeats the prompt; the heads
  // of all layers share their budget
  kZip,
};

struct EvictionPolicy {
  EvictionMethod method = EvictionMethod::kNone;
  // Tokens that a KV head keeps, on average over heads and layers, the window among them; or a
  // share of the prompt. One of the two is 0.
  int64_t budget = 0;
  double share = 0.0;
  int64_t window = 32;  // the prompt's last tokens: their queries are observed, and they are kept
  int pool = 7;         // neighbours whose scores are pooled, odd; 1: none
  // Zeros stand for what is beyond either end. The largest of neighbours is that of what
  // ObservedWeights has of a group, not of each query head.
  enum class Pool : uint8_t { kMean, kMax };
  Pool pooling = Pool::kMean;
  int64_t sink = 4;  // of kStreaming and kExpected: first tokens that are kept
  // Of Ada-KV: the share of its even budget that a head keeps anyway, the window among it; of
  // HeadKV the share that is not handed out by importance, 1 - 1 / beta, of what is not kept
  // anyway.
  double safeguard = 0.2;
  double steepness = 20.0;  // PyramidKV's beta: the last layer gets budget / beta
  int64_t repeat = 2048;    // of kZip: tokens that are repeated at a time
  int64_t future = 512;     // of kExpected: positions behind the prompt that queries may have
  // Tokens that a sequence may grow by behind its prompt.
  int64_t room = 4096;
  // Whether heads have static budgets, whatever the prompt. Then `shares` has what each one has of
  // the mean, beside what all keep anyway: [layers * KV heads], their mean 1.
  bool profiled = false;
  std::vector<double> shares = {};
  DemotionPolicy demotion = {};  // of what is not kept

  bool evicts() const { return method != EvictionMethod::kNone; }
  // Whether tokens have scores.
  bool scores() const { return evicts() && method != EvictionMethod::kStreaming; }
  // Whether these are of the queries of the window, pooled.
  bool observes() const {
    return scores() && method != EvictionMethod::kExpected && !adds_up() && !repeats();
  }
  // Whether they are of the queries of the prompt repeated behind itself, which so many tokens of
  // words at most ask for.
  bool repeats() const { return method == EvictionMethod::kZip; }
  static constexpr int64_t kRepeatWords = 256;
  // Tokens that are read behind a prompt of so many, for a time.
  int64_t BehindOf(int64_t tokens) const {
    return repeats() ? std::min(tokens, repeat) + kRepeatWords : 0;
  }
  // Whether they are of all queries.
  bool adds_up() const { return method == EvictionMethod::kHeavy; }
  // Whether the first tokens are kept, whatever their scores.
  bool keeps_sink() const {
    return method == EvictionMethod::kStreaming || method == EvictionMethod::kExpected || repeats();
  }
  // The last tokens of a prompt of so many, which are kept.
  int64_t WindowOf(int64_t tokens) const;
  // What every head keeps of such a prompt: these, and the first tokens.
  int64_t AnywayOf(int64_t tokens) const { return WindowOf(tokens) + (keeps_sink() ? sink : 0); }
  // Tokens that a head keeps of it on average.
  int64_t MeanOf(int64_t tokens) const;
  // Whether the heads of a layer share their budget.
  bool uneven() const {
    return !profiled &&
           (method == EvictionMethod::kAdaSnap || method == EvictionMethod::kAdaPyramid ||
            method == EvictionMethod::kCriticalAdaSnap || method == EvictionMethod::kDefensive);
  }
  // Whether all heads of all layers do.
  bool spans_layers() const { return repeats() && !profiled; }
  // Whether a head's part of a budget is safe from others.
  bool safe() const {
    return method == EvictionMethod::kHeadKv || (uneven() && method != EvictionMethod::kDefensive);
  }
  // That part of a budget that heads share.
  int64_t SafeOf(int64_t shared) const {
    return safe() ? static_cast<int64_t>(safeguard * static_cast<double>(shared)) : 0;
  }
  // Whether budgets fall from layer to layer.
  bool falls() const {
    return !profiled &&
           (method == EvictionMethod::kPyramid || method == EvictionMethod::kAdaPyramid);
  }
  // Whether the largest weights count.
  bool largest() const { return method == EvictionMethod::kDefensive; }
  // Whether heads choose the second half by norms, too.
  bool critical() const {
    return method == EvictionMethod::kCriticalSnap || method == EvictionMethod::kCriticalAdaSnap;
  }
  // Norms of values that are asked for: none, their own, or those behind the output projection.
  enum class Norms : uint8_t { kNone, kOwn, kProjected };
  Norms norms() const {
    if (method == EvictionMethod::kExpected) return Norms::kOwn;
    return critical() || method == EvictionMethod::kDefensive ? Norms::kProjected : Norms::kNone;
  }
};

// "streamingllm", "snapkv", "pyramidkv", "ada-snapkv", "ada-pyramidkv", "critical-snapkv",
// "critical-ada-snapkv", "defensivekv", "expectedattention", "h2o", "headkv", "kvzip".
const char* EvictionName(EvictionMethod method);
// kInvalidArgument, naming all that there are, for another name.
Result<EvictionMethod> EvictionOf(std::string_view name);

// What queries gave the tokens of a prompt in one layer: for each KV head the sum and the largest
// of the weights (after softmax) of `rows` queries times `group` query heads; and how large the
// values of the tokens are. What the method does not ask for is empty.
struct ObservedWeights {
  std::span<const float> sum;    // [heads, tokens]
  std::span<const float> max;    // [heads, tokens]
  std::span<const float> norms;  // [heads, tokens]
  int heads = 0;
  int64_t tokens = 0;
  int64_t queries = 0;  // rows * group: what `sum` is divided by
};

// What a head keeps of a prompt's whole pages.
struct KeptOfHead {
  std::vector<int32_t> positions;  // ascending
  // Tokens that it was given, those behind the whole pages among them: fewer than it keeps where
  // they leave a page half empty.
  int64_t budget = 0;
};

// Of the first `closed` tokens, those that each head that is here keeps so that it has its budget
// of the layer's [sharing.all] in all with the tokens from `closed` on, which it keeps anyway: as
// many as fill whole pages of `slots` (rounded up, but not beyond `closed`), the window's always
// among them. Where the heads share their budgets, these are equal. Of equal scores the earlier
// position is kept; a weight that is no number counts as none. The error is that of the sums over
// ranks.
Result<std::vector<KeptOfHead>> ChooseKept(const EvictionPolicy& policy,
                                           const ObservedWeights& observed, int64_t closed,
                                           std::span<const int64_t> budgets, int slots,
                                           const SharingHeads& sharing);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_EVICTION_H_
