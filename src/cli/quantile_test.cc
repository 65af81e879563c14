#include "cli/quantile.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

TEST(Quantile, LiesBetweenTheNumbersThatAreNext) {
  EXPECT_EQ(Quantile({}, 0.5), 0.0);
  EXPECT_EQ(Quantile({3.0}, 0.99), 3.0);
  EXPECT_EQ(Quantile({4.0, 1.0, 2.0}, 0.5), 2.0);
  EXPECT_EQ(Quantile({4.0, 1.0}, 0.25), 1.75);
  EXPECT_EQ(Quantile({4.0, 1.0, 2.0}, 1.0), 4.0);
}

}  // namespace
}  // namespace headway::cli
