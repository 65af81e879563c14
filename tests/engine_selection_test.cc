// The path `selection`: keys that are all listed are attended to exactly; where pages lie never
// changes a bit; short contexts are read whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

// Lists all blocks, whatever they score.
class ListsAll : public ForwardingKernels {
 public:
  ListsAll(std::unique_ptr<Kernels> inner, int64_t* calls)
      : ForwardingKernels(std::move(inner)), calls_(calls) {}

  void SelectBlocks(Stream& stream, const PageFormat&, const SummaryFormat&, int, float,
                    std::span<const SelectItem> items) override {
    for (const SelectItem& item : items) {
      ASSERT_LE(item.keys.blocks, item.capacity);
      ASSERT_LT(item.budget.far_blocks, item.budget.far_end - item.budget.far_begin);
      std::vector<int32_t>& lists = kept_.emplace_back();
      for (int head = 0; head < item.keys.heads; ++head) {
        for (int64_t i = 0; i < item.capacity; ++i) lists.push_back(static_cast<int32_t>(i));
      }
      std::vector<int32_t>& counts = kept_.emplace_back(static_cast<size_t>(item.keys.heads),
                                                        static_cast<int32_t>(item.keys.blocks));
      stream.Copy(reinterpret_cast<std::byte*>(item.blocks),
                  reinterpret_cast<const std::byte*>(lists.data()), lists.size() * sizeof(int32_t));
      stream.Copy(reinterpret_cast<std::byte*>(item.counts),
                  reinterpret_cast<const std::byte*>(counts.data()),
                  counts.size() * sizeof(int32_t));
      ++*calls_;
    }
  }

 private:
  int64_t* const calls_;
  std::list<std::vector<int32_t>> kept_;  // until the stream has passed the copies
};

HarnessConfig ListingAll(HarnessConfig config, int64_t keys, int64_t* calls) {
  config.selection = PolicyOf(keys);
  config.wrap_kernels = [calls](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ListsAll>(std::move(kernels), calls);
  };
  return config;
}

std::vector<SelectItem> ChoicesOf(Model& model, const kv::SelectionPolicy& policy,
                                  std::span<const TokenId> tokens, int64_t decode) {
  std::vector<SelectItem> seen;
  HarnessConfig config = HarnessConfig::Default();
  config.selection = policy;
  config.wrap_kernels = [&seen](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<SeesChoices>(std::move(kernels), &seen);
  };
  RunTokens(model, config, tokens, decode);
  return seen;
}

class Selection : public ::testing::TestWithParam<DType> {};

// How a cache is cut, and whether a CPU adds up a list of all keys in the order of exact attention
// then. A state is of 512 keys, which it cuts from lists here, and from each segment where all keys
// are read. In a state it adds 64 keys at a time, of lists and of encoded pages those of one page.
struct CutOfPages {
  int page_slots;
  int64_t segment_pages;
  bool SameOrder(Encoding encoding) const {
    return TestDevice() == "cpu" && page_slots * segment_pages == 512 &&
           (page_slots == 64 || encoding != Encoding::kNone);
  }
};

// The same bits where the order is the same. Elsewhere, and on a GPU, which cuts lists into other
// parts, the sums of a layer have their terms in another order: ExpectNear derives what that makes.
TEST_P(Selection, KeysThatAreAllListedAreAttendedToExactly) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(600, 96, 7);
  constexpr int64_t kDecode = 24;
  for (const CutOfPages cut : {CutOfPages{16, 2}, {16, 32}, {64, 8}}) {
    for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4}) {
      HarnessConfig config = HarnessConfig::Default();
      config.page_slots = cut.page_slots;
      config.segment_pages = cut.segment_pages;
      config.encoding = encoding;
      const LogitRows expected = RunTokens(*model, config, tokens, kDecode);
      for (const int group_heads : {0, 1, 2}) {
        for (const int64_t device_slabs : {1 << 20, 5, 0}) {  // all there, some, none
          int64_t calls = 0;
          HarnessConfig selecting = ListingAll(config, 240, &calls);
          selecting.group_heads = group_heads;
          selecting.device_slabs = device_slabs;
          const LogitRows listed = RunTokens(*model, selecting, tokens, kDecode);
          const std::string what = std::to_string(cut.segment_pages) + " pages of " +
                                   std::to_string(cut.page_slots) + " slots, groups of " +
                                   std::to_string(group_heads);
          if (cut.SameOrder(encoding)) {
            ExpectSameBits(expected, listed, what);
          } else {
            ExpectNear(*model, expected, listed, what);
          }
          EXPECT_EQ(calls, kDecode * model->shape().layers);
        }
      }
    }
  }
}

