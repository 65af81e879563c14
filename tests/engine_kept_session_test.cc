// Sessions of what heads keep of prompts: that they go on as in one process, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"

namespace headway {
namespace {

EngineOptions Evicting(const std::string& method, const std::string& session) {
  EngineOptions options;
  options.evict = method;
  options.evict_budget = "192";
  options.session = session;
  return options;
}

constexpr int64_t kContext = 1300;

// The turns of a conversation, each behind the one before and its answer, in one process or each in
// a process of its own.
std::vector<Generation> Converse(EngineOptions options, bool one_process) {
  std::vector<TokenId> text = Quoting(*Open(kDemo), 1300, 5);
  std::vector<Generation> turns;
  std::vector<TokenId> prompt(text.begin(), text.begin() + 723);  // not whole pages
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
  for (int turn = 0; turn < 3; ++turn) {
    if (context == nullptr || !one_process) {
      context.reset();
      engine = Open(kDemo, options);
      Result<std::unique_ptr<Context>> made = engine->NewContext({{kContext}});
      EXPECT_TRUE(made.ok()) << made.status().message();
      if (!made.ok()) return turns;
      context = std::move(*made);
    }
    Result<Generation> made = GenerateOne(*context, RequestOf(prompt, 20));
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return turns;
    const Status saved = context->SaveSession();
    EXPECT_TRUE(saved.ok()) << saved.message();
    prompt.insert(prompt.end(), made->tokens.begin(), made->tokens.end());
    const auto from = text.begin() + 800 + 100 * turn;
    prompt.insert(prompt.end(), from, from + 70);
    turns.push_back(std::move(*made));
  }
  return turns;
}

void ExpectGoesOn(EngineOptions options) {
  const TestDir dir;
  options.session = dir.File("one");
  const std::vector<Generation> expected = Converse(options, true);
  options.session = dir.File("many");
  const std::vector<Generation> turns = Converse(options, false);
  ASSERT_EQ(turns.size(), expected.size());
  for (size_t i = 0; i < turns.size(); ++i) {
    EXPECT_EQ(turns[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(turns[i].reused_tokens, expected[i].reused_tokens) << i;
    EXPECT_TRUE(turns[i].notices.empty());
  }
  EXPECT_EQ(turns[1].reused_tokens, 742);  // all but the last token, of which no keys were made
}

TEST(EngineKeptSession, GoesOnAsInOneProcess) {
  for (const char* method : {"snapkv", "ada-snapkv", "streamingllm"}) {
    SCOPED_TRACE(method);
    ExpectGoesOn(Evicting(method, ""));
  }
}

TEST(EngineKeptSession, GoesOnWithEncodedPages) {
  EngineOptions options = Evicting("ada-snapkv", "");
  options.kv_encoding = "int8";
  ExpectGoesOn(options);
}

// A session of a prompt of 723 tokens and all but the last of an answer.
Status MakeSession(const EngineOptions& options, int64_t answer = 3) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{800}});
  if (!context.ok()) return context.status();
  const std::vector<TokenId> text = Quoting(*engine, 723, 5);
  Result<Generation> made = GenerateOne(**context, RequestOf(text, answer));
  return made.ok() ? (*context)->SaveSession("a note") : made.status();
}

std::string Refusal(const EngineOptions& options, StatusCode code) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  const Status status = engine->NewContext({{kContext}}).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_EQ(engine->Plan({{kContext}}).status().code(), code);
  return status.message();
}

TEST(EngineKeptSession, OtherChoicesAreRefusedByName) {
  const TestDir dir;
  const EngineOptions options = Evicting("snapkv", dir.File("s"));
  ASSERT_TRUE(MakeSession(options).ok());
  const std::string saved =
      "session " + options.session +
      " holds what evict snapkv (budget 192, window 32, pool 7:mean) keeps of "
      "a prompt";
  const auto refusal = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions other = options;
    change(other);
    return Refusal(other, StatusCode::kInvalidArgument);
  };
  EXPECT_EQ(refusal([](EngineOptions& o) { o.evict = "none", o.evict_budget = ""; }),
            saved + "; continue it with that, or give another session file");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.evict = "ada-snapkv"; }),
            saved +
                ", and this is ada-snapkv (budget 192, window 32, pool 7:mean, safeguard 0.2); "
                "continue it with the same, or give another session file");
  EXPECT_EQ(refusal([](EngineOptions& o) { o.evict_budget = "193"; }),
            saved +
                ", and this is snapkv (budget 193, window 32, pool 7:mean); continue it with the "
                "same, or give another session file");
  EXPECT_NE(refusal([](EngineOptions& o) { o.kv_encoding = "int8"; }).find("KV encoding none"),
            std::string::npos);
  EXPECT_NE(refusal([](EngineOptions& o) { o.page_slots = 32; }).find("pages of 64 slots"),
            std::string::npos);
  EXPECT_EQ(refusal([](EngineOptions& o) { o.evict_room = 1; }),
            "session " + options.session + " holds 2 tokens behind its prompt; raise evict_room");
  // Nothing was changed, and how far a sequence may grow is no part of the choice.
  EngineOptions same = options;
  same.evict_room = 700;
  std::unique_ptr<Engine> engine = Open(kDemo, same);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{kContext}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->SessionTokens(), 725);
  EXPECT_EQ((*context)->SessionNote(), "a note");
}

