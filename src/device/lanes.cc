#include "device/lanes.h"

#include <new>
#include <utility>

namespace headway {

Result<std::unique_ptr<Lanes>> Lanes::Create(Device* device, Stream* compute,
                                             LaneWaitFilter filter) {
  std::unique_ptr<Lanes> lanes(new Lanes(std::move(filter)));
  for (int i = 0; i < kLaneCount; ++i) {
    const Lane lane = static_cast<Lane>(i);
    OneLane& one = lanes->of(lane);
    if (lane != Lane::kCompute) {
      Result<std::unique_ptr<Stream>> made = device->NewStream(lane);
      if (!made.ok()) return made.status();
      one.owned = std::move(*made);
      one.stream = one.owned.get();
    } else {
      one.stream = compute;
    }
    one.events.reserve(kEvents);
    for (int event = 0; event < kEvents; ++event) one.events.push_back(device->NewEvent());
  }
  return lanes;
}

Lanes::~Lanes() = default;

int64_t Lanes::Mark(Lane lane) {
  OneLane& one = of(lane);
  const int64_t ticket = ++one.recorded;
  one.stream->Record(*one.events[static_cast<size_t>(ticket % kEvents)]);
  one.event_behind[static_cast<size_t>(ticket % kEvents)] = one.behind;
  return ticket;
}

Event* Lanes::EventFor(Lane lane, int64_t ticket) {
  OneLane& one = of(lane);
  if (ticket <= one.reached) return nullptr;
  if (ticket > one.recorded) Mark(lane);
  const int64_t at = Standing(lane, ticket);
  Event* event = one.events[static_cast<size_t>(at % kEvents)].get();
  if (!event->Reached()) return event;
  one.reached = std::max(one.reached, at);
  return nullptr;
}

void Lanes::Wait(Lane lane, const Fence& fence, const char* file, int line) {
  OneLane& waiter = of(lane);
  // Copies and disk lanes first: they have often waited for the others themselves.
  for (int i = kLaneCount; i-- > 0;) {
    const Lane other = static_cast<Lane>(i);
    if (other == lane) continue;  // a lane's own work is in order
    const int64_t ticket = fence.tickets[static_cast<size_t>(i)];
    if (ticket <= waiter.behind[static_cast<size_t>(i)]) continue;
    Event* event = EventFor(other, ticket);
    if (event == nullptr || (filter_ && !filter_({lane, other, file, line}))) continue;
    stream(lane).Wait(*event);
    const int64_t at = Standing(other, ticket);
    waiter.behind[static_cast<size_t>(i)] = at;
    const Tickets& through = of(other).event_behind[static_cast<size_t>(at % kEvents)];
    for (size_t j = 0; j < waiter.behind.size(); ++j) {
      waiter.behind[j] = std::max(waiter.behind[j], through[j]);
    }
  }
}

void Lanes::HostWait(const Fence& fence) {
  for (int i = 0; i < kLaneCount; ++i) {
    Event* event = EventFor(static_cast<Lane>(i), fence.tickets[static_cast<size_t>(i)]);
    if (event != nullptr) event->Wait();
  }
}

bool Lanes::Reached(const Fence& fence) {
  for (int i = 0; i < kLaneCount; ++i) {
    if (EventFor(static_cast<Lane>(i), fence.tickets[static_cast<size_t>(i)]) != nullptr) {
      return false;
    }
  }
  return true;
}

void Lanes::Drain() {
  for (OneLane& one : lanes_) {
    try {
      const Status kept = one.stream->Synchronize();  // status() says it again
      static_cast<void>(kept);
    } catch (const std::bad_alloc&) {
      // The copy of an error's text: the wait itself is over.
    }
    one.reached = one.recorded;
  }
}

Status Lanes::status() {
  for (const Lane lane : {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost,
                          Lane::kHostCompute, Lane::kDiskWeights}) {
    Status status = stream(lane).status();
    if (!status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace headway
