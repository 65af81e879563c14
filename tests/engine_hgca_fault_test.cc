// Calls to the system fail under engines with HGCA and under such as demote what heads let go of:
// the error is one line, nothing leaks, an answer that was given is right, what failed once works
// when it is tried again, and a session that was saved stays.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "support/fault_run.h"

namespace headway {
namespace {

constexpr int64_t kFirst = 192, kContext = 460;

struct Outcome : FaultRun {
  std::vector<TokenId> tokens;  // of both turns
  std::vector<int64_t> reused;  // by each
};

// Of the first so many tokens of a text, and behind that answer and more of the text, which may be
// read without what the first turn left.
Outcome RunEngine(Env* env, const EngineOptions& options, int64_t prompt, bool resets = false) {
  Outcome run;
  const FaultContext made = OpenUnderFaults(env, kGolden + "llama31", options, kContext, &run);
  if (!run.opened) return run;
  const std::vector<TokenId> text = Tokens(kContext, 90, 11);
  Request request = RequestOf({text.begin(), text.begin() + prompt}, 4);
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1 && resets) made.context->Reset();
    const Result<Generation> answer = GenerateUnderFaults(*made.context, request, &run);
    if (!answer.ok()) break;
    run.reused.push_back(answer->reused_tokens);
    run.tokens.insert(run.tokens.end(), answer->tokens.begin(), answer->tokens.end());
    request.prompt.insert(request.prompt.end(), answer->tokens.begin(), answer->tokens.end());
    request.prompt.insert(request.prompt.end(), text.begin(), text.begin() + 40);
  }
  if (!options.session.empty()) SaveUnderFaults(*made.context, &run);
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
      ExpectHandled(env, run, GetParam());
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
