#include "engine/executor.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/paths/registry.h"
#include "engine/step/synthetic.h"

namespace headway {
namespace {

// Whether a head that follows those of an item, in q, k and v and at the same distance in the open
// pages, is one more of it: where each head is a group of its own, a sequence has one item, not one
// for each.
bool Join(RopeStoreItem* item, const RopeStoreItem& next, int64_t head_bytes) {
  const auto behind = [&](const void* first, int heads, const void* last) {
    return static_cast<const std::byte*>(first) + heads * head_bytes == last;
  };
  StoreKvItem& kv = item->kv;
  if (next.kv.heads != 1 || next.table.cos != item->table.cos ||
      !behind(item->q, item->query_heads, next.q) || !behind(kv.k, kv.heads, next.kv.k) ||
      !behind(kv.v, kv.heads, next.kv.v)) {
    return false;
  }
  const int64_t stride = HeadStrideWith(kv.to, kv.heads, next.kv.to);
  if (stride == 0) return false;
  kv.to.head_stride = stride;
  item->query_heads += next.query_heads;
  ++kv.heads;
  return true;
}

// Of the memory of each path.
constexpr int64_t kPathAlignment = 4096;

// Where the memory of each registered path begins in that of all.
struct PathMemory {
  std::vector<int64_t> offsets;  // [registered paths]
  int64_t bytes = 0;

  PathMemory(const ModelShape& shape, const ExecutorLimits& limits) {
    for (const PathKind& kind : RegisteredPaths()) {
      const int64_t of_path = kind.bytes(shape, limits);
      if (of_path > 0) bytes = RoundUp(bytes, kPathAlignment);
      offsets.push_back(bytes);
      bytes += RoundUp(of_path, 64);
    }
  }
};

int64_t ActivationBlock(const ModelShape& shape, const ExecutorLimits& limits) {
  return RoundUp(Activations::Bytes(shape, limits.activation_dtype, limits.step_tokens), 64);
}

}  // namespace

int64_t Executor::Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                        const KernelSizes& kernels) {
  return PathMemory(shape, limits).bytes + ActivationBlock(shape, limits) +
         Board::Bytes(shape, limits, kernels) + Logits::Bytes(shape, limits) +
         Turns::Bytes(shape, limits) + ObservedQueries::Bytes(shape, limits) +
         QueryMoments::Bytes(shape, limits);
}

Result<std::unique_ptr<Executor>> Executor::Create(const ExecutorParts& parts,
                                                   const ExecutorLimits& limits) {
  const ModelShape& shape = parts.model.shape();
  Result<std::unique_ptr<Buffer>> memory = parts.device.Allocate(
      parts.budget, static_cast<size_t>(Bytes(shape, limits, parts.kernels)), "activations");
  if (!memory.ok()) return memory.status();
  std::unique_ptr<Buffer> host_memory;
  if (const int64_t bytes = Logits::HostBytes(shape, limits); bytes > 0) {
    Result<std::unique_ptr<Buffer>> made =
        parts.device.AllocateHost(parts.host_budget, static_cast<size_t>(bytes), "logits");
    if (!made.ok()) return made.status();
    host_memory = std::move(*made);
  }
  return std::unique_ptr<Executor>(
      new Executor(parts, limits, std::move(*memory), std::move(host_memory)));
}

