// Calls to the system under an engine fail once, or from one on for good, in every placement: the
// error is one line, nothing leaks, an answer that was given is right, what failed once works when
// it is tried again, and the session that was saved stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/random.h"
#include "base/test_dir.h"
#include "support/fault_run.h"

namespace headway {
namespace {

const std::string kModel = HEADWAY_SOURCE_DIR "/tests/golden/models/llama-bf16";
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

// Where pages lie, and whether they are plain.
struct Pages {
  std::string placement;
  bool lossless = false;

  // The cache is 16 slabs of so many bytes.
  int64_t slab_bytes() const { return (lossless ? 80 : 64) * kKiB; }
  // Beside open pages, append and staging buffers the fast tier has room for three of them, and
  // beside bounce buffers the host for three.
  int64_t fast_bytes() const { return (lossless ? 625 : 352) * kKiB + 3 * slab_bytes(); }
  int64_t host_bytes() const { return 2 * slab_bytes() + 3 * slab_bytes(); }
};

// The disk's share lies in the session file where there is one.
EngineOptions Options(const TestDir& dir, const Pages& pages, const std::string& session) {
  EngineOptions options;
  if (pages.lossless) options.kv_encoding = "lossless";
  options.threads = 2;
  options.chunk = 64;
  options.segment = 64;
  options.page_slots = 16;
  options.placement = pages.placement;
  if (pages.placement != "disk-only") {
    options.staging_slabs = 2;
    options.kv_memory = pages.fast_bytes();
    options.host_memory = pages.host_bytes();
  }
  options.disk_memory = 64 * kMiB;
  options.disk_path = dir.File("");
  options.session = session;
  return options;
}

struct Outcome : FaultRun {
  std::vector<TokenId> tokens;
  int64_t reused = 0;
  int64_t tier_bytes[3] = {};  // held when the answer was done
};

Outcome RunEngine(Env* env, const EngineOptions& options, const Request& request) {
  Outcome run;
  const FaultContext made = OpenUnderFaults(env, kModel, options, kContext, &run);
  if (!run.opened) return run;
  const Result<Generation> answer = GenerateUnderFaults(*made.context, request, &run);
  if (answer.ok()) {
    run.tokens = answer->tokens;
    run.reused = answer->reused_tokens;
  }
  for (int tier = 0; tier < 3; ++tier) run.tier_bytes[tier] = made.context->TierBytes(tier);
  SaveUnderFaults(*made.context, &run);
  return run;
}

class EngineFault : public ::testing::TestWithParam<Pages> {
 protected:
  void SetUp() override {
    const Outcome run = RunEngine(Env::Default(), OptionsOf(saved_), RequestOf(200));
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    const Outcome whole = RunEngine(Env::Default(), OptionsOf(""), RequestOf(kContext - 10));
    // Lossless pages give the tokens of plain ones.
    const EngineOptions plain = Options(dir_, Pages{GetParam().placement}, "");
    expected_ = RunEngine(Env::Default(), plain, RequestOf(kContext - 10)).tokens;
    ASSERT_EQ(expected_.size(), 4u);
    EXPECT_EQ(whole.tokens, expected_);
    const std::string& placement = GetParam().placement;
    EXPECT_EQ(whole.tier_bytes[0] > GetParam().slab_bytes(),
              placement == "first-fit" || placement == "lru");
    EXPECT_EQ(whole.tier_bytes[1] > 0, placement != "disk-only");
    EXPECT_GT(whole.tier_bytes[2], 0);
  }

  EngineOptions OptionsOf(const std::string& session) const {
    return Options(dir_, GetParam(), session);
  }

  // Returns whether a fault was injected.
  bool FailAt(int64_t n, FaultTimes times) {
    const std::string session = dir_.File("session");
    std::filesystem::copy_file(saved_, session, std::filesystem::copy_options::overwrite_existing);
    FaultEnv env(Env::Default());
    env.FailAt(n, times);
    const Outcome run = RunEngine(&env, OptionsOf(session), RequestOf(kContext - 10));
    if (run.answered) {
      EXPECT_EQ(run.tokens, expected_);
    }
    ExpectHandled(env, run, times);
    const Outcome later = RunEngine(Env::Default(), OptionsOf(session), RequestOf(kContext - 10));
    EXPECT_TRUE(later.status.ok()) << later.status.message();
    EXPECT_EQ(later.tokens, expected_);
    EXPECT_GE(later.reused, 192);  // what was saved at first, in whole pages
    return env.faults() > 0;
  }

