#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace headway {
namespace {

std::byte* Bytes(std::vector<int>& v) { return reinterpret_cast<std::byte*>(v.data()); }

TEST(CpuDevice, BuffersAreZeroedAlignedAndCounted) {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  Budget budget("device", 1 << 20);
  Result<std::unique_ptr<Buffer>> buffer = device->Allocate(budget, 10000, "test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 4096, 0u);
  for (size_t i = 0; i < 10000; ++i) ASSERT_EQ((*buffer)->data()[i], std::byte{0});
  EXPECT_EQ(budget.used(), 10000);
  EXPECT_EQ(device->Allocate(budget, 2 << 20, "big").status().code(), StatusCode::kOutOfBudget);
  buffer->reset();
  EXPECT_EQ(budget.used(), 0);
}

TEST(CpuDevice, StreamsAreOrderedByEvents) {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> up = *device->NewStream(Lane::kHostToDevice);
  std::unique_ptr<Stream> down = *device->NewStream(Lane::kDeviceToHost);
  std::unique_ptr<Stream> compute = *device->NewStream(Lane::kCompute);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> source(1000, round), middle(1000, -1), target(1000, -1);
    std::unique_ptr<Event> filled = device->NewEvent();
    std::unique_ptr<Event> copied = device->NewEvent();
    up->HostWork({"delay", 0, 0}, [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      return OkStatus();
    });
    up->Copy(Bytes(middle), Bytes(source), 4000);
    up->Record(*filled);
    down->Wait(*filled);
    down->Copy(Bytes(target), Bytes(middle), 4000);
    down->Record(*copied);
    compute->Wait(*copied);
    ASSERT_EQ(target, source);
  }
}

TEST(CpuDevice, AnUnrecordedEventIsReachedAndReRecordingMovesIt) {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> up = *device->NewStream(Lane::kHostToDevice);
  std::unique_ptr<Event> event = device->NewEvent();
  event->Wait();
  EXPECT_TRUE(event->Reached());
  std::atomic<bool> go = false;
  up->Record(*event);
  event->Wait();
  up->HostWork({"hold", 0, 0}, [&] {
    while (!go) std::this_thread::yield();
    return OkStatus();
  });
  up->Record(*event);
  EXPECT_FALSE(event->Reached());
  go = true;
  event->Wait();
  EXPECT_TRUE(event->Reached());
  EXPECT_TRUE(up->Synchronize().ok());
}

TEST(CpuDevice, AnErrorSticksAndLaterHostWorkIsDropped) {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> disk = *device->NewStream(Lane::kDiskRead);
  std::unique_ptr<Event> event = device->NewEvent();
  bool ran = false;
  disk->HostWork({"read", 0, 0}, [] { return Status(StatusCode::kIo, "disk gone"); });
  disk->HostWork({"read", 0, 0}, [&] {
    ran = true;
    return OkStatus();
  });
  disk->Record(*event);
  event->Wait();  // fires all the same
  EXPECT_EQ(disk->Synchronize().message(), "disk gone");
  EXPECT_EQ(disk->status().code(), StatusCode::kIo);
  EXPECT_FALSE(ran);
}

TEST(CpuDevice, WhatLaneWorkThrowsIsTheStreamsError) {
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> disk = *device->NewStream(Lane::kDiskRead);
  const std::unique_ptr<Event> event = device->NewEvent();
  disk->HostWork({}, []() -> Status { throw std::bad_alloc(); });
  disk->Record(*event);
  event->Wait();
  EXPECT_EQ(disk->Synchronize().code(), StatusCode::kIo);
  EXPECT_NE(disk->status().message().find("memory"), std::string::npos);
}

TEST(CpuDevice, CopiesRowsBetweenStrides) {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  for (Lane lane : {Lane::kCompute, Lane::kDeviceToHost}) {
    std::unique_ptr<Stream> stream = *device->NewStream(lane);
    std::vector<int> from = {1, 2, 3, 4, 5, 6}, to(8, 0);
    stream->Copy2D(Bytes(to), 16, Bytes(from), 12, 8, 2);
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(to, (std::vector<int>{1, 2, 0, 0, 4, 5, 0, 0}));
  }
}

}  // namespace
}  // namespace headway
