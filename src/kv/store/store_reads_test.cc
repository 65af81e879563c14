// Reads of a step: when they are prefetched, in which order they come, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "kv/store/store.h"
#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

// Waits until the h2d lane has moved that many bytes, read and written, and expects no more.
void AwaitCopies(Rig& rig, int64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (rig.trace().totals(Lane::kHostToDevice).bytes < bytes &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(rig.trace().totals(Lane::kHostToDevice).bytes, bytes);
}

RigOptions OnHost() {
  RigOptions options = OneColumn();
  options.store.placement = PlacementKind::kHostOnly;
  options.store.poison_freed = false;
  return options;
}

TEST(StoreReads, CopiesAheadOfUseAndOnlyClosedPages) {
  const RigOptions options = OnHost();
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 3 * 12 + 4).ok());
  const StepEntry entry{id, 1};
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  const std::vector<SlabRead> order = {{0, 0, 0, 3}, {0, 0, 0, 0}, {0, 0, 0, 1}};
  ASSERT_TRUE(rig.store().reads().Announce(order).ok());
  // A slab of one page and a full one, for the two staging buffers; read and written, each.
  const int64_t page = 2 * 2 * options.store.format.page_stride();
  AwaitCopies(rig, 2 * (page + 3 * page));
  const SlabView first = *rig.store().reads().Next();
  const SlabView second = *rig.store().reads().Next();
  EXPECT_EQ(first.keys.pages.count, rig.store().format().page.page_slots);
  EXPECT_EQ(first.tier, Tier::kHost);
  // Both buffers are held: the third slab has nowhere to go.
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  rig.store().reads().Finish(first);
  const Result<SlabView> third = rig.store().reads().Next();
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->segment, 1);
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  rig.store().reads().Finish(second);
  rig.store().reads().Finish(*third);
  rig.store().step().Abort();
}

TEST(StoreReads, BeginWhenTheyAreAnnounced) {
  RigOptions options = OnHost();
  options.store.format.layers = 2;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 3 * 12).ok());
  const StepEntry entry{id, 1};
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  const int64_t slab = 2 * options.store.format.slab_bytes();  // read and written
  for (int layer = 0; layer < 2; ++layer) {
    // The queries of the layer are there; they choose.
    const std::vector<SlabRead> chosen = {{0, layer, 0, 2}};
    ASSERT_TRUE(rig.store().reads().Announce(chosen).ok());
    AwaitCopies(rig, (2 * layer + 1) * slab);
    const std::vector<SlabRead> more = {{0, layer, 0, 0}};
    ASSERT_TRUE(rig.store().reads().Announce(more).ok());
    AwaitCopies(rig, (2 * layer + 2) * slab);
    for (const int segment : {2, 0}) {
      const Result<SlabView> view = rig.store().reads().Next();
      ASSERT_TRUE(view.ok());
      EXPECT_EQ(view->segment, segment);
      rig.store().reads().Finish(*view);
    }
    EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
    rig.store().step().CloseLayer(layer);
  }
  ASSERT_TRUE(rig.store().step().End().ok());
}

// Kernels read a slab where it lies, and are late: it is let go, and overwritten behind them.
TEST(StoreReads, WhatIsReadInPlaceStaysUntilItIsRead) {
  RigOptions options = OneColumn();
  options.store.poison_freed = true;
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 24).ok());
  rig.Drain();
  const StepEntry entry{id, 1};
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  const std::vector<SlabRead> reads = {{0, 0, 0, 0}};
  ASSERT_TRUE(rig.store().reads().HoldInPlace(reads).ok());
  rig.store().reads().AwaitInPlace(reads);
  rig.Drain();
  const std::byte* const keys = rig.store().reads().InPlace(reads[0]).slab;
  const std::vector<std::byte> there(keys, keys + 16);
  const auto as_it_was = [&] { return std::equal(there.begin(), there.end(), keys); };
  bool read = false;
  rig.lanes().stream(Lane::kCompute).HostWork({}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    read = as_it_was();
    return OkStatus();
  });
  rig.store().reads().FinishInPlace(reads);
  rig.store().step().Abort();
  rig.Drop(id);
  rig.lanes().Drain();
  EXPECT_TRUE(read);
  EXPECT_FALSE(as_it_was());
}

TEST(StoreReads, ARefusedAnnouncementAnnouncesNothing) {
  Rig rig(OnHost());
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId id = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(id, 12).ok());
  const std::vector<SlabRead> one = {{0, 0, 0, 0}};
  EXPECT_EQ(rig.store().reads().Announce(one).code(), StatusCode::kInvalidArgument);  // in no step
  const StepEntry entry{id, 1};
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  const std::vector<SlabRead> wrong = {{0, 0, 0, 0}, {0, 0, 0, 1}};
  EXPECT_EQ(rig.store().reads().Announce(wrong).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.store().reads().Announce(one).ok());
  ASSERT_TRUE(rig.store().reads().Next().ok());
  rig.store().step().Abort();
  // Nothing is left of it in the next step.
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  EXPECT_EQ(rig.store().reads().Next().status().code(), StatusCode::kInvalidArgument);
  rig.store().step().Abort();
}

TEST(StoreReads, SlabsHeldOnTheHostStayThere) {
  RigOptions options = WithSlabs(OneColumn(), 2, 2, 0);
  Rig rig(options);
  ASSERT_TRUE(rig.Open().ok());
  const SequenceId first = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(first, 24).ok());
  const SequenceId second = *rig.NewSequence();
  ASSERT_TRUE(rig.Step(second, 24).ok());
  rig.Drop(first);  // there is room on the device now
  const StepEntry entry{second, 1};
  const SlabRead held{0, 0, 0, 0}, other{0, 0, 0, 1};
  const HostRead on_host{held, 0};
  EXPECT_EQ(rig.store().reads().HoldOnHost({&on_host, 1}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.store().step().Begin({&entry, 1}).ok());
  ASSERT_TRUE(rig.store().reads().HoldOnHost({&on_host, 1}).ok());
  const std::vector<SlabRead> both = {held, other};
  ASSERT_TRUE(rig.store().reads().Announce(both).ok());
  EXPECT_EQ(rig.store().reads().PlaceOf(held).tier, Tier::kHost);
  EXPECT_EQ(rig.store().reads().PlaceOf(other).tier, Tier::kDevice);
  const HostRead moved{other, 0};
  EXPECT_EQ(rig.store().reads().HoldOnHost({&moved, 1}).code(), StatusCode::kInvalidArgument);
  rig.store().step().Abort();
}

}  // namespace
}  // namespace headway::kv
