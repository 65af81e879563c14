#include "kv/store/store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kv/store/store_impl.h"

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

std::vector<std::byte*> Slices(Buffer* buffer, int count, int64_t bytes) {
  std::vector<std::byte*> slices;
  for (int i = 0; i < count; ++i) slices.push_back(buffer->data() + i * bytes);
  return slices;
}

Status NoSuchSequence(SequenceId id) {
  return Status(StatusCode::kNotFound, "KV store: there is no sequence " + std::to_string(id));
}

}  // namespace

// --- Making

Store::Impl::Impl(const StoreOptions& store_options, Lanes* store_lanes,
                  std::unique_ptr<SlabFile> file, bool session)
    : options(store_options),
      format(options.format),
      layouts(LayoutsOf(format)),
      math(format),
      streaming_pages(format),
      is_session(session),
      lanes(*store_lanes),
      compute(&lanes.stream(Lane::kCompute)),
      disk(std::move(file), options.disk_budget, &lanes, format) {
  sequences.resize(static_cast<size_t>(options.max_sequences));
}

Store::Impl::~Impl() { lanes.Drain(); }

Status Store::Impl::AllocateStaging(Device* device) {
  Result<std::unique_ptr<Buffer>> slabs_on_device = device->Allocate(
      *options.device_budget, static_cast<size_t>(options.staging_slabs * format.slab_bytes()),
      "KV staging");
  if (!slabs_on_device.ok()) return slabs_on_device.status();
  staging = std::move(*slabs_on_device);
  if (format.keeps_x()) {
    Result<std::unique_ptr<Buffer>> on_device = device->Allocate(
        *options.device_budget,
        static_cast<size_t>(options.gathers * format.XBytes(options.gather_tokens)), "X staging");
    if (!on_device.ok()) return on_device.status();
    gathers = std::move(*on_device);
  }
  if (!disk.present() || options.bounce_slabs == 0) return OkStatus();
  Result<std::unique_ptr<Buffer>> slabs_on_host = device->AllocateHost(
      options.bounce_budget == nullptr ? *options.host_budget : *options.bounce_budget,
      static_cast<size_t>(options.bounce_slabs * format.slab_bytes()), "KV bounce buffers");
  if (!slabs_on_host.ok()) return slabs_on_host.status();
  bounce = std::move(*slabs_on_host);
  return OkStatus();
}

Status Store::Impl::MakePools(SlabKind kind, Device* device) {
  const SlabLayout& layout = Of(layouts, kind);
  if (!layout.kept) return OkStatus();
  const bool moves = !layout.home.has_value();
  if (moves) {
    auto& on_device = Of(pools, kind)[static_cast<size_t>(Tier::kDevice)];
    on_device = std::make_unique<FramePool>(Tier::kDevice, device, options.device_budget,
                                            layout.slab_bytes, poison.get());
    Status room = on_device->Preallocate(options.device_slabs);
    if (!room.ok()) return room;
  }
  auto& on_host = Of(pools, kind)[static_cast<size_t>(Tier::kHost)];
  on_host = std::make_unique<FramePool>(Tier::kHost, device, options.host_budget, layout.slab_bytes,
                                        poison.get());
  if (options.alias_host_slabs > 0) return on_host->PreallocateAliased(options.alias_host_slabs);
  return on_host->Preallocate(moves ? options.host_slabs : options.x_slabs);
}

SlabHomes Store::Impl::HomesOf(SlabKind kind) {
  const SlabLayout& layout = Of(layouts, kind);
  SlabHomes homes;
  homes.device = Of(pools, kind)[static_cast<size_t>(Tier::kDevice)].get();
  homes.host = Of(pools, kind)[static_cast<size_t>(Tier::kHost)].get();
  homes.disk = &disk;
  homes.placement =
      layout.home.has_value() ? Placement::Fixed(*layout.home) : Placement::Make(options.placement);
  return homes;
}

