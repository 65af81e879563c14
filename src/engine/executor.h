// Executor: runs one step, a batch of sequences with their new tokens, through all layers. It
// applies the plan's paths: closed pages that are on the device are attended to where they lie
// (`resident`), others as the store brings them into staging buffers (`stream`) or, in decode, by
// the host's cores (`host`), and the tail in the append buffer or open page. What each range
// contributes is a partial state; the states are merged in the order of positions.
//
// Segments of which the store keeps X, the normed input of the K/V projection, are recomputed from
// it (`recompute`), several in one product, and attended to as if they were resident.
//
// Streaming heads see the keys of the sink and recent ones only, all of them on the device.
//
// Split boundaries (segments, and kDecodeSplit within them) and merge order depend on lengths only,
// so where a page lies and when it arrives never changes a bit of the result. The path `host` cuts
// and adds otherwise: what it is given depends on its share and on which pages lie in host memory.
#ifndef HEADWAY_ENGINE_EXECUTOR_H_
#define HEADWAY_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/env.h"
#include "device/device.h"
#include "device/trace.h"
#include "engine/host_attention.h"
#include "engine/host_share.h"
#include "engine/weight_stream.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kernels/sampler.h"
#include "kv/store/store.h"
#include "model/model.h"
#include "model/rope.h"

namespace headway {

// The tokens of an entry whose logits the sink gets.
enum class LogitsMode : uint8_t { kNone, kAll };

struct StepInput {
  kv::SequenceId sequence = 0;
  std::span<const TokenId> tokens;        // new ones, >= 1
  const RopeFrequencies* rope = nullptr;  // of this sequence
  LogitsMode logits = LogitsMode::kNone;
  // Not null: the token behind the last one is picked on the device and put into *sampled; logits
  // is kNone, and there are no targets.
  Sampler* sampler = nullptr;
  TokenId* sampled = nullptr;
  // As many as tokens, or none: what comes behind each, and where its -ln p is put, which is taken
  // on the device.
  std::span<const TokenId> targets = {};
  std::span<double> losses = {};

  bool WantsLogits() const {
    return logits != LogitsMode::kNone || sampler != nullptr || !targets.empty();
  }
};

// Gets the logits [vocab] behind token `token` (an index into the entry's tokens). Within an entry
// in ascending order.
using LogitsSink = std::function<Status(int entry, int64_t token, std::span<float> logits)>;

struct ExecutorLimits {
  int64_t step_tokens = 0;  // of all entries of a step
  int64_t entries = 0;
  int64_t length = 0;  // of any sequence, the step included
  int64_t segment_tokens = 0;
  int page_slots = kDefaultPageSlots;
  int64_t gather_tokens = 0;             // StoreOptions::gather_tokens; 0: nothing is recomputed
  bool streaming_heads = false;          // some are: their keys are cut otherwise
  DType activation_dtype = DType::kF32;  // Kernels::ActivationDType
  bool host_reads_device = true;         // Device::host_reads_memory
};

// The path `host` of an executor's decode steps.
struct HostPath {
  HostAttention* attention = nullptr;  // null: there is none; outlives the store
  double share = 0.0;  // of what a layer reads from host memory, 0 to 1, that the host attends to
  // Not null: the share is corrected after each decode step by what the lanes took, as the trace of
  // the device's streams says.
  const Trace* trace = nullptr;
};

class Executor {
 public:
  // Bytes that Create takes from the device's budget; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                       const KernelSizes& kernels);
  // Everything outlives the executor. `kernels` is prepared. `weights` brings the layers that the
  // model keeps in host memory; null where all are resident.
  static Result<std::unique_ptr<Executor>> Create(const Model& model, Kernels& kernels,
                                                  Device& device, Stream& compute, kv::Store& store,
                                                  const ExecutorLimits& limits, Budget& budget,
                                                  Budget& host_budget, const HostPath& host = {},
                                                  WeightStream* weights = nullptr);

  // HostPath::share as it is now.
  double host_share() const { return host_share_.share(); }

