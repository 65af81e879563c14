#include "engine/blueprint.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/eviction_settings.h"
#include "engine/head_pattern.h"
#include "engine/refused.h"
#include "engine/request_paths.h"
#include "engine/salience_settings.h"
#include "engine/selection_plan.h"
#include "engine/session_check.h"
#include "kernels/lossless_codec.h"
#include "kernels/page_codec.h"

namespace headway {
namespace {

// Of a token of the context in the program: its text and its id, which the caller, the request and
// the slot hold.
constexpr int64_t kTextBytes = 32;

// Of the settings' encoding, for a model whose cache is in `dtype` otherwise.
Result<Encoding> EncodingFor(const PageEncoding& wanted, DType dtype, const KernelSizes& kernels) {
  if (const DType* plain = std::get_if<DType>(&wanted)) {
    if (*plain == dtype) return Encoding::kNone;
    if (*plain == DType::kF32) return ParseEncoding(DTypeName(*plain));  // refused, with the names
    return Unsupported({Option::kKvEncoding, std::string(" ") + DTypeName(*plain) +
                                                 ": this model's cache is in " + DTypeName(dtype) +
                                                 "; use none, int8, fp8 or int4"});
  }
  const Encoding encoding = std::get<Encoding>(wanted);
  if (!kernels.TakesEncoding(encoding)) {
    return Unsupported({Option::kKvEncoding,
                        std::string(" ") + EncodingName(encoding) +
                            ": this device does not read it yet; leave it out or use ",
                        Option::kDevice, " cpu"});
  }
  return encoding;
}

// Whether the kernels attend to heads of this size at all, and to closed pages in the encoding.
Status CheckAttention(const BlueprintInputs& inputs, Encoding encoding) {
  const ModelShape& shape = inputs.config->shape;
  const PageFormat page = {shape.dtype, inputs.settings->cut.page_slots, shape.head_dim, encoding};
  const std::string heads = "heads of " + std::to_string(shape.head_dim) + " elements";
  // Pages are padded; the parameters of a page's heads lie side by side.
  AttentionRequest request = {.dtype = shape.dtype,
                              .head_dim = shape.head_dim,
                              .group = shape.group(),
                              .page_alignment = kv::CacheFormat::Padded(1)};
  if (!inputs.kernels->SupportsAttention(request)) {
    Message refused = {"this device does not attend to " + heads};
    if (inputs.backend.own_memory) refused += {"; use ", Option::kDevice, " cpu"};
    return Unsupported(std::move(refused));
  }
  if (encoding == Encoding::kLossless && !lossless::Takes(page)) {
    return Unsupported({Option::kKvEncoding,
                        " lossless takes bf16 in heads of whole 8 elements; leave it out for " +
                            heads + " in " + DTypeName(page.dtype)});
  }
  request.encoding = encoding;
  request.param_alignment = std::gcd(kv::CacheFormat::Padded(1), ParamBytes(page));
  if (!inputs.kernels->SupportsAttention(request)) {
    return Unsupported({Option::kKvEncoding, std::string(" ") + EncodingName(encoding) +
                                                 ": this device does not attend to " + heads +
                                                 " in it; leave it out"});
  }
  return OkStatus();
}

Status CheckWorkload(const ModelConfig& config, const Workload& workload) {
  if (workload.lengths.empty() || std::ssize(workload.lengths) > kMaxSequences) {
    return Wrong({"a workload has 1 to " + std::to_string(kMaxSequences) + " sequences"});
  }
  for (int64_t length : workload.lengths) {
    if (length < 1 || length > kMaxLength) {
      return Wrong({"a sequence of " + std::to_string(length) + " tokens; 1 to " +
                    std::to_string(kMaxLength) + " are possible"});
    }
    if (config.learned_positions && length > config.max_position) {
      return Wrong({"a context of " + std::to_string(length) + " tokens, and this " +
                    config.architecture + " has learned " + std::to_string(config.max_position) +
                    " positions; use a context of at most so many"});
    }
  }
  return OkStatus();
}

// The longest chunk of prompts: all keys of a step, and those of the page before that is open, are
// near.
int64_t ExtendedChunk(const SelfExtend& extend, int page_slots) {
  return extend.on() ? extend.window - page_slots : kMaxLength;
}

bool HasCut(const BlueprintInputs& inputs) {
  return inputs.session != nullptr && inputs.session->format.layers > 0;
}

// The weights and the memory beside the cache.
void TakeWeights(const BlueprintInputs& inputs, const Workload& workload,
                 plan::PlanRequest* request) {
  const Settings& settings = *inputs.settings;
  request->weight_bytes = inputs.weights.total();
  request->layer_weight_bytes = inputs.weights.layer;
  request->layer_code_bytes = settings.lossless_weights ? inputs.weights.layer_code : 0;
  request->weight_layers = inputs.weight_layers ? inputs.weight_layers : settings.gpu_layers;
  request->disk_layers = inputs.disk_layers;
  request->layer_read_bytes = inputs.weights.layer_read;
  const bool in_files = settings.weights == Settings::Weights::kFromFiles;
  request->layer_disk_bytes = in_files ? inputs.weights.layer_apart : inputs.weights.layer;
  request->other_bytes = inputs.program_bytes +
                         kTextBytes * std::reduce(workload.lengths.begin(), workload.lengths.end());
}

void TakeBudgets(const BlueprintInputs& inputs, plan::PlanRequest* request) {
  const Settings& settings = *inputs.settings;
  request->budgets = {settings.memory.kv, settings.memory.host, settings.DiskLimit()};
  request->beside = inputs.beside;
  if (inputs.device_memory.has_value()) {
    request->budgets.device = *inputs.device_memory;
    request->driver_bytes = inputs.backend.context_memory;
    request->map_share = inputs.backend.map_share * settings.mapped_ranks;
  }
  request->keep_on_device = settings.placement != kv::PlacementKind::kHostOnly &&
                            settings.placement != kv::PlacementKind::kDiskOnly;
  request->keep_on_host = settings.placement != kv::PlacementKind::kDiskOnly;
  if (settings.session.has_value() && !settings.eviction.evicts()) {
    request->session = SessionSizesOf(settings.ranks);
  }
}

// What steps choose: those that draft, or all.
void TakeDrafts(const BlueprintInputs& inputs, const LayoutBasis& basis,
                plan::PlanRequest* request) {
  const DraftSettings& drafts = inputs.settings->drafts;
  const bool drafting = basis.selection.drafts();
  (drafting ? request->drafts.chosen : request->selection) =
      KeysChosen(basis, inputs.settings->placement);
  request->drafts.most = drafts.tokens;
  request->drafts.seconds = inputs.draft_seconds;
  request->drafts.accepted = drafts.acceptance;
}

Result<plan::PlanRequest> MakeRequest(const BlueprintInputs& inputs, const Workload& workload,
                                      const LayoutBasis& basis) {
  const Settings& settings = *inputs.settings;
  const ModelConfig& config = *inputs.config;
  plan::PlanRequest request;
  request.shape = config.shape;
  request.window = config.windows;
  request.slab_heads = MostSlabHeads(inputs.Patterns(), config.shape.kv_heads);
  request.group = {settings.ranks, settings.nodes, basis.heads.Shares()};
  request.page_slots = settings.cut.page_slots;
  request.lossless = basis.encoding == Encoding::kLossless;
  request.lengths = basis.lengths;
  request.kept = basis.eviction.evicts()
                     ? KeptOf(basis.eviction, workload.lengths, basis.host_reads_device)
                     : KeptOf(basis.salience, workload.lengths, basis.ByCores());
  if (basis.eviction.evicts()) {
    kv::CacheFormat kept;  // of one page of a head
    kept.page = {config.shape.dtype, basis.page_slots, config.shape.head_dim, basis.encoding};
    request.kept.closed_bytes = static_cast<double>(kept.slab_bytes()) / basis.page_slots;
    request.kept.summary_bytes = kv::DemotionPolicy::SummaryBytes(config.shape.head_dim);
  }
  TakeWeights(inputs, workload, &request);
  request.chunk = std::min({inputs.backend.ChunkOf(settings.ranks), ChunkFor(basis),
                            ExtendedChunk(basis.self_extend, basis.page_slots)});
  request.segment = inputs.backend.segment;
  TakeBudgets(inputs, &request);
  request.machine = inputs.machine;
  request.host_attention = PlansHostShare(settings, inputs.backend);
  request.host_share = settings.salience.chooses() ? 0.0 : settings.host_share.value_or(0.0);
  request.fixed = {settings.cut.chunk, settings.cut.head_group, settings.cut.segment,
                   settings.cut.staging_slabs};
  ApplyPolicy(settings.policy, &request);
  if (Status s = ApplyRecompute(inputs, basis.encoding, &request); !s.ok()) return s;
  if (Status s = ApplyPromptOrder(inputs, &request); !s.ok()) return s;
  // Also one that is too short for a closed page: its file has slots of a slab.
  if (HasCut(inputs)) {
    const Status s = CheckSession(*inputs.session, settings, inputs.Whole(), basis.encoding);
    if (!s.ok()) return s;
  }
  if (HasCut(inputs) && !basis.kept_session) {
    if (settings.ranks == 1) request.fixed.group_heads = inputs.session->format.group_heads;
    request.fixed.segment_tokens = inputs.session->format.segment_tokens();
  }
  TakeDrafts(inputs, basis, &request);
  const Result<plan::PageCacheRequest> page_cache = PageCacheFor(inputs, basis);
  if (!page_cache.ok()) return page_cache.status();
  request.page_cache = *page_cache;
  LayoutBasis costly = basis;
  costly.pattern = MostStreaming(inputs.Patterns());
  request.costs = CostsOf(costly);
  return request;
}

// The settings' Self-Extend, as it is for contexts of these lengths: within its window nothing
// changes.
Result<SelfExtend> SelfExtendFor(const BlueprintInputs& inputs, const Workload& workload) {
  const Settings& settings = *inputs.settings;
  const ModelConfig& config = *inputs.config;
  const SelfExtend& extend = settings.self_extend;
  const int64_t longest = *std::max_element(workload.lengths.begin(), workload.lengths.end());
  if (!extend.on()) return extend;
  if (config.rope.type == RopeType::kNone) {
    return Unsupported({Option::kSelfExtend, ": this model does not rotate its keys"});
  }
  if (longest <= extend.window) return SelfExtend{};
  if (config.max_position > 0 && extend.FarQuery(longest - 1) >= config.max_position) {
    return Wrong({Option::kSelfExtend,
                  " " + std::to_string(extend.group) + ":" + std::to_string(extend.window) +
                      ": the last of " + std::to_string(longest) + " tokens counts at position " +
                      std::to_string(extend.FarQuery(longest - 1)) +
                      ", and this model was trained for " + std::to_string(config.max_position) +
                      "; give larger groups, or a smaller window"});
  }
  const int64_t chunk = ExtendedChunk(extend, settings.cut.page_slots);
  if (settings.cut.chunk.value_or(0) > chunk) {
    return Wrong({Option::kSelfExtend,
                  ": a chunk and a page have to fit into its window; give at "
                  "most ",
                  Option::kChunk, " " + std::to_string(chunk)});
  }
  return extend;
}

// Where nothing but the session's cut keeps the plan from fitting, the error says so, or the
// request is freed of that cut.
Result<plan::Plan> PlanSession(const BlueprintInputs& inputs, plan::PlanRequest* request) {
  Result<plan::Plan> plan = plan::MakePlan(*request);
  const bool fixes = HasCut(inputs) && !inputs.settings->eviction.evicts();
  if (plan.status().code() != StatusCode::kOutOfBudget || !fixes) return plan;
  const SessionSettings& session = *inputs.settings->session;
  plan::PlanRequest freed = *request;
  freed.fixed.group_heads = inputs.settings->cut.head_group;
  freed.fixed.segment_tokens = inputs.settings->cut.segment;
  Result<plan::Plan> other = plan::MakePlan(freed);
  if (!other.ok()) return plan;
  if (session.misfit == SessionSettings::Misfit::kRefuse) {
    return plan.status().Within(
        {"session " + session.path + " fixes how the cache is cut (head group " +
         std::to_string(inputs.session->format.group_heads) + ", segment " +
         std::to_string(inputs.session->format.segment_tokens()) + "), and so "},
        {"; or ", Option::kSessionRecut, ", which reads the prompt again into a smaller cut"});
  }
  *request = std::move(freed);
  return other;
}

// Whether salient tokens lie on the host: where a GPU's memory has no room for them, or its plan is
// slower.
bool SalientOnHost(const BlueprintInputs& inputs, const Workload& workload, LayoutBasis basis) {
  const Settings& settings = *inputs.settings;
  if (settings.salient_on_host.has_value()) return *settings.salient_on_host;
  if (!inputs.backend.own_memory) return false;
  double seconds[2] = {};  // of a step: on the device, on the host
  for (const bool on_host : {false, true}) {
    basis.salient_on_host = on_host;
    Result<plan::PlanRequest> request = MakeRequest(inputs, workload, basis);
    if (!request.ok()) return false;
    const Result<plan::Plan> plan = PlanSession(inputs, &*request);
    if (!plan.ok()) return !on_host;
    seconds[on_host ? 1 : 0] = plan->decode.seconds;
  }
  return seconds[1] < seconds[0];
}

// What the layout of a plan takes of the settings and of the plan beside its cut.
Layout LayOutPlan(const BlueprintInputs& inputs, const LayoutBasis& basis, const plan::Plan& plan) {
  Layout layout = LayOut(basis, plan.cache, plan.gather_tokens);
  kv::StoreOptions& store = layout.store;
  store.placement = inputs.settings->placement;
  store.page_cache_bytes = plan.page_cache;
  store.listed_slabs += static_cast<int>(plan.listed_slabs);
  store.sink_tokens = basis.selection.sink;
  store.recent_tokens = basis.salience.chooses() ? basis.salience.window : basis.selection.recent;
  if (inputs.settings->alias_host_memory.has_value()) {
    store.alias_host_slabs =
        std::max<int64_t>(1, *inputs.settings->alias_host_memory / store.format.slab_bytes());
  }
  // Memory of a GPU, and memory that it copies from, takes too long to make once work has begun.
  if (inputs.backend.own_memory) {
    store.device_slabs = plan.slabs[0];
    store.host_slabs = plan.slabs[1];
  }
  // Slabs of K and V are made by blocks of as many as the host's budget holds: X's come first.
  store.x_slabs = plan.x_slabs;
  // A disk tier takes buffers on the host: there is none where the plan leaves nothing to it.
  const bool to_disk = plan.slabs[static_cast<size_t>(Tier::kDisk)] > 0 ||
                       store.placement == kv::PlacementKind::kDiskOnly;
  if (inputs.settings->memory.disk > 0 && to_disk) {
    store.disk_directory = inputs.settings->memory.disk_directory;
  }
  return layout;
}

// What a layout follows from. kUnsupported where the model or the device does not do what is asked.
Result<LayoutBasis> MakeBasis(const BlueprintInputs& inputs, const Workload& workload) {
  const ModelConfig& config = *inputs.config;
  const Result<Encoding> encoding =
      EncodingFor(inputs.settings->encoding, config.shape.dtype, *inputs.kernels);
  if (!encoding.ok()) return encoding.status();
  if (Status s = CheckAttention(inputs, *encoding); !s.ok()) return s;
  if (Status s = CheckWorkload(config, workload); !s.ok()) return s;
  const Result<kv::SelectionPolicy> selection = SelectionFor(inputs, workload);
  if (!selection.ok()) return selection.status();
  const Result<SelfExtend> self_extend = SelfExtendFor(inputs, workload);
  if (!self_extend.ok()) return self_extend.status();
  const kv::EvictionPolicy& eviction = inputs.settings->eviction;
  if (Status s = CheckEviction(eviction, config); !s.ok()) return s;
  LayoutBasis basis = {config,         inputs.settings->cut.page_slots,
                       *encoding,      *inputs.pattern,
                       *selection,     workload.lengths,
                       inputs.kernels, *self_extend};
  basis.drafts = inputs.settings->drafts.tokens;
  basis.host_reads_device = !inputs.backend.own_memory;
  if (eviction.evicts()) {
    LetGo(eviction,
          inputs.heads != nullptr ? *inputs.heads
                                  : RankHeads::Alone(config.shape.layers, config.shape.kv_heads),
          &basis);
    basis.kept_session = inputs.settings->session.has_value();
    if (HasCut(inputs)) basis.kept_segment_pages = inputs.session->format.segment_pages;
  }
  if (inputs.settings->salience.chooses()) {
    if (Status s = CheckBound(*inputs.settings, inputs.backend.own_memory); !s.ok()) return s;
    basis.salience = inputs.settings->salience;
    basis.salient_by_cores = SalientByCores(*inputs.settings, inputs.machine);
    basis.salient_on_host = SalientOnHost(inputs, workload, basis);
  }
  if (Status s = CheckSelection(basis); !s.ok()) return s;
  return basis;
}

// Tokens that are salient, or that are kept of a prompt, are chosen of keys in memory.
Status CheckInMemory(const LayoutBasis& basis, const plan::Plan& plan) {
  if (plan.slabs[static_cast<size_t>(Tier::kDisk)] == 0) return OkStatus();
  if (basis.salience.chooses()) {
    return Unsupported({AskedForBy(basis.salience),
                        ": salient tokens are chosen in memory, and the cache would not fit "
                        "there; give more ",
                        Option::kHostMemory});
  }
  if (basis.eviction.evicts()) {
    return Unsupported({Option::kEvict,
                        ": what is kept of a prompt is chosen in memory, and it "
                        "would not fit there; give more ",
                        Option::kHostMemory});
  }
  return OkStatus();
}

bool Fits(const BlueprintInputs& inputs, const Workload& workload) {
  const Result<LayoutBasis> basis = MakeBasis(inputs, workload);
  if (!basis.ok()) return false;
  const Result<plan::PlanRequest> request = MakeRequest(inputs, workload, *basis);
  if (!request.ok()) return false;
  const Result<plan::Plan> plan = plan::MakeSilentPlan(*request);
  return plan.ok() && CheckInMemory(*basis, *plan).ok();
}

}  // namespace

int64_t FittingSequences(BlueprintInputs inputs, int64_t length) {
  Settings settings = *inputs.settings;
  settings.session.reset();
  inputs.settings = &settings;
  inputs.session = nullptr;
  inputs.machine = nullptr;  // that chooses among cuts that fit
  const auto fit = [&](int64_t sequences) {
    return Fits(inputs, {std::vector<int64_t>(static_cast<size_t>(sequences), length)});
  };
  if (fit(kMaxSequences)) return kMaxSequences;
  int64_t low = 0, high = kMaxSequences;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fit(middle) ? low : high) = middle;
  }
  return low;
}

