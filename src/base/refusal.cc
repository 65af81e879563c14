#include "headway/refusal.h"

#include <iterator>
#include <utility>

namespace headway {

namespace {

struct Named {
  Option option;
  const char* name;
};
// In the order of the options.
constexpr Named kNames[] = {
    {Option::kLength, "length"},
    {Option::kDevice, "device"},
    {Option::kThreads, "threads"},
    {Option::kTensorParallel, "tensor_parallel"},
    {Option::kLayersOver, "layers_over"},
    {Option::kAssignment, "assignment"},
    {Option::kAssignmentProfile, "assignment_profile"},
    {Option::kAssignmentCopies, "assignment_copies"},
    {Option::kGpuMemory, "gpu_memory"},
    {Option::kKvMemory, "kv_memory"},
    {Option::kHostMemory, "host_memory"},
    {Option::kDiskMemory, "disk_memory"},
    {Option::kDiskPath, "disk_path"},
    {Option::kChunk, "chunk"},
    {Option::kPromptOrder, "prompt_order"},
    {Option::kHeadGroup, "head_group"},
    {Option::kSegment, "segment"},
    {Option::kPage, "page_slots"},
    {Option::kPlacement, "placement"},
    {Option::kPolicy, "policy"},
    {Option::kKvEncoding, "kv_encoding"},
    {Option::kWeightEncoding, "weight_encoding"},
    {Option::kHostAttention, "host_share"},
    {Option::kRecompute, "recompute_share"},
    {Option::kHeadPattern, "head_pattern"},
    {Option::kSelector, "selector"},
    {Option::kSparseKeys, "sparse_keys"},
    {Option::kSparseSink, "sparse_sink"},
    {Option::kSparseRecent, "sparse_recent"},
    {Option::kSparseShare, "sparse_share"},
    {Option::kSparseTopP, "sparse_top_p"},
    {Option::kSparseLeast, "sparse_least"},
    {Option::kSparseBlock, "sparse_block"},
    {Option::kSparseLooks, "sparse_looks"},
    {Option::kSparseSketches, "sparse_sketches"},
    {Option::kSparseLevels, "sparse_levels"},
    {Option::kSparseRefresh, "sparse_refresh"},
    {Option::kSparseCandidatesRefresh, "sparse_candidates_refresh"},
    {Option::kSparseFrom, "sparse_from"},
    {Option::kSparseEpsilon, "sparse_epsilon"},
    {Option::kSparseDenseEvery, "sparse_dense_every"},
    {Option::kSparseDelta, "sparse_delta"},
    {Option::kHipStages, "hip_stages"},
    {Option::kHipRefresh, "hip_refresh"},
    {Option::kHipOuterKeys, "hip_outer_keys"},
    {Option::kHipPositions, "hip_positions"},
    {Option::kEvict, "evict"},
    {Option::kEvictBudget, "evict_budget"},
    {Option::kEvictWindow, "evict_window"},
    {Option::kEvictPool, "evict_pool"},
    {Option::kEvictSink, "evict_sink"},
    {Option::kEvictSafeguard, "evict_safeguard"},
    {Option::kEvictSteepness, "evict_steepness"},
    {Option::kEvictFuture, "evict_future"},
    {Option::kEvictProfile, "evict_profile"},
    {Option::kEvictRoom, "evict_room"},
    {Option::kEvicted, "evicted"},
    {Option::kEvictedKeys, "evicted_keys"},
    {Option::kEvictedRefresh, "evicted_refresh"},
    {Option::kHgca, "hgca"},
    {Option::kHgcaWindow, "hgca_window"},
    {Option::kHgcaAlpha, "hgca_alpha"},
    {Option::kHgcaEvery, "hgca_every"},
    {Option::kHgcaMost, "hgca_most"},
    {Option::kHgcaQueries, "hgca_queries"},
    {Option::kHgcaReselect, "hgca_reselect"},
    {Option::kHgcaOn, "hgca_on"},
    {Option::kHgcaEpsilon, "hgca_epsilon"},
    {Option::kHgcaDelta, "hgca_delta"},
    {Option::kDraft, "draft"},
    {Option::kDraftTokens, "draft_tokens"},
    {Option::kDraftAcceptance, "draft_acceptance"},
    {Option::kReach, "reach"},
    {Option::kRopeScaling, "rope_scaling"},
    {Option::kSelfExtend, "self_extend"},
    {Option::kPageCache, "sparse_cache"},
    {Option::kMachine, "machine"},
    {Option::kSession, "session"},
    {Option::kSessionRecut, "session_recut"},
    {Option::kTrace, "trace"},
    {Option::kPromptLength, "prompt_length"},
    {Option::kHaystack, "haystack"},
};

constexpr bool AllInOrder() {
  for (int i = 0; i < kOptions; ++i) {
    if (kNames[i].option != static_cast<Option>(i)) return false;
  }
  return true;
}
static_assert(std::size(kNames) == kOptions && AllInOrder());

}  // namespace

const char* OptionName(Option option) { return kNames[static_cast<int>(option)].name; }

Message& Message::operator+=(const Message& other) {
  pieces_.insert(pieces_.end(), other.pieces_.begin(), other.pieces_.end());
  return *this;
}

std::string Message::Text(const Namer& name) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    const std::string* words = std::get_if<std::string>(&piece);
    text += words != nullptr ? *words : name(std::get<Option>(piece));
  }
  return text;
}

std::string Message::Text() const {
  return Text([](Option option) { return std::string(OptionName(option)); });
}

}  // namespace headway
