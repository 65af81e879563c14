// Executor: runs one step, a batch of sequences with their new tokens, through all layers. Each
// layer's attention is the sum of what the paths (engine/paths) leave on the board (engine/step).
//
// Split boundaries (segments, and FittedSplit within them) and merge order depend on model,
// processor and lengths of the step's sequences, so where a page lies and when it arrives never
// changes a bit of the result. The path `host` cuts and adds otherwise: what it is given depends on
// its share and on which pages lie in host memory.
#ifndef HEADWAY_ENGINE_EXECUTOR_H_
#define HEADWAY_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/budget.h"
#include "device/device.h"
#include "device/lanes.h"
#include "engine/paths/host_options.h"
#include "engine/paths/path.h"
#include "engine/step/batch.h"
#include "engine/step/block_mass.h"
#include "engine/step/board.h"
#include "engine/step/far_mass.h"
#include "engine/step/hidden_states.h"
#include "engine/step/input.h"
#include "engine/step/layer_relay.h"
#include "engine/step/limits.h"
#include "engine/step/logits.h"
#include "engine/step/observed_queries.h"
#include "engine/step/query_moments.h"
#include "engine/step/reads.h"
#include "engine/step/residual_sums.h"
#include "engine/step/step_context.h"
#include "engine/step/turns.h"
#include "engine/step/weight_stream.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/store/store.h"
#include "model/model.h"

namespace headway {

// What an executor is made of; everything outlives it.
struct ExecutorParts {
  const Model& model;
  Kernels& kernels;  // prepared
  Device& device;
  Stream& compute;
  Lanes& lanes;
  kv::Store& store;
  Budget& budget;         // of the device's memory
  Budget& host_budget;    // of memory that results come to, where the host does not read that
  HostOptions host = {};  // of the path `host`
  WeightStream* weights = nullptr;       // brings the layers that are not resident; null: all are
  HiddenStates* hidden = nullptr;        // of stretches; null where the limits have none
  Salience* salience = nullptr;          // of the path `salient`; null without it
  Communicator* communicator = nullptr;  // of ranks that share the model; null: it is whole
  bool by_layers = false;                // these have a run of its layers each, else shards
  Demoted* demoted = nullptr;            // of the path `demoted`; null without it
  const SharedHeads* shared = nullptr;   // of which other ranks have a part; null: there are none
  Trace* trace = nullptr;                // is told of each layer; null: nobody asks
};

class Executor {
 public:
  // Bytes that Create takes from the device's budget; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                       const KernelSizes& kernels);
  static Result<std::unique_ptr<Executor>> Create(const ExecutorParts& parts,
                                                  const ExecutorLimits& limits);
  ~Executor() { Synchronize().ok(); }  // work under way uses its memory

  const ExecutorLimits& limits() const { return context_.limits; }

  // Where no input WantsLogits it may return while the step still runs; what is enqueued is never
  // more than as many layers as a step has, so that a wish to stop is met within a chunk.
  // kCancelled when *cancel (may be null) turned true: the step was given up, see kv::Step::Abort.
  // Of ranks the first's counts, before a step begins.
  // After any error the step was given up, unless it is kCorrupt: a sampler found no finite logit,
  // or a loss is not finite.
  //
  // Prompts of more tokens than a step has, up to the limits' stretch, pass through one layer after
  // the other, in the parts that steps of all layers would have, with the same bits: so each
  // layer's weights come to the device once for all of them. None of their logits go to the sink.
  Status Step(std::span<const StepInput> inputs, const LogitsSink& sink,
              const std::atomic<bool>* cancel);

  // Where keys are chosen, what lies on disk of a sequence, whose keys `rope` has rotated, such as
  // all that a session holds, comes up before the first step, so that it can be listed: all of it
  // where the context reaches beyond the trained window or chooses salient tokens, else as much as
  // memory holds.
  Status BringUp(kv::SequenceId sequence, const RopeFrequencies& rope,
                 const kv::UpProgress& progress);

  // The last queries of the prompt that was read last, where the limits ask for some.
  const ObservedQueries& observed() const { return *observed_; }
  // How its queries are distributed, where the limits ask for that.
  const QueryMoments& moments() const { return *moments_; }

  // A step of one token, of which it says how the attention of each query head spreads: far
  // [layers, query_heads] is the share that falls on keys that are not near. Not with streaming
  // heads; limits().step_tokens is at least 2.
  Status StepWithFarMass(const StepInput& input, const NearKeys& near, std::span<float> far);

