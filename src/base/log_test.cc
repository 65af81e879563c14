#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace headway {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { SetLogSink(nullptr); }
};

TEST_F(LogTest, DefaultPrintsWarningsAndErrors) {
  testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "one");
  Log(LogLevel::kInfo, "two");
  Log(LogLevel::kWarning, "three");
  Log(LogLevel::kError, "four");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "headway: warning: three\nheadway: error: four\n");
}

TEST_F(LogTest, SinkGetsEveryLineOfEveryThread) {
  std::vector<std::string> lines;  // no lock: the sink is called by one thread at a time
  SetLogSink([&lines](LogLevel level, std::string_view line) {
    lines.push_back(std::string(LogLevelName(level)) + " " + std::string(line));
  });
  Log(LogLevel::kDebug, "first");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(lines.size(), 401u);
  EXPECT_EQ(lines.front(), "debug first");
  EXPECT_EQ(lines.back(), "info line");
}

}  // namespace
}  // namespace headway
