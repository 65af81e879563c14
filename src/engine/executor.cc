#include "engine/executor.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/scoring.h"

namespace headway {
namespace {

// Rows of logits computed at a time: those of a decode step, unless there are very many, so that
// the head is read once.
int64_t LogitRowsOf(const ExecutorLimits& limits) {
  constexpr int64_t kLeast = 32;
  constexpr int64_t kMost = 128;
  return std::clamp(limits.entries, kLeast, kMost);
}

// Parts of a decode item's states for a sequence of `length` tokens, the tail's among them.
int64_t PartsAt(const ExecutorLimits& limits, const KernelSizes& kernels, int64_t length) {
  const int64_t split = RoundUp(kernels.DecodeSplit(length), limits.page_slots);
  const int64_t of_slabs =
      CeilDiv(length, limits.segment_tokens) * CeilDiv(limits.segment_tokens, split) + 1;
  // Of the five ranges each may end in a short part.
  return limits.streaming_heads ? std::max(of_slabs, CeilDiv(length, split) + 5) : of_slabs;
}

// The most of any length: longer sequences may be split into fewer parts.
int64_t MaxParts(const ExecutorLimits& limits, const KernelSizes& kernels) {
  int64_t parts = 0;
  for (int64_t length = limits.length; length > 0; length /= 2) {
    parts = std::max(parts, PartsAt(limits, kernels, length));
  }
  // Lengths just before a split doubles have up to twice the parts of a sampled one.
  return 2 * parts;
}

// Of the pages that a gather is recomputed into: the memory begins on a multiple of this.
constexpr int64_t kPageAlignment = 4096;

int64_t RecomputedPageStride(const ModelShape& shape, const ExecutorLimits& limits) {
  const PageFormat page = {shape.dtype, limits.page_slots, shape.head_dim};
  return kv::CacheFormat::Padded(static_cast<int64_t>(page.bytes()));
}

// The parts of the executor's memory, in order, each aligned to 64 bytes; the first to a page.
struct Layout {
  int64_t pages, x, kv, angles;  // of a gather
  int64_t activations, o, lse, part_o, part_lse, head_in, head_scratch, logits, sampled, scored;

  Layout(const ModelShape& shape, const ExecutorLimits& limits, const KernelSizes& kernels) {
    const auto floats = [](int64_t n) { return RoundUp(n * int64_t{sizeof(float)}, 64); };
    const DType dtype = limits.activation_dtype;
    const int64_t gather = limits.gather_tokens;
    const auto width = static_cast<int64_t>(DTypeBytes(dtype));
    pages = 2 * shape.kv_heads * (gather / limits.page_slots) * RecomputedPageStride(shape, limits);
    pages = RoundUp(pages, kPageAlignment);
    x = dtype == shape.dtype ? 0 : RoundUp(gather * shape.d_model * width, 64);
    kv = RoundUp(gather * 2 * shape.kv_heads * shape.head_dim * width, 64);
    angles = floats(gather * (shape.head_dim / 2));
    activations = RoundUp(Activations::Bytes(shape, dtype, limits.step_tokens), 64);
    const int64_t rows = limits.step_tokens * shape.query_heads;
    o = dtype == DType::kF32 ? 0 : floats(rows * shape.head_dim);
    lse = floats(rows);
    const int64_t states = limits.entries * MaxParts(limits, kernels) * shape.query_heads;
    part_o = floats(states * shape.head_dim);
    part_lse = floats(states);
    const int64_t logit_rows = LogitRowsOf(limits);
    head_in = floats(logit_rows * shape.d_model);
    head_scratch = HeadScratchBytes(shape, dtype, logit_rows);
    logits = floats(logit_rows * shape.vocab);
    sampled = RoundUp(logit_rows * int64_t{sizeof(Sampled)}, 64);
    scored = RoundUp(logit_rows * int64_t{sizeof(Scored)}, 64);
  }
  int64_t total() const {
    return pages + x + kv + 2 * angles + activations + o + lse + part_o + part_lse + head_in +
           head_scratch + results();
  }
  int64_t results() const { return logits + sampled + scored; }
};

}  // namespace

int64_t Executor::Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                        const KernelSizes& kernels) {
  return Layout(shape, limits, kernels).total();
}