Executor::Executor(const ExecutorParts& parts, const ExecutorLimits& limits,
                   std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> host_memory)
    : context_(parts.model, parts.kernels, parts.compute, parts.store, limits),
      batch_(context_),
      reads_(context_, batch_),
      memory_(std::move(memory)),
      host_memory_(std::move(host_memory)),
      weights_(parts.weights),
      hidden_(parts.hidden),
      trace_(parts.trace) {
  const ModelShape& shape = context_.shape;
  context_.communicator = parts.communicator;
  context_.shared = parts.shared;
  if (parts.communicator != nullptr && parts.by_layers) {
    relay_.emplace(*parts.communicator, parts.compute);
  } else if (parts.communicator != nullptr) {
    sums_.emplace(*parts.communicator, parts.lanes);
  }
  context_.awaits_lanes = sums_.has_value() || parts.weights != nullptr ||
                          parts.host.attention != nullptr ||
                          context_.format.encoding == Encoding::kLossless;
  const PathMemory path_memory(shape, limits);
  Memory behind_paths(memory_->data() + path_memory.bytes);
  context_.act = Activations::Place(shape, limits.activation_dtype, limits.step_tokens,
                                    behind_paths.Take(ActivationBlock(shape, limits)));
  board_ = std::make_unique<Board>(context_, batch_, reads_, &behind_paths);
  logits_ = std::make_unique<Logits>(context_, batch_, &behind_paths,
                                     host_memory_ == nullptr ? nullptr : host_memory_->data());
  turns_ = std::make_unique<Turns>(context_, batch_, &behind_paths);
  context_.turns = turns_.get();
  observed_ = std::make_unique<ObservedQueries>(context_, batch_, &behind_paths);
  moments_ = std::make_unique<QueryMoments>(context_, batch_, &behind_paths);
  for (size_t i = 0; i < path_memory.offsets.size(); ++i) {
    std::unique_ptr<AttentionPath> path = RegisteredPaths()[i].make(
        {context_, batch_, reads_, *board_, memory_->data() + path_memory.offsets[i], parts.host,
         static_cast<int>(paths_.size()), parts.salience, parts.demoted});
    if (path == nullptr) continue;
    chooses_by_query_ = chooses_by_query_ || path->ChoosesByQuery();
    keep_x_ = keep_x_ || path->WantsX();
    takes_resident_ = takes_resident_ || path->TakesResident() || path->ChoosesByQuery();
    paths_.push_back(std::move(path));
  }
  for (int layer = 0; layer < shape.layers; ++layer) layer_done_.push_back(parts.device.NewEvent());
}

Status Executor::Step(std::span<const StepInput> inputs, const LogitsSink& sink,
                      const std::atomic<bool>* cancel) {
  if (context_.communicator != nullptr) {
    const Result<bool> stop = AllStop(std::exchange(cancel, nullptr));
    if (!stop.ok()) return stop.status();
    if (*stop) return Status(StatusCode::kCancelled, "cancelled");
  }
  int64_t tokens = 0;
  for (const StepInput& input : inputs) tokens += std::ssize(input.tokens);
  if (tokens > limits().step_tokens) return RunStretch(inputs, tokens, cancel);
  if (Status s = RunStep(inputs, {}, cancel); !s.ok()) return s;
  return FinishStep(inputs, sink);
}

Status Executor::RunStep(std::span<const StepInput> inputs, std::optional<int> layer,
                         const std::atomic<bool>* cancel) {
  const LayerSpan layers = {layer.value_or(0),
                            layer.has_value() ? *layer + 1 : context_.shape.layers};
  batch_.Begin(inputs, layer);
  for (const auto& path : paths_) path->BeginStep();
  // First what needs no pages: the device begins while the store prepares the step.
  if (layers.first > 0) {
    BeginLayer(layers.first);
  } else if (BeginsSteps()) {
    context_.model.Embed(context_.kernels, context_.compute, batch_.ids(), batch_.positions(),
                         context_.act);
    BeginLayer(0);
  }
  batch_.RopeAngles();
  turns_->Begin();
  if (Status s = BeginStep(inputs, layer); !s.ok()) return s;
  reads_.Begin(batch_.all_decode() && !takes_resident_ &&
               context_.store.reads().HasResidentRanges());
  // Where nothing is brought ahead the device need not wait until all layers' ranges are there.
  takes_by_layer_ = chooses_by_query_ || context_.store.reads().AllOnDevice();
  for (int l = layers.first; !takes_by_layer_ && l < layers.end; ++l) TakeRanges(l);
  Status status = reads_.Announce();
  if (status.ok()) status = RunLayers(layers, cancel);
  if (sums_.has_value()) EndSums();
  if (status.ok()) status = context_.store.step().End();
  if (!status.ok()) Abort();
  return status;
}

