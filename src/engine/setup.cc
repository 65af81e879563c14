#include "engine/setup.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/bytes.h"
#include "kernels/page_codec.h"
#include "model/config_identity.h"
#include "plan/choose.h"

namespace headway {
namespace {

// The largest length whose positions fit the i32 that kernels take.
constexpr int64_t kMaxLength = int64_t{1} << 30;
// Of a token of the context in the program: its text and its id, which the caller, the request and
// the slot hold.
constexpr int64_t kTextBytes = 32;

// Of options.kv_encoding for a model whose cache is in `dtype` otherwise.
Result<Encoding> EncodingOf(const EngineOptions& options, DType dtype, const KernelSizes& kernels) {
  const std::string& name = options.kv_encoding;
  if (name == DTypeName(dtype)) return Encoding::kNone;
  if (name == "bf16" || name == "f16") {
    return Status(StatusCode::kUnsupported, "--kv-encoding " + name +
                                                ": this model's cache is in " + DTypeName(dtype) +
                                                "; use none, int8, fp8 or int4");
  }
  Result<Encoding> encoding = ParseEncoding(name);
  if (encoding.ok() && !kernels.TakesEncoding(*encoding)) {
    return Status(StatusCode::kUnsupported,
                  "--kv-encoding " + name +
                      ": this device does not read it yet; leave it out or use --device cpu");
  }
  return encoding;
}

kv::StoreOptions StoreOptionsFor(const ModelConfig& config, const EngineOptions& options,
                                 const Workload& workload, const kv::HeadPattern& pattern,
                                 Encoding encoding, const plan::CacheChoice& choice) {
  kv::StoreOptions store;
  store.format.layers = config.shape.layers;
  store.format.kv_heads = config.shape.kv_heads;
  store.format.page = {config.shape.dtype, options.page_slots, config.shape.head_dim, encoding};
  store.format.group_heads = choice.group_heads;
  store.format.segment_pages = static_cast<int>(choice.segment_tokens / options.page_slots);
  store.format.window = config.windows;
  store.format.pattern = pattern;
  // More than there will be is room that nothing fills.
  const int64_t longest = *std::max_element(workload.lengths.begin(), workload.lengths.end());
  store.format.pattern.sink = std::min(pattern.sink, longest);
  store.format.pattern.recent = std::min(pattern.recent, longest);
  store.gather_tokens = plan::GatherTokens(choice, workload.lengths);
  store.format.x_width = store.gather_tokens > 0 ? config.shape.d_model : 0;
  store.max_sequences = static_cast<int>(workload.lengths.size());
  store.max_step_tokens = std::max<int64_t>(choice.chunk, store.max_sequences);
  store.staging_slabs = choice.staging_slabs;
  store.bounce_slabs = choice.bounce_slabs;
  store.disk_directory = options.disk_path;
  return store;
}

ExecutorLimits ExecutorLimitsFor(const kv::StoreOptions& store, const Workload& workload,
                                 const KernelSizes& kernels) {
  ExecutorLimits limits;
  limits.step_tokens = store.max_step_tokens;
  limits.entries = store.max_sequences;
  limits.length = *std::max_element(workload.lengths.begin(), workload.lengths.end());
  limits.segment_tokens = store.format.segment_tokens();
  limits.gather_tokens = store.gather_tokens;
  limits.page_slots = store.format.page.page_slots;
  limits.streaming_heads = store.format.pattern.StreamingHeads() > 0;
  limits.activation_dtype = kernels.ActivationDType(store.format.page.dtype);
  return limits;
}

KernelLimits KernelLimitsFor(const ModelShape& shape, const kv::StoreOptions& store,
                             const KernelSizes& kernels) {
  KernelLimits limits;
  limits.rows = std::max(store.max_step_tokens, store.gather_tokens);
  limits.max_in = std::max({shape.d_model, shape.d_ff, shape.query_heads * shape.head_dim});
  limits.max_out = std::max(limits.max_in, static_cast<int64_t>(shape.vocab));
  limits.head_dim = shape.head_dim;
  limits.group = shape.group();
  limits.query_heads = shape.query_heads;
  limits.vocab = shape.vocab;
  limits.activation = kernels.ActivationDType(shape.dtype);
  limits.encoding = store.format.page.encoding;
  return limits;
}

// What a policy fixes. HeadInfer's Algorithm 1 fetches the KV cache of the next head while the one
// before is attended to; offloading by layers, the paper's baseline, does that with all heads.
// KVPR recomputes the share of each layer's keys that its closed form says, and copies the rest.
void ApplyPolicy(const std::string& policy, plan::PlanRequest* request) {
  if (policy == "auto") return;
  if (policy == "kvpr") {
    request->fixed.staging_slabs = 2;
    if (request->machine == nullptr) return;  // refused by ApplyRecompute
    request->fixed.recompute =
        plan::RecomputeSplit(request->shape, 1.0, request->machine->host_to_device.Peak(),
                             request->machine->gemm.Peak());
    return;
  }
  request->fixed.group_heads = policy == "headinfer" ? 1 : request->shape.kv_heads;
  request->fixed.segment_tokens = plan::WholeSegment(*request);
  request->fixed.staging_slabs = 2;
}

// Why nothing can be recomputed under these options; empty where something can.
std::string WhyNoRecompute(const EngineOptions& options, const plan::PlanRequest& request,
                           Encoding encoding) {
  const bool windows = std::any_of(request.window.begin(), request.window.end(),
                                   [](int64_t window) { return window > 0; });
  const int group = request.fixed.group_heads;
  if (!options.session.empty()) return "a session keeps keys and values; leave out --session";
  if (encoding != Encoding::kNone) return "the cache is encoded; leave out --kv-encoding";
  if (!request.slab_heads.empty()) return "there are streaming heads; leave out --head-pattern";
  if (windows) return "this model's layers have sliding windows";
  if (!request.keep_on_host) return "X is kept in host memory; leave out --placement disk-only";
  if (group != 0 && group < request.shape.kv_heads) {
    return "X is that of all heads; leave out --head-group";
  }
  return "";
}

// Options recompute_share and policy: what the plan must recompute, or may.
Status ApplyRecompute(const EngineOptions& options, bool own_memory, Encoding encoding,
                      plan::PlanRequest* request) {
  const bool kvpr = options.policy == "kvpr";
  if (kvpr && (options.recompute_share > 0.0 || options.host_share > 0.0)) {
    return Status(StatusCode::kInvalidArgument,
                  "policy kvpr fixes what is recomputed and streams the rest; leave out "
                  "--recompute and --host-attention");
  }
  if (kvpr && request->machine == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "policy kvpr recomputes as much as the machine's speeds say: run headway probe "
                  "once, or give --machine");
  }
  const std::string why = WhyNoRecompute(options, *request, encoding);
  if (options.recompute_share == kRecomputeAuto) {
    // Without a bus there is nothing to save.
    request->recompute = own_memory && options.policy == "auto" && why.empty();
  } else if (!kvpr) {
    request->fixed.recompute = options.recompute_share;
  }
  if (kvpr || request->fixed.recompute > 0.0) {
    if (!why.empty()) {
      return Status(StatusCode::kUnsupported,
                    (kvpr ? "--policy kvpr" : "--recompute") + (": " + why));
    }
    request->fixed.group_heads = request->shape.kv_heads;
  }
  return OkStatus();
}

Status CheckSession(const ModelConfig& config, const EngineOptions& options, Encoding encoding,
                    const kv::Manifest& session) {
  const kv::CacheFormat& format = session.format;
  const std::string differs = IdentityDifference(session.model_config, ConfigIdentity(config));
  if (!differs.empty()) return OtherModel(options, differs);
  // So that nothing is taken for granted of a file that was made up.
  const bool fits = format.layers == config.shape.layers &&
                    format.kv_heads == config.shape.kv_heads &&
                    format.page.head_dim == config.shape.head_dim &&
                    format.page.dtype == config.shape.dtype && session.keys_rotated;
  if (!fits) return OtherModel(options, "another cache");
  if (format.page.page_slots != options.page_slots) {
    return Status(StatusCode::kInvalidArgument,
                  "session " + options.session + " has pages of " +
                      std::to_string(format.page.page_slots) + " slots; use --page " +
                      std::to_string(format.page.page_slots) + " or another --session file");
  }
  if (format.page.encoding != encoding) {
    const std::string saved = EncodingName(format.page.encoding);
    return Status(StatusCode::kInvalidArgument,
                  "session " + options.session + " keeps its cache in KV encoding " + saved +
                      "; use --kv-encoding " + saved + " or another --session file");
  }
  if (options.policy != "auto") {
    return Status(StatusCode::kInvalidArgument, "session " + options.session +
                                                    " fixes how the cache is cut; continue it "
                                                    "without --policy " +
                                                    options.policy);
  }
  return OkStatus();
}

}  // namespace

