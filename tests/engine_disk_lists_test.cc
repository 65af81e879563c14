// Decode by lists over slabs on disk: whether pages come from there changes no bit, and those pages
// are read that are listed, and no others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "kernels/selection_scratch.h"
#include "support/counting_env.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

// Notes the pages of head groups that are listed, layer by layer.
class SeesPages : public ForwardingKernels {
 public:
  using Pages = std::set<std::tuple<int64_t, int64_t, int64_t>>;

  SeesPages(std::unique_ptr<Kernels> inner, int64_t page_blocks, Pages* pages)
      : ForwardingKernels(std::move(inner)), page_blocks_(page_blocks), pages_(*pages) {}

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
    for (const SelectItem& item : items) {
      const std::vector<int32_t> blocks =
          Fetch(stream, item.blocks, item.keys.heads * item.capacity);
      const std::vector<int32_t> counts = Fetch(stream, item.counts, item.keys.heads);
      for (int head = 0; head < item.keys.heads; ++head) {
        for (int32_t i = 0; i < counts[static_cast<size_t>(head)]; ++i) {
          const int32_t block = blocks[static_cast<size_t>(head * item.capacity + i)];
          pages_.emplace(layer_, head / item.keys.group_heads, block / page_blocks_);
        }
      }
    }
    ++layer_;
  }

 private:
  static std::vector<int32_t> Fetch(Stream& stream, const int32_t* from, int64_t count) {
    std::vector<int32_t> to(static_cast<size_t>(count));
    stream.Copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from),
                to.size() * sizeof(int32_t));
    EXPECT_TRUE(stream.Synchronize().ok());
    return to;
  }

  const int64_t page_blocks_;
  int64_t layer_ = 0;
  Pages& pages_;
};

HarnessConfig OnDisk(HarnessConfig config, int64_t device_slabs = 0, int64_t host_slabs = 0) {
  config.placement = kv::PlacementKind::kFirstFit;
  config.device_slabs = device_slabs;
  config.host_slabs = host_slabs;
  return config;
}

class DiskLists : public ::testing::TestWithParam<DType> {};

TEST_P(DiskLists, WherePagesLieNeverChangesABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 31);
  for (const kv::SelectionPolicy& policy :
       {PolicyOf(40), PolicyOf(40, SummaryKind::kBoxes), PolicyOf(40, SummaryKind::kPairs),
        TwoLooks(40), KeepsCandidates(40, 5), SearchesPages(40, 5)}) {
    for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
      HarnessConfig config = HarnessConfig::Default();
      config = OnDisk(config, 1 << 20);
      config.selection = policy;
      config.encoding = encoding;
      const LogitRows expected = RunTokens(*model, config, tokens, 40);
      for (const int group_heads : {0, 1, 3}) {
        // Rounds of parts, of a group, or of all that a layer's heads list.
        for (const auto& [slabs, listed] : std::vector<std::pair<int64_t, int64_t>>{
                 {0, 0}, {0, 3}, {0, 9}, {0, 200}, {9, 0}, {30, 200}}) {
          HarnessConfig other = OnDisk(config, slabs / 3, slabs);
          other.group_heads = group_heads;
          other.listed_slabs = listed;
          other.sketches = slabs == 9 ? Tier::kHost : Tier::kDevice;
          ExpectSameBits(expected, RunTokens(*model, other, tokens, 40),
                         "groups of " + std::to_string(group_heads) +
                             ", slabs: " + std::to_string(slabs) +
                             ", for listed pages: " + std::to_string(listed));
        }
      }
    }
  }
}

// Head groups of a segment, of which the first ones alone lie on disk: what is oldest goes first.
TEST_P(DiskLists, ASegmentLiesOnDiskWhereOneOfItsSlabsDoes) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 36);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(40);
  config.group_heads = 1;
  const LogitRows expected = RunTokens(*model, OnDisk(config, 1 << 20), tokens, 20);
  const int64_t slabs = CeilDiv(400, config.page_slots * config.segment_pages) *
                        model->shape().layers * model->shape().kv_heads;
  for (int64_t missing = 1; missing <= model->shape().layers * model->shape().kv_heads; ++missing) {
    HarnessConfig other = OnDisk(config, 3, slabs - 3 - missing);
    other.placement = kv::PlacementKind::kRecent;
    ExpectSameBits(expected, RunTokens(*model, other, tokens, 20),
                   std::to_string(missing) + " slabs on disk");
  }
}

