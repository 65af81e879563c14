// Lossless pages of the demo model by the public API: a session of them goes on with the tokens of
// plain pages, and one that was damaged does not.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/test_dir.h"
#include "support/api.h"

namespace headway {
namespace {

// A session of `tokens`, in the encoding.
void Save(const EngineOptions& options, const std::vector<TokenId>& tokens) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{800}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  ASSERT_TRUE(GenerateOne(**context, RequestOf(tokens, 1)).ok());
  ASSERT_TRUE((*context)->SaveSession().ok());
}

TEST(EngineLossless, ASessionGoesOnWithTheTokensOfPlainPages) {
  const TestDir dir;
  const std::vector<TokenId> prompt = Quoting(*Open(kDemo), 700, 5);
  EngineOptions options;
  options.session = dir.File("l.session");
  options.kv_encoding = "lossless";
  Save(options, {prompt.begin(), prompt.begin() + 520});
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{800}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    EXPECT_EQ((*context)->SessionTokens(), 512);
    EXPECT_EQ(GenerateOne(**context, RequestOf(prompt, 40))->tokens,
              Fresh(kDemo, {}, RequestOf(prompt, 40)).tokens);
  }
  options.kv_encoding = "none";
  const Result<std::unique_ptr<Context>> plain = Open(kDemo, options)->NewContext({{800}});
  ASSERT_FALSE(plain.ok());
  EXPECT_NE(plain.status().message().find("use kv_encoding lossless"), std::string::npos)
      << plain.status().message();
}

TEST(EngineLossless, ADamagedPageOfASessionIsNotRead) {
  const TestDir dir;
  const std::vector<TokenId> prompt = Quoting(*Open(kDemo), 700, 6);
  EngineOptions options;
  options.session = dir.File("d.session");
  options.kv_encoding = "lossless";
  Save(options, {prompt.begin(), prompt.begin() + 520});
  {
    // Behind the superblocks, in the first slab.
    std::fstream file(options.session, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(8192 + 100);
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(8192 + 100);
    file.put(byte);
  }
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{800}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Result<Generation> made = GenerateOne(**context, RequestOf(prompt, 4));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("d.session"), std::string::npos)
      << made.status().message();
  EXPECT_EQ(made.status().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace headway
