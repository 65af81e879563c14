#ifndef HEADWAY_KERNELS_CUDA_DIVISOR_H_
#define HEADWAY_KERNELS_CUDA_DIVISOR_H_

#include <bit>
#include <cstdint>

namespace headway::cuda {

// Division by a number that the host knows, of numbers below 2^31.
struct Divisor {
  uint32_t divisor;
  uint32_t multiplier;
  int32_t shift;

  bool operator==(const Divisor&) const = default;
  // With 2^s >= divisor, ceil(2^(31 + s) / divisor) is too large by less than one part in 2^31,
  // which no quotient notices.
  static Divisor Of(int64_t divisor) {
    const auto narrow = static_cast<uint32_t>(divisor);
    const int shift = 31 + std::bit_width(narrow - 1);
    return {narrow, static_cast<uint32_t>(((uint64_t{1} << shift) + narrow - 1) / narrow), shift};
  }
  __device__ int Size() const { return static_cast<int>(divisor); }
  __device__ int Divide(int number) const {
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(number)) * multiplier) >>
                            shift);
  }
  // What is left of `number` when it was divided with this quotient.
  __device__ int Rest(int number, int quotient) const { return number - quotient * Size(); }
};

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_DIVISOR_H_
