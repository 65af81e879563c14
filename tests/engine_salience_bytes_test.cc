// What the host's cores read of salient tokens, as their lane counts it: the keys and values of
// those that a plain reading lists, and next to nothing beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/grid.h"
#include "support/salience_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 1500;
constexpr int64_t kSteps = 20;

HarnessConfig Config() {
  HarnessConfig config;
  config.chunk = 250;
  config.salience.beta = 1e-30;
  config.salience.window = 24;
  config.salience.most = 0.6;
  config.salience.queries = 6;
  config.salient_on_host = true;
  return config;
}

class EngineSalienceBytes : public ::testing::TestWithParam<double> {};

TEST_P(EngineSalienceBytes, AreThoseOfTheTokensThatHeadsKeep) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "keys of a device come down its bus";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const ModelShape& shape = model->shape();
  HarnessConfig config = Config();
  config.salient_by_cores = GetParam();
  const std::vector<TokenId> tokens = RandomTokens(kPrompt + kSteps, 96, 7);
  SalienceDecode decode(*model, config, tokens);
  ASSERT_TRUE(decode.ok());
  decode.Prompt(kPrompt);
  ASSERT_FALSE(HasFailure());
  const Trace& trace = decode.harness().trace();
  EXPECT_EQ(trace.totals(Lane::kHostCompute).bytes, 0);  // prompts are read on the device
  int64_t keys = 0;                                      // that cores are to read
  decode.after_step = [&](const Lists& lists) {
    for (const std::vector<std::vector<int64_t>>& layer : lists) {
      for (const std::vector<int64_t>& head : layer) {
        int64_t salient = 0;
        while (head[static_cast<size_t>(salient)] < decode.before()) ++salient;
        EXPECT_GT(salient, kPrompt / 2);
        // Of a part the cores have whole pages.
        const auto slots = static_cast<double>(config.page_slots);
        keys += GetParam() == 1.0
                    ? salient
                    : static_cast<int64_t>(std::floor(static_cast<double>(salient) / slots) *
                                           GetParam()) *
                          config.page_slots;
      }
    }
  };
  for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) decode.Step();
  decode.harness().store().Drain();
  const Trace::LaneTotals cores = trace.totals(Lane::kHostCompute);
  // Each query head multiplies and adds twice for each number of a key: of as many keys and no
  // more.
  EXPECT_EQ(cores.flops, keys * shape.group() * 4 * shape.head_dim);
  const auto bytes = static_cast<double>(keys * 2 * shape.head_dim * int64_t{sizeof(float)});
  EXPECT_NEAR(static_cast<double>(cores.bytes), bytes, 0.01 * bytes);
  EXPECT_EQ(trace.totals(Lane::kHostToDevice).bytes, 0);  // the cache is resident
}

INSTANTIATE_TEST_SUITE_P(Shares, EngineSalienceBytes, ::testing::Values(1.0, 0.5),
                         [](const auto& share) { return share.param == 1.0 ? "All" : "Half"; });

}  // namespace
}  // namespace headway::testing
