// What a context would take and how fast it would be, without making it.
#ifndef HEADWAY_PLAN_H_
#define HEADWAY_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headway/refusal.h"
#include "headway/types.h"

namespace headway {

// The sequences that a Context will hold, by the number of tokens that each will reach.
struct Workload {
  std::vector<int64_t> lengths;
};

struct MemoryLine {
  std::string tier;  // "device", "host", "disk"
  std::string what;
  int64_t bytes = 0;
};

// Of one phase of a workload, by a machine profile.
struct PhasePrediction {
  double seconds = 0.0;
  double tokens_per_second = 0.0;
  std::string limit;                                  // the lane that is busy longest
  std::vector<std::pair<std::string, double>> lanes;  // and how long each is, in seconds
};

// Of decode steps that verify drafts, each of which is right with a probability if those before it
// are: the number of a sequence that gives the most tokens.
struct DraftPrediction {
  double accepted = 0.0;
  int64_t drafts = 0;
  double tokens_per_second = 0.0;
};

struct Prediction {
  std::string machine;      // the profile's name; empty: nothing was predicted
  std::string origin;       // where the profile is from: "headway probe", "shipped profile h200"
  PhasePrediction prefill;  // reading all sequences
  PhasePrediction decode;   // one step of all at their full length, without drafts
  std::vector<DraftPrediction> drafts;  // at some acceptances; empty where there are none
};

// What PredictSeconds is asked about: reading lengths[i] - prefixes[i] tokens behind prefixes[i],
// or so many decode steps of sequences that have these lengths.
struct Phase {
  std::vector<int64_t> lengths;
  std::vector<int64_t> prefixes;
  int64_t decode_steps = 0;
};

// What steps read where a policy selects (EngineOptions::selector).
struct SelectionReport {
  std::string selector;
  // That a KV head chooses, on average, of the longest sequence; with a top_p above 0 at most, and
  // `least` at least. With an epsilon above 0 at least, up to all.
  int64_t keys = 0;
  double top_p = 0.0;
  int64_t least = 0;
  double epsilon = 0.0;
  double delta = 0.0;
  int64_t sink = 0;
  int64_t recent = 0;
  int block = 0;
  double scored_bytes = 0.0;  // that the choice reads of each key and KV head, on average
  int looks = 1;
  std::string sketches;    // of two looks at keys: where their bits lie, "device" or "host"
  int levels = 1;          // of summaries: those of pages are searched first
  int64_t candidates = 0;  // keys that the first of two looks lists for a KV head, on average
  int64_t refresh = 1;     // tokens that one choice is for
  int64_t candidates_refresh = 1;  // and one list of candidates, or what survives the first stage
  bool prompts = false;            // are read so, too
  int pool = 0;  // tokens of a prompt that are scored as one query, where they are
  // Where these are at most half of the keys, which as many tokens search: the keys that pools look
  // at of each KV head, near ones among them.
  int64_t prompt_candidates = 0;
  int search = 0;
  bool reach = false;                            // beyond the trained window
  std::string reach_positions = "streamingllm";  // where far keys count there
  std::string hip_positions;  // and while infinitehip scores them, which alone has such positions
  int64_t from = 0;           // sequences of up to so many tokens are read whole
  int64_t length = 0;         // of the longest sequence
  // Sequences of up to so many tokens are read whole, since that is asked for or the budget of
  // every layer holds all of their keys; length: all are. Beyond the trained window keys are moved
  // all the same.
  int64_t whole = 0;
  // Of the longest sequence, the share of its keys that is read at its end, at least with an
  // epsilon; 1: it is exact.
  double share = 1.0;
};

// Device memory for copies of what is chosen of keys in host memory (EngineOptions::sparse_cache).
struct PageCacheReport {
  int64_t bytes = 0;
  double steps = 0.0;  // whose chosen keys it holds
  // Of the chosen keys in host memory, the share that predictions of decode find there, and the
  // tokens of earlier runs that this stands on; 0: it is assumed. What is assumed counts as
  // assumed_tokens beside these.
  double found_share = 0.0;
  int64_t found_tokens = 0;
  int64_t assumed_tokens = 0;
};

// What each KV head keeps of a prompt that has been read (EngineOptions::evict).
struct EvictionReport {
  std::string method;
  // Tokens, on average over heads and layers; or, where they are 0, a share of the prompt.
  int64_t budget = 0;
  double share = 0.0;
  // Those that the method does not read are as they are unless a user says otherwise.
  int64_t window = 0;
  int pool = 0;
  std::string pooling;  // "mean" or "max"
  int64_t sink = 0;
  double safeguard = 0.0;
  double steepness = 0.0;
  int64_t future = 0;
  bool profiled = false;  // a profile says what heads have of the budget (evict_profile)
  int64_t room = 0;
  // Of tokens that are not kept those that a head reads in a decode step, and the steps that one
  // choice serves (EngineOptions::evicted); 0: they are dropped.
  int64_t demoted_keys = 0;
  int64_t demoted_refresh = 0;
  int64_t demoted_bytes = 0;  // that a sequence takes of host memory for them, at most
  // Of the device, for the longest sequence: what is kept of its prompt, and all that it may grow
  // to by `room` tokens.
  int64_t kept_bytes = 0;
  int64_t sequence_bytes = 0;
  // Sequences of that length that fit the budgets, and those that would with all of their tokens on
  // the device; of a plan alone (PlanModel). 4,096: as many as a context may have.
  int64_t sequences = 0;
  int64_t whole_sequences = 0;
};

// What decodes attend to of the tokens before a window (EngineOptions::hgca).
struct SalienceReport {
  double beta = 0.0;
  int64_t window = 0;
  double alpha = 0.0;
  int64_t every = 0;
  double most = 0.0;
  int64_t queries = 0;
  int64_t reselect = 0;  // steps; above 0 there are no masses, and beta and the like say nothing
  bool on_host = false;
  double by_cores = 0.0;  // where they lie on the host: what its cores attend to of them
  // Where a head may leave out more than this share, but with a probability of delta, it reads all;
  // 0: there is no bound.
  double epsilon = 0.0;
  double delta = 0.0;
};

// Which of the ranks that share a model attend for which of its KV heads, and how busy they are
// with that (EngineOptions::tensor_parallel, assignment).
struct RanksReport {
  std::string assignment;  // "balanced", "fairkv", "static" or "tokens"
  int copies = 0;          // EngineOptions::assignment_copies
  bool profiled = false;   // by what a profile says that heads keep; else all count as much
  // What its heads keep of a long prompt, in all layers; without a profile, how many these are.
  std::vector<double> keys;  // [ranks]
  // Of the time that the busiest rank of each layer attends, by these keys: each rank's share,
  // their mean, and what that would be with the heads in their order.
  std::vector<double> busy;  // [ranks]
  double busy_share = 1.0;
  double static_busy_share = 1.0;
  std::vector<std::vector<std::vector<int>>> heads;  // [layers][ranks]: by their index, ascending
  // The same: how much of each a rank has, of the sequences or the tokens; empty where all heads of
  // all ranks are whole.
  std::vector<std::vector<std::vector<double>>> shares;
};

struct PlanReport {
  int64_t chunk = 0;
  // Tokens of prompts that pass through one layer before the next; 0: each chunk passes through all
  // layers.
  int64_t stretch = 0;
  int head_group = 0;
  int64_t segment = 0;
  int64_t kv_bytes = 0;  // of the whole workload
  int64_t slab_bytes = 0;
  std::string kv_encoding;            // of closed pages: none, lossless, ...
  int64_t kv_bytes_per_token = 0;     // in these, without what pads them
  int64_t slabs[3] = {};              // device, host, disk
  int weight_layers = 0;              // whose weights stay on the device
  int64_t streamed_weight_bytes = 0;  // of the other layers: each step brings them there
  std::vector<int> disk_layers;       // of these, those whose weights it reads from disk, ascending
  int64_t disk_weight_bytes = 0;      // theirs
  double host_share = 0.0;            // that decode begins with; see EngineOptions
  int64_t x_slabs = 0;  // on the host, beside those of keys and values: what is recomputed
  double recompute_share = 0.0;
  int staging_slabs = 0;
  std::optional<SelectionReport> selection;
  std::optional<PageCacheReport> page_cache;  // empty without one
  std::optional<EvictionReport> eviction;
  std::optional<SalienceReport> salience;
  std::optional<RanksReport> ranks;  // empty where one has all
  std::vector<int> layers_of_ranks;  // of EngineOptions::layers_over, in order; empty without
  Prediction prediction;
  std::vector<MemoryLine> memory;
  std::vector<std::string> reasons;
  // Where chunk or segment are not those of an all-resident run: what follows, and what would keep
  // them. Empty: that run gives the same bits, where nothing is recomputed or left to the CPU.
  Message cut_notice;
  // RAM in all: host lines, and the device's where they are RAM. A program whose malloc keeps what
  // is freed may hold more.
  int64_t memory_bytes = 0;
  // The smallest budgets that would do, each with the others as they are; -1: none would.
  int64_t smallest_gpu_memory = 0;  // 0 where the device's memory is RAM
  int64_t smallest_kv_memory = 0;
  int64_t smallest_host_memory = 0;
  int64_t smallest_disk_memory = 0;
};

// What the files of a model say of it.
struct ModelInfo {
  std::string folder;
  std::string architecture;
  std::string dtype;
  int layers = 0;
  int d_model = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int d_ff = 0;
  int vocab = 0;
  int64_t max_position = 0;  // trained length; beyond it quality falls
  int64_t weight_bytes = 0;
  int64_t step_weight_bytes = 0;  // of the weights that a decode step reads
  // In closed pages, in the encoding asked for; PlanReport has that of its own.
  int64_t kv_bytes_per_token = 0;
  std::string rope_type;
  // Of every value of the configuration that the computation reads, as hexadecimal digits.
  std::string config_hash;
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
  // What generation_config.json proposes; off where it says nothing, and greedy unless it has
  // do_sample. A request takes it only where the caller puts it there.
  SamplingOptions sampling;
  bool has_tokenizer = false;
  bool has_chat_template = false;
};

// What PlanModel says.
struct ModelPlan {
  ModelInfo info;
  std::string kernels;  // or the machine's name, where its GPU need not be here
  int threads = 0;
  std::vector<int64_t> lengths;
  PlanReport plan;
  std::vector<std::string> explain;
  std::vector<Message> notices;
};

}  // namespace headway

#endif  // HEADWAY_PLAN_H_
