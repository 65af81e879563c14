#include "cli/option_flags.h"

#include <iterator>

namespace headway::cli {

namespace {

struct Flag {
  Option option;
  const char* flag;
};
// In the order of the options.
constexpr Flag kFlags[] = {
    {Option::kLength, "--ctx-size"},
    {Option::kDevice, "--device"},
    {Option::kThreads, "--threads"},
    {Option::kTensorParallel, "--tp"},
    {Option::kLayersOver, "--layers-over"},
    {Option::kAssignment, "--assignment"},
    {Option::kAssignmentProfile, "--assignment-profile"},
    {Option::kAssignmentCopies, "--assignment-copies"},
    {Option::kGpuMemory, "--gpu-memory"},
    {Option::kKvMemory, "--kv-memory"},
    {Option::kHostMemory, "--host-memory"},
    {Option::kDiskMemory, "--disk-memory"},
    {Option::kDiskPath, "--disk-path"},
    {Option::kChunk, "--chunk"},
    {Option::kPromptOrder, "--prompt-order"},
    {Option::kHeadGroup, "--head-group"},
    {Option::kSegment, "--segment"},
    {Option::kPage, "--page"},
    {Option::kPlacement, "--placement"},
    {Option::kPolicy, "--policy"},
    {Option::kKvEncoding, "--kv-encoding"},
    {Option::kWeightEncoding, "--weight-encoding"},
    {Option::kHostAttention, "--host-attention"},
    {Option::kRecompute, "--recompute"},
    {Option::kHeadPattern, "--head-pattern"},
    {Option::kSelector, "--sparse"},
    {Option::kSparseKeys, "--sparse-keys"},
    {Option::kSparseSink, "--sparse-sink"},
    {Option::kSparseRecent, "--sparse-recent"},
    {Option::kSparseShare, "--sparse-share"},
    {Option::kSparseTopP, "--sparse-top-p"},
    {Option::kSparseLeast, "--sparse-least"},
    {Option::kSparseBlock, "--sparse-block"},
    {Option::kSparseLooks, "--sparse-looks"},
    {Option::kSparseSketches, "--sparse-sketches"},
    {Option::kSparseLevels, "--sparse-levels"},
    {Option::kSparseRefresh, "--sparse-refresh"},
    {Option::kSparseCandidatesRefresh, "--sparse-candidates-refresh"},
    {Option::kSparseFrom, "--sparse-from"},
    {Option::kSparseEpsilon, "--sparse-epsilon"},
    {Option::kSparseDenseEvery, "--sparse-dense-every"},
    {Option::kSparseDelta, "--sparse-delta"},
    {Option::kHipStages, "--hip-stages"},
    {Option::kHipRefresh, "--hip-refresh"},
    {Option::kHipOuterKeys, "--hip-outer-keys"},
    {Option::kHipPositions, "--hip-positions"},
    {Option::kEvict, "--evict"},
    {Option::kEvictBudget, "--evict-budget"},
    {Option::kEvictWindow, "--evict-window"},
    {Option::kEvictPool, "--evict-pool"},
    {Option::kEvictSink, "--evict-sink"},
    {Option::kEvictSafeguard, "--evict-safeguard"},
    {Option::kEvictSteepness, "--evict-steepness"},
    {Option::kEvictFuture, "--evict-future"},
    {Option::kEvictProfile, "--evict-profile"},
    {Option::kEvictRoom, "--evict-room"},
    {Option::kEvicted, "--evicted"},
    {Option::kEvictedKeys, "--evicted-keys"},
    {Option::kEvictedRefresh, "--evicted-refresh"},
    {Option::kHgca, "--hgca"},
    {Option::kHgcaWindow, "--hgca-window"},
    {Option::kHgcaAlpha, "--hgca-alpha"},
    {Option::kHgcaEvery, "--hgca-every"},
    {Option::kHgcaMost, "--hgca-most"},
    {Option::kHgcaQueries, "--hgca-queries"},
    {Option::kHgcaReselect, "--hgca-reselect"},
    {Option::kHgcaOn, "--hgca-on"},
    {Option::kHgcaEpsilon, "--hgca-epsilon"},
    {Option::kHgcaDelta, "--hgca-delta"},
    {Option::kDraft, "--draft"},
    {Option::kDraftTokens, "--draft-tokens"},
    {Option::kDraftAcceptance, "--draft-acceptance"},
    {Option::kReach, "--reach"},
    {Option::kRopeScaling, "--rope-scaling"},
    {Option::kSelfExtend, "--self-extend"},
    {Option::kPageCache, "--sparse-cache"},
    {Option::kMachine, "--machine"},
    {Option::kSession, "--session"},
    {Option::kSessionRecut, "--session-recut"},
    {Option::kTrace, "--trace"},
    {Option::kPromptLength, "--context"},
    {Option::kHaystack, "--haystack"},
};

constexpr bool AllInOrder() {
  for (int i = 0; i < kOptions; ++i) {
    if (kFlags[i].option != static_cast<Option>(i)) return false;
  }
  return true;
}
static_assert(std::size(kFlags) == kOptions && AllInOrder());

}  // namespace

std::string FlagOf(Option option) { return kFlags[static_cast<int>(option)].flag; }

std::string Worded(const Message& message) { return message.Text(FlagOf); }

std::string Worded(const Status& status) { return Worded(status.words()); }

}  // namespace headway::cli
