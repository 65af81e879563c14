// Planner: pure functions from a model's shape, a workload and budgets to a Plan. Nothing here
// touches hardware, files or the cache; engine/ applies what comes out.
#ifndef HEADWAY_PLAN_PLAN_H_
#define HEADWAY_PLAN_PLAN_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/machine_profile.h"
#include "base/types.h"
#include "headway/refusal.h"
#include "headway/status.h"
#include "plan/cost.h"

namespace headway::plan {

// Buffers on the device that weights of layers elsewhere pass through: one is computed with while
// the next is filled. And buffers in host memory that those on disk pass through before.
inline constexpr int kWeightBuffers = 2;

// How the cache is cut and moved.
struct CacheChoice {
  int64_t chunk = 0;           // tokens of a prefill step
  int group_heads = 0;         // KV heads moved together
  int64_t segment_tokens = 0;  // tokens of a slab, a multiple of page_slots
  int staging_slabs = 0;       // device buffers that streamed slabs pass through
  int bounce_slabs = 0;        // host buffers between disk and device
  // Share of the tokens that keep X instead of K and V, and are recomputed; then all heads are one
  // group.
  double recompute = 0.0;
  Tier sketches = Tier::kDevice;  // where those of keys lie: there, or on the host
  // Tokens of prompts that pass through one layer after the other, whole chunks; 0: each chunk
  // passes through all layers.
  int64_t stretch_tokens = 0;
};

// Bytes that a choice takes, as the rooms that will allocate them say.
struct CacheBytes {
  int64_t open_pages = 0;
  int64_t append_buffer = 0;
  int64_t streaming_heads = 0;
  int64_t staging = 0;
  int64_t summaries = 0;
  int64_t sketches = 0;       // on the device
  int64_t host_sketches = 0;  // or on the host
  int64_t hidden = 0;         // on the host: a stretch between its layers
  int64_t bounce = 0;
  // Slabs of host memory for the pages on disk that a decode step lists, so that later steps find
  // them there; 0: what lies on disk is read whole.
  int64_t listed_slabs = 0;
  int64_t slab = 0;    // one slab
  int64_t x_slab = 0;  // one of X
  // Of the cache of tokens that heads keep of prompts, all of it.
  int64_t kept = 0;
  int64_t on_host = 0;  // of tokens that lie in host memory beside slabs
  // Of what heads keep of prompts: buffers on the host, which no budget counts, and the file of a
  // session that holds these tokens alone.
  int64_t kept_host = 0;
  int64_t kept_file = 0;

