#include "kv/tiers/mover.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace headway::kv {
namespace {

// The bytes of some pages in the rows of a plane.
struct RowRun {
  int64_t at = 0;  // of the first row's in the slab
  int64_t rows = 0;
  int64_t bytes = 0;  // of a row
};

RowRun RunOf(const Plane& plane, const SlabPages& pages) {
  return {plane.offset + pages.first * plane.page_stride, plane.Rows(pages.heads),
          pages.count * plane.page_stride};
}

template <typename Byte>
struct Rows {
  Byte* data = nullptr;
  int64_t stride = 0;
};

// Copies of rows on a stream, in as few as their strides allow: planes that lie side by side move
// as one, a full slab as a whole.
class RowCopies {
 public:
  explicit RowCopies(Stream& stream) : stream_(stream) {}

  void Add(const RowRun& run, Rows<std::byte> to, Rows<const std::byte> from) {
    if (run.bytes == 0) return;
    Piece piece{to, from, run.rows, run.bytes};
    if (piece.bytes == to.stride && piece.bytes == from.stride) {
      piece.bytes *= piece.rows;
      piece.rows = 1;
      piece.flat = true;
    }
    if (Joins(piece)) return;
    Flush();
    piece_ = piece;
  }
  void Flush() {
    if (piece_.rows == 1) {
      stream_.Copy(piece_.to.data, piece_.from.data, Size(piece_.bytes));
    } else if (piece_.rows > 1) {
      stream_.Copy2D(piece_.to.data, Size(piece_.to.stride), piece_.from.data,
                     Size(piece_.from.stride), Size(piece_.bytes), Size(piece_.rows));
    }
    piece_ = Piece();
  }

 private:
  struct Piece {
    Rows<std::byte> to;
    Rows<const std::byte> from;
    int64_t rows = 0;
    int64_t bytes = 0;
    bool flat = false;  // rows without gaps: whatever follows joins
  };

  static size_t Size(int64_t bytes) { return static_cast<size_t>(bytes); }

  // Whether the piece continues the last one, which then holds it.
  bool Joins(const Piece& piece) {
    const bool flat = piece_.flat && (piece.flat || piece.rows == 1);
    const int64_t to_end = flat ? piece_.bytes : piece_.rows * piece_.to.stride;
    const int64_t from_end = flat ? piece_.bytes : piece_.rows * piece_.from.stride;
    if (piece_.rows == 0 || piece.to.data != piece_.to.data + to_end ||
        piece.from.data != piece_.from.data + from_end) {
      return false;
    }
    if (flat) {
      piece_.bytes += piece.bytes;
      return true;
    }
    if (piece_.flat || piece.flat || piece.bytes != piece_.bytes ||
        piece.to.stride != piece_.to.stride || piece.from.stride != piece_.from.stride) {
      return false;
    }
    piece_.rows += piece.rows;
    return true;
  }

  Stream& stream_;
  Piece piece_;
};

void CopyPages(Stream& stream, const SlabPages& pages, const std::byte* from, std::byte* to) {
  RowCopies copies(stream);
  for (const Plane& plane : pages.layout->planes) {
    const RowRun run = RunOf(plane, pages);
    copies.Add(run, {to + run.at, plane.row_stride}, {from + run.at, plane.row_stride});
  }
  copies.Flush();
}

}  // namespace

int64_t SlabPages::bytes() const {
  int64_t bytes = 0;
  for (const Plane& plane : layout->planes) bytes += count * plane.Rows(heads) * plane.page_stride;
  return bytes;
}

Mover::Mover(Lanes* lanes, DiskTier* disk, const std::vector<std::byte*>& bounce)
    : lanes_(lanes), disk_(disk) {
  for (std::byte* data : bounce) bounce_.push_back(Bounce{data, Fence()});
}

Mover::Bounce& Mover::NextBounce() {
  HEADWAY_CHECK(!bounce_.empty());
  next_bounce_ = (next_bounce_ + 1) % bounce_.size();
  return bounce_[next_bounce_];
}

Lane Mover::NextReadLane() {
  constexpr int kLanes = kLaneCount - static_cast<int>(Lane::kDiskRead);
  next_read_ = (next_read_ + 1) % kLanes;
  return static_cast<Lane>(static_cast<int>(Lane::kDiskRead) + next_read_);
}

int64_t Mover::ReadDisk(Lane lane, const SlabPages& pages, const std::shared_ptr<DiskCopy>& from,
                        std::byte* to, const std::shared_ptr<DiskRead>& read) {
  HEADWAY_CHECK(pages.first == 0);
  SlabFile* file = &disk_->file();
  // Errors stay with the read: one that stuck to the lane would end all reading from disk.
  lanes_->stream(lane).HostWork(
      WorkCost{"read slab", pages.bytes(), 0}, [file, pages, from, to, read] {
        Status status = from->Check(pages.count);
        if (status.ok()) {
          const std::span<const uint64_t> sums(from->checksums);
          status = file->ReadPages(from->slot, pages.heads,
                                   sums.first(static_cast<size_t>(pages.count)), to);
        }
        read->status = std::move(status);
        read->done = true;
        return OkStatus();
      });
  return lanes_->Mark(lane);
}

