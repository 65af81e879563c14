// Which keys queries see: shared by host and device.
#ifndef HEADWAY_KERNELS_CUDA_KEY_SPAN_H_
#define HEADWAY_KERNELS_CUDA_KEY_SPAN_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace headway::cuda {

// Keys of a range by their positions: key i at first + i, or at positions[i], ascending.
struct KeyPositions {
  int32_t first = 0;
  int32_t count = 0;
  const int32_t* positions = nullptr;

  __host__ __device__ int32_t At(int32_t key) const {
    return positions != nullptr ? positions[key] : first + key;
  }
  // The number of keys at positions <= position, which are the first ones.
  __host__ __device__ int32_t UpTo(int64_t position) const {
    if (positions == nullptr) {
      const int64_t keys = position - first + 1;
      return static_cast<int32_t>(keys < 0 ? 0 : keys > count ? count : keys);
    }
    int32_t low = 0;
    int32_t high = count;
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (positions[middle] <= position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Keys [begin, end).
struct KeySpan {
  int32_t begin = 0;
  int32_t end = 0;
};

// The position below which a query at `position` sees nothing, that position included; no key is so
// low where there is no window (0).
__host__ __device__ inline int64_t WindowFloor(int64_t position, int64_t window) {
  return window == 0 ? INT32_MIN : position - window;
}

// The keys that some query at first_query to last_query sees.
__host__ __device__ inline KeySpan SeenByAny(const KeyPositions& keys, int64_t first_query,
                                             int64_t last_query, int64_t window) {
  const int32_t end = keys.UpTo(last_query);
  const int32_t below = keys.UpTo(WindowFloor(first_query, window));
  return {below < end ? below : end, end};
}

// Those that all of them see; begin >= end: none.
__host__ __device__ inline KeySpan SeenByAll(const KeyPositions& keys, int64_t first_query,
                                             int64_t last_query, int64_t window) {
  return {keys.UpTo(WindowFloor(last_query, window)), keys.UpTo(first_query)};
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_KEY_SPAN_H_
