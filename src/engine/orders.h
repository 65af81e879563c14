// Orders: what the first of several processes has all of them do together, as bytes.
#ifndef HEADWAY_ENGINE_ORDERS_H_
#define HEADWAY_ENGINE_ORDERS_H_

#include <cstdint>
#include <string>

#include "engine/wire.h"
#include "headway/context.h"
#include "headway/options.h"
#include "headway/plan.h"
#include "plan/plan.h"

namespace headway {

// With what follows it: an id, by which ranks know an engine or a context, and the arguments.
enum class Order : uint8_t {
  kLeave,      // the group
  kOpen,       // engine, model, options
  kClose,      // engine or context
  kContext,    // context, engine, workload
  kGenerate,   // context, requests, whether text is shown, whether sessions may be saved within
  kScore,      // context, tokens, begin, end, the same
  kSave,       // context
  kFill,       // context, slot, tokens, seed, spread
  kReset,      // context
  kTierBytes,  // context, tier
  kAttended,   // context, in which phase
};

// Every member: one that is added to the options is added here.
static_assert(sizeof(EngineOptions) == 1432);
template <typename Wire, typename Options>
requires std::is_same_v<std::remove_const_t<Options>, EngineOptions>
void Pass(Wire& wire, Options& o) {
  wire(o.device, o.isa, o.threads, o.tensor_parallel, o.layers_over, o.assignment,
       o.assignment_copies, o.assignment_profile, o.gpu_memory, o.kv_memory, o.host_memory,
       o.disk_memory, o.disk_path, o.gpu_layers, o.weight_encoding, o.policy, o.chunk,
       o.prompt_order, o.head_group, o.segment, o.page_slots, o.staging_slabs, o.placement,
       o.kv_encoding, o.host_share, o.freeze_plan, o.recompute_share, o.head_pattern, o.sparsity,
       o.sink_tokens, o.recent_tokens, o.selector, o.sparse_keys, o.sparse_sink, o.sparse_recent,
       o.sparse_share, o.sparse_top_p, o.sparse_least, o.sparse_epsilon, o.sparse_delta,
       o.sparse_block, o.hip_stages, o.hip_refresh, o.hip_outer_keys, o.hip_positions,
       o.sparse_looks, o.sparse_sketches, o.sparse_levels, o.sparse_refresh,
       o.sparse_candidates_refresh, o.sparse_from, o.sparse_cache, o.found_shares, o.sparse_prefill,
       o.sparse_dense_every, o.reach, o.reach_positions, o.evict, o.evict_budget, o.evict_window,
       o.evict_pool, o.evict_sink, o.evict_safeguard, o.evict_steepness, o.evict_future,
       o.evict_profile, o.evict_room, o.evicted, o.evicted_keys, o.evicted_refresh, o.hgca,
       o.hgca_window, o.hgca_alpha, o.hgca_every, o.hgca_most, o.hgca_queries, o.hgca_reselect,
       o.hgca_on, o.hgca_epsilon, o.hgca_delta, o.rope_scaling, o.self_extend, o.draft,
       o.draft_tokens, o.draft_acceptance, o.machine, o.session, o.session_recut, o.trace,
       o.time_kernels, o.alias_host_memory, o.random_weights);
}

template <typename Wire, typename AnyRequest>
requires std::is_same_v<std::remove_const_t<AnyRequest>, Request>
void Pass(Wire& wire, AnyRequest& request) {
  wire(request.prompt, request.max_tokens, request.sampling, request.stop, request.ignore_eos);
}

template <typename Wire, typename AnyWorkload>
requires std::is_same_v<std::remove_const_t<AnyWorkload>, Workload>
void Pass(Wire& wire, AnyWorkload& workload) { wire(workload.lengths); }

// What a blueprint is drawn by. What is told of a plan, its times and reasons, stays where it was
// made.
template <typename Wire, typename AnyPlan>
requires std::is_same_v<std::remove_const_t<AnyPlan>, plan::Plan>
void Pass(Wire& wire, AnyPlan& p) {
  wire(p.cache, p.slabs, p.x_slabs, p.x_segments, p.gather_tokens, p.page_cache, p.page_cache_steps,
       p.listed_slabs, p.listed_steps, p.slab_bytes, p.kv_bytes, p.weight_layers,
       p.streamed_weight_bytes, p.disk_layers, p.disk_weight_bytes, p.weights_streamed,
       p.weights_on_disk, p.weight_code, p.host_share);
}

template <typename... Arguments>
std::string OrderOf(Order order, int64_t id, const Arguments&... arguments) {
  WireWriter wire;
  wire(order, id, arguments...);
  return wire.bytes();
}

}  // namespace headway

#endif  // HEADWAY_ENGINE_ORDERS_H_
