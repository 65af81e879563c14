// Decode by lists behind a session's pages that memory does not hold: they stay on disk and are
// listed there, by summaries that are made before the first step.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "support/api.h"
#include "support/counting_env.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kSaved = 384, kLength = 450;
constexpr int64_t kDecoded = 30;  // behind the rest of the prompt

HarnessConfig WithSlabs(HarnessConfig config, int64_t device, int64_t host) {
  config.placement = kv::PlacementKind::kRecent;
  config.device_slabs = device;
  config.host_slabs = host;
  return config;
}

bool Unwatched(int64_t /*tokens*/, int64_t /*total*/) { return true; }

// One text that is read in two runs, with a pause or without.
class DiskSession : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<StepHarness> Make(const HarnessConfig& config, Env* env = Env::Default()) {
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model_, config, 1, kLength, env);
    EXPECT_TRUE(h.ok()) << h.status().message();
    return h.ok() ? std::move(*h) : nullptr;
  }
  // Of the rest of the prompt, and of each token behind it.
  LogitRows GoOn(StepHarness& h, kv::SequenceId sequence) {
    Result<LogitRows> rows =
        h.Append(sequence, std::span(tokens_).subspan(kSaved, kLength - kDecoded - kSaved), rope_);
    for (size_t i = kLength - kDecoded; rows.ok() && i < kLength; ++i) {
      Result<LogitRows> one = h.Append(sequence, std::span(tokens_).subspan(i, 1), rope_);
      if (!one.ok()) rows = one.status();
      if (one.ok()) rows->push_back(std::move((*one)[0]));
    }
    EXPECT_TRUE(rows.ok()) << rows.status().message();
    return rows.ok() ? std::move(*rows) : LogitRows();
  }
  LogitRows WithoutPause(const HarnessConfig& config) {
    const std::unique_ptr<StepHarness> h = Make(config);
    const kv::SequenceId sequence = *h->NewSequence();
    EXPECT_TRUE(h->Append(sequence, std::span(tokens_).first(kSaved), rope_).ok());
    return GoOn(*h, sequence);
  }
  void Save(const HarnessConfig& config) {
    const std::unique_ptr<StepHarness> h = Make(config);
    const kv::SequenceId sequence = *h->store().Restore();
    EXPECT_TRUE(h->Append(sequence, std::span(tokens_).first(kSaved), rope_).ok());
    const Status saved = h->store().Save(sequence, std::span(tokens_).first(kSaved), {});
    EXPECT_TRUE(saved.ok()) << saved.message();
  }

  const std::unique_ptr<Model> model_ = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens_ = RandomTokens(kLength, 96, 41);
  const RopeFrequencies rope_ = RopeOf(*model_, kLength);
  const TestDir dir_;
};

TEST_P(DiskSession, APauseNeverChangesABit) {
  int file = 0;
  for (const kv::SelectionPolicy& policy :
       {PolicyOf(40), PolicyOf(40, SummaryKind::kBoxes), PolicyOf(40, SummaryKind::kPairs),
        TwoLooks(40), KeepsCandidates(40, 5), SearchesPages(40, 5)}) {
    for (const int group_heads : {0, 1}) {
      HarnessConfig config = HarnessConfig::Default();
      config.group_heads = group_heads;
      config.selection = policy;
      const LogitRows expected = WithoutPause(WithSlabs(config, 1 << 20, 0));
      config.session = dir_.File(std::to_string(++file));
      Save(WithSlabs(config, 1 << 20, 0));
      for (const int64_t slabs : {0, 5, 20}) {
        config.sketches = slabs == 5 ? Tier::kHost : Tier::kDevice;
        const std::unique_ptr<StepHarness> h = Make(WithSlabs(config, slabs / 3, slabs));
        const kv::SequenceId sequence = *h->store().Restore();
        ASSERT_TRUE(h->executor().BringUp(sequence, rope_, Unwatched).ok());
        ExpectSameBits(expected, GoOn(*h, sequence), "slabs in memory: " + std::to_string(slabs));
        EXPECT_GT(h->store().DiskPageReads().read, 0);
      }
    }
  }
}

// Each page is read once to be summarised; then decode reads what is listed, and nothing else.
TEST_P(DiskSession, OnlyListedPagesAreReadInDecode) {
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4}) {
    HarnessConfig config = WithSlabs(HarnessConfig::Default(), 0, 0);
    config.group_heads = 1;
    config.selection = PolicyOf(40);
    config.encoding = encoding;
    config.session = dir_.File(EncodingName(encoding));
    Save(config);
    CountingEnv env;
    const std::unique_ptr<StepHarness> h = Make(config, &env);
    kv::Store& store = h->store();
    const kv::SequenceId sequence = *store.Restore();
    const kv::TierUsage on_disk = store.Usage(Tier::kDisk);
    const int64_t opened = env.bytes();
    ASSERT_TRUE(h->executor().BringUp(sequence, rope_, Unwatched).ok());
    EXPECT_EQ(store.Usage(Tier::kDisk).slabs, on_disk.slabs);
    const int64_t once = env.bytes() - opened;
    EXPECT_GE(once, on_disk.tokens_bytes);
    EXPECT_LE(once, on_disk.bytes);
    ASSERT_TRUE(h->executor().BringUp(sequence, rope_, Unwatched).ok());
    EXPECT_EQ(env.bytes() - opened, once) << "what has summaries is read again";
    ASSERT_TRUE(h->Append(sequence, std::span(tokens_).subspan(kSaved, 1), rope_).ok());
    const kv::ListedPages::Reads reads = store.DiskPageReads();
    EXPECT_GT(reads.read, 0);
    EXPECT_EQ(env.bytes() - opened - once, reads.bytes);
    EXPECT_LT(reads.bytes, once);
  }
}

