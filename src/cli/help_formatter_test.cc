#include "cli/help_formatter.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

TEST(Wrap, BreaksBetweenWords) {
  EXPECT_EQ(Wrap("one two three", 80, 4), "one two three");
  EXPECT_EQ(Wrap("one two three", 8, 4), "one two\n    three");
  EXPECT_EQ(Wrap("one two three", 7, 0), "one two\nthree");
  EXPECT_EQ(Wrap("one two three", 1, 0), "one\ntwo\nthree");
  EXPECT_EQ(Wrap("immeasurable word", 5, 0), "immeasurable\nword");
  EXPECT_EQ(Wrap("a\nb c", 3, 2), "a\n  b c");
  EXPECT_EQ(Wrap("", 10, 2), "");
}

}  // namespace
}  // namespace headway::cli
