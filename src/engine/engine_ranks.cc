// What an engine whose model is shared between ranks does: in this process, where it has all of
// them, or together with others, each of which has one.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/exceptions.h"
#include "engine/engine_impl.h"
#include "engine/eviction_settings.h"
#include "engine/head_assignment.h"
#include "engine/head_pattern.h"
#include "engine/layer_ranks.h"
#include "engine/model_check.h"
#include "engine/open.h"
#include "engine/orders.h"
#include "engine/page_size.h"
#include "engine/processes.h"
#include "engine/ranks.h"
#include "engine/report.h"
#include "model/config_identity.h"
#include "model/weights/open_weights.h"
#include "parallel/nccl/nccl_communicator.h"

namespace headway {

namespace {

Result<ModelConfig> ReadConfig(Env* env, const std::string& folder, const Settings& settings) {
  Result<ModelConfig> config = settings.weights == Settings::Weights::kRandom
                                   ? ReadRandomConfig(*env, folder)
                                   : ReadModelConfig(*env, folder);
  if (!config.ok() || !settings.rope_scaling.has_value()) return config;
  if (Status s = ScaleRope(*settings.rope_scaling, &*config); !s.ok()) return s;
  return config;
}

// Who has which heads, as text.
std::string WordsOf(const RankHeads& heads) {
  std::string words;
  for (const std::vector<HeadSet>& layers : heads.ranks) {
    for (const HeadSet& set : layers) {
      words += fmt::format(" {}", fmt::join(set.heads, ","));
      if (heads.Shares()) words += fmt::format(":{}", fmt::join(set.shares, ","));
    }
  }
  return words;
}

}  // namespace

Status Engine::Impl::Assign(const ModelConfig& config, const std::string& folder) {
  ModelConfig whole = config;
  const bool reads =
      settings.eviction_profile.has_value() || settings.assignment_profile.has_value();
  if (reads && settings.weights == Settings::Weights::kFromFiles) {
    // Profiles name the dtype of the weights, of which only headers are read here.
    const Result<std::unique_ptr<WeightSource>> source = OpenWeights(*env, folder);
    if (!source.ok()) return source.status();
    const Result<DType> dtype = CacheDType(config, **source);
    if (!dtype.ok()) return dtype.status();
    whole.shape.dtype = *dtype;
  }
  if (Status s = LoadShares(*env, whole, &settings); !s.ok()) return s;
  assignment = AssignHeads(whole.shape, settings);
  return OkStatus();
}

Status Engine::Impl::LoadModel(const Settings& all, const std::string& folder) {
  const Result<ModelConfig> config = ReadConfig(env, folder, all);
  if (!config.ok()) return config.status();
  if (Status s = CheckModel(all, *config); !s.ok()) return s;
  FitPages(config->shape, &settings);
  if (all.layer_ranks > 1) return LoadRuns(all, *config, folder);
  if (all.ranks == 1) {
    if (Status s = LoadShard(*config, folder, nullptr); !s.ok()) return s;
    info = ModelInfoOf(model->config(), model->weight_bytes(), folder, settings);
    return LoadShares(*env, model->config(), &settings);
  }
  if (Status s = Assign(*config, folder); !s.ok()) return s;
  const int own = processes == nullptr ? 0 : processes->rank();
  heads = assignment->Of(own);
  const Result<std::vector<Shard>> shards = ShardsOf(*config, heads);
  if (!shards.ok()) return shards.status();
  share = RankShare{*config, (*shards)[static_cast<size_t>(own)]};
  if (Status s = LoadShard(*config, folder, &share->shard); !s.ok()) return s;
  share->whole.shape.dtype = model->shape().dtype;
  for (int rank = 1; processes == nullptr && rank < all.ranks; ++rank) {
    Impl& other = *others.emplace_back(std::make_unique<Impl>(env, SettingsOfRank(all, rank)));
    other.settings.eviction = settings.eviction;
    FitPages(config->shape, &other.settings);
    other.heads = assignment->Of(rank);
    if (Status s = other.OpenBackend(); !s.ok()) return s;
    other.machine = machine;
    other.share = RankShare{share->whole, (*shards)[static_cast<size_t>(rank)]};
    if (Status s = other.LoadShard(*config, folder, &other.share->shard); !s.ok()) return s;
  }
  const ModelConfig& whole = share->whole;
  info = ModelInfoOf(whole, CountWeightBytes(whole), folder, settings);
  std::string identity = ConfigIdentity(whole);
  // A profile, too, is each process's own file.
  if (assignment->profiled) identity += EvictionWords(settings.eviction) + WordsOf(heads);
  model_hash = XXH3_64bits_withSeed(identity.data(), identity.size(), model->SharedFingerprint());
  return OkStatus();
}

Status Engine::Impl::LoadPattern() {
  const ModelShape& shape = share.has_value() ? share->whole.shape : model->shape();
  Result<kv::HeadPattern> whole = LoadHeadPattern(*env, settings, shape);
  if (!whole.ok()) return whole.status();
  if (!share.has_value()) {
    pattern = std::move(*whole);
    return OkStatus();
  }
  if (settings.layer_ranks > 1) {
    pattern = PatternOfRun(*whole, model->config());
    for (const std::unique_ptr<Impl>& rank : others) {
      rank->pattern = PatternOfRun(*whole, rank->model->config());
    }
    return OkStatus();
  }
  rank_patterns = PatternsOfRanks(*whole, heads, model->shape().kv_heads);
  pattern = rank_patterns[static_cast<size_t>(heads.rank)];
  for (const std::unique_ptr<Impl>& rank : others) {
    rank->rank_patterns = rank_patterns;
    rank->pattern = rank_patterns[static_cast<size_t>(rank->heads.rank)];
  }
  // The file, too, is each process's own.
  std::string words = fmt::format("{} {}", whole->sink, whole->recent);
  for (const std::vector<bool>& layer : whole->streaming) {
    for (const bool streams : layer) words += streams ? " 1" : " 0";
  }
  model_hash = XXH3_64bits_withSeed(words.data(), words.size(), model_hash);
  return OkStatus();
}

std::vector<int> Engine::Impl::Gpus() const {
  std::vector<int> gpus;
  if (!backend->info().own_memory) return gpus;
  gpus.push_back(backend->info().gpu);
  for (const std::unique_ptr<Impl>& rank : others) gpus.push_back(rank->backend->info().gpu);
  return gpus;
}

Status Engine::Impl::AddContexts(const Workload& workload, const Blueprint& first,
                                 const std::vector<Blueprint>& runs, const PlanReport& report,
                                 Context::Impl* context) {
  for (const std::unique_ptr<Impl>& rank : others) {
    const size_t at = context->others.size();
    const Result<Blueprint> blueprint =
        runs.empty() ? rank->Draw(workload, &first.plan) : Result<Blueprint>(runs[at]);
    if (!blueprint.ok()) return blueprint.status();
    const PlanReport own = ReportOf(*blueprint);
    if (Status s = rank->CheckRoom(own); !s.ok()) return s;
    if (Status s = rank->MoveWeights(own); !s.ok()) return s;
    const auto index = static_cast<int>(at) + 1;
    ContextParts parts = rank->PartsOfContext(&context->group->communicator(index));
    parts.tokenizer = tokenizer.get();
    parts.chat = chat.get();
    parts.weights_hash = context->parts.weights_hash;
    parts.session = &context->session;
    Result<std::unique_ptr<Context::Impl>> made =
        Context::Impl::Create(parts, *blueprint, report, nullptr);
    if (!made.ok()) return OfRanks(settings, made.status());
    context->others.push_back(std::move(*made));
  }
  return OkStatus();
}

Result<std::unique_ptr<Engine>> EngineOpener::Open(Env* env, const std::string& model,
                                                   const EngineOptions& options) {
  Result<Settings> read = ReadSettings(options);
  if (!read.ok()) return read.status();
  ProcessGroup* const group = JoinedProcesses();
  if (Status s = CheckProcesses(group, *read); !s.ok()) return s;
  if (read->ranks == 1 || group == nullptr) {
    return OpenRank(env, model, *read, SettingsOfRank(*read, 0), nullptr);
  }
  read->nodes = group->machines();
  Result<std::unique_ptr<Engine>> engine(StatusCode::kCancelled, "");
  const int64_t id = NewSharedId();
  const Status opened = Together(*group, OrderOf(Order::kOpen, id, model, options), [&] {
    engine = OpenRank(env, model, *read, SettingsOfProcess(*read, *group), group);
    const Result<bool> same =
        Engine::Impl::CompareModels(*group, engine.ok() ? engine->get() : nullptr);
    if (!engine.ok()) return engine.status();
    // Where it is false another rank's error is that of all.
    return same.ok() && *same ? (*engine)->impl_->ConnectProcesses() : same.status();
  });
  if (!opened.ok()) return opened;
  if (group->rank() == 0) (*engine)->impl_->shared_id = id;
  return engine;
}

Result<bool> Engine::Impl::CompareModels(ProcessGroup& group, Engine* engine) {
  Impl* const impl = engine == nullptr ? nullptr : engine->impl_.get();
  uint64_t own = 0;
  if (impl != nullptr) {
    const uint64_t tokenizer = impl->tokenizer == nullptr ? 0 : impl->tokenizer->Hash();
    own = XXH3_64bits_withSeed(&tokenizer, sizeof(tokenizer), impl->model_hash);
  }
  const int64_t told[] = {static_cast<int64_t>(own), impl == nullptr ? 0 : impl->pool.threads()};
  const Result<std::vector<int64_t>> all = group.Gather(told);
  if (!all.ok()) return all.status();
  if (impl == nullptr) return false;
  const auto first = static_cast<uint64_t>((*all)[0]);
  bool same = first != 0;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    const auto at = static_cast<size_t>(2 * rank);
    same = same && static_cast<uint64_t>((*all)[at]) == first;
    impl->all_threads += static_cast<int>((*all)[at + 1]);
  }
  if (first == 0 || first == own) return same;
  return Status(StatusCode::kInvalidArgument,
                impl->info.folder + " holds another model than on rank 0" +
                    (impl->assignment->profiled || !impl->pattern.streaming.empty()
                         ? ", or a file about heads is another one"
                         : ""));
}

