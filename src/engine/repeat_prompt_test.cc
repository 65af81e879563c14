#include "engine/repeat_prompt.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"

namespace headway {
namespace {

constexpr const char* kDemo = HEADWAY_SOURCE_DIR "/models/demo";

class RepeatPromptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(Env::Default(), kDemo);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(*tokenizer);
  }
  std::string Text(const std::vector<TokenId>& tokens) const {
    return tokenizer_->Decode(tokens, SpecialTokens::kKeep);
  }
  // With a template of this text.
  RepeatPrompt With(std::string_view source) const {
    const Result<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Parse(source, "test");
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    return RepeatPromptOf(tokenizer_.get(), chat->get());
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(RepeatPromptTest, IsAsTheUsersNextTurn) {
  const RepeatPrompt prompt = With(
      "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} [end]{% endfor %}"
      "{% if add_generation_prompt %}[assistant] {% endif %}");
  EXPECT_EQ(Text(prompt.first), "[user] Repeat the previous context exactly.");
  EXPECT_EQ(Text(prompt.next),
            "[user] Repeat the part of the previous context exactly, starting with ");
  EXPECT_EQ(Text(prompt.behind), " [end][assistant] ");
}

TEST_F(RepeatPromptTest, IsPlainWithoutATurn) {
  const RepeatPrompt plain = RepeatPromptOf(tokenizer_.get(), nullptr);
  EXPECT_EQ(Text(plain.first), "\n\nRepeat the previous context exactly.");
  EXPECT_TRUE(plain.behind.empty());
  // A template that numbers its messages, and one that has no words of the user.
  for (const char* source : {"{{ messages | length }}{{ messages[-1].content }}", "nothing"}) {
    EXPECT_EQ(With(source).first, plain.first) << source;
  }
}

TEST_F(RepeatPromptTest, HasNoWordsWithoutATokenizerOrRoom) {
  EXPECT_TRUE(RepeatPromptOf(nullptr, nullptr).first.empty());
  const RepeatPrompt prompt = With(
      "{% for m in messages %}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'long ' * 300 }}{% endif %}");
  EXPECT_TRUE(prompt.first.empty() && prompt.behind.empty());
}

}  // namespace
}  // namespace headway
