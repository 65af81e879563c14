// Headway's public API: open a model, plan, generate, score.
//
//   Result<std::unique_ptr<Engine>> engine = Engine::Open("models/demo", {});
//   Result<std::vector<TokenId>> prompt = (*engine)->Encode("Once upon a time", {});
//   Workload workload{{static_cast<int64_t>(prompt->size()) + 64}};
//   Result<std::unique_ptr<Context>> context = (*engine)->NewContext(workload);
//   Result<std::vector<Generation>> result = (*context)->Generate({{Request{*prompt}}}, {});
//
// Several engines can live in one process. An Engine may be used by several threads, a Context by
// one at a time. No function throws.
#ifndef HEADWAY_ENGINE_H_
#define HEADWAY_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headway/machine.h"
#include "headway/status.h"
#include "headway/types.h"

namespace headway {

inline constexpr double kHostShareAuto = -1.0;
inline constexpr double kRecomputeAuto = -1.0;
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct EngineOptions {
  std::string device = "cpu";  // or "cuda", or "cuda:N" for GPU N, where the build has it
  std::string isa = "auto";    // instruction set of the CPU kernels: auto, amx, avx512, avx2
  int threads = 0;             // 0: every core that the process may use

  // Budgets in bytes. Never exceeded; what does not fit is refused before work starts.
  int64_t gpu_memory = 0;        // all that is on the GPU, the driver's part too; 0: what is free
  int64_t kv_memory = kNoLimit;  // the fast tier's KV pages, append and staging buffers
  // KV behind the fast tier, and weights that stream; 0: nothing but the disk tier's buffers.
  int64_t host_memory = kNoLimit;
  int64_t disk_memory = 0;  // KV on disk, behind host memory
  std::string disk_path;    // directory of the disk tier; empty: TMPDIR, or /tmp

  // Layers whose weights stay on the device; those of the others are kept in host memory and
  // brought in each step. -1: as many as fit, which are all on a CPU. Of one engine, the first
  // context's.
  int gpu_layers = -1;

  // How the cache is cut and moved; 0 lets the planner choose. A policy other than auto fixes head
  // group, segment, staging buffers and placement, as the method that it is named after has them:
  // headinfer moves the whole KV cache of one head at a time, layerwise that of one layer; both
  // keep nothing on the device and two buffers, one attended to while the other is filled. kvpr
  // does so with segments, and recomputes the share of them that its closed form says.
  std::string policy = "auto";          // auto, headinfer, layerwise, kvpr
  int64_t chunk = 0;                    // tokens of a prefill step
  int head_group = 0;                   // KV heads moved together
  int64_t segment = 0;                  // tokens of a slab
  int page_slots = 64;                  // token slots of a page
  int staging_slabs = 0;                // buffers that streamed slabs pass through; 0: auto
  std::string placement = "first-fit";  // first-fit, lru, host-only, disk-only

  // How closed pages are stored, an approximation unless none or the model's own dtype: none, bf16,
  // f16, int8, fp8 (E4M3), int4. A session is continued with the one that it was saved with.
  std::string kv_encoding = "none";

  // Decode steps leave a share of what they would stream from host memory to cores of the host,
  // which attend to it in place at the same time. 0: none, 1: all, kHostShareAuto: where there is
  // a GPU, as the planner says, and after each step as the lanes' times say, so that both end
  // together, unless the plan is frozen: then, and with a number, a run gives the same bits every
  // time.
  double host_share = kHostShareAuto;
  bool freeze_plan = false;

  // A share of the tokens, the first ones of each sequence, keep in host memory what keys and
  // values are made of instead of these (KVPR): fewer bytes to copy where a model has a KV head for
  // every query head, and more arithmetic. 0: none, 1: all, kRecomputeAuto: beside a GPU as much as
  // is fastest by the machine's profile, if any. Not together with a session, a KV encoding,
  // streaming heads or sliding windows.
  double recompute_share = kRecomputeAuto;

  // Streaming heads, an approximation (DuoAttention; HeadInfer, appendix D): heads that the pattern
  // marks keep sink and recent tokens only, always on the device. Not together with a session.
  std::string head_pattern;   // DuoAttention's TSV or its folder, or JSON; empty: none, exact
  double sparsity = -1.0;     // share of the KV heads to stream, by the scores; < 0: the file's say
  int64_t sink_tokens = -1;   // < 0: what the file says, or 64
  int64_t recent_tokens = 0;  // 0: what the file says, or 256

  // The machine that cuts of the cache are chosen for and times predicted by: a shipped profile's
  // name ("h200") or a file. Empty: what `headway probe` has kept of this machine, or the profile
  // shipped for its GPU.
  std::string machine;

  std::string session;  // file that keeps the cache of slot 0 between runs; empty: none
  // Where the session's cut does not fit the budgets, prompts are read again into one that does,
  // and the first save replaces the file.
  bool session_recut = false;
  std::string trace;          // file for the lanes' trace; empty: none
  bool time_kernels = false;  // the compute lane is timed on a GPU, too; a trace does that anyway
  int64_t alias_host_memory = 0;  // for measuring: KV slabs on the host share that much memory
  bool random_weights = false;    // `model` names a config.json; weights are drawn, not read
};

// The sequences that a Context will hold, by the number of tokens that each will reach.
struct Workload {
  std::vector<int64_t> lengths;
};

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
  int64_t step_weight_bytes = 0;   // of the weights that a decode step reads
  int64_t kv_bytes_per_token = 0;  // in closed pages, in the encoding asked for
  std::string rope_type;
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
  // What generation_config.json proposes; off where it says nothing, and greedy unless it has
  // do_sample. A request takes it only where the caller puts it there.
  SamplingOptions sampling;
  bool has_tokenizer = false;
  bool has_chat_template = false;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

// What a chat template is given beside the messages.
struct ChatOptions {
  // A JSON object whose members the template sees as variables, {"enable_thinking": false} for one;
  // empty: none.
  std::string variables;