// Of selectors that read keys to choose nothing is summarised on disk.
TEST_P(DiskSession, WhatIsChosenByKeysIsReadWhole) {
  HarnessConfig config = WithSlabs(HarnessConfig::Default(), 0, 0);
  const LogitRows expected = WithoutPause(config);
  config.session = dir_.File("s");
  Save(config);
  for (const kv::SelectionPolicy& policy : {Bounded(16, 0.4), PolicyOf(40, SummaryKind::kMasses)}) {
    config.selection = policy;
    CountingEnv env;
    const std::unique_ptr<StepHarness> h = Make(config, &env);
    const kv::SequenceId sequence = *h->store().Restore();
    const int64_t opened = env.bytes();
    ASSERT_TRUE(h->executor().BringUp(sequence, rope_, Unwatched).ok());
    EXPECT_EQ(env.bytes(), opened);
    ExpectSameBits(expected, GoOn(*h, sequence), "all on disk");
  }
}

// A read that fails as the session is opened ends that, and what was summarised before it is not
// read again.
TEST_P(DiskSession, AFailedReadLosesNothing) {
  HarnessConfig config = WithSlabs(HarnessConfig::Default(), 0, 0);
  config.selection = PolicyOf(40);
  const LogitRows expected = WithoutPause(config);
  config.session = dir_.File("s");
  Save(config);
  FaultEnv env(Env::Default());
  const std::unique_ptr<StepHarness> h = Make(config, &env);
  const kv::SequenceId sequence = *h->store().Restore();
  env.SetKinds(kFaultRead);
  int64_t failed = 0;
  for (bool done = false; !done; failed += done ? 0 : 1) {
    ASSERT_LT(failed, 100);
    env.FailAt(5);
    const Status up = h->executor().BringUp(sequence, rope_, Unwatched);
    done = up.ok();
    if (done) continue;
    EXPECT_EQ(up.code(), StatusCode::kIo);
    EXPECT_NE(up.message().find("injected fault"), std::string::npos);
  }
  EXPECT_GT(failed, 0);
  env.FailAt(0);
  ExpectSameBits(expected, GoOn(*h, sequence), "behind failures");
}

TEST_P(DiskSession, ADamagedPageIsFoundBeforeTheFirstStep) {
  HarnessConfig config = WithSlabs(HarnessConfig::Default(), 0, 0);
  config.selection = PolicyOf(40);
  config.session = dir_.File("s");
  Save(config);
  std::ifstream in(config.session, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const std::string path = config.session;
  int found = 0;
  // Pages begin on such numbers; most of what lies behind is padding, as small as they are.
  for (size_t at = kDirectAlignment; at < whole.size(); at += 7 * kDirectAlignment) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    config.session = dir_.File("damaged" + std::to_string(at));
    std::ofstream(config.session, std::ios::binary) << damaged;
    {
      Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model_, config, 1, kLength);
      if (!h.ok()) continue;  // it was the manifest
      const kv::SequenceId sequence = *(*h)->store().Restore();
      const Status up = (*h)->executor().BringUp(sequence, rope_, Unwatched);
      if (up.ok()) continue;  // it was padding, or a slot that holds nothing
      ++found;
      EXPECT_EQ(up.code(), StatusCode::kCorrupt);
      EXPECT_NE(up.message().find(config.session), std::string::npos) << up.message();
      EXPECT_NE(up.message().find("is not what was written"), std::string::npos) << up.message();
      EXPECT_EQ(up.message().find('\n'), std::string::npos);
      EXPECT_EQ((*h)->store().Length(sequence), kSaved);
    }
    std::ifstream after(config.session, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(after), {}), damaged);
  }
  EXPECT_GT(found, 0);
}

TEST(EngineDiskSession, AContextListsWhatStaysOnDisk) {
  const TestDir dir;
  EngineOptions selecting;
  selecting.device = TestDevice();
  selecting.selector = "pages";
  selecting.sparse_keys = 32;
  selecting.sparse_sink = 16;
  selecting.sparse_recent = 64;
  selecting.sparse_from = 0;
  const Request request = RequestOf(Quoting(*Open(kDemo), 900, 5), 40);
  const Request part = RequestOf({request.prompt.begin(), request.prompt.begin() + 700}, 1);
  const auto context_of = [&](Engine& engine) {
    Result<std::unique_ptr<Context>> context = engine.NewContext({{1000}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    return std::move(*context);
  };
  const std::unique_ptr<Engine> resident = Open(kDemo, selecting);
  const std::unique_ptr<Context> uninterrupted = context_of(*resident);
  ASSERT_TRUE(GenerateOne(*uninterrupted, part).ok());
  const Generation expected = *GenerateOne(*uninterrupted, request);
  EngineOptions exact;
  exact.device = TestDevice();
  EXPECT_NE(expected.tokens, Fresh(kDemo, exact, request).tokens);
  selecting.session = dir.File("s");
  selecting.placement = "disk-only";
  for (const bool made : {false, true}) {
    const std::unique_ptr<Engine> engine = Open(kDemo, selecting);
    const std::unique_ptr<Context> context = context_of(*engine);
    const Result<Generation> generation = GenerateOne(*context, made ? request : part);
    ASSERT_TRUE(generation.ok()) << generation.status().message();
    EXPECT_EQ(generation->reused_tokens, made ? 640 : 0);
    ASSERT_TRUE(context->SaveSession().ok());
    if (!made) continue;
    EXPECT_EQ(generation->tokens, expected.tokens);
    EXPECT_GT(context->timings().disk_pages.read, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DiskSession, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
