// The memory that sequences of kept tokens really take: slabs, of which each head has as many as
// hold its pages, and none of them is shared with another head.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "support/eviction_reading.h"
#include "support/golden_fixture.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using kv::EvictionMethod;

constexpr int64_t kBudget = 53;

HarnessConfig ConfigOf(EvictionMethod method, int page_slots) {
  HarnessConfig config;
  config.chunk = 50;
  config.page_slots = page_slots;
  config.eviction.method = method;
  config.eviction.budget = kBudget;
  config.eviction.window = 8;
  config.eviction.steepness = 4.0;
  return config;
}

kv::TierUsage Taken(const kv::Store& store) {
  kv::TierUsage sum;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    const kv::TierUsage usage = store.Usage(tier);
    sum.slabs += usage.slabs;
    sum.bytes += usage.bytes;
    sum.tokens_bytes += usage.tokens_bytes;
  }
  return sum;
}

class EngineEvictedMemory : public GoldenModel {};

// Pages begin where disks and copies like it: small ones take more than their tokens' bytes. A
// head's last page is full, so it keeps less than a page more than its budget; its last slab has
// a page at least, so it takes less than a slab more than its pages.
TEST_P(EngineEvictedMemory, IsWhatEachHeadsPagesNeed) {
  const auto length = std::ssize(golden_.prompt);
  const std::unique_ptr<Model> plain = Load();
  ASSERT_NE(plain, nullptr);
  const ModelShape& shape = model_->shape();
  const int64_t heads = int64_t{shape.layers} * shape.kv_heads;
  for (const int page_slots : {4, 16}) {
    for (const EvictionMethod method :
         {EvictionMethod::kSnap, EvictionMethod::kAdaSnap, EvictionMethod::kAdaPyramid}) {
      SCOPED_TRACE(std::string(EvictionName(method)) + " pages of " + std::to_string(page_slots));
      Reading reading(*model_, *plain, ConfigOf(method, page_slots), length);
      ASSERT_TRUE(reading.ok());
      StepHarness& h = reading.harness();
      Prompt prompt;
      const kv::SequenceId kept = reading.Evict(golden_.prompt, &prompt);
      const std::vector<int64_t> budgets = h.evictor().budgets();
      const kv::CacheFormat& format = h.kept_store().format();
      EXPECT_GT(format.segment_pages, page_slots == 4 ? 2 : 0);
      int64_t slabs = 0, pages = 0;
      for (int64_t i = 0; i < heads; ++i) {
        const Cached head = ReadHead(h, h.kept_store(), kept, static_cast<int>(i / shape.kv_heads),
                                     static_cast<int>(i % shape.kv_heads));
        const int64_t closed = head.tokens() - length % page_slots;
        EXPECT_EQ(closed % page_slots, 0);
        EXPECT_LT(head.tokens() - budgets[static_cast<size_t>(i)], page_slots);
        pages += closed / page_slots;
        slabs += CeilDiv(closed / page_slots, int64_t{format.segment_pages});
      }
      const int64_t page_bytes = format.slab_bytes() / format.segment_pages;
      const kv::TierUsage taken = Taken(h.kept_store());
      EXPECT_EQ(taken.slabs, slabs);
      EXPECT_EQ(taken.bytes, slabs * format.slab_bytes());
      EXPECT_LE(taken.bytes, pages * page_bytes + heads * (format.slab_bytes() - page_bytes));
      EXPECT_EQ(taken.tokens_bytes, pages * 2 * static_cast<int64_t>(format.page.closed_bytes()));
      EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), int64_t{0}), kBudget * heads);
      // Nothing is left of the prompt, and nothing of what was kept where that goes, too.
      EXPECT_EQ(Taken(h.store()).bytes, 0);
      h.kept_store().Drop(kept);
      EXPECT_EQ(Taken(h.kept_store()).bytes, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineEvictedMemory,
                         ::testing::Values("llama31", "llama-bf16", "qwen3"),
                         [](const auto& model) { return GoldenTestName(model.param); });

}  // namespace
}  // namespace headway::testing
