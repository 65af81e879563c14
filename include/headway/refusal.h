// Refusal: what an error asks its reader to do, as data. Messages name the options that matter, and
// each front end says them in its own words: a program by the members of EngineOptions, the command
// line by its flags.
#ifndef HEADWAY_REFUSAL_H_
#define HEADWAY_REFUSAL_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headway {

// What a message may tell its reader to change.
enum class Option {
  kLength,  // of a sequence of the workload
  kDevice,
  kThreads,
  kTensorParallel,
  kLayersOver,
  kAssignment,
  kAssignmentProfile,
  kAssignmentCopies,
  kGpuMemory,
  kKvMemory,
  kHostMemory,
  kDiskMemory,
  kDiskPath,
  kChunk,
  kPromptOrder,
  kHeadGroup,
  kSegment,
  kPage,
  kPlacement,
  kPolicy,
  kKvEncoding,
  kWeightEncoding,
  kHostAttention,
  kRecompute,
  kHeadPattern,
  kSelector,
  kSparseKeys,
  kSparseSink,
  kSparseRecent,
  kSparseShare,
  kSparseTopP,
  kSparseLeast,
  kSparseBlock,
  kSparseLooks,
  kSparseSketches,
  kSparseLevels,
  kSparseRefresh,
  kSparseCandidatesRefresh,
  kSparseFrom,
  kSparseEpsilon,
  kSparseDenseEvery,
  kSparseDelta,
  kHipStages,
  kHipRefresh,
  kHipOuterKeys,
  kHipPositions,
  kEvict,
  kEvictBudget,
  kEvictWindow,
  kEvictPool,
  kEvictSink,
  kEvictSafeguard,
  kEvictSteepness,
  kEvictFuture,
  kEvictProfile,
  kEvictRoom,
  kEvicted,
  kEvictedKeys,
  kEvictedRefresh,
  kHgca,
  kHgcaWindow,
  kHgcaAlpha,
  kHgcaEvery,
  kHgcaMost,
  kHgcaQueries,
  kHgcaReselect,
  kHgcaOn,
  kHgcaEpsilon,
  kHgcaDelta,
  kDraft,
  kDraftTokens,
  kDraftAcceptance,
  kReach,
  kRopeScaling,
  kSelfExtend,
  kPageCache,
  kMachine,
  kSession,
  kSessionRecut,
  kTrace,
  kPromptLength,  // of generated retrieval prompts
  kHaystack,      // the same
};
inline constexpr int kOptions = static_cast<int>(Option::kHaystack) + 1;
// As EngineOptions calls it: "kv_memory". Those that it does not have are "length",
// "prompt_length" and "haystack".
const char* OptionName(Option option);

// A line of text in which options are named.
class Message {
 public:
  using Piece = std::variant<std::string, Option>;
  using Namer = std::function<std::string(Option)>;

  Message() = default;
  Message(std::initializer_list<Piece> pieces) : pieces_(pieces) {}

  Message& operator+=(const Message& other);
  bool empty() const { return pieces_.empty(); }

  std::string Text(const Namer& name) const;
  std::string Text() const;  // by OptionName

 private:
  std::vector<Piece> pieces_;
};

// A budget that would do, the others as they are.
struct Remedy {
  Option budget = Option::kKvMemory;
  int64_t need = 0;  // bytes
  int64_t have = 0;
};

struct Refusal {
  Message message;
  // Where memory was short: what would do, the cheapest first, each alone.
  std::vector<Remedy> remedies = {};
  // The longest sequences that would fit as things are, in tokens; none: no length would.
  std::optional<int64_t> longest = std::nullopt;
};

}  // namespace headway

#endif  // HEADWAY_REFUSAL_H_
