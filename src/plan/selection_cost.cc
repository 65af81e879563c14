#include "plan/selection_cost.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace headway::plan {

double ChoiceLaunchSeconds(const MachineProfile& machine) {
  constexpr double kLaunches = 5.0;  // about as long as so many: the steps of a threshold wait
  return kLaunches * machine.launch_seconds;
}

double ChoiceSeconds(const MachineProfile& machine, const Subject& subject, double keys) {
  const KeySelection& selection = subject.selection;
  const auto look = [&](double bytes, const Curve& rate) {
    if (bytes <= 0.0) return 0.0;
    return rate.empty() ? bytes / machine.device_read + ChoiceLaunchSeconds(machine)
                        : rate.Seconds(bytes);
  };
  const double heads = subject.shape.kv_heads;
  const double search = look(heads * keys * selection.summary_bytes, machine.selection);
  return search / selection.choices + look(heads * selection.candidate_bytes, machine.selection) +
         look(heads * selection.sketch_bytes, machine.second_look);
}

double InPlaceRate(const MachineProfile& machine) {
  if (machine.read_in_place > 0.0) return machine.read_in_place;
  return std::max(machine.host_to_device.Peak(), 1.0);  // nothing is far away without a bus
}

double FoundShare(double steps) {
  struct Point {
    double steps, found;
  };
  constexpr Point kMeasured[] = {{0, 0}, {1, 0.335}, {2, 0.592}, {4, 0.862}, {8, 0.988}};
  for (size_t i = 1; i < std::size(kMeasured); ++i) {
    const Point& low = kMeasured[i - 1];
    const Point& high = kMeasured[i];
    if (steps >= high.steps) continue;
    const double at = std::max(steps - low.steps, 0.0) / (high.steps - low.steps);
    return low.found + at * (high.found - low.found);
  }
  return std::end(kMeasured)[-1].found;
}

double PromptChoiceSeconds(const MachineProfile& machine, const Subject& subject, double keys,
                           double tokens) {
  const KeySelection& selection = subject.selection;
  const ModelShape& shape = subject.shape;
  const double scores =
      tokens / selection.pool_tokens * keys / selection.block_keys * shape.query_heads;
  if (machine.prompt_scores > 0.0) return scores / machine.prompt_scores;
  // Two products a channel: with means and with variances.
  return 4.0 * scores * shape.head_dim / machine.attention.Rate(tokens * shape.query_heads) +
         shape.kv_heads * keys * selection.summary_bytes / machine.device_read +
         ChoiceLaunchSeconds(machine);
}

double ListedAttentionSeconds(const MachineProfile& machine, const Subject& subject, double listed,
                              double tokens) {
  const ModelShape& shape = subject.shape;
  const RangeWork work = WorkOf(RangePath::kResident, subject, shape.kv_heads, listed, tokens);
  const double measured =
      subject.selection.moved ? machine.moved_attention : machine.listed_attention;
  const double rate =
      measured > 0.0 ? measured : machine.attention.Rate(tokens * shape.query_heads);
  return std::max(work.flops / rate, machine.decode_attention.Seconds(work.device_bytes));
}

double CacheBytesRead(const Subject& subject, std::span<const int64_t> lengths) {
  const KeySelection& selection = subject.selection;
  double bytes = 0.0;
  for (int layer = 0; layer < subject.shape.layers; ++layer) {
    const int64_t window = subject.WindowOf(layer);
    for (int64_t length : lengths) {
      const int64_t seen = window > 0 ? std::min(length, window) : length;
      const double keys = static_cast<double>(seen) * subject.slab_share;
      const bool chooses = ChoosesIn(subject, layer) && length >= selection.from;
      if (chooses && selection.keys < keys) {
        const double scored =
            selection.sketch_bytes + selection.candidate_bytes +
            keys * (selection.summary_bytes / selection.choices + selection.key_bytes);
        bytes += selection.keys * HeadBytes(subject) + scored / selection.refresh;
      } else {
        bytes += keys * HeadBytes(subject);
      }
    }
  }
  return bytes * subject.shape.kv_heads;
}

}  // namespace headway::plan
