// Random operations on a store and on a plain model of it, compared bit by bit in every step.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/store/store.h"
#include "kv/testing/rig.h"

namespace headway::kv {
namespace {

const char* Name(PlacementKind kind) {
  switch (kind) {
    case PlacementKind::kFirstFit:
      return "first-fit";
    case PlacementKind::kLru:
      return "lru";
    case PlacementKind::kHostOnly:
      return "host-only";
    case PlacementKind::kDiskOnly:
      return "disk-only";
    case PlacementKind::kRecent:
      return "recent";
  }
  return "?";
}

// One random life of a store.
class Life {
 public:
  Life(uint64_t seed, PlacementKind kind, bool session, std::optional<Lane> slow_lane)
      : seed_(seed), kind_(kind), session_(session), slow_lane_(slow_lane), random_(seed) {}

  void set_env(Env* env) { env_ = env; }
  void set_keeps_x() { keeps_x_ = true; }

  void Run(int operations) {
    const RigOptions options = Options();
    SCOPED_TRACE(std::string("seed ") + std::to_string(seed_) + " " + Name(kind_) +
                 (session_ ? " session" : "") + " slots " +
                 std::to_string(options.store.format.page.page_slots) + " heads " +
                 std::to_string(options.store.format.kv_heads) + " group " +
                 std::to_string(options.store.format.group_heads) + " segment " +
                 std::to_string(options.store.format.segment_pages) + " slow " +
                 (slow_lane_ ? LaneName(*slow_lane_) : "none"));
    Rig rig(options);
    rig.Seed(seed_);
    Status status = rig.Open();
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) Operate(rig);
    for (int tier = 0; tier < kTierCount; ++tier) {
      reads_[tier] += rig.reads_from(static_cast<Tier>(tier));
    }
  }

  int64_t reads(Tier tier) const { return reads_[static_cast<int>(tier)]; }

 private:
  RigOptions Options() {
    RigOptions options;
    options.store = SmallStore();
    CacheFormat& format = options.store.format;
    format.layers = 1 + static_cast<int>(random_.Below(3));
    format.kv_heads = 1 + static_cast<int>(random_.Below(5));
    format.group_heads = 1 + static_cast<int>(random_.Below(format.kv_heads + 1));
    format.segment_pages = 1 + static_cast<int>(random_.Below(4));
    format.page.page_slots = random_.Below(2) == 0 ? 4 : 8;
    if (random_.Below(3) == 0) {
      for (int layer = 0; layer < format.layers; ++layer) {
        format.window.push_back(random_.Below(2) == 0 ? 0 : 1 + random_.Below(60));
      }
    }
    // Streaming heads, which a session does not keep.
    if (!session_ && random_.Below(2) == 0) {
      format.pattern.sink = random_.Below(20);
      format.pattern.recent = 1 + random_.Below(40);
      for (int layer = 0; layer < format.layers; ++layer) {
        std::vector<bool>& heads = format.pattern.streaming.emplace_back();
        for (int head = 0; head < format.kv_heads; ++head) heads.push_back(random_.Below(2) == 0);
      }
    }
    if (keeps_x_) {
      format.window.clear();
      format.pattern = {};
      format.group_heads = format.kv_heads;
      format.x_width = 1 + random_.Below(9);
      options.store.gather_tokens =
          format.segment_tokens() + random_.Below(9) * format.page.page_slots;
      options.store.gathers = 1 + static_cast<int>(random_.Below(3));
    }
    options.store.placement = kind_;
    if (kind_ == PlacementKind::kRecent) {
      options.store.sink_tokens = random_.Below(2 * format.segment_tokens());
      options.store.recent_tokens = random_.Below(2 * format.segment_tokens());
    }
    if (random_.Below(2) == 0) options.store.tables = PageTables::Sharing::kGroup;
    options.store.poison_freed = random_.Below(3) != 0;  // it orders lanes more than need be
    options.store.max_sequences = 1 + static_cast<int>(random_.Below(4));
    options.store.staging_slabs = 1 + static_cast<int>(random_.Below(3));
    options.store.bounce_slabs = 1 + static_cast<int>(random_.Below(3));
    options.session = session_;
    options.slow_lane = slow_lane_;
    options.delay_us = 60;
    options.env = env_;
    options.asynchronous = random_.Below(4) != 0;
    const StoreFootprint fixed = FootprintOf(options.store);
    const int64_t slab = format.slab_bytes();
    const int64_t columns = int64_t{format.layers} * format.max_head_groups();
    options.device_bytes = fixed.open_pages + fixed.append_buffer + fixed.streaming_heads +
                           fixed.staging + random_.Below(4 * columns + 1) * slab +
                           random_.Below(slab);
    options.host_bytes = fixed.bounce + random_.Below(4 * columns + 1) * slab;
    options.disk_bytes =
        random_.Below(4) == 0 ? (8 + random_.Below(20 * columns + 1)) * slab : kUnlimited;
    return options;
  }

