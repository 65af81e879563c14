// Sessions that ranks share: saved on some number of ranks, and gone on with on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fault_env.h"
#include "base/test_dir.h"
#include "engine/open.h"
#include "model/config.h"
#include "support/api.h"
#include "support/golden.h"
#include "support/rank_options.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kSaved = 448, kLength = 500;

EngineOptions InSegments(int ranks) {
  EngineOptions options = OnRanks(ranks);
  options.segment = 128;
  return options;
}

// A context of an engine of its own.
struct Opened {
  explicit Opened(const EngineOptions& options, const std::string& model = kDemo,
                  Env* env = Env::Default()) {
    Result<std::unique_ptr<Engine>> opened = EngineOpener::Open(env, model, options);
    status = opened.status();
    if (!status.ok()) return;
    engine = std::move(*opened);
    Result<std::unique_ptr<Context>> made = engine->NewContext({{kLength + 40}});
    status = made.status();
    if (status.ok()) context = std::move(*made);
  }
  Status status;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
};

using Rows = std::vector<std::vector<float>>;

// Of tokens [begin, end) what the ones behind them are.
Result<Rows> Score(Context& context, std::span<const TokenId> tokens, int64_t begin, int64_t end) {
  Rows rows;
  const Context::ScorePart part = {
      .begin = begin, .end = end, .logits = [&](int64_t, std::span<const float> logits) {
        rows.emplace_back(logits.begin(), logits.end());
      }};
  const Result<Context::ScoreResult> scored = context.Score(tokens, part, {});
  if (!scored.ok()) return scored.status();
  return rows;
}

void ExpectNear(const std::string& model, const Rows& a, const Rows& b) {
  const Result<ModelConfig> config = ReadModelConfig(*Env::Default(), model);
  ASSERT_TRUE(config.ok());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const double most =
        GoldenTolerance(config->shape, kLength, config->shape.dtype, a[i], config->shape.dtype);
    ASSERT_LE(MaxDifference(a[i], b[i]), most) << "row " << i;
  }
}

class SharedSession : public ::testing::Test {
 protected:
  std::string File(const std::string& name) const { return dir_.File(name); }
  std::string CopyOf(const std::string& file) {
    const std::string copy = File("copy" + std::to_string(++copies_));
    fs::copy(file, copy);
    return copy;
  }
  // What continues a session of the first tokens that was saved under some options and opened under
  // others, beside a run without a pause under the latter.
  void ExpectGoesOn(const std::string& model, EngineOptions saving, EngineOptions opening) {
    const std::vector<TokenId> tokens = Tokens(kLength, 90, 7);
    EngineOptions resident = opening;
    resident.placement = "auto";
    Opened whole(resident, model);
    ASSERT_TRUE(whole.status.ok()) << whole.status.message();
    ASSERT_TRUE(Score(*whole.context, tokens, 0, kSaved).ok());
    const Result<Rows> expected = Score(*whole.context, tokens, kSaved, -1);
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    saving.session = File("s" + std::to_string(++copies_));
    {
      Opened first(saving, model);
      ASSERT_TRUE(first.status.ok()) << first.status.message();
      ASSERT_TRUE(Score(*first.context, tokens, 0, kSaved).ok());
      const Status saved = first.context->SaveSession("a note");
      ASSERT_TRUE(saved.ok()) << saved.message();
    }
    opening.session = saving.session;
    Opened second(opening, model);
    ASSERT_TRUE(second.status.ok()) << second.status.message();
    EXPECT_EQ(second.context->SessionTokens(), kSaved);
    EXPECT_EQ(second.context->SessionNote(), "a note");
    const Result<Rows> rows = Score(*second.context, tokens, kSaved, -1);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    ASSERT_EQ(rows->size(), static_cast<size_t>(kLength - kSaved - 1));
    if (saving.tensor_parallel == opening.tensor_parallel) {
      EXPECT_EQ(*rows, *expected);
    } else {
      ExpectNear(model, *expected, *rows);
    }
    // And what it was saved as is saved again.
    ASSERT_TRUE(second.context->SaveSession("another").ok());
    const Result<Inspection> inspection = Inspect(opening.session);
    EXPECT_TRUE(inspection.ok()) << inspection.status().message();
  }

