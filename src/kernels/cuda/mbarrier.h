// Barriers in shared memory: some threads say that they have done something, others wait for it,
// and neither waits for the others. Compute capability 9.0.
#ifndef HEADWAY_KERNELS_CUDA_MBARRIER_H_
#define HEADWAY_KERNELS_CUDA_MBARRIER_H_

#include <cstdint>

namespace headway::cuda {

// Turns are counted from 0; of each, so many arrivals are the end. Threads see what threads wrote
// to shared memory before they arrived.
class Barrier {
 public:
  // One thread, and a barrier of all behind it.
  __device__ void Begin(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(At()), "r"(arrivals) : "memory");
  }
  // Without a branch, which products under way would be waited for at.
  __device__ void ArriveIf(bool arrives) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(
            At()),
        "r"(static_cast<int>(arrives))
        : "memory");
  }
  __device__ void Arrive() { ArriveIf(true); }
  // When the copies that this thread started have come (CopyAsync).
  __device__ void ArriveWhenCopied() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(At()) : "memory");
  }
  // Until the latest turn of this parity has ended; of parity 1, one has ended before the first.
  __device__ void Wait(int parity) {
    uint32_t ended = 0;
    while (ended == 0) {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(ended)
          : "r"(At()), "r"(parity)
          : "memory");
    }
  }

 private:
  __device__ uint32_t At() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state_));
  }
  uint64_t state_;
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_MBARRIER_H_
