#include "engine/context.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/draft_settings.h"
#include "engine/found_shares.h"
#include "engine/orders.h"
#include "kernels/cpu/cpu_kernels.h"

namespace headway {
namespace {

// What streamed weights leave of a limit.
int64_t Behind(int64_t limit, int64_t weights) {
  return limit == kNoLimit ? limit : limit - weights;
}

}  // namespace

int HostThreads(const hardware::Target& target, int threads, CoresBeside beside) {
  // Kernels have cores of their own. Beside an accelerator one core is left to the threads that
  // feed it: without it copies come late.
  if (beside == CoresBeside::kKernels) return std::max(1, threads / 2);
  const bool given = target.threads.has_value() && !target.shares_every_core;
  return given ? threads : std::max(1, threads - 1);
}

Context::Impl::Impl(const ContextParts& p)
    : parts(p),
      processes(p.processes),
      kv_budget(Option::kKvMemory, p.settings->memory.kv, p.device_budget),
      host_budget(Option::kHostMemory, Behind(p.settings->memory.host, p.host_weights)),
      disk_budget(Option::kDiskMemory, Behind(DiskLimit(p), p.disk_weights)),
      memory_budget("memory", kNoLimit),
      pool(p.settings->target.pool_threads()) {
  for (Assembly* const each : {&assembly, &draft_assembly}) {
    each->env = p.env;
    each->device_budget = p.device_budget == nullptr ? &memory_budget : p.device_budget;
    each->host_budget = &host_budget;
    each->memory_budget = &memory_budget;
  }
  assembly.model = p.model;
  assembly.communicator = p.communicator;
  assembly.by_layers = p.settings->layer_ranks > 1;
  draft_assembly.model = p.draft;
}

Context::Impl::~Impl() {
  if (generator != nullptr && !found_key.empty()) {
    (void)Guarded([this] {
      KeepFound(*parts.env, found_key, FoundIn(assembly.store->PageCacheReads()));
      return OkStatus();
    });
  }
  if (!parts.settings->trace.has_value() || generator == nullptr) return;
  Status written = Guarded([&] { return trace.Write(*parts.env, *parts.settings->trace); });
  if (!written.ok()) {
    Log(LogLevel::kWarning, "the trace was not written: " + written.message());
  }
}

Result<std::unique_ptr<Context::Impl>> Context::Impl::Create(
    const ContextParts& parts, const Blueprint& blueprint, const PlanReport& report,
    std::unique_ptr<kv::SessionClaim> claim) {
  auto impl = std::make_unique<Impl>(parts);
  impl->plan = report;
  if (Status s = impl->Build(blueprint, std::move(claim)); !s.ok()) return s;
  return impl;
}

Status Context::Impl::GoOnPlain(std::unique_ptr<Impl>* impl, PlainContext plain) {
  ContextParts parts = (*impl)->parts;
  parts.settings = plain.settings;
  parts.plain = nullptr;
  impl->reset();
  Result<std::unique_ptr<Impl>> made = Create(parts, plain.blueprint, plain.report, nullptr);
  if (made.ok()) {
    *impl = std::move(*made);
    return OkStatus();
  }
  *impl = std::make_unique<Impl>(parts);
  (*impl)->broken = made.status();
  return made.status();
}

Status Context::Impl::MakeHostAttention(const Blueprint& blueprint) {
  const Settings& settings = *parts.settings;
  const bool planned = PlansHostShare(settings, parts.backend->info());
  // Where no machine is known the first steps tell what is best.
  const double share =
      planned && blueprint.request.machine == nullptr ? 0.5 : blueprint.plan.host_share;
  const bool nothing = planned && blueprint.plan.slabs[static_cast<size_t>(Tier::kHost)] == 0;
  plan.host_share = 0.0;
  const std::optional<SalienceLimits>& salience = blueprint.layout.salience;
  const bool salient = salience.has_value() && salience->on_host;
  if ((share == 0.0 || nothing) && !salient) return OkStatus();
  const CoresBeside beside =
      blueprint.own_memory ? CoresBeside::kAccelerator : CoresBeside::kKernels;
  // The threads are wanted again within a layer's time.
  host_pool = std::make_unique<ThreadPool>(HostThreads(settings.target, pool.threads(), beside),
                                           std::chrono::milliseconds(1));
  Result<std::unique_ptr<Kernels>> host_kernels =
      NewCpuKernels(host_pool.get(), nullptr, settings.target.isa_name());
  if (!host_kernels.ok()) return host_kernels.status();
  Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(blueprint.layout.host(parts.model->shape()), std::move(*host_kernels),
                            *assembly.device, memory_budget);
  if (planned && made.status().code() == StatusCode::kUnsupported) {  // nobody asked for it
    Log(LogLevel::kWarning, made.status().words());
    return OkStatus();
  }
  if (!made.ok()) return made.status();
  assembly.host_attention = std::move(*made);
  plan.host_share = share;
  const bool corrected = planned && settings.plans == Settings::Plans::kCorrected;
  // Of all, the bus would never be measured.
  assembly.host_share =
      HostShareControl(corrected ? std::min(share, HostShareControl::kMost) : share);
  assembly.host_trace = corrected ? &trace : nullptr;
  return OkStatus();
}

Status Context::Impl::OpenDevice(Assembly* of) {
  const Settings& settings = *parts.settings;
  if (settings.trace.has_value()) {
    // A path that cannot be written is better known before the work.
    Result<std::unique_ptr<File>> file =
        parts.env->Open(*settings.trace, OpenMode::kCreate, FileIo::kCached);
    if (!file.ok()) return file.status().Within({Option::kTrace, ": "});
    trace.EnableEvents();
  }
  const bool time_all = settings.time_kernels || settings.trace.has_value();
  Result<std::unique_ptr<Device>> new_device = parts.backend->NewDevice(
      parts.env, &trace, time_all ? KernelTimes::kAll : KernelTimes::kWhereFree);
  if (!new_device.ok()) return new_device.status();
  of->device = std::move(*new_device);
  Result<std::unique_ptr<Kernels>> made = parts.backend->NewKernels(&pool, &trace);
  if (!made.ok()) return made.status();
  of->kernels = std::move(*made);
  return OkStatus();
}

void Context::Impl::GiveBudgets(Layout* layout) {
  layout->store.device_budget = &kv_budget;
  layout->store.host_budget = &host_budget;
  // No host tier, but a disk tier's buffers.
  if (parts.settings->memory.host == 0) layout->store.bounce_budget = &memory_budget;
  const bool shares = parts.session != nullptr && parts.session->file != nullptr;
  layout->store.disk_budget = shares ? parts.session->budget : &disk_budget;
}

Status Context::Impl::BuildDraft(const Blueprint& blueprint) {
  if (blueprint.draft == nullptr) return OkStatus();
  if (Status s = OpenDevice(&draft_assembly); !s.ok()) return s;
  Layout layout = blueprint.draft->layout;
  GiveBudgets(&layout);
  if (Status s = draft_assembly.Build(layout, nullptr); !s.ok()) return s;
  draft_model = std::make_unique<DraftModel>(
      DraftModel::Parts{*parts.draft, *draft_assembly.executor, *draft_assembly.store},
      blueprint.lengths.size(), parts.model->shape().vocab);
  return OkStatus();
}

Status Context::Impl::Build(const Blueprint& blueprint, std::unique_ptr<kv::SessionClaim> claim) {
  if (Status s = OpenDevice(&assembly); !s.ok()) return s;
  assembly.trace = &trace;
  if (claim != nullptr) session_note = claim->manifest().note;
  Layout layout = blueprint.layout;
  GiveBudgets(&layout);
  (layout.kept.has_value() ? layout.kept->store : layout.store).session_heads = HeadsInSession();
  Result<std::shared_ptr<kv::SlabFile>> file =
      OpenSession(std::move(claim),
                  kv::SessionFormatOf(layout.kept.has_value() ? layout.kept->store : layout.store));
  if (!file.ok()) return file.status();
  const std::shared_ptr<kv::SlabFile> opened = *file;
  if (shared()) {
    session = {opened, layout.store.disk_budget};
    saving.SetRanks(parts.communicator->ranks());
  }
  if (Status s = MakeHostAttention(blueprint); !s.ok()) return s;
  // Before the other cache, which fills what is left of the device.
  if (Status s = BuildDraft(blueprint); !s.ok()) return s;
  if (Status s = assembly.Build(layout, std::move(*file)); !s.ok()) return s;
  if (parts.settings->eviction.repeats()) {
    reconstruction =
        std::make_unique<Reconstruction>(*assembly.executor, *assembly.store, *assembly.evictor,
                                         RepeatPromptOf(parts.tokenizer, parts.chat));
  }
  if (parts.settings->trace.has_value()) traced_counts.emplace(assembly, *parts.env, trace);
  generator = std::make_unique<Generator>(
      GeneratorParts{
          *parts.model, parts.tokenizer, *assembly.executor, *assembly.store, *parts.env,
          assembly.kept_executor.get(), assembly.kept_store.get(), assembly.evictor.get(),
          reconstruction.get(), parts.settings->eviction.room, assembly.salience.get(),
          DraftersOf(parts.settings->drafts), parts.settings->plans == Settings::Plans::kCorrected,
          draft_model.get(), parts.settings->drafts.by == DraftSettings::By::kModel,
          parts.communicator,
          traced_counts.has_value() ? [this] { traced_counts->Add(); } : std::function<void()>()},
      blueprint.lengths, blueprint.plan.x_segments, blueprint.plan.cache.chunk);
  found_key = blueprint.found_key;
  const bool restores = opened != nullptr && opened->manifest().format.layers > 0;
  return restores ? RestoreSession(opened->manifest()) : OkStatus();
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContextFull:
      return "context";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

const PlanReport& Context::plan() const { return impl_->plan; }

Result<std::vector<Generation>> Context::Generate(std::span<const Request> requests,
                                                  const Hooks& hooks) try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (impl_->shared()) return impl_->GenerateOnRanks(requests, hooks);
  Result<std::vector<Generation>> made = impl_->generator->Generate(requests, hooks);
  if (made.ok() || !impl_->HasUnfitPages() || impl_->parts.plain == nullptr) return made;
  Result<PlainContext> plain = impl_->parts.plain();
  if (!plain.ok()) return plain.status();
  Generator::Unfinished rest = impl_->generator->TakeUnfinished();
  if (Status s = Impl::GoOnPlain(&impl_, std::move(*plain)); !s.ok()) return s;
  return impl_->generator->Resume(std::move(rest),
                                  "the numbers of some keys or values do not fit lossless pages: "
                                  "the cache was read again into plain ones",
                                  hooks);
} catch (...) {
  return impl_->Break();
}

Result<Context::ScoreResult> Context::Score(std::span<const TokenId> tokens, const Hooks& hooks) {
  return Score(tokens, ScorePart{}, hooks);
}

Result<Context::ScoreResult> Context::Score(std::span<const TokenId> tokens, const ScorePart& part,
                                            const Hooks& hooks) try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (impl_->shared()) return impl_->ScoreOnRanks(tokens, part, hooks);
  return impl_->generator->Score(tokens, part, hooks);
} catch (...) {
  return impl_->Break();
}

