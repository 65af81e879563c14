// Launching kernels one behind the other without a gap. On GPUs of compute capability 9.0 and above
// a kernel may start while the one before it in the stream ends ("programmatic dependent launch"):
// every kernel that LaunchKernel starts calls WaitForPrevious before it touches memory that another
// kernel writes, or writes memory that another reads. Weights may be read before: where a copy
// brings them, the stream has waited for it, and no kernel starts ahead of that; a kernel that
// writes them lets none start before its end.
#ifndef HEADWAY_KERNELS_CUDA_LAUNCH_H_
#define HEADWAY_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace headway::cuda {

// The next kernel may take up what this one leaves free.
__device__ inline void LetNextStart() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// All work before this kernel is done, its writes seen.
__device__ inline void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Both, for kernels that have nothing to do before.
__device__ inline void FollowPrevious() {
  LetNextStart();
  WaitForPrevious();
}

// Reads the first kBytes of a kernel's parameters, which lie in constant memory: 64 bytes of it
// that nobody has read are waited for, and better so while the kernels ahead run.
template <size_t kBytes, typename Work>
__device__ inline void BringParameters(const Work& work) {
  static_assert(kBytes <= sizeof(Work));
  const auto* words = reinterpret_cast<const uint32_t*>(&work);
  uint32_t all = words[kBytes / 4 - 1];
#pragma unroll
  for (size_t at = 0; at < kBytes; at += 64) all |= words[at / 4];
  // Does nothing, and is not left out.
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p membar.cta; }" : : "r"(all) : "memory");
}

// Bytes of parameters that a kernel takes.
inline constexpr size_t kParametersMax = 32764;

// Whether the current device overlaps the kernels of a stream.
inline bool OverlapsKernels() {
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> known = {};  // 0: not yet, 1: no, 2: yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  std::atomic<int>& state = known[static_cast<size_t>(device)];
  if (state == 0) {
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    state = major >= 9 ? 2 : 1;
  }
  return state == 2;
}

template <typename... Params>
cudaError_t LaunchKernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                         cudaStream_t stream, std::type_identity_t<const Params&>... params) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = OverlapsKernels() ? 1 : 0;
  // By their addresses: cudaLaunchKernelEx copies them, and some are 32 KiB.
  void* at[] = {const_cast<void*>(static_cast<const void*>(&params))..., nullptr};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), at);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_LAUNCH_H_
