#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "cli/test_console.h"

namespace headway::cli {
namespace {

using ::testing::HasSubstr;

Progress At(int64_t done, int64_t total, double seconds) {
  Progress progress;
  progress.done = done;
  progress.total = total;
  progress.seconds = seconds;
  progress.tier_bytes[0] = 8 * kMiB;
  progress.tier_bytes[1] = 60 * kMiB;
  return progress;
}

EngineOptions Limits() {
  EngineOptions limits;
  limits.kv_memory = 8 * kMiB;
  return limits;
}

TEST(FormatDuration, CountsHoursMinutesSeconds) {
  EXPECT_EQ(FormatDuration(0), "0:00");
  EXPECT_EQ(FormatDuration(6.6), "0:07");
  EXPECT_EQ(FormatDuration(760), "12:40");
  EXPECT_EQ(FormatDuration(11100), "3:05:00");
  EXPECT_EQ(FormatDuration(1e300), "100000:00:00");
}

TEST(FormatBar, ShowsAllWhereThereIsRoom) {
  EXPECT_EQ(FormatBar(At(8192, 16384, 4.0), Limits(), 140),
            "prefill [############............]  50% 8192/16384  2048.0 tok/s  0:04 left  "
            "device 8.0 MiB/8.0 MiB, host 60.0 MiB");
}

TEST(FormatBar, FitsAnyTerminal) {
  for (const Progress& progress : {At(0, 100, 0.0), At(50, 100, 1.0), At(100, 100, 1e9),
                                   At(7, 0, 1.0), At(int64_t{1} << 40, int64_t{1} << 41, 3.0)}) {
    for (int columns = 1; columns < 200; ++columns) {
      EXPECT_LT(FormatBar(progress, Limits(), columns).size(),
                static_cast<size_t>(std::max(columns, 2)));
    }
  }
  EXPECT_THAT(FormatBar(At(8192, 16384, 4.0), Limits(), 80), HasSubstr("2048.0 tok/s"));
  EXPECT_THAT(FormatBar(At(8192, 16384, 4.0), Limits(), 80), HasSubstr("left"));
}

TEST(FormatBar, ShowsTheTiersAt80Columns) {
  Progress progress = At(16384, 16384, 3000.0);
  EngineOptions limits = Limits();
  EXPECT_THAT(FormatBar(progress, limits, 80), HasSubstr("left  dev 100% host 60.0 MiB"));
  limits.host_memory = 64 * kMiB;
  limits.disk_memory = kGiB;
  progress.tier_bytes[2] = 300 * kMiB;
  EXPECT_THAT(FormatBar(progress, limits, 80), HasSubstr("left  dev 100% host 94% disk 29%"));
}

TEST(FormatProgressLine, SaysItInWords) {
  EXPECT_EQ(FormatProgressLine(At(8192, 16384, 4.0), Limits()),
            "prefill: 8192 of 16384 tokens (50%), 2048.0 tok/s, 0:04 left; KV on device 8.0 "
            "MiB/8.0 MiB, host 60.0 MiB");
  EXPECT_THAT(FormatProgressLine(At(0, 16384, 0.0), Limits()), Not(HasSubstr("left")));
}

TEST(ProgressMeter, SpeaksNowAndThenOutsideATerminal) {
  TestConsole test;
  const EngineOptions limits = Limits();
  {
    ProgressMeter meter(test.console(), limits, ProgressMeter::Shown::kYes);
    for (int i = 0; i <= 1000; ++i) meter.Show(At(i, 1000, 0.05 * i));  // 50 s
  }
  const std::string err = test.err();
  const auto lines = std::count(err.begin(), err.end(), '\n');
  EXPECT_GE(lines, 5);
  EXPECT_LE(lines, 11) << err;

  TestConsole quick;
  ProgressMeter meter(quick.console(), limits, ProgressMeter::Shown::kYes);
  for (int i = 0; i <= 1000; ++i) meter.Show(At(i, 1000, 0.001 * i));  // 1 s
  EXPECT_EQ(quick.err(), "");

  TestConsole silent;
  ProgressMeter off(silent.console(), limits, ProgressMeter::Shown::kNo);
  for (int i = 0; i <= 1000; ++i) off.Show(At(i, 1000, 0.05 * i));
  EXPECT_EQ(silent.err(), "");
}

}  // namespace
}  // namespace headway::cli
