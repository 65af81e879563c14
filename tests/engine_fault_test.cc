// Every call to the system under an engine fails once, or from one on for good: the error is one
// line, nothing leaks, an answer that was given is right, and the session that was saved stays.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/bytes.h"
#include "base/fault_env.h"
#include "base/random.h"
#include "base/test_dir.h"
#include "engine/open.h"

namespace headway {
namespace {

const std::string kModel = HEADWAY_SOURCE_DIR "/tests/golden/models/llama31";
constexpr int64_t kContext = 460;

Request RequestOf(int64_t prompt) {
  Random random(11);
  Request request;
  while (static_cast<int64_t>(request.prompt.size()) < prompt) {
    request.prompt.push_back(static_cast<TokenId>(random.Below(90)));
  }
  request.max_tokens = 4;
  request.ignore_eos = true;
  return request;
}

// Some of the cache on each tier; the disk's share lies in the session file where there is one.
EngineOptions Options(const TestDir& dir, const std::string& session) {
  EngineOptions options;
  options.threads = 2;
  options.chunk = 64;
  options.segment = 64;
  options.page_slots = 16;
  options.placement = "disk-only";
  options.disk_memory = 64 * kMiB;
  options.disk_path = dir.File("");
  options.session = session;
  return options;
}

struct Outcome {
  Status status;  // of the first call that failed
  bool answered = false;
  std::vector<TokenId> tokens;
  int64_t reused = 0;
};

Outcome RunEngine(Env* env, const EngineOptions& options, const Request& request) {
  Outcome run;
  Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(env, kModel, options);
  run.status = engine.status();
  if (!engine.ok()) return run;
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{kContext}});
  run.status = context.status();
  if (!context.ok()) return run;
  Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, {});
  run.status = made.status();
  if (!made.ok()) return run;
  run.answered = true;
  run.tokens = made->front().tokens;
  run.reused = made->front().reused_tokens;
  run.status = (*context)->SaveSession();
  return run;
}

class EngineFault : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome run = RunEngine(Env::Default(), Options(dir_, saved_), RequestOf(200));
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    expected_ = RunEngine(Env::Default(), Options(dir_, ""), RequestOf(kContext - 10)).tokens;
    ASSERT_EQ(expected_.size(), 4u);
  }

  // Returns whether a fault was injected.
  bool FailAt(int64_t n, bool persistent) {
    const std::string session = dir_.File("session");
    std::filesystem::copy_file(saved_, session, std::filesystem::copy_options::overwrite_existing);
    FaultEnv env(Env::Default());
    env.FailAt(n, persistent);
    const Outcome run = RunEngine(&env, Options(dir_, session), RequestOf(kContext - 10));
    if (run.answered) {
      EXPECT_EQ(run.tokens, expected_);
    }
    if (env.faults() == 0) {
      EXPECT_TRUE(run.status.ok()) << run.status.message();
    }
    EXPECT_EQ(run.status.message().find('\n'), std::string::npos) << run.status.message();
    EXPECT_EQ(env.LiveAllocations(), 0);
    EXPECT_EQ(env.LiveBytes(), 0);
    EXPECT_EQ(env.LiveFiles(), 0);
    EXPECT_EQ(env.LiveMaps(), 0);
    const Outcome later =
        RunEngine(Env::Default(), Options(dir_, session), RequestOf(kContext - 10));
    EXPECT_TRUE(later.status.ok()) << later.status.message();
    EXPECT_EQ(later.tokens, expected_);
    EXPECT_GE(later.reused, 192);  // what was saved at first, in whole pages
    return env.faults() > 0;
  }

  void FailEach(bool persistent) {
    int64_t n = 1;
    for (bool failed = true; failed && !HasFailure(); ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      failed = FailAt(n, persistent);
    }
    EXPECT_GT(n, 30);  // the calls were there to fail
  }

  const TestDir dir_;
  const std::string saved_ = dir_.File("saved");
  std::vector<TokenId> expected_;
};

TEST_F(EngineFault, OnceEach) { FailEach(/*persistent=*/false); }
TEST_F(EngineFault, ForGoodFromEach) { FailEach(/*persistent=*/true); }

TEST_F(EngineFault, AFullDiskFailsTheSaveAndNotTheAnswer) {
  const std::string session = dir_.File("new");
  FaultEnv env(Env::Default());
  EngineOptions options = Options(dir_, session);
  options.placement = "first-fit";  // all resident: the disk is needed for the save alone
  env.SetDiskCapacity(20 * kKiB);
  const Outcome run = RunEngine(&env, options, RequestOf(kContext - 10));
  EXPECT_TRUE(run.answered);
  EXPECT_EQ(run.tokens, expected_);
  EXPECT_FALSE(run.status.ok());
  EXPECT_NE(run.status.message().find("new"), std::string::npos) << run.status.message();
}

}  // namespace
}  // namespace headway
