// Logits: what comes behind a step's last layer, for the rows whose logits are wanted: logits, the
// tokens that are picked from them, and likelihoods. Rows are taken some at a time.
#ifndef HEADWAY_ENGINE_STEP_LOGITS_H_
#define HEADWAY_ENGINE_STEP_LOGITS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/budget.h"
#include "device/device.h"
#include "engine/step/batch.h"
#include "engine/step/input.h"
#include "engine/step/step_context.h"

namespace headway {

class Logits {
 public:
  // Bytes that it takes of the device's memory, and of the host's where the host does not read
  // that; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  static int64_t HostBytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Takes them from `memory`; host_memory has HostBytes, or is null where that is 0.
  Logits(StepContext& context, const Batch& batch, Memory* memory, std::byte* host_memory);

  // Gives the inputs, which are the batch's, what they want, and waits for it. kCorrupt: a sampler
  // found no finite logit, or a loss is not finite.
  Status Run(std::span<const StepInput> inputs, const LogitsSink& sink);

 private:
  struct Row {
    int entry;
    int64_t token;
  };
  const float* HeadRows();
  Status Flush(std::span<const StepInput> inputs, const LogitsSink& sink);
  void AddItems(std::span<const StepInput> inputs);
  Status ToHost(std::span<const StepInput> inputs);
  Status Deliver(const StepInput& input, int64_t row, const LogitsSink& sink);

  StepContext& context_;
  const Batch& batch_;
  float* head_in_;      // [rows at a time, d_model]
  void* head_scratch_;  // of Model::Head for as many rows
  float* logits_;       // [rows at a time, vocab]
  Sampled* sampled_;    // [rows at a time]
  Scored* scored_;      // [rows at a time]
  const bool copies_;   // to what the host reads:
  float* host_logits_;  // the same three there
  Sampled* host_sampled_;
  Scored* host_scored_;
  std::vector<Row> rows_;  // of the next Flush
  // [entries]: of those with a sampler, for each token that is picked.
  std::vector<std::span<const SampleItem>> samples_;
  std::vector<SampleItem> sample_items_;
  std::vector<ScoreItem> score_items_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_LOGITS_H_