TEST(EngineKeptSession, ASessionOfWholePromptsIsRefused) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("s");
  ASSERT_TRUE(MakeSession(options).ok());
  EXPECT_EQ(Refusal(Evicting("snapkv", options.session), StatusCode::kInvalidArgument),
            "session " + options.session +
                " holds all of a prompt; continue it without evict snapkv, or give another session "
                "file");
}

TEST(EngineKeptSession, ADamagedOneIsRefused) {
  const TestDir dir;
  const EngineOptions options = Evicting("snapkv", dir.File("s"));
  ASSERT_TRUE(MakeSession(options, 1).ok());
  std::string whole(std::filesystem::file_size(options.session), '\0');
  std::ifstream(options.session, std::ios::binary)
      .read(whole.data(), static_cast<std::streamsize>(whole.size()));
  const std::vector<TokenId> text = Quoting(*Open(kDemo), 760, 5);
  int refused = 0;
  for (size_t at = 100; at < whole.size(); at += whole.size() / 23) {
    std::string damaged = whole;
    damaged[at] ^= 0x10;
    std::ofstream(options.session, std::ios::binary) << damaged;
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{kContext}});
    const Status status =
        context.ok() ? GenerateOne(**context, RequestOf(text, 2)).status() : context.status();
    if (status.ok()) continue;  // of an older manifest, or of what pads pages
    ++refused;
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.message();
    EXPECT_NE(status.message().find(options.session), std::string::npos) << status.message();
  }
  EXPECT_GT(refused, 5);
}

// What a process had saved when it was killed while it read another prompt.
TEST(EngineKeptSession, ThePromptBeforeStaysUntilTheNextIsRead) {
  const TestDir dir;
  EngineOptions options = Evicting("snapkv", dir.File("s"));
  options.chunk = 128;
  ASSERT_TRUE(MakeSession(options).ok());
  const std::vector<TokenId> other = Quoting(*Open(kDemo), 700, 11);
  int64_t copied = 0;
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{kContext}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    Hooks hooks;
    hooks.on_progress = [&](const Progress& progress) {
      const Status saved = (*context)->SaveSession();
      EXPECT_TRUE(saved.ok()) << saved.message();
      if (progress.phase != Progress::Phase::kPrefill || progress.done != 512) return;
      std::filesystem::copy(options.session, dir.File("killed"));
      copied = progress.done;
    };
    const Request request = RequestOf(other, 4);
    ASSERT_TRUE((*context)->Generate({&request, 1}, hooks).ok());
  }
  EXPECT_EQ(copied, 512);
  const auto tokens = [&] { return *Open(kDemo, options)->SessionTokens(); };
  EXPECT_EQ(tokens(), 703);
  options.session = dir.File("killed");
  EXPECT_EQ(tokens(), 725);
}

TEST(EngineKeptSession, WhatItsDiskCannotHoldIsRefusedBeforeWork) {
  const TestDir dir;
  EngineOptions options = Evicting("ada-snapkv", dir.File("s"));
  options.disk_memory = int64_t{1} << 30;
  Result<PlanReport> plan = Open(kDemo, options)->Plan({{800}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  options.disk_memory = plan->smallest_disk_memory;
  EXPECT_GT(options.disk_memory, 0);
  const Status saved = MakeSession(options);
  EXPECT_TRUE(saved.ok()) << saved.message();
  options.disk_memory -= 4096;
  options.session = dir.File("new");
  EXPECT_EQ(MakeSession(options).code(), StatusCode::kOutOfBudget);
}

}  // namespace
}  // namespace headway
