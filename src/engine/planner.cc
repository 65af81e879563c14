// Planning without loading: from a model's config.json and the headers of its weights.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "engine/blueprint.h"
#include "engine/context.h"
#include "engine/head_pattern.h"
#include "engine/measure.h"
#include "engine/model_info.h"
#include "engine/report.h"
#include "engine/settings.h"
#include "headway/engine.h"
#include "model/locate.h"
#include "model/safetensors.h"

namespace headway {
namespace {

struct Described {
  ModelConfig config;
  std::string folder;
  bool has_tokenizer = false;
  std::string notice;  // empty, or what is not as it would be for a run
};

bool IsConfigFile(Env& env, const std::string& model) {
  return model.ends_with(".json") && env.Exists(model) && !env.IsDirectory(model);
}

// From a config.json alone, of a model that need not be here.
Result<Described> DescribeConfig(Env& env, const std::string& model) {
  Result<ModelConfig> config = ReadRandomConfig(env, model);
  if (!config.ok()) return config.status();
  return Described{.config = std::move(*config), .folder = model, .notice = {}};
}

// A model that is not here yet: planned as it will be once it is.
Result<Described> DescribeAbsent(Env& env, const std::string& model) {
  Result<Described> described = DescribeConfig(env, model);
  if (!described.ok()) return described;
  described->has_tokenizer = true;
  described->notice = fmt::format(
      "{}: no weights here; sizes are computed from the configuration, weights and cache as {}",
      model, DTypeName(described->config.shape.dtype));
  return described;
}

Result<Described> Describe(Env& env, const std::string& model, const Settings& settings) {
  if (settings.weights == Settings::Weights::kRandom) return DescribeConfig(env, model);
  if (IsConfigFile(env, model)) return DescribeAbsent(env, model);
  Result<std::string> located = LocateModel(env, model, ProcessEnvironment());
  if (!located.ok()) return located.status();
  Described described;
  described.folder = *located;
  Result<ModelConfig> config = ReadModelConfig(env, *located);
  if (!config.ok()) return config.status();
  described.config = std::move(*config);
  // The weights' dtype is the cache's. Their files are mapped, and only their headers read.
  Result<Weights> weights = Weights::Open(env, *located);
  if (!weights.ok() && weights.status().code() == StatusCode::kNotFound) {
    return DescribeAbsent(env, *located);
  }
  if (!weights.ok()) return weights.status();
  for (const std::string& name : weights->Names()) {
    if (!name.ends_with("layers.0.self_attn.k_proj.weight")) continue;
    Result<TensorView> tensor = weights->Find(name);
    if (!tensor.ok()) return tensor.status();
    described.config.shape.dtype = tensor->dtype;
  }
  described.has_tokenizer = env.Exists(*located + "/tokenizer.json");
  return described;
}

// The backend to plan for: that of the options, or a GPU that need not be here.
struct Target {
  std::unique_ptr<Backend> here;
  std::unique_ptr<Kernels> kernels;
  PlannedBackend planned;
  std::string name;