Status CheckOptions(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return Status(StatusCode::kInvalidArgument, "threads must be 0 to 1024");
  }
  // NaN is neither.
  const auto is_share = [](double share, double automatic) {
    return share == automatic || (share >= 0.0 && share <= 1.0);
  };
  if (!is_share(options.host_share, kHostShareAuto)) {
    return Status(StatusCode::kInvalidArgument, "the host's share must be 0 to 1, or auto");
  }
  if (!is_share(options.recompute_share, kRecomputeAuto)) {
    return Status(StatusCode::kInvalidArgument, "the share to recompute must be 0 to 1, or auto");
  }
  return OkStatus();
}

Status OtherModel(const EngineOptions& options, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "session " + options.session + " was made with " +
                                                  what + "; give another --session file");
}

int64_t ClosedBytesPerToken(const ModelShape& shape, const EngineOptions& options) {
  const Result<Encoding> encoding = ParseEncoding(options.kv_encoding);
  const PageFormat page = {shape.dtype, std::max(1, options.page_slots), shape.head_dim,
                           encoding.ok() ? *encoding : Encoding::kNone};
  const int64_t params = page.encoding == Encoding::kNone ? 0 : ParamBytes(page);
  return (2 * static_cast<int64_t>(page.closed_bytes()) + params) * shape.layers * shape.kv_heads /
         page.page_slots;
}

