#include "hardware/links.h"

#include <gtest/gtest.h>

#include "hardware/peaks.h"

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

TEST(Links, GpusThatCopyAtATimeShareTheHostsMemory) {
  LinkRates rates;
  rates.gpus = 4;
  rates.bus = 3e10;
  rates.bus_reading = 2e10;
  rates.cores = 1e11;
  MachinePeaks alone;
  alone.host_to_device_bytes_per_second = 6e10;
  alone.device_to_host_bytes_per_second = 5e10;
  MachinePeaks peaks = alone;
  ShareHost(rates, &peaks);
  EXPECT_EQ(peaks.copying_gpus, 4);
  EXPECT_NEAR(peaks.host_to_device_bytes_per_second, 3e10, 1.0);
  EXPECT_NEAR(peaks.device_to_host_bytes_per_second, 2.5e10, 1.0);
  // Where no core attends, none reads.
  EXPECT_EQ(peaks.host_read_bytes_per_second, 0.0);
  EXPECT_EQ(peaks.shared_host_to_device_bytes_per_second, 0.0);
  alone.host_read_bytes_per_second = 2e11;
  alone.shared_host_to_device_bytes_per_second = 4e10;
  rates.bus = 9e10;  // no faster than one by itself
  ShareHost(rates, &alone);
  EXPECT_NEAR(alone.host_to_device_bytes_per_second, 6e10, 1.0);
  EXPECT_EQ(alone.host_read_bytes_per_second, 1e11);
  EXPECT_EQ(alone.shared_host_to_device_bytes_per_second, 2e10);
}

}  // namespace
}  // namespace headway::hardware