  // kInvalidArgument where it is none, or has what the engine sets itself: messages and
  // add_generation_prompt.
  Status Validate() const;
};

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
  enum class Phase { kPrefill, kDecode };
  Phase phase = Phase::kPrefill;
  int64_t done = 0;            // tokens of all requests
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

// Times of the last Generate or Score.
struct Timings {
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0.0;
  int64_t decode_tokens = 0;  // of all requests, computed by decode steps
  double decode_seconds = 0.0;
  double host_share = 0.0;  // EngineOptions::host_share as it is now
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

struct Prediction {
  std::string machine;      // the profile's name; empty: nothing was predicted
  std::string origin;       // where the profile is from: "headway probe", "shipped profile h200"
  PhasePrediction prefill;  // reading all sequences
  PhasePrediction decode;   // one step of all at their full length
};

// What PredictSeconds is asked about: reading lengths[i] - prefixes[i] tokens behind prefixes[i],
// or so many decode steps of sequences that have these lengths.
struct Phase {
  std::vector<int64_t> lengths;
  std::vector<int64_t> prefixes;
  int64_t decode_steps = 0;
};

struct PlanReport {
  int64_t chunk = 0;
  int head_group = 0;
  int64_t segment = 0;
  int64_t kv_bytes = 0;  // of the whole workload
  int64_t slab_bytes = 0;
  int64_t slabs[3] = {};              // device, host, disk
  int weight_layers = 0;              // whose weights stay on the device
  int64_t streamed_weight_bytes = 0;  // of the other layers: each step brings them there
  std::vector<int> disk_layers;       // of these, those whose weights it reads from disk, ascending
  int64_t disk_weight_bytes = 0;      // theirs
  double host_share = 0.0;            // that decode begins with; see EngineOptions
  int64_t x_slabs = 0;  // on the host, beside those of keys and values: what is recomputed
  double recompute_share = 0.0;
  int staging_slabs = 0;
  Prediction prediction;
  std::vector<MemoryLine> memory;
  std::vector<std::string> reasons;
  // Where chunk or segment are not those of an all-resident run: what follows, and what would keep
  // them. Empty: that run gives the same bits, where nothing is recomputed or left to the CPU.
  std::string cut_notice;
  // RAM in all: host lines, and the device's where they are RAM. A program whose malloc keeps what
  // is freed may hold more.
  int64_t memory_bytes = 0;
  // The smallest budgets that would do, each with the others as they are; -1: none would.
  int64_t smallest_gpu_memory = 0;  // 0 where the device's memory is RAM
  int64_t smallest_kv_memory = 0;
  int64_t smallest_host_memory = 0;
  int64_t smallest_disk_memory = 0;
};

// Bytes and busy time of a lane since the Context was made or ResetLanes.
struct LaneReport {
  std::string lane;  // "compute", "h2d", "d2h", "cpu", "disk-write", "disk-weights", "disk-read"
  double busy_seconds = 0.0;
  int64_t bytes = 0;
  int64_t flops = 0;
};

class Context;

class Engine {
 public:
  // `model` is a folder as Hugging Face publishes them, or org/name in the local cache.
  static Result<std::unique_ptr<Engine>> Open(const std::string& model,
                                              const EngineOptions& options);
  ~Engine();

