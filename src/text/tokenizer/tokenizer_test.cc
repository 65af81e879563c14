#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_dir.h"
#include "base/utf8.h"

namespace headway {
namespace {

using Json = nlohmann::json;

// A small tokenizer over characters with every part present.
Json SmallTokenizer() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": "?", "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
      "vocab": {"?": 0, "a": 1, "b": 2, " ": 3, "ab": 4, "abab": 5},
      "merges": ["a b", "ab ab"]}
  })");
}

std::unique_ptr<Tokenizer> Make(const Json& json) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

Status ErrorOf(const std::string& json) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json, "test.json");
  EXPECT_FALSE(tokenizer.ok()) << json.substr(0, 200);
  const Status status = tokenizer.ok() ? OkStatus() : tokenizer.status();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_EQ(status.message().find("test.json: "), 0u) << status.message();
  return status;
}

std::unique_ptr<Tokenizer> Golden(const std::string& name) {
  const Result<std::string> text = Env::Default()->ReadFile(
      std::string(HEADWAY_SOURCE_DIR) + "/tests/golden/tokenizer/" + name + ".json");
  EXPECT_TRUE(text.ok()) << text.status().message();
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(*text, name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *std::move(tokenizer);
}

TEST(TokenizerTest, KnowsItsTokens) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(SmallTokenizer());
  EXPECT_EQ(*tokenizer->Encode("abab cab", {}), (std::vector<TokenId>{6, 5, 3, 0, 4}));
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_EQ(*tokenizer->Encode("ba", {}), (std::vector<TokenId>{6, 2, 1}));
  const std::vector<TokenId> with_unknown = {6, 4, 7, -1, 5};
  EXPECT_EQ(tokenizer->Decode(with_unknown, SpecialTokens::kKeep), "<s>ababab");
  EXPECT_TRUE(tokenizer->IsSpecial(6));
  EXPECT_FALSE(tokenizer->IsSpecial(5));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST(TokenizerTest, ParsesSpecialTokensOnlyWhenAsked) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(SmallTokenizer());
  const EncodeOptions parsed{.add_special_tokens = false, .parse_special = true};
  const EncodeOptions plain{.add_special_tokens = false, .parse_special = false};
  EXPECT_EQ(*tokenizer->Encode("a<s>b", parsed), (std::vector<TokenId>{1, 6, 2}));
  EXPECT_EQ(*tokenizer->Encode("a<s>b", plain), (std::vector<TokenId>{1, 0, 0, 0, 2}));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{6, 1, 99, -5}, SpecialTokens::kKeep), "<s>a");
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{6, 1, 99, -5}, SpecialTokens::kSkip), "a");
}

TEST(TokenizerTest, HashIsOfTheText) {
  const std::string text = SmallTokenizer().dump();
  const uint64_t hash = (*Tokenizer::FromJson(text, "a"))->Hash();
  EXPECT_EQ(hash, (*Tokenizer::FromJson(text, "b"))->Hash());
  EXPECT_NE(hash, (*Tokenizer::FromJson(text + " ", "a"))->Hash());
}

TEST(TokenizerTest, RefusesInvalidUtf8WithItsOffset) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(SmallTokenizer());
  const Result<std::vector<TokenId>> tokens = tokenizer->Encode("ab\xC3(", {});
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(tokens.status().message().find("offset 2"), std::string::npos)
      << tokens.status().message();
}

TEST(TokenizerTest, NamesWhatItDoesNotSupport) {
  struct Case {
    const char* pointer;
    Json value;
    const char* named;
  };
  const Case cases[] = {
      {"/model/type", "Unigram", "model: the type \"Unigram\""},
      {"/model/type", "WordPiece", "\"WordPiece\" is not supported; Headway reads tokenizers of"},
      {"/model", Json::parse(R"({"unk_id": 0, "vocab": [["a", -1.5], ["b", -2]]})"),
       "model: the type \"Unigram\" is not supported"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/normalizer/normalizers/0/type", "Nmt", "normalizer.normalizers[0]: the type \"Nmt\""},
      {"/pre_tokenizer/pretokenizers/0/type", "UnicodeScripts",
       "pre_tokenizer.pretokenizers[0]: the type \"UnicodeScripts\""},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a)\\1",
       "pre_tokenizer.pretokenizers[0].pattern: the pattern \"(a)\\1\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Elsewhere", "Elsewhere"},
      {"/post_processor/type", "Frames", "post_processor: the type \"Frames\""},
      {"/decoder/decoders/0/type", "CTC", "decoder.decoders[0]: the type \"CTC\""}};
  for (const Case& c : cases) {
    Json json = SmallTokenizer();
    json[Json::json_pointer(c.pointer)] = c.value;
    const Status status = ErrorOf(json.dump());
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.message();
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
}

