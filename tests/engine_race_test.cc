// Work that comes late never changes a bit: thousands of steps with the kernels or the copies of
// one lane after the other delayed, compared with the same steps undelayed. And to know that such a
// test sees races at all: every wait between two lanes of the store is left out in turn, and each
// time something must go wrong.
//
// HEADWAY_RACE_STEPS is the number of delayed steps, 10,000 when unset; HEADWAY_TEST_DEVICE=cuda
// runs them on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "model/rope.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kLongest = 60;
constexpr int kVocab = 96;
constexpr int64_t kChunk = 21;
constexpr Lane kTurns[] = {Lane::kCompute,     Lane::kHostToDevice, Lane::kDeviceToHost,
                           Lane::kHostCompute, Lane::kDiskWrite,    Lane::kDiskRead,
                           Lane::kDiskWeights};

struct NamedPlan {
  const char* name;
  HarnessConfig config;
};

// Plans whose steps choose among keys.
std::vector<NamedPlan> Selecting(const HarnessConfig& first_fit) {
  // Host memory is read in place, and what is oldest goes down to it.
  HarnessConfig selection = first_fit;
  selection.placement = kv::PlacementKind::kRecent;
  selection.page_slots = 8;
  selection.selection = {{SummaryKind::kMoments, 8}, 8, 1, 1, BudgetShare::kHead};
  selection.selection.prompts = kv::SelectionPolicy::Prompts::kSelected;
  selection.page_cache_bytes = 64 << 10;
  // Candidates that some steps keep, by sketches in host memory.
  HarnessConfig sketches = selection;
  sketches.selection.summary.sketch = SketchKind::kTwoBits;
  sketches.selection.breadth = 3;
  sketches.selection.candidates_refresh = 3;
  sketches.sketches = Tier::kHost;
  sketches.page_cache_bytes = 0;
  // Beyond the trained window, which tables of angles come up for.
  HarnessConfig reaching = selection;
  reaching.selection.distance = 8;
  // Most of what is listed comes up from disk, page by page.
  HarnessConfig from_disk = selection;
  from_disk.selection.prompts = kv::SelectionPolicy::Prompts::kExact;
  from_disk.device_slabs = 6;
  from_disk.host_slabs = 4;
  // Keys are read to choose, by stages of which steps keep what survived.
  HarnessConfig stages = selection;
  stages.selection.summary.kind = SummaryKind::kStages;
  stages.selection.stages = {{{32, 32, 4}, {16, 16, 2}}};
  return {{"selection", selection},
          {"sketches", sketches},
          {"listed from disk", from_disk},
          {"stages", stages},
          {"reaching", reaching}};
}

// Plans in which every way of a page comes up: up and down between all tiers, through staging and
// bounce buffers of which there are hardly enough. In two of them the weights of all layers
// stream, too, from host memory or from disk.
std::vector<NamedPlan> Plans() {
  HarnessConfig base;
  base.chunk = kChunk;
  base.page_slots = 4;
  base.segment_pages = 2;
  base.group_heads = 2;
  base.threads = 1;
  HarnessConfig first_fit = base, lru = base, disk = base;
  first_fit.device_slabs = 20;
  first_fit.host_slabs = 12;
  lru.placement = kv::PlacementKind::kLru;
  lru.group_heads = 3;
  lru.device_slabs = 4;
  lru.host_slabs = 8;
  lru.staging_slabs = 1;
  disk.placement = kv::PlacementKind::kDiskOnly;
  disk.group_heads = 3;
  disk.staging_slabs = 1;
  HarnessConfig host = base;
  host.placement = kv::PlacementKind::kHostOnly;
  host.host_slabs = 30;
  host.host_share = 0.6;
  HarnessConfig weights = base;
  weights.placement = kv::PlacementKind::kHostOnly;
  weights.host_slabs = 30;
  weights.weight_layers = 0;
  HarnessConfig disk_weights = weights;
  disk_weights.disk_layers = 3;
  HarnessConfig recompute = base;
  recompute.placement = kv::PlacementKind::kHostOnly;
  recompute.group_heads = 3;
  recompute.staging_slabs = 1;
  recompute.x_segments = 4;
  std::vector<NamedPlan> plans = Selecting(first_fit);
  plans.insert(plans.end(), {{"first-fit", first_fit},
                             {"lru", lru},
                             {"disk-only", disk},
                             {"host", host},
                             {"weights", weights},
                             {"recompute", recompute},
                             {"disk-weights", disk_weights}});
  return plans;
}

std::unique_ptr<Model> Tiny() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.shape = {3, 48, 6, 3, 16, 80, kVocab, DType::kBF16};
  config.tied_embeddings = true;
  config.windows.assign(3, 0);
  config.max_position = 4096;
  Result<std::unique_ptr<Model>> model = Model::Random(Env::Default(), config, 11, nullptr);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

