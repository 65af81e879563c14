#include "engine/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/random.h"

namespace headway {
namespace {

// Keys of one decode item: enough work to hide its start, small enough that a short context still
// feeds every core.
constexpr int64_t kDecodeSplit = 512;
// Rows of logits computed at a time.
constexpr int64_t kLogitRows = 32;

int64_t SplitTokens(const ExecutorLimits& limits) {
  return RoundUp(kDecodeSplit, limits.page_slots);
}

int64_t MaxParts(const ExecutorLimits& limits) {
  return CeilDiv(limits.length, limits.segment_tokens) *
             CeilDiv(limits.segment_tokens, SplitTokens(limits)) +
         1;
}

// The parts of the executor's memory, in order, each aligned to 64 bytes.
struct Layout {
  int64_t activations, lse, part_o, part_lse, head_in, logits;

  Layout(const ModelShape& shape, const ExecutorLimits& limits) {
    const auto floats = [](int64_t n) { return RoundUp(n * int64_t{sizeof(float)}, 64); };
    activations = RoundUp(Activations::Bytes(shape, limits.step_tokens), 64);
    lse = floats(limits.step_tokens * shape.query_heads);
    const int64_t states = limits.entries * MaxParts(limits) * shape.query_heads;
    part_o = floats(states * shape.head_dim);
    part_lse = floats(states);
    head_in = floats(kLogitRows * shape.d_model);
    logits = floats(kLogitRows * shape.vocab);
  }
  int64_t total() const { return activations + lse + part_o + part_lse + head_in + logits; }
};

}  // namespace

int64_t Executor::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return Layout(shape, limits).total();
}

Result<std::unique_ptr<Executor>> Executor::Create(const Model& model, Kernels& kernels,
                                                   Device& device, Stream& compute,
                                                   kv::Store& store, const ExecutorLimits& limits,
                                                   Budget& budget) {
  Result<std::unique_ptr<Buffer>> memory =
      device.Allocate(budget, static_cast<size_t>(Bytes(model.shape(), limits)), "activations");
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<Executor>(
      new Executor(model, kernels, compute, store, limits, std::move(*memory)));
}

Executor::Executor(const Model& model, Kernels& kernels, Stream& compute, kv::Store& store,
                   const ExecutorLimits& limits, std::unique_ptr<Buffer> memory)
    : model_(model),
      shape_(model.shape()),
      kernels_(kernels),
      compute_(compute),
      store_(store),
      limits_(limits),
      format_(store.format().page),
      split_tokens_(SplitTokens(limits)),
      max_parts_(MaxParts(limits)),
      memory_(std::move(memory)) {
  const Layout layout(shape_, limits_);
  std::byte* at = memory_->data();
  const auto take = [&](int64_t bytes) {
    return reinterpret_cast<float*>(std::exchange(at, at + bytes));
  };
  act_ = Activations::Place(shape_, limits_.step_tokens,
                            reinterpret_cast<std::byte*>(take(layout.activations)));
  lse_ = take(layout.lse);
  part_o_ = take(layout.part_o);
  part_lse_ = take(layout.part_lse);
  head_in_ = take(layout.head_in);
  logits_ = take(layout.logits);
}

float* Executor::PartO(int entry, int head) const {
  const int64_t state = (int64_t{entry} * shape_.kv_heads + head) * max_parts_ * shape_.group();
  return part_o_ + state * shape_.head_dim;
}

float* Executor::PartLse(int entry, int head) const {
  return part_lse_ + (int64_t{entry} * shape_.kv_heads + head) * max_parts_ * shape_.group();
}

Status Executor::Step(std::span<const StepInput> inputs, const LogitsSink& sink,
                      const std::atomic<bool>* cancel) {
  std::vector<kv::StepEntry> step;
  for (const StepInput& input : inputs) {
    step.push_back({input.sequence, static_cast<int64_t>(input.tokens.size())});
  }
  BeginEntries(inputs);
  if (Status s = store_.BeginStep(step); !s.ok()) return s;
  Status status = store_.BeginReads(ReadOrder());
  if (status.ok()) {
    Angles(inputs);
    model_.Embed(kernels_, compute_, ids_, act_.x);
    status = RunLayers(cancel);
  }
  if (status.ok()) status = store_.EndStep();
  if (!status.ok()) {
    views_.clear();
    items_.clear();
    store_.AbortStep();
    return status;
  }
  return Logits(inputs, sink);
}