  // What lies on the host beside slabs, whatever the tiers of these.
  int64_t fixed_on_host() const { return on_host + host_sketches + hidden; }
  // What the fast tier holds beside slabs.
  int64_t fixed() const {
    return open_pages + append_buffer + streaming_heads + staging + summaries + sketches + kept;
  }
};
struct CostModel {
  // Where sketches of keys may lie, first the tier that is taken where nothing speaks for another.
  std::vector<Tier> sketch_tiers = {Tier::kDevice};
  std::function<CacheBytes(const CacheChoice&)> cache;
  std::function<int64_t(const CacheChoice&)> activations;
  std::function<int64_t(const CacheChoice&)> workspace;
};

struct Budgets {
  int64_t kv = 0;    // fast tier: pages, append and staging buffers
  int64_t host = 0;  // host slabs and bounce buffers; of nothing, the latter are not counted
  int64_t disk = 0;  // slab file; 0: no disk tier
  // All that is on a device with its own memory.
  int64_t device = std::numeric_limits<int64_t>::max();
};

// Bytes of a session's file beside its slabs: what it begins with, and its table of contents, for
// the part that does not grow with the cache, a token, a slab and a page of a slab.
struct SessionSizes {
  int64_t header = 0;
  int64_t contents = 0;
  int64_t token = 0;
  int64_t slab = 0;
  int64_t page = 0;
  int64_t copies = 1;  // of the table of contents, that are there at a time
};

// How prompts pass through the model: a chunk through all layers before the next chunk, or a
// stretch of chunks through a layer before the next layer.
enum class PromptOrder : uint8_t { kAuto, kChunks, kLayers };

// What the user or a session fixes of a cut; absent: the planner's choice.
struct FixedCut {
  std::optional<int64_t> chunk;
  std::optional<int> group_heads;
  std::optional<int64_t> segment_tokens;
  std::optional<int> staging_slabs;
  double recompute = 0.0;
};

// Device memory for copies of what decode chooses of slabs in host memory, where there are some.
struct PageCacheRequest {
  int64_t bytes = 0;
  int64_t step_bytes = 0;  // for what one step chooses
  int64_t least = 0;       // fewer hold nothing
  // All of it where keys lie in host memory, or no plan; else at most half of what slabs could
  // have.
  bool fixed = false;
};

// Where heads keep some tokens, decode reads these alone, on the device and on the host.
struct KeptTokens {
  std::vector<int64_t> lengths;                  // of the sequences that decode together
  std::function<int64_t(int64_t length)> count;  // that are read of so many; null: all
  std::function<int64_t(int64_t length)> on_host = nullptr;  // of these; null: none
  double by_cores =
      1.0;  // of the latter, what the host's cores attend to; the rest crosses the bus
  double closed_bytes = 0.0;  // of them, as Subject::closed_bytes; 0: as of the others
  // Of these, that are not in the cache's encoding: all of those on the host, if some are; null:
  // none.
  std::function<int64_t(int64_t length)> plain = nullptr;
  // Those on the host are the best of so many, by summaries of so many bytes a token, chosen anew
  // every `refresh` steps, and read where they lie; null: they are not chosen.
  std::function<int64_t(int64_t length)> best_of = nullptr;
  double summary_bytes = 0.0;
  double refresh = 1.0;
};

struct MemoryRow {
  Tier tier = Tier::kDevice;
  std::string tag;
  int64_t bytes = 0;
};

// What another model takes of the device.
struct ModelBeside {
  std::vector<MemoryRow> rows;
  int64_t device = 0;  // all of them
  int64_t kv = 0;      // of these, what the fast tier's budget counts
};

// Drafts that decode steps verify.
struct DraftRequest {
  int64_t most = 0;      // of a sequence in a step; 0: there are none
  KeySelection chosen;   // of steps that make them; no keys: there are no such steps
  double seconds = 0.0;  // that another model takes for one of each sequence
  // The probability that a draft is right, where a test says so.
  std::optional<double> accepted = {};
};

struct PlanRequest {
  ModelShape shape;
  std::vector<int64_t> window;  // [layers] or empty, as CacheFormat
  // KV heads that have slabs, [layers]; the others keep sink and recent tokens on the device.
  // Empty: every head has.
  std::vector<int> slab_heads;
  int page_slots = kDefaultPageSlots;
  bool lossless = false;         // the encoding of closed pages
  RankGroup group = {};          // that shares the model, of which `shape` is one's part
  std::vector<int64_t> lengths;  // tokens that each sequence of the batch will reach
  int64_t weight_bytes = 0;
  // Of these: the matrices of a layer, which may be in host memory and stream in each step.
  int64_t layer_weight_bytes = 0;
  int64_t layer_code_bytes =
      0;  // these as host memory holds them and the bus brings them; 0: alike
  // Layers whose matrices stay on the device; absent: as many as fit it.
  std::optional<int> weight_layers;
  // Of the others, those whose matrices are read from disk in each step; absent: as few as host
  // memory leaves.
  std::optional<int> disk_layers;
  // Host memory that these take on their way, a layer; 0: none can be read from disk.
  int64_t layer_read_bytes = 0;
  // What a layer there takes of the disk's budget: nothing that lies in the model's files anyway.
  int64_t layer_disk_bytes = 0;
  int64_t other_bytes = 0;   // tokenizer, program, the prompts' text
  int64_t driver_bytes = 0;  // that the driver takes of the device's own memory
  // Of the device's memory for a byte of host memory that this takes: page tables, with ranks also
  // of what others take.
  double map_share = 0.0;
  // Chunk and segment to prefer where nothing is fixed, in tokens.
  int64_t chunk = 1024;
  int64_t segment = 1024;
  Budgets budgets;
  bool keep_on_device = true;  // false: no closed page may stay (placement host-only or disk-only)
  bool keep_on_host = true;    // false: disk-only
  // With a session: its file is a disk tier, whether slabs must lie there or not.
  std::optional<SessionSizes> session;
  FixedCut fixed;
  PromptOrder prompt_order = PromptOrder::kChunks;
  CostModel costs;
  // What is planned for: with it the plan has predicted times, and of the cuts that fit the one is
  // taken that they say is fastest. Null: the largest buffers that fit. Outlives the request.
  const MachineProfile* machine = nullptr;
  // Decode may leave a part of what is in host memory to the host's cores: the part that is
  // fastest, or else so much.
  bool host_attention = false;
  double host_share = 0.0;
  // The plan may recompute what is in host memory, as much of it as is fastest. (So much:
  // fixed.recompute.)
  bool recompute = false;
  KeptTokens kept;
  // What decode reads, where a policy selects.
  KeySelection selection;
  PageCacheRequest page_cache;
  DraftRequest drafts = {};
  // What is known of a page cache. It counts in the predicted times of plans whose cache holds what
  // as many steps choose, and not for which cut is taken: chunks and segments, and with them bits,
  // do not depend on what ran before.
  FoundBefore found;
  ModelBeside beside;
};

// The ranges of every layer and head, in the counted form that dense attention needs: how many
// slabs are resident, and from which tier the others stream.
struct Plan {
  CacheChoice cache;
  int64_t slabs[kTierCount] = {};
  int64_t x_slabs = 0;          // on the host, of X, beside them
  std::vector<int> x_segments;  // [sequences]: the first segments, which keep X
  int64_t gather_tokens = 0;    // whose X is staged and recomputed at once: GatherTokens
  int64_t page_cache = 0;       // bytes
  double page_cache_steps = 0;  // whose chosen keys it holds
  int64_t listed_slabs = 0;     // on the host, for pages on disk that decode lists
  double listed_steps = 0;      // whose pages they hold
  FoundBefore found;            // the request's, if it is of such a cache
  int64_t slab_bytes = 0;
  int64_t kv_bytes = 0;               // of all closed and open pages at the workload's end
  int weight_layers = 0;              // whose matrices stay on the device
  int64_t streamed_weight_bytes = 0;  // of the others: each step brings them there
  int disk_layers = 0;                // of the others, those whose matrices are read from disk
  int64_t disk_weight_bytes = 0;      // theirs: each step reads them
  double weights_streamed = 0.0;      // of all layers, the share that does not stay on the device
  double weight_code = 1.0;           // of a layer's bytes, those in host memory
  double weights_on_disk = 0.0;       // of all layers
  // The share of what a decode step reads from host memory that the host's cores attend to.
  double host_share = 0.0;
  // Predicted, where the request has a machine: reading all sequences, and one decode step of all
  // at their full length.
  StepTime prefill;
  StepTime decode;
  std::vector<MemoryRow> memory;
  std::vector<std::string> reasons;  // why it is as it is, a sentence each
  // Where budgets give another chunk or segment than an all-resident run of the request has: what
  // that means and how to have the same. Empty: the bits are those of that run, host_share and
  // x_slabs apart.
  Message cut_notice;

