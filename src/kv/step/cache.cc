#include "kv/step/cache.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/bytes.h"
#include "headway/refusal.h"

namespace headway::kv {
namespace {

std::vector<std::byte*> Slices(Buffer* buffer, int count, int64_t bytes) {
  std::vector<std::byte*> slices;
  for (int i = 0; i < count; ++i) slices.push_back(buffer->data() + i * bytes);
  return slices;
}

}  // namespace

Cache::Cache(const StoreOptions& store_options, Lanes* store_lanes, std::shared_ptr<SlabFile> file)
    : options(store_options),
      format(options.format),
      layouts(LayoutsOf(format)),
      math(format),
      streaming_pages(format),
      lanes(*store_lanes),
      compute(&lanes.stream(Lane::kCompute)),
      disk(std::move(file), options.disk_budget, &lanes, format) {}

Cache::~Cache() { lanes.Drain(); }

Result<std::unique_ptr<Cache>> Cache::Create(const StoreOptions& options, Device* device,
                                             Lanes* lanes, std::shared_ptr<SlabFile> file) {
  std::unique_ptr<Cache> cache(new Cache(options, lanes, std::move(file)));
  Status status = cache->Allocate(device);
  if (!status.ok()) return status;
  return cache;
}

Status Cache::AllocateStaging(Device* device) {
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
  Budget& budget = options.bounce_budget == nullptr ? *options.host_budget : *options.bounce_budget;
  Result<std::unique_ptr<Buffer>> slabs_on_host = device->AllocateHost(
      budget, static_cast<size_t>(options.bounce_slabs * format.slab_bytes()), "KV bounce buffers");
  if (!slabs_on_host.ok()) return slabs_on_host.status();
  bounce = std::move(*slabs_on_host);
  if (options.listed_slabs == 0) return OkStatus();
  const int64_t pages = options.listed_slabs * format.slab_bytes();
  Result<std::unique_ptr<Buffer>> of_pages = device->AllocateHost(
      budget, static_cast<size_t>(pages + options.list_bytes), "KV listed pages");
  if (!of_pages.ok()) return of_pages.status();
  listed = std::move(*of_pages);
  listed_pages = std::make_unique<ListedPages>(
      format, &lanes, &disk, Slices(listed.get(), options.listed_slabs, format.slab_bytes()));
  return OkStatus();
}

Status Cache::MakePools(SlabKind kind, Device* device) {
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

SlabHomes Cache::HomesOf(SlabKind kind) {
  const SlabLayout& layout = Of(layouts, kind);
  SlabHomes homes;
  homes.device = Of(pools, kind)[static_cast<size_t>(Tier::kDevice)].get();
  homes.host = Of(pools, kind)[static_cast<size_t>(Tier::kHost)].get();
  homes.disk = &disk;
  const int64_t sink_segments = CeilDiv(options.sink_tokens, format.segment_tokens());
  homes.placement = layout.home.has_value()
                        ? Placement::Fixed(*layout.home)
                        : Placement::Make(options.placement, static_cast<int>(sink_segments));
  return homes;
}

Status Cache::Allocate(Device* device) {
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
    int64_t largest = std::max({streaming->place_bytes(), format.XBytes(options.gather_tokens),
                                format.summary_bytes(), format.sketch_bytes()});
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
  if (format.summary.kept()) {
    const bool on_host = options.sketches == Tier::kHost;
    const Summaries::SketchHome home = {options.sketches,
                                        on_host ? options.host_budget : options.device_budget};
    summaries = std::make_unique<Summaries>(format, &lanes, device, options.device_budget, home,
                                            poison.get());
    status = summaries->Preallocate(options.summary_frames);
    if (!status.ok()) return status;
  }
  if (options.page_cache_bytes > 0) {
    Result<std::unique_ptr<PageCache>> cache =
        PageCache::Create(format, options.page_cache_bytes, device, options.device_budget);
    if (!cache.ok()) return cache.status();
    page_cache = std::move(*cache);
  }
  mover.emplace(
      &lanes, &disk,
      Slices(bounce.get(), bounce == nullptr ? 0 : options.bounce_slabs, format.slab_bytes()));
  slabs.emplace(format, layouts, std::move(homes), summaries.get(), &lanes, &*mover);
  return OkStatus();
}

ReadBuffers Cache::BuffersOfReads() const {
  const int64_t gather_bytes = format.XBytes(options.gather_tokens);
  return {Slices(staging.get(), options.staging_slabs, format.slab_bytes()),
          Slices(gathers.get(), gathers == nullptr ? 0 : options.gathers, gather_bytes),
          options.gather_tokens / math.slots(), gather_bytes};
}

bool Cache::HasUnfitPages() const {
  int32_t* const unfit = buffers->unfit();
  return unfit != nullptr && std::atomic_ref<int32_t>(*unfit).load(std::memory_order_relaxed) != 0;
}

Status Cache::LaneStatus() {
  const Status status = lanes.status();
  if (!status.ok()) {
    return status.Within(
        {"an earlier error has ended this context; open it again (what its session saved before is "
         "kept): "});
  }
  if (!HasUnfitPages()) return OkStatus();
  return Status(
      StatusCode::kUnsupported,
      Refusal{{"the numbers of some keys or values do not fit lossless pages, and without "
               "them the text cannot go on; run it with ",
               Option::kKvEncoding, " none (what its session saved before is kept)"}});
}

}  // namespace headway::kv