Result<kv::PlacementKind> PlacementOf(const EngineOptions& options) {
  const std::string& name = options.placement;
  if (options.policy == "headinfer" || options.policy == "layerwise" || options.policy == "kvpr") {
    if (options.head_group != 0 || options.segment != 0 || options.staging_slabs != 0 ||
        name != EngineOptions{}.placement) {
      return Status(
          StatusCode::kInvalidArgument,
          "policy " + options.policy +
              " fixes head group, segment, staging buffers and placement; leave them out");
    }
    return kv::PlacementKind::kHostOnly;
  }
  if (options.policy != "auto") {
    return Status(
        StatusCode::kInvalidArgument,
        "unknown policy '" + options.policy + "'; there are auto, headinfer, layerwise, kvpr");
  }
  if (name == "first-fit") return kv::PlacementKind::kFirstFit;
  if (name == "lru") return kv::PlacementKind::kLru;
  if (name == "host-only") return kv::PlacementKind::kHostOnly;
  if (name == "disk-only") return kv::PlacementKind::kDiskOnly;
  return Status(StatusCode::kInvalidArgument,
                "unknown placement '" + name + "'; there are first-fit, lru, host-only, disk-only");
}

int64_t DiskMemoryLimit(const EngineOptions& options) {
  return !options.session.empty() && options.disk_memory == 0 ? kNoLimit : options.disk_memory;
}

std::optional<std::string> ProfileName(const EngineOptions& options) {
  return options.machine.empty() ? std::nullopt : std::optional(options.machine);
}

bool PlansHostShare(const EngineOptions& options, const BackendInfo& backend) {
  return options.host_share == kHostShareAuto && backend.own_memory && options.policy == "auto";
}

