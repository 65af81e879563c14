// Rig: a store on the CPU device, whose lanes can be made slow, with a plain model of what every
// sequence holds, compared bit by bit. What the tests of the store share.
#ifndef HEADWAY_KV_TESTING_RIG_H_
#define HEADWAY_KV_TESTING_RIG_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "base/test_dir.h"
#include "device/device.h"
#include "device/lanes.h"
#include "device/trace.h"
#include "kv/store/store.h"
#include "kv/testing/memory_env.h"

namespace headway::kv {

struct RigOptions {
  StoreOptions store;  // budgets are filled in
  int64_t device_bytes = kUnlimited;
  int64_t host_bytes = kUnlimited;
  int64_t disk_bytes = kUnlimited;
  bool disk = true;
  bool session = false;
  // The kernels' stream works in its own time, as an accelerator does, not on the caller's.
  bool asynchronous = true;
  std::optional<Lane> slow_lane;
  int delay_us = 200;
  Env* env = nullptr;  // null: a MemoryEnv
};

// A cache of 2 layers and 3 heads with pages of 4 slots.
StoreOptions SmallStore();
// One layer, one group: a slab a segment of 12 tokens.
RigOptions OneColumn();
// All slabs that the rig's store can hold in each tier.
RigOptions WithSlabs(RigOptions options, int64_t device, int64_t host, int64_t disk);

class Rig {
 public:
  explicit Rig(const RigOptions& options);
  ~Rig();

  // Makes the store (again): with a session, from its file.
  Status Open();
  void Close();
  Store& store() { return *store_; }

  // Creates, forks and drops in store and model alike.
  Result<SequenceId> NewSequence(int x_segments = 0);
  Result<SequenceId> Fork(SequenceId from);
  void Drop(SequenceId id);
  Result<int64_t> Truncate(SequenceId id, int64_t tokens);
  Status TakeBack(SequenceId id, int64_t tokens);
  Status Save(SequenceId id);
  // The file must hold what was saved last, or what a later save that failed wanted to.
  Result<SequenceId> Restore();
  bool has_saved() const { return last_saved_ >= 0; }
  int last_saved() const { return last_saved_; }
  // Takes over what another rig asked to be saved, of which number `last` is known to have been.
  void AdoptSaves(const Rig& other, int last) {
    save_attempts_ = other.save_attempts_;
    last_saved_ = last;
  }
  std::vector<SequenceId> Live() const;
  // What a step would be told of closed pages on the device beside the slabs in order_.
  void CheckResident(size_t entries);
  // Copies of the slow lane fail from now on, for as long as its stream is there.
  void Break() { broken_ = true; }

  // One step in which every visible key of every entry is compared with the model, before the
  // entries' new tokens join it.
  Status Step(std::span<const StepEntry> entries);
  Status Step(SequenceId id, int64_t tokens);
  // Gives the step up after `layers` layers.
  void AbortedStep(std::span<const StepEntry> entries, int layers);

  // Differences found so far; waits for the kernels.
  int64_t Mismatches();
  // Lets the store finish what is under way, without a check.
  void Drain() { (void)compute_->Synchronize().ok(); }
  Lanes& lanes() { return *lanes_; }

  Budget& device_budget() { return device_budget_; }
  Budget& host_budget() { return host_budget_; }
  Budget& disk_budget() { return disk_budget_; }
  Trace& trace() { return trace_; }
  std::string session_path() const {
    return (options_.env == Env::Default() ? directory_.path() : "") + "/session";
  }
  int64_t reads_from(Tier tier) const { return reads_from_[static_cast<size_t>(tier)]; }
  Random& random() { return random_; }
  void Seed(uint64_t seed) { random_ = Random(seed); }

 private:
  Status RunLayer(std::span<const StepEntry> entries, int layer);
  Status AnnounceLayer(int layer);
  Status ReadLayer(std::span<const StepEntry> entries, int layer);
  void Write(const StepEntry& entry, int index, int layer);
  void WriteX(const StepEntry& entry, int index, int layer);
  void CompareX(const SlabView& view, int index, int layer);
  // Compares the run with the tokens of entry `index`, on the compute stream.
  void Compare(const KeyRun& keys, int index, int layer, int group);
  void CheckSegments(std::span<const StepEntry> entries, int index, int layer);
  void CheckVersions();
  void CheckStreaming(const StepEntry& entry, int index, int layer);

  RigOptions options_;
  MemoryEnv memory_env_;
  TestDir directory_;
  Budget device_budget_, host_budget_, disk_budget_;
  Trace trace_;
  std::atomic<bool> broken_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Store> store_;
  // What a token's K and V are is a function of its tag, layer, head and element.
  std::map<SequenceId, std::vector<uint64_t>> model_;
  // What Save was asked to save, and the last of them that it said it did.
  std::vector<std::vector<uint64_t>> save_attempts_;
  int last_saved_ = -1;
  std::vector<std::vector<uint64_t>> step_tokens_;  // with the new ones, by entry
  // The tags of a page, layer and group that a slab's version and a page of it have stood for.
  std::map<std::pair<uint32_t, int>, std::vector<uint64_t>> named_;
  std::vector<SlabRead> order_;
  size_t next_read_ = 0;
  bool announces_by_layer_ = false;  // in the step at hand: else all reads were announced ahead
  // One a step. The kernels of a step that fails may have seen anything: theirs does not count.
  std::vector<std::shared_ptr<std::atomic<int64_t>>> mismatches_;
  int64_t reads_from_[kTierCount] = {};
  Random random_{1};
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TESTING_RIG_H_