  const ModelInfo& info() const;
  std::string kernels() const;  // "cpu avx512"
  int threads() const;

  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;
  Result<std::string> Decode(std::span<const TokenId> tokens, bool skip_special) const;
  // The text of a conversation through the model's chat template, ready for the assistant's turn.
  Result<std::string> RenderChat(std::span<const ChatMessage> messages,
                                 const ChatOptions& options = {}) const;

  // Tokens that the session file of the options holds; 0 when there is none. A context must be at
  // least that long to continue it. From here on no other process can write to it.
  Result<int64_t> SessionTokens() const;

  // What NewContext would do, without taking memory. kOutOfBudget, naming the smallest budget that
  // would do, when nothing fits.
  Result<PlanReport> Plan(const Workload& workload) const;
  Result<std::unique_ptr<Context>> NewContext(const Workload& workload);
  // How long a phase should take in a context of `planned`, by the machine's profile.
  Result<double> PredictSeconds(const Workload& planned, const Phase& phase) const;

 private:
  friend class Context;
  friend struct EngineOpener;  // for tests, engine/open.h
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Caches of one workload's sequences and the steps that grow them. Lives shorter than its Engine.
class Context {
 public:
  ~Context();

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
  // with the same tokens took: each part is read in steps of its own. `logits`, where given, sees
  // what predicts tokens[index].
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

  // For measuring: fills slot `slot` with `tokens` of random keys and values.
  Status FillSynthetic(int slot, int64_t tokens, uint64_t seed);

  void Reset();  // empties every slot
  // Slot 0 into the session file; nothing when there is none. `note` is the caller's own and kept
  // with it, such as the conversation that the tokens are. Also from within on_progress.
  Status SaveSession(std::string_view note = {});
  int64_t SessionTokens() const;           // that it began with, from the session file
  const std::string& SessionNote() const;  // that it was saved with; empty without a session

  Timings timings() const;
  // Of the keys and values held, open pages by what they hold: 0 device, 1 host, 2 disk.
  int64_t TierBytes(int tier) const;
  std::vector<LaneReport> Lanes() const;
  void ResetLanes();

 private:
  friend class Engine;
  struct Impl;
  explicit Context(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What this machine does at best with the device, threads and kernels of `options`. Takes a second
// or two, 512 MiB of memory (2 GiB of a GPU's), and as much of the disk as its budget allows, at
// most 512 MiB.
Result<MachinePeaks> MeasurePeaks(const EngineOptions& options);

// What Engine::Plan would say, from the model's description alone: nothing is loaded, and with
// options.machine the machine need not be here, nor a GPU. A length of 0 is the trained one. With
// `explain` also what would make it faster.
struct ModelPlan {
  ModelInfo info;
  std::string kernels;  // or the machine's name, where its GPU need not be here
  int threads = 0;
  std::vector<int64_t> lengths;
  PlanReport plan;
  std::vector<std::string> explain;
  std::vector<std::string> notices;
};
Result<ModelPlan> PlanModel(const std::string& model, const EngineOptions& options,
                            const Workload& workload, bool explain);

// Measures the machine with the device and threads of `options`, in ten seconds or twenty, and
// keeps what it found in $XDG_CACHE_HOME/headway (or ~/.cache/headway) for runs to come.
Result<MachineReport> ProbeMachine(const EngineOptions& options);

// What a session file or a model folder holds, for `headway inspect`.
struct Inspection {
  std::string kind;  // "model folder" or "session file"
  std::string path;
  std::vector<std::pair<std::string, std::string>> fields;  // name and value, for people to read
};
Result<Inspection> Inspect(const std::string& path);

}  // namespace headway

#endif  // HEADWAY_ENGINE_H_