Result<std::vector<float>> Context::FarAttention(std::span<const TokenId> tokens, int64_t from,
                                                 int64_t sink, int64_t recent,
                                                 const Hooks& hooks) try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (Status s = impl_->CheckOneRank("attention"); !s.ok()) return s;
  return impl_->generator->FarAttention(tokens, from, sink, recent, hooks);
} catch (...) {
  return impl_->Break();
}

Result<std::vector<float>> Context::AttentionOn(std::span<const TokenId> tokens, int64_t from,
                                                const TokenSpan& span, const Hooks& hooks) try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (Status s = impl_->CheckOneRank("attention"); !s.ok()) return s;
  return impl_->generator->AttentionOn(tokens, from, span, hooks);
} catch (...) {
  return impl_->Break();
}

Result<HeadBudgets> Context::EvictedBudgets() const try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (Status s = impl_->CheckOneRank("what heads keep"); !s.ok()) return s;
  return impl_->generator->EvictedBudgets();
} catch (...) {
  return impl_->Break();
}

Result<SelectionRecall> Context::RecallOfSelection(std::span<const TokenId> tokens, int64_t from,
                                                   const Hooks& hooks) try {
  if (!impl_->broken.ok()) return impl_->broken;
  if (Status s = impl_->CheckOneRank("recall"); !s.ok()) return s;
  return impl_->generator->RecallOfSelection(tokens, from, hooks);
} catch (...) {
  return impl_->Break();
}

