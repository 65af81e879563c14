// HGCA with encoded caches by the public API.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"
#include "support/hgca.h"

namespace headway {
namespace {

class EngineHgcaEncoding : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions In(EngineOptions options) const {
    options.kv_encoding = GetParam();
    return options;
  }
};

// A beta of 0 and a window that holds everything are the encoded cache bit for bit; all tokens
// salient are it but for the order of additions and what a decoded number rounds to.
TEST_P(EngineHgcaEncoding, WhoLeavesNothingOutIsTheEncodedCache) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 700, 3);
  const double exact = Behind(In({}), tokens, 660);
  EXPECT_EQ(Behind(In(Hgca(0.0, 64)), tokens, 660), exact);
  EXPECT_EQ(Behind(In(Hgca(1.0, 700)), tokens, 660), exact);
  EXPECT_NE(Behind(In(Hgca(1.0, 64)), tokens, 660), exact);
  for (EngineOptions all : {Hgca(1e-30, 64), Reselecting(50, 64)}) {
    all.hgca_most = 1.0;
    for (const char* on : {"host", "device"}) {
      all.hgca_on = on;
      EXPECT_NEAR(Behind(In(all), tokens, 660), exact, 2e-3 * std::abs(exact)) << on;
    }
  }
}

TEST_P(EngineHgcaEncoding, WhereTheCacheLiesChangesNoBit) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 1100, 3);
  for (const EngineOptions& options : {Hgca(1.0, 96), Reselecting(2, 96)}) {
    const EngineOptions resident = In(options);
    EngineOptions away = resident;
    away.placement = "host-only";
    EXPECT_EQ(Behind(away, tokens, 1070), Behind(resident, tokens, 1070));
  }
}

TEST_P(EngineHgcaEncoding, SequencesOfABatchAreAsEachAlone) {
  EngineOptions all[] = {Hgca(1.0, 128), Reselecting(3, 128)};
  all[0].hgca_on = "host";
  for (const EngineOptions& each : all) {
    EngineOptions options = In(each);
    options.chunk = 200;
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    std::vector<Request> requests;
    for (const int64_t length : {500, 230}) {
      requests.push_back(RequestOf(Quoting(*engine, length, static_cast<size_t>(length) % 50), 70));
    }
    std::vector<std::vector<TokenId>> alone(4);
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<std::vector<TokenId>> turns = Turns(*engine, {requests[i]}, {1000}, 2);
      alone[i] = turns[0];
      alone[2 + i] = turns[1];
    }
    EXPECT_EQ(Turns(*engine, requests, {1000, 1000}, 2), alone);
  }
}

// Sessions hold whole encoded caches: heads choose again when one is opened, and another encoding
// does not open it.
TEST_P(EngineHgcaEncoding, SessionsGoOn) {
  for (const EngineOptions& each : {Hgca(1.0, 96), Reselecting(1, 96)}) {
    const TestDir dir;
    EngineOptions options = In(each);
    options.session = dir.File("e.session");
    GoOnWithASession(options, 680);
    options.kv_encoding = GetParam() == "int8" ? "int4" : "int8";
    const Result<std::unique_ptr<Context>> other = Open(kDemo, options)->NewContext({{1000}});
    ASSERT_FALSE(other.ok());
    EXPECT_NE(other.status().message().find("use kv_encoding " + GetParam()), std::string::npos)
        << other.status().message();
  }
}

// What a plan says is enough is.
TEST_P(EngineHgcaEncoding, TheSmallestMemoryThatAPlanNamesWillDo) {
  const Workload workload{{1500}};
  const Request request = RequestOf(Quoting(*Open(kDemo), 1400, 2), 40);
  for (EngineOptions options : {In(Hgca(1.0, 96)), In(Reselecting(2, 96))}) {
    for (const char* on : {"host", "device"}) {
      options.hgca_on = on;
      options.kv_memory = kNoLimit;
      options.page_slots = 64;
      const Result<PlanReport> plan = Open(kDemo, options)->Plan(workload);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      options.kv_memory = plan->smallest_kv_memory;
      const std::unique_ptr<Engine> engine = Open(kDemo, options);
      Result<std::unique_ptr<Context>> context = engine->NewContext(workload);
      ASSERT_TRUE(context.ok()) << context.status().message();
      const Result<Generation> one = GenerateOne(**context, request);
      EXPECT_TRUE(one.ok()) << one.status().message();
      options.kv_memory = plan->smallest_kv_memory - 4096;  // as it is rounded
      EXPECT_FALSE(Open(kDemo, options)->NewContext(workload).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineHgcaEncoding,
                         ::testing::Values("int8", "fp8", "int4", "lossless"),
                         [](const auto& param) { return param.param; });

// Without loss: the numbers of plain pages of the same size.
TEST(EngineHgcaLossless, EqualsPlainPages) {
  const std::vector<TokenId> tokens = Quoting(*Open(kDemo), 900, 3);
  for (EngineOptions options : {Hgca(1.0, 96), Reselecting(2, 96)}) {
    for (const char* on : {"host", "device"}) {
      options.hgca_on = on;
      options.page_slots = 64;
      options.kv_encoding = "none";
      const double plain = Behind(options, tokens, 830);
      options.kv_encoding = "lossless";
      EXPECT_EQ(Behind(options, tokens, 830), plain) << on;
    }
  }
}

}  // namespace
}  // namespace headway
