#include "device/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/env.h"
#include "device/cpu/cpu_device.h"

namespace headway {
namespace {

struct Made {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Lanes> lanes;
};

Made Make(LaneWaitFilter filter = {}) {
  Made made;
  made.device = NewCpuDevice(Env::Default(), nullptr);
  made.compute = *made.device->NewStream(Lane::kCompute);
  made.lanes = *Lanes::Create(made.device.get(), made.compute.get(), std::move(filter));
  return made;
}

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Work of a lane that takes a while and then sets `done`.
void Slow(Lanes& lanes, Lane lane, std::atomic<bool>* done) {
  lanes.stream(lane).HostWork({}, [done] {
    Sleep(30);
    *done = true;
    return OkStatus();
  });
}

Fence Behind(Lane lane, int64_t ticket) {
  Fence fence;
  fence.Add(lane, ticket);
  return fence;
}

TEST(Lanes, ALaneWaitsForAFence) {
  const Made made = Make();
  Lanes& lanes = *made.lanes;
  std::atomic<bool> copied = false, seen = false;
  Slow(lanes, Lane::kHostToDevice, &copied);
  lanes.Wait(Lane::kDiskWrite, Behind(Lane::kHostToDevice, lanes.Mark(Lane::kHostToDevice)));
  lanes.stream(Lane::kDiskWrite).HostWork({}, [&] {
    seen = copied.load();
    return OkStatus();
  });
  lanes.HostWait(Behind(Lane::kDiskWrite, lanes.Soon(Lane::kDiskWrite)));
  EXPECT_TRUE(seen);
}

TEST(Lanes, ATicketStandsForWhatALaneWasGivenSoFar) {
  const Made made = Make();
  Lanes& lanes = *made.lanes;
  std::atomic<bool> first = false, second = false;
  Slow(lanes, Lane::kDiskRead, &first);
  const Fence fence = Behind(Lane::kDiskRead, lanes.Mark(Lane::kDiskRead));
  EXPECT_FALSE(lanes.Reached(fence));
  EXPECT_TRUE(lanes.Reached(Fence()));
  lanes.HostWait(fence);
  EXPECT_TRUE(first);
  EXPECT_TRUE(lanes.Reached(fence));
  Slow(lanes, Lane::kDiskRead, &second);
  EXPECT_TRUE(lanes.Reached(fence));
  lanes.Drain();
  EXPECT_TRUE(second);
}

TEST(Lanes, OldTicketsAreWaitedForToo) {
  const Made made = Make();
  Lanes& lanes = *made.lanes;
  std::atomic<bool> done = false;
  Slow(lanes, Lane::kDiskRead, &done);
  const Fence fence = Behind(Lane::kDiskRead, lanes.Mark(Lane::kDiskRead));
  for (int i = 0; i < 1000; ++i) lanes.Mark(Lane::kDiskRead);  // more than it keeps events
  lanes.HostWait(fence);
  EXPECT_TRUE(done);
}

TEST(Lanes, WaitsThatOthersImplyAreNotMade) {
  std::vector<std::pair<Lane, Lane>> waits;
  std::atomic<bool> go = false;
  const Made made = Make([&](const LaneWait& wait) {
    waits.emplace_back(wait.waiter, wait.awaited);
    return true;
  });
  Lanes& lanes = *made.lanes;
  lanes.stream(Lane::kHostToDevice).HostWork({}, [&go] {
    while (!go) Sleep(1);
    return OkStatus();
  });
  const Fence copied = Behind(Lane::kHostToDevice, lanes.Mark(Lane::kHostToDevice));
  lanes.Wait(Lane::kDiskWrite, copied);
  lanes.Wait(Lane::kDiskWrite, copied);
  const Fence written = Behind(Lane::kDiskWrite, lanes.Mark(Lane::kDiskWrite));
  Fence both = written;
  both.Join(copied);
  lanes.Wait(Lane::kDeviceToHost, both);    // behind the writer, which is behind the copy
  lanes.Wait(Lane::kHostToDevice, copied);  // its own work is in order
  const std::vector<std::pair<Lane, Lane>> expected = {{Lane::kDiskWrite, Lane::kHostToDevice},
                                                       {Lane::kDeviceToHost, Lane::kDiskWrite}};
  EXPECT_EQ(waits, expected);
  go = true;
  lanes.Drain();
}

TEST(Lanes, AWaitMayBeLeftOut) {
  const Made made = Make([](const LaneWait&) { return false; });
  Lanes& lanes = *made.lanes;
  std::atomic<bool> copied = false, seen = true;
  Slow(lanes, Lane::kHostToDevice, &copied);
  lanes.Wait(Lane::kDiskWrite, Behind(Lane::kHostToDevice, lanes.Mark(Lane::kHostToDevice)));
  lanes.stream(Lane::kDiskWrite).HostWork({}, [&] {
    seen = copied.load();
    return OkStatus();
  });
  lanes.Drain();
  EXPECT_FALSE(seen);
}

TEST(Lanes, ErrorsOfCopiesStayAndDrainingSaysNothing) {
  const Made made = Make();
  Lanes& lanes = *made.lanes;
  EXPECT_TRUE(lanes.status().ok());
  lanes.stream(Lane::kDeviceToHost).HostWork({}, [] {
    return Status(StatusCode::kIo, "the bus is gone");
  });
  lanes.Drain();
  EXPECT_EQ(lanes.status().message(), "the bus is gone");
  EXPECT_EQ(lanes.status().code(), StatusCode::kIo);
}

}  // namespace
}  // namespace headway
