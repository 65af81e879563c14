#include "headway/engine.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "engine/context.h"
#include "engine/device_memory.h"
#include "engine/fingerprint_cache.h"
#include "engine/head_pattern.h"
#include "engine/machine_profile.h"
#include "engine/open.h"
#include "engine/setup.h"
#include "engine/step/weight_stream.h"
#include "kernels/backend/backend.h"
#include "model/locate.h"
#include "model/model.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {

using Json = nlohmann::ordered_json;
namespace {

Result<std::unique_ptr<Model>> LoadModel(Env* env, const std::string& folder,
                                         const EngineOptions& options, ThreadPool* pool) {
  if (!options.random_weights) return Model::Load(env, folder);
  Result<ModelConfig> config = ReadRandomConfig(*env, folder);
  if (!config.ok()) return config.status();
  return Model::Random(env, *config, /*seed=*/1, pool);
}

}  // namespace

int64_t ProgramBytes(int64_t tokens) {
  constexpr int64_t kProgramBytes = 17 * kMiB / 2;
  constexpr int64_t kBytesPerToken = 100;
  return kProgramBytes + kBytesPerToken * tokens;
}

Result<ModelConfig> ReadRandomConfig(Env& env, const std::string& path) {
  const std::string file = env.IsDirectory(path) ? path + "/config.json" : path;
  Result<std::string> json = env.ReadFile(file, kMaxConfigBytes);
  if (!json.ok()) return json.status();
  return ParseModelConfig(*json, "", file);
}

namespace {

// Out of bounds where the file is: Validate says so to who uses them.
SamplingOptions ProposedSampling(const GenerationDefaults& file) {
  SamplingOptions proposed;
  // Transformers' temperature is 1 where the file samples and gives none.
  if (file.do_sample.value_or(false)) {
    proposed.temperature = static_cast<float>(file.temperature.value_or(1.0));
  }
  proposed.top_k = static_cast<int>(
      std::clamp<int64_t>(file.top_k.value_or(0), 0, std::numeric_limits<int>::max()));
  if (file.top_p.has_value()) proposed.top_p = static_cast<float>(*file.top_p);
  if (file.min_p.has_value()) proposed.min_p = static_cast<float>(*file.min_p);
  if (file.repetition_penalty.has_value()) {
    proposed.repetition_penalty = static_cast<float>(*file.repetition_penalty);
  }
  return proposed;
}

}  // namespace

ModelInfo DescribeModel(const ModelConfig& config, const WeightBytes& weights,
                        const std::string& folder, const EngineOptions& options) {
  const ModelShape& shape = config.shape;
  ModelInfo info;
  info.folder = folder;
  info.architecture = config.architecture;
  info.dtype = DTypeName(shape.dtype);
  info.layers = shape.layers;
  info.d_model = shape.d_model;
  info.query_heads = shape.query_heads;
  info.kv_heads = shape.kv_heads;
  info.head_dim = shape.head_dim;
  info.d_ff = shape.d_ff;
  info.vocab = shape.vocab;
  info.max_position = config.max_position;
  info.weight_bytes = weights.total();
  info.step_weight_bytes = weights.total() - weights.row_tables;
  info.kv_bytes_per_token = ClosedBytesPerToken(shape, options);
  info.rope_type = RopeTypeName(config.rope.type);
  info.bos = config.bos;
  info.eos = config.eos;
  info.sampling = ProposedSampling(config.generation);
  return info;
}

namespace {

// The object that a template's variables begin with.
Result<Json> TemplateVariables(const ChatOptions& options) {
  if (options.variables.empty()) return Json::object();
  constexpr int kMaxDepth = 100;  // copying a value takes stack for each level
  bool deep = false;
  const auto see = [&deep](int depth, Json::parse_event_t, const Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  Json variables = Json::parse(options.variables, see, /*allow_exceptions=*/false);
  if (deep) {
    return Status(StatusCode::kInvalidArgument, "the template's variables are nested too deeply");
  }
  if (!variables.is_object()) {
    return Status(
        StatusCode::kInvalidArgument,
        "the template's variables are no JSON object such as {\"enable_thinking\": false}");
  }
  for (const char* name : {"messages", "add_generation_prompt"}) {
    if (variables.contains(name)) {
      return Status(StatusCode::kInvalidArgument, std::string("the template's variables have ") +
                                                      name +
                                                      ", which Headway sets itself; leave it out");
    }
  }
  return variables;
}

}  // namespace

Status ChatOptions::Validate() const { return TemplateVariables(*this).status(); }

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

struct Engine::Impl {
  Impl(Env* e, const EngineOptions& o)
      : env(e),
        options(o),
        pool(o.threads),
        host_budget("--host-memory", o.host_memory),
        disk_budget("--disk-memory", DiskMemoryLimit(o)) {}

