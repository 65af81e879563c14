#include "base/json/json_node.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headway {
namespace {

using Json = nlohmann::json;

TEST(JsonNodeTest, ReadsTypedMembers) {
  const Json json = Json::parse(R"({"type": "T", "on": true, "n": 7, "list": [{"s": "x"}]})");
  const JsonNode root(json, "");
  EXPECT_EQ(*root.Type(), "T");
  EXPECT_TRUE(*root.Bool("on", false));
  EXPECT_FALSE(*root.Bool("off", false));
  EXPECT_EQ(*root.Integer("n"), 7);
  EXPECT_EQ(*root.Member("list").Size(), 1u);
  EXPECT_EQ(*root.Member("list").Element(0).String("s"), "x");
}

TEST(JsonNodeTest, MessagesNameThePath) {
  const Json json = Json::parse(R"({"a": [{"b": -1}], "c": 1})");
  const JsonNode element = JsonNode(json, "").Member("a").Element(0);
  EXPECT_EQ(element.Integer("b").status().message(),
            "a[0].b: is not an integer from 0 to 2^31 - 1");
  EXPECT_EQ(element.String("b").status().message(), "a[0].b: is not a string");
  EXPECT_EQ(element.Bool("b", true).status().message(), "a[0].b: is neither true nor false");
  EXPECT_EQ(element.Size().status().message(), "a[0]: is not a list");
  EXPECT_EQ(element.Size().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(AtPath("x", element.Size().status()).message(), "x: a[0]: is not a list");
}

TEST(JsonNodeTest, WhatIsAbsentIsNull) {
  const Json json = Json::parse(R"({"c": 1})");
  const JsonNode below = JsonNode(json, "root").Member("c").Member("d");
  EXPECT_TRUE(below.IsNull());
  EXPECT_EQ(below.path(), "root.c.d");
}

}  // namespace
}  // namespace headway