// Two sequences that grow by chunks and by single tokens, in steps of one or of both, are forked,
// cut and begun anew: the same way for the same seed.
class Life {
 public:
  Life(Model& model, const HarnessConfig& config, uint64_t seed)
      : random_(seed), rope_(ComputeRope(model.config().rope, model.shape().head_dim, kLongest)) {
    Result<std::unique_ptr<StepHarness>> made = StepHarness::Create(model, config, 2, kLongest);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) harness_ = std::move(*made);
  }
  bool ok() const { return harness_ != nullptr; }

  // A hash of the logits of the next step, 0 where it asks for none.
  Result<uint64_t> Step() {
    for (std::optional<kv::SequenceId>& id : ids_) {
      if (Status s = Tend(&id); !s.ok()) return s;
    }
    std::vector<StepInput> inputs;
    std::vector<TokenId> tokens[2];
    const int64_t kind = random_.Below(4);
    const bool chunk = kind == 0;
    const int64_t which = random_.Below(3);  // 2: both
    for (int64_t i = 0; i < 2; ++i) {
      if (which == 1 - i) continue;
      const int64_t most = chunk ? kChunk / 2 : 1;
      const int64_t room = kLongest - Length(i);
      const int64_t count = std::min(room, 1 + random_.Below(most));
      for (int64_t t = 0; t < count; ++t) {
        tokens[i].push_back(static_cast<TokenId>(random_.Below(kVocab)));
      }
      // Without logits, steps run one into the other.
      inputs.push_back(
          {*ids_[i], tokens[i], &rope_, kind < 2 ? LogitsMode::kNone : LogitsMode::kAll});
    }
    Result<std::vector<LogitRows>> rows = harness_->Step(inputs);
    if (!rows.ok()) return rows.status();
    uint64_t hash = 0;
    for (const LogitRows& entry : *rows) {
      for (const std::vector<float>& row : entry) hash = Hash(hash, row);
    }
    return hash;
  }

 private:
  int64_t Length(int64_t i) { return harness_->store().Length(*ids_[i]); }

  // Makes, forks, cuts or drops a sequence now and then.
  Status Tend(std::optional<kv::SequenceId>* id) {
    kv::Store& store = harness_->store();
    const std::optional<kv::SequenceId> other = id == &ids_[0] ? ids_[1] : ids_[0];
    const int64_t chance = random_.Below(12);
    const bool full = id->has_value() && store.Length(**id) >= kLongest;
    if (id->has_value() && (full || chance == 0)) {
      store.Drop(**id);
      id->reset();
    } else if (id->has_value() && chance == 1) {
      return store.Truncate(**id, random_.Below(kLongest)).status();
    }
    if (id->has_value()) return OkStatus();
    const bool fork = other.has_value() && store.Length(*other) < kLongest && chance % 2 == 0;
    Result<kv::SequenceId> made = fork ? store.Fork(*other) : harness_->NewSequence();
    if (made.ok()) *id = *made;
    return made.status();
  }

  // FNV-1a over the bits.
  static uint64_t Hash(uint64_t hash, std::span<const float> row) {
    for (const std::byte byte : std::as_bytes(row)) {
      hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3u;
    }
    return hash + 1;
  }

  Random random_;
  const RopeFrequencies rope_;
  std::unique_ptr<StepHarness> harness_;
  std::optional<kv::SequenceId> ids_[2];
};

// The hashes of `steps` undelayed steps of a plan.
std::vector<uint64_t> Undelayed(Model& model, const HarnessConfig& config, uint64_t seed,
                                int64_t steps) {
  Life life(model, config, seed);
  std::vector<uint64_t> hashes;
  for (int64_t step = 0; life.ok() && step < steps; ++step) {
    Result<uint64_t> hash = life.Step();
    EXPECT_TRUE(hash.ok()) << hash.status().message();
    if (!hash.ok()) break;
    hashes.push_back(*hash);
  }
  return hashes;
}

int64_t DelayedSteps() {
  const char* value = std::getenv("HEADWAY_RACE_STEPS");
  return value == nullptr ? 10000 : std::atoll(value);
}

TEST(EngineRace, DelaysNeverChangeABit) {
  const std::vector<NamedPlan> plans = Plans();
  const auto turns = static_cast<int64_t>(std::size(kTurns));
  const int64_t of_a_turn = DelayedSteps() / (static_cast<int64_t>(plans.size()) * turns) + 1;
  for (const NamedPlan& plan : plans) {
    const std::unique_ptr<Model> model = Tiny();
    const std::vector<uint64_t> expected = Undelayed(*model, plan.config, 1, of_a_turn * turns);
    ASSERT_EQ(expected.size(), static_cast<size_t>(of_a_turn * turns));
    Delays delays(7);
    HarnessConfig config = plan.config;
    config.delays = &delays;
    Life life(*model, config, 1);
    ASSERT_TRUE(life.ok());
    for (size_t step = 0; step < expected.size(); ++step) {
      const Lane lane = kTurns[static_cast<int64_t>(step) % turns];
      delays.Set(lane, /*every=*/16);
      Result<uint64_t> hash = life.Step();
      ASSERT_TRUE(hash.ok()) << hash.status().message();
      ASSERT_EQ(*hash, expected[step])
          << plan.name << ", step " << step << ", " << LaneName(lane) << " delayed";
    }
  }
}

