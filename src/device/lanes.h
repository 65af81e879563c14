// Lanes: the streams of a context, one a lane, and the order between them. They serve the cache,
// the weights that stream and the attention of the host's cores alike.
//
// A ticket is a point in the work of one lane; tickets of a lane count up. A Fence holds one ticket
// a lane: it is passed when every lane has come to its ticket. Whoever makes use of memory keeps a
// fence for it ("written", "used"), and whoever comes next makes its lane wait for that fence, so
// that the calling thread never has to.
#ifndef HEADWAY_DEVICE_LANES_H_
#define HEADWAY_DEVICE_LANES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "headway/status.h"

namespace headway {

struct Fence {
  std::array<int64_t, kLaneCount> tickets = {};  // 0: nothing to wait for

  void Add(Lane lane, int64_t ticket) {
    int64_t& mine = tickets[static_cast<size_t>(lane)];
    mine = std::max(mine, ticket);
  }
  void Join(const Fence& other) {
    for (size_t i = 0; i < tickets.size(); ++i) tickets[i] = std::max(tickets[i], other.tickets[i]);
  }
};

// A lane is about to wait for what another was given, at a place in the code.
struct LaneWait {
  Lane waiter = Lane::kCompute;
  Lane awaited = Lane::kCompute;
  const char* file = "";  // that calls Lanes::Wait
  int line = 0;
};
// False leaves the wait out.
using LaneWaitFilter = std::function<bool(const LaneWait&)>;

class Lanes {
 public:
  // Makes a stream for every lane but compute; both outlive the lanes. `filter` is asked before
  // each wait of a lane; empty but in tests, which show that each wait is needed.
  static Result<std::unique_ptr<Lanes>> Create(Device* device, Stream* compute,
                                               LaneWaitFilter filter = {});
  ~Lanes();

  Stream& stream(Lane lane) { return *of(lane).stream; }

  // The ticket of a point behind all work that `lane` was given so far. It is recorded by the next
  // Mark, or when first waited for: then it may stand for a later point, which is as good.
  int64_t Soon(Lane lane) const { return of(lane).recorded + 1; }
  // Records that point now. Worth doing where another lane would otherwise wait for too much.
  int64_t Mark(Lane lane);

  // Later work of `lane` waits for the fence. What it waits for already costs nothing. `file` and
  // `line` are the caller's. (Not every compiler that builds this has std::source_location.)
  void Wait(Lane lane, const Fence& fence, const char* file = __builtin_FILE(),
            int line = __builtin_LINE());
  // The calling thread waits.
  void HostWait(const Fence& fence);
  bool Reached(const Fence& fence);
  // The calling thread waits for all work of all lanes. Works without memory, so that destructors
  // may call it.
  void Drain();
  // An error of the kernels, the copies or the weights' reads, whose work cannot be trusted from
  // there on.
  Status status();

 private:
  explicit Lanes(LaneWaitFilter filter) : filter_(std::move(filter)) {}

  // A waiter for a ticket whose event was recorded anew waits for the later point instead: more
  // than it needs, never less, and no cycle can come of it, since that point was enqueued before.
  static constexpr int kEvents = 64;

  using Tickets = std::array<int64_t, kLaneCount>;

  struct OneLane {
    Stream* stream = nullptr;
    std::unique_ptr<Stream> owned;
    std::vector<std::unique_ptr<Event>> events;  // ticket t uses events[t % kEvents]
    // Tickets of the other lanes that its next work waits for already, itself or through others;
    // and the same for each event, when it was recorded.
    Tickets behind = {};
    std::array<Tickets, kEvents> event_behind = {};
    int64_t recorded = 0;
    int64_t reached = 0;  // known to be reached
  };

  OneLane& of(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }
  const OneLane& of(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }
  // The oldest ticket from `ticket` on whose event still stands for it.
  int64_t Standing(Lane lane, int64_t ticket) const {
    return std::max(ticket, of(lane).recorded - kEvents + 1);
  }
  // The event to wait for, null when the ticket is known to be reached. Records it if need be.
  Event* EventFor(Lane lane, int64_t ticket);

  std::array<OneLane, kLaneCount> lanes_;
  const LaneWaitFilter filter_;
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_LANES_H_
