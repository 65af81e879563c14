#include "kv/step/step_reads.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "kv/step/cache.h"
#include "kv/step/reader.h"
#include "kv/step/sequences.h"
#include "kv/step/summarize.h"

namespace headway::kv {
namespace {

Status Invalid(const std::string& text) {
  return Status(StatusCode::kInvalidArgument, "KV store: " + text);
}

}  // namespace

StepReads::StepReads(Cache* cache, const Sequences* sequences)
    : cache_(*cache),
      sequences_(*sequences),
      reader_(std::make_unique<Reader>(cache->format, &cache->lanes, &*cache->mover, &*cache->slabs,
                                       cache->BuffersOfReads(), cache->poison.get())),
      resident_(cache) {}

StepReads::~StepReads() = default;

void StepReads::Begin(std::vector<int> places) {
  places_ = std::move(places);
  LetLinesGo();
}

Status StepReads::End() {
  promoted_.clear();
  if (cache_.listed_pages != nullptr) cache_.listed_pages->End();
  Status status = reader_->End(&promoted_);
  // Contexts that undo rotations have no slabs on disk (Store::BringUp).
  for (const SlabId id : promoted_) SummarizeSegment(cache_, {&id, 1}, 0, {});
  for (const SlabId id : held_) (*cache_.slabs)[id].held = false;
  held_.clear();
  places_.clear();
  return status;
}

Status StepReads::SummarizeOnDisk(std::span<const SlabId> slabs) {
  HEADWAY_CHECK(places_.empty());
  announced_.clear();
  for (const SlabId id : slabs) {
    const Slab& slab = (*cache_.slabs)[id];
    if (LacksSummaries(slab)) announced_.push_back(ReadItem{id, slab.segment, slab.pages, 0});
  }
  reader_->Announce(announced_);
  Status status;
  for (const ReadItem& item : announced_) {
    const Result<SlabView> view = reader_->Next();
    status = view.status();
    if (!status.ok()) break;
    PagesToSummarize pages(cache_);
    pages.Add((*cache_.slabs)[item.slab], view->keys.pages, 0);
    pages.Summarize();
    reader_->Finish(*view);
  }
  promoted_.clear();
  const Status read = reader_->End(&promoted_);
  if (status.ok()) status = read;
  if (!status.ok()) return status;
  for (const ReadItem& item : announced_) (*cache_.slabs)[item.slab].summarised = item.pages;
  return OkStatus();
}

Result<StepReads::Found> StepReads::FindSlab(const SlabRead& read) const {
  if (read.entry < 0 || read.entry >= static_cast<int>(places_.size()) || read.layer < 0 ||
      read.layer >= cache_.format.layers || read.group < 0 ||
      read.group >= cache_.format.head_groups(read.layer)) {
    return Invalid("a slab to read that the step does not have");
  }
  const PageTable& table =
      sequences_.at(PlaceOfEntry(read.entry)).tables.of(read.layer, read.group);
  Found found;
  if (read.segment >= 0) found.pages = table.PagesIn(read.segment);
  if (found.pages > 0) {
    found.slab = table.slab(read.group, read.segment);
    found.position = table.PositionOf(int64_t{read.segment} * cache_.format.segment_pages);
  }
  if (found.slab == kNoSlab || read.pages < 0 || read.pages > found.pages) {
    return Invalid("segment " + std::to_string(read.segment) + " of layer " +
                   std::to_string(read.layer) + " has no " +
                   (read.pages > 0 ? std::to_string(read.pages) + " " : "") + "pages to read");
  }
  return found;
}

Status StepReads::Announce(std::span<const SlabRead> reads) {
  if (places_.empty()) return Invalid("slabs are read within a step");
  announced_.clear();
  for (const SlabRead& read : reads) {
    const Result<Found> found = FindSlab(read);
    if (!found.ok()) return found.status();
    announced_.push_back(ReadItem{found->slab, read.segment,
                                  read.pages == 0 ? found->pages : read.pages, found->position});
  }
  reader_->Announce(announced_);
  return OkStatus();
}

void StepReads::Hold(SlabId id) {
  (*cache_.slabs)[id].held = true;
  cache_.slabs->WasRead(id);
  held_.push_back(id);
}

Status StepReads::HoldInPlace(std::span<const SlabRead> reads) {
  if (places_.empty()) return Invalid("slabs are read within a step");
  for (const SlabRead& read : reads) {
    const Result<Found> found = FindSlab(read);
    if (!found.ok()) return found.status();
    const Slab& slab = (*cache_.slabs)[found->slab];
    if ((slab.tier == Tier::kDisk && !ReadsPages()) || slab.kind != SlabKind::kKeysValues ||
        slab.promoting) {
      return Invalid("a slab that is not in memory cannot be read in place");
    }
    Hold(found->slab);
  }
  return OkStatus();
}

SegmentPlace StepReads::InPlace(const SlabRead& read) const {
  const Result<Found> found = FindSlab(read);
  HEADWAY_CHECK(found.ok());
  const Slab& slab = (*cache_.slabs)[found->slab];
  HEADWAY_CHECK(slab.held);
  SegmentPlace place = {slab.data, slab.frames.summary, slab.frames.sketch};
  if (slab.tier == Tier::kHost) place.version = slab.version;
  return place;
}

KeyRun StepReads::KeysInPlace(const SlabRead& read) const {
  const Result<Found> found = FindSlab(read);
  HEADWAY_CHECK(found.ok());
  const Slab& slab = (*cache_.slabs)[found->slab];
  HEADWAY_CHECK(slab.held);
  KeyRun keys;
  keys.position = found->position;
  keys.pages = RunIn(cache_.format, slab.data, 0, read.pages == 0 ? found->pages : read.pages);
  return keys;
}

BlockCache StepReads::block_cache(PageCache::Readers readers) const {
  return cache_.page_cache == nullptr ? BlockCache{} : cache_.page_cache->view(readers);
}

void StepReads::CountCachedTokens(int64_t tokens) {
  if (cache_.page_cache != nullptr) cache_.page_cache->CountTokens(tokens);
}

void StepReads::LetLinesGo() {
  if (cache_.page_cache != nullptr) cache_.page_cache->LetLinesGo();
}

void StepReads::AwaitInPlace(std::span<const SlabRead> reads) {
  Fence written;
  for (const SlabRead& read : reads) {
    const Slab& slab = (*cache_.slabs)[FindSlab(read)->slab];
    // Summaries are the compute lane's own.
    if (slab.tier != Tier::kDisk) written.Join(slab.written);
  }
  cache_.lanes.Wait(Lane::kCompute, written);
}

void StepReads::FinishInPlace(std::span<const SlabRead> reads) {
  const int64_t done = cache_.lanes.Soon(Lane::kCompute);
  for (const SlabRead& read : reads) {
    (*cache_.slabs)[FindSlab(read)->slab].used.Add(Lane::kCompute, done);
  }
}

bool StepReads::AllOnDevice() const {
  const auto elsewhere = [&](SlabKind kind) {
    return cache_.slabs->Count(kind, Tier::kHost) + cache_.slabs->Count(kind, Tier::kDisk);
  };
  return elsewhere(SlabKind::kKeysValues) + elsewhere(SlabKind::kX) == 0;
}

std::span<const ResidentRange> StepReads::RangesOnDevice(int entry, int layer) {
  const int place = PlaceOfEntry(entry);
  return resident_.Of(sequences_.at(place), place, layer);
}

void StepReads::FinishOnDevice() { cache_.slabs->WereRead(cache_.lanes.Soon(Lane::kCompute)); }

bool StepReads::ReadsPages() const { return cache_.listed_pages != nullptr; }

std::span<std::byte* const> StepReads::PageFrames() const { return cache_.listed_pages->frames(); }

std::byte* StepReads::PageLists() const {
  return cache_.listed->data() + cache_.options.listed_slabs * cache_.format.slab_bytes();
}

void StepReads::AwaitCompute() {
  Fence so_far;
  so_far.Add(Lane::kCompute, cache_.lanes.Mark(Lane::kCompute));
  cache_.lanes.HostWait(so_far);
}

void StepReads::BeginPages(std::span<const PageRead> pages, std::vector<int>* places) {
  wanted_.clear();
  for (const PageRead& read : pages) {
    const Result<Found> found = FindSlab(read.slab);
    HEADWAY_CHECK(found.ok() && read.page < found->pages);
    Slab& slab = (*cache_.slabs)[found->slab];
    HEADWAY_CHECK(slab.held && slab.tier == Tier::kDisk);
    wanted_.push_back({&slab, read.page});
  }
  cache_.listed_pages->Begin(wanted_, places);
}

Status StepReads::AwaitPages() { return cache_.listed_pages->Await(); }

void StepReads::FinishPages() { cache_.listed_pages->Finish(); }

Status StepReads::HoldOnHost(std::span<const HostRead> reads) {
  if (places_.empty()) return Invalid("slabs are read within a step");
  for (const HostRead& read : reads) {
    const Result<Found> found = FindSlab(read.slab);
    if (!found.ok()) return found.status();
    const Slab& slab = (*cache_.slabs)[found->slab];
    if (slab.tier != Tier::kHost || slab.kind != SlabKind::kKeysValues || read.first_page < 0 ||
        read.first_page >= found->pages) {
      return Invalid("a slab that is not on the host cannot be read there");
    }
    Hold(found->slab);
  }
  return OkStatus();
}

Result<SlabView> StepReads::Next() { return reader_->Next(); }

void StepReads::Finish(const SlabView& view) { reader_->Finish(view); }

SlabPlace StepReads::PlaceOf(const SlabRead& slab) const {
  const Result<Found> found = FindSlab(slab);
  HEADWAY_CHECK(found.ok());
  const Slab& there = (*cache_.slabs)[found->slab];
  return {there.tier, found->pages, there.kind == SlabKind::kX,
          there.frames.summary != nullptr && there.summarised >= found->pages};
}

KeyRun StepReads::KeysOnHost(const HostRead& read) const {
  const Result<Found> found = FindSlab(read.slab);
  HEADWAY_CHECK(found.ok());
  const Slab& slab = (*cache_.slabs)[found->slab];
  HEADWAY_CHECK(slab.held && read.first_page < found->pages);
  KeyRun keys;
  keys.position = found->position + read.first_page * cache_.math.slots();
  keys.pages = RunIn(cache_.format, slab.data, read.first_page, found->pages - read.first_page);
  return keys;
}

void StepReads::RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                          std::function<Status()> work) {
  Fence queries, pages;
  queries.Add(Lane::kCompute, cache_.lanes.Mark(Lane::kCompute));
  for (const HostRead& read : reads) {
    pages.Join((*cache_.slabs)[FindSlab(read.slab)->slab].written);
  }
  // The queries first: to write new keys the compute lane has mostly waited for the copies of older
  // ones itself.
  cache_.lanes.Wait(Lane::kHostCompute, queries);
  cache_.lanes.Wait(Lane::kHostCompute, pages);
  cache_.lanes.stream(Lane::kHostCompute).HostWork(cost, std::move(work));
  const int64_t done = cache_.lanes.Mark(Lane::kHostCompute);
  for (const HostRead& read : reads) {
    (*cache_.slabs)[FindSlab(read.slab)->slab].used.Add(Lane::kHostCompute, done);
  }
}

void StepReads::AwaitHost() {
  Fence done;
  done.Add(Lane::kHostCompute, cache_.lanes.Soon(Lane::kHostCompute) - 1);
  cache_.lanes.Wait(Lane::kCompute, done);
}

Status StepReads::LaneStatus() const { return cache_.LaneStatus(); }

}  // namespace headway::kv