Status Executor::FinishStep(std::span<const StepInput> inputs, const LogitsSink& sink) {
  for (const auto& path : paths_) {
    if (Status s = path->EndLayers(); !s.ok()) return s;
  }
  if (Status s = logits_->Run(inputs, sink); !s.ok()) return s;
  for (const auto& path : paths_) path->EndStep();
  return seen_ == nullptr ? OkStatus() : seen_(batch_[0].sequence, batch_[0].position);
}

Status Executor::BringUp(kv::SequenceId sequence, const RopeFrequencies& rope,
                         const kv::UpProgress& progress) {
  const kv::SelectionPolicy& policy = limits().selection;
  const bool salient = limits().salience.chooses();
  if (!policy.selects() && !salient) return OkStatus();
  // Ranks stop together, before their next step.
  const kv::UpProgress heard = [&](int64_t tokens, int64_t total) {
    return progress(tokens, total) || context_.communicator != nullptr;
  };
  // Prompts read what stays on disk whole, at its own distance.
  Status status = context_.store.BringUp(
      sequence, policy.reaches() ? turns_->OfSlots(rope) : kv::SlotAngles{},
      salient || policy.reaches() ? kv::WithoutRoom::kFails : kv::WithoutRoom::kStays, heard);
  if (status.code() != StatusCode::kOutOfBudget) return status;
  if (salient) {
    return status.Within(
        {}, {"; salient tokens are chosen in memory: give more ", Option::kHostMemory});
  }
  return status.Within({}, {"; beyond the window that the model was trained for the cache stays in "
                            "memory: give more ",
                            Option::kHostMemory});
}

Status Executor::BeginStep(std::span<const StepInput> inputs, std::optional<int> layer) {
  std::vector<kv::StepEntry> entries;
  for (const StepInput& input : inputs) {
    const auto entry = static_cast<int>(entries.size());
    const auto tokens = static_cast<int64_t>(input.tokens.size());
    entries.push_back(
        {input.sequence, tokens, turns_->OfClosing(entry), input.drafting ? tokens : input.drafts});
  }
  return context_.store.step().Begin(entries, layer);
}

Result<bool> Executor::AllStop(const std::atomic<bool>* cancel) {
  const bool own = cancel != nullptr && cancel->load(std::memory_order_relaxed);
  const Result<int64_t> first = context_.communicator->OfFirst(own ? 1 : 0);
  if (!first.ok()) return first.status();
  return *first != 0;
}

Status Executor::RunLayers(LayerSpan layers, const std::atomic<bool>* cancel) {
  const int64_t residual = batch_.tokens() * context_.shape.d_model;
  if (sums_.has_value()) {
    sums_->Cut(batch_.tokens(), limits().sum_rows);
    context_.kernels.LeaveMultiprocessors(sums_->multiprocessors());
  }
  // Reads for its layers are under way while other ranks compute.
  if (relay_.has_value()) {
    if (Status s = relay_->Receive(context_.act.x, residual); !s.ok()) return s;
  }
  for (int layer = layers.first; layer < layers.end; ++layer) {
    if (layer > layers.first || !BeginsSteps()) BeginLayer(layer);
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, "cancelled");
    }
    moments_->Take(layer);
    context_.kernels.RopeStoreKv(context_.compute, context_.format, FindNew(layer));
    observed_->Take(layer);
    if (takes_by_layer_) {
      TakeRanges(layer);
      if (Status s = reads_.Announce(); !s.ok()) return s;
    }
    if (Status s = Attend(layer); !s.ok()) return s;
    if (in_stretch_) hidden_->Prefetch();
    if (weights_ != nullptr) weights_->Prefetch(in_stretch_ ? hidden_->parts() : 1);
    CloseLayer(layer);
    context_.model.AfterAttention(context_.kernels, context_.compute, CallOf(layer), context_.act);
    if (weights_ != nullptr) weights_->Release();
    if (sums_.has_value()) {
      // A rank that has ended takes part in nothing any more.
      if (Status s = sums_->status(); !s.ok()) return s;
    }
    if (!batch_.wants_logits()) context_.compute.Record(*layer_done_[layers_run_]);
    layers_run_ = (layers_run_ + 1) % layer_done_.size();
  }
  if (trace_ != nullptr) trace_->Begin({});
  if (!relay_.has_value()) return OkStatus();
  return relay_->HandOn(context_.act.x, residual, batch_.wants_logits());
}

