#include "cli/option_flags.h"

#include <gtest/gtest.h>

#include "cli/flags.h"

namespace headway::cli {
namespace {

TEST(OptionFlags, EveryOptionIsAFlag) {
  const auto app = NewApp("test", "a test", "");
  ModelFlags flags;
  AddModelFlags(*app, &flags);
  for (int i = 0; i < kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    if (option == Option::kLength) continue;  // a flag of single commands
    EXPECT_NE(app->get_option_no_throw(FlagOf(option)), nullptr) << FlagOf(option);
  }
  EXPECT_EQ(FlagOf(Option::kLength), "--ctx-size");
}

TEST(OptionFlags, ErrorsAreSaidWithFlags) {
  const Status status(StatusCode::kOutOfBudget, Refusal{{"raise ", Option::kKvMemory}});
  EXPECT_EQ(Worded(status), "raise --kv-memory");
  EXPECT_EQ(Worded(Status(StatusCode::kIo, "no")), "no");
}

}  // namespace
}  // namespace headway::cli