Status Store::Impl::Allocate(Device* device) {
  Result<std::unique_ptr<StepBuffers>> made =
      StepBuffers::Create(format, layouts, {options.max_step_tokens, options.max_sequences}, device,
                          options.device_budget);
  if (!made.ok()) return made.status();
  buffers = std::move(*made);
  Result<std::unique_ptr<StreamingHeads>> heads =
      StreamingHeads::Create(format, options.max_sequences, device, options.device_budget);
  if (!heads.ok()) return heads.status();
  streaming = std::move(*heads);
  Status status = AllocateStaging(device);
  if (!status.ok()) return status;
  if (options.poison_freed) {
    int64_t largest = std::max(streaming->place_bytes(), format.XBytes(options.gather_tokens));
    for (const SlabKind kind : kAllSlabKinds) {
      if (!Of(layouts, kind).kept) continue;
      const OpenPages& pages = buffers->of(kind);
      largest = std::max({largest, Of(layouts, kind).slab_bytes, pages.open_place_bytes(),
                          pages.append_half_bytes()});
    }
    Result<std::unique_ptr<Poison>> filler = Poison::Create(device, &lanes, largest);
    if (!filler.ok()) return filler.status();
    poison = std::move(*filler);
  }
  PerSlabKind<SlabHomes> homes;
  for (const SlabKind kind : kAllSlabKinds) {
    status = MakePools(kind, device);
    if (!status.ok()) return status;
    Of(homes, kind) = HomesOf(kind);
  }
  mover.emplace(
      &lanes, &disk,
      Slices(bounce.get(), bounce == nullptr ? 0 : options.bounce_slabs, format.slab_bytes()));
  slabs.emplace(format, layouts, std::move(homes), &lanes, &*mover);
  slabs->set_keep_disk_copies(is_session);
  const int64_t gather_bytes = format.XBytes(options.gather_tokens);
  const ReadBuffers read_buffers = {
      Slices(staging.get(), options.staging_slabs, format.slab_bytes()),
      Slices(gathers.get(), gathers == nullptr ? 0 : options.gathers, gather_bytes),
      options.gather_tokens / math.slots(), gather_bytes};
  reader.emplace(format, &lanes, &*mover, &*slabs, read_buffers, poison.get());
  return OkStatus();
}

