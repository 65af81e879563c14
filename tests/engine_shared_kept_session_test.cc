// Sessions of what heads keep of prompts that ranks share: saved on some number of ranks, and gone
// on with on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "engine/open.h"
#include "support/api.h"
#include "support/rank_gpus.h"
#include "support/rank_options.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using testing::DeviceOfRanks;

constexpr int64_t kPrompt = 723;  // not whole pages
constexpr int64_t kContext = 1300;

EngineOptions Evicting(const std::string& method, int ranks, const std::string& session) {
  EngineOptions options = OnRanks(ranks);
  options.evict = method;
  options.evict_budget = "192";
  options.session = session;
  return options;
}

std::unique_ptr<Context> NewContext(Engine& engine) {
  Result<std::unique_ptr<Context>> made = engine.NewContext({{kContext}});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

// One turn of a conversation behind what `context` holds.
Generation Turn(Context& context, std::vector<TokenId>* text, int64_t more) {
  Result<Generation> made = GenerateOne(context, RequestOf(*text, 20));
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return {};
  text->insert(text->end(), made->tokens.begin(), made->tokens.end());
  for (int64_t i = 0; i < more; ++i) text->push_back((*text)[static_cast<size_t>(200 + i)]);
  return *made;
}

// Turns of a conversation, each in a context of its own on as many ranks as `ranks` says; without a
// session all of them in one context, on as many as the first.
std::vector<Generation> Converse(EngineOptions options, const std::vector<int>& ranks) {
  std::vector<TokenId> text = Quoting(*Open(kDemo), kPrompt, 5);
  std::vector<Generation> turns;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
  for (const int on : ranks) {
    if (context == nullptr || !options.session.empty()) {
      context.reset();
      options.tensor_parallel = on;
      options.device = DeviceOfRanks(on);
      engine = Open(kDemo, options);
      if (engine == nullptr) return turns;
      context = NewContext(*engine);
      if (context == nullptr) return turns;
    }
    turns.push_back(Turn(*context, &text, 70));
    if (options.session.empty()) continue;
    const Status saved = context->SaveSession();
    EXPECT_TRUE(saved.ok()) << saved.message();
  }
  return turns;
}

void ExpectSame(const std::vector<Generation>& turns, const std::vector<Generation>& expected) {
  ASSERT_EQ(turns.size(), expected.size());
  for (size_t i = 0; i < turns.size(); ++i) {
    EXPECT_EQ(turns[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(turns[i].reused_tokens, expected[i].reused_tokens) << i;
  }
  EXPECT_GT(turns[1].reused_tokens, kPrompt);
}

// The same bits as without a pause on as many ranks.
TEST(SharedKeptSession, GoesOnAsWithoutAPause) {
  const TestDir dir;
  for (const char* method : {"snapkv", "ada-snapkv", "streamingllm"}) {
    for (const char* encoding : {"none", "int8"}) {
      SCOPED_TRACE(std::string(method) + " " + encoding);
      // Three have places without a head.
      const int ranks = encoding == std::string("none") ? 2 : 3;
      EngineOptions options = Evicting(method, ranks, "");
      options.kv_encoding = encoding;
      const std::vector<int> turns(3, ranks);
      const std::vector<Generation> expected = Converse(options, turns);
      options.session = dir.File(std::string(method) + encoding);
      ExpectSame(Converse(options, turns), expected);
    }
  }
}

// Of methods that keep what the text quotes, so that its margins are wide.
TEST(SharedKeptSession, GoesOnWithAnyNumberOfRanks) {
  const TestDir dir;
  for (const char* method : {"snapkv", "ada-snapkv"}) {
    const std::vector<Generation> expected = Converse(Evicting(method, 1, ""), {1, 1, 1});
    for (const std::vector<int>& ranks : {std::vector{1, 2, 4}, {5, 3, 1}}) {
      SCOPED_TRACE(std::string(method) + " from " + std::to_string(ranks.front()));
      const std::string file = dir.File(method + std::to_string(ranks.front()));
      ExpectSame(Converse(Evicting(method, 1, file), ranks), expected);
    }
  }
}

// A save within a call, of which a copy is what a kill then would leave.
TEST(SharedKeptSession, IsSavedWhileAnAnswerIsMade) {
  const TestDir dir;
  EngineOptions options = Evicting("ada-snapkv", 2, dir.File("s"));
  const std::vector<TokenId> text = Quoting(*Open(kDemo), kPrompt, 5);
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  std::unique_ptr<Context> context = NewContext(*engine);
  ASSERT_NE(context, nullptr);
  Hooks hooks;
  hooks.on_progress = [&](const Progress& progress) {
    const Status saved = context->SaveSession("on the way");
    EXPECT_TRUE(saved.ok()) << saved.message();
    if (progress.phase == Progress::Phase::kDecode && progress.done == 12) {
      fs::copy(options.session, dir.File("killed"));
    }
  };
  const Request request = RequestOf(text, 20);
  const Result<std::vector<Generation>> made = context->Generate({&request, 1}, hooks);
  ASSERT_TRUE(made.ok()) << made.status().message();
  for (const int ranks : {1, 4}) {
    const std::string copy = dir.File("copy" + std::to_string(ranks));
    fs::copy(dir.File("killed"), copy);
    const std::unique_ptr<Engine> other = Open(kDemo, Evicting("ada-snapkv", ranks, copy));
    const std::unique_ptr<Context> later = NewContext(*other);
    ASSERT_NE(later, nullptr);
    EXPECT_GT(later->SessionTokens(), kPrompt);
    EXPECT_EQ(later->SessionNote(), "on the way");
    const std::vector<TokenId>& tokens = made->front().tokens;
    const int64_t held = later->SessionTokens() - kPrompt;
    std::vector<TokenId> prompt = text;
    prompt.insert(prompt.end(), tokens.begin(), tokens.begin() + held + 1);
    const Result<Generation> rest = GenerateOne(*later, RequestOf(prompt, 20 - held - 1));
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    EXPECT_EQ(rest->reused_tokens, kPrompt + held);
    EXPECT_EQ(rest->tokens, std::vector<TokenId>(tokens.begin() + held + 1, tokens.end()));
  }
}

// A call to the system that fails as ranks save: what was saved stays, and opens.
TEST(SharedKeptSession, AFailedSaveLosesNothing) {
  const TestDir dir;
  EngineOptions options = Evicting("ada-snapkv", 2, dir.File("saved"));
  std::vector<TokenId> text = Quoting(*Open(kDemo), kPrompt, 5);
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    std::unique_ptr<Context> context = NewContext(*engine);
    ASSERT_NE(context, nullptr);
    Turn(*context, &text, 70);
    ASSERT_TRUE(context->SaveSession().ok());
  }
  const std::string saved = options.session;
  const int64_t before = kPrompt + 19;
  int64_t faults = 1;
  for (int64_t n = 1; faults > 0 && !::testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    options.session = dir.File("s" + std::to_string(n));
    fs::copy(saved, options.session);
    FaultEnv env(Env::Default());
    const std::string killed = dir.File("killed" + std::to_string(n));
    Status failed;
    int64_t after = 0;
    {
      Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(&env, kDemo, options);
      ASSERT_TRUE(engine.ok());
      const std::unique_ptr<Context> context = NewContext(**engine);
      ASSERT_NE(context, nullptr);
      std::vector<TokenId> longer = text;
      Turn(*context, &longer, 0);
      after = std::ssize(longer) - 1;
      env.SetKinds(kFaultWrite | kFaultSync | kFaultTruncate);
      env.FailAt(n);
      failed = context->SaveSession();
      faults = env.faults();
      EXPECT_TRUE(failed.ok() || faults > 0) << failed.message();
      env.FailAt(0);
      fs::copy(options.session, killed);
    }
    for (const int ranks : {1, 2}) {
      const std::unique_ptr<Engine> other = Open(kDemo, Evicting("ada-snapkv", ranks, killed));
      const std::unique_ptr<Context> later = NewContext(*other);
      ASSERT_NE(later, nullptr);
      const int64_t held = later->SessionTokens();
      EXPECT_TRUE(held == after || (held == before && !failed.ok())) << held;
    }
  }
}

}  // namespace
}  // namespace headway
