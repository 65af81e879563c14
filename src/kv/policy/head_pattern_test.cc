#include "kv/policy/head_pattern.h"

#include <gtest/gtest.h>

namespace headway::kv {
namespace {

using Kinds = std::vector<std::vector<bool>>;

HeadPatternChoice TwoByThree() { return {.layers = 2, .kv_heads = 3}; }

TEST(HeadPattern, ReadsTsvAsDuoAttentionWritesIt) {
  // What numpy's savetxt makes of f64, and the blanks that editors leave.
  const char* text =
      "# lr=0.02\n1.000000000000000000e+00\t4.9e-01\t0.000000000000000000e+00\n\n 0.7 0.5\t0.2 "
      "\r\n";
  Result<HeadPattern> pattern = ParseHeadPattern(text, "p.tsv", TwoByThree());
  ASSERT_TRUE(pattern.ok()) << pattern.status().message();
  EXPECT_EQ(pattern->streaming, (Kinds{{false, true, true}, {false, false, true}}));
  EXPECT_EQ(pattern->sink, kDefaultSink);
  EXPECT_EQ(pattern->recent, kDefaultRecent);
  EXPECT_EQ(pattern->StreamingIn(0), 2);
  EXPECT_EQ(pattern->StreamingIn(1), 1);
  EXPECT_EQ(pattern->StreamingHeads(), 3);
  EXPECT_TRUE(pattern->IsStreaming(0, 1));
  EXPECT_FALSE(pattern->IsStreaming(1, 1));
}

TEST(HeadPattern, SparsityIsTheShareOfHeadsThatStream) {
  const char* text = "0.9 0.8 0.8\n0.1 0.8 1\n";
  HeadPatternChoice choice = TwoByThree();
  const std::vector<std::pair<double, Kinds>> expected = {
      {0.0, {}},
      {0.17, {{false, false, false}, {true, false, false}}},
      {0.5, {{false, false, true}, {true, true, false}}},
      {1.0, {{true, true, true}, {true, true, true}}}};
  for (const auto& [sparsity, kinds] : expected) {
    choice.sparsity = sparsity;
    Result<HeadPattern> pattern = ParseHeadPattern(text, "p.tsv", choice);
    ASSERT_TRUE(pattern.ok()) << pattern.status().message();
    EXPECT_EQ(pattern->streaming, kinds) << sparsity;
  }
}

TEST(HeadPattern, ReadsJson) {
  Result<HeadPattern> scores = ParseHeadPattern(
      R"({"sink": 3, "recent": 17, "threshold": 0.2, "scores": [[0.1, 0.3, 1], [0, 0.19, 0.2]]})",
      "p.json", TwoByThree());
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  EXPECT_EQ(scores->streaming, (Kinds{{true, false, false}, {true, true, false}}));
  EXPECT_EQ(scores->sink, 3);
  EXPECT_EQ(scores->recent, 17);
  HeadPatternChoice choice = TwoByThree();
  choice.sink = 0;
  choice.recent = 1;
  Result<HeadPattern> kinds =
      ParseHeadPattern(R"( {"sink": 3, "streaming": [[], [2, 0]]})", "p.json", choice);
  ASSERT_TRUE(kinds.ok()) << kinds.status().message();
  EXPECT_EQ(kinds->streaming, (Kinds{{false, false, false}, {true, false, true}}));
  EXPECT_EQ(kinds->sink, 0);
  EXPECT_EQ(kinds->recent, 1);
}

TEST(HeadPattern, NoStreamingHeadIsNoPattern) {
  Result<HeadPattern> pattern = ParseHeadPattern("1 1 1\n1 1 1\n", "p.tsv", TwoByThree());
  ASSERT_TRUE(pattern.ok()) << pattern.status().message();
  EXPECT_EQ(*pattern, HeadPattern());
}

TEST(HeadPattern, SaysWhatIsWrongInOneLine) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "x: has no scores"},
      {" \n\n# nothing\n", "x: has no scores"},
      {"1 1 1\n", "x: has 1 layers and the model 2"},
      {"1 1 1\n1 1 1\n1 1 1\n", "x: has 3 layers and the model 2"},
      {"1 1 1\n1 1\n", "x, line 2: has 2 heads and the model 3"},
      {"1 1 1 1\n", "x, line 1: has 4 heads and the model 3"},
      {"1 nan 1\n", "x, line 1: 'nan' is not a number"},
      {"1 1 1\n1 inf 1\n", "x, line 2: 'inf' is not a number"},
      {"1 1e999 1\n", "x, line 1: '1e999' is not a number"},
      {"1 0x1 1\n", "x, line 1: '0x1' is not a number"},
      {"1 1,1 1\n", "x, line 1: '1,1' is not a number"},
      {std::string("1 \0 1\n", 6), "x, line 1: '?' is not a number"},
      {"1 " + std::string(1 << 20, '7') + "x 1\n", "x, line 1: '77777777777777777777...' is not"},
      {std::string(5 << 20, '1'), "x: is longer than 4 MiB"},
      {"{", "x: is not a JSON object"},
      {"{}", R"(x: must have either "scores" or "streaming")"},
      {R"({"scores": [[1,1,1],[1,1,1]], "streaming": [[],[]]})", "x: must have either"},
      {R"({"scores": 7})", "x: must have either"},
      {R"({"scores": [[1,1,1]]})", "x: has 1 layers and the model 2"},
      {R"({"scores": [[1,1,1],[1,1]]})", "x, layer 1: has 2 heads and the model 3"},
      {R"({"scores": [[1,1,1],{"a":1}]})", "x, layer 1: is not a list"},
      {R"({"scores": [[1,"\u001b",1],[1,1,1]]})", R"(x, layer 0: "\u001b" is not a number)"},
      {R"({"streaming": [[3],[]]})", "x, layer 0: 3 is not one of the KV heads 0 to 2"},
      {R"({"streaming": [[],[-1]]})", "x, layer 1: -1 is not one of the KV heads 0 to 2"},
      {R"({"streaming": [[],[1.5]]})", "x, layer 1: 1.5 is not one of the KV heads 0 to 2"},
      {R"({"streaming": [[0],[]], "sink": -1})", R"(x: "sink" must be a whole number)"},
      {R"({"streaming": [[0],[]], "recent": 1e3})", R"(x: "recent" must be a whole number)"},
      {R"({"streaming": [[0],[]], "recent": 18446744073709551615})", R"(x: "recent" must be)"},
      {R"({"streaming": [[0],[]], "recent": 0})", "x: 64 sink and 0 recent tokens"},
      {R"({"scores": [[1,1,1],[1,1,1]], "threshold": "a"})", R"(x: "threshold" must be a number)"},
  };
  for (const auto& [text, message] : wrong) {
    Result<HeadPattern> pattern = ParseHeadPattern(text, "x", TwoByThree());
    ASSERT_FALSE(pattern.ok()) << text.substr(0, 100);
    EXPECT_EQ(pattern.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(pattern.status().message().find("head pattern " + message), 0u)
        << pattern.status().message();
    EXPECT_EQ(pattern.status().message().find('\n'), std::string::npos);
    EXPECT_LT(pattern.status().message().size(), 200u);
  }
  HeadPatternChoice choice = TwoByThree();
  choice.sparsity = 0.5;
  EXPECT_NE(ParseHeadPattern(R"({"streaming": [[0],[]]})", "x", choice)
                .status()
                .message()
                .find("leave the sparsity out"),
            std::string::npos);
  choice.sparsity = 1.5;
  EXPECT_FALSE(ParseHeadPattern("1 1 1\n1 1 1\n", "x", choice).ok());
}

TEST(HeadPattern, TakesDuoAttentionsConfig) {
  HeadPatternChoice choice = TwoByThree();
  ASSERT_TRUE(ReadDuoAttentionConfig(R"({"model_type": "llama"})", "c", &choice).ok());
  ASSERT_TRUE(ReadDuoAttentionConfig("no JSON", "c", &choice).ok());
  EXPECT_FALSE(choice.sink.has_value());
  choice.recent = 9;
  ASSERT_TRUE(
      ReadDuoAttentionConfig(R"({"sink_size": 128, "recent_size": 256})", "c", &choice).ok());
  EXPECT_EQ(choice.sink, 128);
  EXPECT_EQ(choice.recent, 9);
  EXPECT_FALSE(ReadDuoAttentionConfig(R"({"sink_size": "a"})", "c", &choice).ok());
}

}  // namespace
}  // namespace headway::kv
