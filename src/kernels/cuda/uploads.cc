#include "kernels/cuda/uploads.h"

#include <cstring>

#include "kernels/cuda/elementwise.h"

namespace headway::cuda {

Uploads::~Uploads() {
  for (const Slot& slot : slots_) {
    if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
  }
}

cudaError_t Uploads::Prepare(std::byte* host, std::byte* device, int64_t bytes, By by) {
  bytes_ = bytes;
  by_ = by;
  for (Slot& slot : slots_) {
    slot.host = host;
    slot.device = device;
    host += bytes;
    device += bytes;
    if (slot.copied != nullptr) continue;
    const cudaError_t error = cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t Uploads::Begin(std::byte** host) {
  *host = slots_[next_].host;
  return cudaEventSynchronize(slots_[next_].copied);
}

cudaError_t Uploads::Send(cudaStream_t stream, int64_t bytes, const std::byte** device) {
  const Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kUploads;
  *device = slot.device;
  const std::span<const std::byte> from(slot.host, static_cast<size_t>(bytes));
  const cudaError_t error =
      by_ == By::kKernel
          ? WriteFrom(stream, from, slot.device)
          : cudaMemcpyAsync(slot.device, from.data(), from.size(), cudaMemcpyHostToDevice, stream);
  return error != cudaSuccess ? error : cudaEventRecord(slot.copied, stream);
}

cudaError_t Uploads::Put(cudaStream_t stream, std::span<const std::byte> from,
                         const std::byte** device) {
  // By a kernel's parameters, which need no memory of the host.
  if (from.size() <= static_cast<size_t>(kSmallBytesMax)) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kUploads;
    *device = slot.device;
    return WriteSmall(stream, from, slot.device);
  }
  std::byte* host = nullptr;
  if (const cudaError_t error = Begin(&host); error != cudaSuccess) return error;
  std::memcpy(host, from.data(), from.size());
  return Send(stream, static_cast<int64_t>(from.size()), device);
}

}  // namespace headway::cuda