  const BackendInfo& info() const { return here == nullptr ? planned.info : here->info(); }
  const KernelSizes& sizes() const { return here == nullptr ? *planned.sizes : *kernels; }
};

Result<Target> TargetOf(const hardware::Target& wanted,
                        const std::optional<hardware::ChosenProfile>& given, ThreadPool* pool) {
  Target target;
  if (given.has_value() && given->machine.own_memory) {
    target.planned = PlanGpuBackend(static_cast<int64_t>(given->machine.device_memory));
    target.name = given->machine.name;
    return target;
  }
  Result<std::unique_ptr<Backend>> backend = NewBackend(wanted.device, wanted.isa);
  if (!backend.ok()) {
    return backend.status().Within({},
                                   {"; ", Option::kMachine, " plans for a GPU that is not here"});
  }
  target.here = std::move(*backend);
  Result<std::unique_ptr<Kernels>> kernels = target.here->NewKernels(pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  target.kernels = std::move(*kernels);
  target.name = target.kernels->name();
  return target;
}

// What a plan is made for, before anything is planned.
struct Subject {
  Settings settings;
  Target target;
  Described model;
  Workload workload;
  // The machine whose times are predicted, and whether cuts are chosen for it: `run` would choose
  // without what is measured here.
  std::optional<hardware::ChosenProfile> machine;
  enum class Chooses { kYes, kNo };
  Chooses machine_chooses = Chooses::kYes;
};

Status FindMachine(Env& env, int threads, Subject* subject) {
  if (subject->machine.has_value()) return OkStatus();
  Result<std::optional<hardware::ChosenProfile>> chosen =
      hardware::ChooseProfile(env, std::nullopt, subject->target.info(), threads);
  if (!chosen.ok()) return chosen.status();
  subject->machine = std::move(*chosen);
  if (subject->machine.has_value()) return OkStatus();
  subject->machine_chooses = Subject::Chooses::kNo;
  Result<MachineProfile> quick = MeasureMachine(env, subject->settings, hardware::Depth::kQuick);
  if (quick.ok()) {
    subject->machine = hardware::ChosenProfile{std::move(*quick), "quick measurement"};
  }
  return OkStatus();
}

Result<Subject> FindSubject(Env& env, const std::string& model, Settings settings,
                            ThreadPool* pool) {
  Subject subject;
  subject.settings = std::move(settings);
  if (subject.settings.machine.has_value()) {
    Result<hardware::ChosenProfile> loaded = hardware::LoadProfile(env, *subject.settings.machine);
    if (!loaded.ok()) {
      return loaded.status().Within({Option::kMachine, ": "});
    }
    subject.machine = std::move(*loaded);
  }
  Result<Target> target = TargetOf(subject.settings.target, subject.machine, pool);
  if (!target.ok()) return target.status();
  subject.target = std::move(*target);
  if (subject.machine.has_value()) {
    if (Status s = hardware::CheckKind(*subject.machine, subject.target.info()); !s.ok()) return s;
  }
  Result<Described> described = Describe(env, model, subject.settings);
  if (!described.ok()) return described.status();
  subject.model = std::move(*described);
  if (Status s = FindMachine(env, pool->threads(), &subject); !s.ok()) return s;
  return subject;
}

Result<Blueprint> Draw(Env& env, const Subject& subject) {
  const Settings& settings = subject.settings;
  const ModelConfig& config = subject.model.config;
  Result<kv::HeadPattern> pattern = LoadHeadPattern(env, settings, config.shape);
  if (!pattern.ok()) return pattern.status();
  Result<kv::Manifest> session = ReadSession(env, settings);
  if (!session.ok()) return session.status();
  const BackendInfo& info = subject.target.info();
  BlueprintInputs inputs;
  inputs.settings = &settings;
  inputs.config = &config;
  inputs.weights = CountWeightBytes(config);
  inputs.pattern = &*pattern;
  inputs.session = &*session;
  inputs.backend = info;
  inputs.kernels = &subject.target.sizes();
  if (info.own_memory) {
    inputs.device_memory = settings.memory.gpu.value_or(info.free_memory + info.context_memory);
  }
  if (subject.machine_chooses == Subject::Chooses::kYes) inputs.machine = &subject.machine->machine;
  inputs.program_bytes = ProgramBytes(subject.model.has_tokenizer ? config.shape.vocab : 0);
  Result<Blueprint> blueprint = MakeBlueprint(inputs, subject.workload);
  if (!blueprint.ok()) return blueprint;
  if (inputs.machine == nullptr && subject.machine.has_value()) {
    blueprint->request.machine = &subject.machine->machine;
    plan::Predict(blueprint->request, &blueprint->plan);
  }
  return blueprint;
}

// What the user should know of a plan for this machine.
std::vector<Message> NoticesOf(const plan::Plan& plan, const MachineProfile& machine) {
  std::vector<Message> notices;
  if ((plan.slabs[2] > 0 || plan.disk_layers > 0) && machine.disk_read <= 0.0) {
    notices.push_back(
        {"the profile does not say how fast the disk is: what it holds is "
         "predicted to cost nothing; headway probe measures it"});
  }
  const auto host = static_cast<double>(plan.Bytes(Tier::kHost));
  if (host > machine.host_memory) {
    notices.push_back(
        {fmt::format("this takes {} of host memory, and the machine has {}; bound it with ",
                     FormatBytes(static_cast<int64_t>(host)),
                     FormatBytes(static_cast<int64_t>(machine.host_memory))),
         Option::kHostMemory, ", and give ", Option::kDiskMemory, " for the rest"});
  }
  return notices;
}

}  // namespace

Result<ModelPlan> PlanModel(const std::string& model, const EngineOptions& options,
                            const Workload& workload, Explain explain) try {
  Env& env = *Env::Default();
  Result<Settings> settings = ReadSettings(options);
  if (!settings.ok()) return settings.status();
  ThreadPool pool(settings->target.threads);
  Result<Subject> subject = FindSubject(env, model, std::move(*settings), &pool);
  if (!subject.ok()) return subject.status();
  const ModelConfig& config = subject->model.config;
  subject->workload = workload;
  for (int64_t& length : subject->workload.lengths) {
    length = length == 0 ? config.max_position : length;
  }
  Result<Blueprint> blueprint = Draw(env, *subject);
  if (!blueprint.ok()) return blueprint.status();
  ModelPlan result;
  if (!subject->model.notice.empty()) result.notices.push_back({subject->model.notice});
  result.info =
      ModelInfoOf(config, CountWeightBytes(config), subject->model.folder, subject->settings);
  result.kernels = subject->target.name;
  result.threads = pool.threads();
  result.lengths = subject->workload.lengths;
  result.plan = ReportOf(*blueprint);
  if (!subject->machine.has_value()) return result;
  result.plan.prediction = PredictionOf(*blueprint, *subject->machine);
  if (explain == Explain::kYes) {
    result.explain = plan::ExplainSpeed(blueprint->request, blueprint->plan);
  }
  for (Message& notice : NoticesOf(blueprint->plan, subject->machine->machine)) {
    result.notices.push_back(std::move(notice));
  }
  return result;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