Result<std::unique_ptr<Executor>> Executor::Create(const Model& model, Kernels& kernels,
                                                   Device& device, Stream& compute,
                                                   kv::Store& store, const ExecutorLimits& limits,
                                                   Budget& budget, Budget& host_budget,
                                                   const HostPath& host, WeightStream* weights) {
  Result<std::unique_ptr<Buffer>> memory = device.Allocate(
      budget, static_cast<size_t>(Bytes(model.shape(), limits, kernels)), "activations");
  if (!memory.ok()) return memory.status();
  std::unique_ptr<Buffer> host_memory;
  if (!limits.host_reads_device) {
    const Layout layout(model.shape(), limits, kernels);
    Result<std::unique_ptr<Buffer>> made =
        device.AllocateHost(host_budget, static_cast<size_t>(layout.results()), "logits");
    if (!made.ok()) return made.status();
    host_memory = std::move(*made);
  }
  std::vector<std::unique_ptr<Event>> layer_done;
  for (int layer = 0; layer < model.shape().layers; ++layer) {
    layer_done.push_back(device.NewEvent());
  }
  return std::unique_ptr<Executor>(new Executor(model, kernels, compute, store, limits,
                                                std::move(*memory), std::move(host_memory),
                                                std::move(layer_done), host, weights));
}

Executor::Executor(const Model& model, Kernels& kernels, Stream& compute, kv::Store& store,
                   const ExecutorLimits& limits, std::unique_ptr<Buffer> memory,
                   std::unique_ptr<Buffer> host_memory,
                   std::vector<std::unique_ptr<Event>> layer_done, const HostPath& host,
                   WeightStream* weights)
    : model_(model),
      shape_(model.shape()),
      kernels_(kernels),
      compute_(compute),
      store_(store),
      limits_(limits),
      format_(store.format().page),
      max_parts_(MaxParts(limits, kernels)),
      memory_(std::move(memory)),
      host_memory_(std::move(host_memory)),
      weights_(weights),
      host_(host.attention),
      host_path_(host),
      host_share_(host.share),
      layer_done_(std::move(layer_done)) {
  const kv::CacheFormat& cache = store.format();
  for (int layer = 0; layer < cache.layers; ++layer) {
    std::vector<std::vector<kv::HeadRun>>& groups = runs_.emplace_back();
    for (int group = 0; group <= cache.StreamingGroup(layer); ++group) {
      groups.push_back(cache.Runs(layer, group));
    }
    std::vector<kv::HeadRun>& slab_runs = slab_runs_.emplace_back();
    for (int group = 0; group < cache.head_groups(layer); ++group) {
      for (const kv::HeadRun& run : RunsOf(layer, group)) {
        if (!slab_runs.empty() && slab_runs.back().head + slab_runs.back().heads == run.head) {
          slab_runs.back().heads += run.heads;
        } else {
          slab_runs.push_back(run);
        }
      }
    }
  }
  const Layout layout(shape_, limits_, kernels_);
  std::byte* at = memory_->data();
  const auto take = [&](int64_t bytes) {
    return reinterpret_cast<float*>(std::exchange(at, at + bytes));
  };
  if (recomputes()) {
    recomputed_.pages = reinterpret_cast<std::byte*>(take(layout.pages));
    recomputed_.x = layout.x == 0 ? nullptr : take(layout.x);
    recomputed_.kv = take(layout.kv);
    recomputed_.cos = take(layout.angles);
    recomputed_.sin = take(layout.angles);
  }
  act_ = Activations::Place(shape_, limits_.activation_dtype, limits_.step_tokens,
                            reinterpret_cast<std::byte*>(take(layout.activations)));
  o_ = layout.o == 0 ? static_cast<float*>(act_.o) : take(layout.o);
  lse_ = take(layout.lse);
  part_o_ = take(layout.part_o);
  part_lse_ = take(layout.part_lse);
  head_in_ = take(layout.head_in);
  head_scratch_ = take(layout.head_scratch);
  logits_ = take(layout.logits);
  sampled_ = reinterpret_cast<Sampled*>(take(layout.sampled));
  scored_ = reinterpret_cast<Scored*>(take(layout.scored));
  std::byte* const results =
      host_memory_ != nullptr ? host_memory_->data() : reinterpret_cast<std::byte*>(logits_);
  host_logits_ = reinterpret_cast<float*>(results);
  host_sampled_ = reinterpret_cast<Sampled*>(results + layout.logits);
  host_scored_ = reinterpret_cast<Scored*>(results + layout.logits + layout.sampled);
}