Result<plan::PlanRequest> MakePlanRequest(const ModelConfig& config, const WeightBytes& weights,
                                          const EngineOptions& options, const Workload& workload,
                                          const kv::HeadPattern& pattern,
                                          const kv::Manifest* session, const KernelSizes& kernels,
                                          const SetupMemory& memory) {
  Result<kv::PlacementKind> placement = PlacementOf(options);
  if (!placement.ok()) return placement.status();
  const Result<Encoding> encoding = EncodingOf(options, config.shape.dtype, kernels);
  if (!encoding.ok()) return encoding.status();
  if (workload.lengths.empty() || workload.lengths.size() > 4096) {
    return Status(StatusCode::kInvalidArgument, "a workload has 1 to 4096 sequences");
  }
  for (int64_t length : workload.lengths) {
    if (length < 1 || length > kMaxLength) {
      return Status(StatusCode::kInvalidArgument, "a sequence of " + std::to_string(length) +
                                                      " tokens; 1 to " +
                                                      std::to_string(kMaxLength) + " are possible");
    }
    if (config.learned_positions && length > config.max_position) {
      return Status(StatusCode::kInvalidArgument,
                    "a context of " + std::to_string(length) + " tokens, and this " +
                        config.architecture + " has learned " +
                        std::to_string(config.max_position) +
                        " positions; use a context of at most so many");
    }
  }
  if (options.page_slots < 1 || options.page_slots > 4096) {
    return Status(StatusCode::kInvalidArgument, "a page has 1 to 4096 slots");
  }
  plan::PlanRequest request;
  request.shape = config.shape;
  request.window = config.windows;
  if (!pattern.streaming.empty()) {
    for (int layer = 0; layer < config.shape.layers; ++layer) {
      request.slab_heads.push_back(config.shape.kv_heads - pattern.StreamingIn(layer));
    }
  }
  request.page_slots = options.page_slots;
  request.lengths = workload.lengths;
  request.weight_bytes = weights.total();
  request.layer_weight_bytes = weights.layer;
  request.weight_layers = memory.weight_layers >= 0 ? memory.weight_layers : options.gpu_layers;
  request.disk_layers = memory.disk_layers;
  request.layer_read_bytes = weights.layer_read;
  request.weights_in_files = !options.random_weights;
  request.other_bytes = memory.program_bytes +
                        kTextBytes * std::reduce(workload.lengths.begin(), workload.lengths.end());
  request.chunk = memory.backend.chunk;
  request.segment = memory.backend.segment;
  request.budgets = {options.kv_memory, options.host_memory, DiskMemoryLimit(options)};
  if (memory.device_budget != nullptr) {
    request.budgets.device = memory.device_budget->limit();
    request.driver_bytes = memory.backend.context_memory;
    request.map_share = memory.backend.map_share;
  }
  request.keep_on_device =
      *placement == kv::PlacementKind::kFirstFit || *placement == kv::PlacementKind::kLru;
  request.keep_on_host = *placement != kv::PlacementKind::kDiskOnly;
  request.session = !options.session.empty();
  request.machine = memory.machine;
  request.host_attention = PlansHostShare(options, memory.backend);
  request.host_share = options.host_share == kHostShareAuto ? 0.0 : options.host_share;
  request.fixed.chunk = options.chunk;
  request.fixed.group_heads = options.head_group;
  request.fixed.segment_tokens = options.segment;
  request.fixed.staging_slabs = options.staging_slabs;
  ApplyPolicy(options.policy, &request);
  if (Status s = ApplyRecompute(options, memory.backend.own_memory, *encoding, &request); !s.ok()) {
    return s;
  }
  // Also one that is too short for a closed page: its file has slots of a slab.
  if (session != nullptr && session->format.layers > 0) {
    if (Status s = CheckSession(config, options, *encoding, *session); !s.ok()) return s;
    request.fixed.group_heads = session->format.group_heads;
    request.fixed.segment_tokens = session->format.segment_tokens();
  }
  const auto store_of = [config, options, workload, pattern,
                         encoding = *encoding](const plan::CacheChoice& choice) {
    return StoreOptionsFor(config, options, workload, pattern, encoding, choice);
  };
  request.costs.cache = [store_of](const plan::CacheChoice& choice) {
    const kv::StoreOptions store = store_of(choice);
    const kv::StoreFootprint footprint = kv::FootprintOf(store);
    return plan::CacheBytes{footprint.open_pages,       footprint.append_buffer,
                            footprint.streaming_heads,  footprint.staging,
                            footprint.bounce,           store.format.slab_bytes(),
                            store.format.x_slab_bytes()};
  };
  request.costs.activations = [config, store_of, workload,
                               &kernels](const plan::CacheChoice& choice) {
    return Executor::Bytes(config.shape, ExecutorLimitsFor(store_of(choice), workload, kernels),
                           kernels);
  };
  request.costs.workspace = [config, store_of, &kernels](const plan::CacheChoice& choice) {
    return kernels.WorkspaceBytes(KernelLimitsFor(config.shape, store_of(choice), kernels));
  };
  return request;
}

