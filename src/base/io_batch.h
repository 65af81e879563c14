// Batches of positioned reads or writes on one file descriptor, all pieces in flight at once:
// through io_uring, or through threads where the kernel or a sandbox refuses it.
#ifndef HEADWAY_BASE_IO_BATCH_H_
#define HEADWAY_BASE_IO_BATCH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/env.h"
#include "base/env_posix.h"

namespace headway {

enum class IoDirection { kRead, kWrite };

struct IoOutcome {
  enum class Kind { kDone, kEndOfFile, kError };
  Kind kind = Kind::kDone;
  int error = 0;  // errno of kError
  IoPiece piece;  // what of the batch was left to do where it failed

  bool ok() const { return kind == Kind::kDone; }
};

// What is left of a piece after some of its bytes were moved.
IoPiece Rest(const IoPiece& piece, size_t moved);

// Moves one piece with pread or pwrite, going on after short counts and interruptions. `io` is
// how the descriptor was opened: with direct I/O a count that is no multiple of the alignment means
// that the file ended.
IoOutcome TransferPiece(int fd, IoDirection direction, IoPiece piece, FileIo io);

class IoRing;

// Rings in use and rings kept. From any thread: a batch has a ring of its own while it runs.
class IoBatcher {
 public:
  explicit IoBatcher(const PosixEnvOptions& options);
  ~IoBatcher();

  IoOutcome Transfer(int fd, IoDirection direction, std::span<const IoPiece> pieces, FileIo io);

 private:
  std::unique_ptr<IoRing> TakeRing();  // null where there is no io_uring
  void KeepRing(std::unique_ptr<IoRing> ring);

  std::mutex mutex_;
  bool use_io_uring_;
  std::vector<std::unique_ptr<IoRing>> idle_;
};

}  // namespace headway

#endif  // HEADWAY_BASE_IO_BATCH_H_
