// Chosen blocks in prompts, and beyond the trained window: what is all listed is attended to
// exactly, where pages lie changes no bit, and blocks that are moved together are what a model
// computes that never saw the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using ListedBlock = std::function<bool(int64_t block, int64_t blocks)>;
using Prompts = kv::SelectionPolicy::Prompts;

// Lists the same blocks for all rows and heads, whatever they score.
class ListsFixed : public ForwardingKernels {
 public:
  ListsFixed(std::unique_ptr<Kernels> inner, ListedBlock listed, int64_t* rows)
      : ForwardingKernels(std::move(inner)), listed_(std::move(listed)), rows_(rows) {}

  void SelectBlocks(Stream& stream, const PageFormat&, const SummaryFormat&, int, float,
                    std::span<const SelectItem> items) override {
    for (const SelectItem& item : items) {
      std::vector<int32_t> list;
      for (int64_t block = 0; block < item.keys.blocks; ++block) {
        if (listed_(block, item.keys.blocks)) list.push_back(static_cast<int32_t>(block));
      }
      const auto count = static_cast<int32_t>(list.size());
      ASSERT_LE(count, item.capacity);
      list.resize(static_cast<size_t>(item.capacity), -1);
      std::vector<int32_t>& lists = kept_.emplace_back();
      for (int64_t i = 0; i < item.row_blocks() * item.keys.heads; ++i) {
        lists.insert(lists.end(), list.begin(), list.end());
      }
      std::vector<int32_t>& counts =
          kept_.emplace_back(static_cast<size_t>(item.row_blocks() * item.keys.heads), count);
      const auto copy = [&](int32_t* to, const std::vector<int32_t>& from) {
        stream.Copy(reinterpret_cast<std::byte*>(to),
                    reinterpret_cast<const std::byte*>(from.data()), from.size() * sizeof(int32_t));
      };
      copy(item.blocks, lists);
      copy(item.counts, counts);
      *rows_ += item.rows;
    }
  }

 private:
  const ListedBlock listed_;
  int64_t* const rows_;
  std::list<std::vector<int32_t>> kept_;  // until the stream has passed the copies
};

bool All(int64_t, int64_t) { return true; }

// What attention of prompts to listed blocks was given to keep copies in.
struct CacheSeen {
  uint32_t step = 0;
  bool lines = false;
  int64_t named = 0;  // segments that a cache may keep blocks of
  int64_t segments = 0;
};
class SeesCaches : public ForwardingKernels {
 public:
  SeesCaches(std::unique_ptr<Kernels> inner, std::vector<CacheSeen>* seen)
      : ForwardingKernels(std::move(inner)), seen_(*seen) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    for (const AttendBlocksItem& item : items) {
      if (item.split > 0) continue;
      CacheSeen seen;
      seen.step = item.cache.step;
      seen.lines = item.cache.lines != nullptr;
      for (const SegmentPlace& place : item.keys.segments) seen.named += place.version != 0 ? 1 : 0;
      seen.segments = std::ssize(item.keys.segments);
      seen_.push_back(seen);
    }
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  std::vector<CacheSeen>& seen_;
};

// What CorrectRows was given.
struct Correction {
  int64_t width = 0;
  std::vector<float> x, exact;
};
class SeesCorrections : public ForwardingKernels {
 public:
  SeesCorrections(std::unique_ptr<Kernels> inner, std::vector<Correction>* seen)
      : ForwardingKernels(std::move(inner)), seen_(*seen) {}

  void CorrectRows(Stream& stream, const CorrectRowsItem& item) override {
    const auto* const x = static_cast<const float*>(item.x);
    seen_.push_back({item.width,
                     {x, x + item.rows * item.width},
                     {item.exact, item.exact + item.blocks() * item.width}});
    ForwardingKernels::CorrectRows(stream, item);
  }

 private:
  std::vector<Correction>& seen_;
};

HarnessConfig Selecting(int64_t keys, int64_t distance = 0) {
  HarnessConfig config = HarnessConfig::Default();
  config.selection.summary = {SummaryKind::kMoments, 8};
  config.selection.keys = keys;
  config.selection.sink = 6;
  config.selection.recent = 20;
  config.selection.prompts = Prompts::kSelected;
  config.selection.distance = distance;
  return config;
}

// The same by keys that stand for chunks.
HarnessConfig InStages(int64_t keys, int64_t distance) {
  HarnessConfig config = HarnessConfig::Default();
  config.selection = StagedInPrompts(keys, distance);
  return config;
}

HarnessConfig Listing(HarnessConfig config, const ListedBlock& listed, int64_t* rows) {
  config.wrap_kernels = [listed, rows](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ListsFixed>(std::move(kernels), listed, rows);
  };
  return config;
}

class SelectedPrefill : public ::testing::TestWithParam<DType> {};

// What a row attends to of a list is one state, and so is what it attends to of a segment. So where
// one segment holds all keys a CPU adds them up in the same order: of pages of 64 slots, which
// decode takes one by one, and not on the tiles of AMX, which are for segments alone. What all is
// listed is moved nowhere, whatever the distance.
HarnessConfig AddedInOneOrder() {
  HarnessConfig config = HarnessConfig::Default();
  config.page_slots = 64;
  config.segment_pages = 8;
  if (TestDevice() == "cpu") config.isa = "avx2";
  return config;
}
// On a GPU the sums of a layer have their terms in another order (ExpectNear).
void ExpectSameOrder(const Model& model, const LogitRows& a, const LogitRows& b,
                     const std::string& what) {
  if (TestDevice() == "cpu") {
    ExpectSameBits(a, b, what);
  } else {
    ExpectNear(model, a, b, what);
  }
}

TEST_P(SelectedPrefill, KeysThatAreAllListedAreAttendedToExactly) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  constexpr int64_t kDecode = 5;
  // No chunk has so few rows that they go another way than rows of lists.
  const std::vector<TokenId> tokens = RandomTokens(384 + kDecode, 96, 7);
  for (HarnessConfig exact : {HarnessConfig::Default(), AddedInOneOrder()}) {
    const bool same_order = exact.page_slots == AddedInOneOrder().page_slots;
    for (const auto& [encoding, chunk] :
         {std::pair(Encoding::kNone, 64), {Encoding::kNone, 150}, {Encoding::kInt8, 150}}) {
      exact.encoding = encoding;
      exact.chunk = chunk;
      const LogitRows expected = RunTokens(*model, exact, tokens, kDecode);
      for (const int64_t distance : {0, 40}) {
        for (const int64_t device_slabs : {1 << 20, 5, 0}) {  // all there, some, none
          int64_t rows = 0;
          HarnessConfig config = exact;
          config.selection = Selecting(160, distance).selection;
          config = Listing(config, All, &rows);
          config.group_heads = 2;
          config.device_slabs = device_slabs;
          const LogitRows listed = RunTokens(*model, config, tokens, kDecode);
          const std::string what =
              "distance " + std::to_string(distance) + ", chunks of " + std::to_string(chunk);
          if (same_order) {
            ExpectSameOrder(*model, expected, listed, what);
          } else {
            ExpectNear(*model, expected, listed, what);
          }
          EXPECT_GT(rows, kDecode * model->shape().layers) << "prompts choose, too";
        }
      }
    }
  }
}

// Beyond the window a budget for all lists all keys.
TEST_P(SelectedPrefill, ABudgetForAllReachesAsExactAttention) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(384 + 10, 96, 9);
  HarnessConfig config = AddedInOneOrder();
  const LogitRows exact = RunTokens(*model, config, tokens, 10);
  for (const HarnessConfig& few : {Selecting(40, 40), InStages(40, 40)}) {
    config.selection = few.selection;
    EXPECT_NE(exact.back(), RunTokens(*model, config, tokens, 10).back());
    config.selection.keys = config.selection.outer_keys = 4096;
    ExpectSameOrder(*model, exact, RunTokens(*model, config, tokens, 10), "a budget for all");
  }
}

TEST_P(SelectedPrefill, WherePagesLieNeverChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 9);
  for (const HarnessConfig& config :
       {Selecting(40), Selecting(40, 40), InStages(40, 0), InStages(40, 40)}) {
    const LogitRows expected = RunTokens(*model, config, tokens, 10);
    for (const kv::PlacementKind placement :
         {kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly, kv::PlacementKind::kRecent}) {
      for (const int group_heads : {0, 1, 2}) {
        HarnessConfig other = config;
        other.placement = placement;
        other.group_heads = group_heads;
        other.device_slabs = placement == kv::PlacementKind::kHostOnly ? 0 : 7;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 10),
                       "kind " + std::to_string(static_cast<int>(config.selection.summary.kind)) +
                           ", placement " + std::to_string(static_cast<int>(placement)) +
                           ", groups of " + std::to_string(group_heads));
      }
    }
  }
}

// Where there is a bus; elsewhere kernels do not use it.
TEST_P(SelectedPrefill, NoPageCacheChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 18);
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    for (HarnessConfig config : {Selecting(40), Selecting(40, 40), InStages(40, 40)}) {
      config.encoding = encoding;
      const LogitRows expected = RunTokens(*model, config, tokens, 20);
      for (const int64_t bytes : {20 << 10, 200 << 10, 8 << 20}) {
        HarnessConfig other = config;
        other.placement = kv::PlacementKind::kHostOnly;
        other.device_slabs = 0;
        other.page_cache_bytes = bytes;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, 20),
                       "distance " + std::to_string(config.selection.distance) + ", " +
                           std::to_string(bytes) + " bytes");
      }
    }
  }
}

// With lines for all of them, a block crosses the bus once, whatever lists have it in whatever
// chunk.
TEST_P(SelectedPrefill, APageCacheServesAllListsAndChunks) {
  if (TestDevice() == "cpu") GTEST_SKIP() << "there is no bus";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = Selecting(40);
  config.chunk = 192;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = 8 << 20;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 800);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  constexpr int64_t kTokens = 768;
  const std::vector<TokenId> tokens = RandomTokens(kTokens, 96, 20);
  ASSERT_TRUE((*h)->Append(sequence, tokens, RopeOf(*model, 800)).ok());
  const std::array<int64_t, BlockCache::kReads> reads = (*h)->store().PageCacheReads().prompts;
  const ModelShape& shape = model->shape();
  EXPECT_GT(reads[BlockCache::kBrought], 0);
  EXPECT_LE(reads[BlockCache::kBrought], kTokens / 8 * shape.kv_heads * shape.layers);
  EXPECT_GT(reads[BlockCache::kFound], reads[BlockCache::kBrought]);
  EXPECT_EQ(reads[BlockCache::kPassed], 0);
}

// What a layer of a chunk reads may take the lines of all others.
TEST_P(SelectedPrefill, EachLayerOfAChunkMayHaveAllLines) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  std::vector<CacheSeen> all;
  HarnessConfig config = Selecting(40);
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = 1 << 20;
  config.wrap_kernels = [&all](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<SeesCaches>(std::move(kernels), &all);
  };
  RunTokens(*model, config, RandomTokens(330, 96, 19), 0);
  ASSERT_GT(all.size(), static_cast<size_t>(model->shape().layers));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].lines);
    EXPECT_EQ(all[i].named, all[i].segments);
    if (i == 0) continue;
    EXPECT_GT(all[i].step, all[i - 1].step);
  }
}

TEST_P(SelectedPrefill, BatchesLiveAsExactOnes) {
  for (const ModelConfig& tiny : {TinyConfig(GetParam()), TinyNeoXConfig(GetParam(), false)}) {
    SCOPED_TRACE(tiny.architecture);
    const std::unique_ptr<Model> model = Tiny(tiny);
    int64_t rows = 0;
    const HarnessConfig selecting = Listing(Selecting(44), All, &rows);
    const HarnessConfig reaching = Listing(Selecting(44, 30), All, &rows);
    HarnessConfig corrected = selecting;
    corrected.selection.dense_every = 5;
    ExpectBatchesNear(*model, {HarnessConfig::Default(), selecting, reaching, corrected});
    EXPECT_GT(rows, 0);
  }
}

// With little to leave out nothing is chosen, and short sequences are read whole if asked.
TEST_P(SelectedPrefill, LeavesOutWhatTheBudgetDoesNotHold) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 10);
  const LogitRows exact = RunTokens(*model, HarnessConfig::Default(), tokens, 10);
  const LogitRows chosen = RunTokens(*model, Selecting(8), tokens, 10);
  EXPECT_NE(exact[300], chosen[300]);
  ExpectSameBits(exact, RunTokens(*model, Selecting(4096), tokens, 10), "a budget for all");
  HarnessConfig from = Selecting(8);
  from.selection.from = 330;
  ExpectSameBits(exact, RunTokens(*model, from, tokens, 10), "a sequence that is read whole");
}

// Rows that all attend to everything besides leave nothing of what was chosen.
TEST_P(SelectedPrefill, DenseRowsAreExact) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 24);
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    HarnessConfig exact = HarnessConfig::Default();
    exact.encoding = encoding;
    const LogitRows expected = RunTokens(*model, exact, tokens, 0);
    for (const int64_t chunk : {64, 150}) {
      HarnessConfig config = Selecting(8);
      config.encoding = encoding;
      config.chunk = chunk;
      const LogitRows chosen = RunTokens(*model, config, tokens, 0);
      config.selection.dense_every = 1;
      ExpectNear(*model, expected, RunTokens(*model, config, tokens, 0),
                 "chunks of " + std::to_string(chunk));
      config.selection.dense_every = 7;
      const LogitRows corrected = RunTokens(*model, config, tokens, 0);
      EXPECT_NE(corrected[380], chosen[380]);
      EXPECT_NE(corrected[380], expected[380]);
    }
  }
}

// In a model of one layer, whose rows choose the same with and without dense rows.
TEST_P(SelectedPrefill, EverySeventhRowIsDense) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "activations lie on the device";
  ModelConfig tiny = TinyConfig(GetParam());
  tiny.shape.layers = 1;
  tiny.windows.assign(1, 0);
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 25);
  std::vector<Correction> seen;
  HarnessConfig config = Selecting(8);
  config.chunk = 150;
  config.wrap_kernels = [&seen](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<SeesCorrections>(std::move(kernels), &seen);
  };
  for (const int64_t every : {1, 7}) {
    config.selection.dense_every = every;
    RunTokens(*model, config, tokens, 0);
  }
  ASSERT_EQ(seen.size(), 4u);  // the second and third chunk of each run
  for (const size_t chunk : {0, 1}) {
    const Correction& all = seen[chunk];
    const Correction& some = seen[2 + chunk];
    EXPECT_EQ(some.x, all.x);
    ASSERT_EQ(some.exact.size(), CeilDiv(all.exact.size() / all.width, 7u) * all.width);
    // Sums of the same numbers in another order, of weights that have 8 bits with bf16 pages, and
    // values below 0.2.
    const double error = GetParam() == DType::kBF16 ? 0.2 / 512.0 : 1e-5;
    double changed = 0.0;
    for (size_t i = 0; i < some.exact.size(); ++i) {
      const size_t at = i / all.width * 7 * all.width + i % all.width;
      ASSERT_NEAR(some.exact[i], all.exact[at], error);
      changed = std::max(changed, std::abs(double{all.exact[at]} - double{all.x[at]}));
    }
    EXPECT_GT(changed, 4.0 * error);
  }
}

