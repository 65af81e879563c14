// How fast memory of the host and its disk are, without a device or kernels.
#ifndef HEADWAY_HARDWARE_RATES_H_
#define HEADWAY_HARDWARE_RATES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "headway/status.h"

namespace headway::hardware {

// More than caches hold: a server's have some hundred MiB.
inline constexpr int64_t kBeyondCaches = int64_t{1} << 30;

// Memory that is read to measure it holds this byte: as bf16 0.75, and not what ScanMemory looks
// for. It is written first, since pages that were never written share one page of zeros, which
// caches hold.
void FillMemory(ThreadPool& pool, std::byte* data, int64_t bytes);
// Reads every byte with the threads of the pool.
void ScanMemory(ThreadPool& pool, const std::byte* data, int64_t bytes);

// The least of `repeats` times that the work takes, after one that does not count.
double BestSeconds(Env& env, int repeats, const std::function<void()>& work);

// Reads kBeyondCaches of the host's memory with the threads of the pool; bytes a second.
Result<double> MeasureRead(Env& env, ThreadPool& pool);

struct DiskRates {
  double read = 0.0, write = 0.0;  // bytes a second
  std::vector<double> pieces;      // seconds of one, of each of DiskMeasure::pieces
};
struct DiskMeasure {
  std::string directory;  // of a temporary file
  int64_t bytes = 0;      // of that, 512 MiB at most
  // Sizes of small reads, ascending; the file has room for 32 of each.
  std::vector<int64_t> pieces;
};
// As the disk tier reads and writes: large pieces, many in flight, from all threads; and as lists
// read single pages: small pieces from anywhere in the file, 32 at a time. Nothing where the file
// is too short for that.
Result<DiskRates> MeasureDisk(Env& env, ThreadPool& pool, const DiskMeasure& measure);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_RATES_H_
