// A Context: requests in, generations out, and what they took.
#ifndef HEADWAY_CONTEXT_H_
#define HEADWAY_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headway/plan.h"
#include "headway/status.h"
#include "headway/types.h"

namespace headway {

// One prompt of a batch. Request i runs in slot i of the Context, and those that are more than its
// sequences in the slots of those that end first, in order. The part of a prompt that equals what
// the slot's cache holds is not computed again.
struct Request {
  std::vector<TokenId> prompt;
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // text that ends generation; not part of the output
  bool ignore_eos = false;
};

struct Progress {
  enum class Phase { kRestore, kPrefill, kDecode };
  Phase phase = Phase::kPrefill;
  int64_t done = 0;            // tokens of all requests; kRestore: of a session, read from disk
  int64_t total = 0;           // kDecode: at most
  double seconds = 0.0;        // since the phase began
  int64_t tier_bytes[3] = {};  // device, host, disk: KV held
};

struct Generation;

struct Hooks {
  // Text of request i as it is made, always whole UTF-8. False ends that request.
  std::function<bool(int request, std::string_view text)> on_text;
  // Request i has ended.
  std::function<void(int request, const Generation&)> on_done;
  std::function<void(const Progress&)> on_progress;
  // Polled between layers; true stops cleanly, keeping what whole pages hold.
  const std::atomic<bool>* cancel = nullptr;
};

enum class FinishReason { kEos, kStop, kLength, kContextFull, kCancelled };
const char* FinishReasonName(
    FinishReason reason);  // "eos", "stop", "length", "context", "cancelled"

struct Generation {
  std::vector<TokenId> tokens;  // without the token that ended it
  std::string text;
  FinishReason finish = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;         // of the prompt, found in the cache
  std::vector<std::string> notices;  // such as why a saved cache could not be used
};

// Reads of chosen blocks of keys that lie in host memory, where a GPU keeps copies of such blocks
// (EngineOptions::sparse_cache).
struct PageCacheReads {
  int64_t found = 0;    // there was a copy
  int64_t brought = 0;  // one was made: the block crossed the bus
  int64_t passed = 0;   // there was no room for one: the block crossed the bus
  int64_t bytes = 0;    // of the blocks that crossed it

  int64_t all() const { return found + brought + passed; }
};

// Single pages of the cache that were chosen and lie on disk.
struct DiskPageReads {
  int64_t found = 0;  // in memory, since they were read lately
  int64_t read = 0;
  int64_t bytes = 0;  // of those
};

// Lists of blocks of closed pages, where queries choose among their keys (EngineOptions::selector,
// or draft "sparse"). One is of a layer, a KV head and a step of one token, or up to 64 tokens of a
// prompt's chunk. Steps that read all keys where they lie make none, nor do those that read an
// earlier one's. Of several ranks those of the first.
struct ListedBlocks {
  int64_t lists = 0;
  int64_t blocks = 0;  // in all of them: those that were chosen, of the sink and of recent keys
  int64_t among = 0;   // that there were for all of them
};

// What prompts read that choose among the keys before their chunks (EngineOptions::sparse_prefill),
// but for their dense rows.
struct PromptReads {
  ListedBlocks listed;
  PageCacheReads page_cache;
};

// Steps of sequences that read of what heads let go of their prompts (EngineOptions::evicted).
struct DemotedReads {
  int64_t steps = 0;
  int64_t choices = 0;  // of these, those that chose; the others read what an earlier one had
  int64_t bytes = 0;    // of keys and values that all of them read
};

// KV heads of layers of decode steps, of which what they leave out before the window was bounded
// (EngineOptions::hgca_epsilon); with several ranks, those of the first.
struct BoundedHeads {
  int64_t heads = 0;
  int64_t read_all = 0;  // of these, those that read all that is before the window
};

// Times of the last Generate or Score.
struct Timings {
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0.0;
  int64_t decode_tokens = 0;  // of all requests, computed by decode steps
  double decode_seconds = 0.0;
  int64_t drafted_tokens = 0;   // that decode steps verified
  int64_t accepted_drafts = 0;  // of these, those that were right
  double host_share = 0.0;      // EngineOptions::host_share as it is now
  // Of decode steps, since the Context was made. To count them, timings() waits for the GPU.
  PageCacheReads page_cache = {};
  DiskPageReads disk_pages = {};  // likewise
  DemotedReads demoted = {};      // since the Context was made
  BoundedHeads bounded = {};      // likewise
  ListedBlocks listed = {};       // likewise; to count them, timings() may wait for the GPU
  PromptReads prompts = {};       // the same
};

// Bytes and busy time of a lane since the Context was made or ResetLanes.
struct LaneReport {
  std::string lane;  // "compute", "h2d", "d2h", "cpu", "disk-write", "disk-weights", "disk-read"
  double busy_seconds = 0.0;
  int64_t bytes = 0;
  int64_t flops = 0;
};

// How near the blocks that a selector lists come to those that hold the attention. Far keys are
// those between sink and recent ones; a selector lists some of their blocks. All are sums over
// steps, of each layer and KV head; shares are of the head's attention, the mean over the query
// heads of its group. An oracle lists as many blocks by their true shares, for each head by itself
// or, for all heads of a layer together, the best of them.
struct SelectionRecall {
  struct Head {
    double far = 0.0;     // share of the attention that falls on far keys
    double listed = 0.0;  // on those that are listed
    double best_of_head = 0.0;
    double best_of_layer = 0.0;
    int64_t listed_blocks = 0;  // far ones
    int64_t far_blocks = 0;     // of which they are
  };
  int layers = 0;
  int kv_heads = 0;
  int64_t steps = 0;
  std::vector<Head> heads;  // [layers * KV heads]; all 0 in layers where nothing is left out
};

// Tokens [begin, end) of a text.
struct TokenSpan {
  int64_t begin = 0;
  int64_t end = 0;
};

// What each KV head was given of a prompt (EngineOptions::evict): tokens that it may keep, before
// they are rounded up to whole pages.
struct HeadBudgets {
  int64_t anyway = 0;           // those that every head keeps: the last ones, and the first
  std::vector<int64_t> tokens;  // these among them; [layers * KV heads]
};

// Caches of one workload's sequences and the steps that grow them. Lives shorter than its Engine.
class Context {
 public:
  ~Context();