Status Engine::Impl::ConnectProcesses() {
  if (!backend->info().own_memory) return OkStatus();
  const Result<int64_t> before = backend->FreeMemory();
  Result<std::unique_ptr<Communicator>> made = ConnectGpus(*processes, backend->info().gpu);
  if (!made.ok()) return made.status();
  links = std::move(*made);
  if (links == nullptr) return OkStatus();
  const Result<int64_t> after = backend->FreeMemory();
  const bool known = before.ok() && after.ok();
  // The first one's plan is everybody's: it fits the GPU with least room.
  const int64_t told[] = {device_budget->limit(), known ? *before - *after : 0};
  const Result<std::vector<int64_t>> all = processes->Gather(told);
  if (!all.ok()) return all.status();
  for (size_t at = 0; at < all->size(); at += 2) {
    smallest_device = std::min(smallest_device.value_or((*all)[at]), (*all)[at]);
    link_memory = std::max(link_memory, (*all)[at + 1]);
  }
  Result<Reservation> reserved = device_budget->Reserve(link_memory, "connections of ranks");
  if (!reserved.ok()) return reserved.status();
  link_reservation = std::move(*reserved);
  return OkStatus();
}

Engine::~Engine() {
  if (impl_ == nullptr || !impl_->shared_id.has_value()) return;
  // Without the other ranks there is nothing to close.
  (void)Together(*impl_->processes, OrderOf(Order::kClose, *impl_->shared_id),
                 [] { return OkStatus(); });
}

