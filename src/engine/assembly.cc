#include "engine/assembly.h"

#include <utility>

#include "plan/plan.h"

namespace headway {

Status Assembly::Build(const Layout& layout, std::shared_ptr<kv::SlabFile> session) {
  if (Status s = kernels->Prepare(layout.kernels, *device, *device_budget); !s.ok()) return s;
  Result<std::unique_ptr<Stream>> new_stream = device->NewStream(Lane::kCompute);
  if (!new_stream.ok()) return new_stream.status();
  compute = std::move(*new_stream);
  Result<std::unique_ptr<Lanes>> new_lanes =
      Lanes::Create(device.get(), compute.get(), wait_filter);
  if (!new_lanes.ok()) return new_lanes.status();
  lanes = std::move(*new_lanes);
  kv::StoreOptions options = layout.store;
  options.kernels = kernels.get();
  Result<std::unique_ptr<kv::Store>> new_store =
      kv::Store::Create(options, env, device.get(), lanes.get(),
                        layout.kept.has_value() ? nullptr : std::move(session));
  if (!new_store.ok()) return new_store.status();
  store = std::move(*new_store);
  // Where any layer streams, the last one does (StreamedLayers).
  if (model->Streams(model->shape().layers - 1)) {
    Result<std::unique_ptr<WeightStream>> stream = WeightStream::Create(
        {*model, *kernels, *device, *lanes, *device_budget, *host_budget}, plan::kWeightBuffers);
    if (!stream.ok()) return stream.status();
    weights = std::move(*stream);
  }
  if (layout.executor.stretch_tokens > 0) {
    Result<std::unique_ptr<HiddenStates>> states = HiddenStates::Create(
        {*device, *lanes, *device_budget, *options.host_budget}, model->shape(), layout.executor);
    if (!states.ok()) return states.status();
    hidden = std::move(*states);
  }
  if (layout.salience.has_value()) {
    if (Status s = BuildSalience(*layout.salience, options); !s.ok()) return s;
  }
  if (layout.kept.has_value() && layout.kept->evictor.heads.Shares()) {
    shared = std::make_unique<SharedHeads>(layout.kept->evictor.heads);
  }
  Result<std::unique_ptr<Executor>> made =
      Executor::Create({*model,
                        *kernels,
                        *device,
                        *compute,
                        *lanes,
                        *store,
                        *device_budget,
                        *memory_budget,
                        {host_attention.get(), &host_share, host_trace},
                        weights.get(),
                        hidden.get(),
                        salience.get(),
                        communicator,
                        by_layers,
                        nullptr,
                        shared.get(),
                        trace},
                       layout.executor);
  if (!made.ok()) return made.status();
  executor = std::move(*made);
  return layout.kept.has_value() ? BuildKept(*layout.kept, options, std::move(session))
                                 : OkStatus();
}

void Assembly::CountReads(Timings* timings) const {
  const kv::PageCache::Reads reads = store->PageCacheReads();
  const auto counts = [&](const kv::PageCache::Reads::Counts& of) {
    return PageCacheReads{of[BlockCache::kFound], of[BlockCache::kBrought], of[BlockCache::kPassed],
                          reads.BytesOf(of)};
  };
  timings->page_cache = counts(reads.decode);
  timings->prompts.page_cache = counts(reads.prompts);
  const kv::ListedPages::Reads pages = store->DiskPageReads();
  timings->disk_pages = {pages.found, pages.read, pages.bytes};
  const Result<ListedBlocks> listed = executor->listed();
  timings->listed = listed.ok() ? *listed : ListedBlocks{};
  const Result<ListedBlocks> of_prompts = executor->listed_of_prompts();
  timings->prompts.listed = of_prompts.ok() ? *of_prompts : ListedBlocks{};
  if (demoted != nullptr) {
    const Demoted::Reads& let_go = demoted->reads();
    timings->demoted = {let_go.steps, let_go.choices, let_go.bytes};
  }
  if (host_attention != nullptr) {
    const HostAttention::Bounded bounded = host_attention->bounded();
    timings->bounded = {bounded.heads, bounded.read_all};
  }
}

Status Assembly::BuildSalience(const SalienceLimits& limits, const kv::StoreOptions& options) {
  Result<std::unique_ptr<Salience>> made = Salience::Create(
      {*kernels, *device, *compute, *store, *device_budget,
       limits.on_host ? *options.host_budget : *options.device_budget, *memory_budget},
      limits);
  if (!made.ok()) return made.status();
  salience = std::move(*made);
  return OkStatus();
}

Status Assembly::BuildKept(const KeptLayout& layout, const kv::StoreOptions& prompts,
                           std::shared_ptr<kv::SlabFile> session) {
  kv::StoreOptions options = layout.store;
  options.kernels = kernels.get();
  options.device_budget = prompts.device_budget;
  options.host_budget = prompts.host_budget;
  options.bounce_budget = memory_budget;
  options.disk_budget = prompts.disk_budget;
  options.poison_freed = prompts.poison_freed;
  // Memory of a GPU takes too long to make once work has begun; elsewhere it is taken as it fills.
  if (prompts.device_slabs == 0 && prompts.host_slabs == 0) options.device_slabs = 0;
  Result<std::unique_ptr<kv::Store>> new_store =
      kv::Store::Create(options, env, device.get(), lanes.get(), std::move(session));
  if (!new_store.ok()) return new_store.status();
  kept_store = std::move(*new_store);
  if (layout.demoted.has_value()) {
    Result<std::unique_ptr<Demoted>> held = Demoted::Create(
        {*kernels, *device, *compute, *device_budget, *options.device_budget, *options.host_budget},
        *layout.demoted);
    if (!held.ok()) return held.status();
    demoted = std::move(*held);
  }
  Result<std::unique_ptr<Executor>> made = Executor::Create({*model,
                                                             *kernels,
                                                             *device,
                                                             *compute,
                                                             *lanes,
                                                             *kept_store,
                                                             *device_budget,
                                                             *memory_budget,
                                                             {},
                                                             weights.get(),
                                                             nullptr,
                                                             nullptr,
                                                             communicator,
                                                             by_layers,
                                                             demoted.get(),
                                                             shared.get(),
                                                             trace},
                                                            layout.executor);
  if (!made.ok()) return made.status();
  kept_executor = std::move(*made);
  EvictorLimits evicts = layout.evictor;
  evicts.host_reads_device = device->host_reads_memory();
  Result<std::unique_ptr<Evictor>> new_evictor = Evictor::Create(
      {*model, *kernels, *device, *compute, *executor, *store, *kept_store, *device_budget,
       *memory_budget, weights.get(), communicator, demoted.get(), shared.get()},
      evicts);
  if (!new_evictor.ok()) return new_evictor.status();
  evictor = std::move(*new_evictor);
  if (evicts.policy.adds_up()) {
    executor->OnStep([this](kv::SequenceId sequence, int64_t position) {
      return evictor->AddUp(sequence, position);
    });
  }
  return OkStatus();
}

}  // namespace headway
