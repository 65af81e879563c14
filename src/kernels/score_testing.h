// Random logits for comparing implementations of Kernels::Score.
#ifndef HEADWAY_KERNELS_SCORE_TESTING_H_
#define HEADWAY_KERNELS_SCORE_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/logits.h"

namespace headway {

struct ScoreCase {
  std::vector<float> logits;
  TokenId target = 0;
  std::string name;

  ScoreItem Item(Scored* result) const {
    return {logits.data(), static_cast<int64_t>(logits.size()), target, result};
  }
  // -ln p by its definition in double; not finite where a logit is NaN or +infinity, or the
  // target's is -infinity.
  double Loss() const {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(double{logit} - largest);
    return largest - double{logits[static_cast<size_t>(target)]} + std::log(sum);
  }
  // What the steps of exponents, the polynomial and the rounding of small weights are off at most;
  // the last of it is that of double.
  double Tolerance() const {
    return 1.5e-8 + static_cast<double>(logits.size()) * 0x1p-40 + 1e-15 * std::abs(Loss());
  }
};

inline ScoreCase RandomScoreCase(Random& random, int64_t vocab) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  const auto chance = [&](int64_t of) { return random.Below(of) == 0; };
  ScoreCase made;
  const float scale = std::exp(2.0f * random.Normal());
  const bool equal = chance(8);
  const bool masked = chance(4);
  const bool extreme = chance(8);
  for (int64_t i = 0; i < vocab; ++i) {
    float logit = equal ? scale : scale * random.Normal() - (chance(2) ? 30.0f : 0.0f);
    if (masked && !chance(3)) logit = -kInfinity;
    if (extreme && chance(4)) logit = chance(2) ? kMax : -kMax;
    made.logits.push_back(logit);
  }
  made.target = static_cast<TokenId>(random.Below(vocab));
  const bool bad = chance(8);
  if (bad) {
    const float logit = chance(2) ? kInfinity : std::numeric_limits<float>::quiet_NaN();
    made.logits[static_cast<size_t>(random.Below(vocab))] = logit;
  }
  made.name = "vocab " + std::to_string(vocab) + " target " + std::to_string(made.target) +
              (equal ? " equal" : "") + (masked ? " masked" : "") + (extreme ? " extreme" : "") +
              (bad ? " bad" : "");
  return made;
}

inline bool SameScore(const Scored& a, const Scored& b) {
  return a.largest == b.largest && a.target == b.target && a.sum == b.sum;
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_SCORE_TESTING_H_