int Engine::threads() const {
  if (impl_->processes != nullptr) return impl_->all_threads;
  int threads = impl_->pool.threads();
  if (impl_->settings.layer_ranks > 1) return threads;  // of each rank by turns
  for (const std::unique_ptr<Impl>& rank : impl_->others) threads += rank->pool.threads();
  return threads;
}

Result<Blueprint> Engine::Impl::DrawTogether(const Workload& workload, SessionMeeting* meeting) {
  Result<Blueprint> own(StatusCode::kCancelled, "rank 0 has no plan");
  WireWriter first;
  if (processes->rank() == 0) {
    own = Guarded([&]() -> Result<Blueprint> {
      // What the blueprint is made by does not change any more.
      if (Status s = ClaimSession(); !s.ok()) return s;
      return Draw(workload);
    });
    first(own.ok());
    if (own.ok()) first(own->plan);
  }
  const Result<std::string> told = processes->TextOfFirst(first.bytes());
  if (!told.ok()) return told.status();
  WireReader wire(*told);
  bool fits = false;
  wire(fits);
  if (fits && settings.session.has_value()) meeting->Arrange();
  if (processes->rank() == 0 || !fits) return own;
  plan::Plan plan;
  wire(plan);
  return Draw(workload, &plan);
}

Result<std::unique_ptr<Context>> Engine::Impl::MakeContextTogether(const Workload& workload) {
  Result<std::unique_ptr<Context>> context(StatusCode::kCancelled, "");
  const int64_t id = NewSharedId();
  const std::string order = OrderOf(Order::kContext, id, shared_id.value_or(0), workload);
  bool by_another = false;
  const Status made = Together(*processes, order, [&] {
    SessionMeeting meeting(*processes);
    const Status own = Guarded([&] {
      const Result<Blueprint> blueprint = DrawTogether(workload, &meeting);
      if (!blueprint.ok()) return blueprint.status();
      context = MakeContext(workload, *blueprint, &meeting);
      return context.ok() ? OkStatus() : OfRanks(settings, context.status());
    });
    if (!own.ok()) meeting.Leave();
    // The other one's error is that of all.
    by_another = meeting.ended_by_another();
    return by_another ? OkStatus() : own;
  });
  if (!made.ok()) return made;
  // Of those that obey a word of it would be taken for an error of their own.
  if (by_another && processes->rank() > 0) return std::unique_ptr<Context>();
  if (!context.ok()) return context;
  if (processes->rank() == 0) (*context)->impl_->shared_id = id;
  return context;
}

}  // namespace headway