// Where keys are read to choose, slabs on disk are left to other paths: those of the first
// segments, so that what is listed ends where the open page begins, and still is not all in front
// of it.
TEST_P(Selection, WhatIsListedIsMergedWithWhatOthersRead) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 28);
  HarnessConfig config = HarnessConfig::Default();
  const LogitRows expected = RunTokens(*model, config, tokens, 20);
  int64_t calls = 0;
  config = ListingAll(config, 120, &calls);
  config.selection = PolicyOf(120, SummaryKind::kMasses);
  config.placement = kv::PlacementKind::kRecent;
  config.device_slabs = 6;
  config.host_slabs = 21;
  ExpectNear(*model, expected, RunTokens(*model, config, tokens, 20), "some slabs on disk");
  EXPECT_EQ(calls, 20 * model->shape().layers);
}

TEST_P(Selection, BatchesLiveAsExactOnes) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const HarnessConfig exact = HarnessConfig::Default();
  int64_t calls = 0;
  HarnessConfig selecting = ListingAll(exact, 44, &calls);
  HarnessConfig away = selecting;
  away.placement = kv::PlacementKind::kHostOnly;
  away.device_slabs = 0;
  ExpectBatchesNear(*model, {exact, selecting, away});
  EXPECT_GT(calls, 0);
}

TEST_P(Selection, WherePagesLieNeverChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 9);
  for (const kv::SelectionPolicy& policy :
       {PolicyOf(40), PolicyOf(40, SummaryKind::kBoxes), PolicyOf(40, SummaryKind::kMasses),
        PolicyOf(40, SummaryKind::kStages), KeepsSurvivors(40, 6, 3, 1), TwoLooks(40),
        KeepsCandidates(40, 5), SearchesPages(40), Bounded(16, 0.4)}) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = policy;
    const LogitRows expected = RunTokens(*model, config, tokens, 40);
    for (const kv::PlacementKind placement :
         {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
          kv::PlacementKind::kRecent}) {
      for (const int group_heads : {0, 1, 2}) {
        HarnessConfig other = config;
        other.placement = placement;
        other.group_heads = group_heads;
        other.device_slabs = placement == kv::PlacementKind::kHostOnly ? 0 : 7;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 40),
                       "placement " + std::to_string(static_cast<int>(placement)) + ", groups of " +
                           std::to_string(group_heads));
      }
    }
  }
}

// By the device's budget, or by the host's, which then has room for no slab.
TEST_P(Selection, WhereSketchesLieNeverChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 9);
  kv::SelectionPolicy rarely = TwoLooks(40);
  rarely.candidates_refresh = 4;
  kv::SelectionPolicy by_pages = SearchesPages(40);
  by_pages.summary.sketch = SketchKind::kTwoBits;
  for (const kv::SelectionPolicy& policy : {TwoLooks(40), rarely, by_pages}) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = policy;
    config.sketches = Tier::kDevice;
    const LogitRows expected = RunTokens(*model, config, tokens, 40);
    config.sketches = Tier::kHost;
    for (const bool poisoned : {false, true}) {
      config.poison_freed = poisoned;
      for (const int group_heads : {0, 1, 2}) {
        HarnessConfig other = config;
        other.group_heads = group_heads;
        other.host_slabs = 0;
        const std::string groups = ", groups of " + std::to_string(group_heads);
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 40), "slabs there" + groups);
        other.placement = kv::PlacementKind::kLru;
        other.device_slabs = 7;
        other.host_slabs = 1 << 20;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 40), "slabs move" + groups);
        other.placement = kv::PlacementKind::kHostOnly;
        other.device_slabs = 0;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 40), "slabs below" + groups);
      }
    }
  }
}

TEST_P(Selection, BatchesWithSketchesOnTheHostLiveAsOthers) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.selection = TwoLooks(8);
  HarnessConfig below = config;
  below.sketches = Tier::kHost;
  HarnessConfig away = below;
  away.placement = kv::PlacementKind::kHostOnly;
  away.device_slabs = 0;
  ExpectBatchesNear(*model, {config, below, away});
}

// Where there is a bus; elsewhere kernels do not use it.
TEST_P(Selection, NoPageCacheChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 17);
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    HarnessConfig config = HarnessConfig::Default();
    config.encoding = encoding;
    config.selection = PolicyOf(48);
    const LogitRows expected = RunTokens(*model, config, tokens, 90);
    for (const int64_t bytes : {20 << 10, 200 << 10, 8 << 20}) {
      HarnessConfig other = config;
      other.placement = kv::PlacementKind::kRecent;
      other.device_slabs = 6;
      other.group_heads = 1;
      other.page_cache_bytes = bytes;
      ExpectSameBits(expected, RunTokens(*model, other, tokens, 90),
                     std::to_string(bytes) + " bytes");
      other.placement = kv::PlacementKind::kHostOnly;
      other.device_slabs = 0;
      ExpectSameBits(expected, RunTokens(*model, other, tokens, 90),
                     std::to_string(bytes) + " bytes, all slabs on the host");
    }
  }
}

