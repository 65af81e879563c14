// Device: the memory that kernels read at full speed, the streams that order work on it, and the
// events that order streams among each other. `cpu/` makes an arena in RAM a device, so that
// everything above runs, and is tested, without an accelerator.
//
// Rules that every implementation keeps:
// - Work enqueued on one stream runs in order. Streams run at the same time, one a lane.
// - A copy reads its source only after the events that its stream waits for; a buffer is reused
// only
//   after an event recorded behind its last reader.
// - Errors of asynchronous work stick to the stream and come out of Synchronize and status().
#ifndef HEADWAY_DEVICE_DEVICE_H_
#define HEADWAY_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "device/budget.h"
#include "headway/status.h"

namespace headway {

class Device;

// The hardware unit that a stream keeps busy. Reading the disk has several, taken by turns: a disk
// gives its bandwidth to many requests at a time, and what was read is checked meanwhile.
enum class Lane : uint8_t {
  kCompute,
  kHostToDevice,
  kDeviceToHost,
  kHostCompute,  // cores of the host that attend to pages in its memory
  kRanks,        // sums over ranks, beside kernels
  kDiskWrite,
  kDiskWeights,  // reads weights, a layer at a time, which pages must not wait behind
  kDiskRead,
  kDiskRead2,
  kDiskRead3,
  kDiskRead4,
};
inline constexpr int kLaneCount = 11;
// "compute", "h2d", "d2h", "cpu", "ranks", "disk-write", "disk-weights", or "disk-read" for each
// lane of that kind.
const char* LaneName(Lane lane);

// Memory of a device or of the host, freed and its reservation given back when destroyed.
class Buffer {
 public:
  virtual ~Buffer() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 protected:
  Buffer(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

// A point in a stream's work. An event that was never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Wait() = 0;     // blocks the calling thread until the recorded point is reached
  virtual bool Reached() = 0;  // polls
};

// What a piece of work moves and computes; the trace and the benchmarks compare it with the peak.
struct WorkCost {
  const char* name = "";
  int64_t bytes = 0;
  int64_t flops = 0;
};

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Lane lane() const = 0;

  // Copies `bytes`; both sides stay valid until the stream has passed it.
  virtual void Copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // `rows` rows of `row_bytes`, whose starts are the strides apart.
  virtual void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
                      size_t row_bytes, size_t rows) = 0;
  // Copies between memory of AllocateHost and of Allocate, in any order: without the pause that
  // lies between one copy and the next.
  virtual void CopyAll(std::span<const CopyPiece> pieces) {
    for (const CopyPiece& piece : pieces) Copy(piece.to, piece.from, piece.bytes);
  }
  // Runs `work` on a host thread at this point of the stream. A Status that is not ok becomes the
  // stream's error, and work behind it is dropped (events still fire).
  virtual void HostWork(const WorkCost& cost, std::function<Status()> work) = 0;

  virtual void Record(Event& event) = 0;
  virtual void Wait(Event& event) = 0;  // later work on this stream waits for the event

  // Blocks until all work is done; the first error since creation, if any.
  virtual Status Synchronize() = 0;
  virtual Status status() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Whether the host reads and writes what Allocate gives.
  virtual bool host_reads_memory() const = 0;
  // Whether kernels read what AllocateHost has given so far.
  virtual bool kernels_read_host_memory() const = 0;

  // Zeroed memory, aligned to 4096 at least, that kernels and copies reach. Never on the hot path.
  // kOutOfBudget from `budget`, or kIo when the system has none.
  virtual Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                                   const std::string& tag) = 0;
  // The same in host memory that copies and direct disk I/O reach at full speed (pinned where the
  // device needs that).
  virtual Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                                       const std::string& tag) = 0;
  // kIo when the system has no thread for it.
  virtual Result<std::unique_ptr<Stream>> NewStream(Lane lane) = 0;
  virtual std::unique_ptr<Event> NewEvent() = 0;
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_DEVICE_H_
