#include "cli/run_prompts.h"

#include <gtest/gtest.h>

namespace headway::cli {
namespace {

TEST(PromptLines, AreStringsOrObjects) {
  const auto lines = ParsePromptLines(
      "\"Once\\nupon\"\n\n{\"prompt\": \"a time\", \"id\": 7, \"max_tokens\": 3}\r\n", "f.jsonl");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ((*lines)[0].text, "Once\nupon");
  EXPECT_TRUE((*lines)[0].id.is_null());
  EXPECT_FALSE((*lines)[0].max_tokens.has_value());
  EXPECT_EQ((*lines)[1].text, "a time");
  EXPECT_EQ((*lines)[1].id, 7);
  EXPECT_EQ((*lines)[1].max_tokens, 3);
}

TEST(PromptLines, ErrorsNameTheLine) {
  for (const char* bad :
       {"{", "12", "[\"a\"]", "{}", "{\"prompt\": 1}", "\"\"", "{\"prompt\": \"\"}",
        "{\"prompt\": \"a\", \"max_tokens\": -1}", "{\"prompt\": \"a\", \"max_tokens\": \"x\"}",
        "{\"prompt\": \"a\", \"id\": [1]}", "{\"prompt\": \"a\", \"id\": {}}"}) {
    const auto lines = ParsePromptLines(std::string("\"good\"\n\n") + bad + "\n", "f.jsonl");
    ASSERT_FALSE(lines.ok()) << bad;
    EXPECT_EQ(lines.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(lines.status().message().rfind("f.jsonl, line 3", 0), 0u) << lines.status().message();
  }
  EXPECT_FALSE(ParsePromptLines(" \n\n", "f.jsonl").ok());
}

}  // namespace
}  // namespace headway::cli
