#include "engine/layer_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headway {
namespace {

using ::testing::ElementsAre;

ModelConfig Config(int layers) {
  ModelConfig config;
  config.shape = {.layers = layers,
                  .d_model = 64,
                  .query_heads = 4,
                  .kv_heads = 2,
                  .head_dim = 16,
                  .d_ff = 96,
                  .vocab = 70};
  for (int layer = 0; layer < layers; ++layer) config.windows.push_back(layer);
  return config;
}

std::vector<int> Counts(int layers, const std::vector<int64_t>& memory) {
  std::vector<int> counts;
  const Result<std::vector<LayerRun>> runs = CutLayers(Config(layers), memory);
  EXPECT_TRUE(runs.ok()) << runs.status().message();
  int begin = 0;
  for (const LayerRun& run : *runs) {
    const int count = run.config.shape.layers;
    EXPECT_EQ(run.config.first_layer, begin);
    EXPECT_EQ(static_cast<int>(run.config.windows.size()), count);
    EXPECT_EQ(run.config.windows.front(), begin);
    EXPECT_EQ(static_cast<int>(run.shard.kv_heads.size()), count);
    EXPECT_EQ(run.shard.embeds, begin == 0);
    const ModelShape held = ShardShape(run.config.shape, run.shard);
    EXPECT_EQ(held.kv_heads, run.config.shape.kv_heads);
    EXPECT_EQ(held.query_heads, run.config.shape.query_heads);
    EXPECT_EQ(held.d_ff, run.config.shape.d_ff);
    counts.push_back(count);
    begin += count;
  }
  EXPECT_EQ(begin, layers);
  return counts;
}

// What the plan of the first rank has chosen, and nothing where no rank selects.
TEST(SettingsOfRunTest, AreThoseOfTheFirstRanksPlan) {
  Settings settings;
  settings.blocks_by_plan = settings.levels_by_plan = true;
  Blueprint first;
  first.plan.cache.chunk = 512;
  first.plan.cache.segment_tokens = 2048;
  first.plan.cache.group_heads = 2;
  Settings own = SettingsOfRun(settings, first);
  EXPECT_EQ(own.cut.chunk, 512);
  EXPECT_EQ(own.cut.segment, 2048);
  EXPECT_EQ(own.cut.head_group, 2);
  EXPECT_TRUE(own.blocks_by_plan);
  kv::SelectionPolicy& chosen = first.layout.executor.selection;
  chosen.summary.kind = SummaryKind::kMoments;
  chosen.summary.block_slots = 32;
  chosen.breadth = 8;
  chosen.search_slots = 64;
  own = SettingsOfRun(settings, first);
  EXPECT_EQ(own.selection.summary.block_slots, 32);
  EXPECT_EQ(own.selection.breadth, 8);
  EXPECT_EQ(own.selection.search_slots, 64);
  EXPECT_FALSE(own.blocks_by_plan);
  EXPECT_FALSE(own.levels_by_plan);
}

TEST(CutLayersTest, ByMemory) {
  EXPECT_THAT(Counts(8, {1, 1}), ElementsAre(4, 4));
  EXPECT_THAT(Counts(8, {1, 1, 1}), ElementsAre(3, 3, 2));
  EXPECT_THAT(Counts(3, {1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(Counts(32, {80'000'000, 79'900'000}), ElementsAre(16, 16));
  EXPECT_THAT(Counts(32, {24, 8}), ElementsAre(24, 8));
  EXPECT_THAT(Counts(12, {10, 20, 30}), ElementsAre(2, 4, 6));
  // Each has one, however little memory it has.
  EXPECT_THAT(Counts(8, {1000, 1}), ElementsAre(7, 1));
}

TEST(CutLayersTest, RowsOfTheHeadAreShared) {
  const std::vector<int64_t> memory = {1, 1, 1};
  const Result<std::vector<LayerRun>> runs = CutLayers(Config(8), memory);
  ASSERT_TRUE(runs.ok());
  int64_t row = 0;
  for (const LayerRun& run : *runs) {
    EXPECT_EQ(run.shard.vocab.begin, row);
    row = run.shard.vocab.end;
  }
  EXPECT_EQ(row, 70);
}

TEST(TakeRunTest, NamedLayersAreShared) {
  const ModelConfig whole = Config(8);
  for (const int resident : {0, 1, 3, 5, 8}) {
    int sum = 0;
    for (const int begin : {0, 3, 6}) {
      Settings settings;
      settings.gpu_layers = resident;
      TakeRun(whole, LayersOf(whole, begin, std::min(3, 8 - begin)), &settings);
      EXPECT_GE(*settings.gpu_layers, 0);
      EXPECT_LE(*settings.gpu_layers, 3);
      sum += *settings.gpu_layers;
    }
    EXPECT_EQ(sum, resident);
  }
}

}  // namespace
}  // namespace headway
