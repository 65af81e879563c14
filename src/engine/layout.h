// Layout: what a cut of the cache means for the rooms that a context joins: the store's format and
// numbers, the limits of a step, of the host's attention and of the kernels. The one place that
// derives them, for the costs of a plan and for blueprints.
#ifndef HEADWAY_ENGINE_LAYOUT_H_
#define HEADWAY_ENGINE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/head_set.h"
#include "base/types.h"
#include "engine/evictor.h"
#include "engine/executor.h"
#include "engine/paths/host_attention.h"
#include "engine/step/demoted.h"
#include "engine/step/salience.h"
#include "kernels/kernels.h"
#include "kv/policy/eviction.h"
#include "kv/policy/eviction_budgets.h"
#include "kv/policy/head_pattern.h"
#include "kv/policy/salience.h"
#include "kv/policy/selection.h"
#include "kv/store/store.h"
#include "model/config.h"
#include "plan/plan.h"

namespace headway {

// What a layout follows from, beside the cut.
struct LayoutBasis {
  ModelConfig config;
  int page_slots = kDefaultPageSlots;
  Encoding encoding = Encoding::kNone;  // of closed pages
  kv::HeadPattern pattern;
  kv::SelectionPolicy selection;
  // That each sequence will reach. Where tokens are let go: the longest one's, since prompts are
  // read one after the other.
  std::vector<int64_t> lengths;
  const KernelSizes* kernels = nullptr;  // outlives what is laid out
  SelfExtend self_extend;
  kv::EvictionPolicy eviction = {};
  // Where it lets tokens go: which rank has which heads, and what those of one keep of a prompt.
  RankHeads heads = {};
  kv::KeptBounds kept_bounds = {};
  int sequences = 0;   // that live on with what is kept of their prompts
  int64_t behind = 0;  // tokens of the length that are read behind a prompt, for a time
  kv::SaliencePolicy salience = {};
  bool salient_on_host = false;   // salient tokens lie there
  double salient_by_cores = 1.0;  // of these, what cores attend to
  bool host_reads_device = true;
  int64_t drafts = 0;  // that a decode step verifies of a sequence, at most
  // What is kept is saved to a session, which fixes how it is cut once it is there.
  bool kept_session = false;
  std::optional<int> kept_segment_pages = {};

  // Of salient tokens, where they lie on the host.
  std::optional<double> ByCores() const {
    return salient_on_host ? std::optional(salient_by_cores) : std::nullopt;
  }
};

// Makes it that of sequences which let tokens go, and were to reach its lengths.
void LetGo(const kv::EvictionPolicy& policy, RankHeads heads, LayoutBasis* basis);

// Of a context that lets tokens go: the cache of what is kept, and what runs steps over it.
struct KeptLayout {
  kv::StoreOptions store;
  ExecutorLimits executor;
  EvictorLimits evictor;
  std::optional<DemotedLimits> demoted;  // what is not kept
  // Of a sequence at its full length, at most.
  int64_t sequence_slabs = 0;
  int64_t kept_pages = 0;

  // What is kept of a prompt, at most.
  int64_t KeptBytes() const;
  // What the store takes of the device.
  int64_t StoreBytes() const;
  // Of the host: buffers of the store and of the evictor.
  int64_t HostBytes() const;
  // Of a session's file, with a sequence.
  int64_t FileBytes() const;
};

struct Layout {
  kv::StoreOptions store;  // its budgets, kernels and placement are not set
  ExecutorLimits executor;
  KernelLimits kernels;
  std::optional<KeptLayout> kept;
  std::optional<SalienceLimits> salience;

  // Null where nothing is demoted.
  const DemotedLimits* demoted() const {
    return kept.has_value() && kept->demoted.has_value() ? &*kept->demoted : nullptr;
  }
  // Of the path `host`, whose queries have the activations' dtype.
  HostAttentionLimits host(const ModelShape& shape) const;
};

// `gather_tokens` of X are recomputed at a time; 0: nothing is recomputed.
Layout LayOut(const LayoutBasis& basis, const plan::CacheChoice& cut, int64_t gather_tokens);

// What a session's file has beside its slabs, as a plan for one of `ranks` ranks counts it: one of
// them writes the manifest of all.
plan::SessionSizes SessionSizesOf(int ranks);

// What the parts of a layout take, as plan::CostModel asks.
plan::CostModel CostsOf(const LayoutBasis& basis);

}  // namespace headway

#endif  // HEADWAY_ENGINE_LAYOUT_H_