// Beside a device whose memory the host does not read, and whose kernels come late.
TEST_P(DiskLists, ListsThatComeDownLateAreTheSame) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 35);
  for (const int64_t refresh : {1, 4}) {
    HarnessConfig config = HarnessConfig::Default();
    config.selection = PolicyOf(40);
    config.selection.refresh = refresh;
    const LogitRows expected = RunTokens(*model, OnDisk(config, 1 << 20), tokens, 40);
    config.apart = true;
    for (const Lane lane : {Lane::kCompute, Lane::kDiskRead}) {
      Delays delays(5);
      delays.Set(lane, /*every=*/8);
      config.delays = &delays;
      for (const int64_t slabs : {0, 20}) {
        ExpectSameBits(expected, RunTokens(*model, OnDisk(config, 0, slabs), tokens, 40),
                       std::string(LaneName(lane)) + " late, slabs: " + std::to_string(slabs));
      }
      EXPECT_GT(delays.slept(), 0);
    }
  }
}

// Lists of more than one part, which are rounds of their own.
TEST_P(DiskLists, LongListsComeInParts) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(1700, 96, 32);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(1200);
  config.selection.refresh = 3;
  const LogitRows expected = RunTokens(*model, OnDisk(config, 1 << 20), tokens, 8);
  for (const int group_heads : {0, 1}) {
    config.group_heads = group_heads;
    ExpectSameBits(expected, RunTokens(*model, OnDisk(config, 20, 100), tokens, 8), "parts");
    Delays delays(6);
    delays.Set(Lane::kCompute, /*every=*/8);
    HarnessConfig late = OnDisk(config, 20, 100);
    late.delays = &delays;
    late.apart = true;
    ExpectSameBits(expected, RunTokens(*model, late, tokens, 8), "parts that come late");
    for (const int64_t listed : {4, 12, 40, 400}) {
      late.listed_slabs = listed;
      ExpectSameBits(expected, RunTokens(*model, late, tokens, 8),
                     "late, for listed pages: " + std::to_string(listed));
    }
  }
}

// Writes over what scratch memory attention may have, as a GPU's kernels do with their tables.
class FillsScratch : public ForwardingKernels {
 public:
  FillsScratch(std::unique_ptr<Kernels> inner, int64_t* segments)
      : ForwardingKernels(std::move(inner)), segments_(*segments) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override {
    for (const AttendBlocksItem& item : items) {
      if (item.rows > 1) continue;
      const int64_t segments = std::ssize(item.keys.segments);
      segments_ = std::max(segments_, segments);
      const int64_t bytes = AttendScratchBytes(item.keys.heads, item.capacity, segments);
      ASSERT_LE(bytes, std::ssize(filling_));
      stream.Copy(item.scratch, filling_.data(), static_cast<size_t>(bytes));
    }
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  }

 private:
  const std::vector<std::byte> filling_ = std::vector<std::byte>(1 << 20, std::byte{0xA5});
  int64_t& segments_;
};

// Listed pages come to lie in many frames, of which kernels have a table.
TEST_P(DiskLists, TablesOfManyFramesHaveRoom) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(1700, 96, 38);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(1200);
  config.group_heads = 1;
  config.segment_pages = 1;
  config.page_slots = 8;
  // These make norms and products apart, which on a GPU other bits come of.
  config.wrap_kernels = [](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ForwardingKernels>(std::move(kernels));
  };
  const LogitRows expected = RunTokens(*model, OnDisk(config, 1 << 20), tokens, 6);
  int64_t segments = 0;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<FillsScratch>(std::move(kernels), &segments);
  };
  config.listed_slabs = 2000;
  ExpectSameBits(expected, RunTokens(*model, OnDisk(config), tokens, 6), "on disk");
  EXPECT_GT(segments, 312) << "these do not come with a launch";
}

