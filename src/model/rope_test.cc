#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "model/config.h"

namespace headway {
namespace {

// Frequencies as Transformers computes them, made by scripts/make_golden.py.
TEST(RopeTest, AgreesWithTransformers) {
  Result<std::string> text = Env::Default()->ReadFile(HEADWAY_SOURCE_DIR "/tests/golden/rope.json");
  ASSERT_TRUE(text.ok()) << text.status().message();
  const nlohmann::json cases = nlohmann::json::parse(*text);
  ASSERT_GE(cases.size(), 10u);
  for (const nlohmann::json& c : cases) {
    SCOPED_TRACE(c.at("config").at("rope_parameters").dump());
    Result<ModelConfig> config = ParseModelConfig(c.at("config").dump(), "", "golden");
    ASSERT_TRUE(config.ok()) << config.status().message();
    const RopeFrequencies rope =
        ComputeRope(config->rope, config->shape.head_dim, c.at("total_length").get<int64_t>());
    const auto expected = c.at("inv_freq").get<std::vector<float>>();
    ASSERT_EQ(rope.inv_freq.size(), expected.size());
    // Each value passes a few roundings to f32, and a power whose exponent multiplies the error of
    // its base by at most 1; powers in libraries are off by one unit themselves.
    const float tolerance = 4.0f * std::numeric_limits<float>::epsilon();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(rope.inv_freq[i], expected[i], tolerance * expected[i]) << i;
    }
    EXPECT_FLOAT_EQ(rope.scale, c.at("scale").get<float>());
  }
}

TEST(RopeTest, OnlyDynamicDependsOnTheLength) {
  for (RopeType type : {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn,
                        RopeType::kLlama3}) {
    RopeConfig config;
    config.type = type;
    config.factor = 2.0;
    config.max_position = config.original_max_position = 100;
    const RopeFrequencies at_trained = ComputeRope(config, 64, 100);
    EXPECT_EQ(at_trained, ComputeRope(config, 64, 1)) << RopeTypeName(type);
    const RopeFrequencies beyond = ComputeRope(config, 64, 101);
    EXPECT_EQ(at_trained == beyond, type != RopeType::kDynamic) << RopeTypeName(type);
    EXPECT_EQ(at_trained.Hash() == beyond.Hash(), type != RopeType::kDynamic);
  }
}

TEST(RopeTest, HashCoversEverything) {
  const RopeFrequencies rope = ComputeRope(RopeConfig(), 8, 1);
  RopeFrequencies changed = rope;
  changed.scale = 1.5f;
  EXPECT_NE(rope.Hash(), changed.Hash());
  changed = rope;
  changed.extend = {4, 128};
  const uint64_t extended = changed.Hash();
  EXPECT_NE(rope.Hash(), extended);
  changed.extend.group = 5;
  EXPECT_NE(changed.Hash(), extended);
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    changed = rope;
    changed.inv_freq[i] = std::nextafter(changed.inv_freq[i], 2.0f);
    EXPECT_NE(rope.Hash(), changed.Hash()) << i;
  }
}

// Far distances go on where near ones end, one for each group.
TEST(SelfExtendTest, DistancesGoOnBehindTheWindow) {
  const SelfExtend extend = {4, 128};
  for (const int64_t q : {128, 200, 1023, 4000}) {
    EXPECT_GE(extend.FarQuery(q) - extend.FarKey(q - 128), 127);
    EXPECT_LE(extend.FarQuery(q) - extend.FarKey(q - 128), 129);
    EXPECT_EQ(extend.FarKey(q + 4) - extend.FarKey(q), 1);
    EXPECT_EQ(extend.FarQuery(q + 4) - extend.FarQuery(q), 1);
  }
  const SelfExtend exact = {1, 128};
  EXPECT_EQ(exact.FarKey(77), 77);
  EXPECT_EQ(exact.FarQuery(377), 377);
}

// Values at the ends of what the config reader lets through.
TEST(RopeTest, StaysFiniteAtExtremes) {
  for (RopeType type : {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn,
                        RopeType::kLlama3}) {
    for (double theta : {std::nextafter(1.0, 2.0), 1e15}) {
      for (double factor : {1e-6, 1.0, 1e6}) {
        for (int64_t original : {int64_t{1}, int64_t{1} << 30}) {
          RopeConfig config;
          config.type = type;
          config.theta = theta;
          config.factor = factor;
          config.max_position = config.original_max_position = original;
          for (int head_dim : {4, 128}) {
            const RopeFrequencies rope = ComputeRope(config, head_dim, int64_t{1} << 30);
            for (float frequency : rope.inv_freq) {
              EXPECT_TRUE(std::isfinite(frequency) && frequency >= 0.0f);
            }
            EXPECT_TRUE(std::isfinite(rope.scale));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway
