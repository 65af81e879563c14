// A page cache of any size, behind any residence: chosen keys of prompts and of decode are the same
// while sequences grow, fork, are cut back and dropped. Kernels of a CPU use no cache. So there the
// names are looked at by which one would keep blocks: what is named twice is the same block.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

// What blocks had when they were first listed, by the names that a BlockCache would give them.
struct NamedBlocks {
  using Name = std::tuple<uint32_t, int64_t, int64_t>;  // version, head of its group, block
  std::map<Name, std::string> bytes;
  int64_t again = 0;          // that were known
  int64_t again_by_rows = 0;  // of these, by prompts
};

// Where kernels run within their calls, on memory that the host reads.
class NamesBlocks : public ForwardingKernels {
 public:
  NamesBlocks(std::unique_ptr<Kernels> inner, NamedBlocks* named)
      : ForwardingKernels(std::move(inner)), named_(*named) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    for (const AttendBlocksItem& item : items) {
      if (item.cache.lines == nullptr) continue;
      for (int64_t list = 0; list < CeilDiv(item.rows, kSelectRows) * item.keys.heads; ++list) {
        for (int64_t i = 0; i < item.counts[list]; ++i) {
          Check(format, summary, item, list % item.keys.heads,
                item.blocks[list * item.capacity + i]);
        }
      }
    }
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  void Check(const PageFormat& format, const SummaryFormat& summary, const AttendBlocksItem& item,
             int64_t head, int64_t block) {
    const BlockedKeys& keys = item.keys;
    const auto segment = static_cast<size_t>(head / keys.group_heads * keys.group_segments() +
                                             block / keys.segment_blocks);
    const SegmentPlace& place = keys.segments[segment];
    if (place.version == 0) return;
    const int64_t of_group = head % keys.group_heads;
    const int64_t of_slab = block % keys.segment_blocks;
    const int64_t page_blocks = format.page_slots / summary.block_slots;
    const int64_t page = of_slab / page_blocks;
    const int64_t bytes = BlockBytes(format, summary.block_slots);
    const std::byte* const k = place.slab + of_group * keys.head_stride + page * keys.page_stride +
                               of_slab % page_blocks * bytes;
    std::string all(reinterpret_cast<const char*>(k), static_cast<size_t>(bytes));
    all.append(reinterpret_cast<const char*>(k + keys.v_offset), static_cast<size_t>(bytes));
    if (format.encoding != Encoding::kNone) {
      const std::byte* const params = place.slab + keys.params_offset +
                                      of_group * keys.params_head_stride +
                                      page * keys.params_page_stride;
      all.append(reinterpret_cast<const char*>(params), static_cast<size_t>(ParamBytes(format)));
    }
    const auto [known, first] = named_.bytes.try_emplace({place.version, of_group, of_slab}, all);
    if (first) return;
    EXPECT_TRUE(known->second == all) << "version " << place.version << ", block " << of_slab;
    ++named_.again;
    if (item.rows > 1) ++named_.again_by_rows;
  }

  NamedBlocks& named_;
};

// Counts a block as found for each call of a kernel, where kernels count none themselves.
class CountsCalls : public ForwardingKernels {
 public:
  CountsCalls(std::unique_ptr<Kernels> inner, int64_t* decode, int64_t* prompts)
      : ForwardingKernels(std::move(inner)), decode_(*decode), prompts_(*prompts) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    ++items[0].cache.reads[BlockCache::kFound];
    ++(items[0].rows > 1 ? prompts_ : decode_);
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  int64_t& decode_;
  int64_t& prompts_;
};

