// The path `host`: in decode, cores of the host attend to a share of what lies in its memory while
// the rest streams. Compared with everything resident, over shares, lengths, windows and patterns.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "headway/engine.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

HarnessConfig HostOnly(double share) {
  HarnessConfig config;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.group_heads = 2;
  config.host_share = share;
  return config;
}

HarnessConfig Resident() {
  HarnessConfig config;
  config.device_slabs = 1 << 20;
  return config;
}

class HostAttentionTest : public ::testing::TestWithParam<DType> {};

TEST_P(HostAttentionTest, WithoutAShareNoBitChanges) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 1);
  const LogitRows expected = RunTokens(*model, HostOnly(0.0), tokens, 20);
  HarnessConfig config = HostOnly(0.0);
  config.host = true;
  ExpectSameBits(expected, RunTokens(*model, config, tokens, 20), "share 0");
}

TEST_P(HostAttentionTest, AShareGivesTheSameBitsEveryTime) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 2);
  HarnessConfig config = HostOnly(0.6);
  const LogitRows expected = RunTokens(*model, config, tokens, 20);
  for (int threads : {1, 3}) {
    config.threads = threads;
    ExpectSameBits(expected, RunTokens(*model, config, tokens, 20), "once more");
  }
}

// Any share, placement and cut agrees with everything resident.
TEST_P(HostAttentionTest, AgreesWithAllResident) {
  Random random(3);
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  for (int round = 0; round < 24; ++round) {
    const std::vector<TokenId> tokens = RandomTokens(20 + random.Below(180), 96, 100 + round);
    HarnessConfig resident = Resident();
    resident.segment_pages = 1 + random.Below(5);
    HarnessConfig config = resident;
    config.host_share = round % 6 == 0 ? 1.0 : static_cast<double>(random.Uniform());
    config.placement = static_cast<kv::PlacementKind>(random.Below(3));  // not disk-only
    config.device_slabs = random.Below(6);
    config.host_slabs = random.Below(2) == 0 ? 8 : 1 << 20;
    config.group_heads = 1 + static_cast<int>(random.Below(3));
    config.staging_slabs = 1 + static_cast<int>(random.Below(3));
    const std::string what = "round " + std::to_string(round) + " share " +
                             std::to_string(config.host_share) + " tokens " +
                             std::to_string(tokens.size());
    ExpectNear(*model, RunTokens(*model, resident, tokens, 15),
               RunTokens(*model, config, tokens, 15), what);
    if (HasFatalFailure()) return;
  }
}

TEST_P(HostAttentionTest, AgreesWithWindowsAndStreamingHeads) {
  ModelConfig tiny = TinyConfig(GetParam());
  for (const bool windows : {false, true}) {
    if (windows) tiny.windows = {40, 0, 17};
    const std::unique_ptr<Model> model = Tiny(tiny);
    const std::vector<TokenId> tokens = RandomTokens(170, 96, 5);
    for (const bool pattern : {false, true}) {
      HarnessConfig resident = Resident(), config = HostOnly(0.5);
      if (pattern) {
        resident.pattern = {
            4, 20, {{true, false, false}, {false, true, true}, {false, false, true}}};
        config.pattern = resident.pattern;
      }
      for (const double share : {0.3, 1.0}) {
        config.host_share = share;
        ExpectNear(*model, RunTokens(*model, resident, tokens, 40),
                   RunTokens(*model, config, tokens, 40),
                   "windows " + std::to_string(windows) + " pattern " + std::to_string(pattern));
      }
    }
  }
}

TEST_P(HostAttentionTest, ABatchAgreesWithAllResident) {
  HarnessConfig lru = HostOnly(0.7);
  lru.placement = kv::PlacementKind::kLru;
  lru.device_slabs = 7;
  ExpectBatchesNear(*Tiny(TinyConfig(GetParam())), {Resident(), HostOnly(0.4), HostOnly(1.0), lru});
}

