// What evictors keep of the golden files' prompts, against what kvpress keeps of them
// (scripts/kvpress_oracle.py): the methods as others have written them down.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/cache_reading.h"
#include "support/golden.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class EngineKvpress : public ::testing::TestWithParam<std::string> {};

// Pages of one token: nothing is kept to fill them.
TEST_P(EngineKvpress, KeepsTheSameTokens) {
  Env& env = *Env::Default();
  const Result<Golden> golden = LoadGolden(env, GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const std::string path = golden->folder + "/../../kvpress/" + GetParam() + ".json";
  const Result<std::string> text = env.ReadFile(path, int64_t{1} << 24);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const nlohmann::json oracle = nlohmann::json::parse(*text);
  const Result<std::unique_ptr<Model>> model = Model::Load(&env, golden->folder);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto length = std::ssize(golden->prompt);
  for (const auto& [method, lists] : oracle.at("kept").items()) {
    SCOPED_TRACE(method);
    HarnessConfig config;
    config.page_slots = 1;
    config.eviction.method = *kv::EvictionOf(method);
    config.eviction.budget = oracle.at("budget");
    config.eviction.window = config.eviction.observes() ? oracle.at("window").get<int64_t>() : 1;
    config.eviction.pool = config.eviction.observes() ? 7 : 1;
    config.eviction.future = oracle.at("future");
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(**model, config, 1, length);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId sequence = *(*h)->NewSequence();
    ASSERT_TRUE((*h)->Append(sequence, golden->prompt, RopeOf(**model, length)).ok());
    const Result<kv::SequenceId> kept = (*h)->evictor().Evict(sequence);
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    const ModelShape& shape = (*model)->shape();
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const Cached all = ReadHead(**h, (*h)->store(), sequence, layer, head);
        const Cached some = ReadHead(**h, (*h)->kept_store(), *kept, layer, head);
        SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head));
        const std::vector<int64_t> ours = PositionsOf(some, all);
        const std::vector<int64_t> theirs = lists.at(layer).at(head);
        if (config.eviction.observes()) {
          EXPECT_EQ(ours, theirs);
          continue;
        }
        // The last token is kept here whatever its score, and then one of the others is not.
        ASSERT_EQ(ours.size(), theirs.size());
        EXPECT_EQ(ours.back(), length - 1);
        EXPECT_TRUE(std::includes(theirs.begin(), theirs.end(), ours.begin(), ours.end() - 1));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineKvpress,
                         ::testing::Values("llama31", "llama2", "qwen2", "qwen3"));

}  // namespace
}  // namespace headway::testing
