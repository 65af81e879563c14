#include "support/step_harness.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/backend/backend.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_kernels.h"
#include "plan/plan.h"

namespace headway::testing {

std::string TestDevice() {
  const char* value = std::getenv("HEADWAY_TEST_DEVICE");
  return value == nullptr ? "cpu" : value;
}

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
  const ModelShape& shape = model.shape();
  std::unique_ptr<StepHarness> h(new StepHarness());
  h->config_ = config;
  // Memory behind a file where there is such a place: the grid asks what is read, not how fast.
  const std::string disk_directory = env->IsDirectory("/dev/shm") ? "/dev/shm" : "/tmp";
  h->pool_ = std::make_unique<ThreadPool>(config.threads);
  Result<std::unique_ptr<Backend>> backend =
      NewBackend(config.use_ref_kernels ? "cpu" : TestDevice(), config.isa);
  if (!backend.ok()) return backend.status();
  Result<std::unique_ptr<Device>> device =
      (*backend)->NewDevice(env, &h->trace_, KernelTimes::kWhereFree);
  if (!device.ok()) return device.status();
  h->device_ = std::move(*device);
  if (Status status = h->PlaceWeights(model, **backend, disk_directory); !status.ok()) {
    return status;
  }
  if (Status status = h->MakeKernels(**backend, env); !status.ok()) return status;
  const Workload workload{{std::vector<int64_t>(static_cast<size_t>(sequences), max_length)}};
  Result<Blueprint> blueprint = h->Draw(model, (*backend)->info(), workload, disk_directory);
  if (!blueprint.ok()) return blueprint.status();
  h->x_segments_ = blueprint->plan.x_segments.front();
  const Layout& layout = blueprint->layout;
  kv::StoreOptions options = layout.store;
  h->MakeBudgets(&options);
  if (Status s = h->kernels_->Prepare(layout.kernels, *h->device_, *h->memory_budget_); !s.ok()) {
    return s;
  }
  options.kernels = h->kernels_.get();
  h->compute_ = *h->device_->NewStream(Lane::kCompute);
  if (config.host || config.host_share > 0.0) {
    if (Status s = h->MakeHost(model, layout); !s.ok()) return s;
  }
  Result<std::unique_ptr<Lanes>> lanes =
      Lanes::Create(h->device_.get(), h->compute_.get(), config.wait_filter);
  if (!lanes.ok()) return lanes.status();
  h->lanes_ = std::move(*lanes);
  Result<std::unique_ptr<kv::Store>> store =
      kv::Store::Create(options, env, h->device_.get(), h->lanes_.get(), nullptr);
  if (!store.ok()) return store.status();
  h->store_ = std::move(*store);
  if (model.Streams(shape.layers - 1)) {
    Result<std::unique_ptr<WeightStream>> weights =
        WeightStream::Create(model, *h->device_, *h->lanes_, *h->memory_budget_, *h->memory_budget_,
                             plan::kWeightBuffers);
    if (!weights.ok()) return weights.status();
    h->weights_ = std::move(*weights);
  }
  ExecutorLimits executor_limits = layout.executor;
  executor_limits.host_reads_device = h->device_->host_reads_memory();
  h->host_share_ = HostShareControl(blueprint->plan.host_share);
  const HostOptions host{h->host_.get(), &h->host_share_, config.adapt ? &h->trace_ : nullptr};
  Result<std::unique_ptr<Executor>> executor =
      Executor::Create({model, *h->kernels_, *h->device_, *h->compute_, *h->store_,
                        *h->memory_budget_, *h->memory_budget_, host, h->weights_.get()},
                       executor_limits);
  if (!executor.ok()) return executor.status();
  h->executor_ = std::move(*executor);
  return h;
}

Status StepHarness::PlaceWeights(Model& model, const Backend& backend,
                                 const std::string& disk_directory) {
  const ModelShape& shape = model.shape();
  const bool streams = config_.weight_layers >= 0 && config_.weight_layers < shape.layers &&
                       !config_.use_ref_kernels;
  const bool moves = backend.info().own_memory && !model.on_device();
  if (moves || (streams && !model.Streams(shape.layers - 1))) {
    // They outlive every model of the test.
    static Budget weights("weights", kUnlimited), host_weights("host weights", kUnlimited),
        disk_weights("disk weights", kUnlimited);
    const std::vector<int> streamed =
        StreamedLayers(shape.layers, streams ? config_.weight_layers : shape.layers);
    if (Status s = model.MoveTo(*device_, {.device_budget = moves ? &weights : nullptr,
                                           .host_budget = &host_weights,
                                           .streamed = streamed,
                                           .on_disk = DiskLayers(streamed, config_.disk_layers),
                                           .disk_budget = &disk_weights,
                                           .directory = disk_directory});
        !s.ok()) {
      return s;
    }
  }
  return OkStatus();
}