// Cuts the lists of first heads to a few blocks.
class CutsFirstLists : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
    for (const SelectItem& item : items) {
      stream.Copy(reinterpret_cast<std::byte*>(item.counts),
                  reinterpret_cast<const std::byte*>(&few_), sizeof(few_));
    }
  }

 private:
  const int32_t few_ = 8;
};

// A group's rounds are as many as its longest list has parts.
TEST_P(DiskLists, TheListsOfAGroupMayBeOfQuiteOtherLengths) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(1700, 96, 37);
  HarnessConfig config = HarnessConfig::Default();
  config.selection = PolicyOf(1200);
  config.wrap_kernels = [](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<CutsFirstLists>(std::move(kernels));
  };
  const LogitRows expected = RunTokens(*model, OnDisk(config, 1 << 20), tokens, 4);
  for (const int64_t listed : {0, 4, 12, 40}) {
    config.listed_slabs = listed;
    ExpectSameBits(expected, RunTokens(*model, OnDisk(config, 20, 100), tokens, 4), "on disk");
  }
}

// Selectors that read keys to choose leave slabs on disk to exact attention.
TEST_P(DiskLists, WhatIsChosenByKeysIsReadWhole) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 8);
  const HarnessConfig exact = OnDisk(HarnessConfig::Default());
  const LogitRows expected = RunTokens(*model, exact, tokens, 10);
  for (const kv::SelectionPolicy& policy :
       {Bounded(16, 0.4), PolicyOf(40, SummaryKind::kMasses), PolicyOf(40, SummaryKind::kStages)}) {
    HarnessConfig config = exact;
    config.selection = policy;
    ExpectSameBits(expected, RunTokens(*model, config, tokens, 10), "all on disk");
  }
}

TEST_P(DiskLists, BatchesLiveAsThoseInMemory) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig memory = OnDisk(HarnessConfig::Default(), 1 << 20);
  memory.selection = PolicyOf(8);
  HarnessConfig apart = OnDisk(memory);
  apart.apart = true;  // each sequence's lists are copied down to a place of their own
  ExpectBatchesNear(*model, {memory, OnDisk(memory), OnDisk(memory, 4, 4), apart});
}

// Of a step that is the first to choose, as often as it lists them; later ones find pages that they
// list again, and read the others: as many bytes come from the file, whatever the encoding.
TEST_P(DiskLists, ThePagesThatAreListedAreReadOnce) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const RopeFrequencies rope = RopeOf(*model, 400);
  for (const int group_heads : {1, 2}) {
    for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4}) {
      SeesPages::Pages pages;
      HarnessConfig config = OnDisk(HarnessConfig::Default());
      config.group_heads = group_heads;
      config.encoding = encoding;
      config.selection = PolicyOf(40);
      config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
        return std::make_unique<SeesPages>(std::move(kernels), config.page_slots / 8, &pages);
      };
      CountingEnv env;
      Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400, &env);
      ASSERT_TRUE(h.ok()) << h.status().message();
      kv::Store& store = (*h)->store();
      const kv::SequenceId sequence = *(*h)->NewSequence();
      const std::vector<TokenId> tokens = RandomTokens(390, 96, 33);
      ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(386), rope).ok());
      EXPECT_EQ(store.DiskPageReads().read, 0) << "prompts read slabs";
      store.Drain();
      const int64_t before = env.bytes();
      const auto bytes_of = [&](const SeesPages::Pages::value_type& listed) {
        const auto& [layer, group, page] = listed;
        return store.format().PageBytes(static_cast<int>(layer % model->shape().layers),
                                        static_cast<int>(group));
      };
      ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).subspan(386, 1), rope).ok());
      const kv::ListedPages::Reads first = store.DiskPageReads();
      EXPECT_EQ(first.read, std::ssize(pages));
      int64_t listed_bytes = 0;
      for (const auto& page : pages) listed_bytes += bytes_of(page);
      EXPECT_EQ(first.bytes, listed_bytes);
      EXPECT_EQ(env.bytes() - before, first.bytes);
      EXPECT_LT(first.read, 386 / config.page_slots * model->shape().kv_heads / group_heads *
                                model->shape().layers);
      for (size_t i = 387; i < tokens.size(); ++i) {
        ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).subspan(i, 1), rope).ok());
      }
      const kv::ListedPages::Reads then = store.DiskPageReads();
      // A GPU's rounds are shorter, and their pages make room for those of the next layers.
      if (TestDevice() == "cpu") {
        EXPECT_GT(then.found, 0);
      }
      EXPECT_EQ(env.bytes() - before, then.bytes);
      // There, lists come in shorter parts, too: two heads' lists may want a page of their group in
      // different rounds, of which the second finds it.
      if (TestDevice() == "cpu" || group_heads == 1) {
        EXPECT_EQ(then.found + then.read, std::ssize(pages));
      } else {
        EXPECT_LE(then.read, std::ssize(pages));
        EXPECT_GE(then.found + then.read, std::ssize(pages));
      }
      // Groups of two have a last one of a head where there are three: pages of two sizes.
      if (group_heads == 1) {
        EXPECT_EQ(env.bytes() - before,
                  (std::ssize(pages) - then.found) * bytes_of(*pages.begin()));
      }
    }
  }
}

