#include "kv/tiers/listed_pages.h"

#include <utility>

#include "base/check.h"

namespace headway::kv {

ListedPages::ListedPages(const CacheFormat& format, Lanes* lanes, DiskTier* disk,
                         std::vector<std::byte*> frames)
    : format_(format), lanes_(lanes), disk_(disk), frames_(std::move(frames)) {
  entries_.resize(frames_.size() * static_cast<size_t>(format.segment_pages));
  for (size_t place = 0; place < entries_.size(); ++place) {
    entries_[place].at = order_.insert(order_.end(), static_cast<int>(place));
  }
}

void ListedPages::Forget(uint64_t name) {
  const auto found = places_.find(name);
  if (found == places_.end()) return;
  entries_[static_cast<size_t>(found->second)].name = 0;
  places_.erase(found);
}

int ListedPages::TakePlace(uint64_t name) {
  const int place = order_.front();
  Entry& entry = entries_[static_cast<size_t>(place)];
  HEADWAY_CHECK(entry.round <= finished_);
  if (entry.name != 0) Forget(entry.name);
  entry.name = name;
  places_.emplace(name, place);
  return place;
}

void ListedPages::Begin(std::span<const Wanted> pages, std::vector<int>* places) {
  const int64_t number = ++begun_;
  HEADWAY_CHECK(begun_ - finished_ <= 2);
  Round& round = rounds_[static_cast<size_t>(number % 2)];
  round = Round();
  places->clear();
  std::vector<SlabFile::PageRead> missing;
  std::vector<Wanted> of;
  for (const Wanted& page : pages) {
    const uint64_t name = NameOf(page);
    const auto found = places_.find(name);
    const int place = found != places_.end() ? found->second : TakePlace(name);
    Entry& entry = entries_[static_cast<size_t>(place)];
    if (found == places_.end()) {
      const DiskCopy& disk = *page.slab->disk;
      missing.push_back({disk.slot, format_.HeadsIn(page.slab->layer, page.slab->group), page.page,
                         &disk.checksums[static_cast<size_t>(page.page)],
                         frames_[static_cast<size_t>(place / format_.segment_pages)],
                         place % format_.segment_pages});
      of.push_back(page);
      round.names.push_back(name);
    } else if (entry.round != number) {
      ++reads_.found;
    }
    entry.round = number;
    order_.splice(order_.end(), order_, entry.at);
    places->push_back(place);
  }
  if (!missing.empty()) Read(std::move(missing), of, &round);
}

void ListedPages::Read(std::vector<SlabFile::PageRead> pages, std::span<const Wanted> of,
                       Round* round) {
  constexpr int kLanes = kLaneCount - static_cast<int>(Lane::kDiskRead);
  next_lane_ = (next_lane_ + 1) % kLanes;
  const auto lane = static_cast<Lane>(static_cast<int>(Lane::kDiskRead) + next_lane_);
  Fence before;
  int64_t bytes = 0;
  std::vector<std::pair<std::shared_ptr<DiskCopy>, int>>
      copies;  // and the pages that must be there
  for (const Wanted& page : of) {
    before.Join(page.slab->written);
    bytes += format_.PageBytes(page.slab->layer, page.slab->group);
    copies.emplace_back(page.slab->disk, page.page + 1);
  }
  reads_.read += std::ssize(of);
  reads_.bytes += bytes;
  lanes_->Wait(lane, before);
  round->read = std::make_shared<DiskRead>();
  // As with whole slabs, errors stay with the read.
  lanes_->stream(lane).HostWork(WorkCost{"read listed pages", bytes, 0},
                                [file = &disk_->file(), pages = std::move(pages),
                                 copies = std::move(copies), read = round->read] {
                                  Status status;
                                  for (const auto& [copy, count] : copies) {
                                    if (status.ok()) status = copy->Check(count);
                                  }
                                  if (status.ok()) status = file->ReadEach(pages);
                                  read->status = std::move(status);
                                  read->done = true;
                                  return OkStatus();
                                });
  const int64_t ticket = lanes_->Mark(lane);
  round->ready.Add(lane, ticket);
  for (const Wanted& page : of) page.slab->used.Add(lane, ticket);
}

Status ListedPages::Await() {
  HEADWAY_CHECK(begun_ > finished_);
  Round& round = Oldest();
  if (round.read == nullptr) return OkStatus();
  lanes_->HostWait(round.ready);
  if (!round.read->done && round.read->status.ok()) {
    round.read->status = Status(StatusCode::kInternal, "reading listed pages came to no end");
  }
  if (!round.read->status.ok()) {
    for (const uint64_t name : round.names) Forget(name);
  }
  return round.read->status;
}

void ListedPages::End() {
  while (begun_ > finished_) {
    const Status ignored = Await();  // nobody asked for what it read
    static_cast<void>(ignored);
    Finish();
  }
}

}  // namespace headway::kv
