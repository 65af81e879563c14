// What this machine can do at this moment, for benchmarks to print beside what they reach.
#ifndef HEADWAY_BENCH_PEAKS_H_
#define HEADWAY_BENCH_PEAKS_H_

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"

namespace headway::bench {

// f32 multiply-adds from registers, all threads together, in FLOP/s. Takes about 20 ms.
double MeasureFmaPeak(ThreadPool& pool, Isa isa);

// Reads `bytes` from `data` on, both multiples of 128, in pieces of 1 MiB, all threads together.
void ReadMemory(ThreadPool& pool, const std::byte* data, int64_t bytes);

// Reading memory that no cache holds (512 MiB), all threads together, in bytes/s.
double MeasureReadPeak(ThreadPool& pool);

}  // namespace headway::bench

#endif  // HEADWAY_BENCH_PEAKS_H_
