// What attention of decode steps of one sequence puts out, and whether it is that of attention to
// listed keys.
#ifndef HEADWAY_TESTS_SUPPORT_DECODE_OUTPUTS_H_
#define HEADWAY_TESTS_SUPPORT_DECODE_OUTPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/cache_reading.h"
#include "support/forwarding_kernels.h"
#include "support/step_harness.h"

namespace headway::testing {

// Of a layer, both [query_heads, head_dim].
struct DecodeOutput {
  std::vector<float> q, o;
};

// Kernels whose activations are f32 in memory that the host reads.
class RecordingKernels : public ForwardingKernels {
 public:
  // Appends what each layer of a decode step puts out to *outputs, which outlives it.
  RecordingKernels(std::unique_ptr<Kernels> kernels, std::vector<DecodeOutput>* outputs)
      : ForwardingKernels(std::move(kernels)), outputs_(*outputs) {}

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override;
  void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) override;

 private:
  std::vector<DecodeOutput>& outputs_;
  std::map<const float*, std::vector<float>> queries_;  // of the layer at hand, by where they lie
};

// A sequence whose last step attended to these keys of each head. No page was closed in that step:
// its keys are read from the cache.
struct ListedStep {
  StepHarness& harness;
  const ModelShape& shape;
  kv::SequenceId sequence;
  const Lists& lists;
};
// The outputs are those of attention to the listed keys, as far as sums of f32 can tell. Returns of
// how many heads they are not those of attention to the listed keys from `first` on.
int64_t ExpectOutputs(const ListedStep& step, std::span<const DecodeOutput> outputs, int64_t first);

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_DECODE_OUTPUTS_H_