INSTANTIATE_TEST_SUITE_P(DTypes, HostAttentionTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// Cores that are suddenly late: the share falls, the answer stays.
TEST(HostAttention, AHostThatBecomesSlowGetsLess) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const std::vector<TokenId> tokens = RandomTokens(190, 96, 7);
  const LogitRows expected = RunTokens(*model, Resident(), tokens, 60);
  Delays delays(1);
  HarnessConfig config = HostOnly(0.9);
  config.adapt = true;
  config.delays = &delays;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 190);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 190);
  const kv::SequenceId id = *(*h)->NewSequence();
  Result<LogitRows> rows = (*h)->Append(id, std::span(tokens).first(130), rope);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  delays.Set(Lane::kHostCompute, /*every=*/1, /*least_us=*/3000, /*most_us=*/3000);
  for (size_t i = 130; i < tokens.size(); ++i) {
    Result<LogitRows> one = (*h)->Append(id, std::span(tokens).subspan(i, 1), rope);
    ASSERT_TRUE(one.ok()) << one.status().message();
    rows->push_back(std::move((*one)[0]));
  }
  ExpectNear(*model, expected, *rows, "a late host");
  EXPECT_LT((*h)->host_share(), 0.2);
  EXPECT_GT((*h)->host_share(), 0.0);
}

TEST(HostAttention, AnErrorOfTheHostEndsTheStep) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  HarnessConfig config = HostOnly(0.5);
  Delays delays(1);
  config.delays = &delays;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 100);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 100);
  const kv::SequenceId id = *(*h)->NewSequence();
  const std::vector<TokenId> tokens = RandomTokens(70, 96, 8);
  ASSERT_TRUE((*h)->Append(id, std::span(tokens).first(65), rope).ok());
  ASSERT_TRUE((*h)->Append(id, std::span(tokens).subspan(65, 1), rope).ok());
  delays.Break(Lane::kHostCompute);
  const Status status = (*h)->Append(id, std::span(tokens).subspan(66, 1), rope).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("the cpu lane is broken"), std::string::npos) << status.message();
  EXPECT_NE((*h)->Append(id, std::span(tokens).subspan(66, 1), rope)
                .status()
                .message()
                .find("an earlier error has ended this context"),
            std::string::npos);
}

// Through the public API: a budget that leaves pages to the host, with a number, and with auto.
TEST(HostAttention, OptionsReachTheSteps) {
  EngineOptions options;
  options.device = TestDevice();
  options.placement = "host-only";
  options.segment = 128;
  options.recompute_share = 0.0;  // else nothing may be left to the host
  options.threads = 2;
  // Beside a GPU auto leaves to the host what is large enough that a layer's hand-over pays.
  const bool gpu = TestDevice() != "cpu";
  const int64_t length = gpu ? 16000 : 800;
  if (gpu) options.host_memory = 512 << 20;
  const std::string folder = HEADWAY_SOURCE_DIR "/models/demo";
  const auto run = [&](const EngineOptions& with, double* share) {
    Result<std::unique_ptr<Engine>> engine = Engine::Open(folder, with);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{length}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    Request request;
    request.prompt = RandomTokens(length - 100, (*engine)->info().vocab, 9);
    request.max_tokens = 24;
    request.ignore_eos = true;
    Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, {});
    EXPECT_TRUE(made.ok()) << made.status().message();
    *share = (*context)->timings().host_share;
    for (const LaneReport& lane : (*context)->Lanes()) {
      if (lane.lane == "cpu") {
        EXPECT_EQ(lane.bytes > 0, *share > 0.0);
      }
    }
    return made->front().tokens;
  };
  double share = -1.0;
  options.host_share = 0.0;
  run(options, &share);
  EXPECT_EQ(share, 0.0);
  options.host_share = 0.5;
  const std::vector<TokenId> first = run(options, &share);
  EXPECT_EQ(share, 0.5);
  EXPECT_EQ(run(options, &share), first);
  options.host_share = kHostShareAuto;
  run(options, &share);
  if (gpu) {
    EXPECT_GT(share, 0.0);
    EXPECT_LE(share, 1.0);
  } else {
    EXPECT_EQ(share, 0.0);  // the device's cores are the host's
  }
  options.host_share = 1.5;
  EXPECT_EQ(Engine::Open(folder, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headway::testing