  // As of the last Generate: where numbers do not fit lossless pages, that goes on with plain ones.
  const PlanReport& plan() const;

  // Prefills and decodes a batch. Requests may be more than the workload's sequences if each fits
  // the shortest of them; they share steps with those that decode.
  Result<std::vector<Generation>> Generate(std::span<const Request> requests, const Hooks& hooks);

  // The sum of -ln p(token | tokens before) over tokens[1..) of one sequence, in slot 0, whose
  // cache is emptied first.
  struct ScoreResult {
    double negative_log_likelihood = 0.0;
    int64_t predictions = 0;
  };
  // The part of it that tokens[begin, end) predict, behind the parts before, which earlier calls
  // with the same tokens took: each part is read in steps of its own, and one of a single token is
  // a decode step. `logits`, where given, sees what predicts tokens[index]: [vocab] of a part's
  // tokens in order, only during the call.
  struct ScorePart {
    int64_t begin = 0;  // 0 empties the cache
    int64_t end = -1;   // -1: up to the last token, which predicts nothing
    std::function<void(int64_t index, std::span<const float> logits)> logits;
  };
  Result<ScoreResult> Score(std::span<const TokenId> tokens, const Hooks& hooks);
  Result<ScoreResult> Score(std::span<const TokenId> tokens, const ScorePart& part,
                            const Hooks& hooks);

  // How far the attention of each KV head reaches behind tokens[from..): the mean over these tokens
  // of the share that falls on keys that are neither among the first `sink` nor the `recent` last
  // ones, of the query head of its group with the largest share. [layers * KV heads], 0 to 1. In
  // slot 0, whose cache is used as far as it fits. Not with streaming heads.
  Result<std::vector<float>> FarAttention(std::span<const TokenId> tokens, int64_t from,
                                          int64_t sink, int64_t recent, const Hooks& hooks);

  // The same of the share that falls on the tokens of `span`, which lie before `from`.
  Result<std::vector<float>> AttentionOn(std::span<const TokenId> tokens, int64_t from,
                                         const TokenSpan& span, const Hooks& hooks);

  // Of the prompt that was read last. kInvalidArgument where none was, or nothing is let go.
  Result<HeadBudgets> EvictedBudgets() const;

  // Reads tokens[from..) one a step, exactly, and measures what EngineOptions::selector would have
  // listed. In slot 0, whose cache is used as far as it fits. Without streaming heads.
  Result<SelectionRecall> RecallOfSelection(std::span<const TokenId> tokens, int64_t from,
                                            const Hooks& hooks);

  // For measuring: fills slot `slot` with `tokens` of random keys and values. With a `spread` above
  // 0, the sizes of the keys differ from one run of 16 tokens to the next: it is the deviation of
  // their logarithms.
  Status FillSynthetic(int slot, int64_t tokens, uint64_t seed, double spread = 0.0);

  void Reset();  // empties every slot
  // Slot 0 into the session file, if there is one; with eviction, once its prompt has been read.
  // `note` is the caller's own and kept with it, such as a conversation. Also within on_progress.
  Status SaveSession(std::string_view note = {});
  int64_t SessionTokens() const;           // that it began with, from the session file
  const std::string& SessionNote() const;  // that it was saved with; empty without a session

  Timings timings() const;
  // Of the keys and values held, open pages by what they hold: 0 device, 1 host, 2 disk.
  int64_t TierBytes(int tier) const;
  std::vector<LaneReport> Lanes() const;
  void ResetLanes();
  // [ranks][layers of the rank]: seconds that kernels have attended for since the Context was made,
  // in steps that decode alone (kDecode), the last token of a prompt among them, or in the others.
  // Where a GPU's kernels are not timed (EngineOptions::time_kernels) only those of the host's
  // cores count.
  std::vector<std::vector<double>> AttendSeconds(Progress::Phase phase) const;

 private:
  friend class Engine;
  struct Impl;
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway

#endif  // HEADWAY_CONTEXT_H_
