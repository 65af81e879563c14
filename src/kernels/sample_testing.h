// Random logits and options for comparing implementations of Kernels::Sample.
#ifndef HEADWAY_KERNELS_SAMPLE_TESTING_H_
#define HEADWAY_KERNELS_SAMPLE_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/logits.h"

namespace headway {

struct SampleCase {
  std::vector<float> logits;
  std::vector<TokenPenalty> penalties;
  SampleItem item;  // without pointers
  std::string name;
};

inline SampleCase RandomSampleCase(Random& random, int64_t max_vocab) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto chance = [&](int64_t of) { return random.Below(of) == 0; };
  SampleCase made;
  SampleItem& item = made.item;
  // Small ones, large ones, and those at the edge of what a block of threads takes.
  item.vocab = chance(3)   ? 1 + random.Below(std::min<int64_t>(max_vocab, 40))
               : chance(3) ? std::min(max_vocab, 1024 * (1 + random.Below(4)) + random.Below(3) - 1)
                           : 1 + random.Below(max_vocab);
  const float scale = std::exp(2.0f * random.Normal());
  const bool ties = chance(3);
  const bool masked = chance(4);
  for (int64_t i = 0; i < item.vocab; ++i) {
    float logit = scale * random.Normal();
    if (ties) logit = std::round(logit / scale * 2.0f) * scale;  // -0 among them
    if (masked && !chance(3)) logit = -kInfinity;
    made.logits.push_back(logit);
  }
  if (chance(12)) std::fill(made.logits.begin(), made.logits.end(), made.logits[0]);
  if (chance(16)) {
    const auto at = static_cast<size_t>(random.Below(item.vocab));
    made.logits[at] = chance(2) ? kInfinity : std::numeric_limits<float>::quiet_NaN();
  }
  if (!chance(5)) item.temperature = std::exp(random.Normal());
  if (chance(2)) item.top_k = static_cast<int>(1 + random.Below(chance(3) ? item.vocab + 2 : 60));
  if (chance(2)) item.top_p = chance(5) ? 1e-9f : static_cast<float>(1.0 - random.Uniform());
  if (chance(3)) item.min_p = static_cast<float>(random.Uniform() * random.Uniform());
  if (chance(3)) {
    item.repetition_penalty = std::exp(0.3f * random.Normal());
    for (int64_t token = -2; token < item.vocab + 2; ++token) {
      if (chance(7)) made.penalties.push_back({static_cast<TokenId>(token), random.Normal()});
    }
  }
  item.draw = chance(8) ? ~uint64_t{0} : chance(8) ? 0 : random.Next();
  made.name = "vocab " + std::to_string(item.vocab) + " temperature " +
              std::to_string(item.temperature) + " top_k " + std::to_string(item.top_k) +
              " top_p " + std::to_string(item.top_p) + " min_p " + std::to_string(item.min_p) +
              " penalties " + std::to_string(made.penalties.size()) + " draw " +
              std::to_string(item.draw) + (ties ? " ties" : "") + (masked ? " masked" : "");
  return made;
}

inline bool SameSample(const Sampled& a, const Sampled& b) {
  return a.token == b.token && (a.logit == b.logit || (std::isnan(a.logit) && std::isnan(b.logit)));
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_SAMPLE_TESTING_H_