  // A step of one token that attends to all keys, of which it adds to `recall` how much of the
  // attention falls on the blocks that the path of selection would have listed. Where the host
  // reads the device's memory, without streaming heads.
  Status StepWithRecall(const StepInput& input, SelectionRecall* recall);

  // What its decode steps have listed, where they choose among keys, and what prompts have.
  Result<ListedBlocks> listed() const { return context_.listed.Read(context_.compute); }
  Result<ListedBlocks> listed_of_prompts() const {
    return context_.listed_of_prompts.Read(context_.compute);
  }

  // After each step, of what its only entry's first position was; an error is the step's.
  using StepSeen = std::function<Status(kv::SequenceId, int64_t position)>;
  void OnStep(StepSeen seen) { seen_ = std::move(seen); }

  // Within a stretch, after each part of a layer, of all of them.
  using PartSeen = std::function<void(int64_t parts, int64_t of)>;
  void OnPart(PartSeen seen) { part_seen_ = std::move(seen); }

  // Waits for the steps so far.
  Status Synchronize() { return context_.compute.Synchronize(); }

  // Appends `tokens` keys and values drawn from `seed` to a sequence: for measuring steps over long
  // contexts without computing them.
  Status AppendSynthetic(kv::SequenceId sequence, int64_t tokens, uint64_t seed, double spread);

 private:
  Executor(const ExecutorParts& parts, const ExecutorLimits& limits, std::unique_ptr<Buffer> memory,
           std::unique_ptr<Buffer> host_memory);

  struct LayerSpan {
    int first = 0, end = 0;
  };
  // A step of all layers, or within a stretch of one; all but logits.
  Status RunStep(std::span<const StepInput> inputs, std::optional<int> layer,
                 const std::atomic<bool>* cancel);
  // Behind all layers.
  Status FinishStep(std::span<const StepInput> inputs, const LogitsSink& sink);
  // (executor_stretch.cc)
  Status RunStretch(std::span<const StepInput> inputs, int64_t tokens,
                    const std::atomic<bool>* cancel);
  Status RunParts(std::span<const std::vector<StepInput>> parts, const std::atomic<bool>* cancel);
  Status BeginStep(std::span<const StepInput> inputs, std::optional<int> layer = {});
  // Whether the first rank wishes to stop.
  Result<bool> AllStop(const std::atomic<bool>* cancel);
  // Whether its layers begin with the model's first one.
  bool BeginsSteps() const { return !relay_.has_value() || relay_->first(); }
  Status RunLayers(LayerSpan layers, const std::atomic<bool>* cancel);
  void EndSums();
  LayerCall CallOf(int layer);
  void BeginLayer(int layer);
  void TakeRanges(int layer);
  std::span<const RopeStoreItem> FindNew(int layer);
  Status Attend(int layer);
  void CloseLayer(int layer);
  void Abort();
  Status AppendRows(kv::SequenceId sequence, std::span<const TokenId> ids);

  StepContext context_;
  Batch batch_;
  Reads reads_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Buffer> host_memory_;  // null where the host reads the device's
  std::unique_ptr<Board> board_;
  std::unique_ptr<Logits> logits_;
  std::unique_ptr<Turns> turns_;
  std::unique_ptr<ObservedQueries> observed_;
  std::unique_ptr<QueryMoments> moments_;
  StepSeen seen_;       // or null
  PartSeen part_seen_;  // or null
  bool in_stretch_ = false;
  std::vector<std::unique_ptr<AttentionPath>> paths_;  // in the order of their kinds
  bool chooses_by_query_ = false;                      // some of them does
  bool takes_by_layer_ = false;                        // not all layers' ranges before the first
  bool takes_resident_ = false;                        // others than the last one to take ranges
  bool keep_x_ = false;                                // some of them wants X
  WeightStream* const weights_;                        // or null
  HiddenStates* const hidden_;                         // or null
  Trace* const trace_;                                 // or null
  std::optional<ResidualSums> sums_;                   // over the ranks, if these have shards
  std::optional<LayerRelay> relay_;                    // the same, if these have runs of layers
  // [layers], by turns behind each layer of steps without logits: as many are enqueued at most.
  std::vector<std::unique_ptr<Event>> layer_done_;
  size_t layers_run_ = 0;
  std::vector<SlabRange> ranges_;           // of the layer at hand
  std::vector<RopeStoreItem> store_items_;  // the same
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_EXECUTOR_H_
