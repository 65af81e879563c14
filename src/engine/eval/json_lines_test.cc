#include "engine/eval/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;

Status Take(std::string_view text, std::vector<std::string>* seen) {
  return ForEachJsonLine(text, "f", [seen](const Json& value, const std::string& where) {
    seen->push_back(where + ": " + (value.is_discarded() ? "none" : value.dump()));
    return OkStatus();
  });
}

TEST(JsonLines, AreTakenInOrder) {
  std::vector<std::string> seen;
  EXPECT_TRUE(Take("{\"b\": 1, \"a\": 2}\r\n \t\n[1]\n{\n\"x\"", &seen).ok());
  EXPECT_THAT(seen, ElementsAre("f, line 1: {\"b\":1,\"a\":2}", "f, line 3: [1]", "f, line 4: none",
                                "f, line 5: \"x\""));
  seen.clear();
  EXPECT_TRUE(Take("", &seen).ok());
  EXPECT_TRUE(Take("[[[", &seen).ok());
  EXPECT_THAT(seen, ElementsAre("f, line 1: none"));
}

TEST(JsonLines, AreNotNestedDeeply) {
  for (const size_t depth : {102u, 100'000u}) {
    for (const std::string& text :
         {std::string(depth, '['), std::string(depth, '[') + std::string(depth, ']'),
          "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}"}) {
      std::vector<std::string> seen;
      EXPECT_EQ(Take(text, &seen).message(), "f, line 1 is nested too deeply");
      EXPECT_TRUE(seen.empty());
    }
  }
  std::vector<std::string> seen;
  EXPECT_TRUE(Take(std::string(90, '[') + std::string(90, ']'), &seen).ok());
}

TEST(JsonLines, AKeyIsThereOnce) {
  std::vector<std::string> seen;
  const Status twice = Take("{\"a\": 1}\n{\"a\": 1, \"b\": 2, \"a\": 1, \"b\": 3}\n", &seen);
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(twice.message(), "f, line 2: the key \"a\" is there twice");
  EXPECT_EQ(seen.size(), 1u);
  // Inside of values and of lists they are not the line's.
  EXPECT_TRUE(Take("{\"a\": {\"a\": {\"a\": 1}}, \"b\": [{\"a\": 1}, {\"a\": 2}]}\n"
                   "[{\"a\": 1}, {\"a\": 2}]",
                   &seen)
                  .ok());
}

TEST(JsonLines, OtherKeysAreQuotedAndShort) {
  const Json object = {{"id", 1}, {"a\nb", 2}, {std::string(200, 'x'), 3}, {"\xc3\xa9", 4}};
  EXPECT_THAT(OtherKeys(object, {"id", "text"}),
              ElementsAre("\"a\\nb\"", "\"" + std::string(59, 'x') + "...\"", "\"\\u00e9\""));
  EXPECT_TRUE(OtherKeys(Json::object(), {"id"}).empty());
}

}  // namespace
}  // namespace headway::eval
