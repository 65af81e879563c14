#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cuda/cuda_stream.h"
#include "device/host_stream.h"

namespace headway {
namespace {

using cuda::CudaEvent;
using cuda::CudaShared;
using cuda::CudaStream;
using cuda::StatusOf;

// Memory that is touched by one thread at a time when it is made.
constexpr size_t kTouchBytes = size_t{64} << 20;
constexpr int kTouchThreads = 16;
// Copied to see how fast copies from pageable memory are.
constexpr size_t kSampleBytes = size_t{32} << 20;

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(std::byte* data, size_t size, Reservation reservation)
      : Buffer(data, size), reservation_(std::move(reservation)) {}
  ~DeviceBuffer() override { cudaFree(data_); }

 private:
  Reservation reservation_;
};

enum class HostPages { kPageable, kPinned };

class HostBuffer final : public Buffer {
 public:
  HostBuffer(Env* env, std::byte* data, size_t size, HostPages pages, Reservation reservation)
      : Buffer(data, size), env_(env), pages_(pages), reservation_(std::move(reservation)) {}
  ~HostBuffer() override {
    if (pages_ == HostPages::kPinned) cudaHostUnregister(data_);
    env_->FreeMemory(data_, size_);
  }

 private:
  Env* env_;
  const HostPages pages_;
  Reservation reservation_;
};

// The first write to a page of memory makes the system find and clear it, which one thread does at
// a tenth of the machine's speed.
void Touch(std::byte* data, size_t bytes) {
  const size_t pieces = CeilDiv(static_cast<int64_t>(bytes), static_cast<int64_t>(kTouchBytes));
  const auto threads = static_cast<int>(std::min<size_t>(
      pieces, static_cast<size_t>(std::clamp<int>(
                  static_cast<int>(std::thread::hardware_concurrency()), 1, kTouchThreads))));
  const auto touch = [&](int first) {
    for (size_t piece = static_cast<size_t>(first); piece < pieces;
         piece += static_cast<size_t>(threads)) {
      const size_t end = std::min(bytes, (piece + 1) * kTouchBytes);
      for (size_t at = piece * kTouchBytes; at < end; at += 4096) {
        *static_cast<volatile std::byte*>(data + at) = std::byte{0};
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) {
    try {
      helpers.emplace_back(touch, i);
    } catch (const std::exception&) {
      touch(i);  // a limit on threads or memory
    }
  }
  touch(0);
  for (std::thread& helper : helpers) helper.join();
}

// Bytes per second of the second of two copies from `host` to the GPU, 0 when it cannot be known.
// Their target is memory of the GPU for a moment, out of what is counted for the driver.
double CopyRate(Env* env, const std::byte* host, size_t bytes) {
  void* target = nullptr;
  double rate = 0.0;
  if (cudaMalloc(&target, bytes) == cudaSuccess) {
    for (int i = 0; i < 2; ++i) {
      const int64_t start = env->NowNanos();
      if (cudaMemcpy(target, host, bytes, cudaMemcpyHostToDevice) != cudaSuccess) break;
      const int64_t nanos = std::max<int64_t>(1, env->NowNanos() - start);
      if (i == 1) rate = static_cast<double>(bytes) * 1e9 / static_cast<double>(nanos);
    }
    cudaFree(target);
  }
  cudaGetLastError();
  return rate;
}

double PinnedCopyRate(Env* env, size_t bytes) {
  void* host = nullptr;
  double rate = 0.0;
  if (cudaHostAlloc(&host, bytes, cudaHostAllocDefault) == cudaSuccess) {
    rate = CopyRate(env, static_cast<const std::byte*>(host), bytes);
    cudaFreeHost(host);
  }
  cudaGetLastError();
  return rate;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string name, std::shared_ptr<CudaShared> shared, const CudaDeviceOptions& options)
      : name_(std::move(name)), shared_(std::move(shared)), pin_(options.pin_host_memory) {}

  std::string name() const override { return name_; }
  bool host_reads_memory() const override { return false; }
  bool kernels_read_host_memory() const override { return !shared_->pageable; }

  Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                           const std::string& tag) override {
    Result<Reservation> reservation = budget.Reserve(static_cast<int64_t>(bytes), tag);
    if (!reservation.ok()) return reservation.status();
    cudaSetDevice(shared_->device);
    void* data = nullptr;
    const std::string what = tag + " (" + FormatBytes(static_cast<int64_t>(bytes)) + ") on the GPU";
    if (const cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) {
      cudaGetLastError();  // it sticks otherwise
      if (error != cudaErrorMemoryAllocation) return StatusOf(error, what.c_str());
      const Result<int64_t> free = FreeCudaMemory(shared_->device);
      return cuda::OutOfGpuMemory(tag, static_cast<int64_t>(bytes), free.ok() ? *free : -1);
    }
    auto buffer = std::make_unique<DeviceBuffer>(static_cast<std::byte*>(data), bytes,
                                                 std::move(*reservation));
    Status zeroed = StatusOf(cudaMemset(data, 0, bytes), what.c_str());
    if (zeroed.ok()) zeroed = StatusOf(cudaDeviceSynchronize(), what.c_str());
    if (!zeroed.ok()) return zeroed;
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                               const std::string& tag) override {
    Result<Reservation> reservation = budget.Reserve(static_cast<int64_t>(bytes), tag);
    if (!reservation.ok()) return reservation.status();
    Result<std::byte*> data = shared_->env->AllocateMemory(bytes);
    if (!data.ok()) return data.status();
    Touch(*data, bytes);
    cudaSetDevice(shared_->device);
    const cudaError_t error =
        pin_ ? cudaHostRegister(*data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped)
             : cudaErrorMemoryAllocation;
    cudaGetLastError();
    if (error != cudaSuccess) FallBack(*data, bytes, tag, error);
    return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(
        shared_->env, *data, bytes,
        error == cudaSuccess ? HostPages::kPinned : HostPages::kPageable, std::move(*reservation)));
  }

