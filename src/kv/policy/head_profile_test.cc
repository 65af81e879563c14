#include "kv/policy/head_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headway::kv {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kBudgets =
    R"({"format": "headway head profile", "version": 1,
        "model": {"layers": 2, "kv_heads": 2, "config": "0123"}, "kind": "budgets",
        "method": "ada-snapkv", "anyway": 32, "heads": [[32, 132], [82, 282.0]]})";

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kBudgets;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string Wrong(const std::string& text) {
  const Result<std::vector<double>> read = ParseHeadProfile(text, "p.json", {2, 2, "0123"});
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read.status().message().find('\n'), std::string::npos);
  return read.status().message();
}

TEST(HeadProfile, BudgetsAreSharesOfWhatIsBesideTheWindow) {
  const Result<std::vector<double>> read = ParseHeadProfile(kBudgets, "p.json", {2, 2, "0123"});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(*read, ElementsAre(DoubleEq(0.0), DoubleEq(1.0), DoubleEq(0.5), DoubleEq(2.5)));
}

TEST(HeadProfile, ImportanceIsShared) {
  const std::string text =
      R"({"format": "headway head profile", "version": 1, "kind": "importance",
          "model": {"layers": 1, "kv_heads": 4, "config": "ab"}, "heads": [[0, 0.1, 0.2, 0.1]]})";
  const Result<std::vector<double>> read = ParseHeadProfile(text, "p.json", {1, 4, "ab"});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(*read, ElementsAre(DoubleEq(0.0), DoubleEq(1.0), DoubleEq(2.0), DoubleEq(1.0)));
}

TEST(HeadProfile, EveryShorterFileIsRefused) {
  const std::string text = kBudgets;
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(Wrong(text.substr(0, length)),
              "head profile p.json: is not a JSON object, or it is cut short");
  }
}

TEST(HeadProfile, WhatIsBrokenIsRefusedByName) {
  EXPECT_THAT(Wrong(R"({"scores": [[1, 1], [1, 1]]})"), HasSubstr("is none"));
  EXPECT_THAT(Wrong(Changed("\"version\": 1", "\"version\": 2")), HasSubstr("another version"));
  EXPECT_THAT(Wrong(Changed("\"layers\": 2", "\"layers\": 3")),
              HasSubstr("another shape than 2 layers with 2 KV heads"));
  EXPECT_THAT(Wrong(Changed("\"kv_heads\": 2", "\"kv_heads\": \"2\"")), HasSubstr("another shape"));
  EXPECT_THAT(Wrong(Changed("0123", "0124")), HasSubstr("another configuration"));
  EXPECT_THAT(Wrong(Changed("\"budgets\"", "\"scores\"")), HasSubstr("kind"));
  EXPECT_THAT(Wrong(Changed("\"anyway\": 32", "\"anyway\": -1")), HasSubstr("anyway"));
  EXPECT_THAT(Wrong(Changed("\"anyway\": 32", "\"anyway\": 33")),
              HasSubstr("layer 0, head 0 has 32, which is below 33"));
  EXPECT_THAT(Wrong(Changed(", [82, 282.0]", "")), HasSubstr("a list for each layer"));
  EXPECT_THAT(Wrong(Changed("[82, 282.0]", "[82]")), HasSubstr("layer 1 has no list"));
  EXPECT_THAT(Wrong(Changed("282.0", "null")), HasSubstr("layer 1, head 1 has no number"));
  EXPECT_THAT(Wrong(Changed("282.0", "1e300")), HasSubstr("layer 1, head 1 has no number"));
  EXPECT_THAT(Wrong(Changed("[32, 132], [82, 282.0]", "[32, 32], [32, 32]")),
              HasSubstr("no head more"));
}

}  // namespace
}  // namespace headway::kv
