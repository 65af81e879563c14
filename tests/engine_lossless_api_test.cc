// Lossless pages of the demo model by the public API: a session of them goes on with the tokens of
// plain pages, and one that was damaged does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/test_dir.h"
#include "base/types.h"
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

// The demo model, but every other row of a layer's values is 2^-40 of what it was: their pages do
// not fit.
void MakeUneven(const std::string& folder) {
  for (const auto& file : std::filesystem::directory_iterator(kDemo)) {
    std::filesystem::copy(file.path(), folder);
  }
  std::fstream weights(folder + "/model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  weights.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, ' ');
  weights.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto of = nlohmann::json::parse(header).at("model.layers.3.self_attn.v_proj.weight");
  ASSERT_EQ(of.at("dtype"), "BF16");
  const int64_t rows = of.at("shape")[0], width = of.at("shape")[1];
  std::vector<uint16_t> row(static_cast<size_t>(width));
  const auto row_bytes = static_cast<std::streamsize>(row.size() * sizeof(uint16_t));
  for (int64_t i = 0; i < rows; i += 2) {
    const auto at = static_cast<std::streamoff>(8 + header_bytes) +
                    of.at("data_offsets")[0].get<std::streamoff>() + i * row_bytes;
    weights.seekg(at);
    weights.read(reinterpret_cast<char*>(row.data()), row_bytes);
    for (uint16_t& bits : row) {
      const int exponent = bits >> 7 & 0xFF;
      bits = static_cast<uint16_t>((bits & 0x807F) | std::max(0, exponent - 40) << 7);
    }
    weights.seekp(at);
    weights.write(reinterpret_cast<const char*>(row.data()), row_bytes);
  }
}

class Uneven : public ::testing::Test {
 protected:
  void SetUp() override { MakeUneven(dir_.path()); }
  EngineOptions Lossless() const {
    EngineOptions options;
    options.freeze_plan = true;
    options.kv_encoding = "lossless";
    return options;
  }
  // Contexts under these options go on with plain pages, as if they had had them. Returns tokens.
  std::vector<std::vector<TokenId>> ExpectPlainPages(const EngineOptions& options);

  const TestDir dir_;
};

// Text that was shown is not shown again, and a request that has ended does not end again.
std::vector<std::vector<TokenId>> Uneven::ExpectPlainPages(const EngineOptions& options) {
  std::vector<std::vector<TokenId>> tokens;
  const std::unique_ptr<Engine> demo = Open(kDemo);
  for (const int64_t prompt : {20, 900}) {  // the first page is full behind it, or within
    std::vector<Request> requests;
    for (const size_t from : {0u, 70u, 140u}) {
      requests.push_back(RequestOf(Quoting(*demo, prompt, from), from == 0 ? 5 : 90));
      requests.back().sampling.temperature = from == 140 ? 0.8f : 0.0f;
      requests.back().sampling.repetition_penalty = 1.1f;
    }
    const auto run = [&](const EngineOptions& under, std::vector<std::string>* shown) {
      std::unique_ptr<Engine> engine = Open(dir_.path(), under);
      Result<std::unique_ptr<Context>> context = engine->NewContext({{1000, 1000}});
      EXPECT_TRUE(context.ok()) << context.status().message();
      shown->resize(requests.size());
      int done = 0;
      Hooks hooks;
      hooks.on_text = [&](int i, std::string_view text) {
        (*shown)[static_cast<size_t>(i)] += text;
        return true;
      };
      hooks.on_done = [&](int, const Generation&) { ++done; };
      Result<std::vector<Generation>> made = (*context)->Generate(requests, hooks);
      EXPECT_TRUE(made.ok()) << made.status().message();
      EXPECT_EQ(done, 3);
      // The context goes on as one of plain pages.
      EXPECT_TRUE((*context)->Generate(requests, {}).ok());
      return made.ok() ? std::move(*made) : std::vector<Generation>(3);
    };
    EngineOptions lossless = options;
    lossless.page_slots = kDefaultPageSlots;  // as plain pages have
    std::vector<std::string> expected_text, text;
    const std::vector<Generation> got = run(lossless, &text);
    lossless.kv_encoding = "none";
    const std::vector<Generation> expected = run(lossless, &expected_text);
    EXPECT_EQ(text, expected_text) << prompt;
    int64_t notices = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << prompt << " " << i;
      tokens.push_back(got[i].tokens);
      notices += std::ssize(got[i].notices);
    }
    EXPECT_GT(notices, 0);
  }
  return tokens;
}

TEST_F(Uneven, ContextsGoOnWithPlainPages) { ExpectPlainPages(Lossless()); }

// What is salient is chosen again, of plain pages.
TEST_F(Uneven, SalientTokensGoOnWithPlainPages) {
  const std::vector<std::vector<TokenId>> exact = ExpectPlainPages(Lossless());
  for (const int64_t reselect : {0, 3}) {
    EngineOptions options = Lossless();
    if (reselect == 0) options.hgca = 0.5;
    options.hgca_reselect = reselect;
    options.hgca_window = 32;  // the first page leaves it in decode, and is what does not fit
    options.hgca_most = 0.25;
    options.hgca_on = reselect == 0 ? "host" : "device";
    EXPECT_NE(ExpectPlainPages(options), exact);
  }
}

TEST_F(Uneven, WithoutMemoryForPlainPagesThatIsSaid) {
  EngineOptions options = Lossless();
  options.host_memory = 0;
  options.chunk = 128;
  options.segment = 512;
  const Workload workload{{6000}};
  options.kv_memory = Open(dir_.path(), options)->Plan(workload)->smallest_kv_memory;
  std::unique_ptr<Engine> engine = Open(dir_.path(), options);
  Result<std::unique_ptr<Context>> context = engine->NewContext(workload);
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Request request = RequestOf(Quoting(*engine, 900, 0), 9);
  const Status refused = GenerateOne(**context, request).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(refused.message().find("the numbers of some keys or values do not fit lossless pages, "
                                   "and without them the KV cache of 6000 tokens does not fit"),
            0u)
      << refused.message();
}

TEST_F(Uneven, SessionsEndWithOneLine) {
  EngineOptions options = Lossless();
  options.session = dir_.File("u.session");
  std::unique_ptr<Engine> engine = Open(dir_.path(), options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Status refused = GenerateOne(**context, RequestOf(Quoting(*engine, 900, 0), 9)).status();
  EXPECT_NE(refused.message().find("run it with kv_encoding none"), std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace headway