Result<Blueprint> MakeBlueprint(const BlueprintInputs& inputs, const Workload& workload) {
  const Result<LayoutBasis> made = MakeBasis(inputs, workload);
  if (!made.ok()) return made.status();
  const LayoutBasis& basis = *made;
  const kv::SelectionPolicy& selection = basis.selection;
  Result<plan::PlanRequest> request = MakeRequest(inputs, workload, basis);
  if (!request.ok()) return request.status();
  Result<plan::Plan> plan =
      inputs.plan == nullptr ? PlanSession(inputs, &*request) : Result<plan::Plan>(*inputs.plan);
  if (!plan.ok()) return plan.status();
  if (inputs.plan == nullptr) {
    if (Status s = CheckReach(selection, *plan); !s.ok()) return s;
    if (Status s = CheckInMemory(basis, *plan); !s.ok()) return s;
  }
  if (selection.selects() && !selection.reaches()) {
    request->selection.from = ReadWhole(inputs, *request, *plan);
    if (request->machine != nullptr && request->selection.from > 0) {
      plan::Predict(*request, &*plan);
    }
  }
  Blueprint blueprint;
  blueprint.request = std::move(*request);
  blueprint.own_memory = inputs.backend.own_memory;
  blueprint.lengths = workload.lengths;
  blueprint.layout = LayOutPlan(inputs, basis, *plan);
  blueprint.layout.executor.selection.from = blueprint.request.selection.from;
  blueprint.plan = std::move(*plan);
  const ModelShape& shape = inputs.Whole().shape;
  blueprint.kv_bytes_per_token =
      ClosedBytesPerToken(shape, {shape.dtype, basis.page_slots, shape.head_dim, basis.encoding});
  return blueprint;
}

int64_t ClosedBytesPerToken(const ModelShape& shape, const PageFormat& page) {
  const int64_t params = page.encoding == Encoding::kNone ? 0 : ParamBytes(page);
  return (2 * static_cast<int64_t>(page.closed_bytes()) + params) * shape.layers * shape.kv_heads /
         page.page_slots;
}

bool PlansHostShare(const Settings& settings, const BackendInfo& backend) {
  return !settings.host_share.has_value() && backend.own_memory &&
         settings.policy == Policy::kAuto && !settings.selection.approximates() &&
         !settings.self_extend.on() && !settings.eviction.evicts() && !settings.salience.chooses();
}

}  // namespace headway