Status Executor::AppendSynthetic(kv::SequenceId sequence, int64_t tokens, uint64_t seed) {
  Random random(seed);
  const int64_t chunk = std::min(tokens, limits_.step_tokens);
  for (int64_t i = 0; i < chunk * shape_.kv_heads * shape_.head_dim; ++i) {
    act_.k[i] = random.Normal();
    act_.v[i] = random.Normal();
  }
  const std::vector<TokenId> ids(static_cast<size_t>(chunk), 0);
  for (int64_t at = 0; at < tokens; at += chunk) {
    const int64_t n = std::min(chunk, tokens - at);
    const StepInput input{sequence, std::span(ids).first(static_cast<size_t>(n)), nullptr,
                          LogitsMode::kNone};
    BeginEntries({&input, 1});
    const kv::StepEntry entry{sequence, n};
    if (Status s = store_.BeginStep({&entry, 1}); !s.ok()) return s;
    Status status = store_.BeginReads({});
    for (int layer = 0; status.ok() && layer < shape_.layers; ++layer) {
      StoreNew(layer);
      store_.CloseLayer(layer);
    }
    if (status.ok()) status = store_.EndStep();
    if (!status.ok()) {
      store_.AbortStep();
      return status;
    }
  }
  return OkStatus();
}

Status Executor::RunLayers(const std::atomic<bool>* cancel) {
  const int64_t tokens = static_cast<int64_t>(ids_.size());
  const RopeTable rope{act_.cos, act_.sin, shape_.head_dim};
  for (int layer = 0; layer < shape_.layers; ++layer) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, "cancelled");
    }
    model_.Qkv(kernels_, compute_, layer, rope, tokens, act_);
    StoreNew(layer);
    if (Status s = Attention(layer); !s.ok()) return s;
    store_.CloseLayer(layer);
    model_.AttentionOut(kernels_, compute_, layer, tokens, act_);
    model_.Mlp(kernels_, compute_, layer, tokens, act_);
  }
  return OkStatus();
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

std::vector<kv::SlabRead> Executor::ReadOrder() const {
  std::vector<kv::SlabRead> order;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (int group = 0; group < store_.format().head_groups(); ++group) {
      for (int entry = 0; entry < static_cast<int>(entries_.size()); ++entry) {
        const kv::Store::SegmentSpan span = store_.Segments(entry, layer);
        for (int segment = span.first; segment < span.last; ++segment) {
          order.push_back({entry, layer, group, segment});
        }
      }
    }
  }
  return order;
}

void Executor::Angles(std::span<const StepInput> inputs) {
  const int64_t half = shape_.head_dim / 2;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const RopeFrequencies& rope = *inputs[i].rope;
    kernels_.RopeAngles(
        compute_,
        std::span(positions_)
            .subspan(static_cast<size_t>(entry.row), static_cast<size_t>(entry.tokens)),
        rope.inv_freq.data(), shape_.head_dim, rope.scale, act_.cos + entry.row * half,
        act_.sin + entry.row * half);
  }
}

void Executor::StoreNew(int layer) {
  store_items_.clear();
  const int64_t stride = int64_t{shape_.kv_heads} * shape_.head_dim;
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const int64_t offset = entries_[static_cast<size_t>(e)].row * stride + head * shape_.head_dim;
      store_items_.push_back(
          {act_.k + offset, act_.v + offset, stride, store_.Target(e, layer, head)});
    }
  }
  kernels_.StoreKv(compute_, format_, store_items_);
}

Status Executor::Attention(int layer) {
  for (int group = 0; group < store_.format().head_groups(); ++group) {
    for (Entry& entry : entries_) {
      entry.parts = 0;
      entry.started = false;
    }
    if (Status s = AttendSegments(layer, group); !s.ok()) return s;
    const int first_head = group * store_.format().group_heads;
    for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
      Entry& entry = entries_[static_cast<size_t>(e)];
      for (int h = 0; h < store_.format().HeadsIn(group); ++h) {
        AttendRange(entry, e, first_head + h, store_.Tail(e, layer, first_head + h));
      }
      ++entry.parts;
    }
    Flush(layer);
    MergeDecode(group);
  }
  return OkStatus();
}

Status Executor::AttendSegments(int layer, int group) {
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    const kv::Store::SegmentSpan span = store_.Segments(e, layer);
    for (int segment = span.first; segment < span.last; ++segment) {
      Result<kv::SlabView> view = store_.NextRead();
      if (!view.ok()) return view.status();
      views_.push_back(std::move(*view));
      AttendSlab(e, group, views_.back());
      // A prefill state takes its ranges one after the other, and a staging buffer is wanted back;
      // decode items of resident slabs wait to be launched together.
      if (!entries_[static_cast<size_t>(e)].decode || views_.back().tier != Tier::kDevice)
        Flush(layer);
    }
  }
  return OkStatus();
}

