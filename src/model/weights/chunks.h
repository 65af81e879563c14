// Loops over large arrays of weights, cut for threads.
#ifndef HEADWAY_MODEL_WEIGHTS_CHUNKS_H_
#define HEADWAY_MODEL_WEIGHTS_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"

namespace headway {

// [0, items) in pieces of `grain`, on the pool if there is one.
inline void ForEachChunk(ThreadPool* pool, int64_t items, int64_t grain,
                         const std::function<void(int64_t begin, int64_t end)>& fn) {
  if (pool != nullptr) {
    pool->Run(items, grain, [&fn](int, int64_t begin, int64_t end) { fn(begin, end); });
    return;
  }
  for (int64_t begin = 0; begin < items; begin += grain) fn(begin, std::min(items, begin + grain));
}

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_CHUNKS_H_
