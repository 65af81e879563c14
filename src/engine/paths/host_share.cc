#include "engine/paths/host_share.h"

#include <algorithm>
#include <cmath>

namespace headway {

void SplitLayer(double share, std::span<const HostSlab> slabs, double* carry,
                std::vector<int>* streamed) {
  int64_t all = 0;  // pages of heads
  for (const HostSlab& slab : slabs) all += int64_t{slab.pages} * slab.heads;
  const double wanted = share * static_cast<double>(all) + *carry;  // of the host
  const auto host =
      static_cast<int64_t>(std::clamp(std::floor(wanted + 0.5), 0.0, static_cast<double>(all)));
  int64_t left = all - host;  // that stream
  int64_t streams = 0;
  streamed->clear();
  for (const HostSlab& slab : slabs) {
    // The nearest whole page of the slab that is cut.
    const int64_t pages = std::min<int64_t>(slab.pages, (left + slab.heads / 2) / slab.heads);
    streamed->push_back(static_cast<int>(pages));
    left = pages < slab.pages ? 0 : std::max<int64_t>(0, left - pages * slab.heads);
    streams += pages * slab.heads;
  }
  *carry = wanted - static_cast<double>(all - streams);
}

void HostShareControl::Observe(const HostStepTimes& times) {
  if (times.bus_bytes <= 0.0 || times.host_bytes <= 0.0 || times.bus_seconds <= 0.0 ||
      times.host_seconds <= 0.0) {
    return;
  }
  gap_ = times.gap_seconds < 0.0 ? kForget * gap_ : std::min(times.gap_seconds, times.bus_seconds);
  const double host = times.host_seconds / share_;  // alone with all that is shared out
  const double streamed = times.host_bytes * (1.0 - share_) / share_;
  const double fixed = std::max(times.bus_bytes - streamed, 0.0);
  const double byte = times.bus_seconds / times.bus_bytes;
  const double bus = (streamed + times.host_bytes) * byte;  // the same
  const double best = std::clamp((fixed * byte + bus - gap_) / (bus + host), kLeast, kMost);
  if (std::abs(best - share_) <= kDeadband) return;
  share_ = std::clamp(share_ + 0.5 * (best - share_), kLeast, kMost);
}

}  // namespace headway