// A wait between two lanes: where it is in the code, who waits, and for whom.
using WaitKey = std::tuple<std::string, std::string, std::string>;

WaitKey KeyOf(const LaneWait& wait) {
  const std::string file = wait.file;
  return {file.substr(file.rfind('/') + 1) + ":" + std::to_string(wait.line), LaneName(wait.waiter),
          LaneName(wait.awaited)};
}

// The waits that come up in `steps` steps of a plan when lanes are late, with the lane to delay.
std::map<WaitKey, Lane> WaitsOf(Model& model, const HarnessConfig& plan, uint64_t seed,
                                int64_t steps) {
  std::map<WaitKey, Lane> waits;
  Delays delays(7);
  HarnessConfig config = plan;
  config.delays = &delays;
  config.wait_filter = [&](const LaneWait& wait) {
    waits[KeyOf(wait)] = wait.awaited;
    return true;
  };
  Life life(model, config, seed);
  for (int64_t step = 0; life.ok() && step < steps; ++step) {
    delays.Set(kTurns[static_cast<size_t>(step) % std::size(kTurns)]);
    const Result<uint64_t> hash = life.Step();
    EXPECT_TRUE(hash.ok()) << hash.status().message();
  }
  return waits;
}

// Steps without one of their waits.
struct Unwaited {
  int64_t left_out = 0;           // how often it would have come up
  int64_t first_difference = -1;  // the first step that goes wrong, or -1
};

Unwaited StepsWithout(Model& model, const HarnessConfig& plan, uint64_t seed,
                      const WaitKey& left_out, Lane late, const std::vector<uint64_t>& expected) {
  Unwaited unwaited;
  Delays delays(7);
  delays.Set(late, /*every=*/1, /*least_us=*/200, /*most_us=*/400);
  HarnessConfig config = plan;
  config.delays = &delays;
  config.wait_filter = [&](const LaneWait& wait) {
    const bool kept = KeyOf(wait) != left_out;
    unwaited.left_out += kept ? 0 : 1;
    return kept;
  };
  Life life(model, config, seed);
  for (size_t step = 0; life.ok() && step < expected.size(); ++step) {
    const Result<uint64_t> hash = life.Step();
    if (!hash.ok() || *hash != expected[step]) {
      unwaited.first_difference = static_cast<int64_t>(step);
      break;
    }
  }
  return unwaited;
}

TEST(EngineRace, EveryWaitLeftOutIsSeen) {
#ifdef HEADWAY_SANITIZED
  GTEST_SKIP() << "races on purpose";
#endif
  constexpr int64_t kSteps = 120;
  constexpr uint64_t kLives = 10;
  // A wait that matters only when a sequence is dropped at one moment, and another takes its memory
  // at the next, comes up in few lives, by how quick the machine is, and changes something in fewer
  // yet: in ten lives, such waits were left out up to 80 times unseen. One that nothing needs comes
  // up in all of them: one of each layer was left out 36,000 times.
  constexpr int64_t kTooOften = 300;
  const std::vector<NamedPlan> plans = Plans();
  std::set<WaitKey> seen;
  std::map<WaitKey, int64_t> unseen;  // and how often each was left out
  // What one life does not show, another does, in this plan or in one where it did not come up yet.
  for (uint64_t seed = 1; seed == 1 || (seed <= kLives && !unseen.empty()); ++seed) {
    for (const NamedPlan& plan : plans) {
      const std::unique_ptr<Model> model = Tiny();
      const std::vector<uint64_t> expected = Undelayed(*model, plan.config, seed, kSteps);
      ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
      for (const auto& [key, late] : WaitsOf(*model, plan.config, seed, kSteps)) {
        if (seen.contains(key)) continue;
        const Unwaited without = StepsWithout(*model, plan.config, seed, key, late, expected);
        if (without.first_difference < 0) {
          unseen[key] += without.left_out;
          continue;
        }
        unseen.erase(key);
        seen.insert(key);
        std::printf("%s: %s waits for %s: seen in step %d of %s, life %d\n",
                    std::get<0>(key).c_str(), std::get<1>(key).c_str(), std::get<2>(key).c_str(),
                    static_cast<int>(without.first_difference), plan.name, static_cast<int>(seed));
      }
    }
  }
  EXPECT_GE(seen.size(), 10u);
  for (const auto& [key, times] : unseen) {
    EXPECT_LT(times, kTooOften) << std::get<0>(key) << ": " << std::get<1>(key)
                                << " need not wait for " << std::get<2>(key);
    std::printf("%s: %s waits for %s: left out %d times and not seen\n", std::get<0>(key).c_str(),
                std::get<1>(key).c_str(), std::get<2>(key).c_str(), static_cast<int>(times));
  }
}

}  // namespace
}  // namespace headway::testing
