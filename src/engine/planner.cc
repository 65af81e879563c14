// Planning without loading: from a model's config.json and the headers of its weights.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "engine/context.h"
#include "engine/head_pattern.h"
#include "engine/machine_profile.h"
#include "engine/open.h"
#include "engine/setup.h"
#include "model/locate.h"
#include "model/model.h"
#include "model/weights/open_weights.h"

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

Result<Described> Describe(Env& env, const std::string& model, const EngineOptions& options) {
  if (options.random_weights) return DescribeConfig(env, model);
  if (IsConfigFile(env, model)) return DescribeAbsent(env, model);
  Result<std::string> located = LocateModel(env, model, ProcessEnvironment());
  if (!located.ok()) return located.status();
  Described described;
  described.folder = *located;
  Result<ModelConfig> config = ReadModelConfig(env, *located);
  if (!config.ok()) return config.status();
  described.config = std::move(*config);
  // The weights' dtype is the cache's. Their files are mapped, and only their headers read.
  Result<std::unique_ptr<WeightSource>> weights = OpenWeights(env, *located);
  if (!weights.ok() && weights.status().code() == StatusCode::kNotFound) {
    return DescribeAbsent(env, *located);
  }
  if (!weights.ok()) return weights.status();
  Result<DType> dtype = CacheDType(described.config, **weights);
  if (!dtype.ok()) return dtype.status();
  described.config.shape.dtype = *dtype;
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

Result<Target> TargetOf(const EngineOptions& options, const std::optional<ChosenMachine>& given,
                        ThreadPool* pool) {
  Target target;
  if (given.has_value() && given->machine.own_memory) {
    target.planned = PlanGpuBackend(static_cast<int64_t>(given->machine.device_memory));
    target.name = given->machine.name;
    return target;
  }
  Result<std::unique_ptr<Backend>> backend = NewBackend(options.device, options.isa);
  if (!backend.ok()) {
    return Status(backend.status().code(),
                  backend.status().message() + "; --machine plans for a GPU that is not here");
  }
  target.here = std::move(*backend);
  Result<std::unique_ptr<Kernels>> kernels = target.here->NewKernels(pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  target.kernels = std::move(*kernels);
  target.name = target.kernels->name();
  return target;
}

}  // namespace

Result<ModelPlan> PlanModel(const std::string& model, const EngineOptions& options,
                            const Workload& asked, bool explain) try {
  Env& env = *Env::Default();
  if (Status s = CheckOptions(options); !s.ok()) return s;
  ThreadPool pool(options.threads);
  std::optional<ChosenMachine> machine;
  if (!options.machine.empty()) {
    Result<ChosenMachine> loaded = LoadMachine(env, options.machine);
    if (!loaded.ok()) {
      return Status(loaded.status().code(), "--machine: " + loaded.status().message());
    }
    machine = std::move(*loaded);
  }
  Result<Target> target = TargetOf(options, machine, &pool);
  if (!target.ok()) return target.status();
  if (machine.has_value()) {
    if (Status s = CheckKind(*machine, target->info()); !s.ok()) return s;
  }
  Result<Described> described = Describe(env, model, options);
  if (!described.ok()) return described.status();
  const ModelConfig& config = described->config;
  const WeightBytes weights = CountWeightBytes(config);
  ModelPlan result;
  if (!described->notice.empty()) result.notices.push_back(described->notice);
  result.info = DescribeModel(config, weights, described->folder, options);
  result.kernels = target->name;
  result.threads = pool.threads();
  Workload workload = asked;
  for (int64_t& length : workload.lengths) length = length == 0 ? config.max_position : length;
  result.lengths = workload.lengths;

  bool chosen_by_machine = true;
  if (!machine.has_value()) {
    Result<std::optional<ChosenMachine>> chosen =
        ChooseMachine(env, options, target->info(), pool.threads());
    if (!chosen.ok()) return chosen.status();
    machine = std::move(*chosen);
  }
  if (!machine.has_value()) {
    Result<plan::Machine> quick = ProbeHardware(env, options, /*quick=*/true);
    // It says how fast, and nothing else: `run` would choose without it.
    chosen_by_machine = false;
    if (quick.ok()) machine = ChosenMachine{std::move(*quick), "quick measurement"};
  }

  Result<kv::HeadPattern> pattern = LoadHeadPattern(env, options, config.shape);
  if (!pattern.ok()) return pattern.status();
  Result<kv::Manifest> session = ReadSession(env, options);
  if (!session.ok()) return session.status();
  std::optional<Budget> device_budget;
  const BackendInfo& info = target->info();
  if (info.own_memory) {
    device_budget.emplace("--gpu-memory", options.gpu_memory > 0
                                              ? options.gpu_memory
                                              : info.free_memory + info.context_memory);
  }
  SetupMemory memory;
  memory.program_bytes = ProgramBytes(described->has_tokenizer ? config.shape.vocab : 0);
  memory.backend = info;
  memory.device_budget = device_budget.has_value() ? &*device_budget : nullptr;
  if (chosen_by_machine) memory.machine = &machine->machine;
  Result<plan::PlanRequest> request = MakePlanRequest(config, weights, options, workload, *pattern,
                                                      &*session, target->sizes(), memory);
  if (!request.ok()) return request.status();
  Result<plan::Plan> plan = MakeSessionPlan(options, &*session, &*request);
  if (!plan.ok()) return plan.status();
  if (!chosen_by_machine && machine.has_value()) {
    request->machine = &machine->machine;
    plan::Predict(*request, &*plan);
  }
  result.plan =
      ReportOf(*plan, plan::FindSmallestBudgets(*request), config.shape.layers, info.own_memory);
  if (machine.has_value()) {
    result.plan.prediction = PredictionOf(*plan, *machine, workload);
    if (explain) result.explain = plan::ExplainSpeed(*request, *plan);
    if ((plan->slabs[2] > 0 || plan->disk_layers > 0) && machine->machine.disk_read <= 0.0) {
      result.notices.push_back(
          "the profile does not say how fast the disk is: what it holds is "
          "predicted to cost nothing; headway probe measures it");
    }
    const auto host = static_cast<double>(plan->Bytes(Tier::kHost));
    if (host > machine->machine.host_memory) {
      result.notices.push_back(fmt::format(
          "this takes {} of host memory, and the machine has {}; bound it with --host-memory, and "
          "give --disk-memory for the rest",
          FormatBytes(static_cast<int64_t>(host)),
          FormatBytes(static_cast<int64_t>(machine->machine.host_memory))));
    }
  }
  return result;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
