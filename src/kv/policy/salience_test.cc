#include "kv/policy/salience.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace headway::kv {
namespace {

// What the definition says, token by token.
std::vector<int32_t> Plain(const std::vector<float>& masses, double beta, int64_t most) {
  std::vector<int32_t> chosen;
  for (size_t i = 0; i < masses.size(); ++i) {
    if (!(double{masses[i]} > beta)) continue;
    int64_t ahead = 0;
    for (size_t j = 0; j < masses.size(); ++j) {
      ahead += masses[j] > masses[i] || (masses[j] == masses[i] && j < i) ? 1 : 0;
    }
    if (ahead < most) chosen.push_back(static_cast<int32_t>(i));
  }
  return chosen;
}

TEST(Salience, ChoosesWhatTheDefinitionSays) {
  Random random(3);
  int64_t capped = 0, all = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> masses;
    for (int64_t i = random.Below(80); i > 0; --i) {
      // Many equal ones.
      masses.push_back(static_cast<float>(random.Below(12)) / 4.0f);
      if (random.Below(40) == 0) masses.back() = std::numeric_limits<float>::quiet_NaN();
    }
    const double beta = 0.25 * static_cast<double>(random.Below(8));
    const int64_t most = random.Below(30);
    const std::vector<int32_t> chosen = ChooseSalient(masses, beta, most);
    ASSERT_EQ(chosen, Plain(masses, beta, most)) << round;
    capped += std::ssize(chosen) == most ? 1 : 0;
    all += std::ssize(chosen) < most ? 1 : 0;
  }
  EXPECT_GT(capped, 50);
  EXPECT_GT(all, 50);
}

TEST(Salience, TheWindowHasWholePagesBeforeIt) {
  SaliencePolicy policy;
  policy.window = 100;
  EXPECT_EQ(TokensBefore(policy, 99, 16), 0);
  EXPECT_EQ(TokensBefore(policy, 115, 16), 0);
  EXPECT_EQ(TokensBefore(policy, 116, 16), 16);
  EXPECT_EQ(TokensBefore(policy, 1000, 16), 896);
  policy.most = 0.25;
  EXPECT_EQ(MostSalient(policy, 896), 224);
  EXPECT_EQ(MostSalient(policy, 3), 0);
}

}  // namespace
}  // namespace headway::kv