TEST_P(SelectedPrefill, WherePagesLieNeverChangesABitOfDenseRows) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 26);
  HarnessConfig config = Selecting(40);
  config.selection.dense_every = 16;
  const LogitRows expected = RunTokens(*model, config, tokens, 10);
  for (const int group_heads : {0, 1, 2}) {
    for (const int64_t device_slabs : {0, 7}) {
      HarnessConfig other = config;
      other.group_heads = group_heads;
      other.device_slabs = device_slabs;
      other.placement =
          device_slabs == 0 ? kv::PlacementKind::kHostOnly : kv::PlacementKind::kRecent;
      ExpectSameBits(expected, RunTokens(*model, other, tokens, 10),
                     "groups of " + std::to_string(group_heads));
    }
  }
}

// Keys and values of a model of one layer depend on their tokens alone. So attention to blocks that
// are moved together is that of the same model to a text of these blocks.
void ExpectMovedBlocksToBeAShorterText(ModelConfig tiny) {
  SCOPED_TRACE(tiny.architecture);
  tiny.shape.layers = 1;
  tiny.windows.assign(1, 0);
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(328, 96, 12);  // 40 blocks, and a last chunk
  const auto listed = [](int64_t block, int64_t blocks) {
    return block % 5 == 0 || block == 17 || block + 3 >= blocks;
  };
  std::vector<TokenId> shorter;
  for (int64_t block = 0; block < 40; ++block) {
    if (!listed(block, 40)) continue;
    shorter.insert(shorter.end(), tokens.begin() + 8 * block, tokens.begin() + 8 * (block + 1));
  }
  shorter.insert(shorter.end(), tokens.begin() + 320, tokens.end());
  for (const int64_t decode : {0, 8}) {
    int64_t rows = 0;
    const HarnessConfig config = Listing(Selecting(64, 30), listed, &rows);
    HarnessConfig whole = HarnessConfig::Default();
    whole.chunk = 1024;
    const LogitRows moved = RunTokens(*model, config, tokens, decode);
    const LogitRows expected = RunTokens(*model, whole, shorter, decode);
    ExpectNear(*model, LogitRows(expected.end() - 8, expected.end()),
               LogitRows(moved.end() - 8, moved.end()), std::to_string(decode) + " decoded");
  }
}

TEST_P(SelectedPrefill, MovedBlocksAreAShorterText) {
  ExpectMovedBlocksToBeAShorterText(TinyConfig(GetParam()));
  ExpectMovedBlocksToBeAShorterText(TinyNeoXConfig(GetParam(), true));
}

// Of each list, blocks that are recent stay where they are, and all others come to one place.
class SeesMoves : public ForwardingKernels {
 public:
  SeesMoves(std::unique_ptr<Kernels> inner, int64_t* far)
      : ForwardingKernels(std::move(inner)), far_(*far) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    for (const AttendBlocksItem& item : items) {
      const int64_t block = summary.block_slots;
      const int64_t recent = (item.move.end - item.move.least) / block - 1;
      EXPECT_GE(recent * block, 20 - 16);  // of the recent keys, those that are in closed pages
      for (int64_t list = 0; list < CeilDiv(item.rows, kSelectRows) * item.keys.heads; ++list) {
        const int64_t count = item.counts[list];
        for (int64_t i = 0; i < count; ++i) {
          const int64_t number = item.blocks[list * item.capacity + i];
          const bool far = number + recent < item.keys.blocks;
          EXPECT_EQ(item.move.To(count - i, block), far ? item.move.least : number * block);
          far_ += far ? 1 : 0;
        }
      }
    }
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  int64_t& far_;
};

TEST_P(SelectedPrefill, FarBlocksMayComeToOnePlace) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "lists lie on the device";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 21);
  const LogitRows consecutive = RunTokens(*model, Selecting(40, 40), tokens, 10);
  int64_t far = 0;
  HarnessConfig config = Selecting(40, 40);
  config.selection.far_positions = kv::SelectionPolicy::FarPositions::kTogether;
  config.wrap_kernels = [&far](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<SeesMoves>(std::move(kernels), &far);
  };
  EXPECT_NE(RunTokens(*model, config, tokens, 10).back(), consecutive.back());
  EXPECT_GT(far, 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, SelectedPrefill, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
