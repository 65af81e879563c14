#include "kv/store/store.h"

#include <utility>

#include "base/check.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/store/kept_heads.h"
#include "kv/store/session_keeper.h"

namespace headway::kv {
struct Store::Impl {
  explicit Impl(std::unique_ptr<Cache> made)
      : cache(std::move(made)),
        sequences(cache.get()),
        reads(cache.get(), &sequences),
        step(cache.get(), &sequences, &reads),
        kept(cache.get(), &sequences),
        session(cache.get(), &sequences, &reads) {}

  const std::unique_ptr<Cache> cache;
  Sequences sequences;
  StepReads reads;
  Step step;
  KeptHeads kept;
  SessionKeeper session;
};

// --- Making

Result<std::unique_ptr<Store>> Store::Create(const StoreOptions& options, Env* env, Device* device,
                                             Lanes* lanes, std::shared_ptr<SlabFile> session) {
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
  if (is_session && !SameFormat(session->format(), SessionFormatOf(options))) {
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
const CacheFormat& Store::format() const { return impl_->cache->format; }

int64_t Store::Bytes(Tier tier) const {
  const Cache& cache = *impl_->cache;
  int64_t bytes = tier == Tier::kDevice ? impl_->sequences.StreamingBytes() : 0;
  for (const SlabKind kind : kAllSlabKinds) {
    bytes += cache.slabs->Count(kind, tier) * Of(cache.layouts, kind).slab_bytes;
  }
  return bytes;
}

TierUsage Store::Usage(Tier tier) const {
  const Slabs& slabs = *impl_->cache->slabs;
  TierUsage usage = {.bytes = Bytes(tier), .tokens_bytes = slabs.PageBytes(tier)};
  for (const SlabKind kind : kAllSlabKinds) usage.slabs += slabs.Count(kind, tier);
  if (tier == Tier::kDevice) usage.tokens_bytes += impl_->sequences.StreamingTokenBytes();
  return usage;
}

PageCache::Reads Store::PageCacheReads() const {
  const Cache& cache = *impl_->cache;
  return cache.page_cache == nullptr ? PageCache::Reads{} : cache.page_cache->Count(*cache.compute);
}

ListedPages::Reads Store::DiskPageReads() const {
  const Cache& cache = *impl_->cache;
  return cache.listed_pages == nullptr ? ListedPages::Reads{} : cache.listed_pages->reads();
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
  HEADWAY_CHECK(!impl_->step.Has(id));
  impl_->sequences.DropSequence(*sequence);
}

int64_t Store::Length(SequenceId id) const {
  const Sequence* sequence = std::as_const(impl_->sequences).Find(id);
  return sequence == nullptr ? 0 : sequence->length;
}

int64_t Store::LengthIn(SequenceId id, int layer) const {
  const Sequence* sequence = std::as_const(impl_->sequences).Find(id);
  return sequence == nullptr ? 0 : sequence->LengthIn(layer);
}

Status Store::BeginStretch(SequenceId sequence, int64_t tokens) {
  Status status = impl_->step.Refuse("a stretch cannot begin");
  return status.ok() ? impl_->sequences.BeginStretch(sequence, tokens) : status;
}

void Store::GiveUpStretches() {
  HEADWAY_CHECK(impl_->step.Refuse("").ok());
  impl_->sequences.GiveUpStretches();
}

Result<int64_t> Store::Truncate(SequenceId sequence, int64_t tokens) {
  Status status = impl_->step.Refuse("a sequence cannot be truncated");
  if (!status.ok()) return status;
  return impl_->sequences.Truncate(sequence, tokens);
}

Status Store::TakeBack(SequenceId sequence, int64_t tokens) {
  Status status = impl_->step.Refuse("tokens cannot be taken back");
  return status.ok() ? impl_->sequences.TakeBack(sequence, tokens) : status;
}

// --- Eviction

Result<std::vector<KeyRun>> Store::KeysOf(SequenceId sequence, int layer, int head, int64_t from) {
  Status status = impl_->step.Refuse("a sequence's keys cannot be read");
  if (!status.ok()) return status;
  return impl_->kept.KeysOf(sequence, layer, head, from);
}

void Store::FinishKeys(SequenceId sequence, int layer, int head) {
  impl_->kept.FinishKeys(sequence, layer, head);
}

Result<SequenceId> Store::CreateKept(int64_t length) { return impl_->kept.Create(length); }

Status Store::Keep(SequenceId sequence, int layer, int head, KeptTokens tokens,
                   const ClosedRows& rows) {
  Status status = impl_->step.Refuse("a sequence cannot be given tokens");
  return status.ok() ? impl_->kept.Keep(sequence, layer, head, std::move(tokens), rows) : status;
}

int32_t* Store::unfit() const { return impl_->cache->buffers->unfit(); }

bool Store::HasUnfitPages() const { return impl_->cache->HasUnfitPages(); }

PageRun Store::OpenPageOf(SequenceId sequence, int layer, int head) {
  return impl_->kept.OpenPageOf(sequence, layer, head);
}

// --- A step

Step& Store::step() { return impl_->step; }
StepReads& Store::reads() { return impl_->reads; }

// --- Sessions

Status Store::Save(SequenceId sequence, std::span<const TokenId> tokens, Manifest meta) {
  Status status = impl_->step.Refuse("a session cannot be saved");
  if (!status.ok()) return status;
  const Result<Manifest> written = impl_->session.Write(sequence, tokens, std::move(meta));
  return written.ok() ? impl_->session.Commit(*written) : written.status();
}

Result<Manifest> Store::WriteSession(SequenceId sequence, std::span<const TokenId> tokens,
                                     Manifest meta) {
  Status status = impl_->step.Refuse("a session cannot be saved");
  if (!status.ok()) return status;
  return impl_->session.Write(sequence, tokens, std::move(meta));
}

Status Store::CommitSession(const Manifest& manifest) { return impl_->session.Commit(manifest); }

Result<SequenceId> Store::Restore() {
  Status status = impl_->step.Refuse("a session cannot be restored");
  if (!status.ok()) return status;
  return impl_->session.Restore();
}

Status Store::BringUp(SequenceId sequence, const SlotAngles& angles, WithoutRoom rest,
                      const UpProgress& progress) {
  Status status = impl_->step.Refuse("slabs cannot be brought up");
  return status.ok() ? impl_->session.BringUp(sequence, angles, rest, progress) : status;
}

bool Store::has_session() const { return impl_->cache->disk.holds_session(); }

}  // namespace headway::kv