Status Executor::Step(std::span<const StepInput> inputs, const LogitsSink& sink,
                      const std::atomic<bool>* cancel) {
  std::vector<kv::StepEntry> step;
  for (const StepInput& input : inputs) {
    step.push_back({input.sequence, static_cast<int64_t>(input.tokens.size())});
  }
  const HostStepTimes before = LaneTimes();
  if (host_ != nullptr) host_->ForgetPauses();
  BeginEntries(inputs);
  ahead_ = std::none_of(inputs.begin(), inputs.end(),
                        [](const StepInput& input) { return input.WantsLogits(); });
  // First what needs no pages: the device begins while the store prepares the step.
  model_.Embed(kernels_, compute_, ids_, positions_, act_);
  BeginLayer(0);
  Angles(inputs);
  if (Status s = store_.BeginStep(step); !s.ok()) return s;
  PlanReads();
  Status status = store_.BeginReads(reads_, host_reads_);
  if (status.ok()) status = RunLayers(cancel);
  if (status.ok()) status = store_.EndStep();
  if (!status.ok()) {
    views_.clear();
    items_.clear();
    gather_.clear();
    store_.AwaitHost();  // queries of later steps go where the host may still read
    store_.AbortStep();
    return status;
  }
  status = Logits(inputs, sink);
  if (status.ok()) CorrectHostShare(before);
  return status;
}

Status Executor::RunLayers(const std::atomic<bool>* cancel) {
  const int64_t tokens = static_cast<int64_t>(ids_.size());
  for (int layer = 0; layer < shape_.layers; ++layer) {
    if (layer > 0) BeginLayer(layer);
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, "cancelled");
    }
    FindNew(layer);
    kernels_.RopeStoreKv(compute_, format_, store_items_);
    if (recomputes()) KeepX(layer);
    if (Status s = Attention(layer); !s.ok()) return s;
    if (weights_ != nullptr) weights_->Prefetch();
    store_.CloseLayer(layer);
    model_.AfterAttention(kernels_, compute_, {layer, tokens, block_}, act_);
    if (weights_ != nullptr) weights_->Release();
    if (ahead_) compute_.Record(*layer_done_[static_cast<size_t>(layer)]);
  }
  return OkStatus();
}

// What of a layer comes before its pages are touched. The lanes stay busy with one step's layers
// ahead; with more, progress and a wish to stop would lag.
void Executor::BeginLayer(int layer) {
  layer_done_[static_cast<size_t>(layer)]->Wait();
  if (weights_ != nullptr) block_ = weights_->Acquire(layer);
  model_.Qkv(kernels_, compute_, {layer, static_cast<int64_t>(ids_.size()), block_}, act_,
             recomputes() ? Normed::kKept : Normed::kDropped);
}

