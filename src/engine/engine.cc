#include "headway/engine.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "engine/blueprint.h"
#include "engine/chat_variables.h"
#include "engine/context.h"
#include "engine/device_memory.h"
#include "engine/engine_impl.h"
#include "engine/fingerprint_cache.h"
#include "engine/found_shares.h"
#include "engine/layer_ranks.h"
#include "engine/measure.h"
#include "engine/model_check.h"
#include "engine/model_info.h"
#include "engine/open.h"
#include "engine/ranks.h"
#include "engine/report.h"
#include "engine/settings.h"
#include "engine/step/weight_stream.h"
#include "kernels/backend/backend.h"
#include "model/locate.h"
#include "model/model.h"
#include "model/weights/open_weights.h"
#include "parallel/local/local_group.h"
#include "plan/communication.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {

Status Engine::Impl::LoadShard(const ModelConfig& config, const std::string& folder,
                               const Shard* shard) {
  if (settings.weights == Settings::Weights::kRandom) {
    Result<std::unique_ptr<Model>> drawn = Model::Random(env, config, /*seed=*/1, &pool, shard);
    if (!drawn.ok()) return drawn.status();
    model = std::move(*drawn);
  } else {
    Result<std::unique_ptr<WeightSource>> source = OpenWeights(*env, folder);
    if (!source.ok()) return source.status();
    Result<std::unique_ptr<Model>> mapped = Model::Map(env, config, std::move(*source), shard);
    if (!mapped.ok()) return mapped.status();
    model = std::move(*mapped);
  }
  return CheckWeightForm(settings, model->weight_bytes(), folder);
}

Status Engine::Impl::OpenBackend() {
  Result<std::unique_ptr<Backend>> made =
      NewBackend(settings.target.device, settings.target.isa_name());
  if (!made.ok()) return made.status();
  backend = std::move(*made);
  Result<std::unique_ptr<Kernels>> made_kernels = backend->NewKernels(&pool, nullptr);
  if (!made_kernels.ok()) return made_kernels.status();
  kernels = std::move(*made_kernels);
  const BackendInfo& info_of = backend->info();
  if (!info_of.own_memory) {
    if (settings.memory.gpu.has_value()) {
      Log(LogLevel::kWarning, Message{Option::kGpuMemory, " counts for nothing on the CPU; ",
                                      Option::kDevice, " cuda computes on a GPU"});
    }
    return OkStatus();
  }
  // The driver has taken its part of what is free already.
  device_budget.emplace(Option::kGpuMemory,
                        settings.memory.gpu.value_or(
                            (info_of.free_memory + info_of.context_memory) / settings.gpu_ranks));
  Result<Reservation> reserved =
      device_budget->Reserve(info_of.context_memory, "driver and libraries");
  if (!reserved.ok()) return reserved.status();
  driver_memory = std::move(*reserved);
  return OkStatus();
}

// Measuring takes time that nobody asked to spend: only a GPU that no profile is shipped for is
// measured, in a fraction of a second.
Status Engine::Impl::FindMachine() {
  Result<std::optional<hardware::ChosenProfile>> chosen = hardware::ChooseProfile(
      *env, settings.machine, backend->info(), settings.machine_threads.value_or(pool.threads()));
  if (!chosen.ok()) return chosen.status();
  machine = std::move(*chosen);
  if (machine.has_value()) {
    machine->machine = plan::MachineOfRank(machine->machine, {settings.ranks, settings.nodes});
    return OkStatus();
  }
  if (!backend->info().own_memory) return OkStatus();
  Result<MachineProfile> measured = MeasureMachine(*env, settings, hardware::Depth::kQuick);
  if (measured.ok()) {
    machine = hardware::ChosenProfile{std::move(*measured), "quick measurement"};
  } else {
    Log(LogLevel::kWarning, measured.status().Within({"the GPU was not measured: "}).words());
  }
  return OkStatus();
}

Result<Blueprint> Engine::Impl::Draw(const Workload& workload, const plan::Plan* plan) {
  return DrawUnder(settings, workload, plan);
}