  const TestDir dir_;
  int copies_ = 0;
};

TEST_F(SharedSession, GoesOnWithAnyNumberOfRanks) {
  for (const int saved : {1, 2, 4}) {
    for (const int opened : {1, 2, 4}) {
      SCOPED_TRACE(std::to_string(saved) + " to " + std::to_string(opened));
      ExpectGoesOn(kDemo, InSegments(saved), InSegments(opened));
    }
  }
}

// Of four heads: a rank of three has places that hold zeros in their stead, a rank of five has no
// head. What the session does not hold is there again.
TEST_F(SharedSession, GoesOnWhereRanksLackHeads) {
  for (const auto& [saved, opened] : {std::pair(3, 3), {3, 1}, {1, 3}, {2, 5}, {5, 3}}) {
    SCOPED_TRACE(std::to_string(saved) + " to " + std::to_string(opened));
    ExpectGoesOn(kDemo, InSegments(saved), InSegments(opened));
  }
  for (const char* encoding : {"int8", "int4", "fp8", "lossless"}) {
    SCOPED_TRACE(encoding);
    EngineOptions three = InSegments(3);
    three.kv_encoding = encoding;
    three.page_slots = 64;  // kSaved is no multiple of larger ones
    ExpectGoesOn(kDemo, three, three);
  }
}

// Zeros are written to the session's file as it is opened: what it holds stays.
TEST_F(SharedSession, ZerosThatCannotBeWrittenAreAnError) {
  const std::vector<TokenId> tokens = Tokens(kLength, 90, 3);
  EngineOptions options = InSegments(2);
  options.session = File("s");
  {
    Opened run(options);
    ASSERT_TRUE(Score(*run.context, tokens, 0, kSaved).ok());
    ASSERT_TRUE(run.context->SaveSession().ok());
  }
  const std::string session = options.session;
  options = InSegments(3);
  options.session = session;
  FaultEnv env(Env::Default());
  env.SetKinds(kFaultWrite);
  int64_t faults = 1;
  for (int64_t n = 1; faults > 0 && !HasFailure(); ++n) {
    env.FailAt(n);
    const Opened run(options, kDemo, &env);
    faults = env.faults();
    EXPECT_EQ(run.status.ok(), faults == 0) << run.status.message();
    if (faults > 0) {
      EXPECT_THAT(run.status.message(), HasSubstr(options.session));
      EXPECT_EQ(run.status.message().find('\n'), std::string::npos);
    }
    EXPECT_TRUE(n > 1 || faults > 0);
  }
  options = InSegments(2);
  options.session = session;
  Opened again(options);
  ASSERT_TRUE(again.status.ok()) << again.status.message();
  EXPECT_EQ(again.context->SessionTokens(), kSaved);
}

TEST_F(SharedSession, GoesOnWithOtherModels) {
  for (const char* model : {"llama31", "qwen2-sliding", "mistral-window"}) {
    for (const auto& [saved, opened] : {std::pair(1, 2), {2, 2}, {2, 1}}) {
      SCOPED_TRACE(model + std::to_string(saved) + " to " + std::to_string(opened));
      EngineOptions saving = InSegments(saved), opening = InSegments(opened);
      saving.page_slots = opening.page_slots = 16;
      saving.segment = opening.segment = 64;
      ExpectGoesOn(kGolden + model, saving, opening);
    }
  }
}

// The session is the disk tier of all ranks.
TEST_F(SharedSession, PagesMayLieOnDisk) {
  for (const char* encoding : {"none", "int8", "lossless"}) {
    for (const int opened : {1, 2, 3}) {
      SCOPED_TRACE(std::string(encoding) + " to " + std::to_string(opened));
      EngineOptions saving = InSegments(2), opening = InSegments(opened);
      saving.kv_encoding = opening.kv_encoding = encoding;
      saving.page_slots = opening.page_slots = 64;  // kSaved is no multiple of larger ones
      opening.placement = "disk-only";
      ExpectGoesOn(kDemo, saving, opening);
    }
  }
  // A file that is cut for one rank.
  EngineOptions one = InSegments(1), four = InSegments(4);
  one.kv_encoding = four.kv_encoding = "int4";
  one.placement = "disk-only";
  ExpectGoesOn(kDemo, one, four);
}