// Items for every head of the group against one slab. Decode cuts the slab at fixed boundaries,
// each piece with a state of its own.
void Executor::AttendSlab(int entry_index, int group, const kv::SlabView& view) {
  Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const int first_head = group * store_.format().group_heads;
  const int64_t step = entry.decode ? split_tokens_ : view.tokens;
  for (int64_t begin = 0; begin < view.tokens; begin += step) {
    const int64_t first_page = begin / format_.page_slots;
    for (int h = 0; h < store_.format().HeadsIn(group); ++h) {
      KeyRun keys;
      keys.pages.k_pages = view.k_pages.data() + int64_t{h} * view.pages + first_page;
      keys.pages.v_pages = view.v_pages.data() + int64_t{h} * view.pages + first_page;
      keys.pages.count = std::min(step, view.tokens - begin);
      keys.position = view.position + begin;
      AttendRange(entry, entry_index, first_head + h, keys);
    }
    ++entry.parts;
  }
  entry.started = true;
}

void Executor::AttendRange(Entry& entry, int entry_index, int head, const KeyRun& keys) {
  const int group = shape_.group();
  const int64_t width = QWidth();
  const int64_t column = int64_t{head} * group * shape_.head_dim;
  AttentionItem item;
  item.q = act_.q + entry.row * width + column;
  item.q_stride = width;
  item.tokens = entry.tokens;
  item.q_position = entry.position;
  item.keys = keys;
  if (entry.decode) {
    HEADWAY_CHECK(entry.parts < max_parts_);
    item.o = PartO(entry_index, head) + int64_t{entry.parts} * group * shape_.head_dim;
    item.lse = PartLse(entry_index, head) + int64_t{entry.parts} * group;
    item.o_stride = int64_t{group} * shape_.head_dim;
    item.lse_stride = group;
  } else {
    item.o = act_.o + entry.row * width + column;
    item.o_stride = width;
    item.lse = lse_ + entry.row * shape_.query_heads + int64_t{head} * group;
    item.lse_stride = shape_.query_heads;
    item.merge = entry.started;
  }
  items_.push_back(item);
}

void Executor::Flush(int layer) {
  if (!items_.empty()) {
    AttentionParams params;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params.window =
        model_.config().windows.empty() ? 0 : model_.config().windows[static_cast<size_t>(layer)];
    kernels_.Attend(compute_, format_, shape_.group(), params, items_);
    items_.clear();
  }
  for (const kv::SlabView& view : views_) store_.FinishRead(view);
  views_.clear();
}

void Executor::MergeDecode(int group) {
  merge_items_.clear();
  const int first_head = group * store_.format().group_heads;
  const int rows = shape_.group();
  for (int e = 0; e < static_cast<int>(entries_.size()); ++e) {
    const Entry& entry = entries_[static_cast<size_t>(e)];
    if (!entry.decode) continue;
    for (int h = 0; h < store_.format().HeadsIn(group); ++h) {
      const int head = first_head + h;
      MergeItem item;
      item.part_o = PartO(e, head);
      item.o_part_stride = int64_t{rows} * shape_.head_dim;
      item.part_lse = PartLse(e, head);
      item.lse_part_stride = rows;
      item.parts = entry.parts;
      item.rows = rows;
      item.o = act_.o + entry.row * QWidth() + int64_t{head} * rows * shape_.head_dim;
      merge_items_.push_back(item);
    }
  }
  if (!merge_items_.empty()) kernels_.Merge(compute_, shape_.head_dim, merge_items_);
}

Status Executor::Logits(std::span<const StepInput> inputs, const LogitsSink& sink) {
  logit_rows_.clear();
  for (size_t e = 0; e < entries_.size(); ++e) {
    if (inputs[e].logits == LogitsMode::kNone) continue;
    const Entry& entry = entries_[e];
    int64_t token = inputs[e].logits == LogitsMode::kLast ? entry.tokens - 1 : 0;
    for (; token < entry.tokens; ++token) {
      std::memcpy(head_in_ + static_cast<int64_t>(logit_rows_.size()) * shape_.d_model,
                  act_.x + (entry.row + token) * shape_.d_model,
                  static_cast<size_t>(shape_.d_model) * sizeof(float));
      logit_rows_.push_back({static_cast<int>(e), token});
      if (static_cast<int64_t>(logit_rows_.size()) < kLogitRows) continue;
      if (Status s = FlushLogits(sink); !s.ok()) return s;
    }
  }
  return FlushLogits(sink);
}

Status Executor::FlushLogits(const LogitsSink& sink) {
  if (logit_rows_.empty()) return OkStatus();
  model_.Head(kernels_, compute_, static_cast<int64_t>(logit_rows_.size()), head_in_, head_in_,
              logits_);
  if (Status s = compute_.Synchronize(); !s.ok()) return s;
  for (size_t i = 0; i < logit_rows_.size(); ++i) {
    const std::span<float> logits(logits_ + static_cast<int64_t>(i) * shape_.vocab,
                                  static_cast<size_t>(shape_.vocab));
    if (Status s = sink(logit_rows_[i].entry, logit_rows_[i].token, logits); !s.ok()) return s;
  }
  logit_rows_.clear();
  return OkStatus();
}

}  // namespace headway
