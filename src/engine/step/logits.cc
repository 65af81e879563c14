#include "engine/step/logits.h"

#include <algorithm>

#include "base/bytes.h"
#include "kernels/scoring.h"

namespace headway {
namespace {

// Rows of logits computed at a time: those of a decode step, unless there are very many, so that
// the head is read once.
int64_t RowsOf(const ExecutorLimits& limits) {
  constexpr int64_t kLeast = 32;
  constexpr int64_t kMost = 128;
  return std::clamp(limits.entries * limits.decode_tokens(), kLeast, kMost);
}

// The token of an input with a sampler behind which the first one is picked.
int64_t FirstSampled(const StepInput& input) {
  return std::ssize(input.tokens) - 1 - std::ssize(input.PickedDrafts());
}

struct Sizes {
  int64_t head_in, head_scratch, logits, sampled, scored;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits) {
    const int64_t rows = RowsOf(limits);
    head_in = FloatBytes(rows * shape.d_model);
    head_scratch = HeadScratchBytes(shape, limits.activation_dtype, rows);
    logits = FloatBytes(rows * shape.vocab);
    sampled = RoundUp(rows * int64_t{sizeof(Sampled)}, 64);
    scored = RoundUp(rows * int64_t{sizeof(Scored)}, 64);
  }
  int64_t results() const { return logits + sampled + scored; }
};

}  // namespace

int64_t Logits::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  const Sizes sizes(shape, limits);
  return sizes.head_in + sizes.head_scratch + sizes.results();
}

int64_t Logits::HostBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return limits.host_reads_device ? 0 : Sizes(shape, limits).results();
}

Logits::Logits(StepContext& context, const Batch& batch, Memory* memory, std::byte* host_memory)
    : context_(context), batch_(batch), copies_(host_memory != nullptr) {
  const Sizes sizes(context.shape, context.limits);
  head_in_ = memory->Floats(sizes.head_in);
  head_scratch_ = memory->Take(sizes.head_scratch);
  logits_ = memory->Floats(sizes.logits);
  sampled_ = reinterpret_cast<Sampled*>(memory->Take(sizes.sampled));
  scored_ = reinterpret_cast<Scored*>(memory->Take(sizes.scored));
  Memory results(copies_ ? host_memory : reinterpret_cast<std::byte*>(logits_));
  host_logits_ = results.Floats(sizes.logits);
  host_sampled_ = reinterpret_cast<Sampled*>(results.Take(sizes.sampled));
  host_scored_ = reinterpret_cast<Scored*>(results.Take(sizes.scored));
}

Status Logits::Run(std::span<const StepInput> inputs, const LogitsSink& sink) {
  rows_.clear();
  samples_.resize(inputs.size());
  for (int e = 0; e < batch_.size(); ++e) {
    const StepInput& input = inputs[static_cast<size_t>(e)];
    if (!input.WantsLogits()) continue;
    const int64_t tokens = batch_[e].tokens;
    int64_t token = 0;
    if (input.sampler != nullptr) {
      samples_[static_cast<size_t>(e)] = input.sampler->Next(input.PickedDrafts());
      token = FirstSampled(input);
    }
    for (; token < tokens; ++token) {
      rows_.push_back({e, token});
      if (static_cast<int64_t>(rows_.size()) < RowsOf(context_.limits)) continue;
      if (Status s = Flush(inputs, sink); !s.ok()) return s;
    }
  }
  return Flush(inputs, sink);
}

// The rows of the residual stream that logits are wanted of: in place where they lie side by side,
// as in decode.
const float* Logits::HeadRows() {
  const int64_t width = context_.shape.d_model;
  const auto at = [&](const Row& row) {
    return context_.act.x + (batch_[row.entry].row + row.token) * width;
  };
  const float* first = at(rows_.front());
  const auto rows = static_cast<int64_t>(rows_.size());
  if (at(rows_.back()) == first + (rows - 1) * width) return first;
  for (int64_t i = 0; i < rows; ++i) {
    context_.compute.Copy(reinterpret_cast<std::byte*>(head_in_ + i * width),
                          reinterpret_cast<const std::byte*>(at(rows_[static_cast<size_t>(i)])),
                          static_cast<size_t>(width) * sizeof(float));
  }
  return head_in_;
}

