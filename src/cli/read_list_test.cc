#include "cli/read_list.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

TEST(ReadList, ReadsLengthsWithUnits) {
  std::vector<int64_t> lengths;
  ASSERT_TRUE(ReadLengths("4096,64k,1m,2K,1M", &lengths).ok());
  EXPECT_EQ(lengths, (std::vector<int64_t>{4096, 65536, 1048576, 2048, 1048576}));
  ASSERT_TRUE(ReadLengths("7", &lengths).ok());
  EXPECT_EQ(lengths, std::vector<int64_t>{7});
  for (const char* bad : {"", ",", "8,", "k", "8kk", "0", "-1", "1.5k", "1073741825", "1025m",
                          "9999999999999999999", "1 2", "8g"}) {
    EXPECT_FALSE(ReadLengths(bad, &lengths).ok()) << bad;
  }
}

TEST(ReadList, ReadsPercents) {
  std::vector<double> percents;
  ASSERT_TRUE(ReadPercents("0,12.5,100", &percents).ok());
  EXPECT_EQ(percents, (std::vector<double>{0.0, 12.5, 100.0}));
  for (const char* bad : {"", "101", "-1", "nan", "5,", "a"}) {
    EXPECT_FALSE(ReadPercents(bad, &percents).ok()) << bad;
  }
}

}  // namespace
}  // namespace headway::cli
