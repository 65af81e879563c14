#include "kernels/backend/backend.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "headway/refusal.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/workspace.h"
#ifdef HEADWAY_CUDA
#include "kernels/cuda/cuda_kernels.h"
#endif

namespace headway {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::string isa) : isa_(std::move(isa)) {}
  const BackendInfo& info() const override { return info_; }
  Result<int64_t> FreeMemory() const override { return 0; }
  Result<std::unique_ptr<Device>> NewDevice(Env* env, Trace* trace, KernelTimes) override {
    return NewCpuDevice(env, trace);
  }
  Result<std::unique_ptr<Kernels>> NewKernels(ThreadPool* pool, Trace* trace) override {
    return NewCpuKernels(pool, trace, isa_);
  }

 private:
  const std::string isa_;
  const BackendInfo info_;
};

BackendInfo GpuInfo(std::string name, int64_t memory, int64_t free) {
  BackendInfo info;
  info.own_memory = true;
  info.name = std::move(name);
  info.memory = memory;
  info.free_memory = free;
  info.context_memory = kCudaContextBytes;
  info.map_share = kCudaMapShare;
  info.chunk = 8192;
  info.segment = 131072;
  return info;
}

class GpuKernelSizes final : public KernelSizes {
 public:
  DType ActivationDType(DType weights) const override { return weights; }
  int64_t DecodeSplit(int64_t keys, int kv_heads) const override {
    return cuda::DecodeSplitOf(keys, kv_heads);
  }
  int64_t ListedSplit(int heads, int64_t keys) const override {
    return cuda::ListedSplitOf(heads, keys);
  }
  int64_t WorkspaceBytes(const KernelLimits& limits) const override {
    return cuda::WorkspaceLayout(limits).total;
  }
  bool TakesEncoding(Encoding) const override { return true; }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return cuda::SupportsAttention(request);
  }
  bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                         int group) const override {
    return cuda::SupportsSelection(format, summary, group);
  }
  bool SelectsInPrompts() const override { return true; }
};

#ifdef HEADWAY_CUDA
constexpr const char* kDevices = "cpu, cuda, cuda:N, and cuda:N,M for ranks";

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaInfo& gpu)
      : info_(GpuInfo(gpu.name, gpu.memory_bytes,
                      std::max<int64_t>(0, gpu.free_bytes - kCudaLaterBytes))) {
    info_.gpu = gpu.index;
  }
  const BackendInfo& info() const override { return info_; }
  Result<int64_t> FreeMemory() const override { return FreeCudaMemory(info_.gpu); }
  Result<std::unique_ptr<Device>> NewDevice(Env* env, Trace* trace, KernelTimes times) override {
    return NewCudaDevice({.index = info_.gpu, .time_kernels = times == KernelTimes::kAll}, env,
                         trace);
  }
  Result<std::unique_ptr<Kernels>> NewKernels(ThreadPool*, Trace*) override {
    return NewCudaKernels(info_.gpu);
  }

 private:
  BackendInfo info_;
};

Result<std::unique_ptr<Backend>> NewCudaBackend(int index) {
  Result<CudaInfo> gpu = DescribeCudaDevice(index);
  if (!gpu.ok()) return gpu.status();
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(*gpu));
}
#else
constexpr const char* kDevices = "cpu";

Result<std::unique_ptr<Backend>> NewCudaBackend(int) {
  return Status(StatusCode::kUnsupported,
                Refusal{{"this build has no CUDA; build with `cmake --preset cuda`, or use ",
                         Option::kDevice, " cpu"}});
}
#endif

constexpr const char* kCuda = "cuda";

// The GPUs that a device names; empty where it names none.
std::optional<std::vector<int>> GpusOf(const std::string& device) {
  if (device == kCuda) return std::vector<int>{0};
  const std::string prefix = std::string(kCuda) + ":";
  if (!device.starts_with(prefix)) return std::nullopt;
  std::vector<int> gpus;
  const char* at = device.data() + prefix.size();
  const char* const end = device.data() + device.size();
  while (true) {
    const auto [behind, error] = std::from_chars(at, end, gpus.emplace_back());
    if (error != std::errc() || gpus.back() < 0) return std::nullopt;
    if (behind == end) return gpus;
    if (*behind != ',') return std::nullopt;
    at = behind + 1;
  }
}

}  // namespace

Result<std::string> DeviceOfRank(const std::string& device, int rank, int ranks,
                                 std::optional<int> on_machine) {
  const std::optional<std::vector<int>> gpus = GpusOf(device);
  if (!gpus.has_value()) return device;
  const auto name = [](int gpu) { return std::string(kCuda) + ":" + std::to_string(gpu); };
  if (gpus->size() == 1) return name(gpus->front() + on_machine.value_or(rank));
  if (std::ssize(*gpus) == ranks) return name((*gpus)[static_cast<size_t>(rank)]);
  return Status(StatusCode::kInvalidArgument,
                Refusal{{Option::kDevice, " " + device + " names " + std::to_string(gpus->size()) +
                                              " GPUs for " + std::to_string(ranks) + " ranks"}});
}

Result<std::unique_ptr<Backend>> NewBackend(const std::string& device, const std::string& isa) {
  if (device == "cpu") return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(isa));
  const std::optional<std::vector<int>> gpus = GpusOf(device);
  if (gpus.has_value() && gpus->size() == 1) return NewCudaBackend(gpus->front());
  if (gpus.has_value()) {
    return Status(StatusCode::kInvalidArgument,
                  Refusal{{Option::kDevice, " " + device + " names GPUs for ranks; give ",
                           Option::kTensorParallel, ", or one GPU"}});
  }
  return Status(StatusCode::kUnsupported,
                "unknown device '" + device + "'; this build has: " + kDevices);
}

PlannedBackend PlanGpuBackend(int64_t memory) {
  // The driver takes its part of what is free.
  return {GpuInfo("", memory, memory - kCudaContextBytes), std::make_unique<GpuKernelSizes>()};
}

}  // namespace headway