  Result<std::unique_ptr<Stream>> NewStream(Lane lane) override {
    switch (lane) {
      case Lane::kCompute:
      case Lane::kHostToDevice:
      case Lane::kDeviceToHost:
      case Lane::kRanks:
        return std::unique_ptr<Stream>(std::make_unique<CudaStream>(shared_, lane));
      default:
        return HostStream::Create(shared_->env, shared_->trace, lane);
    }
  }

  std::unique_ptr<Event> NewEvent() override {
    cudaSetDevice(shared_->device);
    return std::make_unique<CudaEvent>(shared_);
  }

 private:
  // Lives with memory that is not pinned. One warning is enough.
  void FallBack(const std::byte* data, size_t bytes, const std::string& tag, cudaError_t why) {
    if (shared_->pageable.exchange(true)) return;
    const size_t sample = std::min(bytes, kSampleBytes);
    Log(LogLevel::kWarning,
        cuda::PageableWarning(tag, static_cast<int64_t>(bytes), why,
                              CopyRate(shared_->env, data, sample),
                              pin_ ? PinnedCopyRate(shared_->env, sample) : 0.0));
  }

  const std::string name_;
  const std::shared_ptr<CudaShared> shared_;
  const bool pin_;
};

}  // namespace

Result<int> CountCudaDevices() {
  int count = 0;
  cuda::NoGpu found;
  found.error = cudaGetDeviceCount(&count);
  if (found.error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  cudaDriverGetVersion(&found.driver);
  cudaRuntimeGetVersion(&found.runtime);
  found.visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return StatusOf(found);
}

Result<int64_t> FreeCudaMemory(int index) {
  size_t free = 0, total = 0;
  cudaSetDevice(index);
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return cuda::OutOfGpuMemory("driver and libraries", kCudaContextBytes, -1);
  }
  if (error != cudaSuccess) return StatusOf(error, "asking the GPU for free memory");
  return static_cast<int64_t>(free);
}

Result<CudaInfo> DescribeCudaDevice(int index) {
  Result<int> count = CountCudaDevices();
  if (!count.ok()) return count.status();
  if (index < 0 || index >= *count) {
    return Status(StatusCode::kInvalidArgument, "no GPU " + std::to_string(index) +
                                                    "; this process sees " +
                                                    std::to_string(*count) + ", counted from 0");
  }
  cudaDeviceProp properties;
  if (Status s =
          StatusOf(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties");
      !s.ok()) {
    return s;
  }
  CudaInfo info;
  info.name = properties.name;
  info.index = index;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  if (info.major < 8) {
    return Status(StatusCode::kUnsupported,
                  info.name + " has compute capability " + std::to_string(info.major) + "." +
                      std::to_string(info.minor) + "; Headway needs 8.0 or above");
  }
  Result<int64_t> free = FreeCudaMemory(index);
  if (!free.ok()) return free.status();
  info.free_bytes = *free;
  return info;
}

Result<std::unique_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options, Env* env,
                                              Trace* trace) {
  Result<CudaInfo> info = DescribeCudaDevice(options.index);
  if (!info.ok()) return info.status();
  auto shared = std::make_shared<CudaShared>();
  shared->device = options.index;
  shared->env = env;
  shared->trace = trace;
  shared->time_kernels = options.time_kernels;
  if (Status s = StatusOf(cudaSetDevice(options.index), "choosing the GPU"); !s.ok()) return s;
  void* wait_value = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &wait_value, 12000, cudaEnableDefault,
                                       &found) == cudaSuccess &&
      found == cudaDriverEntryPointSuccess) {
    shared->wait_value = reinterpret_cast<decltype(shared->wait_value)>(wait_value);
  }
  shared->origin = shared->TakeEvent(cuda::EventUse::kTiming);
  Status s = StatusOf(cudaEventRecord(shared->origin, nullptr), "recording an event");
  if (s.ok()) s = StatusOf(cudaEventSynchronize(shared->origin), "recording an event");
  if (!s.ok()) return s;
  shared->origin_ns = env->NowNanos();
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      info->name + " (cuda:" + std::to_string(options.index) + ")", std::move(shared), options));
}

}  // namespace headway
