// Planning without loading: from a model's config.json and the headers of its weights.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "engine/blueprint.h"
#include "engine/context.h"
#include "engine/draft_plan.h"
#include "engine/eviction_settings.h"
#include "engine/found_shares.h"
#include "engine/head_assignment.h"
#include "engine/head_pattern.h"
#include "engine/layer_ranks.h"
#include "engine/measure.h"
#include "engine/model_check.h"
#include "engine/model_info.h"
#include "engine/page_size.h"
#include "engine/ranks.h"
#include "engine/refused.h"
#include "engine/report.h"
#include "engine/settings.h"
#include "headway/engine.h"
#include "model/locate.h"
#include "model/model.h"
#include "model/weights/open_weights.h"
#include "plan/communication.h"

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

Result<Described> DescribeAsItIs(Env& env, const std::string& model, const Settings& settings) {
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

Result<Described> Describe(Env& env, const std::string& model, const Settings& settings) {
  Result<Described> described = DescribeAsItIs(env, model, settings);
  if (!described.ok() || !settings.rope_scaling.has_value()) return described;
  const Status scaled = ScaleRope(*settings.rope_scaling, &described->config);
  return scaled.ok() ? std::move(described) : scaled;
}

// The backend to plan for: that of the options, or a GPU that need not be here.
struct ChosenBackend {
  std::unique_ptr<Backend> here;
  std::unique_ptr<Kernels> kernels;
  PlannedBackend planned;
  std::string name;

  const BackendInfo& info() const { return here == nullptr ? planned.info : here->info(); }
  const KernelSizes& sizes() const { return here == nullptr ? *planned.sizes : *kernels; }
};

Result<ChosenBackend> BackendFor(const hardware::Target& wanted,
                                 const std::optional<hardware::ChosenProfile>& given,
                                 ThreadPool* pool) {
  ChosenBackend chosen;
  if (given.has_value() && given->machine.own_memory) {
    chosen.planned = PlanGpuBackend(static_cast<int64_t>(given->machine.device_memory));
    chosen.name = given->machine.name;
    return chosen;
  }
  Result<std::unique_ptr<Backend>> backend = NewBackend(wanted.device, wanted.isa_name());
  if (!backend.ok()) {
    return backend.status().Within({},
                                   {"; ", Option::kMachine, " plans for a GPU that is not here"});
  }
  chosen.here = std::move(*backend);
  Result<std::unique_ptr<Kernels>> kernels = chosen.here->NewKernels(pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  chosen.kernels = std::move(*kernels);
  chosen.name = chosen.kernels->name();
  return chosen;
}

// What a plan is made for, before anything is planned.
struct Planning {
  Settings settings;  // of the first rank
  ChosenBackend backend;
  Described model;
  // Of the first of several ranks, which has the largest.
  std::optional<Shard> shard;
  std::optional<HeadAssignment> assignment;
  RankHeads heads;
  std::vector<LayerRun> runs;  // of ranks that have a run of layers each; empty: there are none
  std::optional<DraftBasis> draft;
  Workload workload;
  // The machine whose times are predicted, and whether cuts are chosen for it: `run` would choose
  // without what is measured here.
  std::optional<hardware::ChosenProfile> machine;
  enum class Chooses { kYes, kNo };
  Chooses machine_chooses = Chooses::kYes;
};

Status FindMachine(Env& env, int threads, Planning* planning) {
  if (planning->machine.has_value()) return OkStatus();
  Result<std::optional<hardware::ChosenProfile>> chosen =
      hardware::ChooseProfile(env, std::nullopt, planning->backend.info(), threads);
  if (!chosen.ok()) return chosen.status();
  planning->machine = std::move(*chosen);
  if (planning->machine.has_value()) return OkStatus();
  planning->machine_chooses = Planning::Chooses::kNo;
  Result<MachineProfile> quick = MeasureMachine(env, planning->settings, hardware::Depth::kQuick);
  if (quick.ok()) {
    planning->machine = hardware::ChosenProfile{std::move(*quick), "quick measurement"};
  }
  return OkStatus();
}

Status DescribeDraft(Env& env, Planning* planning) {
  const Settings& settings = planning->settings;
  if (settings.drafts.by != DraftSettings::By::kModel) return OkStatus();
  const Result<Described> draft = DescribeAsItIs(env, settings.drafts.model, settings);
  if (!draft.ok()) return OfDraft(draft.status());
  planning->draft = DraftBasisOf(settings, draft->config, CountWeightBytes(draft->config));
  return OkStatus();
}

Result<Planning> FindPlanning(Env& env, const std::string& model, Settings settings,
                              ThreadPool* pool) {
  Planning planning;
  planning.settings = std::move(settings);
  if (planning.settings.machine.has_value()) {
    Result<hardware::ChosenProfile> loaded = hardware::LoadProfile(env, *planning.settings.machine);
    if (!loaded.ok()) {
      return loaded.status().Within({Option::kMachine, ": "});
    }
    planning.machine = std::move(*loaded);
  }
  Result<ChosenBackend> backend = BackendFor(planning.settings.target, planning.machine, pool);
  if (!backend.ok()) return backend.status();
  planning.backend = std::move(*backend);
  if (planning.machine.has_value()) {
    if (Status s = hardware::CheckKind(*planning.machine, planning.backend.info()); !s.ok())
      return s;
  }
  Result<Described> described = Describe(env, model, planning.settings);
  if (!described.ok()) return described.status();
  planning.model = std::move(*described);
  if (Status s = LoadShares(env, planning.model.config, &planning.settings); !s.ok()) return s;
  FitPages(planning.model.config.shape, &planning.settings);
  if (Status s = DescribeDraft(env, &planning); !s.ok()) return s;
  if (planning.settings.layer_ranks > 1) {
    // On devices that have as much memory.
    const std::vector<int64_t> memory(static_cast<size_t>(planning.settings.layer_ranks), 1);
    Result<std::vector<LayerRun>> runs = CutLayers(planning.model.config, memory);
    if (!runs.ok()) return runs.status();
    planning.runs = std::move(*runs);
  }
  if (planning.settings.ranks > 1) {
    planning.assignment = AssignHeads(planning.model.config.shape, planning.settings);
    planning.heads = planning.assignment->Of(0);
    Result<std::vector<Shard>> shards = ShardsOf(planning.model.config, planning.heads);
    if (!shards.ok()) return shards.status();
    planning.shard = std::move(shards->front());
  }
  const int threads = planning.settings.machine_threads.value_or(pool->threads());
  if (Status s = FindMachine(env, threads, &planning); !s.ok()) return s;
  if (planning.machine.has_value()) {
    MachineProfile& machine = planning.machine->machine;
    machine = plan::MachineOfRank(machine, {planning.settings.ranks, planning.settings.nodes});
  }
  return planning;
}

// Of the first rank, or of one with a run of layers; else `run` is null.
Result<Blueprint> Draw(Env& env, const Planning& planning, const Settings& settings,
                       const LayerRun* run) {
  const Shard* const shard = planning.shard.has_value() ? &*planning.shard : nullptr;
  ModelConfig config = run == nullptr ? planning.model.config : run->config;
  const WeightBytes weights = CountWeightBytes(config, run == nullptr ? shard : &run->shard);
  if (shard != nullptr) config.shape = ShardShape(config.shape, *shard);
  Result<kv::HeadPattern> pattern = LoadHeadPattern(env, settings, planning.model.config.shape);
  if (!pattern.ok()) return pattern.status();
  if (run != nullptr) pattern = PatternOfRun(*pattern, config);
  std::vector<kv::HeadPattern> rank_patterns;
  if (shard != nullptr) {
    rank_patterns = PatternsOfRanks(*pattern, planning.heads, config.shape.kv_heads);
    pattern = rank_patterns.front();
  }
  Result<kv::Manifest> session = SessionManifest(env, settings);
  if (!session.ok()) return session.status();
  const BackendInfo& info = planning.backend.info();
  BlueprintInputs inputs;
  inputs.settings = &settings;
  inputs.config = &config;
  if (shard != nullptr) inputs.whole = &planning.model.config;
  inputs.weights = weights;
  inputs.pattern = &*pattern;
  inputs.session = &*session;
  if (shard != nullptr) {
    inputs.heads = &planning.heads;
    inputs.rank_patterns = &rank_patterns;
  }
  inputs.backend = info;
  inputs.kernels = &planning.backend.sizes();
  if (info.own_memory) {
    inputs.device_memory = settings.memory.gpu.value_or(info.free_memory + info.context_memory);
  }
  if (planning.machine_chooses == Planning::Chooses::kYes)
    inputs.machine = &planning.machine->machine;
  const bool reads_text = planning.model.has_tokenizer && config.first_layer == 0;
  inputs.program_bytes = ProgramBytes(reads_text ? config.shape.vocab : 0);
  const DraftBasis* const draft = planning.draft.has_value() ? &*planning.draft : nullptr;
  Result<Blueprint> blueprint = MakeBlueprints(inputs, draft, planning.workload);
  if (!blueprint.ok()) return OfRanks(settings, blueprint.status());
  UseFoundShare(env, FoundKey(settings, planning.model.folder, config, *blueprint), &*blueprint);
  if (settings.eviction.evicts()) {
    const std::vector<int64_t>& lengths = planning.workload.lengths;
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    blueprint->admission.emplace().kept = FittingSequences(inputs, longest);
    Settings whole = settings;
    whole.eviction = {};
    whole.memory.host = whole.memory.disk = 0;  // steps are as fast as those over what is kept
    inputs.settings = &whole;
    blueprint->admission->whole = FittingSequences(inputs, longest);
    inputs.settings = &settings;
  }
  if (inputs.machine == nullptr && planning.machine.has_value()) {
    blueprint->request.machine = &planning.machine->machine;
    plan::Predict(blueprint->request, &blueprint->plan);
  }
  return blueprint;
}

// Of ranks with a run of layers each those behind the first; of others none.
Result<std::vector<Blueprint>> DrawRuns(Env& env, const Planning& planning,
                                        const Blueprint& first) {
  std::vector<Blueprint> drawn;
  for (size_t rank = 1; rank < planning.runs.size(); ++rank) {
    const LayerRun& run = planning.runs[rank];
    Settings own = SettingsOfRun(planning.settings, first);
    TakeRun(planning.model.config, run.config, &own);
    Result<Blueprint> blueprint = Draw(env, planning, own, &run);
    if (!blueprint.ok()) return blueprint.status();
    drawn.push_back(std::move(*blueprint));
  }
  return drawn;
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
                            const Workload& workload, Explain explain, int nodes) try {
  Env& env = *Env::Default();
  Result<Settings> settings = ReadSettings(options);
  if (!settings.ok()) return settings.status();
  if (nodes < 1 || settings->ranks % nodes != 0) {
    return Wrong(
        {Option::kTensorParallel,
         fmt::format(" {}: {} machines cannot have as many ranks each", settings->ranks, nodes)});
  }
  settings->nodes = nodes;
  Settings own = SettingsOfRank(*settings, 0);
  ThreadPool pool(own.target.pool_threads());
  Result<Planning> planning = FindPlanning(env, model, std::move(own), &pool);
  if (!planning.ok()) return planning.status();
  const ModelConfig& config = planning->model.config;
  const WeightBytes weights = CountWeightBytes(config);
  if (Status s = CheckModel(*settings, config); !s.ok()) return s;
  if (Status s = CheckWeightForm(*settings, weights, planning->model.folder); !s.ok()) return s;
  planning->workload = workload;
  for (int64_t& length : planning->workload.lengths) {
    length = length == 0 ? config.max_position : length;
  }
  const LayerRun* const first = planning->runs.empty() ? nullptr : planning->runs.data();
  Settings of_first = planning->settings;
  if (first != nullptr) TakeRun(config, first->config, &of_first);
  Result<Blueprint> blueprint = Draw(env, *planning, of_first, first);
  if (!blueprint.ok()) return blueprint.status();
  const Result<std::vector<Blueprint>> runs = DrawRuns(env, *planning, *blueprint);
  if (!runs.ok()) return runs.status();
  ModelPlan result;
  if (!planning->model.notice.empty()) result.notices.push_back({planning->model.notice});
  result.info = ModelInfoOf(config, weights, planning->model.folder, planning->settings);
  result.kernels = planning->backend.name;
  result.threads = settings->ranks * pool.threads();
  result.lengths = planning->workload.lengths;
  result.plan = ReportOf(*blueprint);
  TellOfRanks(*settings, planning->assignment, std::ssize(planning->workload.lengths),
              &result.plan);
  TellOfRuns(*blueprint, *runs, &result.plan);
  if (!planning->machine.has_value()) return result;
  result.plan.prediction = PredictionOf(*blueprint, *planning->machine);
  PredictRuns(*blueprint, *runs, &result.plan);
  if (explain == Explain::kYes) {
    result.explain = plan::ExplainSpeed(blueprint->request, blueprint->plan);
  }
  for (Message& notice : NoticesOf(blueprint->plan, planning->machine->machine)) {
    result.notices.push_back(std::move(notice));
  }
  return result;
} catch (...) {
  return StatusOfException();
}

}  // namespace headway
