// Lossless pages: the bits of plain ones, whatever reads them and wherever they lie, and an end of
// the context where numbers do not fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

HarnessConfig Lossless(HarnessConfig config) {
  config.encoding = Encoding::kLossless;
  return config;
}

HarnessConfig Resident() {
  HarnessConfig config = HarnessConfig::Default();
  config.placement = kv::PlacementKind::kFirstFit;
  config.device_slabs = 1 << 20;
  config.group_heads = 0;
  return config;
}

TEST(Lossless, EqualsPlainPagesBitForBitAnywhere) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const int64_t page = Resident().page_slots;
  for (const int64_t length : {page - 1, page, page + 1, 9 * page + 3, 19 * page}) {
    const std::vector<TokenId> tokens = RandomTokens(length, 96, static_cast<uint64_t>(length));
    const int64_t decode = std::min<int64_t>(length - 1, page + 2);
    const LogitRows expected = RunTokens(*model, Resident(), tokens, decode);
    for (const kv::PlacementKind placement :
         {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
          kv::PlacementKind::kDiskOnly, kv::PlacementKind::kRecent}) {
      for (const int group : {1, 2, 3}) {
        HarnessConfig config = Lossless(HarnessConfig::Default());
        config.placement = placement;
        config.group_heads = group;
        config.device_slabs = 3;
        config.host_slabs = 5;
        ExpectSameAnywhere(*model, config, expected, RunTokens(*model, config, tokens, decode),
                           "length " + std::to_string(length) + " placement " +
                               std::to_string(static_cast<int>(placement)) + " group " +
                               std::to_string(group));
      }
    }
  }
}

// Every instruction set, pages of the size that is shipped, and rows enough for all kernels. Heads
// of 32 elements have pages without padding, of which GPUs read plain ones by the same kernels.
TEST(Lossless, EqualsPlainPagesInLongChunks) {
  ModelConfig shape = TinyConfig(DType::kBF16);
  shape.shape.head_dim = 32;
  const std::unique_ptr<Model> model = Tiny(shape);
  const std::vector<TokenId> tokens = RandomTokens(1100, 96, 12);
  HarnessConfig config = Resident();
  config.chunk = 256;
  config.page_slots = 64;
  config.segment_pages = 6;
  for (const Isa each : SupportedIsas()) {
    const std::string isa = IsaName(each);
    config.isa = isa;
    HarnessConfig away = Lossless(config);
    away.placement = kv::PlacementKind::kHostOnly;
    away.device_slabs = 0;
    const LogitRows expected = RunTokens(*model, config, tokens, 5);
    const LogitRows resident = RunTokens(*model, Lossless(config), tokens, 5);
    ExpectSameBits(expected, resident, isa);
    ExpectSameAnywhere(*model, away, resident, RunTokens(*model, away, tokens, 5), isa + " away");
  }
}

TEST(Lossless, CoresOfTheHostEqualThemselvesOverPlainPages) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const std::vector<TokenId> tokens = RandomTokens(190, 96, 41);
  for (const double share : {0.4, 1.0}) {
    HarnessConfig config = HarnessConfig::Default();
    config.placement = kv::PlacementKind::kHostOnly;
    config.host_share = share;
    ExpectSameBits(RunTokens(*model, config, tokens, 40),
                   RunTokens(*model, Lossless(config), tokens, 40),
                   "share " + std::to_string(share));
  }
}

// Summaries, lists, and attention to what is listed, in decode and in prompts.
TEST(Lossless, SelectionEqualsThatOfPlainPages) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 8);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(64);
  for (const int64_t device_slabs : {1 << 20, 5}) {
    config.device_slabs = device_slabs;
    config.host_slabs = 50;
    ExpectSameBits(RunTokens(*model, config, tokens, 40),
                   RunTokens(*model, Lossless(config), tokens, 40),
                   "device slabs " + std::to_string(device_slabs));
  }
}