  ~Executor() { Synchronize().ok(); }  // work under way uses its memory

  const ExecutorLimits& limits() const { return limits_; }

  // Where no input WantsLogits it may return while the step still runs; what is enqueued is never
  // more than as many layers as a step has, so that a wish to stop is met within a chunk.
  // kCancelled when *cancel (may be null) turned true: the step was given up, see Store::AbortStep.
  // After any error the step was given up, unless it is kCorrupt: a sampler found no finite logit,
  // or a loss is not finite.
  Status Step(std::span<const StepInput> inputs, const LogitsSink& sink,
              const std::atomic<bool>* cancel);

  // A step of one token, of which it says how the attention of each query head spreads: far
  // [layers, query_heads] is the share that falls on keys that are neither among the first `sink`
  // nor the last `recent` ones. Not with streaming heads; limits().step_tokens is at least 2.
  Status ProbeFarAttention(const StepInput& input, int64_t sink, int64_t recent,
                           std::span<float> far);

  // Waits for the steps so far.
  Status Synchronize() { return compute_.Synchronize(); }

  // Appends `tokens` keys and values drawn from `seed` to a sequence: for measuring steps over long
  // contexts without computing them.
  Status AppendSynthetic(kv::SequenceId sequence, int64_t tokens, uint64_t seed);

 private:
  // Where a step's entry lies in the activations.
  struct Entry {
    int64_t row = 0;  // of its first token
    int64_t tokens = 0;
    int64_t position = 0;  // of its first token
    const RopeFrequencies* rope = nullptr;
    int64_t split = 0;     // decode: keys of a partial state
    bool decode = false;   // one token: its states are kept apart and merged at the end
    int parts = 0;         // decode: states of the layer and head group so far
    bool started = false;  // prefill: (o, lse) hold a state
  };

  Executor(const Model& model, Kernels& kernels, Stream& compute, kv::Store& store,
           const ExecutorLimits& limits, std::unique_ptr<Buffer> memory,
           std::unique_ptr<Buffer> host_memory, std::vector<std::unique_ptr<Event>> layer_done,
           const HostPath& host, WeightStream* weights);

  Status RunLayers(const std::atomic<bool>* cancel);
  void BeginLayer(int layer);
  void BeginEntries(std::span<const StepInput> inputs);
  void PlanReads();
  void SplitReads(double share, size_t first, double* carry);
  std::span<const kv::HostRead> HostReads(int layer) const;
  void StartHost(int layer);
  HostStepTimes LaneTimes() const;
  void CorrectHostShare(const HostStepTimes& before);
  void Angles(std::span<const StepInput> inputs);
  void FindNew(int layer);
  bool recomputes() const { return limits_.gather_tokens > 0; }
  void KeepX(int layer);
  void Recompute(int layer);
  void AnglesOfGather();
  Status Attention(int layer);
  Status AttendSegments(int layer, int group);
  void AttendStreaming(int layer);
  void BeginStates();
  void AttendRange(int entry_index, int layer, int group, const KeyRun& keys, bool last);
  void Flush(int64_t window);
  void AddMerges(std::span<const kv::HeadRun> runs, bool with_host);
  void ProbeRange(int layer, int group, const KeyRun& keys);
  Status FinishProbe(int layer);
  int64_t WindowOf(int layer) const;
  const std::vector<kv::HeadRun>& RunsOf(int layer, int group) const {
    return runs_[static_cast<size_t>(layer)][static_cast<size_t>(group)];
  }
  Status Logits(std::span<const StepInput> inputs, const LogitsSink& sink);
  const float* HeadRows();
  Status FlushLogits(std::span<const StepInput> inputs, const LogitsSink& sink);
  Status ToHost(std::span<const StepInput> inputs);
  Status Deliver(const StepInput& input, int64_t row, const LogitsSink& sink);

  int64_t QWidth() const { return int64_t{shape_.query_heads} * shape_.head_dim; }
  // Bytes of `count` activations.
  int64_t ActivationBytes(int64_t count) const {
    return count * static_cast<int64_t>(DTypeBytes(limits_.activation_dtype));
  }