Result<std::unique_ptr<Store>> Store::Create(const StoreOptions& options, Env* env, Device* device,
                                             Lanes* lanes, std::unique_ptr<SlabFile> session) {
  Status status = CheckOptions(options);
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
  auto impl = std::make_unique<Impl>(options, lanes, std::move(session), is_session);
  status = impl->Allocate(device);
  if (!status.ok()) return status;
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

void Store::Drain() { impl_->lanes.Drain(); }
Lanes& Store::lanes() { return impl_->lanes; }

// --- Sequences

const Sequence* Store::Impl::Find(SequenceId id) const {
  if (id < 0) return nullptr;
  for (const Sequence& sequence : sequences) {
    if (sequence.id == id) return &sequence;
  }
  return nullptr;
}

Sequence* Store::Impl::Find(SequenceId id) {
  return const_cast<Sequence*>(std::as_const(*this).Find(id));
}

int Store::Impl::FreePlace() const {
  for (const Sequence& sequence : sequences) {
    if (sequence.id < 0) return PlaceOf(sequence);
  }
  return -1;
}

void Store::Impl::Begin(Sequence& sequence) {
  sequence.id = next_id++;
  sequence.length = 0;
  sequence.x_segments = 0;
  sequence.tables = PageTables(format, PageTables::Sharing::kLayer);
  sequence.recent_first = streaming_pages.sink();
  sequence.recent_area = 0;
}

void Store::Impl::Cut(Sequence& sequence, int64_t tokens) {
  const int64_t pages = math.ClosedPages(tokens);
  const int segments = math.Segments(pages);
  for (PageTable& table : sequence.tables.all()) {
    table.Resize(std::min(segments, table.segments()), Releaser());
    table.set_pages(std::min(pages, table.pages()));
    const int last = table.segments() - 1;
    for (int group = table.groups().first; last >= 0 && group < table.groups().last; ++group) {
      const SlabId id = table.slab(group, last);
      if (id != kNoSlab && (*slabs)[id].refs == 1) slabs->Cut(id, table.PagesIn(last));
    }
  }
  sequence.recent_first = std::min(sequence.recent_first, std::max(streaming_pages.sink(), pages));
  sequence.length = tokens;
}

void Store::Impl::DropSequence(Sequence& sequence) {
  Cut(sequence, 0);
  sequence.id = -1;
  if (poison == nullptr) return;
  // One fence for the whole place: the poison waits for the last reader of any layer.
  Fence used;
  used.Add(Lane::kCompute, lanes.Soon(Lane::kCompute));
  const int place = PlaceOf(sequence);
  for (int layer = 0; layer < format.layers; ++layer) used.Join(buffers->open_fence(place, layer));
  for (const SlabKind kind : kAllSlabKinds) {
    if (!Of(layouts, kind).kept) continue;
    const OpenPages& pages = buffers->of(kind);
    poison->Fill(pages.Open(place, 0, 0), pages.open_place_bytes(), &used);
  }
  if (streaming->place_bytes() > 0) {
    poison->Fill(streaming->Place(place), streaming->place_bytes(), &used);
  }
  for (int layer = 0; layer < format.layers; ++layer) buffers->open_fence(place, layer).Join(used);
}

Status Store::Impl::RefuseInStep(const char* what) const {
  if (!in_step) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                "KV store: " + std::string(what) + " while a step is in progress");
}

Result<SequenceId> Store::CreateSequence(int x_segments) {
  if (x_segments < 0 || (x_segments > 0 && !impl_->format.keeps_x())) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: " + std::to_string(x_segments) +
                      " segments of a sequence cannot keep what they are recomputed from");
  }
  const int place = impl_->FreePlace();
  if (place < 0) {
    return Status(StatusCode::kOutOfBudget,
                  "KV store: all " + std::to_string(impl_->options.max_sequences) +
                      " sequences are in use; drop one, or make the store for more");
  }
  Sequence& sequence = impl_->sequences[static_cast<size_t>(place)];
  impl_->Begin(sequence);
  sequence.x_segments = x_segments;
  return sequence.id;
}

Result<SequenceId> Store::Fork(SequenceId id) {
  Status status = impl_->RefuseInStep("a sequence cannot be forked");
  if (!status.ok()) return status;
  if (impl_->Find(id) == nullptr) return NoSuchSequence(id);
  Result<SequenceId> made = CreateSequence();
  if (!made.ok()) return made;
  const Sequence& from = *impl_->Find(id);
  Sequence& to = *impl_->Find(*made);
  to.length = from.length;
  to.x_segments = from.x_segments;
  to.tables = from.tables;
  to.recent_first = from.recent_first;
  to.recent_area = from.recent_area;
  for (const PageTable& table : to.tables.all()) {
    table.ForEachSlab([&](int, int, SlabId slab) { impl_->slabs->AddRef(slab); });
  }
  const int64_t open = from.length % impl_->math.slots();
  const int64_t streaming_bytes = impl_->streaming->place_bytes();
  if (open == 0 && streaming_bytes == 0) return made;
  StepBuffers& buffers = *impl_->buffers;
  const int from_place = impl_->PlaceOf(from), to_place = impl_->PlaceOf(to);
  for (int layer = 0; layer < impl_->format.layers; ++layer) {
    impl_->lanes.Wait(Lane::kCompute, buffers.open_fence(from_place, layer));
    impl_->lanes.Wait(Lane::kCompute, buffers.open_fence(to_place, layer));
  }
  for (const SlabKind kind : kAllSlabKinds) {
    if (!to.Keeps(kind)) continue;
    const OpenPages& pages = buffers.of(kind);
    impl_->compute->Copy(pages.Open(to_place, 0, 0), pages.Open(from_place, 0, 0),
                         static_cast<size_t>(pages.open_place_bytes()));
  }
  if (streaming_bytes > 0) {
    impl_->compute->Copy(impl_->streaming->Place(to_place), impl_->streaming->Place(from_place),
                         static_cast<size_t>(streaming_bytes));
  }
  return made;
}

