#include "cli/console.h"

#include <gtest/gtest.h>

#include "cli/test_console.h"

namespace headway::cli {
namespace {

TEST(Console, WritesResultsAndMessagesApart) {
  TestConsole test;
  EXPECT_TRUE(test.console().Write("text"));
  test.console().Say("summary");
  test.console().Warn("careful");
  EXPECT_EQ(test.console().Fail(Status(StatusCode::kIo, "no disk")), kExitFailed);
  EXPECT_EQ(test.out(), "text");
  EXPECT_EQ(test.err(), "summary\nheadway: warning: careful\nheadway: error: no disk\n");
}

TEST(Console, ShowsNoStatusLineOutsideATerminal) {
  TestConsole test;
  test.console().SetStatusLine("50 %");
  test.console().Say("line");
  test.console().ClearStatusLine();
  EXPECT_EQ(test.err(), "line\n");
  EXPECT_FALSE(test.console().err_is_terminal());
  EXPECT_EQ(test.console().columns(), 80);
}

TEST(Console, SaysWhenNobodyReads) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Console console(stdin, full, stderr);
  EXPECT_FALSE(console.Write("text"));
  std::fclose(full);
}

TEST(Console, ReadsLines) {
  TestConsole test("one\ntwo\r\n\nlast");
  std::string line;
  for (const char* expected : {"one", "two", "", "last"}) {
    ASSERT_TRUE(test.console().ReadLine(&line));
    EXPECT_EQ(line, expected);
  }
  EXPECT_FALSE(test.console().ReadLine(&line));
}

TEST(Console, ReadsAllUpToALimit) {
  const std::string text(200'000, 'x');
  TestConsole test(text);
  const Result<std::string> all = test.console().ReadAll(200'000);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(*all, text);
  TestConsole longer(text);
  EXPECT_FALSE(longer.console().ReadAll(199'999).ok());
}

}  // namespace
}  // namespace headway::cli
