// Uploads: what the host has worked out for kernels, such as the items of a launch that are too
// many for its parameters, on its way to them: pinned memory and memory of the device, slots by
// turns. All uploads go by one stream, whose order keeps a slot of the device until its kernels are
// done. Where kernels read the host's memory, one brings them while those before it are at work: a
// copy waits for these, and lets the next one wait.
#ifndef HEADWAY_KERNELS_CUDA_UPLOADS_H_
#define HEADWAY_KERNELS_CUDA_UPLOADS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/workspace.h"

namespace headway::cuda {

class Uploads {
 public:
  Uploads() = default;
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  // Both memories have kUploads times `bytes`, a multiple of 16, and live as long as this is used.
  enum class By : uint8_t { kKernel, kCopy };  // of which the first reads `host`
  cudaError_t Prepare(std::byte* host, std::byte* device, int64_t bytes, By by);
  // Of one upload, at most.
  int64_t bytes() const { return bytes_; }

  // Memory of bytes() for the next upload, whatever it holds. Waits until what it held is copied.
  cudaError_t Begin(std::byte** host);
  // The first `bytes` of it, as kernels find them that are enqueued before kUploads - 1 other
  // uploads were sent.
  cudaError_t Send(cudaStream_t stream, int64_t bytes, const std::byte** device);
  // Both, of what lies anywhere; up to bytes().
  cudaError_t Put(cudaStream_t stream, std::span<const std::byte> from, const std::byte** device);

 private:
  struct Slot {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    cudaEvent_t copied = nullptr;  // behind what reads `host`
  };

  std::array<Slot, kUploads> slots_;
  size_t next_ = 0;
  int64_t bytes_ = 0;
  By by_ = By::kCopy;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_UPLOADS_H_
