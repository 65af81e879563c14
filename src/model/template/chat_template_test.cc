#include "model/template/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headway {
namespace {

TEST(ChatTemplateTest, Renders) {
  const auto parsed = ChatTemplate::Parse("{{ x }}", "t");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*(*parsed)->Render({{"x", 1}}), "1");
}

}  // namespace
}  // namespace headway
