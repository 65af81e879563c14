#include "hardware/links.h"

#include <gtest/gtest.h>

namespace headway::hardware {
namespace {

TEST(Links, ALinkIsAsFastAsTheLargestSumSays) {
  LinkRates rates;
  rates.gpus = 4;
  rates.gather = 9e10;
  rates.sums = {{8192, 1e-5}, {1 << 20, 3e-5}, {100'000'000, 1e-5 + 1e-3}};
  EXPECT_EQ(SumLatency(rates), 1e-5);
  EXPECT_NEAR(LinkRate(rates), 1.5e8 / 1e-3, 1.0);
}

TEST(Links, SumsThatSayNothingLeaveWhatWasGathered) {
  LinkRates rates;
  rates.gpus = 2;
  rates.gather = 9e10;
  EXPECT_EQ(SumLatency(rates), 0.0);
  EXPECT_EQ(LinkRate(rates), 9e10);
  rates.sums = {{8192, 1e-5}, {16384, 9e-6}};  // noise
  EXPECT_EQ(LinkRate(rates), 9e10);
}

}  // namespace
}  // namespace headway::hardware