TEST(TokenizerTest, RefusesDamagedFields) {
  const std::pair<const char*, Json> cases[] = {
      {"/model", nullptr},
      {"/model/vocab", Json::array({1, 2})},
      {"/model/vocab/a", -1},
      {"/model/vocab/a", 4000000000u},
      {"/model/vocab/a", 1.5},
      {"/model/vocab/a", "1"},
      {"/model/vocab/a", Json::object()},
      {"/model/merges", Json::object()},
      {"/model/merges/0", "a"},
      {"/model/merges/0", "a b c"},
      {"/model/merges/0", "a x"},
      {"/model/merges/0", Json::array({"a"})},
      {"/model/merges/0", Json::array({"a", "b", "ab"})},
      {"/model/merges/0", Json::array({"a", Json::array({"b"})})},
      {"/model/merges/0", 7},
      {"/model/merges/0", Json::object({{"a", "b"}})},
      {"/model/byte_fallback", "yes"},
      {"/added_tokens", "none"},
      {"/added_tokens/0/content", 5},
      {"/added_tokens/0/special", 1},
      {"/normalizer", "NFC"},
      {"/normalizer/normalizers", nullptr},
      {"/pre_tokenizer/pretokenizers/0/pattern", Json::object()},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a"},
      {"/post_processor/single/0/SpecialToken/id", "<other>"},
      {"/post_processor/special_tokens/<s>/ids/0", 7},
      {"/post_processor/single/1/Sequence/id", "B"},
      {"/decoder/decoders", Json::object()}};
  for (const auto& [pointer, value] : cases) {
    Json json = SmallTokenizer();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_EQ(ErrorOf(json.dump()).code(), StatusCode::kCorrupt) << pointer << " " << value;
  }
}

TEST(TokenizerTest, ReadsClsAndSep) {
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    Json json = SmallTokenizer();
    json["post_processor"] = {{"type", type}, {"cls", {"<s>", 6}}, {"sep", {"?", 0}}};
    EXPECT_EQ(*Make(json)->Encode("ab", {}), (std::vector<TokenId>{6, 4, 0}));
    EXPECT_EQ(*Make(json)->Encode("ab", {.add_special_tokens = false}), (std::vector<TokenId>{4}));
    for (const Json& bad :
         {Json(nullptr), Json({"?"}), Json({"?", 7}), Json({"?", "x"}), Json(0)}) {
      json["post_processor"]["sep"] = bad;
      EXPECT_EQ(ErrorOf(json.dump()).code(), StatusCode::kCorrupt) << bad;
    }
  }
}

TEST(TokenizerTest, NamesThePlaceWhereTheFileIsBroken) {
  std::string text = SmallTokenizer().dump(1);
  const size_t at = text.find("\"vocab\"");
  text.insert(at, "x");
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
  const std::string expected = "not valid JSON at line " + std::to_string(line) + ", column 3";
  EXPECT_NE(ErrorOf(text).message().find(expected), std::string::npos) << ErrorOf(text).message();
  EXPECT_EQ(ErrorOf("version https://git-lfs.github.com/spec/v1\n").message(),
            "test.json: a Git LFS pointer, not the file itself; run 'git lfs pull' in its folder");
}

