// What runs find in a page cache is kept for later plans, and changes none of their tokens. Without
// a bus between there is no such cache, and nothing is kept.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/test_dir.h"
#include "engine/found_shares.h"
#include "support/api.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 1500, kTokens = 80;

class KeptShares : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);
    options_.device = TestDevice();
    options_.selector = "pages";
    options_.sparse_keys = 128;
    options_.sparse_sink = 64;
    options_.sparse_recent = 128;
    options_.sparse_from = 0;
    options_.placement = "host-only";
  }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  bool HasBus() const { return options_.device != "cpu"; }
  std::vector<TokenId> Run() {
    const std::unique_ptr<Engine> engine = Open(kDemo, options_);
    return Fresh(kDemo, options_, RequestOf(Quoting(*engine, kPrompt, 100), kTokens)).tokens;
  }
  // Of earlier runs, that a plan of the same stands on.
  int64_t Known() const {
    const Result<ModelPlan> made =
        PlanModel(kDemo, options_, {{kPrompt + kTokens}}, Explain::kNo, 1);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->plan.page_cache.has_value(), HasBus());
    return made->plan.page_cache.value_or(PageCacheReport{}).found_tokens;
  }

  TestDir dir_;
  EngineOptions options_;
};

TEST_F(KeptShares, ARunTellsLaterPlansAndChangesNoTokens) {
  EXPECT_EQ(Known(), 0);
  const std::vector<TokenId> tokens = Run();
  ASSERT_EQ(std::ssize(tokens), kTokens);
  // The first token comes from the prompt's logits.
  EXPECT_EQ(Known(), HasBus() ? kTokens - 1 : 0);
  EXPECT_EQ(Run(), tokens);
  EXPECT_EQ(Known(), HasBus() ? 2 * (kTokens - 1) : 0);
  EXPECT_EQ(std::filesystem::exists(FoundSharesPath()), HasBus());
}

TEST_F(KeptShares, WhatSaysNothingOfTextsIsNotKept) {
  options_.found_shares = false;
  Run();
  options_.found_shares = true;
  const std::unique_ptr<Engine> engine = Open(kDemo, options_);
  {
    Result<std::unique_ptr<Context>> context = engine->NewContext({{kPrompt + kTokens}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE((*context)->FillSynthetic(0, kPrompt - 1, 1, 0.0).ok());
    const Request request = RequestOf(std::vector<TokenId>(kPrompt, 0), kTokens);
    ASSERT_TRUE(GenerateOne(**context, request).ok());
    EXPECT_EQ((*context)->timings().page_cache.all() > 0, HasBus());
  }
  EXPECT_FALSE(std::filesystem::exists(FoundSharesPath()));
}

// Where nothing can be written a run is as it would be.
TEST_F(KeptShares, AFolderThatTakesNoFilesChangesNothing) {
  const std::vector<TokenId> tokens = Run();
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  EXPECT_EQ(Known(), 0);
  EXPECT_EQ(Run(), tokens);
}

}  // namespace
}  // namespace headway::testing