// Where all of them have room, a page is read when it is listed first, and no more.
TEST_P(DiskLists, PagesThatHaveRoomAreReadOnce) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const RopeFrequencies rope = RopeOf(*model, 400);
  for (const int group_heads : {1, 2}) {
    SeesPages::Pages pages;
    HarnessConfig config = OnDisk(HarnessConfig::Default());
    config.group_heads = group_heads;
    config.selection = PolicyOf(40);
    config.listed_slabs = 400;
    config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<SeesPages>(std::move(kernels), config.page_slots / 8, &pages);
    };
    CountingEnv env;
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400, &env);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId sequence = *(*h)->NewSequence();
    const std::vector<TokenId> tokens = RandomTokens(390, 96, 33);
    const size_t prompt =
        384 / static_cast<size_t>(config.page_slots) * static_cast<size_t>(config.page_slots);
    ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(prompt), rope).ok());
    (*h)->store().Drain();
    const int64_t before = env.bytes();
    for (size_t i = prompt; i < tokens.size(); ++i) {
      ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).subspan(i, 1), rope).ok());
    }
    SeesPages::Pages distinct;
    for (const auto& [layer, group, page] : pages) {
      distinct.emplace(layer % model->shape().layers, group, page);
    }
    const kv::ListedPages::Reads reads = (*h)->store().DiskPageReads();
    EXPECT_LT(reads.read, reads.found);
    EXPECT_EQ(reads.read, std::ssize(distinct));
    EXPECT_EQ(reads.found + reads.read, std::ssize(pages));
    EXPECT_EQ(env.bytes() - before, reads.bytes);
  }
}

// A read that fails ends the step; what was closed before it is read by the next one.
TEST_P(DiskLists, AFailedReadLosesNoPage) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const RopeFrequencies rope = RopeOf(*model, 400);
  HarnessConfig config = OnDisk(HarnessConfig::Default());
  config.selection = PolicyOf(40);
  const int64_t prompt = 384 / config.page_slots * config.page_slots;
  const std::vector<TokenId> tokens = RandomTokens(prompt + 1, 96, 34);
  const LogitRows expected = RunTokens(*model, config, tokens, 1);
  FaultEnv env(Env::Default());
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 400, &env);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const kv::SequenceId sequence = *(*h)->NewSequence();
  ASSERT_TRUE(
      (*h)->Append(sequence, std::span(tokens).first(static_cast<size_t>(prompt)), rope).ok());
  env.SetKinds(kFaultRead);
  for (int64_t n = 1;; ++n) {
    env.FailAt(n);
    const Result<LogitRows> row = (*h)->Append(sequence, std::span(tokens).last(1), rope);
    if (env.faults() == 0) {
      ASSERT_TRUE(row.ok()) << row.status().message();
      ExpectSameBits({expected.back()}, *row, "behind failures");
      EXPECT_GT(n, 2);
      break;
    }
    EXPECT_EQ(row.status().code(), StatusCode::kIo);
    EXPECT_NE(row.status().message().find("injected fault"), std::string::npos);
    EXPECT_EQ((*h)->store().Length(sequence), prompt);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DiskLists, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

}  // namespace
}  // namespace headway::testing