TEST(TokenizerTest, RefusesEveryTruncation) {
  const std::string text = SmallTokenizer().dump();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(ErrorOf(text.substr(0, size)).code(), StatusCode::kCorrupt);
  }
  EXPECT_EQ(ErrorOf(std::string(100'000, '[')).code(), StatusCode::kCorrupt);
  EXPECT_EQ(ErrorOf("{\"model\": {}, \"model\": {}}").code(), StatusCode::kCorrupt);
}

TEST(TokenizerTest, NestsSequencesOnlySoDeep) {
  Json json = SmallTokenizer();
  for (int i = 0; i < 20; ++i) {
    Json outer = {{"type", "Sequence"}, {"normalizers", Json::array({json["normalizer"]})}};
    json["normalizer"] = outer;
  }
  EXPECT_EQ(ErrorOf(json.dump()).code(), StatusCode::kCorrupt);
}

TEST(TokenizerTest, StopsTextsThatGrowWithoutEnd) {
  Json json = SmallTokenizer();
  Json& list = json["normalizer"]["normalizers"];
  for (int i = 0; i < 40; ++i) {
    list.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  const Result<std::vector<TokenId>> tokens = Make(json)->Encode("a", {});
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.status().code(), StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, StopsPatternsThatTakeTooLong) {
  for (const char* pattern : {"(?:a+)+[bc]", "(?:a|a|aa)+[bc]", "a+a+a+[bc]", "(?:a*)*[bc]",
                              "(?:a|a){50}[bc]", "(?:a?){50}[bc]{50}"}) {
    Json json = SmallTokenizer();
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
    const Result<std::vector<TokenId>> tokens = Make(json)->Encode(std::string(300'000, 'a'), {});
    ASSERT_FALSE(tokens.ok()) << pattern;
    EXPECT_EQ(tokens.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(tokens.status().message().find(pattern), std::string::npos);
  }
}

TEST(TokenizerTest, LoadsFromAFolder) {
  TestDir dir;
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(Env::Default(), dir.path());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  std::ofstream(dir.File("tokenizer.model")) << "x";
  tokenizer = Tokenizer::Load(Env::Default(), dir.path());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  EXPECT_NE(tokenizer.status().message().find("has tokenizer.model but no tokenizer.json"),
            std::string::npos);
  std::filesystem::rename(dir.File("tokenizer.model"), dir.File("vocab.json"));
  tokenizer = Tokenizer::Load(Env::Default(), dir.path());
  EXPECT_EQ(tokenizer.status().message().find("vocab.json"), std::string::npos);
  std::ofstream(dir.File("merges.txt")) << "x";
  tokenizer = Tokenizer::Load(Env::Default(), dir.path());
  EXPECT_NE(tokenizer.status().message().find("has vocab.json and merges.txt but no tokenizer.json,"
                                              " which Headway needs; Transformers makes it: Auto"),
            std::string::npos);
  std::ofstream(dir.File("tokenizer.json")) << SmallTokenizer().dump();
  tokenizer = Tokenizer::Load(Env::Default(), dir.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
}

// The ids and texts are those of Transformers 5.23 (PreTrainedTokenizerFast) with the same files.
TEST(TokenizerTest, TheConfigAddsAndChangesTokens) {
  TestDir dir;
  std::filesystem::copy(HEADWAY_SOURCE_DIR "/tests/golden/tokenizer/qwen2.json",
                        dir.File("tokenizer.json"));
  const auto token = [](const std::string& content, const Json& flags) {
    Json json = {{"content", content},  {"lstrip", false},      {"rstrip", false},
                 {"normalized", false}, {"single_word", false}, {"special", false}};
    json.update(flags);
    return json;
  };
  const Json none = Json::object();
  const auto load = [&](const Json& decoder) {
    std::ofstream(dir.File("tokenizer_config.json"))
        << Json({{"added_tokens_decoder", decoder}}).dump();
    return Tokenizer::Load(Env::Default(), dir.path());
  };
  const uint64_t hash = (*load(none))->Hash();
  // As they are in tokenizer.json.
  const Json same = {{"902", token("<|im_end|>", {{"special", true}})}};
  EXPECT_EQ((*load(same))->Hash(), hash);

  const Json decoder = {{"910", token("<new5>", none)},
                        {"7", token("<new7>", {{"special", true}})},
                        {"905", token("<|im_end|>", {{"special", true}, {"lstrip", true}})},
                        {"3", token("<tool_call>", {{"rstrip", true}})},
                        {"9", token("</tool_call>", {{"special", true}})},
                        {"10", token("<|endoftext|>", {{"normalized", true}})},
                        {"11", token("the", none)},
                        {"12", token("", none)}};
  const auto tokenizer = load(decoder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_NE((*tokenizer)->Hash(), hash);
  const std::string text =
      "a <|im_end|>b<new5>the<new7>c <tool_call> d</tool_call>x<|endoftext|> y";
  const std::vector<TokenId> ids = {64,  902, 65,  906, 315, 905, 66, 220,
                                    903, 67,  904, 87,  900, 220, 88};
  EXPECT_EQ(*(*tokenizer)->Encode(text, {.parse_special = true}), ids);
  EXPECT_EQ((*tokenizer)->Decode(ids, SpecialTokens::kSkip), "ab<new5>thec <tool_call>dx y");
  for (const Json& bad : {Json("x"), Json({{"x", token("y", none)}}), Json({{"-1", none}}),
                          Json({{"7", 5}}), Json({{"7", token("y", {{"special", 1}})}})}) {
    const Status status = load(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << bad;
    EXPECT_NE(status.message().find("tokenizer_config.json"), std::string::npos);
  }
  std::ofstream(dir.File("tokenizer_config.json")) << "{";
  EXPECT_NE(Tokenizer::Load(Env::Default(), dir.path()).status().message().find("not valid JSON"),
            std::string::npos);
}

TEST(TokenizerTest, EncodesFromSeveralThreads) {
  const std::unique_ptr<Tokenizer> tokenizer = Golden("llama3");
  const std::string text = "One text, several threads: 12345 naïve 世界.\n\n";
  const std::vector<TokenId> expected = *tokenizer->Encode(text, {});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        if (*tokenizer->Encode(text, {}) != expected) ++wrong[t];
        if (tokenizer->Decode(expected, SpecialTokens::kSkip) != text) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// A megabyte in one word: what byte-fallback models see of any text.
TEST(TokenizerTest, EncodesALongWordWithoutSquareTime) {
  const std::unique_ptr<Tokenizer> tokenizer = Golden("llama2");
  Random random(5);
  std::string text;
  while (text.size() < 1'000'000) {
    text += "abcdefghijklmnopqrstuvwxyz      etaoin"[random.Below(38)];
  }
  const Result<std::vector<TokenId>> tokens = tokenizer->Encode(text, {});
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokenizer->Decode(*tokens, SpecialTokens::kSkip), text);
}

class DetokenizerTest : public testing::TestWithParam<const char*> {};

TEST_P(DetokenizerTest, PiecesMakeTheWholeText) {
  const std::unique_ptr<Tokenizer> tokenizer = Golden(GetParam());
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<TokenId> tokens(static_cast<size_t>(random.Below(40)));
    // Few different tokens make runs of bytes and white space; all of them make the rest.
    const int64_t range = random.Below(2) == 0 ? 300 : tokenizer->vocab_size() + 2;
    for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(range));
    for (const SpecialTokens special : {SpecialTokens::kKeep, SpecialTokens::kSkip}) {
      Detokenizer detokenizer(tokenizer.get(), special);
      std::string text;
      for (TokenId token : tokens) {
        const std::string piece = detokenizer.Push(token);
        EXPECT_TRUE(IsValidUtf8(piece)) << "seed " << seed;
        text += piece;
      }
      const std::string rest = detokenizer.Finish();
      EXPECT_TRUE(IsValidUtf8(rest)) << "seed " << seed;
      EXPECT_EQ(text + rest, tokenizer->Decode(tokens, special)) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, DetokenizerTest,
                         testing::Values("llama3", "llama2", "gemma", "old_metaspace",
                                         "unknown_words"),
                         [](const auto& family) { return std::string(family.param); });

TEST(DetokenizerTest, HoldsBackIncompleteCharacters) {
  const std::unique_ptr<Tokenizer> tokenizer = Golden("gpt2");
  // U+1F600 is F0 9F 98 80, which the vocabulary has in the byte-level alphabet.
  const std::vector<TokenId> bytes = {172, 253, 246, 222};
  const TokenId letter_a = 64;
  Detokenizer detokenizer(tokenizer.get(), SpecialTokens::kSkip);
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Push(bytes[1]), "");
  EXPECT_EQ(detokenizer.Push(bytes[2]), "");
  EXPECT_EQ(detokenizer.Push(bytes[3]), "\U0001F600");
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Push(letter_a), "\uFFFDa");
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
}

}  // namespace
}  // namespace headway