// Three sequences that are begun, forked, cut back and dropped, and grow by prompts and by single
// tokens: the logits of all, the same way for the same seed.
LogitRows Live(Model& model, const HarnessConfig& config, uint64_t seed) {
  constexpr int64_t kLongest = 320, kSteps = 50;
  LogitRows rows;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 3, kLongest);
  EXPECT_TRUE(h.ok()) << h.status().message();
  if (!h.ok()) return rows;
  kv::Store& store = (*h)->store();
  const RopeFrequencies rope = RopeOf(model, kLongest);
  Random random(seed);
  std::array<std::optional<kv::SequenceId>, 3> ids;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::optional<kv::SequenceId>& id = ids[static_cast<size_t>(random.Below(3))];
    const std::optional<kv::SequenceId>& other = ids[static_cast<size_t>(random.Below(3))];
    const int64_t chance = random.Below(8);
    if (id.has_value() && (chance == 0 || store.Length(*id) == kLongest)) {
      store.Drop(*id);
      id.reset();
    } else if (id.has_value() && chance <= 2) {
      EXPECT_TRUE(store.Truncate(*id, random.Below(store.Length(*id))).ok());
    }
    if (!id.has_value()) {
      const bool fork = other.has_value() && store.Length(*other) < kLongest;
      id = fork ? *store.Fork(*other) : *(*h)->NewSequence();
    }
    const int64_t room = kLongest - store.Length(*id);
    const int64_t count = random.Below(2) == 0 ? std::min(room, 1 + random.Below(150)) : 1;
    Result<LogitRows> part = (*h)->Append(*id, RandomTokens(count, 96, random.Next()), rope);
    EXPECT_TRUE(part.ok()) << part.status().message();
    if (!part.ok()) return rows;
    for (std::vector<float>& row : *part) rows.push_back(std::move(row));
  }
  return rows;
}

class PageCaches : public ::testing::TestWithParam<DType> {};

TEST_P(PageCaches, NoSizeAndNoResidenceChangesABitOfALife) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  kv::SelectionPolicy once = PolicyOf(24);
  once.prompts = kv::SelectionPolicy::Prompts::kSelected;
  kv::SelectionPolicy kept = KeepsCandidates(24, 4);
  kept.prompts = kv::SelectionPolicy::Prompts::kSelected;
  kept.refresh = 2;
  for (const kv::SelectionPolicy& policy : {once, kept, StagedInPrompts(24, 40)}) {
    for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
      HarnessConfig config = HarnessConfig::Default();
      config.selection = policy;
      config.encoding = encoding;
      const LogitRows expected = Live(*model, config, 5);
      NamedBlocks named;
      if (TestDevice() == "cpu") {
        config.wrap_kernels = [&named](std::unique_ptr<Kernels> kernels) {
          return std::make_unique<NamesBlocks>(std::move(kernels), &named);
        };
      }
      for (const int64_t bytes : {20 << 10, 200 << 10, 8 << 20}) {
        config.page_cache_bytes = bytes;
        for (const auto& [placement, device_slabs] :
             {std::pair(kv::PlacementKind::kHostOnly, 0), std::pair(kv::PlacementKind::kRecent, 6),
              std::pair(kv::PlacementKind::kLru, 9)}) {
          config.placement = placement;
          config.device_slabs = device_slabs;
          config.group_heads = device_slabs == 6 ? 1 : 0;
          named = {};  // of each store its own
          ExpectSameBits(expected, Live(*model, config, 5),
                         "placement " + std::to_string(static_cast<int>(placement)) + ", " +
                             std::to_string(bytes) + " bytes");
          if (TestDevice() != "cpu") continue;
          EXPECT_GT(named.again_by_rows, 0);
          EXPECT_GT(named.again, named.again_by_rows);
        }
      }
    }
  }
}

TEST_P(PageCaches, ReadsOfPromptsAndOfDecodeAreCountedApart) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "kernels count";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  int64_t decode = 0, prompts = 0;
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(24);
  config.selection.prompts = kv::SelectionPolicy::Prompts::kSelected;
  config.placement = kv::PlacementKind::kHostOnly;
  config.device_slabs = 0;
  config.page_cache_bytes = 200 << 10;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<CountsCalls>(std::move(kernels), &decode, &prompts);
  };
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  const std::vector<TokenId> tokens = RandomTokens(330, 96, 6);
  const RopeFrequencies rope = RopeOf(*model, 400);
  ASSERT_TRUE((*h)->Append(sequence, tokens, rope).ok());
  ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(1), rope).ok());
  EXPECT_GT(prompts, decode);
  EXPECT_GT(decode, 0);
  const kv::PageCache::Reads reads = (*h)->store().PageCacheReads();
  EXPECT_EQ(reads.decode[BlockCache::kFound], decode);
  EXPECT_EQ(reads.prompts[BlockCache::kFound], prompts);
}

INSTANTIATE_TEST_SUITE_P(DTypes, PageCaches, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& run) { return DTypeName(run.param); });

}  // namespace
}  // namespace headway::testing