// What comes next finds all sums, and has the device to itself.
void Executor::EndSums() {
  sums_->End();
  context_.kernels.LeaveMultiprocessors(0);
}

LayerCall Executor::CallOf(int layer) {
  LayerCall call{layer, batch_.tokens(), context_.block};
  if (!sums_.has_value()) return call;
  call.pieces = sums_->pieces();
  call.sum = &*sums_;
  return call;
}

// What of a layer comes before its pages are touched. The lanes stay busy with one step's layers
// ahead; with more, progress and a wish to stop would lag.
void Executor::BeginLayer(int layer) {
  if (trace_ != nullptr) trace_->Begin({layer, batch_.all_decode()});
  layer_done_[layers_run_]->Wait();
  if (weights_ != nullptr) context_.block = weights_->Acquire(layer);
  context_.model.Qkv(context_.kernels, context_.compute, CallOf(layer), context_.act,
                     keep_x_ ? Normed::kKept : Normed::kDropped);
}

// Offers the layer's ranges to the paths.
void Executor::TakeRanges(int layer) {
  ranges_.clear();
  if (!reads_.resident()) reads_.RangesOf(layer, &ranges_);
  for (const auto& path : paths_) path->Take(layer, &ranges_);
  HEADWAY_CHECK(ranges_.empty());
  reads_.EndLayer();
}

// Where the step's new q, k and v are, and where k and v go.
std::span<const RopeStoreItem> Executor::FindNew(int layer) {
  store_items_.clear();
  const ModelShape& shape = context_.shape;
  const Activations& act = context_.act;
  const int rotary_dim = context_.model.rotary_dim();
  const int64_t half = rotary_dim / 2;
  const int64_t head_bytes = context_.ActivationBytes(shape.head_dim);
  for (int e = 0; e < batch_.size(); ++e) {
    const int64_t row = batch_[e].row;
    for (int group = 0; group <= context_.store.format().StreamingGroup(layer); ++group) {
      if (context_.RunsOf(layer, group).empty()) continue;
      const PageRun target = context_.store.step().Target(e, layer, group);
      const auto at = [&](void* data, int64_t first_head) {
        return static_cast<std::byte*>(data) +
               context_.ActivationBytes(row * act.qkv_stride + first_head * shape.head_dim);
      };
      for (const kv::HeadRun& run : context_.RunsOf(layer, group)) {
        RopeStoreItem item;
        item.q = at(act.q, int64_t{run.head} * shape.group());
        item.q_stride = act.qkv_stride;
        item.query_heads = run.heads * shape.group();
        item.table = {act.cos + row * half, act.sin + row * half, rotary_dim};
        item.kv = {.k = at(act.k, run.head),
                   .v = at(act.v, run.head),
                   .kv_stride = act.qkv_stride,
                   .heads = run.heads,
                   .to = PagesOf(target, run)};
        if (!store_items_.empty() && Join(&store_items_.back(), item, head_bytes)) continue;
        store_items_.push_back(item);
      }
    }
  }
  return store_items_;
}