TEST(Lossless, ForksAndTruncationEqualThoseOfPlainPages) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const RopeFrequencies rope = RopeOf(*model, 160);
  HarnessConfig mixed = HarnessConfig::Default();
  mixed.placement = kv::PlacementKind::kLru;
  mixed.device_slabs = 4;
  mixed.host_slabs = 5;
  std::vector<LogitRows> all;
  for (const HarnessConfig& config : {Resident(), Lossless(Resident()), Lossless(mixed)}) {
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 2, 160);
    ASSERT_TRUE(h.ok()) << h.status().message();
    LogitRows got;
    const auto append = [&](kv::SequenceId id, int64_t count, uint64_t seed) {
      Result<LogitRows> rows = (*h)->Append(id, RandomTokens(count, 96, seed), rope);
      ASSERT_TRUE(rows.ok()) << rows.status().message();
      got.insert(got.end(), rows->begin(), rows->end());
    };
    const kv::SequenceId first = *(*h)->NewSequence();
    append(first, 75, 1);
    const Result<kv::SequenceId> fork = (*h)->store().Fork(first);
    ASSERT_TRUE(fork.ok());
    append(*fork, 40, 2);
    append(first, 20, 3);
    ASSERT_TRUE((*h)->store().Truncate(*fork, 70).ok());
    append(*fork, 50, 4);
    append(first, 1, 5);
    all.push_back(std::move(got));
  }
  ExpectSameBits(all[0], all[1], "resident");
  ExpectSameAnywhere(*model, mixed, all[0], all[2], "mixed");
}

// Every other number of the pages that it encodes becomes 0.
class Thinning : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;

  void EncodePages(Stream& stream, const PageFormat& format,
                   std::span<const EncodePagesItem> items) override {
    for (const EncodePagesItem& item : items) {
      for (int head = 0; head < item.heads; ++head) {
        for (int64_t slot = 0; slot < item.from.count; ++slot) {
          auto* row =
              reinterpret_cast<uint16_t*>(item.from.v + SlotOffset(format, item.from, head, slot));
          for (int i = 0; i < format.head_dim; i += 2) row[i] = 0;
        }
      }
    }
    ForwardingKernels::EncodePages(stream, format, items);
  }
};

TEST(Lossless, NumbersThatDoNotFitEndTheContextWithOneLine) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "changes pages where kernels have them";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  HarnessConfig config = Lossless(Resident());
  config.wrap_kernels = [](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<Thinning>(std::move(kernels));
  };
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 2, 160);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 160);
  const kv::SequenceId first = *(*h)->NewSequence();
  ASSERT_TRUE((*h)->Append(first, RandomTokens(15, 96, 1), rope).ok());
  const kv::SequenceId second = *(*h)->NewSequence();
  // The step that closes a page, and all behind it.
  for (const kv::SequenceId id : {first, second, first}) {
    const Result<LogitRows> rows = (*h)->Append(id, RandomTokens(2, 96, 2), rope);
    ASSERT_FALSE(rows.ok());
    EXPECT_EQ(rows.status().message(),
              "the numbers of some keys or values do not fit lossless pages, and without them the "
              "text cannot go on; run it with kv_encoding none (what its session saved "
              "before is kept)");
  }
}

TEST(Lossless, IsRefusedByNameWhereNumbersAreNotBF16) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const std::unique_ptr<Model> model = Tiny(TinyConfig(dtype));
    const Result<std::unique_ptr<StepHarness>> h =
        StepHarness::Create(*model, Lossless(Resident()), 1, 100);
    ASSERT_FALSE(h.ok());
    EXPECT_EQ(h.status().message(),
              std::string("kv_encoding lossless takes bf16 in heads of whole 8 elements; leave it "
                          "out for heads of 16 elements in ") +
                  DTypeName(dtype));
  }
}

}  // namespace
}  // namespace headway::testing
