// Compares with what PyPI's tokenizers makes of the same texts: tests/golden/tokenizer, written by
// scripts/make_tokenizer_golden.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {
namespace {

std::string Read(const std::string& path) {
  Result<std::string> text = Env::Default()->ReadFile(HEADWAY_SOURCE_DIR "/" + path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : "";
}

class GoldenTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const std::string golden = "tests/golden/tokenizer/" + name;
    const bool demo = name == "demo";
    Result<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::FromJson(Read(demo ? "models/demo/tokenizer.json" : golden + ".json"), name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = *std::move(tokenizer);
    golden_ = nlohmann::json::parse(Read(golden + ".cases.json"));
  }

  std::vector<TokenId> Encode(const std::string& text, EncodeOptions options) {
    Result<std::vector<TokenId>> tokens = tokenizer_->Encode(text, options);
    EXPECT_TRUE(tokens.ok()) << tokens.status().message();
    return tokens.ok() ? *tokens : std::vector<TokenId>();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json golden_;
};

TEST_P(GoldenTokenizerTest, EncodesAndDecodesAsTokenizersDoes) {
  ASSERT_GE(golden_["cases"].size(), 80u);
  for (const nlohmann::json& item : golden_["cases"]) {
    const auto text = item["text"].get<std::string>();
    SCOPED_TRACE(item["text"].dump());
    const auto plain = item["plain"].get<std::vector<TokenId>>();
    const auto full = item["full"].get<std::vector<TokenId>>();
    EXPECT_EQ(Encode(text, {.add_special_tokens = false, .parse_special = false}), plain);
    EXPECT_EQ(Encode(text, {.add_special_tokens = true, .parse_special = true}), full);
    EXPECT_EQ(tokenizer_->Decode(full, SpecialTokens::kKeep), item["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(full, SpecialTokens::kSkip), item["skipped"].get<std::string>());
  }
}

TEST_P(GoldenTokenizerTest, DecodesAnyTokensAsTokenizersDoes) {
  ASSERT_GE(golden_["decodes"].size(), 40u);
  for (const nlohmann::json& item : golden_["decodes"]) {
    const auto ids = item["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_->Decode(ids, SpecialTokens::kKeep), item["decoded"].get<std::string>())
        << item["ids"];
    EXPECT_EQ(tokenizer_->Decode(ids, SpecialTokens::kSkip), item["skipped"].get<std::string>())
        << item["ids"];
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizerTest,
                         testing::Values("demo", "gpt2", "opt", "llama3", "qwen2", "o200k", "kimi",
                                         "bloom", "starcoder", "deepseek_v3", "deepseek_llm",
                                         "falcon", "llama2", "mistral", "gemma", "old_metaspace",
                                         "unknown_words", "added_tokens", "roberta", "neox"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace headway