  // Every call with plain pages in the placement that writes the most; of the others, which share
  // most of its calls, every second one: the odd ones once, the even ones for good.
  void FailEach(FaultTimes times) {
    const bool every = GetParam().placement == "disk-only" && !GetParam().lossless;
    int64_t n = !every && times == FaultTimes::kForGood ? 2 : 1;
    for (bool failed = true; failed && !HasFailure(); n += every ? 1 : 2) {
      SCOPED_TRACE("call " + std::to_string(n));
      failed = FailAt(n, times);
    }
    EXPECT_GT(n, 30);  // the calls were there to fail
  }

  const TestDir dir_;
  const std::string saved_ = dir_.File("saved");
  std::vector<TokenId> expected_;
};

TEST_P(EngineFault, OnceEach) { FailEach(FaultTimes::kOnce); }
TEST_P(EngineFault, ForGoodFromEach) { FailEach(FaultTimes::kForGood); }

INSTANTIATE_TEST_SUITE_P(Placements, EngineFault,
                         ::testing::Values(Pages{"disk-only"}, Pages{"first-fit"}, Pages{"lru"},
                                           Pages{"host-only"}, Pages{"disk-only", true},
                                           Pages{"lru", true}),
                         [](const auto& pages) {
                           std::string name = pages.param.placement;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (pages.param.lossless ? "_lossless" : "");
                         });

// A session of what heads keep is opened, brought up, gone on with and saved: answers behind what
// is kept, or behind the prompt where that was read anew.
class EngineKeptFault : public ::testing::TestWithParam<FaultTimes> {
 protected:
  EngineOptions OptionsOf(const std::string& session) const {
    EngineOptions options = Options(dir_, Pages{"first-fit"}, session);
    options.kv_memory = options.host_memory = kNoLimit;
    options.disk_memory = 0;
    options.disk_path = "";
    options.evict = "snapkv";
    options.evict_budget = "64";
    return options;
  }
  // Of a copy of the first session.
  Outcome Run(Env* env, const std::string& name) const {
    const std::string session = dir_.File(name);
    std::filesystem::copy_file(dir_.File("saved"), session,
                               std::filesystem::copy_options::overwrite_existing);
    return RunEngine(env, OptionsOf(session), RequestOf(kContext - 10));
  }

  const TestDir dir_;
};

TEST_P(EngineKeptFault, EachCall) {
  Request first = RequestOf(200);
  first.max_tokens = 1;  // so that the next prompt begins with all of its tokens
  ASSERT_TRUE(RunEngine(Env::Default(), OptionsOf(dir_.File("saved")), first).status.ok());
  const Outcome behind = Run(Env::Default(), "one");
  ASSERT_TRUE(behind.status.ok()) << behind.status.message();
  EXPECT_EQ(behind.reused, 200);
  const std::vector<TokenId> anew =
      RunEngine(Env::Default(), OptionsOf(""), RequestOf(kContext - 10)).tokens;
  const auto is_right = [&](const std::vector<TokenId>& tokens) {
    return tokens == behind.tokens || tokens == anew;
  };
  int64_t n = 1;
  for (bool failed = true; failed && !HasFailure(); ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    FaultEnv env(Env::Default());
    env.FailAt(n, GetParam());
    const Outcome run = Run(&env, "session");
    failed = env.faults() > 0;
    EXPECT_TRUE(!run.answered || is_right(run.tokens));
    ExpectHandled(env, run, GetParam());
    const Outcome later =
        RunEngine(Env::Default(), OptionsOf(dir_.File("session")), RequestOf(kContext - 10));
    EXPECT_TRUE(later.status.ok()) << later.status.message();
    EXPECT_TRUE(is_right(later.tokens));
  }
  EXPECT_GT(n, 30);  // the calls were there to fail
}

INSTANTIATE_TEST_SUITE_P(Times, EngineKeptFault,
                         ::testing::Values(FaultTimes::kOnce, FaultTimes::kForGood));

TEST(EngineFullDisk, FailsTheSaveAndNotTheAnswer) {
  const TestDir dir;
  const Request request = RequestOf(kContext - 10);
  // All resident: the disk is needed for the save alone.
  EngineOptions options = Options(dir, Pages{"first-fit"}, "");
  options.kv_memory = kNoLimit;
  const std::vector<TokenId> expected = RunEngine(Env::Default(), options, request).tokens;
  options.session = dir.File("new");
  FaultEnv env(Env::Default());
  env.SetDiskCapacity(20 * kKiB);
  const Outcome run = RunEngine(&env, options, request);
  EXPECT_TRUE(run.answered);
  EXPECT_EQ(run.tokens, expected);
  EXPECT_FALSE(run.status.ok());
  EXPECT_NE(run.status.message().find("new"), std::string::npos) << run.status.message();
}

}  // namespace
}  // namespace headway