Status Executor::Attend(int layer) {
  board_->BeginLayer(layer);
  for (const auto& path : paths_) path->BeginLayer(layer);
  for (int group = 0; group <= context_.store.format().StreamingGroup(layer); ++group) {
    for (const auto& path : paths_) {
      if (Status s = path->Attend(layer, group); !s.ok()) return s;
    }
    // Where all is on the device, as what is kept of prompts is, and mostly a window with its
    // salient tokens, one launch is for all groups. Elsewhere a group's tail is attended to while
    // slabs of the next one are on their way.
    const bool on_device = reads_.resident() || limits().keys > 0 || limits().salience.chooses();
    if (!on_device || !batch_.all_decode()) board_->Flush();
  }
  board_->Flush();
  for (const auto& path : paths_) path->EndLayer(layer);
  return board_->Merge();
}

void Executor::CloseLayer(int layer) {
  context_.store.step().CloseLayer(layer);
  for (const auto& path : paths_) path->PagesClosed(layer);
}

void Executor::Abort() {
  if (trace_ != nullptr) trace_->Begin({});
  board_->Abort();
  for (const auto& path : paths_) path->Abort();
  context_.store.step().Abort();
}

Status Executor::StepWithFarMass(const StepInput& input, const NearKeys& near,
                                 std::span<float> far) {
  if (input.tokens.size() != 1 || limits().step_tokens < 2 || limits().streaming_heads ||
      limits().self_extend.on()) {
    return Status(StatusCode::kInvalidArgument,
                  "attention is profiled a token at a time, without streaming heads and "
                  "Self-Extend, with chunks of at least 2 tokens");
  }
  FarMass mass(context_, batch_, *board_, near, far);
  board_->set_observer(&mass);
  const Status status = Step({&input, 1}, {}, nullptr);
  board_->set_observer(nullptr);
  return status;
}

Status Executor::StepWithRecall(const StepInput& input, SelectionRecall* recall) {
  if (limits().streaming_heads || !limits().selection.approximates() || input.tokens.size() != 1) {
    return Status(StatusCode::kInvalidArgument,
                  "recall is measured of a selector, a token at a time, without streaming heads");
  }
  BlockMass mass(context_, batch_, *board_, recall);
  board_->set_observer(&mass);
  const Status status = Step({&input, 1}, {}, nullptr);
  board_->set_observer(nullptr);
  if (status.ok()) ++recall->steps;
  return status;
}

Status Executor::AppendSynthetic(kv::SequenceId sequence, int64_t tokens, uint64_t seed,
                                 double spread) {
  if (tokens == 0) return OkStatus();
  const int64_t chunk = std::min(tokens, limits().step_tokens);
  if (Status s = DrawActivations(context_, chunk, seed); !s.ok()) return s;
  const std::vector<TokenId> ids(static_cast<size_t>(chunk), 0);
  for (int64_t at = 0; at < tokens; at += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, tokens - at));
    if (spread > 0.0) {
      const uint64_t of_chunk = seed + static_cast<uint64_t>(at);
      if (Status s = DrawUnequalKeys(context_, chunk, of_chunk, spread); !s.ok()) return s;
    }
    if (Status s = AppendRows(sequence, std::span(ids).first(count)); !s.ok()) return s;
  }
  context_.store.Drain();  // what is measured next starts with idle lanes
  return OkStatus();
}

// Appends what the activations' first rows hold, as if `ids` had been computed.
Status Executor::AppendRows(kv::SequenceId sequence, std::span<const TokenId> ids) {
  const StepInput input{sequence, ids, nullptr, LogitsMode::kNone};
  batch_.Begin({&input, 1});
  for (const auto& path : paths_) path->BeginStep();
  if (Status s = BeginStep({&input, 1}); !s.ok()) return s;
  reads_.Begin();
  Status status = reads_.Announce();
  for (int layer = 0; status.ok() && layer < context_.shape.layers; ++layer) {
    for (const RopeStoreItem& item : FindNew(layer)) {
      context_.kernels.StoreKv(context_.compute, context_.format, {&item.kv, 1});
    }
    for (const auto& path : paths_) path->BeginLayer(layer);
    CloseLayer(layer);
  }
  if (status.ok()) status = context_.store.step().End();
  if (!status.ok()) Abort();
  return status;
}

}  // namespace headway
