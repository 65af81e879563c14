// What decode by lists brings over the bus: the bytes that are reported are those that lines of the
// page cache were given, and those of the blocks that no line held before, by an account of the
// lists that does not trust the kernels' counts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kv/tiers/page_cache.h"
#include "support/grid.h"
#include "support/plain_lines.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 250, kSteps = 40;
constexpr int64_t kForFew = int64_t{20} << 10;   // bytes of lines that hold few blocks
constexpr int64_t kForAll = int64_t{512} << 10;  // or every block

class PageBytes : public ::testing::TestWithParam<Encoding> {};

// Decodes behind a prompt, and says what the lines of a page cache held meanwhile.
struct Decoded {
  PlainLines::Seen seen;
  kv::PageCache::Reads reads;
};
Decoded Decode(Model& model, HarnessConfig config) {
  Decoded decoded;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<PlainLines>(std::move(kernels), TestDevice() == "cpu", &decoded.seen);
  };
  const RopeFrequencies rope = RopeOf(model, kPrompt + kSteps);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 1, kPrompt + kSteps);
  EXPECT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  const std::vector<TokenId> tokens = RandomTokens(kPrompt + kSteps, 96, 41);
  EXPECT_TRUE((*h)->Append(sequence, std::span(tokens).first(kPrompt), rope).ok());
  for (size_t i = kPrompt; i < tokens.size(); ++i) {
    EXPECT_TRUE((*h)->Append(sequence, std::span(tokens).subspan(i, 1), rope).ok());
  }
  decoded.reads = (*h)->store().PageCacheReads();
  return decoded;
}

TEST_P(PageBytes, OverTheBusAreThoseOfTheBlocksThatNoLineHeld) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  HarnessConfig config = HarnessConfig::Default();
  config.encoding = GetParam();
  config.selection = PolicyOf(48);
  for (const int group_heads : {1, 2}) {
    for (const int64_t device_slabs : {0, 8}) {
      for (const int64_t bytes : {kForFew, int64_t{60} << 10, kForAll}) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes, " + std::to_string(device_slabs) +
                     " slabs on the device, groups of " + std::to_string(group_heads));
        config.group_heads = group_heads;
        config.placement =
            device_slabs == 0 ? kv::PlacementKind::kHostOnly : kv::PlacementKind::kRecent;
        config.device_slabs = device_slabs;
        config.page_cache_bytes = bytes;
        const auto [seen, reads] = Decode(*model, config);
        const int64_t found = reads.decode[BlockCache::kFound];
        const int64_t brought = reads.decode[BlockCache::kBrought];
        const int64_t passed = reads.decode[BlockCache::kPassed];
        EXPECT_EQ(reads.tokens, kSteps);
        EXPECT_GT(seen.listed, kSteps);
        EXPECT_GT(seen.missed, 0);
        EXPECT_EQ(seen.other, 0);
        EXPECT_EQ(found + brought + passed, seen.listed);
        const int64_t moved = (seen.moved_lines + passed) * seen.line_bytes;
        EXPECT_NEAR(static_cast<double>(reads.BytesOf(reads.decode)), static_cast<double>(moved),
                    0.01 * static_cast<double>(moved));
        const auto missed = static_cast<double>(seen.missed * seen.line_bytes);
        if (bytes == kForAll) {
          EXPECT_NEAR(static_cast<double>(moved), missed, 0.01 * missed);
        } else {
          // A line that was there may give way before its block is asked for.
          EXPECT_GE(static_cast<double>(moved), missed);
        }
        // Those of earlier steps do: more blocks come than there are lines.
        if (bytes == kForFew) {
          EXPECT_GT(brought, kv::PageCacheSets(seen.line_bytes, bytes) * BlockCache::kWays);
        }
      }
    }
  }
}

TEST_P(PageBytes, BlocksOnTheDeviceTakeNoLines) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  HarnessConfig config = HarnessConfig::Default();
  config.encoding = GetParam();
  config.selection = PolicyOf(48);
  config.page_cache_bytes = kForAll;
  const auto [seen, reads] = Decode(*model, config);
  EXPECT_EQ(seen.listed, 0);
  EXPECT_EQ(seen.moved_lines, 0);
  EXPECT_EQ(reads.BytesOf(reads.decode), 0);
}

// Of each sequence of a step once, whichever layer is the first that chooses.
TEST(CachedTokens, AreThoseOfAllSequencesOfAStep) {
  ModelConfig tiny = TinyConfig(DType::kBF16);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(48);
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = int64_t{60} << 10;
  for (const std::vector<int64_t>& windows : {tiny.windows, {40, 0, 0}}) {
    SCOPED_TRACE("a first window of " + std::to_string(windows[0]));
    tiny.windows = windows;
    const std::unique_ptr<Model> model = Tiny(tiny);
    const RopeFrequencies rope = RopeOf(*model, kPrompt + kSteps);
    Result<std::unique_ptr<StepHarness>> h =
        StepHarness::Create(*model, config, 2, kPrompt + kSteps);
    ASSERT_TRUE(h.ok()) << h.status().message();
    std::vector<kv::SequenceId> sequences;
    const std::vector<TokenId> tokens = RandomTokens(kPrompt, 96, 42);
    for (int i = 0; i < 2; ++i) {
      sequences.push_back(*(*h)->NewSequence());
      ASSERT_TRUE((*h)->Append(sequences.back(), tokens, rope).ok());
    }
    for (size_t step = 0; step < kSteps; ++step) {
      const StepInput inputs[] = {
          {sequences[0], std::span(tokens).subspan(step, 1), &rope, LogitsMode::kAll},
          {sequences[1], std::span(tokens).subspan(step, 1), &rope, LogitsMode::kAll}};
      ASSERT_TRUE((*h)->Step(inputs).ok());
    }
    EXPECT_EQ((*h)->store().PageCacheReads().tokens, 2 * kSteps);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, PageBytes,
                         ::testing::Values(Encoding::kNone, Encoding::kInt8, Encoding::kFp8E4M3,
                                           Encoding::kInt4),
                         [](const auto& instance) {
                           return std::string(EncodingName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
