#include "cli/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/test_dir.h"
#include "cli/flags.h"
#include "cli/test_console.h"

namespace headway::cli {
namespace {

using ::testing::HasSubstr;

// The prompt that a command line makes; the message when it makes none.
struct Made {
  std::string wrong_usage;
  Result<PromptText> prompt = PromptText{};
};
Made Make(const Args& args, const std::string& input = "") {
  TestConsole test(input);
  PromptFlags flags;
  const auto app = NewApp("test", "", "");
  AddPromptFlags(*app, &flags);
  Made made;
  if (Parse(*app, args, test.console()).has_value()) {
    made.wrong_usage = test.err();
    return made;
  }
  made.wrong_usage = CheckPromptFlags(*app, test.console(), &flags);
  if (made.wrong_usage.empty()) made.prompt = ReadPrompt(flags, test.console());
  return made;
}

TEST(Prompt, ComesFromTheFlagTheFileOrStandardInput) {
  const TestDir dir;
  std::ofstream(dir.File("p.txt")) << "from a file\n\n";
  EXPECT_EQ(Make({"-p", " as it is\n"}).prompt->text, " as it is\n");
  EXPECT_EQ(Make({"-p", "-dash"}).prompt->text, "-dash");
  EXPECT_EQ(Make({"--file", dir.File("p.txt")}).prompt->text, "from a file\n");
  EXPECT_EQ(Make({"--file", "-"}, "piped\r\n").prompt->text, "piped");
  EXPECT_EQ(Make({}, "piped").prompt->text, "piped");
  EXPECT_TRUE(Make({}, "piped").prompt->messages.empty());
}

TEST(Prompt, GoesThroughTheTemplateAsOneTurn) {
  const Made asked = Make({"--ask", "Why?", "--system", "Be brief."}, "Document.\n");
  ASSERT_TRUE(asked.prompt.ok());
  ASSERT_EQ(asked.prompt->messages.size(), 2u);
  EXPECT_EQ(asked.prompt->messages[0].role, "system");
  EXPECT_EQ(asked.prompt->messages[0].content, "Be brief.");
  EXPECT_EQ(asked.prompt->messages[1].role, "user");
  EXPECT_EQ(asked.prompt->messages[1].content, "Document.\n\nWhy?");
  const Made chat = Make({"--chat", "-p", "Hello"});
  ASSERT_EQ(chat.prompt->messages.size(), 1u);
  EXPECT_EQ(chat.prompt->messages[0].content, "Hello");
}

TEST(Prompt, RefusesWhatMakesNoSense) {
  EXPECT_THAT(Make({"-p", "x", "-f", "y"}).wrong_usage, HasSubstr("exclude each other"));
  EXPECT_THAT(Make({"-p", "x", "--system", "y"}).wrong_usage, HasSubstr("--system needs"));
}

TEST(Prompt, SaysWhatIsWrongWithTheText) {
  const TestDir dir;
  std::ofstream(dir.File("bad.txt")) << "caf\xe9 au lait";
  std::ofstream(dir.File("empty.txt"));
  std::ofstream(dir.File("newline.txt")) << "\n";
  const std::pair<Args, std::string> cases[] = {
      {{"-p", ""}, "the prompt is empty"},
      {{"-p", "ab\xff"}, "the prompt is not valid UTF-8: byte 0xff at offset 2"},
      {{"-f", dir.File("bad.txt")}, "bad.txt is not valid UTF-8: byte 0xe9 at offset 3"},
      {{"-f", dir.File("empty.txt")}, "empty.txt is empty"},
      {{"-f", dir.File("newline.txt")}, "newline.txt is empty"},
      {{"-f", dir.File("none.txt")}, "none.txt"},
      {{"-f", dir.path()}, "is a directory"},
      {{}, "standard input is empty"},
      {{"-p", "x", "--ask", ""}, "the question is empty"},
      {{"-p", "x", "--ask", "y", "--system", "\xc0"}, "the system message is not valid UTF-8"},
  };
  for (const auto& [args, message] : cases) {
    const Made made = Make(args);
    EXPECT_EQ(made.wrong_usage, "") << message;
    ASSERT_FALSE(made.prompt.ok()) << message;
    EXPECT_THAT(made.prompt.status().message(), HasSubstr(message));
  }
}

TEST(LongContext, IsWarnedOf) {
  ModelInfo info;
  PlanReport plan;
  EXPECT_EQ(LongContextWarning(info, 1 << 20, plan, {}), "") << "nothing is known of the model";
  info.max_position = 16384;
  EXPECT_EQ(LongContextWarning(info, 16384, plan, {}), "");
  EXPECT_THAT(LongContextWarning(info, 16385, plan, {}), HasSubstr("beyond token 16384"));
  // Whatever the options ask for, the plan knows what is done.
  EngineOptions sparse;
  sparse.selector = "pages";
  plan.selection.emplace();
  EXPECT_THAT(LongContextWarning(info, 16385, plan, sparse), HasSubstr("beyond token 16384"));
  plan.selection->reach = true;
  EXPECT_THAT(LongContextWarning(info, 16385, plan, sparse), HasSubstr("chosen keys"));
  EngineOptions extended;
  extended.self_extend = "8:4096";
  EXPECT_THAT(LongContextWarning(info, 16385, {}, extended), HasSubstr("Self-Extend 8:4096"));
}

}  // namespace
}  // namespace headway::cli