void Store::Drop(SequenceId id) {
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr) return;
  if (impl_->in_step) {
    for (const Impl::Entry& entry : impl_->entries) {
      HEADWAY_CHECK(entry.place != impl_->PlaceOf(*sequence));
    }
  }
  impl_->DropSequence(*sequence);
}

int64_t Store::Length(SequenceId id) const {
  const Sequence* sequence = impl_->Find(id);
  return sequence == nullptr ? 0 : sequence->length;
}

Result<int64_t> Store::Truncate(SequenceId id, int64_t tokens) {
  Status status = impl_->RefuseInStep("a sequence cannot be truncated");
  if (!status.ok()) return status;
  Sequence* sequence = impl_->Find(id);
  if (sequence == nullptr) return NoSuchSequence(id);
  if (tokens < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: a sequence cannot be truncated to " + std::to_string(tokens));
  }
  const int64_t keep = impl_->math.ClosedTokens(std::min(tokens, sequence->length));
  const int segments = impl_->math.Segments(impl_->math.ClosedPages(keep));
  for (int layer = 0; layer < impl_->format.layers; ++layer) {
    const int needed = impl_->math.FirstKept(layer, keep);
    for (const PageTable& table : sequence->tables.of_layer(layer)) {
      if (needed >= segments || needed >= table.first_kept()) continue;
      return Status(StatusCode::kNotFound,
                    "KV store: the first " + std::to_string(keep) +
                        " tokens cannot be gone back to: the sliding window of layer " +
                        std::to_string(layer) + " has let go of pages that they need");
    }
  }
  const int64_t pages = impl_->math.ClosedPages(keep);
  const int64_t needed = impl_->streaming_pages.FirstVisible(keep);
  if (impl_->streaming->place_bytes() > 0 && needed < pages && needed < sequence->recent_first) {
    return Status(StatusCode::kNotFound,
                  "KV store: the first " + std::to_string(keep) +
                      " tokens cannot be gone back to: the streaming heads have let go of pages "
                      "that they need");
  }
  impl_->Cut(*sequence, keep);
  return keep;
}

int64_t Store::Impl::StreamingPagesOf(const Sequence& sequence) const {
  const int64_t closed = math.ClosedPages(sequence.length);
  return std::min(closed, streaming_pages.sink()) +
         std::max<int64_t>(0, closed - sequence.recent_first);
}

TierUsage Store::Usage(Tier tier) const {
  TierUsage usage;
  for (const SlabKind kind : kAllSlabKinds) {
    const int64_t count = impl_->slabs->Count(kind, tier);
    usage.slabs += count;
    usage.bytes += count * Of(impl_->layouts, kind).slab_bytes;
  }
  usage.tokens_bytes = impl_->slabs->PageBytes(tier);
  if (tier != Tier::kDevice) return usage;
  for (const Sequence& sequence : impl_->sequences) {
    if (sequence.id < 0) continue;
    usage.bytes += impl_->streaming->place_bytes();
    usage.tokens_bytes += 2 * impl_->format.pattern.StreamingHeads() *
                          impl_->StreamingPagesOf(sequence) *
                          static_cast<int64_t>(impl_->format.page.bytes());
  }
  return usage;
}

const CacheFormat& Store::format() const { return impl_->format; }

bool Store::has_session() const { return impl_->is_session; }

}  // namespace headway::kv
