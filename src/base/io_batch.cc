#include "base/io_batch.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <thread>
#include <utility>

namespace headway {
namespace {

// Requests of one batch that the kernel holds at once: enough to keep an NVMe drive busy.
constexpr unsigned kQueueDepth = 32;
// Threads of a batch where there is no io_uring.
constexpr size_t kFallbackThreads = 8;
// Linux moves at most 2 GiB - 4 KiB a call; larger pieces go in several.
constexpr size_t kMaxTransfer = size_t{1} << 30;

// What `moved` bytes, the return value of a read or write, mean for `*piece`. True when nothing of
// it is left to do: all was moved, or it failed as `*outcome` then says.
bool Advance(IoDirection direction, FileIo io, int64_t moved, IoPiece* piece, IoOutcome* outcome) {
  if (moved == -EINTR || moved == -EAGAIN) return false;
  if (moved < 0) {
    *outcome = {IoOutcome::Kind::kError, static_cast<int>(-moved), *piece};
    return true;
  }
  const auto count = static_cast<size_t>(moved);
  *piece = Rest(*piece, count);
  if (piece->size == 0) return true;
  if (direction == IoDirection::kRead &&
      (count == 0 || (io == FileIo::kDirect && count % kDirectAlignment != 0))) {
    *outcome = {IoOutcome::Kind::kEndOfFile, 0, *piece};
    return true;
  }
  if (direction == IoDirection::kWrite && count == 0) {
    *outcome = {IoOutcome::Kind::kError, ENOSPC, *piece};
    return true;
  }
  return false;
}

IoOutcome TransferWithThreads(int fd, IoDirection direction, std::span<const IoPiece> pieces,
                              FileIo io) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  IoOutcome first_failure;
  auto work = [&] {
    for (size_t i = next++; i < pieces.size() && !failed; i = next++) {
      const IoOutcome outcome = TransferPiece(fd, direction, pieces[i], io);
      if (outcome.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failed.exchange(true)) first_failure = outcome;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(pieces.size(), kFallbackThreads); ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::exception&) {
      break;  // fewer threads do the same work
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();
  return first_failure;
}

}  // namespace

IoPiece Rest(const IoPiece& piece, size_t moved) {
  return {piece.data + moved, piece.size - moved, piece.offset + static_cast<int64_t>(moved)};
}

IoOutcome TransferPiece(int fd, IoDirection direction, IoPiece piece, FileIo io) {
  IoOutcome outcome;
  bool finished = piece.size == 0;
  while (!finished) {
    const size_t size = std::min(piece.size, kMaxTransfer);
    int64_t moved = direction == IoDirection::kRead ? pread(fd, piece.data, size, piece.offset)
                                                    : pwrite(fd, piece.data, size, piece.offset);
    if (moved < 0) moved = -errno;
    finished = Advance(direction, io, moved, &piece, &outcome);
  }
  return outcome;
}

// One io_uring. Whatever happens, Transfer returns only when the kernel holds no request of it, for
// a request points to the caller's memory.
class IoRing {
 public:
  static std::unique_ptr<IoRing> Create() {
    auto ring = std::unique_ptr<IoRing>(new IoRing);
    if (io_uring_queue_init(kQueueDepth, &ring->ring_, 0) != 0) return nullptr;
    ring->initialized_ = true;
    return ring;
  }

  ~IoRing() {
    if (initialized_) io_uring_queue_exit(&ring_);
  }

  // False after the ring itself failed: it must not be used again.
  bool healthy() const { return healthy_; }