Result<Blueprint> Engine::Impl::DrawUnder(const Settings& given, const Workload& workload,
                                          const plan::Plan* plan) {
  Result<kv::Manifest> manifest = Session();
  if (!manifest.ok()) return manifest.status();
  BlueprintInputs inputs;
  inputs.settings = &given;
  inputs.config = &model->config();
  if (share.has_value()) inputs.whole = &share->whole;
  inputs.weights = model->weight_bytes();
  inputs.pattern = &pattern;
  inputs.session = &*manifest;
  inputs.backend = backend->info();
  inputs.backend.context_memory += link_memory;
  inputs.kernels = kernels.get();
  if (settings.ranks > 1) {
    inputs.heads = &heads;
    inputs.rank_patterns = &rank_patterns;
  }
  if (device_budget.has_value()) inputs.device_memory = SmallestDevice();
  if (machine.has_value()) inputs.machine = &machine->machine;
  inputs.program_bytes = program_bytes;
  inputs.weight_layers = placed_layers;
  inputs.disk_layers = placed_on_disk;
  inputs.plan = plan;
  Result<Blueprint> blueprint =
      MakeBlueprints(inputs, draft == nullptr ? nullptr : &draft->basis, workload);
  if (!blueprint.ok()) return Explain(blueprint.status());
  UseFoundShare(*env, FoundKey(given, info.folder, *inputs.config, *blueprint), &*blueprint);
  return blueprint;
}

int64_t Engine::Impl::SmallestDevice() const {
  int64_t smallest = smallest_device.value_or(device_budget->limit());
  for (const std::unique_ptr<Impl>& rank : others) {
    if (settings.layer_ranks > 1) break;
    smallest = std::min(smallest, rank->device_budget->limit());
  }
  return smallest;
}

PlanReport Engine::Impl::Report(const Blueprint& blueprint,
                                const std::vector<Blueprint>& runs) const {
  PlanReport report = ReportOf(blueprint);
  if (machine.has_value()) report.prediction = PredictionOf(blueprint, *machine);
  TellOfRuns(blueprint, runs, &report);
  PredictRuns(blueprint, runs, &report);
  TellOfRanks(settings, assignment, std::ssize(blueprint.request.lengths), &report);
  return report;
}

Status Engine::Impl::ClaimSession() {
  const std::lock_guard lock(claiming);
  if (!settings.session.has_value() || claim != nullptr) return OkStatus();
  Result<std::unique_ptr<kv::SessionClaim>> taken =
      kv::SessionClaim::Take(env, settings.session->path);
  if (!taken.ok()) return taken.status();
  claim = std::move(*taken);
  return OkStatus();
}

Result<kv::Manifest> Engine::Impl::Session() {
  const std::lock_guard lock(claiming);
  if (claim != nullptr) return claim->manifest();
  return SessionManifest(*env, settings);
}

Status Engine::Impl::FindFingerprint() {
  const std::lock_guard lock(moving);
  if (!settings.session.has_value() || weights_hash.has_value()) return OkStatus();
  if (processes != nullptr && processes->rank() > 0) return OkStatus();  // the first one asks
  Result<uint64_t> found = WeightsFingerprint(*env, *model, &pool);
  if (!found.ok()) return found.status();
  weights_hash = *found;
  return OkStatus();
}

Status Engine::Impl::Explain(const Status& error) const {
  const Status own = OfRanks(settings, error);
  if (!device_budget.has_value() || settings.memory.gpu.has_value()) return own;
  return ExplainFreeMemory(own, backend->info().free_memory, backend->info().memory);
}

Status Engine::Impl::CheckRoom(const PlanReport& plan) {
  if (!device_budget.has_value()) return OkStatus();
  Result<int64_t> free = backend->FreeMemory();
  if (!free.ok()) return free.status();
  DeviceMemory memory;
  memory.free = *free;
  memory.smallest = plan.smallest_gpu_memory;
  for (const MemoryLine& line : plan.memory) {
    if (line.tier == TierName(Tier::kDevice)) memory.planned += line.bytes;
  }
  memory.taken = backend->info().context_memory + link_memory;
  const std::lock_guard lock(moving);
  memory.taken += model->device_bytes();
  if (draft != nullptr) memory.taken += draft->model->device_bytes();
  return CheckDeviceMemory(memory);
}

Status Engine::Impl::MoveWeights(const PlanReport& plan) {
  const std::lock_guard lock(moving);
  if (placed_layers.has_value() || !moved.ok()) return moved;
  const std::vector<int> streamed = StreamedLayers(model->shape().layers, plan.weight_layers);
  if (!device_budget.has_value() && streamed.empty()) return model->Gather();
  Result<std::unique_ptr<Device>> made = backend->NewDevice(env, nullptr, KernelTimes::kWhereFree);
  if (!made.ok()) return made.status();
  Status s = Guarded([&] {
    return model->MoveTo(**made, {.device_budget = fast_budget(),
                                  .host_budget = &host_budget,
                                  .lossless = settings.lossless_weights,
                                  .streamed = streamed,
                                  .on_disk = plan.disk_layers,
                                  .disk_budget = &disk_budget,
                                  .directory = settings.memory.disk_directory,
                                  .pool = &pool});
  });
  if (!s.ok()) {
    if (!streamed.empty()) moved = s;  // some are where another plan would not have them
    return s;
  }
  device = std::move(*made);
  placed_layers = plan.weight_layers;
  placed_on_disk = static_cast<int>(plan.disk_layers.size());
  return OkStatus();
}