  int64_t Bytes(Tier tier) const;
};

// The plan for a request. kOutOfBudget when nothing fits: the message names the budget that is
// short and the smallest that would do. kInvalidArgument for choices that make no sense.
Result<Plan> MakePlan(const PlanRequest& request);
// The same without reasons, notice and what would do: for asking how fast another machine would be.
Result<Plan> MakeSilentPlan(const PlanRequest& request);

// The smallest budget that would do for each tier, the others as they are; -1 where none would.
struct SmallestBudgets {
  int64_t device = 0;
  int64_t kv = 0;
  int64_t host = 0;
  int64_t disk = 0;
};
SmallestBudgets FindSmallestBudgets(const PlanRequest& request);

// The first segments of each sequence that keep X, so that of the segments of all sequences
// together about `share` do.
std::vector<int> XSegments(double share, const std::vector<int64_t>& lengths,
                           int64_t segment_tokens);
// Tokens whose X is staged and recomputed at once: enough for an efficient product, or a segment,
// and no more than there are. 0 where nothing is recomputed.
int64_t GatherTokens(const CacheChoice& choice, const std::vector<int64_t>& lengths);
// Whether X takes fewer bytes than K and V: else recomputing never pays.
bool XIsSmaller(const ModelShape& shape);

// Fills a plan's predicted times by the request's machine.
void Predict(const PlanRequest& request, Plan* plan);

// A decode step of sequences of these lengths on a machine.
StepTime DecodeAt(const MachineProfile& machine, const PlanRequest& request, const Plan& plan,
                  const std::vector<int64_t>& lengths);

// Behind fewer keys than this a decode step that reads all of them takes no longer than one that
// chooses, by the request's machine (KeySelection::from).
int64_t WholeUpTo(const PlanRequest& request, const Plan& plan);

// What a plan does, as the cost model takes it, for sequences of these lengths.
Execution ExecutionOf(const Plan& plan, const std::vector<int64_t>& lengths);
Subject SubjectOf(const PlanRequest& request, const CacheChoice& choice);

// What limits the plan, and what would make it faster: a sentence each, from planning again with a
// little more of one thing. Empty without a machine.
std::vector<std::string> ExplainSpeed(const PlanRequest& request, const Plan& plan);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_PLAN_H_
