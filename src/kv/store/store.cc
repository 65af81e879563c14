#include "kv/store/store.h"

#include <utility>

#include "base/check.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/step/step.h"
#include "kv/store/session_keeper.h"

namespace headway::kv {
namespace {

bool SameFormat(const CacheFormat& a, const CacheFormat& b) {
  for (int layer = 0; layer < a.layers; ++layer) {
    if (a.layers == b.layers && a.WindowOf(layer) != b.WindowOf(layer)) return false;
  }
  return a.layers == b.layers && a.kv_heads == b.kv_heads && a.page.dtype == b.page.dtype &&
         a.page.encoding == b.page.encoding && a.page.page_slots == b.page.page_slots &&
         a.page.head_dim == b.page.head_dim && a.group_heads == b.group_heads &&
         a.segment_pages == b.segment_pages && a.pattern == b.pattern;
}

}  // namespace

struct Store::Impl {
  explicit Impl(std::unique_ptr<Cache> made)
      : cache(std::move(made)),
        sequences(cache.get()),
        step(cache.get(), &sequences),
        session(cache.get(), &sequences) {}

  const std::unique_ptr<Cache> cache;
  Sequences sequences;
  Step step;
  SessionKeeper session;
};

// --- Making

Result<std::unique_ptr<Store>> Store::Create(const StoreOptions& options, Env* env, Device* device,
                                             Lanes* lanes, std::unique_ptr<SlabFile> session) {
  Status status = CheckStoreOptions(options);
  if (!status.ok()) return status;
  const bool has_disk = session != nullptr || !options.disk_directory.empty();
  if (has_disk && (options.bounce_slabs < 1 || options.disk_budget == nullptr)) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: a disk tier needs a disk budget and at least one bounce slab");
  }
  if (!has_disk && options.placement == PlacementKind::kDiskOnly) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: placement on disk needs a directory or a session for the disk tier");
  }
  const bool is_session = session != nullptr;
  if (is_session && !SameFormat(session->format(), options.format)) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: the session's pages, head groups or segments are laid out otherwise "
                  "than this cache; use the settings that it was saved with");
  }
  if (is_session && options.format.pattern.StreamingHeads() > 0) {
    return Status(StatusCode::kUnsupported,
                  "KV store: a session cannot keep streaming heads; leave out one of the two");
  }
  if (is_session && options.format.keeps_x()) {
    return Status(StatusCode::kUnsupported,
                  "KV store: a session keeps keys and values, not what they are recomputed from; "
                  "leave out one of the two");
  }
  if (has_disk && !is_session) {
    Result<std::unique_ptr<SlabFile>> file =
        SlabFile::CreateTemporary(env, options.disk_directory, options.format, options.disk_budget);
    if (!file.ok()) return file.status();
    session = std::move(*file);
  }
  Result<std::unique_ptr<Cache>> cache = Cache::Create(options, device, lanes, std::move(session));
  if (!cache.ok()) return cache.status();
  return std::unique_ptr<Store>(new Store(std::make_unique<Impl>(std::move(*cache))));
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

void Store::Drain() { impl_->cache->lanes.Drain(); }
Lanes& Store::lanes() { return impl_->cache->lanes; }
Status Store::LaneStatus() { return impl_->cache->LaneStatus(); }
const CacheFormat& Store::format() const { return impl_->cache->format; }

TierUsage Store::Usage(Tier tier) const {
  const Cache& cache = *impl_->cache;
  TierUsage usage;
  for (const SlabKind kind : kAllSlabKinds) {
    const int64_t count = cache.slabs->Count(kind, tier);
    usage.slabs += count;
    usage.bytes += count * Of(cache.layouts, kind).slab_bytes;
  }
  usage.tokens_bytes = cache.slabs->PageBytes(tier);
  if (tier == Tier::kDevice) {
    usage.bytes += impl_->sequences.StreamingBytes();
    usage.tokens_bytes += impl_->sequences.StreamingTokenBytes();
  }
  return usage;
}

// --- Sequences

Result<SequenceId> Store::CreateSequence(int x_segments) {
  return impl_->sequences.Create(x_segments);
}

Result<SequenceId> Store::Fork(SequenceId sequence) {
  Status status = impl_->step.Refuse("a sequence cannot be forked");
  if (!status.ok()) return status;
  return impl_->sequences.Fork(sequence);
}

void Store::Drop(SequenceId id) {
  Sequence* sequence = impl_->sequences.Find(id);
  if (sequence == nullptr) return;
  HEADWAY_CHECK(!impl_->step.Has(impl_->sequences.PlaceOf(*sequence)));
  impl_->sequences.DropSequence(*sequence);
}

int64_t Store::Length(SequenceId id) const {
  const Sequence* sequence = std::as_const(impl_->sequences).Find(id);
  return sequence == nullptr ? 0 : sequence->length;
}

Result<int64_t> Store::Truncate(SequenceId sequence, int64_t tokens) {
  Status status = impl_->step.Refuse("a sequence cannot be truncated");
  if (!status.ok()) return status;
  return impl_->sequences.Truncate(sequence, tokens);
}

// --- A step

Status Store::BeginStep(std::span<const StepEntry> entries) { return impl_->step.Begin(entries); }
PageRun Store::Target(int entry, int layer, int group) {
  return impl_->step.Target(entry, layer, group);
}
std::byte* Store::XTarget(int entry, int layer) { return impl_->step.XTarget(entry, layer); }
KeyRun Store::Tail(int entry, int layer, int group) {
  return impl_->step.Tail(entry, layer, group);
}
std::array<StreamingRange, 5> Store::StreamingRanges(int entry, int layer) {
  return impl_->step.StreamingRanges(entry, layer);
}
SegmentSpan Store::Segments(int entry, int layer) const {
  return impl_->step.Segments(entry, layer);
}
void Store::CloseLayer(int layer) { impl_->step.CloseLayer(layer); }
Status Store::EndStep() { return impl_->step.End(); }
void Store::AbortStep() { impl_->step.Abort(); }

// --- Reading

Status Store::Announce(std::span<const SlabRead> reads) { return impl_->step.Announce(reads); }
Status Store::HoldOnHost(std::span<const HostRead> reads) { return impl_->step.HoldOnHost(reads); }
Status Store::BeginReads(const std::vector<SlabRead>& order, std::span<const HostRead> on_host) {
  return impl_->step.BeginReads(order, on_host);
}
Result<SlabView> Store::NextRead() { return impl_->step.NextRead(); }
void Store::FinishRead(const SlabView& view) { impl_->step.FinishRead(view); }

SlabPlace Store::PlaceOf(const SlabRead& slab) const { return impl_->step.PlaceOf(slab); }
KeyRun Store::KeysOnHost(const HostRead& read) const { return impl_->step.KeysOnHost(read); }
void Store::RunOnHost(std::span<const HostRead> reads, const WorkCost& cost,
                      std::function<Status()> work) {
  impl_->step.RunOnHost(reads, cost, std::move(work));
}
void Store::AwaitHost() { impl_->step.AwaitHost(); }

// --- Sessions

Status Store::Save(SequenceId sequence, std::span<const TokenId> tokens, Manifest meta) {
  Status status = impl_->step.Refuse("a session cannot be saved");
  return status.ok() ? impl_->session.Save(sequence, tokens, std::move(meta)) : status;
}

Result<SequenceId> Store::Restore() {
  Status status = impl_->step.Refuse("a session cannot be restored");
  if (!status.ok()) return status;
  return impl_->session.Restore();
}

bool Store::has_session() const { return impl_->cache->disk.holds_session(); }

}  // namespace headway::kv
