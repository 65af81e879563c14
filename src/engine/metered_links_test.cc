#include "engine/metered_links.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway {
namespace {

// Ranks whose memory the host reads stand for GPUs: what comes out is of all of them.
TEST(MeteredLinks, MeasuresAllSizesOverAllDevices) {
  const std::vector<std::string> devices(3, "cpu");
  const std::vector<int64_t> sums = {64, 4096, 1 << 16};
  const Result<hardware::LinkRates> rates =
      MeterLinks(*Env::Default(), devices, {.sums = sums, .copied = 4 << 20, .readers = 2});
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_EQ(rates->gpus, 3);
  ASSERT_EQ(rates->sums.size(), sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(rates->sums[i].first, sums[i]);
    EXPECT_GT(rates->sums[i].second, 0.0);
  }
  EXPECT_GT(rates->gather, 0.0);
  EXPECT_GT(rates->bus, 0.0);
  EXPECT_GT(rates->bus_reading, 0.0);
  EXPECT_GT(rates->cores, 0.0);
}

TEST(MeteredLinks, CoresReadOnlyWhereThatIsAskedFor) {
  const std::vector<std::string> devices(2, "cpu");
  const Result<hardware::LinkRates> rates =
      MeterLinks(*Env::Default(), devices, {.sums = {}, .copied = 1 << 16});
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_EQ(rates->bus_reading, 0.0);
  EXPECT_EQ(rates->cores, 0.0);
}

TEST(MeteredLinks, OnlyAllGpusAreConnected) {
  EXPECT_TRUE(DevicesToConnect("cpu").empty());
  EXPECT_TRUE(DevicesToConnect("cuda:0").empty());
}

TEST(MeteredLinks, ADeviceThatIsNotHereIsSaid) {
  const std::vector<std::string> devices = {"cpu", "abacus"};
  EXPECT_FALSE(MeterLinks(*Env::Default(), devices, {}).ok());
}

}  // namespace
}  // namespace headway