void Executor::BeginEntries(std::span<const StepInput> inputs) {
  entries_.clear();
  ids_.clear();
  positions_.clear();
  for (const StepInput& input : inputs) {
    Entry entry;
    entry.row = static_cast<int64_t>(ids_.size());
    entry.tokens = static_cast<int64_t>(input.tokens.size());
    entry.position = store_.Length(input.sequence);
    entry.decode = entry.tokens == 1;
    entry.rope = input.rope;
    entry.split = RoundUp(kernels_.DecodeSplit(entry.position + entry.tokens), limits_.page_slots);
    HEADWAY_CHECK(entry.tokens >= 1 && entry.position + entry.tokens <= limits_.length);
    ids_.insert(ids_.end(), input.tokens.begin(), input.tokens.end());
    for (int64_t t = 0; t < entry.tokens; ++t) {
      positions_.push_back(static_cast<int32_t>(entry.position + t));
    }
    entries_.push_back(entry);
  }
  HEADWAY_CHECK(static_cast<int64_t>(ids_.size()) <= limits_.step_tokens);
  HEADWAY_CHECK(static_cast<int64_t>(entries_.size()) <= limits_.entries);
}

void Executor::Angles(std::span<const StepInput> inputs) {
  const int64_t half = shape_.head_dim / 2;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const RopeFrequencies& rope = *inputs[i].rope;
    if (rope.inv_freq.empty()) continue;
    kernels_.RopeAngles(
        compute_,
        std::span(positions_)
            .subspan(static_cast<size_t>(entry.row), static_cast<size_t>(entry.tokens)),
        rope.inv_freq.data(), rope.rotary_dim(), rope.scale, act_.cos + entry.row * half,
        act_.sin + entry.row * half);
  }
}

// Where the step's new q, k and v are, and where k and v go.
void Executor::FindNew(int layer) {
  store_items_.clear();
  const auto& groups = runs_[static_cast<size_t>(layer)];
  const int64_t half = shape_.head_dim / 2;
  const bool rotates = model_.config().rope.type != RopeType::kNone;
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    const int64_t row = entries_[static_cast<size_t>(e)].row;
    for (int group = 0; group < static_cast<int>(groups.size()); ++group) {
      if (groups[static_cast<size_t>(group)].empty()) continue;
      const PageRun target = store_.Target(e, layer, group);
      const auto at = [&](void* data, int64_t first_head) {
        return static_cast<std::byte*>(data) +
               ActivationBytes(row * act_.qkv_stride + first_head * shape_.head_dim);
      };
      for (const kv::HeadRun& run : groups[static_cast<size_t>(group)]) {
        RopeStoreItem item;
        item.q = at(act_.q, int64_t{run.head} * shape_.group());
        item.q_stride = act_.qkv_stride;
        item.query_heads = run.heads * shape_.group();
        item.table = {act_.cos + row * half, act_.sin + row * half, rotates ? shape_.head_dim : 0};
        item.kv = {.k = at(act_.k, run.head),
                   .v = at(act_.v, run.head),
                   .kv_stride = act_.qkv_stride,
                   .heads = run.heads,
                   .to = PagesOf(target, run)};
        store_items_.push_back(item);
      }
    }
  }
}

Status Executor::Logits(std::span<const StepInput> inputs, const LogitsSink& sink) {
  logit_rows_.clear();
  for (size_t e = 0; e < entries_.size(); ++e) {
    const StepInput& input = inputs[e];
    if (!input.WantsLogits()) continue;
    const int64_t tokens = entries_[e].tokens;
    for (int64_t token = input.sampler == nullptr ? 0 : tokens - 1; token < tokens; ++token) {
      logit_rows_.push_back({static_cast<int>(e), token});
      if (static_cast<int64_t>(logit_rows_.size()) < LogitRowsOf(limits_)) continue;
      if (Status s = FlushLogits(inputs, sink); !s.ok()) return s;
    }
  }
  return FlushLogits(inputs, sink);
}

// The rows of the residual stream that logits are wanted of: in place where they lie side by side,
// as in decode.
const float* Executor::HeadRows() {
  const int64_t width = shape_.d_model;
  const auto at = [&](const LogitRow& row) {
    return act_.x + (entries_[static_cast<size_t>(row.entry)].row + row.token) * width;
  };
  const float* first = at(logit_rows_.front());
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  if (at(logit_rows_.back()) == first + (rows - 1) * width) return first;
  for (int64_t i = 0; i < rows; ++i) {
    compute_.Copy(reinterpret_cast<std::byte*>(head_in_ + i * width),
                  reinterpret_cast<const std::byte*>(at(logit_rows_[static_cast<size_t>(i)])),
                  static_cast<size_t>(width) * sizeof(float));
  }
  return head_in_;
}

