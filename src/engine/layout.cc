#include "engine/layout.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "engine/paths/listed_from_disk.h"
#include "engine/step/selected_states.h"
#include "kv/policy/salient_blocks.h"
#include "kv/session/session_layout.h"
#include "kv/session/session_sizes.h"

namespace headway {
namespace {

// Slabs that will have summaries: all of layers without a window.
int64_t SummaryFrames(const LayoutBasis& basis, const kv::CacheFormat& format) {
  if (!format.summary.kept()) return 0;
  int64_t segments = 0;
  for (const int64_t length : basis.lengths) segments += CeilDiv(length, format.segment_tokens());
  int64_t frames = 0;
  for (int layer = 0; layer < format.layers; ++layer) {
    if (format.WindowOf(layer) == 0) frames += segments * format.head_groups(layer);
  }
  return frames;
}

// Of decode's rounds (ListedFromDisk) two have room: each has at least of every head of a group the
// blocks of one state, perhaps in as many pages.
void TakeListedPages(const LayoutBasis& basis, Layout* layout) {
  kv::StoreOptions& store = layout->store;
  const kv::CacheFormat& format = store.format;
  if (!basis.selection.lists_by_summaries() || store.bounce_slabs == 0) return;
  const ModelShape& shape = basis.config.shape;
  const StateCut cut = SelectedStates(shape, layout->executor, *basis.kernels);
  const int64_t pages = 2 * format.group_heads * (cut.split / format.summary.block_slots);
  store.listed_slabs = static_cast<int>(CeilDiv(pages, format.segment_pages));
  store.list_bytes = ListedFromDisk::ListBytes(shape, layout->executor, cut);
  const kv::SelectionBounds bounds =
      BoundsOf(basis.selection, layout->executor.length, shape.kv_heads);
  // Rows of segments are equally long, the longest with a frame for each block that a group lists.
  layout->executor.listed_frames =
      int64_t{format.max_head_groups()} * format.group_heads * bounds.capacity;
}

// Slabs that hold the pages which a decode step of all sequences lists, each block in one of its
// own: in text they are fewer by half (docs/decisions/selection.md).
int64_t SlabsOfListedPages(const LayoutBasis& basis, const kv::StoreOptions& store) {
  if (store.listed_slabs == 0) return 0;
  const kv::CacheFormat& format = store.format;
  const int64_t slots = format.page.page_slots;
  const int64_t near =
      CeilDiv(basis.selection.sink, slots) + CeilDiv(basis.selection.recent, slots) + 2;
  int64_t pages = 0;
  for (int layer = 0; layer < format.layers; ++layer) {
    if (format.WindowOf(layer) > 0) continue;  // chooses nothing
    const kv::SelectionPolicy policy = basis.selection.InLayer(layer, format.layers);
    const int64_t groups = format.head_groups(layer);
    for (const int64_t length : basis.lengths) {
      const int64_t far =
          format.kv_heads * CeilDiv(policy.KeysAt(length), format.summary.block_slots);
      pages += std::min(groups * CeilDiv(length, slots), groups * near + far);
    }
  }
  return CeilDiv(pages, format.segment_pages);
}

kv::StoreOptions StoreOf(const LayoutBasis& basis, const plan::CacheChoice& cut,
                         int64_t gather_tokens) {
  const ModelConfig& config = basis.config;
  kv::StoreOptions store;
  store.format.layers = config.shape.layers;
  store.format.kv_heads = config.shape.kv_heads;
  // Prompts that are let go of are chosen from as they were computed.
  const Encoding encoding = basis.eviction.evicts() ? Encoding::kNone : basis.encoding;
  store.format.page = {config.shape.dtype, basis.page_slots, config.shape.head_dim, encoding};
  store.format.group_heads = cut.group_heads;
  store.format.segment_pages = static_cast<int>(cut.segment_tokens / basis.page_slots);
  store.format.window = config.windows;
  store.format.pattern = basis.pattern;
  // More than there will be is room that nothing fills.
  const int64_t longest = *std::max_element(basis.lengths.begin(), basis.lengths.end());
  store.format.pattern.sink = std::min(basis.pattern.sink, longest);
  store.format.pattern.recent = std::min(basis.pattern.recent, longest);
  store.gather_tokens = gather_tokens;
  store.format.x_width = store.gather_tokens > 0 ? config.shape.d_model : 0;
  store.max_sequences = static_cast<int>(basis.lengths.size());
  store.max_step_tokens = std::max(cut.chunk, store.max_sequences * (1 + basis.drafts));
  store.staging_slabs = cut.staging_slabs;
  store.format.summary =
      basis.salience.reselects() ? kv::SalientBlocks::kSummary : basis.selection.summary;
  store.format.page_summaries = basis.selection.searches_pages();
  store.summary_frames = SummaryFrames(basis, store.format);
  store.sketches = cut.sketches;
  store.bounce_slabs = cut.bounce_slabs;
  return store;
}

ExecutorLimits ExecutorOf(const LayoutBasis& basis, const kv::StoreOptions& store,
                          int64_t stretch_tokens) {
  ExecutorLimits limits;
  limits.stretch_tokens = stretch_tokens;
  limits.step_tokens = store.max_step_tokens;
  limits.entries = store.max_sequences;
  limits.drafts = basis.drafts;
  limits.length = *std::max_element(basis.lengths.begin(), basis.lengths.end());
  limits.segment_tokens = store.format.segment_tokens();
  limits.gather_tokens = store.gather_tokens;
  limits.page_slots = store.format.page.page_slots;
  limits.selection = basis.selection;
  limits.self_extend = basis.self_extend;
  if (basis.eviction.observes()) limits.observed_queries = basis.eviction.window;
  if (basis.eviction.adds_up() || basis.eviction.repeats()) {
    limits.observed_queries = limits.step_tokens;
  }
  limits.salience = basis.salience;
  if (basis.salience.has_masses()) limits.observed_queries = basis.salience.queries;
  if (basis.eviction.method == kv::EvictionMethod::kExpected) {
    limits.query_moments = true;
    limits.moments_from = basis.eviction.sink;
  }
  limits.streaming_heads = store.format.pattern.StreamingHeads() > 0;
  limits.activation_dtype = basis.kernels->ActivationDType(store.format.page.dtype);
  limits.host_reads_device = basis.host_reads_device;
  return limits;
}

KernelLimits KernelsOf(const LayoutBasis& basis, const kv::StoreOptions& store) {
  const ModelShape& shape = basis.config.shape;
  KernelLimits limits;
  limits.rows = std::max(store.max_step_tokens, store.gather_tokens);
  limits.max_in = std::max({shape.d_model, shape.d_ff, shape.query_heads * shape.head_dim});
  limits.max_out = std::max(limits.max_in, static_cast<int64_t>(shape.vocab));
  limits.head_dim = shape.head_dim;
  limits.group = shape.group();
  limits.query_heads = shape.query_heads;
  limits.vocab = shape.vocab;
  limits.activation = basis.kernels->ActivationDType(shape.dtype);
  limits.encoding = basis.encoding;
  return limits;
}

// Every head of every layer is a group with slabs of its own. They are small, since of each head
// half a slab is empty on average, and not smaller, since steps read them one by one.
KeptLayout KeptOf(const LayoutBasis& basis, const Layout& prompts) {
  constexpr int64_t kSegmentPages = 16;  // at most
  constexpr int64_t kChunk = 256;        // tokens of a step, of what is appended behind a prompt
  const kv::EvictionPolicy& policy = basis.eviction;
  const ModelShape& shape = basis.config.shape;
  const int slots = basis.page_slots;
  const int64_t length = prompts.executor.length - basis.behind;
  const kv::KeptBounds& bounds = basis.kept_bounds;
  const int64_t tables = int64_t{shape.layers} * shape.kv_heads;
  KeptLayout kept;
  kept.store.format = prompts.store.format;
  kept.store.format.page.encoding = basis.encoding;
  kept.store.format.group_heads = 1;
  const int64_t half = std::clamp<int64_t>(bounds.all_pages / tables / 2, 1, kSegmentPages);
  kept.store.format.segment_pages = basis.kept_segment_pages.value_or(
      static_cast<int>(std::bit_floor(static_cast<uint64_t>(half))));
  kept.store.tables = kv::PageTables::Sharing::kGroup;
  kept.store.max_sequences = basis.sequences;
  kept.store.max_step_tokens = std::max<int64_t>(kChunk, basis.sequences * (1 + basis.drafts));
  kept.store.staging_slabs = 1;
  kept.store.bounce_slabs = basis.kept_session ? 2 : 0;
  // What is kept begins with whole slabs; what is appended may begin in the last of them.
  const int64_t room = std::min(policy.room, length);
  const int64_t of_table = CeilDiv(room, kept.store.format.segment_tokens()) + 2;
  kept.kept_pages = bounds.all_pages;
  kept.sequence_slabs =
      CeilDiv(bounds.all_pages, kept.store.format.segment_pages) + tables * of_table;
  kept.store.device_slabs = basis.sequences * kept.sequence_slabs;
  kept.executor = prompts.executor;
  kept.executor.length = length;
  kept.executor.step_tokens = kept.store.max_step_tokens;
  kept.executor.stretch_tokens = 0;
  kept.executor.entries = basis.sequences;
  kept.executor.observed_queries = 0;
  kept.executor.query_moments = false;
  kept.executor.segment_tokens = kept.store.format.segment_tokens();
  kept.executor.listed_frames = 0;
  if (basis.heads.Shares()) {
    kept.executor.sharing_ranks = static_cast<int>(basis.heads.ranks.size());
  }
  kept.executor.keys = bounds.head_pages * slots + room + 2 * slots;
  kept.evictor = {.shape = shape,
                  .page = prompts.store.format.page,
                  .encoding = basis.encoding,
                  .policy = policy,
                  .heads = basis.heads,
                  .head_pages = bounds.head_pages,
                  .length = length,
                  .behind = basis.behind,
                  .activation_dtype = prompts.executor.activation_dtype,
                  .host_reads_device = basis.host_reads_device};
  if (!policy.demotion.demotes()) return kept;
  kept.executor.demotion = policy.demotion;
  kept.demoted = {.shape = shape,
                  .page = kept.store.format.page,
                  .policy = policy.demotion,
                  .sequences = basis.sequences,
                  .length = length,
                  .pages = kv::LetGoPages(policy, basis.heads, length, slots)};
  return kept;
}

}  // namespace

void LetGo(const kv::EvictionPolicy& policy, RankHeads heads, LayoutBasis* basis) {
  const int64_t longest = *std::max_element(basis->lengths.begin(), basis->lengths.end());
  basis->eviction = policy;
  basis->heads = std::move(heads);
  basis->kept_bounds = kv::KeptBoundsOf(policy, basis->heads, longest, basis->page_slots);
  basis->sequences = static_cast<int>(basis->lengths.size());
  basis->behind = policy.BehindOf(longest);
  basis->lengths = {longest + basis->behind};
}

int64_t KeptLayout::KeptBytes() const {
  return kept_pages * store.format.slab_bytes() / store.format.segment_pages;
}

int64_t KeptLayout::StoreBytes() const {
  const kv::StoreFootprint footprint = kv::FootprintOf(store);
  return footprint.open_pages + footprint.append_buffer + footprint.staging +
         store.device_slabs * store.format.slab_bytes();
}

int64_t KeptLayout::HostBytes() const {
  return kv::FootprintOf(store).bounce + Evictor::HostBytes(evictor);
}

plan::SessionSizes SessionSizesOf(int ranks) {
  return {kv::kSessionSuperblocks,   kv::kManifestFields,       kv::kManifestToken,
          ranks * kv::kManifestSlab, ranks * kv::kManifestPage, kv::kManifests};
}

int64_t KeptLayout::FileBytes() const {
  const kv::CacheFormat& format = store.format;
  const int64_t slots = format.page.page_slots;
  const int64_t of_rank =
      sequence_slabs * (kv::kManifestSlab + format.segment_pages * kv::kManifestPage) +
      kv::kManifestPosition * kept_pages * slots + kv::OpenPageBytes(format, slots - 1) +
      kv::kManifestTable * format.layers * format.kv_heads;
  // One of the ranks writes the manifest of all.
  const int64_t contents = kv::kManifestFields + kv::kManifestToken * executor.length +
                           std::ssize(evictor.heads.ranks) * of_rank;
  const int64_t manifests = kv::kManifests * kv::ManifestSlots(contents, format.slab_bytes());
  return kv::kSessionSuperblocks + (sequence_slabs + manifests) * format.slab_bytes();
}

HostAttentionLimits Layout::host(const ModelShape& shape) const {
  HostAttentionLimits limits;
  limits.shape = shape;
  limits.format = store.format.page;
  limits.entries = executor.entries;
  limits.tokens = executor.decode_tokens();
  limits.length = executor.length;
  limits.segment_tokens = executor.segment_tokens;
  limits.activation = executor.activation_dtype;
  limits.bound = executor.salience.bound;
  // A page fills before it leaves the window.
  const int64_t slots = limits.format.page_slots;
  limits.near = std::min(limits.length, RoundUp(executor.salience.window, slots) + slots);
  return limits;
}

Layout LayOut(const LayoutBasis& basis, const plan::CacheChoice& cut, int64_t gather_tokens) {
  Layout layout;
  layout.store = StoreOf(basis, cut, gather_tokens);
  layout.executor = ExecutorOf(basis, layout.store, cut.stretch_tokens);
  TakeListedPages(basis, &layout);
  layout.kernels = KernelsOf(basis, layout.store);
  if (basis.eviction.evicts()) {
    layout.kept = KeptOf(basis, layout);
    layout.kernels.rows = std::max(layout.kernels.rows, layout.kept->executor.step_tokens);
  }
  if (basis.salience.chooses()) {
    layout.salience = {.shape = basis.config.shape,
                       .page = layout.store.format.page,
                       .windows = basis.config.windows,
                       .first_layer = basis.config.first_layer,
                       .policy = basis.salience,
                       .sequences = layout.executor.entries,
                       .length = layout.executor.length,
                       .activation_dtype = layout.executor.activation_dtype,
                       .on_host = basis.salient_on_host,
                       .by_cores = basis.salient_by_cores};
  }
  return layout;
}

plan::CostModel CostsOf(const LayoutBasis& basis) {
  const auto shared = std::make_shared<const LayoutBasis>(basis);
  const auto lay_out = [shared](const plan::CacheChoice& cut) {
    return LayOut(*shared, cut, plan::GatherTokens(cut, shared->lengths));
  };
  plan::CostModel costs;
  if (basis.selection.sketches.has_value()) {
    costs.sketch_tiers = {*basis.selection.sketches};
  } else if (basis.selection.summary.sketched()) {
    costs.sketch_tiers = {Tier::kDevice, Tier::kHost};
  }
  costs.cache = [shared, lay_out](const plan::CacheChoice& cut) {
    const Layout layout = lay_out(cut);
    const kv::StoreOptions& store = layout.store;
    const kv::StoreFootprint footprint = kv::FootprintOf(store);
    const int64_t salient =
        layout.salience.has_value() ? Salience::TokenBytes(*layout.salience) : 0;
    const int64_t results =
        layout.salience.has_value() ? Salience::ResultBytes(*layout.salience) : 0;
    const int64_t kept = layout.kept.has_value() ? layout.kept->StoreBytes() : 0;
    const DemotedLimits* const demoted = layout.demoted();
    return plan::CacheBytes{
        footprint.open_pages,
        footprint.append_buffer,
        footprint.streaming_heads,
        footprint.staging,
        demoted == nullptr ? footprint.summaries : Demoted::SummaryBytes(*demoted),
        footprint.sketches,
        footprint.host_sketches,
        HiddenStates::HostBytes(shared->config.shape, layout.executor),
        footprint.bounce,
        SlabsOfListedPages(*shared, store),
        store.format.slab_bytes(),
        store.format.x_slab_bytes(),
        kept + (shared->salient_on_host ? 0 : salient),
        demoted != nullptr        ? Demoted::HostBytes(*demoted)
        : shared->salient_on_host ? salient
                                  : 0,
        layout.kept.has_value() ? layout.kept->HostBytes() : results,
        shared->kept_session ? layout.kept->FileBytes() : 0};
  };
  costs.activations = [shared, lay_out](const plan::CacheChoice& cut) {
    const Layout layout = lay_out(cut);
    const ModelShape& shape = shared->config.shape;
    int64_t bytes = Executor::Bytes(shape, layout.executor, *shared->kernels) +
                    HiddenStates::DeviceBytes(shape, layout.executor);
    if (layout.salience.has_value()) bytes += Salience::DeviceBytes(*layout.salience);
    if (!layout.kept.has_value()) return bytes;
    if (layout.demoted() != nullptr) bytes += Demoted::DeviceBytes(*layout.demoted());
    return bytes + Executor::Bytes(shape, layout.kept->executor, *shared->kernels) +
           Evictor::Bytes(layout.kept->evictor);
  };
  costs.workspace = [shared, lay_out](const plan::CacheChoice& cut) {
    return shared->kernels->WorkspaceBytes(lay_out(cut).kernels);
  };
  return costs;
}

}  // namespace headway
