#include "base/machine_profile.h"

#include <gtest/gtest.h>

namespace headway {
namespace {

TEST(MachineProfile, ACurveIsLatencyThenRate) {
  const Curve curve{{{100.0, 10.0}, {1000.0, 50.0}}};  // 10 s and 20 s
  EXPECT_DOUBLE_EQ(curve.Seconds(50), 5.0);
  EXPECT_DOUBLE_EQ(curve.Seconds(100), 10.0);
  EXPECT_DOUBLE_EQ(curve.Seconds(550), 15.0);
  EXPECT_DOUBLE_EQ(curve.Seconds(2000), 40.0);
  EXPECT_DOUBLE_EQ(curve.Rate(550), 550 / 15.0);
  EXPECT_DOUBLE_EQ(curve.Peak(), 50.0);
  EXPECT_EQ(Curve{}.Seconds(5), 0.0);
  EXPECT_EQ(Curve{}.Rate(5), 0.0);
}

}  // namespace
}  // namespace headway
