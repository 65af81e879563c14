// SaliencePolicy: which tokens before a dense window a decode goes on attending to, by the
// attention that they had while they were in it (HGCA: Xu et al., 2025, §3.2 and Alg 1). Pure
// functions of masses; kernels/eviction.h makes these, engine/step/salience joins the two.
#ifndef HEADWAY_KV_POLICY_SALIENCE_H_
#define HEADWAY_KV_POLICY_SALIENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/selection.h"

namespace headway::kv {

struct SaliencePolicy {
  // A token is salient for a KV head if its mass is above beta even shares; 0: every token is, and
  // attention is exact; < 0: there is no window.
  double beta = -1.0;
  int64_t window = 4096;      // last tokens, at least, that each head attends to anyway
  double alpha = 1.0 / 16.0;  // what a weighed step adds to the moving average of a mass
  int64_t every = 8;          // steps, of which each layer weighs one
  double most = 0.3;          // of the tokens before the window, that a head attends to at most
  int64_t queries = 32;       // last ones of what was read, from which its tokens have their masses
  // Above 0: nothing has a mass. The first step behind a prompt and one of so many behind it choose
  // blocks before the window by their summaries (SalientBlocks), `most` of them, and so does one in
  // which a page leaves the window.
  int64_t reselect = 0;
  // With an epsilon above 0: where what a KV head leaves out of the keys before the window may have
  // more than this share of the mass of one of its query heads, it reads them all in that step
  // (kv/policy/unread_bound.h), but with a probability of `delta`. Salient tokens lie on the host.
  MassBound bound = {};
  double delta = 0.0;

  bool chooses() const { return has_masses() || reselects(); }
  bool has_masses() const { return beta > 0.0; }
  bool reselects() const { return reselect > 0; }
  bool is_bounded() const { return bound.epsilon > 0.0; }
  // Whether the step of the token at this position is. Layers of the model take turns, so that no
  // step takes much longer than others.
  bool weighs(int64_t position, int layer) const { return position % every == layer % every; }
};

// Tokens before the window of a sequence of so many: whole pages.
inline int64_t TokensBefore(const SaliencePolicy& policy, int64_t length, int slots) {
  return length <= policy.window ? 0 : (length - policy.window) / slots * slots;
}

// Of `tokens` before the window, those that a head attends to at most.
int64_t MostSalient(const SaliencePolicy& policy, int64_t tokens);

// The tokens, ascending, whose masses are above `beta`, or of these the `most` with the largest;
// of equal masses the earlier ones. Masses count in even shares, so that their mean over all keys
// is 1; one that is no number is never above.
std::vector<int32_t> ChooseSalient(std::span<const float> masses, double beta, int64_t most);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_SALIENCE_H_
