// Calls to the system fail under engines with HGCA and under such as demote what heads let go of:
// the error is one line, nothing leaks, an answer that was given is right, what failed once works
// when it is tried again, and a session that was saved stays.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "engine/open.h"
#include "support/api.h"

namespace headway {
namespace {

constexpr int64_t kFirst = 192, kContext = 460;

struct Outcome {
  Status status;  // of the first call that failed
  bool opened = false;
  bool answered = false;
  std::vector<TokenId> tokens;  // of both turns
  std::vector<int64_t> reused;  // by each
};

// Of the first so many tokens of a text, and behind that answer and more of the text, which may be
// read without what the first turn left.
Outcome RunEngine(Env* env, const EngineOptions& options, int64_t prompt, bool resets = false) {
  Outcome run;
  Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(env, kGolden + "llama31", options);
  run.status = engine.status();
  if (!engine.ok()) return run;
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{kContext}});
  run.status = context.status();
  if (!context.ok()) return run;
  run.opened = true;
  const std::vector<TokenId> text = Tokens(kContext, 90, 11);
  Request request = RequestOf({text.begin(), text.begin() + prompt}, 4);
  bool answered = true;
  for (int turn = 0; turn < 2 && answered; ++turn) {
    if (turn == 1 && resets) (*context)->Reset();
    Result<Generation> made = GenerateOne(**context, request);
    if (run.status.ok()) run.status = made.status();
    // What failed is tried again on what it left, and then from the beginning.
    if (!made.ok()) made = GenerateOne(**context, request);
    if (!made.ok()) {
      (*context)->Reset();
      made = GenerateOne(**context, request);
    }
    answered = made.ok();
    if (!answered) break;
    run.reused.push_back(made->reused_tokens);
    run.tokens.insert(run.tokens.end(), made->tokens.begin(), made->tokens.end());
    request.prompt.insert(request.prompt.end(), made->tokens.begin(), made->tokens.end());
    request.prompt.insert(request.prompt.end(), text.begin(), text.begin() + 40);
  }
  run.answered = answered;
  if (options.session.empty()) return run;
  const Status saved = (*context)->SaveSession();
  if (run.status.ok()) run.status = saved;
  if (!saved.ok()) (void)(*context)->SaveSession().ok();
  return run;
}

class EngineHgcaFault : public ::testing::TestWithParam<FaultTimes> {
 protected:
  static EngineOptions Small() {
    EngineOptions options;
    options.threads = 2;
    options.chunk = 64;
    options.segment = 64;
    options.page_slots = 16;
    return options;
  }
  EngineOptions Hgca(const std::string& session) const {
    EngineOptions options = Small();
    options.hgca = 0.5;
    options.hgca_window = 64;
    options.hgca_on = "host";
    options.session = session;
    return options;
  }
  // What answers say depends on what was read anew: its last queries choose. Those of runs that
  // nothing disturbed come first.
  void Tell(const Outcome& run) {
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    ExpectAsTold(run);
  }
  void ExpectAsTold(const Outcome& run) {
    const auto [at, is_new] = told_.insert({run.reused, run.tokens});
    EXPECT_EQ(run.tokens, at->second);
    new_ += is_new ? 1 : 0;
  }
  // Fails each call in turn.
  template <typename Run>
  void FailEach(const Run& run_on) {
    new_ = 0;
    int64_t n = 1;
    for (bool failed = true; failed && !HasFailure(); ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      FaultEnv env(Env::Default());
      env.FailAt(n, GetParam());
      const Outcome run = run_on(&env);
      failed = env.faults() > 0;
      if (run.answered) ExpectAsTold(run);
      EXPECT_TRUE(run.answered || !run.opened || GetParam() == FaultTimes::kForGood);
      EXPECT_TRUE(failed || run.status.ok()) << run.status.message();
      EXPECT_EQ(run.status.message().find('\n'), std::string::npos) << run.status.message();
      EXPECT_EQ(env.LiveAllocations(), 0);
      EXPECT_EQ(env.LiveBytes(), 0);
      EXPECT_EQ(env.LiveFiles(), 0);
      EXPECT_EQ(env.LiveMaps(), 0);
    }
    EXPECT_GT(n, 20);    // the calls were there to fail
    EXPECT_LE(new_, 1);  // almost all of them end where an undisturbed run did
  }

  const TestDir dir_;

 private:
  std::map<std::vector<int64_t>, std::vector<TokenId>> told_;  // tokens by what was reused
  int new_ = 0;
};

// A session is opened, brought up, gone on with and saved.
TEST_P(EngineHgcaFault, EachCall) {
  const std::string first = dir_.File("first"), session = dir_.File("session");
  ASSERT_TRUE(RunEngine(Env::Default(), Hgca(first), kFirst).status.ok());
  const auto run_on = [&](Env* env) {
    std::filesystem::copy_file(first, session, std::filesystem::copy_options::overwrite_existing);
    return RunEngine(env, Hgca(session), kFirst + 100);
  };
  const Outcome behind = run_on(Env::Default());
  Tell(behind);
  EXPECT_EQ(behind.reused.front(), kFirst);
  const auto later = [&] { return RunEngine(Env::Default(), Hgca(session), kFirst + 100); };
  Tell(later());
  for (const bool resets : {false, true}) {
    Tell(RunEngine(Env::Default(), Hgca(""), kFirst + 100, resets));
    std::filesystem::copy_file(first, session, std::filesystem::copy_options::overwrite_existing);
    Tell(RunEngine(Env::Default(), Hgca(session), kFirst + 100, resets));
  }
  FailEach([&](Env* env) {
    Outcome run = run_on(env);
    const Outcome next = later();
    EXPECT_TRUE(next.status.ok()) << next.status.message();
    EXPECT_GE(next.reused.front(), kFirst);
    ExpectAsTold(next);
    return run;
  });
}

TEST_P(EngineHgcaFault, EachCallWhereTokensAreDemoted) {
  EngineOptions options = Small();
  options.evict = "snapkv";
  options.evict_budget = "64";
  options.evicted = "demote";
  options.evicted_keys = 32;
  for (const bool resets : {false, true}) {
    Tell(RunEngine(Env::Default(), options, kFirst, resets));
  }
  FailEach([&](Env* env) { return RunEngine(env, options, kFirst); });
}

INSTANTIATE_TEST_SUITE_P(Times, EngineHgcaFault,
                         ::testing::Values(FaultTimes::kOnce, FaultTimes::kForGood));

}  // namespace
}  // namespace headway