// A choice for all steps is brought in the first one, and found in the others.
void ExpectServed(const ModelConfig& shape) {
  const std::unique_ptr<Model> model = Tiny(shape);
  const std::vector<TokenId> tokens = RandomTokens(290, 96, 23);
  const RopeFrequencies rope = RopeOf(*model, 400);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(48);
  config.selection.refresh = 400;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = 8 << 20;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  ASSERT_TRUE((*h)->Append(sequence, tokens, rope).ok());
  const auto reads = [&] { return (*h)->store().PageCacheReads().decode; };
  EXPECT_EQ(reads()[BlockCache::kBrought], 0);  // the prompt is exact
  constexpr int kSteps = 5;                     // no page closes between them
  ASSERT_LT(290 % config.page_slots + kSteps, config.page_slots);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(1), rope).ok());
    EXPECT_GT(reads()[BlockCache::kBrought], 0);
    EXPECT_EQ(reads()[BlockCache::kFound], i * reads()[BlockCache::kBrought]);
    EXPECT_EQ(reads()[BlockCache::kPassed], 0);
  }
}

TEST_P(Selection, APageCacheServesTheStepsBehindTheFirst) {
  if (TestDevice() == "cpu") GTEST_SKIP() << "there is no bus";
  ModelConfig config = TinyConfig(GetParam());
  ExpectServed(config);
  config.shape.query_heads = 12;
  config.shape.kv_heads = 1;
  ExpectServed(config);
}

// Few keys are not exact, or the path does nothing.
TEST_P(Selection, LeavesOutWhatTheBudgetDoesNotHold) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 10);
  const LogitRows exact = RunTokens(*model, config, tokens, 10);
  config.selection = PolicyOf(8);
  const LogitRows chosen = RunTokens(*model, config, tokens, 10);
  ASSERT_EQ(exact.size(), chosen.size());
  ExpectSameBits(LogitRows(exact.begin(), exact.end() - 10),
                 LogitRows(chosen.begin(), chosen.end() - 10), "prefill");
  EXPECT_NE(exact.back(), chosen.back());
  // All keys fit: the same bits as without a selection.
  config.selection = PolicyOf(4096);
  ExpectSameBits(exact, RunTokens(*model, config, tokens, 10), "a budget for all");
}

// A window is attended to as it is, in prompts and in decode, though it has more keys than a
// choice; where keys are read to choose nothing else keeps them from being chosen among.
TEST_P(Selection, LayersWithAWindowChooseNothing) {
  ModelConfig tiny = TinyConfig(GetParam());
  const std::unique_ptr<Model> model = Tiny(tiny);
  tiny.windows = {200, 0, 150};
  const std::unique_ptr<Model> windows = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 29);
  for (const kv::SelectionPolicy& policy :
       {PolicyOf(24), PolicyOf(24, SummaryKind::kMasses), StagedInPrompts(24, 0)}) {
    const std::vector<SelectItem> all = ChoicesOf(*model, policy, tokens, 10);
    EXPECT_EQ(std::ssize(all), 3 * std::ssize(ChoicesOf(*windows, policy, tokens, 10)));
    EXPECT_GE(std::ssize(all), 10 * model->shape().layers);
  }
}

// The last token of so many reads all keys, and the next one chooses; of prompts the same holds for
// the last token of a chunk.
TEST_P(Selection, SequencesOfUpToSoManyTokensAreReadWhole) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const int64_t layers = model->shape().layers;
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 30);
  kv::SelectionPolicy policy = PolicyOf(24);
  policy.from = 325;
  EXPECT_EQ(std::ssize(ChoicesOf(*model, policy, tokens, 10)), 5 * layers);
  policy.prompts = kv::SelectionPolicy::Prompts::kSelected;
  ASSERT_EQ(HarnessConfig::Default().chunk, 64);
  for (const auto& [from, chunks] : {std::pair(255, 2), {256, 1}}) {
    policy.from = from;
    EXPECT_EQ(std::ssize(ChoicesOf(*model, policy, std::span(tokens).first(320), 0)),
              chunks * layers)
        << from;
  }
}

