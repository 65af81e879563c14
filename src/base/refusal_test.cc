#include "headway/refusal.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "headway/status.h"

namespace headway {
namespace {

TEST(Refusal, EveryOptionHasAName) {
  std::set<std::string> names;
  for (int i = 0; i < kOptions; ++i) names.insert(OptionName(static_cast<Option>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kOptions));
  EXPECT_FALSE(names.contains("?"));
}

TEST(Refusal, AMessageIsSaidInTheReadersWords) {
  Message message{"use ", Option::kPage, " 16 or another ", Option::kSession, " file"};
  EXPECT_EQ(message.Text(), "use page_slots 16 or another session file");
  message += {"; or ", Option::kKvMemory};
  const auto flag = [](Option option) { return "--" + std::string(OptionName(option)); };
  EXPECT_EQ(message.Text(flag), "use --page_slots 16 or another --session file; or --kv_memory");
  EXPECT_TRUE(Message().empty());
}

TEST(Refusal, AStatusKeepsIt) {
  const Status plain(StatusCode::kIo, "no");
  EXPECT_EQ(plain.refusal(), nullptr);
  EXPECT_EQ(plain.words().Text(), "no");
  const Status refused(StatusCode::kOutOfBudget,
                       Refusal{{"raise ", Option::kKvMemory}, {{Option::kKvMemory, 3, 1}}, 64});
  EXPECT_EQ(refused.message(), "raise kv_memory");
  ASSERT_NE(refused.refusal(), nullptr);
  EXPECT_EQ(refused.refusal()->remedies.front().need, 3);
  // What is said around it loses nothing.
  const Status more = refused.Within({"session x: "}, {"; or ", Option::kSessionRecut});
  EXPECT_EQ(more.code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(more.message(), "session x: raise kv_memory; or session_recut");
  EXPECT_EQ(more.refusal()->remedies.front().have, 1);
  EXPECT_EQ(more.refusal()->longest, 64);
  EXPECT_EQ(plain.Within({"it said "}).message(), "it said no");
}

}  // namespace
}  // namespace headway
