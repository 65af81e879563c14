#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace headway {
namespace {

TEST(StopMatcher, ShowsEverythingWithoutStops) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.Feed("abc"), "abc");
  EXPECT_EQ(matcher.Feed(""), "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, HoldsBackAndReleasesFalseStarts) {
  StopMatcher matcher({"END", "\n\n"});
  EXPECT_EQ(matcher.Feed("oneE"), "one");
  EXPECT_EQ(matcher.Feed("N"), "");
  EXPECT_EQ(matcher.Feed("E"), "EN");  // "ENE": only the last E may begin a stop
  EXPECT_EQ(matcher.Feed("NDmore"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Feed("x"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, RandomCutsShowTheTextUpToTheFirstStop) {
  Random random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += static_cast<char>('a' + random.Below(3));
    const std::vector<std::string> stops = {"abca", "ccb", "baab"};
    size_t end = std::string::npos;
    for (const std::string& stop : stops) end = std::min(end, text.find(stop));
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = static_cast<size_t>(1 + random.Below(5));
      shown += matcher.Feed(std::string_view(text).substr(at, n));
      at += n;
    }
    shown += matcher.Finish();
    EXPECT_EQ(shown, text.substr(0, end)) << text;
  }
}

}  // namespace
}  // namespace headway