Status StepHarness::MakeKernels(Backend& backend, Env* env) {
  if (config_.use_ref_kernels) {
    kernels_ = NewRefKernels();
  } else {
    Result<std::unique_ptr<Kernels>> made = backend.NewKernels(pool_.get(), nullptr);
    if (!made.ok()) return made.status();
    kernels_ = std::move(*made);
  }
  if (config_.wrap_kernels) kernels_ = config_.wrap_kernels(std::move(kernels_));
  if (config_.delays != nullptr) {
    kernels_ = NewDelayingKernels(std::move(kernels_), *device_, config_.delays);
    device_ = NewDelayingDevice(std::move(device_), env, config_.delays);
  }
  return OkStatus();
}

// Which no planner would choose. Where slabs go is up to the budgets, of which the disk's has no
// end.
plan::Plan StepHarness::PlanFor(const ModelConfig& model, const Workload& workload) const {
  plan::Plan plan;
  plan.cache.chunk = config_.chunk;
  plan.cache.group_heads = config_.group_heads == 0 ? model.shape.kv_heads : config_.group_heads;
  plan.cache.segment_tokens = config_.segment_pages * config_.page_slots;
  plan.cache.staging_slabs = config_.staging_slabs;
  plan.cache.bounce_slabs = 2;
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

Result<Blueprint> StepHarness::Draw(const Model& model, const BackendInfo& backend,
                                    const Workload& workload,
                                    const std::string& disk_directory) const {
  Settings settings;
  settings.memory.disk = kNoLimit;
  settings.memory.disk_directory = disk_directory;
  settings.placement = config_.placement;
  settings.cut.page_slots = config_.page_slots;
  settings.encoding = config_.encoding;
  settings.selection = config_.selection;
  settings.reach = Settings::Reach::kOff;  // the selection says how far it reaches
  settings.sparse_from = config_.selection.from;
  const plan::Plan plan = PlanFor(model.config(), workload);
  BlueprintInputs inputs;
  inputs.settings = &settings;
  inputs.config = &model.config();
  inputs.weights = model.weight_bytes();
  inputs.pattern = &config_.pattern;
  inputs.backend = backend;
  inputs.kernels = kernels_.get();
  inputs.plan = &plan;
  return MakeBlueprint(inputs, workload);
}

void StepHarness::MakeBudgets(kv::StoreOptions* options) {
  const kv::StoreFootprint fixed = kv::FootprintOf(*options);
  const int64_t slab = options->format.slab_bytes();
  device_budget_ = std::make_unique<Budget>(
      "device", fixed.open_pages + fixed.append_buffer + fixed.streaming_heads + fixed.staging +
                    fixed.summaries + fixed.sketches + config_.device_slabs * slab);
  host_budget_ =
      std::make_unique<Budget>("host", fixed.bounce + config_.host_slabs * slab +
                                           config_.host_slabs * options->format.x_slab_bytes());
  disk_budget_ = std::make_unique<Budget>("disk", kUnlimited);
  memory_budget_ = std::make_unique<Budget>("memory", kUnlimited);
  options->device_budget = device_budget_.get();
  options->host_budget = host_budget_.get();
  options->disk_budget = disk_budget_.get();
}

Status StepHarness::MakeHost(const Model& model, const Layout& layout) {
  host_pool_ = std::make_unique<ThreadPool>(config_.threads);
  std::unique_ptr<Kernels> kernels = NewRefKernels();
  if (!config_.use_ref_kernels) {
    Result<std::unique_ptr<Kernels>> made = NewCpuKernels(host_pool_.get(), nullptr, config_.isa);
    if (!made.ok()) return made.status();
    kernels = std::move(*made);
  }
  Result<std::unique_ptr<HostAttention>> made = HostAttention::Create(
      layout.host(model.shape()), std::move(kernels), *device_, *memory_budget_);
  if (!made.ok()) return made.status();
  host_ = std::move(*made);
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

Result<std::vector<LogitRows>> StepHarness::Step(std::span<const StepInput> inputs) {
  std::vector<LogitRows> rows(inputs.size());
  const Status status = executor_->Step(
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
