// The least that a prefill or a decode must move and compute, and the time that this takes at the
// speeds which the machine was measured to reach.
#ifndef HEADWAY_CLI_ROOFLINE_H_
#define HEADWAY_CLI_ROOFLINE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "headway/machine.h"
#include "headway/plan.h"

namespace headway::cli {

struct Work {
  double bytes = 0.0;            // read or written in memory
  double flops = 0.0;            // multiplications and additions of matrix products
  double attention_flops = 0.0;  // and of attention
  double bus_bytes = 0.0;        // from host memory to a device with its own
  double weight_bytes = 0.0;     // of these, weights: cores of the host are no help there
  double disk_bytes = 0.0;       // read from the disk
};

// Prompts of these lengths, all at once, of which `prefixes` tokens were read before: weights are
// read once, keys and values written once. The head is computed for the last token of each. Where
// `plan` chooses keys in prompts, each of its chunks sees all of itself, and what it chooses of the
// keys before it, whose summaries it reads and scores.
Work PrefillWork(const ModelInfo& info, std::span<const int64_t> lengths,
                 std::span<const int64_t> prefixes, const PlanReport& plan);

// `steps` decode steps of sequences that have these lengths at first: each step reads the weights
// once and every sequence's keys and values, or, with a selection, those that it reads and the
// summaries of all.
Work DecodeWork(const ModelInfo& info, std::span<const int64_t> lengths, int64_t steps,
                const std::optional<SelectionReport>& selection);

// What so many GPUs reach together, each with a bus of its own.
MachinePeaks PeaksOfGpus(const MachinePeaks& peaks, int gpus);

// The longest of moving, computing (products and attention one after the other), crossing the bus
// (or being attended to on the host, where that was measured) and reading the disk. A speed that
// was not measured bounds nothing, but for attention's: products' stands in for it.
double FloorSeconds(const Work& work, const MachinePeaks& peaks);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_ROOFLINE_H_
