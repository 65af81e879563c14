// A device whose lanes come late, for tests that look for races: before a piece of work of the
// lanes whose turn it is, the stream sleeps for a random time. The CPU's kernels, which otherwise
// run within the call, run on a thread of their own, so that what a GPU could get wrong goes wrong
// here, too.
#ifndef HEADWAY_TESTS_SUPPORT_DELAYING_DEVICE_H_
#define HEADWAY_TESTS_SUPPORT_DELAYING_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/env.h"
#include "base/random.h"
#include "device/device.h"
#include "kernels/kernels.h"

namespace headway::testing {

// Which lane is late, and by how much. Thread-safe.
class Delays {
 public:
  explicit Delays(uint64_t seed) : random_(seed) {}

  // One piece of work in `every` of the lanes called LaneName(lane) sleeps for least_us to most_us;
  // without a lane, none does.
  void Set(std::optional<Lane> lane, int every = 1, int least_us = 50, int most_us = 200);
  // Work of the lanes called LaneName(lane) fails from now on.
  void Break(Lane lane);
  bool Broken(Lane lane);
  // What the next piece of work of `lane` sleeps: microseconds, or 0.
  int64_t Draw(Lane lane);
  // Pieces of work that have slept so far.
  int64_t slept() const { return slept_; }
  void Sleep(int64_t us);

 private:
  std::atomic<int64_t> slept_ = 0;
  std::mutex mutex_;
  Random random_;
  std::optional<Lane> lane_, broken_;
  int every_ = 1, least_us_ = 0, most_us_ = 0;
};

// The device `inner` with late streams. Where the host reads its memory the compute stream is one
// that works behind the caller's back. Elsewhere it is the inner one, which the kernels know, and
// NewDelayingKernels alone delays it; the lane of ranks is then never late. `delays` outlives the
// device.
std::unique_ptr<Device> NewDelayingDevice(std::unique_ptr<Device> inner, Env* env, Delays* delays);

// The kernels `inner` for streams of the delaying device made of `device`, which is the plain one.
std::unique_ptr<Kernels> NewDelayingKernels(std::unique_ptr<Kernels> inner, Device& device,
                                            Delays* delays);

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_DELAYING_DEVICE_H_
