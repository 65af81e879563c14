// How much of what lies in host memory a decode step leaves to the host's cores (path `host`), and
// how that share follows what the lanes are measured to take. Pure functions and values.
#ifndef HEADWAY_ENGINE_PATHS_HOST_SHARE_H_
#define HEADWAY_ENGINE_PATHS_HOST_SHARE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace headway {

// Closed pages of a slab in host memory, of each of its heads.
struct HostSlab {
  int pages = 0;
  int heads = 0;
};

// Divides the slabs of a layer, in the order in which they are read: `streamed`[i] of the pages of
// slab i, its first ones, cross the bus, the host attends to the others. First slabs stream, last
// ones do not, and one at most is cut, so that copies stay large. The host gets `share` (0 to 1) of
// all pages and heads but for the rounding of one page of a slab, which *carry takes to the next
// layer. Depends on its arguments alone.
void SplitLayer(double share, std::span<const HostSlab> slabs, double* carry,
                std::vector<int>* streamed);

// What a decode step took.
struct HostStepTimes {
  double bus_seconds = 0.0;   // that the h2d lane was busy
  double host_seconds = 0.0;  // that the cpu lane was busy
  double bus_bytes = 0.0;     // of all that came over the bus
  double host_bytes = 0.0;    // of what the host attended to
  // That the host had nothing to do while no other lane was waited for (a layer needs its queries
  // first); < 0: not known.
  double gap_seconds = -1.0;
};

// Moves the share so that both lanes end together. With B the bytes that are shared out, F those
// that cross the bus whatever the share (X of recomputed ranges, weights), t_b and t_h the bus's
// and the host's seconds a byte as measured last, and g the gap, the step takes
// max((F + (1 - s) B) t_b, s B t_h + g): least where both are equal. Moves half of the way a step,
// and not at all where that is within kDeadband.
class HostShareControl {
 public:
  explicit HostShareControl(double share) : share_(share) {}

  double share() const { return share_; }
  // Of a step whose share was share().
  void Observe(const HostStepTimes& times);

  static constexpr double kDeadband = 0.004;
  static constexpr double kLeast = 0.005, kMost = 0.995;  // beyond, one lane would not be measured
  static constexpr double kForget = 0.8;

 private:
  double share_;
  // Seconds, of the last steps that told it, and less with each that does not: then the host gets
  // more, until it is waited for and tells. So no step is believed for long.
  double gap_ = 0.0;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_HOST_SHARE_H_