// Errors of one choice say nothing of those of another.
TEST_P(Selection, EachChoiceOfABoundHasItsOwnSample) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  std::set<uint64_t> seeds;
  for (const SelectItem& item : ChoicesOf(*model, Bounded(8, 0.4), tokens, 10)) {
    seeds.insert(item.budget.bound.seed);
  }
  EXPECT_EQ(std::ssize(seeds), 10 * model->shape().layers);
}

// A bound that nothing but all keys meets lists all of them, and is exact; another one reads more
// than the first list where that leaves out too much.
TEST_P(Selection, ABoundMayAskForAllKeys) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.page_slots = 64;  // so that a CPU adds up keys in the order of a list
  config.segment_pages = 8;
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 16);
  const LogitRows exact = RunTokens(*model, config, tokens, 10);
  int64_t calls = 0;
  HarnessConfig listing = ListingAll(config, 8, &calls);
  listing.selection = Bounded(8, 1e-12);
  const LogitRows all = RunTokens(*model, listing, tokens, 10);
  EXPECT_EQ(calls, 10 * model->shape().layers);
  config.selection = Bounded(8, 1e-12);
  const LogitRows bounded = RunTokens(*model, config, tokens, 10);
  // A GPU cuts lists that may grow into other parts.
  if (TestDevice() == "cpu") {
    ExpectSameBits(all, bounded, "all blocks are listed");
    ExpectSameBits(exact, bounded, "all keys are read");
  }
  ExpectNear(*model, exact, bounded, "all keys are read");
  config.selection = Bounded(8, 0.999);
  const LogitRows few = RunTokens(*model, config, tokens, 10);
  EXPECT_NE(all.back(), few.back());
  config.selection = Bounded(8, 0.3);
  EXPECT_NE(few.back(), RunTokens(*model, config, tokens, 10).back());
}

// A second look chooses other keys; where all are candidates, it is the only one that counts.
TEST_P(Selection, ASecondLookChooses) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 14);
  config.selection = PolicyOf(24);
  const LogitRows once = RunTokens(*model, config, tokens, 10);
  config.selection = TwoLooks(24);
  const LogitRows twice = RunTokens(*model, config, tokens, 10);
  EXPECT_NE(once.back(), twice.back());
  config.selection.breadth = 1 << 20;
  const LogitRows all = RunTokens(*model, config, tokens, 10);
  config.selection.breadth = 14;
  ExpectSameBits(all, RunTokens(*model, config, tokens, 10), "all keys are candidates");
  // As many candidates as keys are chosen: one look.
  config.selection.breadth = 1;
  ExpectSameBits(once, RunTokens(*model, config, tokens, 10), "one look");
}

// A search of pages finds other candidates than one of blocks; where all are candidates, it says
// nothing.
TEST_P(Selection, ASearchOfPagesChooses) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 18);
  config.selection = KeepsCandidates(24, 1);
  const LogitRows by_blocks = RunTokens(*model, config, tokens, 10);
  config.selection.breadth = 1 << 20;
  const LogitRows all = RunTokens(*model, config, tokens, 10);
  config.selection = SearchesPages(24);
  EXPECT_NE(by_blocks.back(), RunTokens(*model, config, tokens, 10).back());
  config.selection.breadth = 1 << 20;
  ExpectSameBits(all, RunTokens(*model, config, tokens, 10), "all pages are candidates");
  config.selection = SearchesPages(24);
  config.selection.summary.sketch = SketchKind::kTwoBits;
  const LogitRows sketched = RunTokens(*model, config, tokens, 10);
  config.selection.breadth = 1 << 20;
  const LogitRows by_sketches = RunTokens(*model, config, tokens, 10);
  EXPECT_NE(sketched.back(), by_sketches.back());
  config.selection = TwoLooks(24);
  config.selection.breadth = 1 << 20;
  ExpectSameBits(by_sketches, RunTokens(*model, config, tokens, 10), "all by their sketches");
}

// A share of the keys grows from step to step, beyond the fixed number.
TEST_P(Selection, ABudgetMayGrowWithTheSequence) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 15);
  config.selection = PolicyOf(64);
  const LogitRows fixed = RunTokens(*model, config, tokens, 1);
  config.selection = PolicyOf(8);
  config.selection.growth = 64.0 / 330.0;
  ExpectSameBits(fixed, RunTokens(*model, config, tokens, 1), "64 keys of 330");
  config.selection.growth = 1.0;
  const LogitRows all = RunTokens(*model, config, tokens, 10);
  config.selection = {};
  ExpectSameBits(all, RunTokens(*model, config, tokens, 10), "all keys");
}

INSTANTIATE_TEST_SUITE_P(DTypes, Selection, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
