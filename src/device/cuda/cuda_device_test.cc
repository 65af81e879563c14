// The CUDA device in bad luck. Skipped where there is no GPU.
#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"

namespace headway {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<int> count = CountCudaDevices();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
    SetLogSink([this](LogLevel, std::string_view line) { log_ += std::string(line) + "\n"; });
  }
  void TearDown() override { SetLogSink({}); }

  std::unique_ptr<Device> New(bool pin) {
    CudaDeviceOptions options;
    options.pin_host_memory = pin;
    Result<std::unique_ptr<Device>> made = NewCudaDevice(options, Env::Default(), nullptr);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }

  Budget budget_{"memory", kUnlimited};
  std::string log_;
};

TEST_F(CudaDeviceTest, AnAbsurdIndexIsAnError) {
  for (const int index : {-1, 99}) {
    const Status status = DescribeCudaDevice(index).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find("no GPU " + std::to_string(index) + "; this process sees "), 0u)
        << status.message();
  }
}

TEST_F(CudaDeviceTest, MemoryThatOthersHaveIsNamed) {
  const std::unique_ptr<Device> device = New(true);
  const Result<int64_t> free = FreeCudaMemory(0);
  ASSERT_TRUE(free.ok());
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, static_cast<size_t>(*free - 512 * kMiB)), cudaSuccess);
  const Result<std::unique_ptr<Buffer>> refused =
      device->Allocate(budget_, size_t{2} << 30, "weights");
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfBudget);
  EXPECT_NE(refused.status().message().find("weights: 2.0 GiB"), std::string::npos);
  EXPECT_NE(refused.status().message().find("are free"), std::string::npos);
  EXPECT_EQ(budget_.used(), 0);
  // And it goes on.
  EXPECT_TRUE(device->Allocate(budget_, size_t{1} << 20, "small").ok());
  EXPECT_EQ(cudaFree(others), cudaSuccess);
  EXPECT_TRUE(device->Allocate(budget_, size_t{1} << 30, "large").ok());
}

// Up and down again between two host threads, each part ordered by events alone: what arrives is
// what the first thread wrote last, however late it wrote it.
TEST_F(CudaDeviceTest, CopiesKeepTheirOrderPinnedOrNot) {
  for (const bool pin : {true, false}) {
    SCOPED_TRACE(pin ? "pinned" : "pageable");
    log_.clear();
    const std::unique_ptr<Device> device = New(pin);
    constexpr size_t kLargest = size_t{8} << 20;
    auto source = device->AllocateHost(budget_, kLargest, "source");
    auto target = device->AllocateHost(budget_, kLargest, "target");
    auto middle = device->Allocate(budget_, kLargest, "middle");
    ASSERT_TRUE(source.ok() && target.ok() && middle.ok());
    const std::unique_ptr<Stream> fill = *device->NewStream(Lane::kDiskRead);
    const std::unique_ptr<Stream> up = *device->NewStream(Lane::kHostToDevice);
    const std::unique_ptr<Stream> down = *device->NewStream(Lane::kDeviceToHost);
    const std::unique_ptr<Stream> check = *device->NewStream(Lane::kDiskWrite);
    std::vector<std::unique_ptr<Event>> events;
    for (int i = 0; i < 4; ++i) events.push_back(device->NewEvent());
    int wrong = 0;
    for (int round = 1; round <= 60; ++round) {
      const size_t bytes = round % 3 == 0 ? kLargest : round % 3 == 1 ? 4096 : 65536;
      const auto value = static_cast<std::byte>(round);
      fill->Wait(*events[1]);  // the last copy out of the source
      fill->HostWork({"fill", 0, 0}, [&, value, bytes] {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        std::memset((*source)->data(), static_cast<int>(value), bytes);
        return OkStatus();
      });
      fill->Record(*events[0]);
      up->Wait(*events[0]);
      up->Wait(*events[2]);
      up->Copy((*middle)->data(), (*source)->data(), bytes);
      up->Record(*events[1]);
      down->Wait(*events[1]);
      down->Wait(*events[3]);
      down->Copy((*target)->data(), (*middle)->data(), bytes);
      down->Record(*events[2]);
      check->Wait(*events[2]);
      check->HostWork({"check", 0, 0}, [&, value, bytes] {
        for (size_t i = 0; i < bytes; i += 64) wrong += (*target)->data()[i] != value;
        return OkStatus();
      });
      check->Record(*events[3]);
    }
    for (const auto* stream : {&fill, &up, &down, &check}) {
      EXPECT_TRUE((*stream)->Synchronize().ok());
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(log_.find("cannot be pinned") != std::string::npos, !pin) << log_;
    if (!pin) {
      EXPECT_NE(log_.find("GB/s"), std::string::npos) << log_;
      std::printf("%s", log_.c_str());
    }
  }
}

TEST_F(CudaDeviceTest, ACopyErrorSticksToItsStream) {
  const std::unique_ptr<Device> device = New(true);
  auto memory = device->Allocate(budget_, size_t{1} << 20, "memory");
  auto host = device->AllocateHost(budget_, size_t{1} << 20, "host");
  ASSERT_TRUE(memory.ok() && host.ok());
  {
    const std::unique_ptr<Stream> up = *device->NewStream(Lane::kHostToDevice);
    const std::unique_ptr<Event> event = device->NewEvent();
    // Past the end of the GPU's memory.
    up->Copy((*memory)->data(), (*host)->data(), size_t{1} << 50);
    EXPECT_FALSE(up->status().ok());
    bool ran = false;
    up->HostWork({"work", 0, 0}, [&] {
      ran = true;
      return OkStatus();
    });
    up->Record(*event);
    event->Wait();  // fires all the same
    EXPECT_EQ(up->Synchronize().message().find("a copy: "), 0u) << up->status().message();
    EXPECT_FALSE(ran);
  }
  // Others are as they were.
  const std::unique_ptr<Stream> other = *device->NewStream(Lane::kHostToDevice);
  other->Copy((*memory)->data(), (*host)->data(), size_t{1} << 20);
  EXPECT_TRUE(other->Synchronize().ok());
}

}  // namespace
}  // namespace headway
