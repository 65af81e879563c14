#include "engine/prompt_weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "engine/step/step_context.h"
#include "kernels/items.h"
#include "kv/policy/expected_queries.h"

namespace headway {
namespace {

bool Expects(const kv::EvictionPolicy& policy) {
  return policy.method == kv::EvictionMethod::kExpected;
}

// Queries whose logits are there at a time, where all of a prompt's count.
constexpr int64_t kRowsAtOnce = 32;

bool SeesAll(const kv::EvictionPolicy& policy) { return policy.adds_up() || policy.repeats(); }

// Of each query head.
int64_t RowsOf(const kv::EvictionPolicy& policy) {
  if (SeesAll(policy)) return kRowsAtOnce;
  return policy.observes() ? policy.window : policy.scores() ? 1 : 0;
}

// The keys at positions [begin, end).
std::vector<KeyRun> Between(const PageFormat& format, std::span<const KeyRun> keys, int64_t begin,
                            int64_t end) {
  std::vector<KeyRun> between;
  for (const KeyRun& run : keys) {
    const int64_t from = std::max(begin, run.position);
    const int64_t to = std::min(end, run.position + run.pages.count);
    if (from < to) between.push_back(KeysOf(format, run, 0, from - run.position, to - from));
  }
  return between;
}

}  // namespace

PromptWeights::Places::Places(const EvictorLimits& limits) {
  const ModelShape& shape = limits.shape;
  const kv::EvictionPolicy& policy = limits.policy;
  const int64_t rows = RowsOf(policy) * shape.group();
  const int64_t columns = rows == 0 ? 0 : FloatBytes(shape.kv_heads * limits.all());
  const auto take = [this](int64_t of) { return std::exchange(bytes, bytes + of); };
  sums = take(columns);
  maxima = take(policy.largest() ? columns : 0);
  norms = take(policy.norms() == kv::EvictionPolicy::Norms::kNone ? 0 : columns);
  moments =
      take(Expects(policy)
               ? FloatBytes(int64_t{shape.query_heads} * shape.head_dim * (1 + shape.head_dim))
               : 0);
  host_bytes = bytes;
  masses = take(SeesAll(policy) ? shape.layers * columns : 0);
  row_lse = take(FloatBytes(rows));
  logits = take(FloatBytes(rows * limits.all()));
}

int64_t PromptWeights::Bytes(const EvictorLimits& limits) { return Places(limits).bytes; }

int64_t PromptWeights::HostBytes(const EvictorLimits& limits) {
  return limits.host_reads_device ? 0 : Places(limits).host_bytes;
}

Result<std::unique_ptr<PromptWeights>> PromptWeights::Create(const EvictorParts& parts,
                                                             const EvictorLimits& limits) {
  Result<std::unique_ptr<Buffer>> memory =
      parts.device.Allocate(parts.budget, static_cast<size_t>(Bytes(limits)), "eviction");
  if (!memory.ok()) return memory.status();
  std::unique_ptr<Buffer> host_memory;
  if (const int64_t bytes = HostBytes(limits); bytes > 0) {
    Result<std::unique_ptr<Buffer>> made =
        parts.device.AllocateHost(parts.host_budget, static_cast<size_t>(bytes), "eviction");
    if (!made.ok()) return made.status();
    host_memory = std::move(*made);
  }
  return std::unique_ptr<PromptWeights>(
      new PromptWeights(parts, limits, std::move(*memory), std::move(host_memory)));
}

PromptWeights::PromptWeights(const EvictorParts& parts, const EvictorLimits& limits,
                             std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> host_memory)
    : parts_(parts),
      limits_(limits),
      places_(limits),
      memory_(std::move(memory)),
      host_memory_(std::move(host_memory)) {}

float* PromptWeights::OnHost(int64_t place) const {
  return reinterpret_cast<float*>((host_memory_ == nullptr ? *memory_ : *host_memory_).data() +
                                  place);
}

bool PromptWeights::Saw(kv::SequenceId prompt, int64_t length) const {
  if (Expects(limits_.policy)) {
    const QueryMoments& moments = parts_.executor.moments();
    return moments.AllOf(prompt, length) && moments.count() > 0;
  }
  if (SeesAll(limits_.policy)) return prompt == added_ && length == added_end_;
  return limits_.policy.observes() && parts_.executor.observed().EndOf(prompt, length);
}

Status PromptWeights::Weigh(int layer, int64_t length, std::span<const std::vector<KeyRun>> keys) {
  length_ = length;
  const bool expects = Expects(limits_.policy);
  if (expects) {
    if (Status s = Expect(layer); !s.ok()) return s;
  }
  heads_ = HeadsIn(layer);
  for (int head = 0; head < heads_; ++head) {
    if (SeesAll(limits_.policy)) {
      queries_ = 1;
      parts_.compute.Copy(reinterpret_cast<std::byte*>(Floats(places_.sums) + head * length_),
                          reinterpret_cast<const std::byte*>(MassesOf(layer, head)),
                          static_cast<size_t>(length_) * sizeof(float));
      continue;
    }
    const std::vector<KeyRun>& of_head = keys[static_cast<size_t>(head)];
    if (expects) {
      ExpectedLogits(head, of_head);
    } else {
      queries_ = LogitsOf(layer, head, of_head, 0, length_);
    }
    const KeyWeightsItem weights = {
        .logits = Floats(places_.logits),
        .stride = length_,
        .rows = queries_,
        .columns = length_,
        .sum = Floats(places_.sums) + head * length_,
        .max = limits_.policy.largest() ? Floats(places_.maxima) + head * length_ : nullptr,
        .row_lse = Floats(places_.row_lse)};
    parts_.kernels.KeyWeights(parts_.compute, {&weights, 1});
  }
  Norms(layer, keys);
  if (host_memory_ == nullptr || heads_ == 0) return OkStatus();
  const auto bytes = static_cast<size_t>(heads_ * length_) * sizeof(float);
  const std::pair<int64_t, int64_t> places[] = {{places_.sums, places_.maxima},
                                                {places_.maxima, places_.norms},
                                                {places_.norms, places_.moments}};
  for (const auto& [at, end] : places) {
    if (at < end) parts_.compute.Copy(host_memory_->data() + at, memory_->data() + at, bytes);
  }
  return OkStatus();
}

int64_t PromptWeights::LogitsOf(int layer, int head, std::span<const KeyRun> keys, int64_t begin,
                                int64_t end) {
  const ObservedQueries& observed = parts_.executor.observed();
  const int group = limits_.shape.group();
  parts_.kernels.KeyLogits(
      parts_.compute, limits_.page, group, AttentionScale(limits_.shape),
      observed.LogitsItems(layer, head, keys, begin, end, {Floats(places_.logits), length_}));
  return (std::min(end, observed.end()) - std::max(begin, observed.begin())) * group;
}

Status PromptWeights::AddUp(kv::SequenceId sequence, int64_t position) {
  length_ = parts_.from.Length(sequence);
  const bool goes_on = position == 0 || (sequence == added_ && position == added_end_);
  added_ = goes_on && parts_.executor.observed().EndOf(sequence, length_) ? sequence : -1;
  added_end_ = length_;
  for (int layer = 0; added_ == sequence && layer < limits_.shape.layers; ++layer) {
    for (int head = 0; head < HeadsIn(layer); ++head) {
      const Result<std::vector<KeyRun>> keys = parts_.from.KeysOf(sequence, layer, head);
      if (!keys.ok()) return keys.status();
      for (int64_t begin = position; begin < length_; begin += kRowsAtOnce) {
        AddUpHead(layer, head, *keys, begin, std::min(begin + kRowsAtOnce, length_));
      }
      parts_.from.FinishKeys(sequence, layer, head);
    }
  }
  return OkStatus();
}

void PromptWeights::AddUpHead(int layer, int head, std::span<const KeyRun> keys, int64_t begin,
                              int64_t end) {
  KeyWeightsItem weights = {.logits = Floats(places_.logits), .stride = length_};
  weights.rows = LogitsOf(layer, head, keys, begin, end);
  weights.columns = end;  // behind which these queries see nothing
  weights.sum = MassesOf(layer, head);
  weights.average = {.kept = begin, .keep = 1.0f};
  weights.row_lse = Floats(places_.row_lse);
  parts_.kernels.KeyWeights(parts_.compute, {&weights, 1});
}

Status PromptWeights::SeeRepeated(kv::SequenceId sequence, int64_t position,
                                  const Repeated& repeated) {
  length_ = parts_.from.Length(sequence);
  added_ = parts_.executor.observed().EndOf(sequence, length_) ? sequence : -1;
  added_end_ = repeated.end;
  const int64_t first = std::max(position, repeated.prompt);
  for (int layer = 0; added_ == sequence && layer < limits_.shape.layers; ++layer) {
    for (int head = 0; head < HeadsIn(layer); ++head) {
      const Result<std::vector<KeyRun>> keys = parts_.from.KeysOf(sequence, layer, head);
      if (!keys.ok()) return keys.status();
      for (int64_t begin = first; begin < length_; begin += kRowsAtOnce) {
        RaiseHead(layer, head, *keys, begin, std::min(begin + kRowsAtOnce, length_), repeated);
      }
      parts_.from.FinishKeys(sequence, layer, head);
    }
  }
  return OkStatus();
}

// Columns are the chunk's tokens and, behind them, those behind the prompt. What is put behind the
// chunk's largest weights the next chunk overwrites.
void PromptWeights::RaiseHead(int layer, int head, std::span<const KeyRun> keys, int64_t begin,
                              int64_t end, const Repeated& repeated) {
  const int64_t chunk = repeated.end - repeated.begin;
  KeyWeightsItem weights = {.logits = Floats(places_.logits)};
  weights.columns = weights.stride = chunk + end - repeated.prompt;
  std::vector<KeyLogitsItem> items;
  for (const auto& [from, to, first] :
       {std::array{repeated.begin, repeated.end, repeated.begin},
        std::array{repeated.prompt, end, repeated.prompt - chunk}}) {
    const std::vector<KeyLogitsItem> of_part = parts_.executor.observed().LogitsItems(
        layer, head, Between(limits_.page, keys, from, to), begin, end,
        {Floats(places_.logits), weights.stride, first});
    items.insert(items.end(), of_part.begin(), of_part.end());
  }
  const int group = limits_.shape.group();
  parts_.kernels.KeyLogits(parts_.compute, limits_.page, group, AttentionScale(limits_.shape),
                           items);
  weights.rows = (end - begin) * group;
  weights.sum = Floats(places_.sums);  // nobody reads them
  weights.max = MassesOf(layer, head) + repeated.begin;
  weights.raises = begin != repeated.prompt;
  weights.row_lse = Floats(places_.row_lse);
  parts_.kernels.KeyWeights(parts_.compute, {&weights, 1});
}

void PromptWeights::ExpectedLogits(int head, std::span<const KeyRun> keys) {
  const ModelShape& shape = limits_.shape;
  const int64_t dim = shape.head_dim;
  const int64_t first = int64_t{head} * shape.group();
  const float* const means = Floats(places_.moments);
  std::vector<ExpectedLogitsItem> items;
  for (const KeyRun& range : keys) {
    if (range.pages.count == 0) continue;
    items.push_back({.keys = range,
                     .mean = means + first * dim,
                     .covariance = means + (shape.query_heads + first * dim) * dim,
                     .logits = Floats(places_.logits) + range.position,
                     .stride = length_});
  }
  queries_ = shape.group();
  parts_.kernels.ExpectedLogits(parts_.compute, limits_.page, shape.group(), AttentionScale(shape),
                                items);
}

Status PromptWeights::Expect(int layer) {
  const QueryMoments& moments = parts_.executor.moments();
  const ModelShape& shape = limits_.shape;
  const int64_t width = int64_t{shape.query_heads} * shape.head_dim;
  const auto count = static_cast<size_t>(width * (1 + shape.head_dim));
  float* const to = OnHost(places_.moments);
  // Kernels may still read what is there, of the layer before.
  parts_.compute.Copy(reinterpret_cast<std::byte*>(to),
                      reinterpret_cast<const std::byte*>(moments.SumsOf(layer)),
                      count * sizeof(float));
  if (Status s = parts_.compute.Synchronize(); !s.ok()) return s;
  const kv::FutureTurn turn(moments.rope().inv_freq, double{moments.rope().scale}, length_,
                            limits_.policy.future);
  for (int64_t head = 0; head < shape.query_heads; ++head) {
    kv::ExpectQueries(turn, moments.count(),
                      {to + head * shape.head_dim, static_cast<size_t>(shape.head_dim)},
                      {to + width + head * shape.head_dim * shape.head_dim,
                       static_cast<size_t>(shape.head_dim * shape.head_dim)});
  }
  if (host_memory_ != nullptr) {
    parts_.compute.Copy(memory_->data() + places_.moments, reinterpret_cast<const std::byte*>(to),
                        count * sizeof(float));
  }
  return OkStatus();
}

void PromptWeights::Norms(int layer, std::span<const std::vector<KeyRun>> keys) {
  using Kind = kv::EvictionPolicy::Norms;
  const Kind kind = limits_.policy.norms();
  if (kind == Kind::kNone) return;
  const ModelShape& shape = limits_.shape;
  std::vector<ValueNormsItem> own;
  std::vector<ProjectedNormsItem> projected;
  const bool streams = kind == Kind::kProjected && parts_.weights != nullptr;
  WeightView weight;
  if (kind == Kind::kProjected) {
    weight =
        parts_.model.OutputProjection(layer, streams ? parts_.weights->Acquire(layer) : nullptr);
  }
  for (int head = 0; head < HeadsIn(layer); ++head) {
    for (const KeyRun& range : keys[static_cast<size_t>(head)]) {
      if (range.pages.count == 0) continue;
      float* const norms = Floats(places_.norms) + head * length_ + range.position;
      own.push_back({.values = range.pages, .norms = norms});
      projected.push_back({.values = range.pages,
                           .weight = weight,
                           .first_column = int64_t{head} * shape.group() * shape.head_dim,
                           .norms = norms});
    }
  }
  if (own.empty()) {
    // A rank may have no head of a layer.
  } else if (kind == Kind::kOwn) {
    parts_.kernels.ValueNorms(parts_.compute, limits_.page, own);
  } else {
    parts_.kernels.ProjectedNorms(parts_.compute, limits_.page, shape.group(), projected);
  }
  if (!streams) return;
  parts_.weights->Prefetch();
  parts_.weights->Release();
}

kv::ObservedWeights PromptWeights::weights() const {
  kv::ObservedWeights weights;
  weights.heads = heads_;
  weights.tokens = length_;
  weights.queries = queries_;
  const auto all = static_cast<size_t>(weights.heads * length_);
  weights.sum = {OnHost(places_.sums), all};
  if (places_.maxima < places_.norms) weights.max = {OnHost(places_.maxima), all};
  if (places_.norms < places_.moments) weights.norms = {OnHost(places_.norms), all};
  return weights;
}

}  // namespace headway