Status Context::FillSynthetic(int slot, int64_t tokens, uint64_t seed, double spread) try {
  if (!impl_->broken.ok()) return impl_->broken;
  impl_->found_key.clear();  // what is found of such keys says nothing of texts
  const std::string order = impl_->OrderTo(Order::kFill, slot, tokens, seed, spread);
  return impl_->EachRank(
      order, [&](Impl& rank) { return rank.generator->FillSynthetic(slot, tokens, seed, spread); });
} catch (...) {
  return impl_->Break();
}

void Context::Reset() {
  if (!impl_->broken.ok()) return;
  impl_->broken = impl_->EachRank(impl_->OrderTo(Order::kReset), [](Impl& rank) {
    rank.generator->Reset();
    return OkStatus();
  });
}

Status Context::SaveSession(std::string_view note) try {
  if (!impl_->broken.ok()) return impl_->broken;
  const Slot& slot = impl_->generator->slots()[0];
  kv::Store& store = impl_->generator->StoreOf(slot);
  // Where tokens are let go, the session is of the store of what is kept: a prompt that is not read
  // to its end has nothing there.
  if (!store.has_session() || !slot.sequence.has_value()) return OkStatus();
  if (impl_->shared()) return impl_->SaveOnRanks(note);
  return store.Save(*slot.sequence, slot.tokens, impl_->SessionMeta(note));
} catch (...) {
  return impl_->Break();
}