// Tokenizer and template. A folder without them still runs on token ids; one whose files are
// damaged does not open.
Status Engine::Impl::LoadText(const std::string& folder) {
  if (settings.weights == Settings::Weights::kRandom) {
    no_tokenizer = Status(StatusCode::kNotFound, folder + ": random weights have no tokenizer");
    return OkStatus();
  }
  Result<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(env, folder);
  if (loaded.ok()) {
    tokenizer = std::move(*loaded);
    program_bytes = ProgramBytes(tokenizer->vocab_size());
  } else if (loaded.status().code() == StatusCode::kNotFound) {
    no_tokenizer = loaded.status();
  } else {
    return loaded.status();
  }
  Result<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Load(env, folder);
  if (parsed.ok()) {
    chat = std::move(*parsed);
  } else if (parsed.status().code() != StatusCode::kNotFound) {
    // A template that uses more of Jinja than Headway has is no reason not to run plain prompts.
    Log(LogLevel::kWarning, parsed.status().message());
  }
  info.has_tokenizer = tokenizer != nullptr;
  info.has_chat_template = chat != nullptr;
  return OkStatus();
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Engine>> Engine::Open(const std::string& model,
                                             const EngineOptions& options) try {
  return EngineOpener::Open(Env::Default(), model, options);
} catch (...) {
  return StatusOfException();
}

Result<std::unique_ptr<Engine>> EngineOpener::OpenRank(Env* env, const std::string& model,
                                                       const Settings& all, Settings own,
                                                       ProcessGroup* group) {
  auto impl = std::make_unique<Engine::Impl>(env, std::move(own));
  impl->processes = group;
  const Settings& settings = impl->settings;
  if (Status s = impl->OpenBackend(); !s.ok()) return s;
  if (Status s = impl->FindMachine(); !s.ok()) return s;
  std::string folder = model;
  if (settings.weights == Settings::Weights::kFromFiles) {
    Result<std::string> located = LocateModel(*impl->env, model, ProcessEnvironment());
    if (!located.ok()) return located.status();
    folder = *located;
  }
  if (Status s = impl->LoadModel(all, folder); !s.ok()) return s;
  if (Status s = impl->LoadPattern(); !s.ok()) return s;
  if (Status s = impl->LoadText(folder); !s.ok()) return s;
  if (Status s = impl->LoadDraft(); !s.ok()) return s;
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelInfo& Engine::info() const { return impl_->info; }
std::string Engine::kernels() const { return impl_->kernels->name(); }
Result<std::vector<TokenId>> Engine::Encode(std::string_view text,
                                            const EncodeOptions& options) const try {
  if (impl_->tokenizer == nullptr) return impl_->no_tokenizer;
  return impl_->tokenizer->Encode(text, options);
} catch (...) {
  return StatusOfException();
}

Result<std::string> Engine::Decode(std::span<const TokenId> tokens, SpecialTokens special) const
    try {
  if (impl_->tokenizer == nullptr) return impl_->no_tokenizer;
  return impl_->tokenizer->Decode(tokens, special);
} catch (...) {
  return StatusOfException();
}

Result<std::string> Engine::RenderChat(std::span<const ChatMessage> messages,
                                       const ChatOptions& options) const try {
  if (impl_->chat == nullptr) {
    return Status(StatusCode::kNotFound, impl_->info.folder + " has no chat template");
  }
  Result<nlohmann::ordered_json> context = ChatVariables(options);
  if (!context.ok()) return context.status();
  (*context)["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    (*context)["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  (*context)["add_generation_prompt"] = true;
  Result<std::string> text = impl_->chat->Render(*context);
  if (!text.ok()) {
    return text.status().Within({"the chat template of " + impl_->info.folder + ": "});
  }
  return text;
} catch (...) {
  return StatusOfException();
}

Result<int64_t> Engine::SessionTokens() const try {
  if (Status s = impl_->ClaimSession(); !s.ok()) return s;
  Result<kv::Manifest> session = impl_->Session();
  if (!session.ok()) return session.status();
  return static_cast<int64_t>(session->tokens.size());
} catch (...) {
  return StatusOfException();
}

Result<PlanReport> Engine::Plan(const Workload& workload) const try {
  Result<Blueprint> blueprint = impl_->Draw(workload);
  if (!blueprint.ok()) return blueprint.status();
  const Result<std::vector<Blueprint>> runs = impl_->DrawRuns(workload, *blueprint);
  if (!runs.ok()) return runs.status();
  return impl_->Report(*blueprint, *runs);
} catch (...) {
  return StatusOfException();
}

Result<double> Engine::PredictSeconds(const Workload& planned, const Phase& phase) const try {
  Result<Blueprint> blueprint = impl_->Draw(planned);
  if (!blueprint.ok()) return blueprint.status();
  const MachineProfile* machine = blueprint->request.machine;
  if (machine == nullptr) {
    if (!impl_->quick.has_value()) {
      Result<MachineProfile> measured =
          MeasureMachine(*impl_->env, impl_->settings, hardware::Depth::kQuick);
      if (!measured.ok()) return measured.status();
      impl_->quick = std::move(*measured);
    }
    machine = &*impl_->quick;
  }
  const Result<std::vector<Blueprint>> runs = impl_->DrawRuns(planned, *blueprint);
  if (!runs.ok()) return runs.status();
  std::vector<double> seconds = {PhaseSeconds(*machine, *blueprint, phase)};
  for (const Blueprint& run : *runs) seconds.push_back(PhaseSeconds(*machine, run, phase));
  if (seconds.size() == 1 || phase.decode_steps > 0) {
    return std::reduce(seconds.begin(), seconds.end());
  }
  return PrefillOfRuns(*blueprint, seconds,
                       std::reduce(phase.lengths.begin(), phase.lengths.end()) -
                           std::reduce(phase.prefixes.begin(), phase.prefixes.end()));
} catch (...) {
  return StatusOfException();
}

ContextParts Engine::Impl::PartsOfContext(Communicator* communicator) {
  ContextParts parts;
  parts.communicator = communicator;
  parts.processes = processes;
  parts.env = env;
  parts.backend = backend.get();
  parts.device_budget = fast_budget();
  parts.model = model.get();
  if (share.has_value()) parts.share = &*share;
  parts.tokenizer = tokenizer.get();
  parts.chat = chat.get();
  if (draft != nullptr) parts.draft = draft->model.get();
  parts.settings = &settings;
  parts.host_weights = host_budget.used();
  parts.disk_weights = disk_budget.used();
  parts.weights_hash = weights_hash.value_or(0);
  return parts;
}

Result<std::unique_ptr<Context>> Engine::Impl::MakeContext(const Workload& workload,
                                                           const Blueprint& blueprint,
                                                           SessionMeeting* meeting) {
  const Result<std::vector<Blueprint>> runs = DrawRuns(workload, blueprint);
  if (!runs.ok()) return runs.status();
  const PlanReport report = Report(blueprint, *runs), own = ReportOf(blueprint);
  if (Status s = CheckRoom(own); !s.ok()) return s;
  if (Status s = FindFingerprint(); !s.ok()) return s;
  if (Status s = MoveWeights(own); !s.ok()) return s;
  if (Status s = MoveDraft(); !s.ok()) return s;
  std::unique_ptr<kv::SessionClaim> taken;
  {
    const std::lock_guard lock(claiming);
    taken = std::move(claim);
  }
  std::unique_ptr<RankGroup> group;
  Communicator* communicator = nullptr;
  if (processes != nullptr) {
    communicator = links != nullptr ? links.get() : &processes->communicator();
  } else if (settings.all_ranks() > 1) {
    Result<std::unique_ptr<RankGroup>> connected = NewLocalGroup(settings.all_ranks(), Gpus());
    if (!connected.ok()) return connected.status();
    group = std::move(*connected);
    communicator = &group->communicator(0);
  }
  ContextParts parts = PartsOfContext(communicator);
  parts.meeting = meeting;
  if (MayGoOnPlain(blueprint)) {
    parts.plain = [this, workload, cut = blueprint.plan.cache] { return DrawPlain(workload, cut); };
  }
  Result<std::unique_ptr<Context::Impl>> made =
      Context::Impl::Create(parts, blueprint, report, std::move(taken));
  if (!made.ok()) return made.status();
  (*made)->group = std::move(group);
  if (Status s = AddContexts(workload, blueprint, *runs, report, made->get()); !s.ok()) return s;
  return std::unique_ptr<Context>(new Context(std::move(*made)));
}

Result<std::unique_ptr<Context>> Engine::NewContext(const Workload& workload) try {
  if (impl_->processes != nullptr) return impl_->MakeContextTogether(workload);
  // What the blueprint is made by does not change any more.
  if (Status s = impl_->ClaimSession(); !s.ok()) return s;
  // What does not fit is refused before the weights are moved.
  Result<Blueprint> blueprint = impl_->Draw(workload);
  if (!blueprint.ok()) return blueprint.status();
  return impl_->MakeContext(workload, *blueprint);
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