// Of the rows: the tokens of those with a sampler and what the likelihoods of targets are made of.
void Logits::AddItems(std::span<const StepInput> inputs) {
  sample_items_.clear();
  score_items_.clear();
  const int64_t vocab = context_.shape.vocab;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const StepInput& input = inputs[static_cast<size_t>(rows_[i].entry)];
    float* const logits = logits_ + static_cast<int64_t>(i) * vocab;
    if (input.sampler != nullptr) {
      const int64_t sample = rows_[i].token - FirstSampled(input);
      SampleItem item = samples_[static_cast<size_t>(rows_[i].entry)][static_cast<size_t>(sample)];
      item.logits = logits;
      item.vocab = vocab;
      item.result = sampled_ + i;
      sample_items_.push_back(item);
    }
    if (!input.targets.empty()) {
      const TokenId target = input.targets[static_cast<size_t>(rows_[i].token)];
      score_items_.push_back({logits, vocab, target, scored_ + i});
    }
  }
}

// Logits of the rows, and what is made of them: only that crosses the bus, unless the logits are
// asked for.
Status Logits::Flush(std::span<const StepInput> inputs, const LogitsSink& sink) {
  if (rows_.empty()) return OkStatus();
  const auto rows = static_cast<int64_t>(rows_.size());
  context_.model.Head(context_.kernels, context_.compute, rows, HeadRows(), head_scratch_, logits_);
  if (context_.communicator != nullptr) {
    const Interval own = context_.model.vocab_rows();
    context_.communicator->AllGather(context_.compute,
                                     {logits_, rows, context_.shape.vocab, own.begin, own.end});
  }
  AddItems(inputs);
  if (!sample_items_.empty()) context_.kernels.Sample(context_.compute, sample_items_);
  if (!score_items_.empty()) context_.kernels.Score(context_.compute, score_items_);
  if (Status s = ToHost(inputs); !s.ok()) return s;
  for (int64_t i = 0; i < rows; ++i) {
    const auto entry = static_cast<size_t>(rows_[static_cast<size_t>(i)].entry);
    if (Status s = Deliver(inputs[entry], i, sink); !s.ok()) return s;
  }
  rows_.clear();
  return OkStatus();
}

// Waits for what the inputs ask for.
Status Logits::ToHost(std::span<const StepInput> inputs) {
  const auto rows = static_cast<int64_t>(rows_.size());
  const bool logits = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
    return inputs[static_cast<size_t>(row.entry)].logits != LogitsMode::kNone;
  });
  const auto copy = [&](bool wanted, void* host, const void* device, int64_t bytes) {
    if (!copies_ || !wanted) return;
    context_.compute.Copy(static_cast<std::byte*>(host), static_cast<const std::byte*>(device),
                          static_cast<size_t>(bytes));
  };
  copy(!sample_items_.empty(), host_sampled_, sampled_, rows * int64_t{sizeof(Sampled)});
  copy(!score_items_.empty(), host_scored_, scored_, rows * int64_t{sizeof(Scored)});
  copy(logits, host_logits_, logits_, LogitsBytes(context_.shape, rows));
  if (Status s = context_.compute.Synchronize(); !s.ok()) return s;
  return context_.awaits_lanes ? context_.store.reads().LaneStatus() : OkStatus();
}

Status Logits::Deliver(const StepInput& input, int64_t row, const LogitsSink& sink) {
  const Row& at = rows_[static_cast<size_t>(row)];
  if (input.sampler != nullptr) {
    const Result<TokenId> token = TokenOf(host_sampled_[row]);
    if (!token.ok()) return token.status();
    input.sampled[at.token - FirstSampled(input)] = *token;
  }
  if (!input.targets.empty()) {
    const Result<double> loss = NegativeLogLikelihood(host_scored_[row]);
    if (!loss.ok()) return loss.status();
    input.losses[static_cast<size_t>(at.token)] = *loss;
  }
  if (input.logits == LogitsMode::kNone) return OkStatus();
  return sink(
      at.entry, at.token,
      {host_logits_ + row * context_.shape.vocab, static_cast<size_t>(context_.shape.vocab)});
}

}  // namespace headway
