#include "plan/cost.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "base/bytes.h"

namespace headway::plan {
namespace {

constexpr int64_t kChunkSamples = 12;  // of a long prefill

// What the steps of prompts of so many tokens do.
Execution ForPrompts(const Execution& execution, int64_t tokens) {
  const int64_t chunk = std::max<int64_t>(execution.chunk, 1);
  Execution run = execution;
  if (execution.stretch_tokens == 0 || execution.in_stretch || tokens <= chunk) return run;
  run.in_stretch = true;
  run.weights_of_stretch = static_cast<double>(CeilDiv(tokens, execution.stretch_tokens)) /
                           static_cast<double>(CeilDiv(tokens, chunk));
  return run;
}

void AddTo(StepTime* sum, const StepTime& time, double times) {
  sum->seconds += times * time.seconds;
  for (int i = 0; i < kCostLanes; ++i) sum->busy[i] += times * time.busy[i];
  sum->products += times * time.products;
  sum->attention += times * time.attention;
  sum->other += times * time.other;
}

}  // namespace

const char* CostLaneName(CostLane lane) {
  switch (lane) {
    case CostLane::kDevice:
      return "device";
    case CostLane::kHostToDevice:
      return "host to device";
    case CostLane::kDeviceToHost:
      return "device to host";
    case CostLane::kHost:
      return "host cores";
    case CostLane::kDisk:
      return "disk";
  }
  return "?";
}

double ProductSeconds(const MachineProfile& machine, const ModelShape& shape, double rows,
                      double in, double out) {
  if (rows <= 0.0) return 0.0;
  // The kernel for one row asks for weights before the kernel ahead of it has ended, those for more
  // only then.
  const bool more = machine.own_memory && rows > 1.0;
  const double begin = machine.product_seconds + (more ? 4.0 * machine.launch_seconds : 0.0);
  return std::max(
      in * out * static_cast<double>(DTypeBytes(shape.dtype)) / machine.device_read + begin,
      2.0 * in * out * machine.gemm.Seconds(rows));
}

double LayerSumSeconds(const MachineProfile& machine, const Subject& subject, double tokens) {
  const ModelShape& shape = subject.shape;
  double seconds = 2.0 * SumSeconds(machine, subject.group, 4.0 * tokens * shape.d_model);
  // In pieces the first is waited for, and what products do not hide of the others; and products
  // take longer beside them: by 0.28 to 0.35 of the sums on four H200s, by 0.6 and more on two
  // GPUs, whose sums have more multiprocessors.
  if (const int pieces = PiecesOfSum(static_cast<int64_t>(tokens)); pieces > 1) {
    const double products =
        ProductSeconds(machine, shape, tokens, shape.query_heads * shape.head_dim, shape.d_model) +
        ProductSeconds(machine, shape, tokens, shape.d_model,
                       (shape.gated_mlp ? 3.0 : 2.0) * shape.d_ff);
    const double beside = subject.group.of_node() <= 2 ? 0.65 : 0.3;
    seconds = std::max(seconds - products,
                       seconds / (2.0 * pieces) + beside * std::min(seconds, products));
  }
  // Steps over prompts do without, for which this is next to nothing.
  if (subject.group.shares_heads) {
    seconds += GatherSeconds(machine, subject.group, 4.0 * tokens * shape.query_heads);
  }
  return seconds;
}

CostLane StepTime::limit() const {
  return static_cast<CostLane>(std::max_element(std::begin(busy), std::end(busy)) -
                               std::begin(busy));
}

StepTime PredictPrefill(const MachineProfile& machine, const Subject& subject,
                        const Execution& execution, int64_t prefix, int64_t tokens) {
  StepTime sum;
  if (tokens <= 0) return sum;
  const Execution run = ForPrompts(execution, tokens);
  const int64_t chunk = std::max<int64_t>(run.chunk, 1);
  const int64_t full = (tokens - 1) / chunk;  // the last chunk, maybe a short one, on its own
  const auto step = [&](int64_t at, int64_t n, LogitsWanted logits) {
    const SequenceStep entry{at, n};
    return PredictStep(machine, subject, run, {&entry, 1}, logits);
  };
  // Time is near to linear in the prefix: chunks between two that are followed cost their mean.
  const int64_t samples = std::min(full, kChunkSamples);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t begin = full * i / samples, end = full * (i + 1) / samples;
    const double middle = static_cast<double>(begin + end - 1) / 2.0;
    const auto at = static_cast<int64_t>(middle * static_cast<double>(chunk));
    AddTo(&sum, step(prefix + at, chunk, LogitsWanted::kNo), static_cast<double>(end - begin));
  }
  AddTo(&sum, step(prefix + full * chunk, tokens - full * chunk, LogitsWanted::kYes), 1.0);
  return sum;
}

StepTime PredictPrefills(const MachineProfile& machine, const Subject& subject,
                         const Execution& execution, std::span<const int64_t> lengths) {
  const int64_t chunk = std::max<int64_t>(execution.chunk, 1);
  std::map<int64_t, int64_t> counts;  // of those as long as a chunk
  // Steps of shorter ones, each filled from the next until it has a chunk's tokens.
  std::map<std::vector<std::pair<int64_t, int64_t>>, int64_t> steps;
  std::vector<std::pair<int64_t, int64_t>> packed;  // prefix and tokens
  int64_t room = chunk;
  const auto close = [&] {
    if (!packed.empty()) ++steps[packed];
    packed.clear();
    room = chunk;
  };
  for (int64_t length : lengths) {
    if (length >= chunk) {
      ++counts[length];
      continue;
    }
    for (int64_t at = 0; at < length;) {
      const int64_t tokens = std::min(length - at, room);
      packed.emplace_back(at, tokens);
      at += tokens;
      room -= tokens;
      if (room == 0) close();
    }
  }
  close();
  StepTime sum;
  const Execution run =
      ForPrompts(execution, std::reduce(lengths.begin(), lengths.end(), int64_t{0}));
  for (const auto& [length, count] : counts) {
    AddTo(&sum, PredictPrefill(machine, subject, run, 0, length), static_cast<double>(count));
  }
  for (const auto& [step, count] : steps) {
    std::vector<SequenceStep> entries;
    for (const auto& [prefix, tokens] : step) entries.push_back({prefix, tokens});
    AddTo(&sum, PredictStep(machine, subject, run, entries, LogitsWanted::kYes),
          static_cast<double>(count));
  }
  return sum;
}

StepTime PredictDecode(const MachineProfile& machine, const Subject& subject,
                       const Execution& execution, std::span<const int64_t> lengths) {
  std::vector<SequenceStep> entries;
  for (int64_t length : lengths) entries.push_back({length, 1});
  return PredictStep(machine, subject, execution, entries, LogitsWanted::kYes);
}

}  // namespace headway::plan