  const Model& model_;
  const ModelShape& shape_;
  Kernels& kernels_;
  Stream& compute_;
  kv::Store& store_;
  const ExecutorLimits limits_;
  const PageFormat format_;
  const int64_t max_parts_;
  // [layers][head groups, the streaming heads last]: where the heads of a group are in the model.
  std::vector<std::vector<std::vector<kv::HeadRun>>> runs_;
  // [layers]: the heads of all groups but the streaming one, as few runs as they are.
  std::vector<std::vector<kv::HeadRun>> slab_runs_;

  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Buffer> host_memory_;  // null where the host reads device memory
  Activations act_;
  float* o_;         // [step_tokens, query_heads, head_dim]; act_.o where that is f32
  float* lse_;       // [step_tokens, query_heads]
  float* part_o_;    // [entries, max_parts, query_heads, head_dim]
  float* part_lse_;  // [entries, max_parts, query_heads]
  // What is recomputed, of gather_tokens tokens; null where nothing is.
  struct Recomputed {
    void* x = nullptr;     // [tokens, d_model] activations, where those are not in the pages' dtype
    void* kv = nullptr;    // [tokens, 2, kv_heads, head_dim] activations
    float* cos = nullptr;  // [tokens, head_dim / 2]
    float* sin = nullptr;  // the same
    std::byte* pages = nullptr;  // of K, head by head, then of V
  };
  Recomputed recomputed_;
  float* head_in_;      // [LogitRowsOf(limits), d_model]
  void* head_scratch_;  // of Model::Head for so many rows
  float* logits_;       // [LogitRowsOf(limits), vocab]
  Sampled* sampled_;    // [LogitRowsOf(limits)]
  Scored* scored_;      // [LogitRowsOf(limits)]
  float* host_logits_;  // the same three, where the host reads them
  Sampled* host_sampled_;
  Scored* host_scored_;

  WeightStream* const weights_;       // or null
  const std::byte* block_ = nullptr;  // of the layer at hand: its weights, where they stream
  HostAttention* const host_;         // or null
  const HostPath host_path_;
  HostShareControl host_share_;

  // [layers], behind each layer of the last step that came to it without logits.
  std::vector<std::unique_ptr<Event>> layer_done_;
  bool ahead_ = false;  // the step may return while it still runs

  std::vector<Entry> entries_;
  std::vector<TokenId> ids_;
  std::vector<int32_t> positions_;
  std::vector<kv::SlabRead> reads_;  // of the step, in order
  size_t next_read_ = 0;
  std::vector<kv::HostRead> host_reads_;  // of the step, layer by layer
  std::vector<size_t> host_first_;        // [layers + 1]: the first of each layer
  std::vector<bool> on_host_;  // [entries]: the host attends to keys of it in the layer at hand
  std::vector<RopeStoreItem> store_items_;
  std::vector<AttentionItem> items_;     // enqueued by the next Flush
  std::vector<MergeItem> layer_merges_;  // that the layer's Merge does
  std::deque<kv::SlabView> views_;       // that items_ point into
  struct Gathered {
    int entry;
    kv::SlabView view;
  };
  std::vector<Gathered> gather_;  // X that was read and not recomputed yet
  // The step in progress is a ProbeFarAttention: the decode's row of (o_, lse_) is followed by one
  // that holds the state of sink and recent keys alone.
  struct Probe {
    int64_t sink = 0;
    int64_t recent = 0;
    bool started = false;  // that state of the head group holds keys
    std::span<float> far = {};
    std::vector<float> lse = {};  // [2, query_heads]: of all keys, of sink and recent ones
  };
  Probe* probe_ = nullptr;
  struct LogitRow {
    int entry;
    int64_t token;
  };
  std::vector<LogitRow> logit_rows_;  // of the next FlushLogits
  std::vector<SampleItem> sample_items_;
  std::vector<ScoreItem> score_items_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_EXECUTOR_H_