// Each rank's pages stay on disk, are summarised there, and are read by its heads' lists.
TEST_F(SharedSession, PagesOnDiskAreListed) {
  EngineOptions options = InSegments(3);
  options.selector = "quest";
  options.sparse_keys = 64;
  options.sparse_sink = 16;
  options.sparse_recent = 64;
  options.sparse_from = 0;
  const Request request = RequestOf(Quoting(*Open(kDemo), kLength, 5), 30);
  const Request part = RequestOf({request.prompt.begin(), request.prompt.begin() + 300}, 1);
  Opened whole(options);
  ASSERT_TRUE(GenerateOne(*whole.context, part).ok());
  const Generation expected = *GenerateOne(*whole.context, request);
  EXPECT_EQ(expected.reused_tokens, 256);
  options.session = File("s");
  options.placement = "disk-only";
  for (const bool made : {false, true}) {
    Opened run(options);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    const Result<Generation> generation = GenerateOne(*run.context, made ? request : part);
    ASSERT_TRUE(generation.ok()) << generation.status().message();
    ASSERT_TRUE(run.context->SaveSession().ok());
    if (!made) continue;
    EXPECT_EQ(generation->reused_tokens, 256);
    EXPECT_EQ(generation->tokens, expected.tokens);
    EXPECT_GT(run.context->timings().disk_pages.read, 0);
  }
}

// What a killed process had saved goes on with another number of ranks.
TEST_F(SharedSession, IsSavedWhileAPromptIsRead) {
  const Request request = RequestOf(Quoting(*Open(kDemo), kLength, 8), 24);
  EngineOptions options = InSegments(4);
  options.chunk = 128;
  options.session = File("s");
  std::vector<std::string> killed;
  {
    Opened run(options);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    Hooks hooks;
    bool alone = true;
    hooks.on_text = [&](int, std::string_view) {
      alone = run.context->SaveSession().ok();
      return true;
    };
    hooks.on_progress = [&](const Progress& progress) {
      for (int times = 0; times < 2; ++times) {
        const Status saved = run.context->SaveSession("on the way");
        EXPECT_TRUE(saved.ok()) << saved.message();
      }
      const bool read = progress.phase == Progress::Phase::kPrefill && progress.done == 256;
      const bool made = progress.phase == Progress::Phase::kDecode && progress.done == 12;
      if (read || made) killed.push_back(CopyOf(options.session));
    };
    Result<std::vector<Generation>> made = run.context->Generate({&request, 1}, hooks);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_FALSE(alone) << "ranks are not at one point there";
    EXPECT_EQ(made->front().tokens, Fresh(kDemo, InSegments(4), request).tokens);
    ASSERT_TRUE(run.context->SaveSession().ok());
  }
  ASSERT_EQ(killed.size(), 2u);
  for (size_t i = 0; i < killed.size(); ++i) {
    for (const int ranks : {1, 2}) {
      EngineOptions later = InSegments(ranks);
      later.session = CopyOf(killed[i]);
      Opened run(later);
      ASSERT_TRUE(run.status.ok()) << run.status.message();
      EXPECT_EQ(run.context->SessionTokens(), i == 0 ? 256 : 512);
      EXPECT_EQ(run.context->SessionNote(), "on the way");
      const Result<Generation> again = GenerateOne(*run.context, request);
      ASSERT_TRUE(again.ok()) << again.status().message();
      EXPECT_EQ(again->tokens, Fresh(kDemo, InSegments(1), request).tokens);
    }
  }
}

