// Communicator: what one rank of a group says to the others. Every rank makes the same calls in the
// same order, with the same sizes; what it gives and takes are buffers of its own.
//
// Calls with a stream are enqueued on it and complete in its order. A call that another rank's end
// cuts short makes an error of the stream; no call waits for a rank that has ended.
#ifndef HEADWAY_PARALLEL_COMMUNICATOR_H_
#define HEADWAY_PARALLEL_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "headway/status.h"

namespace headway {

// A matrix of which each rank has some columns, which follow one another from rank to rank.
struct SharedColumns {
  float* data = nullptr;  // [rows, columns]
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t begin = 0;  // the rank's own: [begin, end)
  int64_t end = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // data [count] becomes the sum over the ranks, added in their order, or over NCCL in one that it
  // chooses: the same bits on every rank and from run to run.
  virtual void AllReduceSum(Stream& stream, float* data, int64_t count) = 0;
  // Of a GPU's multiprocessors, those that products beside a large sum had better leave to it.
  virtual int multiprocessors() const { return 0; }
  // Fills in the columns of the other ranks.
  virtual void AllGather(Stream& stream, const SharedColumns& matrix) = 0;
  // Rank `from`'s bytes on every rank.
  virtual void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) = 0;
  // Work behind it begins once every rank's stream has come to it.
  virtual void Barrier(Stream& stream) = 0;

  // Rank 0's value, for decisions of the host that all ranks must make alike. Waits for rank 0.
  virtual Result<int64_t> OfFirst(int64_t value) = 0;
  // Every rank's bytes, one rank after the other, for sums that the host takes. Waits for all
  // ranks, and not for their streams.
  virtual Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) = 0;
};

}  // namespace headway

#endif  // HEADWAY_PARALLEL_COMMUNICATOR_H_