Fence Mover::WriteDisk(const SlabPages& pages, const std::byte* from, const Fence& written,
                       const std::shared_ptr<DiskCopy>& to) {
  DiskTier* disk = disk_;
  to->pages = pages.first + pages.count;
  lanes_->Wait(Lane::kDiskWrite, written);
  lanes_->stream(Lane::kDiskWrite)
      .HostWork(WorkCost{"write slab", pages.bytes(), 0}, [disk, pages, from, to] {
        Result<std::vector<uint64_t>> sums =
            disk->file().WritePages(to->slot, pages.heads, pages.first, pages.count, from);
        if (sums.ok()) {
          HEADWAY_CHECK(sums->size() == static_cast<size_t>(pages.count));
          std::copy(sums->begin(), sums->end(), to->checksums.begin() + pages.first);
        } else {
          to->Fail(pages.first, sums.status());
          disk->set_has_failed();
        }
        return OkStatus();
      });
  Fence ready;
  ready.Add(Lane::kDiskWrite, lanes_->Mark(Lane::kDiskWrite));
  return ready;
}

Fence Mover::WriteZeros(const SlabPages& pages, const std::shared_ptr<DiskCopy>& to) {
  Bounce& bounce = NextBounce();
  lanes_->HostWait(bounce.used);
  std::memset(bounce.data, 0, static_cast<size_t>(pages.layout->slab_bytes));
  bounce.used = WriteDisk(pages, bounce.data, Fence(), to);
  return bounce.used;
}

Mover::Copied Mover::CopyFromDisk(const SlabPages& pages, const Place& from, const Fence& written,
                                  const Place& to, const Fence& free) {
  Copied copied;
  copied.read = std::make_shared<DiskRead>();
  Bounce* bounce = to.tier == Tier::kHost ? nullptr : &NextBounce();
  std::byte* host = bounce == nullptr ? to.data : bounce->data;
  const Lane lane = NextReadLane();
  lanes_->Wait(lane, written);
  lanes_->Wait(lane, bounce == nullptr ? free : bounce->used);
  copied.source.Add(lane, ReadDisk(lane, pages, from.disk, host, copied.read));
  copied.ready = copied.source;
  if (to.tier == Tier::kDevice) {
    lanes_->Wait(Lane::kHostToDevice, copied.source);
    lanes_->Wait(Lane::kHostToDevice, free);
    CopyPages(lanes_->stream(Lane::kHostToDevice), pages, host, to.data);
    copied.ready = Fence();
    copied.ready.Add(Lane::kHostToDevice, lanes_->Mark(Lane::kHostToDevice));
  } else if (to.tier == Tier::kDisk) {
    lanes_->HostWait(copied.source);
    if (copied.read->status.ok()) copied.ready = WriteDisk(pages, host, copied.source, to.disk);
  }
  if (bounce != nullptr) bounce->used = copied.ready;
  return copied;
}

Mover::Copied Mover::Copy(const SlabPages& pages, const Place& from, const Fence& written,
                          const Place& to, const Fence& free) {
  if (from.tier == Tier::kDisk) return CopyFromDisk(pages, from, written, to, free);
  Copied copied;
  Fence before = written;
  before.Join(free);
  if (to.tier == Tier::kDisk && from.tier == Tier::kHost) {
    copied.ready = WriteDisk(pages, from.data, before, to.disk);
    copied.source = copied.ready;
    return copied;
  }
  const Lane lane = from.tier == Tier::kDevice ? Lane::kDeviceToHost : Lane::kHostToDevice;
  Bounce* bounce = to.tier == Tier::kDisk ? &NextBounce() : nullptr;
  lanes_->Wait(lane, before);
  if (bounce != nullptr) lanes_->Wait(lane, bounce->used);
  CopyPages(lanes_->stream(lane), pages, from.data, bounce == nullptr ? to.data : bounce->data);
  copied.source.Add(lane, lanes_->Mark(lane));
  copied.ready = copied.source;
  if (bounce != nullptr) {
    copied.ready = WriteDisk(pages, bounce->data, copied.source, to.disk);
    bounce->used = copied.ready;
  }
  return copied;
}

Fence Mover::Append(const SlabPages& pages, const ClosedRows& from, const Place& to,
                    const Fence& used) {
  Bounce* bounce = to.tier == Tier::kDisk ? &NextBounce() : nullptr;
  std::byte* slab = bounce == nullptr ? to.data : bounce->data;
  lanes_->Wait(Lane::kDeviceToHost, bounce == nullptr ? used : bounce->used);

  RowCopies copies(lanes_->stream(Lane::kDeviceToHost));
  const std::byte* row = from.rows;
  for (const Plane& plane : pages.layout->planes) {
    const RowRun run = RunOf(plane, pages);
    const std::byte* source = row;
    if (plane.by_head) {
      row += run.rows * from.row_stride;
    } else if (from.params != nullptr) {
      source = from.params;
    }
    copies.Add(run, {slab + run.at, plane.row_stride}, {source, from.row_stride});
  }
  copies.Flush();
  Fence ready;
  ready.Add(Lane::kDeviceToHost, lanes_->Soon(Lane::kDeviceToHost));
  if (bounce == nullptr) return ready;
  // What still reads the slab reads other pages, so that only the rows are waited for.
  ready = WriteDisk(pages, bounce->data, ready, to.disk);
  bounce->used = ready;
  return ready;
}

}  // namespace headway::kv
