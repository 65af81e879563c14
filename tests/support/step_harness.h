// StepHarness: a model, a store and an executor under a configuration that tests choose, with
// access to the logits of every token. The environment variable HEADWAY_TEST_CONFIG makes every
// harness of a test program run under another default: force_evict, tiny_page, disk_only,
// one_head_group, weights (the weights of all layers but one stream), disk_weights (all of them,
// those of two layers from disk), host_half and host_all (the host's cores attend to half, or all,
// of what would stream in decode), recompute_some and recompute_all (where there are no windows).
// HEADWAY_TEST_DEVICE=cuda runs them on a GPU.
#ifndef HEADWAY_TESTS_SUPPORT_STEP_HARNESS_H_
#define HEADWAY_TESTS_SUPPORT_STEP_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/budget.h"
#include "device/trace.h"
#include "engine/assembly.h"
#include "engine/blueprint.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"
#include "support/delaying_device.h"

namespace headway::testing {

struct HarnessConfig {
  int64_t chunk = 64;
  int64_t stretch = 0;  // tokens of prompts that pass layer by layer, at most
  int group_heads = 0;  // 0: all KV heads
  int64_t segment_pages = 2;
  int page_slots = 16;
  kv::PlacementKind placement = kv::PlacementKind::kFirstFit;
  // Slabs that fit on the device and the host; the rest goes to disk.
  int64_t device_slabs = 1 << 20;
  int64_t host_slabs = 1 << 20;
  int staging_slabs = 2;
  int64_t page_cache_bytes = 0;
  int64_t listed_slabs = 0;  // for pages on disk that are listed, beside those of two rounds
  // The first so many segments of each sequence are recomputed; 1 << 20: all.
  int x_segments = 0;
  int64_t gather_pages = 0;  // of a gather; 0: of a segment and a half
  kv::HeadPattern pattern;
  kv::SelectionPolicy selection;
  Tier sketches = Tier::kDevice;  // where those of its second looks lie
  kv::EvictionPolicy eviction;    // the store then holds one prompt at a time
  kv::SaliencePolicy salience;
  bool salient_on_host = false;
  double salient_by_cores = 1.0;  // of those on the host
  bool poison_freed = false;
  SelfExtend self_extend;
  bool host = false;        // there is a path `host`
  double host_share = 0.0;  // of it; above 0 there is one
  bool adapt = false;       // correct it after each step
  int weight_layers = -1;   // whose weights stay on the device; -1: all. As first used of a model
  int disk_layers = 0;      // of the others, those that are read from disk; the same
  int64_t drafts = 0;       // that a decode step verifies, at most
  int64_t sum_rows = 0;     // of a piece that ranks add up; 0: as in a context
  int threads = 2;
  std::string isa = "auto";
  Encoding encoding = Encoding::kNone;
  bool use_ref_kernels = false;  // on the CPU, with a model that was not moved
  // Not null: lanes are delayed as it says, and kernels run behind the caller's back on the CPU,
  // too. Outlives the harness.
  Delays* delays = nullptr;
  bool apart = false;  // the host is not to read the device's memory: it has an ApartDevice
  LaneWaitFilter wait_filter;
  std::string session;  // the file of one, made anew unless it is there; empty: none
  // Of the ranks of which this one is with its shard of a model; null: the model is whole.
  Communicator* communicator = nullptr;
  // Which of them has which heads, of eviction; null: the model is whole. Outlives Create.
  const RankHeads* heads = nullptr;
  // Makes other kernels of them.
  std::function<std::unique_ptr<Kernels>(std::unique_ptr<Kernels>)> wrap_kernels;

  // The default, changed as HEADWAY_TEST_CONFIG says.
  static HarnessConfig Default();
};

// "cpu", or what HEADWAY_TEST_DEVICE says.
std::string TestDevice();

// Logits [token][vocab].
using LogitRows = std::vector<std::vector<float>>;

class StepHarness {
 public:
  // Moves the model to the test device unless it is there; layers stream as the first harness of a
  // model has it.
  static Result<std::unique_ptr<StepHarness>> Create(Model& model, const HarnessConfig& config,
                                                     int sequences, int64_t max_length,
                                                     Env* env = Env::Default());

  kv::Store& store() { return *assembly_.store; }
  Executor& executor() { return *assembly_.executor; }
  Stream& compute() { return *assembly_.compute; }
  Lanes& lanes() { return *assembly_.lanes; }
  const Trace& trace() const { return trace_; }
  // Where the configuration lets tokens go: what prompts leave behind.
  Evictor& evictor() { return *assembly_.evictor; }
  Salience& salience() { return *assembly_.salience; }
  kv::Store& kept_store() { return *assembly_.kept_store; }
  Demoted& demoted() { return *assembly_.demoted; }
  // Where a configuration has it.
  HostAttention& host_attention() { return *assembly_.host_attention; }
  // Of what lies in host memory, what the host attends to now.
  double host_share() const { return assembly_.host_share.share(); }

  Result<kv::SequenceId> NewSequence() { return store().CreateSequence(x_segments_); }
  // Appends tokens in chunks of at most `chunk`; returns the logits behind each.
  Result<LogitRows> Append(kv::SequenceId sequence, std::span<const TokenId> tokens,
                           const RopeFrequencies& rope);
  // One step of several sequences, all logits; [sequence][token].
  Result<std::vector<LogitRows>> Step(std::span<const StepInput> inputs) {
    return Step(executor(), inputs);
  }
  // The same of sequences of the kept store.
  Result<std::vector<LogitRows>> StepKept(std::span<const StepInput> inputs) {
    return Step(*assembly_.kept_executor, inputs);
  }

  ~StepHarness();

 private:
  StepHarness() = default;
  // The blueprint that a context would be built by, of a plan that the configuration makes.
  Result<Blueprint> Draw(const BackendInfo& backend, const Workload& workload,
                         const std::string& disk_directory) const;
  plan::Plan PlanFor(const ModelConfig& model, const Workload& workload) const;
  // Moves what the configuration wants elsewhere, unless an earlier harness has.
  Status PlaceWeights(Model& model, const Backend& backend, const std::string& disk_directory);
  // The kernels, and around them and the device what the configuration asks for.
  Status MakeKernels(Backend& backend);
  // Sets those of the layout's store, too.
  void MakeBudgets(Layout* layout);
  Status MakeHost(const Layout& layout);
  // Null where there is to be none.
  Result<std::unique_ptr<kv::SlabFile>> OpenSession(const kv::StoreOptions& options);
  static Result<std::vector<LogitRows>> Step(Executor& executor, std::span<const StepInput> inputs);

  HarnessConfig config_;
  int x_segments_ = 0;  // of each sequence
  Trace trace_;
  std::unique_ptr<Budget> device_budget_, host_budget_;
  Budget disk_budget_{"disk", kUnlimited}, memory_budget_{"memory", kUnlimited};
  std::unique_ptr<ThreadPool> pool_, host_pool_;
  Assembly assembly_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_STEP_HARNESS_H_
