#include "cli/option_flags.h"

#include <gtest/gtest.h>

#include <CLI/App.hpp>

#include <map>
#include <string>

#include "cli/flags.h"

namespace headway::cli {
namespace {

TEST(OptionFlags, EveryOptionIsAFlag) {
  const auto app = NewApp("test", "a test", "");
  ModelFlags flags;
  const std::map<Option, std::string> of_commands = {
      {Option::kLength, "--ctx-size"},
      {Option::kPromptLength, "--context"},
      {Option::kHaystack, "--haystack"},
      {Option::kDraftAcceptance, "--draft-acceptance"}};
  AddModelFlags(*app, &flags);
  for (int i = 0; i < kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    if (of_commands.count(option) > 0) continue;
    EXPECT_NE(app->get_option_no_throw(FlagOf(option)), nullptr) << FlagOf(option);
  }
  for (const auto& [option, flag] : of_commands) EXPECT_EQ(FlagOf(option), flag);
}

TEST(OptionFlags, ErrorsAreSaidWithFlags) {
  const Status status(StatusCode::kOutOfBudget, Refusal{{"raise ", Option::kKvMemory}});
  EXPECT_EQ(Worded(status), "raise --kv-memory");
  EXPECT_EQ(Worded(Status(StatusCode::kIo, "no")), "no");
}

}  // namespace
}  // namespace headway::cli