Result<plan::Plan> MakeSessionPlan(const EngineOptions& options, const kv::Manifest* session,
                                   plan::PlanRequest* request) {
  Result<plan::Plan> plan = plan::MakePlan(*request);
  const bool cut = session != nullptr && session->format.layers > 0;
  if (plan.status().code() != StatusCode::kOutOfBudget || !cut) return plan;
  plan::PlanRequest freed = *request;
  freed.fixed.group_heads = options.head_group;
  freed.fixed.segment_tokens = options.segment;
  Result<plan::Plan> other = plan::MakePlan(freed);
  if (!other.ok()) return plan;
  if (!options.session_recut) {
    return Status(StatusCode::kOutOfBudget,
                  "session " + options.session + " fixes how the cache is cut (head group " +
                      std::to_string(session->format.group_heads) + ", segment " +
                      std::to_string(session->format.segment_tokens()) + "), and so " +
                      plan.status().message() +
                      "; or --session-recut, which reads the prompt again into a smaller cut");
  }
  *request = std::move(freed);
  return other;
}

Result<Setup> MakeSetup(const ModelConfig& config, const WeightBytes& weights,
                        const EngineOptions& options, const Workload& workload,
                        const kv::HeadPattern& pattern, const kv::Manifest* session,
                        const KernelSizes& kernels, const SetupMemory& memory) {
  Result<plan::PlanRequest> request =
      MakePlanRequest(config, weights, options, workload, pattern, session, kernels, memory);
  if (!request.ok()) return request.status();
  Result<plan::Plan> plan = MakeSessionPlan(options, session, &*request);
  if (!plan.ok()) return plan.status();
  Setup setup;
  setup.plan = std::move(*plan);
  setup.store =
      StoreOptionsFor(config, options, workload, pattern,
                      *EncodingOf(options, config.shape.dtype, kernels), setup.plan.cache);
  setup.store.placement = *PlacementOf(options);
  if (options.alias_host_memory > 0) {
    setup.store.alias_host_slabs =
        std::max<int64_t>(1, options.alias_host_memory / setup.store.format.slab_bytes());
  }
  // Memory of a GPU, and memory that it copies from, takes too long to make once work has begun.
  if (memory.backend.own_memory) {
    setup.store.device_slabs = setup.plan.slabs[0];
    setup.store.host_slabs = setup.plan.slabs[1];
  }
  // Slabs of K and V are made by blocks of as many as the host's budget holds: X's come first.
  setup.store.x_slabs = setup.plan.x_slabs;
  setup.executor = ExecutorLimitsFor(setup.store, workload, kernels);
  setup.kernels = KernelLimitsFor(config.shape, setup.store, kernels);
  return setup;
}