  std::vector<StepEntry> Entries(Rig& rig) {
    std::vector<StepEntry> entries;
    int64_t left = 256;
    for (const SequenceId id : rig.Live()) {
      if (left < 2 || (random_.Below(3) == 0 && !entries.empty())) continue;
      int64_t tokens = 1;
      const int64_t kind = random_.Below(6);
      if (kind == 1) tokens = 2 + random_.Below(7);
      if (kind == 2) tokens = 1 + random_.Below(60);
      if (kind == 3 && rig.store().Length(id) < 300) tokens = 1 + random_.Below(200);
      tokens = std::min(tokens, left);
      StepEntry entry{id, tokens};
      const int64_t slots = rig.store().format().page.page_slots;
      const int64_t room = std::min(left, slots - 1 - rig.store().Length(id) % slots);
      if (kind == 4 && room > 1) {
        entry.tokens = 2 + random_.Below(room - 1);
        entry.drafts = 1 + random_.Below(entry.tokens);
      }
      left -= entry.tokens;
      entries.push_back(entry);
    }
    return entries;
  }

  void Operate(Rig& rig) {
    const std::vector<SequenceId> live = rig.Live();
    const int x_segments = keeps_x_ ? static_cast<int>(random_.Below(6)) : 0;
    if (live.empty()) {
      ASSERT_TRUE(rig.NewSequence(x_segments).ok());
      return;
    }
    const SequenceId any =
        live[static_cast<size_t>(random_.Below(static_cast<int64_t>(live.size())))];
    const int64_t length = rig.store().Length(any);
    const int64_t what = random_.Below(20);
    if (what == 0) {
      (void)rig.NewSequence(x_segments).ok();
    } else if (what <= 2) {
      (void)rig.Fork(any).ok();
    } else if (what == 3) {
      rig.Drop(any);
    } else if (what <= 5) {
      (void)rig.Truncate(any, random_.Below(length + 10)).ok();
    } else if (what == 6) {
      const std::vector<StepEntry> entries = Entries(rig);
      rig.AbortedStep(entries, static_cast<int>(random_.Below(rig.store().format().layers + 1)));
    } else if (what == 7 && session_) {
      SaveOrReopen(rig, any);
    } else {
      StepOrMakeRoom(rig, any);
    }
    // Rarely: waiting for the kernels would hide what must be ordered across calls.
    if (random_.Below(8) == 0) {
      ASSERT_EQ(rig.Mismatches(), 0);
    }
  }

  void StepOrMakeRoom(Rig& rig, SequenceId any) {
    const std::vector<StepEntry> entries = Entries(rig);
    Status status = rig.Step(entries);
    if (status.ok()) {
      for (const StepEntry& entry : entries) {
        ASSERT_TRUE(rig.TakeBack(entry.sequence, random_.Below(entry.drafts + 1)).ok());
      }
      return;
    }
    ASSERT_EQ(status.code(), StatusCode::kOutOfBudget) << status.message();
    if (random_.Below(2) == 0) {
      rig.Drop(any);
    } else {
      (void)rig.Truncate(any, rig.store().Length(any) / 2).ok();
    }
  }

  void SaveOrReopen(Rig& rig, SequenceId id) {
    Status status = rig.Save(id);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), StatusCode::kOutOfBudget) << status.message();
      return;
    }
    if (random_.Below(2) == 0) return;
    status = rig.Open();
    ASSERT_TRUE(status.ok()) << status.message();
    Result<SequenceId> restored = rig.Restore();
    ASSERT_TRUE(restored.ok()) << restored.status().message();
  }

  const uint64_t seed_;
  const PlacementKind kind_;
  const bool session_;
  const std::optional<Lane> slow_lane_;
  Env* env_ = nullptr;
  bool keeps_x_ = false;
  Random random_;
  int64_t reads_[kTierCount] = {};
};

constexpr PlacementKind kKinds[] = {PlacementKind::kFirstFit, PlacementKind::kLru,
                                    PlacementKind::kHostOnly, PlacementKind::kDiskOnly,
                                    PlacementKind::kRecent};

TEST(StoreModel, RandomLivesOfEveryPlacement) {
  for (const PlacementKind kind : kKinds) {
    int64_t reads[kTierCount] = {};
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      Life life(seed * 4 + static_cast<uint64_t>(kind), kind, seed % 2 == 0, std::nullopt);
      life.Run(40);
      if (HasFailure()) return;
      for (int tier = 0; tier < kTierCount; ++tier)
        reads[tier] += life.reads(static_cast<Tier>(tier));
    }
    // The budgets are such that the tiers were really used.
    if (kind != PlacementKind::kHostOnly && kind != PlacementKind::kDiskOnly) {
      EXPECT_GT(reads[0], 0) << Name(kind);
    }
    if (kind != PlacementKind::kDiskOnly) {
      EXPECT_GT(reads[1], 0) << Name(kind);
    }
    EXPECT_GT(reads[2], 0) << Name(kind);
  }
}

// Of sequences whose first segments keep X, with every lane slow in turn.
TEST(StoreModel, RandomLivesThatKeepX) {
  for (const PlacementKind kind : kKinds) {
    for (int lane = -1; lane < kLaneCount; ++lane) {
      Life life(200 + static_cast<uint64_t>(lane), kind, false,
                lane < 0 ? std::nullopt : std::optional(static_cast<Lane>(lane)));
      life.set_keeps_x();
      life.Run(25);
      if (HasFailure()) return;
    }
  }
}

TEST(StoreModel, RandomLifeOnARealDisk) {
  for (const bool session : {false, true}) {
    Life life(5, PlacementKind::kDiskOnly, session, std::nullopt);
    life.set_env(Env::Default());
    life.Run(15);
  }
}

TEST(StoreModel, ASlowLaneChangesNothing) {
  for (const PlacementKind kind : kKinds) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      Life life(77 + static_cast<uint64_t>(lane), kind, lane % 2 == 0, static_cast<Lane>(lane));
      life.Run(15);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headway::kv
