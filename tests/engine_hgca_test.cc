// HGCA by the public API.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"
#include "support/hgca.h"

namespace headway {
namespace {

// A beta of 0, and a window that holds everything, leave nothing out.
TEST(EngineHgca, WhoLeavesNothingOutIsExactBitForBit) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 900, 3);
  const double exact = Behind({}, tokens, 860);
  EXPECT_EQ(Behind(Hgca(0.0, 64), tokens, 860), exact);
  EXPECT_EQ(Behind(Hgca(1.0, 900), tokens, 860), exact);
  EXPECT_EQ(Behind(Reselecting(1, 900), tokens, 860), exact);
  EXPECT_NE(Behind(Hgca(1.0, 64), tokens, 860), exact);
  EXPECT_NE(Behind(Reselecting(1, 64), tokens, 860), exact);
  // All tokens are salient: the same but for the order of additions.
  for (EngineOptions all : {Hgca(1e-30, 64), Reselecting(50, 64)}) {
    all.hgca_most = 1.0;
    for (const char* on : {"host", "device"}) {
      all.hgca_on = on;
      EXPECT_NEAR(Behind(all, tokens, 860), exact, 1e-3 * std::abs(exact)) << on;
    }
  }
}

// The text repeats itself after 150 tokens: what is attended to lies before the window. Of tokens
// that nobody has needed for long few are salient, so some of what exact attention finds is lost.
TEST(EngineHgca, SalientTokensKnowHowTheTextGoesOn) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1140, 3);
  const double exact = Behind({}, tokens, 1100);
  const double window = Behind(Hgca(1e6, 96), tokens, 1100);
  for (const char* on : {"host", "device"}) {
    EngineOptions options = Hgca(1.0, 96);
    options.hgca_on = on;
    options.hgca_queries = 96;
    const double hgca = Behind(options, tokens, 1100);
    EXPECT_LT(std::abs(hgca - exact), 0.8 * (window - exact))
        << exact << " " << window << " " << hgca;
  }
}

// Heads that choose by the query at hand lose less with a tenth of the tokens.
TEST(EngineHgca, TokensThatAreChosenAnewKnowItBetter) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1140, 3);
  const double exact = Behind({}, tokens, 1100);
  const double window = Behind(Hgca(1e6, 96), tokens, 1100);
  for (const char* on : {"host", "device"}) {
    for (const int64_t steps : {1, 4}) {
      EngineOptions options = Reselecting(steps, 96);
      options.hgca_on = on;
      options.hgca_most = 0.1;
      const double anew = Behind(options, tokens, 1100);
      EXPECT_LT(std::abs(anew - exact), 0.4 * (window - exact))
          << exact << " " << window << " " << anew;
    }
  }
}

// What nobody finds salient is read where a head would leave too much of its attention out.
TEST(EngineHgca, BoundsFindWhatMassesDoNot) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1140, 3);
  const double exact = Behind({}, tokens, 1100);
  EngineOptions options = Hgca(1.0, 96);
  options.hgca_on = "host";
  options.hgca_most = 0.1;
  const double left_out = Behind(options, tokens, 1100);
  options.hgca_epsilon = 1.0 - 1e-15;
  EXPECT_EQ(Behind(options, tokens, 1100), left_out);
  options.hgca_epsilon = 1e-12;
  EXPECT_NEAR(Behind(options, tokens, 1100), exact, 1e-3 * std::abs(exact));
  options.hgca_epsilon = 0.2;
  const double bounded = Behind(options, tokens, 1100);
  EXPECT_LT(std::abs(bounded - exact), 0.2 * (left_out - exact))
      << exact << " " << left_out << " " << bounded;
}

// Timings say how many heads read all, and a batch's heads are as many as all of its sequences'.
TEST(EngineHgca, BoundsAreCounted) {
  EngineOptions options = Hgca(1.0, 128);
  const auto counted = [&](double epsilon) {
    options.hgca_epsilon = epsilon;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{700}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    EXPECT_EQ((*context)->plan().salience->epsilon, epsilon);
    EXPECT_EQ((*context)->plan().salience->on_host, epsilon > 0.0);
    EXPECT_TRUE(GenerateOne(**context, RequestOf(Quoting(*engine, 600, 3), 9)).ok());
    return (*context)->timings().bounded;
  };
  EXPECT_EQ(counted(0.0).heads, 0);
  const ModelInfo info = Open(kDemo)->info();
  const BoundedHeads some = counted(0.3), all = counted(1e-12);
  EXPECT_EQ(some.heads, int64_t{8} * info.layers * info.kv_heads);
  EXPECT_EQ(all.heads, some.heads);
  EXPECT_EQ(all.read_all, all.heads);
  EXPECT_GT(some.read_all, 0);
  EXPECT_LT(some.read_all, some.heads);
}

// What is chosen is gathered from wherever the cache lies.
TEST(EngineHgca, WhereTheCacheLiesChangesNoBit) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1500, 3);
  const EngineOptions resident = Reselecting(2, 96);
  EngineOptions away = resident;
  away.placement = "host-only";
  EngineOptions some = resident;
  some.kv_memory = int64_t{16} << 20;
  some.host_memory = int64_t{1} << 30;
  const double expected = Behind(resident, tokens, 1460);
  EXPECT_EQ(Behind(away, tokens, 1460), expected);
  EXPECT_EQ(Behind(some, tokens, 1460), expected);
}

TEST(EngineHgca, SequencesOfABatchAreAsEachAlone) {
  EngineOptions all[] = {Hgca(1.0, 128), Hgca(1.0, 128), Reselecting(3, 128), Reselecting(3, 128),
                         Hgca(1.0, 128)};
  all[1].hgca_on = all[3].hgca_on = "host";
  all[4].hgca_epsilon = 0.3;
  for (EngineOptions& options : all) {
    const std::string& on = options.hgca_on;
    options.chunk = 200;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    std::vector<Request> requests;
    for (const int64_t length : {700, 230, 411}) {
      requests.push_back(RequestOf(Quoting(*engine, length, static_cast<size_t>(length) % 50), 70));
    }
    std::vector<std::vector<TokenId>> alone(6);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<std::vector<TokenId>> turns = Turns(*engine, {requests[i]}, {1200}, 2);
      alone[i] = turns[0];
      alone[3 + i] = turns[1];
    }
    EXPECT_EQ(Turns(*engine, requests, {1200, 1200, 1200}, 2), alone) << on;
    const std::vector<std::vector<TokenId>> fewer = Turns(*engine, requests, {1200, 1200}, 1);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(fewer[i], alone[i]) << i;
  }
}

TEST(EngineHgca, SessionsGoOn) {
  for (EngineOptions options : {Hgca(1.0, 96), Reselecting(1, 96)}) {
    const TestDir dir;
    options.session = dir.File("e.session");
    GoOnWithASession(options, 750);
  }
}

TEST(EngineHgca, WhatDoesNotFitInMemoryIsRefused) {
  for (EngineOptions options : {Hgca(1.0, 96), Reselecting(1, 96)}) {
    options.kv_memory = int64_t{60} << 20;
    options.host_memory = int64_t{10} << 20;
    options.disk_memory = int64_t{1} << 30;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    const Result<std::unique_ptr<Context>> context = engine->NewContext({{16000}});
    ASSERT_FALSE(context.ok());
    EXPECT_EQ(context.status().code(), StatusCode::kUnsupported);
    const std::string asked = options.hgca_reselect > 0 ? "hgca_reselect:" : "hgca:";
    EXPECT_NE(context.status().message().find(asked), std::string::npos)
        << context.status().message();
  }
}

}  // namespace
}  // namespace headway