// Logits of the rows, the tokens of those with a sampler and what the likelihoods of targets are
// made of: only these cross the bus, unless the logits are asked for.
Status Executor::FlushLogits(std::span<const StepInput> inputs, const LogitsSink& sink) {
  if (logit_rows_.empty()) return OkStatus();
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  model_.Head(kernels_, compute_, rows, HeadRows(), head_scratch_, logits_);
  sample_items_.clear();
  score_items_.clear();
  for (int64_t i = 0; i < rows; ++i) {
    const LogitRow& row = logit_rows_[static_cast<size_t>(i)];
    const StepInput& input = inputs[static_cast<size_t>(row.entry)];
    float* const logits = logits_ + i * shape_.vocab;
    if (input.sampler != nullptr) {
      SampleItem item = input.sampler->Next();
      item.logits = logits;
      item.vocab = shape_.vocab;
      item.result = sampled_ + i;
      sample_items_.push_back(item);
    }
    if (!input.targets.empty()) {
      const TokenId target = input.targets[static_cast<size_t>(row.token)];
      score_items_.push_back({logits, shape_.vocab, target, scored_ + i});
    }
  }
  if (!sample_items_.empty()) kernels_.Sample(compute_, sample_items_);
  if (!score_items_.empty()) kernels_.Score(compute_, score_items_);
  if (Status s = ToHost(inputs); !s.ok()) return s;
  for (int64_t i = 0; i < rows; ++i) {
    const auto entry = static_cast<size_t>(logit_rows_[static_cast<size_t>(i)].entry);
    if (Status s = Deliver(inputs[entry], i, sink); !s.ok()) return s;
  }
  logit_rows_.clear();
  return OkStatus();
}

// Waits for what the inputs ask for.
Status Executor::ToHost(std::span<const StepInput> inputs) {
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  const bool logits = std::any_of(logit_rows_.begin(), logit_rows_.end(), [&](const LogitRow& row) {
    return inputs[static_cast<size_t>(row.entry)].logits != LogitsMode::kNone;
  });
  const auto copy = [&](bool wanted, void* host, const void* device, int64_t bytes) {
    if (host_memory_ == nullptr || !wanted) return;
    compute_.Copy(static_cast<std::byte*>(host), static_cast<const std::byte*>(device),
                  static_cast<size_t>(bytes));
  };
  copy(!sample_items_.empty(), host_sampled_, sampled_, rows * int64_t{sizeof(Sampled)});
  copy(!score_items_.empty(), host_scored_, scored_, rows * int64_t{sizeof(Scored)});
  copy(logits, host_logits_, logits_, LogitsBytes(shape_, rows));
  if (Status s = compute_.Synchronize(); !s.ok()) return s;
  // Whose errors are not the compute stream's.
  if (!host_reads_.empty() || weights_ != nullptr) return store_.LaneStatus();
  return OkStatus();
}

Status Executor::Deliver(const StepInput& input, int64_t row, const LogitsSink& sink) {
  const LogitRow& at = logit_rows_[static_cast<size_t>(row)];
  if (input.sampler != nullptr) {
    const Result<TokenId> token = TokenOf(host_sampled_[row]);
    if (!token.ok()) return token.status();
    *input.sampled = *token;
  }
  if (!input.targets.empty()) {
    const Result<double> loss = NegativeLogLikelihood(host_scored_[row]);
    if (!loss.ok()) return loss.status();
    input.losses[static_cast<size_t>(at.token)] = *loss;
  }
  if (input.logits == LogitsMode::kNone) return OkStatus();
  return sink(at.entry, at.token,
              {host_logits_ + row * shape_.vocab, static_cast<size_t>(shape_.vocab)});
}

}  // namespace headway