  IoOutcome Transfer(int fd, IoDirection direction, std::span<const IoPiece> pieces, FileIo io) {
    IoOutcome outcome;
    rest_.assign(pieces.begin(), pieces.end());
    ready_.clear();
    for (size_t i = pieces.size(); i-- > 0;) {
      if (pieces[i].size > 0) ready_.push_back(i);
    }
    unsigned in_flight = 0;
    while (in_flight > 0 || (!ready_.empty() && outcome.ok())) {
      if (outcome.ok()) Prepare(fd, direction, in_flight);
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted >= 0) {
        in_flight += static_cast<unsigned>(submitted);
      } else if (!MayRetry(-submitted, in_flight)) {
        healthy_ = false;
        if (outcome.ok()) outcome = {IoOutcome::Kind::kError, -submitted, pieces.front()};
        if (in_flight == 0) break;
      }
      in_flight -= Reap(direction, io, &outcome);
    }
    // Requests that were prepared and never submitted would go out with the next batch.
    if (io_uring_sq_ready(&ring_) > 0) healthy_ = false;
    return outcome;
  }

 private:
  IoRing() = default;

  // Whether a submission that failed can succeed later: the kernel may be short of room for
  // requests, which those in flight give back.
  static bool MayRetry(int error, unsigned in_flight) {
    return error == EINTR || (in_flight > 0 && (error == EAGAIN || error == EBUSY));
  }

  // Queues ready pieces until kQueueDepth are queued or in flight.
  void Prepare(int fd, IoDirection direction, unsigned in_flight) {
    while (!ready_.empty() && in_flight + io_uring_sq_ready(&ring_) < kQueueDepth) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) return;
      const size_t index = ready_.back();
      ready_.pop_back();
      const IoPiece& piece = rest_[index];
      const auto size = static_cast<unsigned>(std::min(piece.size, kMaxTransfer));
      const auto offset = static_cast<uint64_t>(piece.offset);
      if (direction == IoDirection::kRead) {
        io_uring_prep_read(sqe, fd, piece.data, size, offset);
      } else {
        io_uring_prep_write(sqe, fd, piece.data, size, offset);
      }
      io_uring_sqe_set_data64(sqe, index);
    }
  }

  // Takes what the kernel has finished; how many requests that were.
  unsigned Reap(IoDirection direction, FileIo io, IoOutcome* outcome) {
    unsigned count = 0;
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const auto index = static_cast<size_t>(io_uring_cqe_get_data64(cqe));
      const int64_t moved = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      ++count;
      IoOutcome here;
      if (!Advance(direction, io, moved, &rest_[index], &here)) ready_.push_back(index);
      if (outcome->ok()) *outcome = here;
    }
    return count;
  }

  io_uring ring_ = {};
  bool initialized_ = false;
  bool healthy_ = true;
  std::vector<IoPiece> rest_;  // of each piece, what is left
  std::vector<size_t> ready_;  // pieces not in flight, the next last
};

IoBatcher::IoBatcher(const PosixEnvOptions& options) : use_io_uring_(options.io_uring) {}
IoBatcher::~IoBatcher() = default;

std::unique_ptr<IoRing> IoBatcher::TakeRing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!use_io_uring_) return nullptr;
  if (!idle_.empty()) {
    std::unique_ptr<IoRing> ring = std::move(idle_.back());
    idle_.pop_back();
    return ring;
  }
  std::unique_ptr<IoRing> ring = IoRing::Create();
  // EPERM and ENOSYS stay; where memory was short, threads do for the rest of the process too.
  if (ring == nullptr) use_io_uring_ = false;
  return ring;
}

void IoBatcher::KeepRing(std::unique_ptr<IoRing> ring) {
  if (!ring->healthy()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(ring));
}

IoOutcome IoBatcher::Transfer(int fd, IoDirection direction, std::span<const IoPiece> pieces,
                              FileIo io) {
  if (pieces.empty()) return {};
  if (pieces.size() == 1) return TransferPiece(fd, direction, pieces.front(), io);
  std::unique_ptr<IoRing> ring = TakeRing();
  if (ring == nullptr) return TransferWithThreads(fd, direction, pieces, io);
  const IoOutcome outcome = ring->Transfer(fd, direction, pieces, io);
  KeepRing(std::move(ring));
  return outcome;
}

}  // namespace headway