Prediction PredictionOf(const plan::Plan& plan, const hardware::ChosenProfile& machine,
                        const Workload& workload) {
  Prediction prediction;
  prediction.machine = machine.machine.name;
  prediction.origin = machine.origin;
  int64_t tokens = 0;
  for (int64_t length : workload.lengths) tokens += length;
  const auto fill = [](const plan::StepTime& time, double made, PhasePrediction* phase) {
    phase->seconds = time.seconds;
    phase->tokens_per_second = time.seconds > 0.0 ? made / time.seconds : 0.0;
    phase->limit = plan::CostLaneName(time.limit());
    for (int lane = 0; lane < plan::kCostLanes; ++lane) {
      if (time.busy[lane] <= 0.0) continue;
      phase->lanes.emplace_back(plan::CostLaneName(static_cast<plan::CostLane>(lane)),
                                time.busy[lane]);
    }
  };
  fill(plan.prefill, static_cast<double>(tokens), &prediction.prefill);
  fill(plan.decode, static_cast<double>(workload.lengths.size()), &prediction.decode);
  return prediction;
}

double PhaseSeconds(const MachineProfile& machine, const plan::PlanRequest& request,
                    const plan::Plan& plan, const Phase& phase) {
  const plan::Subject subject = plan::SubjectOf(request, plan.cache);
  const plan::Execution run = plan::ExecutionOf(plan, request.lengths);
  double seconds = 0.0;
  const bool whole = std::all_of(phase.prefixes.begin(), phase.prefixes.end(),
                                 [](int64_t prefix) { return prefix == 0; });
  if (phase.decode_steps == 0 && whole) {
    seconds = plan::PredictPrefills(machine, subject, run, phase.lengths).seconds;
  } else if (phase.decode_steps == 0) {
    for (size_t i = 0; i < phase.lengths.size(); ++i) {
      const int64_t prefix = i < phase.prefixes.size() ? phase.prefixes[i] : 0;
      seconds +=
          plan::PredictPrefill(machine, subject, run, prefix, phase.lengths[i] - prefix).seconds;
    }
  } else {
    // Time is linear in the length but for pages that close: the middle step is the mean.
    std::vector<int64_t> lengths = phase.lengths;
    for (int64_t& length : lengths) length += phase.decode_steps / 2;
    seconds = static_cast<double>(phase.decode_steps) *
              plan::PredictDecode(machine, subject, run, lengths).seconds;
  }
  return seconds;
}

PlanReport ReportOf(const plan::Plan& plan, const plan::SmallestBudgets& smallest, int layers,
                    bool own_memory) {
  PlanReport report;
  report.chunk = plan.cache.chunk;
  report.head_group = plan.cache.group_heads;
  report.segment = plan.cache.segment_tokens;
  report.kv_bytes = plan.kv_bytes;
  report.host_share = plan.host_share;
  report.weight_layers = plan.weight_layers;
  report.streamed_weight_bytes = plan.streamed_weight_bytes;
  report.disk_layers = DiskLayers(StreamedLayers(layers, plan.weight_layers), plan.disk_layers);
  report.disk_weight_bytes = plan.disk_weight_bytes;
  report.slab_bytes = plan.slab_bytes;
  report.x_slabs = plan.x_slabs;
  const int64_t slabs = plan.slabs[0] + plan.slabs[1] + plan.slabs[2] + plan.x_slabs;
  if (plan.x_slabs > 0) {
    report.recompute_share = static_cast<double>(plan.x_slabs) / static_cast<double>(slabs);
  }
  report.staging_slabs = plan.cache.staging_slabs;
  std::copy(std::begin(plan.slabs), std::end(plan.slabs), std::begin(report.slabs));
  for (const plan::MemoryRow& row : plan.memory) {
    report.memory.push_back({TierName(row.tier), row.tag, row.bytes});
    const bool ram = row.tier == Tier::kHost || (row.tier == Tier::kDevice && !own_memory);
    if (ram) report.memory_bytes += row.bytes;
  }
  report.reasons = plan.reasons;
  report.cut_notice = plan.cut_notice;
  report.smallest_gpu_memory = smallest.device;
  report.smallest_kv_memory = smallest.kv;
  report.smallest_host_memory = smallest.host;
  report.smallest_disk_memory = smallest.disk;
  return report;
}

}  // namespace headway
