#include "kernels/backend/backend.h"

#include <charconv>
#include <utility>

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
  int64_t DecodeSplit(int64_t length, int kv_heads) const override {
    return cuda::DecodeSplitOf(length, kv_heads);
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
  bool KeepsBlocks(const PageFormat& format, int group) const override {
    return cuda::KeepsBlocks(format, group);
  }
  bool SelectsInPrompts() const override { return true; }
};

#ifdef HEADWAY_CUDA
constexpr const char* kDevices = "cpu, cuda, cuda:N";

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaInfo& gpu)
      : index_(gpu.index), info_(GpuInfo(gpu.name, gpu.memory_bytes, gpu.free_bytes)) {}
  const BackendInfo& info() const override { return info_; }
  Result<int64_t> FreeMemory() const override { return FreeCudaMemory(index_); }
  Result<std::unique_ptr<Device>> NewDevice(Env* env, Trace* trace, KernelTimes times) override {
    return NewCudaDevice({.index = index_, .time_kernels = times == KernelTimes::kAll}, env, trace);
  }
  Result<std::unique_ptr<Kernels>> NewKernels(ThreadPool*, Trace*) override {
    return NewCudaKernels(index_);
  }

 private:
  const int index_;
  const BackendInfo info_;
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

}  // namespace

Result<std::unique_ptr<Backend>> NewBackend(const std::string& device, const std::string& isa) {
  if (device == "cpu") return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(isa));
  int index = 0;
  bool is_cuda = device == "cuda";
  if (device.starts_with("cuda:")) {
    const char* end = device.data() + device.size();
    const auto [at, error] = std::from_chars(device.data() + 5, end, index);
    is_cuda = at == end && error == std::errc() && index >= 0;
  }
  if (is_cuda) return NewCudaBackend(index);
  return Status(StatusCode::kUnsupported,
                "unknown device '" + device + "'; this build has: " + kDevices);
}

PlannedBackend PlanGpuBackend(int64_t memory) {
  // The driver takes its part of what is free.
  return {GpuInfo("", memory, memory - kCudaContextBytes), std::make_unique<GpuKernelSizes>()};
}

}  // namespace headway
