#include "base/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headway {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const Result<nlohmann::json> parsed = ParseJsonObject(text, "x.json");
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(parsed.status().message(), StartsWith("x.json: "));
  EXPECT_THAT(parsed.status().message(), Not(HasSubstr("exception")));
  EXPECT_THAT(parsed.status().message(), Not(HasSubstr("\n")));
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(JsonUtilTest, NamesThePlaceOfAnError) {
  EXPECT_THAT(ErrorOf("{x}"), EndsWith("not valid JSON at line 1, column 2, near '{x}'"));
  EXPECT_THAT(ErrorOf("{\n  \"a\": 1,\n  \"b\": 1 2\n}"), HasSubstr("at line 3, column 10, near"));
  EXPECT_THAT(ErrorOf("{\"a\": 1}\n}"), HasSubstr("at line 2, column 1, near '}'"));
  EXPECT_THAT(ErrorOf("{\"a\": \"\xff\"}"), HasSubstr("at line 1, column 8"));
  EXPECT_THAT(ErrorOf("{\"é中\" x}"), HasSubstr("at line 1, column 7"));
  EXPECT_THAT(ErrorOf("{\"a\": 1e999}"), HasSubstr("at line 1, column "));
  EXPECT_THAT(ErrorOf("{\"a\": \"" + std::string(1000, 'x') + "\x01\"}").size(), testing::Lt(150u));
}

TEST(JsonUtilTest, SaysWhatATextIsInstead) {
  EXPECT_THAT(ErrorOf(""), EndsWith("an empty file"));
  EXPECT_THAT(ErrorOf(" \n"), EndsWith("an empty file"));
  EXPECT_THAT(ErrorOf("{\n\"a\": [1, 2"),
              HasSubstr("ends too early, in line 2; get the file again"));
  EXPECT_THAT(ErrorOf("{\"a\": 1,\n"), HasSubstr("ends too early, in line 2"));
  EXPECT_THAT(ErrorOf("[]"), EndsWith("not a JSON object"));
  EXPECT_THAT(ErrorOf("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              HasSubstr("a Git LFS pointer"));
}

}  // namespace
}  // namespace headway