int64_t Context::SessionTokens() const { return impl_->session_tokens; }
const std::string& Context::SessionNote() const { return impl_->session_note; }
Timings Context::timings() const {
  if (impl_->generator == nullptr) return {};
  Timings timings = impl_->generator->timings();
  timings.host_share = impl_->assembly.host_share.share();
  impl_->assembly.CountReads(&timings);
  return timings;
}

int64_t Context::TierBytes(int tier) const {
  return impl_->shared() ? impl_->TierBytesOfRanks(static_cast<Tier>(tier))
                         : impl_->TierBytes(static_cast<Tier>(tier));
}

int64_t Context::Impl::TierBytes(Tier tier) const {
  if (generator == nullptr) return 0;
  const kv::Store& store = *assembly.store;
  int64_t bytes = store.Usage(tier).tokens_bytes;
  if (assembly.kept_store != nullptr) bytes += assembly.kept_store->Usage(tier).tokens_bytes;
  if (tier == Tier::kHost && assembly.demoted != nullptr) bytes += assembly.demoted->bytes();
  if (tier != Tier::kDevice) return bytes;
  for (const Slot& slot : generator->slots()) {
    if (!slot.sequence.has_value()) continue;
    const int64_t length = generator->StoreOf(slot).Length(*slot.sequence);
    const int64_t open = length % store.format().page.page_slots;
    bytes += open * parts.model->shape().KvBytesPerToken();
  }
  return bytes;
}

std::vector<LaneReport> Context::Lanes() const {
  std::vector<LaneReport> lanes;
  int of_kind = 0;
  for (int i = 0; i < kLaneCount; ++i) {
    const char* name = LaneName(static_cast<Lane>(i));
    if (lanes.empty() || lanes.back().lane != name) {
      lanes.push_back({name, 0.0, 0, 0});
      of_kind = 0;
    }
    const Trace::LaneTotals totals = impl_->trace.totals(static_cast<Lane>(i));
    LaneReport& lane = lanes.back();
    // The mean of lanes of one kind.
    ++of_kind;
    lane.busy_seconds += (static_cast<double>(totals.busy_ns) * 1e-9 - lane.busy_seconds) / of_kind;
    lane.bytes += totals.bytes;
    lane.flops += totals.flops;
  }
  return lanes;
}

void Context::ResetLanes() { impl_->trace.ResetTotals(); }

std::vector<std::vector<double>> Context::AttendSeconds(Progress::Phase phase) const {
  return impl_->AttendSecondsOfRanks(phase);
}

}  // namespace headway
