#include "support/step_harness.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/backend/backend.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_kernels.h"
#include "plan/plan.h"
#include "support/apart_device.h"
#include "support/rank_gpus.h"

namespace headway::testing {

std::string TestDevice() {
  const char* value = std::getenv("HEADWAY_TEST_DEVICE");
  return value == nullptr ? "cpu" : value;
}

namespace {

// That of its rank, if there are several.
std::string DeviceOf(const HarnessConfig& config) {
  if (config.communicator == nullptr || TestDevice() == "cpu") return TestDevice();
  const std::vector<int> gpus = GpusOfRanks(config.communicator->ranks());
  return TestDevice() + ":" +
         std::to_string(gpus[static_cast<size_t>(config.communicator->rank())]);
}

}  // namespace

HarnessConfig HarnessConfig::Default() {
  HarnessConfig config;
  const char* value = std::getenv("HEADWAY_TEST_CONFIG");
  const std::string name = value == nullptr ? "" : value;
  if (name == "force_evict") {
    config.placement = kv::PlacementKind::kLru;
    config.device_slabs = 2;
    config.host_slabs = 4;
  } else if (name == "tiny_page") {
    config.page_slots = 4;
    config.segment_pages = 3;
  } else if (name == "disk_only") {
    config.placement = kv::PlacementKind::kDiskOnly;
    config.device_slabs = 0;
    config.host_slabs = 0;
  } else if (name == "one_head_group") {
    config.group_heads = 1;
  } else if (name == "weights" || name == "disk_weights") {
    config.weight_layers = name == "weights" ? 1 : 0;
    config.disk_layers = name == "weights" ? 0 : 2;
  } else if (name == "host_half" || name == "host_all") {
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
    config.group_heads = 2;
    config.host_share = name == "host_half" ? 0.5 : 1.0;
  } else if (name == "recompute_some" || name == "recompute_all") {
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
    config.x_segments = name == "recompute_some" ? 2 : 1 << 20;
  } else if (!name.empty()) {
    std::fprintf(stderr, "unknown HEADWAY_TEST_CONFIG %s\n", name.c_str());
    std::abort();
  }
  return config;
}

Result<std::unique_ptr<StepHarness>> StepHarness::Create(Model& model, const HarnessConfig& config,
                                                         int sequences, int64_t max_length,
                                                         Env* env) {
  std::unique_ptr<StepHarness> h(new StepHarness());
  h->config_ = config;
  Assembly& assembly = h->assembly_;
  assembly.env = env;
  assembly.model = &model;
  assembly.device_budget = assembly.host_budget = assembly.memory_budget = &h->memory_budget_;
  assembly.wait_filter = config.wait_filter;
  assembly.communicator = config.communicator;
  // Memory behind a file where there is such a place: the grid asks what is read, not how fast.
  const std::string disk_directory = env->IsDirectory("/dev/shm") ? "/dev/shm" : "/tmp";
  h->pool_ = std::make_unique<ThreadPool>(config.threads);
  Result<std::unique_ptr<Backend>> backend =
      NewBackend(config.use_ref_kernels ? "cpu" : DeviceOf(config), config.isa);
  if (!backend.ok()) return backend.status();
  Result<std::unique_ptr<Device>> device =
      (*backend)->NewDevice(env, &h->trace_, KernelTimes::kWhereFree);
  if (!device.ok()) return device.status();
  assembly.device = std::move(*device);
  if (Status status = h->PlaceWeights(model, **backend, disk_directory); !status.ok()) {
    return status;
  }
  if (Status status = h->MakeKernels(**backend); !status.ok()) return status;
  const Workload workload{{std::vector<int64_t>(static_cast<size_t>(sequences), max_length)}};
  Result<Blueprint> blueprint = h->Draw((*backend)->info(), workload, disk_directory);
  if (!blueprint.ok()) return blueprint.status();
  h->x_segments_ = blueprint->plan.x_segments.front();
  if (config.sum_rows > 0) blueprint->layout.executor.sum_rows = config.sum_rows;
  h->MakeBudgets(&blueprint->layout);
  if (config.host || config.host_share > 0.0 || config.salient_on_host) {
    if (Status s = h->MakeHost(blueprint->layout); !s.ok()) return s;
  }
  Result<std::unique_ptr<kv::SlabFile>> session = h->OpenSession(blueprint->layout.store);
  if (!session.ok()) return session.status();
  if (Status s = assembly.Build(blueprint->layout, std::move(*session)); !s.ok()) return s;
  return h;
}

Result<std::unique_ptr<kv::SlabFile>> StepHarness::OpenSession(const kv::StoreOptions& options) {
  if (config_.session.empty()) return std::unique_ptr<kv::SlabFile>();
  Result<std::unique_ptr<kv::SessionClaim>> claim =
      kv::SessionClaim::Take(assembly_.env, config_.session);
  if (!claim.ok()) return claim.status();
  if ((*claim)->exists()) return kv::SlabFile::OpenSession(std::move(*claim), options.disk_budget);
  return kv::SlabFile::CreateSession(std::move(*claim), options.format, options.disk_budget);
}

Status StepHarness::PlaceWeights(Model& model, const Backend& backend,
                                 const std::string& disk_directory) {
  const ModelShape& shape = model.shape();
  const bool streams = config_.weight_layers >= 0 && config_.weight_layers < shape.layers &&
                       !config_.use_ref_kernels;
  const bool moves = backend.info().own_memory && !model.on_device();
  if (!moves && !(streams && !model.Streams(shape.layers - 1))) return OkStatus();
  // They outlive every model of the test.
  static Budget weights("weights", kUnlimited), host_weights("host weights", kUnlimited),
      disk_weights("disk weights", kUnlimited);
  const std::vector<int> streamed =
      StreamedLayers(shape.layers, streams ? config_.weight_layers : shape.layers);
  return model.MoveTo(*assembly_.device, {.device_budget = moves ? &weights : nullptr,
                                          .host_budget = &host_weights,
                                          .streamed = streamed,
                                          .on_disk = DiskLayers(streamed, config_.disk_layers),
                                          .disk_budget = &disk_weights,
                                          .directory = disk_directory});
}

Status StepHarness::MakeKernels(Backend& backend) {
  if (config_.use_ref_kernels) {
    assembly_.kernels = NewRefKernels();
  } else {
    Result<std::unique_ptr<Kernels>> made = backend.NewKernels(pool_.get(), nullptr);
    if (!made.ok()) return made.status();
    assembly_.kernels = std::move(*made);
  }
  if (config_.wrap_kernels) assembly_.kernels = config_.wrap_kernels(std::move(assembly_.kernels));
  if (config_.delays != nullptr) {
    assembly_.kernels =
        NewDelayingKernels(std::move(assembly_.kernels), *assembly_.device, config_.delays);
    assembly_.device =
        NewDelayingDevice(std::move(assembly_.device), assembly_.env, config_.delays);
  }
  if (config_.apart) {
    assembly_.device = std::make_unique<ApartDevice>(std::move(assembly_.device));
  }
  return OkStatus();
}

// Which no planner would choose. Where slabs go is up to the budgets, of which the disk's has no
// end.
plan::Plan StepHarness::PlanFor(const ModelConfig& model, const Workload& workload) const {
  plan::Plan plan;
  plan.cache.chunk = config_.chunk;
  plan.cache.stretch_tokens = config_.stretch;
  const int heads = model.shape.kv_heads;
  plan.cache.group_heads = config_.group_heads == 0 ? heads : std::min(config_.group_heads, heads);
  plan.cache.segment_tokens = config_.segment_pages * config_.page_slots;
  plan.cache.staging_slabs = config_.staging_slabs;
  plan.cache.bounce_slabs = 2;
  plan.cache.sketches = config_.sketches;
  plan.listed_slabs = config_.listed_slabs;
  plan.slabs[static_cast<size_t>(Tier::kDisk)] = 1;
  plan.host_share = config_.host_share;
  const bool windows = std::any_of(model.windows.begin(), model.windows.end(),
                                   [](int64_t window) { return window > 0; });
  const int x_segments = windows ? 0 : config_.x_segments;
  plan.x_segments.assign(workload.lengths.size(), x_segments);
  const int64_t pages = config_.gather_pages == 0
                            ? config_.segment_pages + config_.segment_pages / 2
                            : config_.gather_pages;
  plan.gather_tokens = x_segments > 0 ? pages * config_.page_slots : 0;
  return plan;
}

Result<Blueprint> StepHarness::Draw(const BackendInfo& backend, const Workload& workload,
                                    const std::string& disk_directory) const {
  Settings settings;
  settings.memory.disk = kNoLimit;
  settings.memory.disk_directory = disk_directory;
  settings.placement = config_.placement;
  settings.cut.page_slots = config_.page_slots;
  settings.encoding = config_.encoding;
  settings.selection = config_.selection;
  settings.eviction = config_.eviction;
  settings.salience = config_.salience;
  settings.salient_on_host = config_.salient_on_host;
  if (config_.salience.chooses()) settings.host_share = config_.salient_by_cores;
  settings.self_extend = config_.self_extend;
  settings.drafts.tokens = config_.drafts;
  settings.reach = Settings::Reach::kOff;  // the selection says how far it reaches
  settings.sparse_from = config_.selection.from;
  const Model& model = *assembly_.model;
  const plan::Plan plan = PlanFor(model.config(), workload);
  BlueprintInputs inputs;
  inputs.settings = &settings;
  inputs.config = &model.config();
  inputs.weights = model.weight_bytes();
  inputs.pattern = &config_.pattern;
  inputs.backend = backend;
  inputs.backend.own_memory = !assembly_.device->host_reads_memory();
  inputs.kernels = assembly_.kernels.get();
  inputs.plan = &plan;
  inputs.heads = config_.heads;
  return MakeBlueprint(inputs, workload);
}

void StepHarness::MakeBudgets(Layout* layout) {
  kv::StoreOptions* const options = &layout->store;
  options->page_cache_bytes = config_.page_cache_bytes;
  options->poison_freed = config_.poison_freed;
  const kv::StoreFootprint fixed = kv::FootprintOf(*options);
  const int64_t slab = options->format.slab_bytes();
  const int64_t kept = layout->kept.has_value() ? layout->kept->StoreBytes() : 0;
  const DemotedLimits* const demoted = layout->demoted();
  const int64_t summaries = demoted == nullptr ? 0 : Demoted::SummaryBytes(*demoted);
  const int64_t let_go = demoted == nullptr ? 0 : Demoted::HostBytes(*demoted);
  const int64_t salient =
      layout->salience.has_value() ? Salience::TokenBytes(*layout->salience) : 0;
  const bool on_host = config_.salient_on_host;
  device_budget_ = std::make_unique<Budget>(
      "device", fixed.open_pages + fixed.append_buffer + fixed.streaming_heads + fixed.staging +
                    fixed.summaries + fixed.sketches + config_.page_cache_bytes +
                    config_.device_slabs * slab + kept + summaries + (on_host ? 0 : salient));
  const int64_t hidden = HiddenStates::HostBytes(assembly_.model->shape(), layout->executor);
  host_budget_ = std::make_unique<Budget>(
      "host", fixed.bounce + fixed.host_sketches + hidden + (on_host ? salient : 0) + let_go +
                  config_.host_slabs * slab + config_.host_slabs * options->format.x_slab_bytes());
  options->device_budget = device_budget_.get();
  options->host_budget = host_budget_.get();
  options->disk_budget = &disk_budget_;
}

Status StepHarness::MakeHost(const Layout& layout) {
  host_pool_ = std::make_unique<ThreadPool>(config_.threads);
  std::unique_ptr<Kernels> kernels = NewRefKernels();
  if (!config_.use_ref_kernels) {
    Result<std::unique_ptr<Kernels>> made = NewCpuKernels(host_pool_.get(), nullptr, config_.isa);
    if (!made.ok()) return made.status();
    kernels = std::move(*made);
  }
  Result<std::unique_ptr<HostAttention>> made = HostAttention::Create(
      layout.host(assembly_.model->shape()), std::move(kernels), *assembly_.device, memory_budget_);
  if (!made.ok()) return made.status();
  assembly_.host_attention = std::move(*made);
  assembly_.host_share = HostShareControl(config_.host_share);
  assembly_.host_trace = config_.adapt ? &trace_ : nullptr;
  return OkStatus();
}

StepHarness::~StepHarness() = default;

Result<LogitRows> StepHarness::Append(kv::SequenceId sequence, std::span<const TokenId> tokens,
                                      const RopeFrequencies& rope) {
  LogitRows rows;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(tokens.size() - at, static_cast<size_t>(config_.chunk));
    const StepInput input{sequence, tokens.subspan(at, n), &rope, LogitsMode::kAll};
    Result<std::vector<LogitRows>> step = Step({&input, 1});
    if (!step.ok()) return step.status();
    for (std::vector<float>& row : (*step)[0]) rows.push_back(std::move(row));
    at += n;
  }
  return rows;
}

Result<std::vector<LogitRows>> StepHarness::Step(Executor& executor,
                                                 std::span<const StepInput> inputs) {
  std::vector<LogitRows> rows(inputs.size());
  const Status status = executor.Step(
      inputs,
      [&](int entry, int64_t, std::span<float> logits) {
        rows[static_cast<size_t>(entry)].emplace_back(logits.begin(), logits.end());
        return OkStatus();
      },
      nullptr);
  if (!status.ok()) return status;
  return rows;
}

}  // namespace headway::testing