  Env* const env;
  EngineOptions options;
  ThreadPool pool;  // for loading and planning; a context has its own
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Kernels> kernels;
  // Where the device has its own memory: what is there, the weights once a context needs them.
  std::optional<Budget> device_budget;
  Reservation driver_memory;
  std::unique_ptr<Device> device;
  Budget host_budget, disk_budget;  // of weights that stream
  // Whose weights are on the device, and of the others on disk; -1: not moved yet.
  int placed_layers = -1, placed_on_disk = -1;
  Status moved;  // why that did not work
  std::mutex moving;
  std::mutex claiming;
  std::unique_ptr<kv::SessionClaim> claim;  // not yet a context's
  std::optional<uint64_t> weights_hash;     // once it was needed
  std::unique_ptr<Model> model;
  kv::HeadPattern pattern;
  std::unique_ptr<Tokenizer> tokenizer;  // null when the folder has none, which is why then:
  Status no_tokenizer;
  std::unique_ptr<ChatTemplate> chat;  // null when the folder has none
  ModelInfo info;
  int64_t program_bytes = ProgramBytes(0);
  std::optional<ChosenMachine> machine;  // that cuts are chosen for; empty: by the planner's rule
  std::optional<plan::Machine> quick;    // measured for predictions alone

  Status LoadText(const std::string& folder);
  Status OpenBackend();
  // What a plan's error means, and whether what it takes of a device with its own memory is free.
  Status Explain(const Status& error) const;
  Status CheckRoom(const PlanReport& plan);
  // Puts the weights where a plan has them, the first one.
  Status MoveWeights(const PlanReport& plan);
  Status FindMachine();
  // The session of the options becomes this process's: until a context of it ends, or the engine.
  Status ClaimSession();
  // What it holds; of no layers where there is none.
  Result<kv::Manifest> Session();
  // Hashes the weights, for a session.
  Status FindFingerprint();
  SetupMemory memory() {
    return {program_bytes, backend->info(),
            fast_budget(), machine.has_value() ? &machine->machine : nullptr,
            placed_layers, placed_on_disk};
  }
  // What the planner is asked, and what it says.
  struct Planned {
    plan::PlanRequest request;
    plan::Plan plan;
  };
  Result<Planned> MakePlan(const Workload& workload);
  Budget* fast_budget() { return device_budget.has_value() ? &*device_budget : nullptr; }
};

Status Engine::Impl::OpenBackend() {
  Result<std::unique_ptr<Backend>> made = NewBackend(options.device, options.isa);
  if (!made.ok()) return made.status();
  backend = std::move(*made);
  Result<std::unique_ptr<Kernels>> made_kernels = backend->NewKernels(&pool, nullptr);
  if (!made_kernels.ok()) return made_kernels.status();
  kernels = std::move(*made_kernels);
  const BackendInfo& info_of = backend->info();
  if (!info_of.own_memory) {
    if (options.gpu_memory > 0) {
      Log(LogLevel::kWarning,
          "--gpu-memory counts for nothing on the CPU; --device cuda computes on a GPU");
    }
    return OkStatus();
  }
  // The driver has taken its part of what is free already.
  device_budget.emplace("--gpu-memory", options.gpu_memory > 0
                                            ? options.gpu_memory
                                            : info_of.free_memory + info_of.context_memory);
  Result<Reservation> reserved =
      device_budget->Reserve(info_of.context_memory, "driver and libraries");
  if (!reserved.ok()) return reserved.status();
  driver_memory = std::move(*reserved);
  return OkStatus();
}

// Measuring takes time that nobody asked to spend: only a GPU that no profile is shipped for is
// measured, in a fraction of a second.
Status Engine::Impl::FindMachine() {
  Result<std::optional<ChosenMachine>> chosen =
      ChooseMachine(*env, options, backend->info(), pool.threads());
  if (!chosen.ok()) return chosen.status();
  machine = std::move(*chosen);
  if (machine.has_value() || !backend->info().own_memory) return OkStatus();
  Result<plan::Machine> measured = ProbeHardware(*env, options, /*quick=*/true);
  if (measured.ok()) {
    machine = ChosenMachine{std::move(*measured), "quick measurement"};
  } else {
    Log(LogLevel::kWarning, "the GPU was not measured: " + measured.status().message());
  }
  return OkStatus();
}

Result<Engine::Impl::Planned> Engine::Impl::MakePlan(const Workload& workload) {
  Result<kv::Manifest> session = Session();
  if (!session.ok()) return session.status();
  Result<plan::PlanRequest> request =
      MakePlanRequest(model->config(), model->weight_bytes(), options, workload, pattern, &*session,
                      *kernels, memory());
  if (!request.ok()) return request.status();
  Result<plan::Plan> plan = MakeSessionPlan(options, &*session, &*request);
  if (!plan.ok()) return Explain(plan.status());
  return Planned{std::move(*request), std::move(*plan)};
}

Status Engine::Impl::ClaimSession() {
  const std::lock_guard lock(claiming);
  if (options.session.empty() || claim != nullptr) return OkStatus();
  Result<std::unique_ptr<kv::SessionClaim>> taken = kv::SessionClaim::Take(env, options.session);
  if (!taken.ok()) return taken.status();
  claim = std::move(*taken);
  return OkStatus();
}

Result<kv::Manifest> Engine::Impl::Session() {
  const std::lock_guard lock(claiming);
  if (claim != nullptr) return claim->manifest();
  return ReadSession(*env, options);
}

Status Engine::Impl::FindFingerprint() {
  const std::lock_guard lock(moving);
  if (options.session.empty() || weights_hash.has_value()) return OkStatus();
  Result<uint64_t> found = WeightsFingerprint(*env, *model, &pool);
  if (!found.ok()) return found.status();
  weights_hash = *found;
  return OkStatus();
}

Status Engine::Impl::Explain(const Status& error) const {
  if (!device_budget.has_value() || options.gpu_memory > 0) return error;
  return ExplainFreeMemory(error, backend->info().free_memory, backend->info().memory);
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
  memory.taken = backend->info().context_memory;
  const std::lock_guard lock(moving);
  memory.taken += model->device_bytes();
  return CheckDeviceMemory(memory);
}

Status Engine::Impl::MoveWeights(const PlanReport& plan) {
  const std::lock_guard lock(moving);
  if (placed_layers >= 0 || !moved.ok()) return moved;
  const std::vector<int> streamed = StreamedLayers(model->shape().layers, plan.weight_layers);
  if (!device_budget.has_value() && streamed.empty()) return OkStatus();
  Result<std::unique_ptr<Device>> made = backend->NewDevice(env, nullptr, false);
  if (!made.ok()) return made.status();
  Status s = Guarded([&] {
    return model->MoveTo(**made, {.device_budget = fast_budget(),
                                  .host_budget = &host_budget,
                                  .streamed = streamed,
                                  .on_disk = plan.disk_layers,
                                  .disk_budget = &disk_budget,
                                  .directory = DiskDirectory(options),
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
  if (options.random_weights) {
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
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Open(const std::string& model,
                                             const EngineOptions& options) try {
  return EngineOpener::Open(Env::Default(), model, options);
} catch (...) {
  return StatusOfException();
}

Result<std::unique_ptr<Engine>> EngineOpener::Open(Env* env, const std::string& model,
                                                   const EngineOptions& options) {
  if (Result<kv::PlacementKind> kind = PlacementOf(options); !kind.ok()) {
    return kind.status();
  }
  if (Status s = CheckOptions(options); !s.ok()) return s;
  auto impl = std::make_unique<Engine::Impl>(env, options);
  if (Status s = impl->OpenBackend(); !s.ok()) return s;
  if (Status s = impl->FindMachine(); !s.ok()) return s;
  std::string folder = model;
  if (!options.random_weights) {
    Result<std::string> located = LocateModel(*impl->env, model, ProcessEnvironment());
    if (!located.ok()) return located.status();
    folder = *located;
  }
  Result<std::unique_ptr<Model>> loaded = LoadModel(impl->env, folder, options, &impl->pool);
  if (!loaded.ok()) return loaded.status();
  impl->model = std::move(*loaded);
  impl->info = DescribeModel(impl->model->config(), impl->model->weight_bytes(), folder, options);
  Result<kv::HeadPattern> pattern = LoadHeadPattern(*env, options, impl->model->shape());
  if (!pattern.ok()) return pattern.status();
  impl->pattern = std::move(*pattern);
  if (Status s = impl->LoadText(folder); !s.ok()) return s;
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelInfo& Engine::info() const { return impl_->info; }
std::string Engine::kernels() const { return impl_->kernels->name(); }
int Engine::threads() const { return impl_->pool.threads(); }

Result<std::vector<TokenId>> Engine::Encode(std::string_view text,
                                            const EncodeOptions& options) const try {
  if (impl_->tokenizer == nullptr) return impl_->no_tokenizer;
  return impl_->tokenizer->Encode(text, options);
} catch (...) {
  return StatusOfException();
}

Result<std::string> Engine::Decode(std::span<const TokenId> tokens, bool skip_special) const try {
  if (impl_->tokenizer == nullptr) return impl_->no_tokenizer;
  return impl_->tokenizer->Decode(tokens, skip_special);
} catch (...) {
  return StatusOfException();
}

Result<std::string> Engine::RenderChat(std::span<const ChatMessage> messages,
                                       const ChatOptions& options) const try {
  if (impl_->chat == nullptr) {
    return Status(StatusCode::kNotFound, impl_->info.folder + " has no chat template");
  }
  Result<Json> context = TemplateVariables(options);
  if (!context.ok()) return context.status();
  (*context)["messages"] = Json::array();
  for (const ChatMessage& message : messages) {
    (*context)["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  (*context)["add_generation_prompt"] = true;
  Result<std::string> text = impl_->chat->Render(*context);
  if (!text.ok()) {
    return Status(text.status().code(),
                  "the chat template of " + impl_->info.folder + ": " + text.status().message());
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
  Result<Impl::Planned> planned = impl_->MakePlan(workload);
  if (!planned.ok()) return planned.status();
  const auto& [request, plan] = *planned;
  PlanReport report = ReportOf(plan, plan::FindSmallestBudgets(request), impl_->info.layers,
                               impl_->device_budget.has_value());
  if (impl_->machine.has_value()) {
    report.prediction = PredictionOf(plan, *impl_->machine, workload);
  }
  return report;
} catch (...) {
  return StatusOfException();
}

Result<double> Engine::PredictSeconds(const Workload& planned, const Phase& phase) const try {
  Result<Impl::Planned> made = impl_->MakePlan(planned);
  if (!made.ok()) return made.status();
  const plan::Machine* machine = made->request.machine;
  if (machine == nullptr) {
    if (!impl_->quick.has_value()) {
      Result<plan::Machine> measured = ProbeHardware(*impl_->env, impl_->options, /*quick=*/true);
      if (!measured.ok()) return measured.status();
      impl_->quick = std::move(*measured);
    }
    machine = &*impl_->quick;
  }
  return PhaseSeconds(*machine, made->request, made->plan, phase);
} catch (...) {
  return StatusOfException();
}

Result<std::unique_ptr<Context>> Engine::NewContext(const Workload& workload) try {
  // What the plan is made by does not change any more.
  if (Status s = impl_->ClaimSession(); !s.ok()) return s;
  // What does not fit is refused before the weights are moved.
  Result<PlanReport> plan = Plan(workload);
  if (!plan.ok()) return plan.status();
  if (Status s = impl_->CheckRoom(*plan); !s.ok()) return s;
  if (Status s = impl_->FindFingerprint(); !s.ok()) return s;
  if (Status s = impl_->MoveWeights(*plan); !s.ok()) return s;
  ContextParts parts;
  parts.env = impl_->env;
  parts.backend = impl_->backend.get();
  parts.device_budget = impl_->fast_budget();
  parts.model = impl_->model.get();
  parts.tokenizer = impl_->tokenizer.get();
  parts.options = &impl_->options;
  parts.pattern = &impl_->pattern;
  parts.program_bytes = impl_->program_bytes;
  parts.machine = impl_->memory().machine;
  parts.weight_layers = plan->weight_layers;
  parts.disk_layers = static_cast<int>(plan->disk_layers.size());
  parts.host_weights = impl_->host_budget.used();
  parts.disk_weights = impl_->disk_budget.used();
  parts.weights_hash = impl_->weights_hash.value_or(0);
  std::unique_ptr<kv::SessionClaim> claim;
  {
    const std::lock_guard lock(impl_->claiming);
    claim = std::move(impl_->claim);
  }
  Result<std::unique_ptr<Context::Impl>> made =
      Context::Impl::Create(parts, workload, std::move(claim));
  if (!made.ok()) return made.status();
  (*made)->plan.prediction = plan->prediction;
  return std::unique_ptr<Context>(new Context(std::move(*made)));
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
