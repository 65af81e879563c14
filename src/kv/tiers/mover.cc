#include "kv/tiers/mover.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace headway::kv {

Mover::Mover(const CacheFormat& format, Lanes* lanes, DiskTier* disk,
             std::vector<std::byte*> bounce)
    : format_(format), lanes_(lanes), disk_(disk) {
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

void Mover::CopyPages(Lane lane, const Pages& pages, const std::byte* from, std::byte* to) {
  Stream& stream = lanes_->stream(lane);
  const auto heads = static_cast<size_t>(pages.heads);
  const auto row = static_cast<size_t>(format_.head_stride());
  const auto run = static_cast<size_t>(pages.count * format_.closed_stride());
  const auto params = static_cast<size_t>(pages.count * format_.param_stride());
  // The planes lie side by side, unless the group lacks heads.
  const int planes = pages.heads == format_.group_heads ? 1 : 2;
  const size_t rows = planes == 1 ? 2 * heads : heads;
  for (int plane = 0; plane < planes; ++plane) {
    const int64_t at =
        plane == 0 ? format_.KOffset(0, pages.first) : format_.VOffset(0, pages.first);
    if (planes == 1 && run == row) {
      stream.Copy(to, from, rows * row + params);
      return;
    }
    if (run == row) {
      stream.Copy(to + at, from + at, rows * row);
    } else {
      stream.Copy2D(to + at, row, from + at, row, run, rows);
    }
  }
  const int64_t at = format_.ParamOffset(pages.first);
  if (params > 0) stream.Copy(to + at, from + at, params);
}

int64_t Mover::ReadDisk(Lane lane, const Pages& pages, const std::shared_ptr<DiskCopy>& from,
                        std::byte* to, const std::shared_ptr<DiskRead>& read) {
  HEADWAY_CHECK(pages.first == 0);
  SlabFile* file = &disk_->file();
  // Errors stay with the read: one that stuck to the lane would end all reading from disk.
  lanes_->stream(lane).HostWork(
      WorkCost{"read slab", Bytes(pages), 0}, [file, pages, from, to, read] {
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

Fence Mover::WriteDisk(const Pages& pages, const std::byte* from, const Fence& written,
                       const std::shared_ptr<DiskCopy>& to) {
  DiskTier* disk = disk_;
  to->pages = pages.first + pages.count;
  lanes_->Wait(Lane::kDiskWrite, written);
  lanes_->stream(Lane::kDiskWrite)
      .HostWork(WorkCost{"write slab", Bytes(pages), 0}, [disk, pages, from, to] {
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

Mover::Copied Mover::CopyFromDisk(const Pages& pages, const Place& from, const Fence& written,
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
    CopyPages(Lane::kHostToDevice, pages, host, to.data);
    copied.ready = Fence();
    copied.ready.Add(Lane::kHostToDevice, lanes_->Mark(Lane::kHostToDevice));
  } else if (to.tier == Tier::kDisk) {
    lanes_->HostWait(copied.source);
    if (copied.read->status.ok()) copied.ready = WriteDisk(pages, host, copied.source, to.disk);
  }
  if (bounce != nullptr) bounce->used = copied.ready;
  return copied;
}

Mover::Copied Mover::Copy(const Pages& pages, const Place& from, const Fence& written,
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
  CopyPages(lane, pages, from.data, bounce == nullptr ? to.data : bounce->data);
  copied.source.Add(lane, lanes_->Mark(lane));
  copied.ready = copied.source;
  if (bounce != nullptr) {
    copied.ready = WriteDisk(pages, bounce->data, copied.source, to.disk);
    bounce->used = copied.ready;
  }
  return copied;
}

Fence Mover::Append(const Pages& pages, const std::byte* from, int64_t row_stride,
                    const std::byte* params, const Place& to, const Fence& used) {
  Stream& stream = lanes_->stream(Lane::kDeviceToHost);
  Bounce* bounce = to.tier == Tier::kDisk ? &NextBounce() : nullptr;
  std::byte* slab = bounce == nullptr ? to.data : bounce->data;
  lanes_->Wait(Lane::kDeviceToHost, bounce == nullptr ? used : bounce->used);

  const int heads = pages.heads;
  const auto to_row = static_cast<size_t>(format_.head_stride());
  const auto from_row = static_cast<size_t>(row_stride);
  const auto run = static_cast<size_t>(pages.count * format_.closed_stride());
  std::byte* k = slab + format_.KOffset(0, pages.first);
  if (heads == format_.group_heads) {
    stream.Copy2D(k, to_row, from, from_row, run, 2 * static_cast<size_t>(heads));
  } else {
    const auto rows = static_cast<size_t>(heads);
    stream.Copy2D(k, to_row, from, from_row, run, rows);
    stream.Copy2D(slab + format_.VOffset(0, pages.first), to_row, from + heads * row_stride,
                  from_row, run, rows);
  }
  if (format_.encoded()) {
    stream.Copy(slab + format_.ParamOffset(pages.first), params,
                static_cast<size_t>(pages.count * format_.param_stride()));
  }
  Fence ready;
  ready.Add(Lane::kDeviceToHost, lanes_->Soon(Lane::kDeviceToHost));
  if (bounce == nullptr) return ready;
  // What still reads the slab reads other pages, so that only the rows are waited for.
  ready = WriteDisk(pages, bounce->data, ready, to.disk);
  bounce->used = ready;
  return ready;
}

}  // namespace headway::kv
