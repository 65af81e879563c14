// What the GPUs of a machine say to each other, as a seam: this room keeps the figures, and the
// engine, whose ranks say it, measures them.
#ifndef HEADWAY_HARDWARE_LINKS_H_
#define HEADWAY_HARDWARE_LINKS_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/env.h"
#include "headway/status.h"

namespace headway::hardware {

struct LinkRates {
  int gpus = 0;
  // Seconds of a sum over all GPUs of vectors of so many bytes, by their size, one call behind
  // the other.
  std::vector<std::pair<int64_t, double>> sums;
  double gather = 0.0;  // bytes a second that a GPU writes to the others, while all do
  double bus = 0.0;     // bytes a second from host memory to each GPU, while all GPUs copy
  // The same while the host's cores read its memory, and what they read meanwhile, all of them; 0:
  // not measured.
  double bus_reading = 0.0;
  double cores = 0.0;
};
// Of all GPUs that ranks would have; of fewer than two there is nothing to measure.
using LinkMeter = std::function<Result<LinkRates>(Env& env)>;

// A sum's latency, and the rate of a link beside it, as plans count them: a GPU sends
// 2 (gpus - 1) / gpus of the bytes of the largest sum.
double SumLatency(const LinkRates& rates);
double LinkRate(const LinkRates& rates);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_LINKS_H_