// A call to the system that fails as ranks save, whichever rank's it is: what was saved stays, the
// context goes on, and the next save works.
TEST_F(SharedSession, AFailedSaveLosesNothing) {
  const std::string model = kGolden + "llama31";
  EngineOptions options = InSegments(2);
  options.page_slots = 16;
  options.segment = 64;
  const std::vector<TokenId> tokens = Tokens(kLength, 90, 8);
  options.session = File("saved");
  {
    Opened run(options, model);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    ASSERT_TRUE(Score(*run.context, tokens, 0, 128).ok());
    ASSERT_TRUE(run.context->SaveSession().ok());
  }
  const std::string saved = options.session;
  int64_t faults = 1;
  for (int64_t n = 1; faults > 0 && !HasFailure(); ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    options.session = CopyOf(saved);
    FaultEnv env(Env::Default());
    Opened run(options, model, &env);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    ASSERT_TRUE(Score(*run.context, tokens, 128, 400).ok());
    env.SetKinds(kFaultWrite | kFaultSync | kFaultTruncate);
    env.FailAt(n);
    const Status failed = run.context->SaveSession();
    faults = env.faults();
    if (faults == 0) {
      EXPECT_TRUE(failed.ok()) << failed.message();
      EXPECT_GT(n, 4);
    }
    env.FailAt(0);
    const std::string killed = CopyOf(options.session);
    ASSERT_TRUE(Score(*run.context, tokens, 400, -1).ok());
    // After one failure to sync a file it is not committed to again.
    const Status again = run.context->SaveSession();
    EXPECT_TRUE(again.ok() || !failed.ok()) << again.message();
    for (const int ranks : {1, 2}) {
      EngineOptions later = InSegments(ranks);
      later.page_slots = 16;
      later.segment = 64;
      later.session = CopyOf(killed);
      Opened other(later, model);
      ASSERT_TRUE(other.status.ok()) << other.status.message();
      const int64_t held = other.context->SessionTokens();
      EXPECT_TRUE(held == 400 || (held == 128 && !failed.ok())) << held;
      EXPECT_TRUE(Score(*other.context, tokens, held, -1).ok());
    }
  }
}

TEST_F(SharedSession, ADamagedPageIsToldOf) {
  EngineOptions options = InSegments(2);
  options.session = File("s");
  const std::vector<TokenId> tokens = Tokens(kLength, 90, 9);
  {
    Opened run(options);
    ASSERT_TRUE(Score(*run.context, tokens, 0, kSaved).ok());
    ASSERT_TRUE(run.context->SaveSession().ok());
  }
  std::ifstream in(options.session, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  bytes[8192] = static_cast<char>(bytes[8192] ^ 1);  // of the first slab
  std::ofstream(options.session, std::ios::binary) << bytes;
  for (const int ranks : {1, 4}) {
    options = InSegments(ranks);
    options.session = File("s");
    Opened run(options);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    const std::string said = Score(*run.context, tokens, kSaved, -1).status().message();
    EXPECT_THAT(said, HasSubstr(options.session + ": page 0 of slot 0 is not what was written"));
    EXPECT_EQ(said.find('\n'), std::string::npos);
    std::ifstream after(options.session, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(after), {}), bytes);
  }
}

TEST_F(SharedSession, WhatCannotBeSharedIsRefusedByName) {
  EngineOptions options = InSegments(2);
  options.session = File("s");
  options.head_group = 2;
  EXPECT_THAT(Engine::Open(kDemo, options).status().message(),
              HasSubstr("head_group 2: ranks that share a session keep each head by itself"));
  options.head_group = 0;
  // Another model's, and one that another process has open.
  {
    Opened run(options);
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    ASSERT_TRUE(Score(*run.context, Tokens(200, 90, 1), 0, -1).ok());
    ASSERT_TRUE(run.context->SaveSession().ok());
    EXPECT_THAT(Opened(options).status.message(), HasSubstr("in use"));
  }
  EXPECT_THAT(Opened(options, kGolden + "llama31").status.message(), HasSubstr("was made with"));
  const Result<ModelPlan> planned = PlanModel(kDemo, options, {{1000}}, Explain::kNo);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->plan.head_group, 1);
}

}  // namespace
}  // namespace headway
