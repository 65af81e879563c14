// What an Engine is opened with.
#ifndef HEADWAY_OPTIONS_H_
#define HEADWAY_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <string>

namespace headway {

inline constexpr double kHostShareAuto = -1.0;
inline constexpr double kRecomputeAuto = -1.0;
inline constexpr int64_t kSparseFromAuto = -1;
inline constexpr int kSparseLevelsAuto = 0;
inline constexpr int64_t kSparseCacheAuto = -1;
inline constexpr const char* kDefaultEvictBudget = "1024";
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct EngineOptions {
  // Or "cuda", or "cuda:N" for GPU N, where the build has it. Of several ranks each has a GPU, from
  // GPU N on, or those of "cuda:N,M,...".
  std::string device = "cpu";
  std::string isa = "auto";  // instruction set of the CPU kernels: auto, amx, avx512, avx2
  int threads = 0;           // 0: every core that the process may use
  // Ranks that share the model, in this process, or one in each of the processes that
  // headway/processes.h has joined: each has some of the KV heads, of the MLP and of the
  // vocabulary, and a share of threads and budgets; with a GPU, one of its own.
  int tensor_parallel = 1;
  // Ranks in this process, each of which has a run of the layers, one behind the other, by the
  // memory of their devices, and a share of budgets: a model and a cache that one device does not
  // hold. A step goes through all of them; not with tensor_parallel.
  int layers_over = 1;
  // Which rank has which KV heads of a layer, where a profile says what these will keep of prompts:
  // evict_profile, or assignment_profile, a file like that which says no more than this, where
  // `evict` shares budgets out by each prompt. balanced: the largest load of a rank is as small as
  // can be; fairkv: the difference of the largest and the smallest one is (Zhao et al., 2025);
  // static: in their order. No rank has more heads than it takes for all to have one. tokens: ranks
  // also share what heads keep of each prompt, so that loads are nearly equal; each may have a part
  // of one head more.
  std::string assignment = "balanced";
  // Of balanced and fairkv: how many ranks more than one the heads of a layer may have together, 0
  // to 4; each may have one head more. Ranks that have the same head divide sequences among them.
  int assignment_copies = 0;
  std::string assignment_profile;

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
  // How host memory holds those that stream: none, as they are; lossless, the same numbers of bf16
  // in 0.77 of the bytes, which the bus brings and the device expands.
  std::string weight_encoding = "none";

  // How the cache is cut and moved; 0 lets the planner choose. A policy other than auto fixes head
  // group, segment, staging buffers and placement, as the method that it is named after has them:
  // headinfer moves the whole KV cache of one head at a time, layerwise that of one layer; both
  // keep nothing on the device and two buffers, one attended to while the other is filled. kvpr
  // does so with segments, and recomputes the share of them that its closed form says.
  std::string policy = "auto";  // auto, headinfer, layerwise, kvpr
  int64_t chunk = 0;            // tokens of a prefill step
  // How prompts pass through the model. "chunks": each through all layers before the next one;
  // "layers": all chunks, or as many as host memory holds between two layers, through a layer
  // before the next one, so that weights that stream do so once for them; "auto": as is predicted
  // to be faster. The bits are the same.
  std::string prompt_order = "auto";
  int head_group = 0;   // KV heads moved together
  int64_t segment = 0;  // tokens of a slab
  // Token slots of a page. 0: 64; of lossless pages as many as padding needs to leave their gain.
  int page_slots = 0;
  int staging_slabs = 0;  // buffers that streamed slabs pass through; 0: auto
  // Where parts of the cache go: auto, first-fit (the fastest memory with room), lru, recent (the
  // last tokens and the first few stay on the device, older ones make room), host-only, disk-only.
  // auto: recent where keys are chosen, else first-fit.
  std::string placement = "auto";

  // How closed pages are stored: none or the model's own dtype, bf16 or f16; lossless, bf16 in
  // three quarters of the bytes, bit for bit; or an approximation, int8, fp8 (E4M3), int4. auto:
  // lossless where a GPU's memory is short and that is predicted to be faster, without ranks, a
  // session or a choice of keys, else none. A session is continued with the one that it was saved
  // with. With `evict` prompts are read as they are, and what is kept of them is encoded.
  std::string kv_encoding = "auto";

  // Decode steps leave a share of what they would stream from host memory to cores of the host,
  // which attend to it in place at the same time. 0: none, 1: all, kHostShareAuto: where there is
  // a GPU, as the planner says, and after each step as the lanes' times say, so that both end
  // together, unless the plan is frozen: then, and with a number, a run gives the same bits every
  // time. With `hgca`: the cores' share of salient tokens on the host, of which the device reads
  // the rest over its bus meanwhile; by itself as the machine's profile says, or all.
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

  // Selection, an approximation: a decode step reads the keys that matter to its queries and leaves
  // out the rest, which stays in the cache. Blocks of the cache are scored by summaries of their
  // keys: "pages" by mean and variance, with a budget that the heads of a layer share; "quest" by
  // least and greatest keys, with a budget for each head (Tang et al., 2024); "infllm" by two keys
  // that stand for the others, with a budget for each head (Xiao et al., 2024). Others read keys to
  // choose: "infinitehip" some, in stages (Lee et al., 2025), "oracle" all, which shows what the
  // best choice is worth; "oracle-heads" has a budget for each head. A context of fewer keys is
  // read whole. Prompts are read exactly unless sparse_prefill or reach says otherwise. Not
  // together with streaming heads; a session that holds tokens read so says so.
  std::string selector = "none";  // none, pages, quest, infllm, infinitehip, oracle, oracle-heads
  int64_t sparse_keys = 2048;     // that a KV head chooses behind the sink and before recent keys
  int64_t sparse_sink = 256;      // first keys that are always read
  int64_t sparse_recent = 1024;   // last keys that are always read
  double sparse_share = 0.0;      // of a context's keys that it chooses, where these are more
  // Above 0: a layer's heads choose the fewest keys that get this share of the attention to all
  // that they choose among, by the selector's estimate, from sparse_least to sparse_keys for each
  // KV head. Not with infinitehip, which estimates none.
  double sparse_top_p = 0.0;
  int64_t sparse_least = 64;
  // Above 0: each KV head chooses sparse_keys or more, up to all, so that what a decode step leaves
  // out has at most this share of the attention of each of its query heads, but with a probability
  // of sparse_delta (Desai et al., "vAttention", 2025; docs/decisions/selection.md). A sample of
  // the keys tells. For pages, quest and infllm; not with sparse_top_p, a second look, choices that
  // are for several tokens, or prompts that are read so.
  double sparse_epsilon = 0.0;
  double sparse_delta = 0.05;
  // Keys of a block, that divide a page; 0: 16, with infinitehip 8, with infllm 64; with pages on a
  // GPU 32 or 64 where steps are predicted to be 7 % faster for each doubling.
  int sparse_block = 0;
  // infinitehip's stages before the last, which chooses sparse_keys in blocks: chunks of keys, and
  // the keys of those that survive. The first four layers and the last one choose hip_outer_keys
  // instead, unless these are 0.
  std::string hip_stages = "256:32768,32:8192";
  // Tokens of a sequence that one run of each of these stages is for, "16,8": the ones behind the
  // first choose among the same chunks, unless a page of the cache is filled between. Each is a
  // multiple of the next one, and the last of sparse_refresh. Empty: a choice runs all stages.
  std::string hip_refresh;
  int64_t hip_outer_keys = 4096;
  // Beyond the trained window, where keys count while infinitehip scores them, behind which a query
  // is as far as sparse_recent keys. "chunk": those of a chunk at one position, chunk by chunk as a
  // stage has them; "relative": the two that are compared one behind the other, wherever they lie;
  // "published": chunk in the first three layers, relative in the others (Lee et al., appendix D);
  // "one": all keys at one distance, as `pages` has them.
  std::string hip_positions = "published";
  // "pages" only. 2: of eight times the keys, found by summaries, those are chosen that matter by
  // the keys themselves, of which 2 bits a channel are kept.
  int sparse_looks = 1;
  // Where these bits lie: "device", "host", where kernels read those of the candidates in place, or
  // "auto": on the device, or where they do not fit it, or it is faster without them, on the host.
  std::string sparse_sketches = "auto";
  // 2: whole pages have summaries, too. A search looks at these alone, and lists pages with eight
  // times the keys, among whose blocks each token chooses. Decode alone, with pages, quest and
  // infllm. kSparseLevelsAuto: 2 on a GPU where that is predicted to be faster and nothing else is
  // asked of looks and of tokens that share a choice; else 1.
  int sparse_levels = kSparseLevelsAuto;
  // Tokens of a sequence that one choice is for: the ones behind the first read the same keys,
  // unless a page of the cache is filled between.
  int64_t sparse_refresh = 1;
  // Tokens of a sequence that one search of all keys is for: it lists eight times the keys that
  // are chosen, and the tokens behind the first choose among these, each for itself, unless a page
  // of the cache is filled between. 1: every choice searches all keys. Selectors with summaries
  // only: pages, quest and infllm.
  int64_t sparse_candidates_refresh = 1;
  // Sequences of up to so many tokens are read whole; kSparseFromAuto: with pages as long as that
  // is predicted to be as fast, without a machine's profile 4,096 on a CPU and 32,768 where a GPU
  // holds all keys; with other selectors, which are for comparison, 0.
  int64_t sparse_from = kSparseFromAuto;
  // Bytes of a GPU's memory for copies of what was chosen of keys in host memory, so that it need
  // not cross the bus again. Of every size the answers are the same. kSparseCacheAuto: what some
  // steps choose.
  int64_t sparse_cache = kSparseCacheAuto;
  // What decode steps find there is kept in the user's cache folder, and predicts the speed of
  // later plans of the model; false: it is neither kept nor used.
  bool found_shares = true;
  // Prompts are read so, too: a chunk attends to itself exactly, and blocks of its rows choose keys
  // of what lies before it. For pages, quest and infinitehip.
  bool sparse_prefill = false;
  // There: every so many tokens of a chunk, one attends to all keys, too, and what that changes in
  // its attention's output is added to those of the tokens up to the next (Willette et al., "Delta
  // Attention", 2025). Keys in host memory then come over the bus once a chunk, as in an exact
  // prompt. 0: none. Not beyond the trained window.
  int64_t sparse_dense_every = 0;
  // Beyond the window that the model was trained for ("auto": where a context is longer than that;
  // "on", "off"): chosen keys are attended to as if they lay next to each other, in prompts as
  // well, so that no distance is longer than what is read (InfiniteHiP, appendix D).
  std::string reach = "auto";
  // "infllm": those that are not recent are attended to as if all of them lay just before the
  // recent ones, block upon block, at one distance (Xiao et al., 2024), for comparison.
  std::string reach_positions = "streamingllm";

  // Eviction, an approximation: when a prompt has been read, each KV head keeps some of its tokens
  // and drops the others for good; what is generated behind it is kept. "streamingllm" keeps the
  // first and the last tokens (Xiao et al., 2023), the others keep those that had the attention of
  // the prompt's last queries: "snapkv" (Li et al., 2024), "pyramidkv" with budgets that fall from
  // layer to layer (Cai et al., 2024), "ada-snapkv" and "ada-pyramidkv" with budgets that the heads
  // of a layer share (Feng et al., 2024), "critical-snapkv" and "critical-ada-snapkv" by values,
  // too (Feng et al., 2025), "defensivekv" by the largest attention, not the mean (Feng et al.,
  // 2025). "expectedattention" keeps those to which queries behind the prompt are expected to
  // attend (Devoto et al., 2025), "h2o" half by the attention from all of the prompt's queries and
  // half of the last ones (Zhang et al., 2023). "headkv" is "snapkv" in budgets that
  // `evict_profile` gives the heads (Fu et al., 2024). "kvzip" has the model repeat the prompt
  // behind it, which costs more than reading it once more, and keeps what that attends to (Kim et
  // al., 2025). A session is continued with the same choice. Not together with selection, streaming
  // heads or recomputing, nor for models with sliding windows.
  std::string evict = "none";
  // Tokens of a prompt that a head keeps, on average, or a share of them, "25%"; empty:
  // kDefaultEvictBudget.
  std::string evict_budget;
  // The prompt's last tokens, from 1 to 256, which are kept, and whose queries are observed.
  // -1: 32.
  int64_t evict_window = -1;
  // Neighbours whose scores are pooled, an odd number, and how: "7:mean" or "7:max". Empty: 7:mean,
  // of "defensivekv" 5:mean.
  std::string evict_pool;
  // "streamingllm", "expectedattention" and "kvzip" only: the first tokens that are kept. -1: 4.
  int64_t evict_sink = -1;
  // "ada-snapkv", "ada-pyramidkv" and "critical-ada-snapkv": the share of an even budget that each
  // head has for itself, from 0 to 1. -1: 0.2. "headkv": the share of the budget, beside the
  // window, that all heads have alike, HeadKV's 1 - 1 / beta. -1: 1/6, for a beta of 1.2.
  double evict_safeguard = -1.0;
  // "pyramidkv" and "ada-pyramidkv" only: how many times smaller than the mean the last layer's
  // budget is, from 1 to 1000. -1: 20.
  double evict_steepness = -1.0;
  // "expectedattention" only: over how many positions behind the prompt queries to come are
  // averaged. -1: 512.
  int64_t evict_future = -1;
  // A file of `headway profile-heads`: each head keeps as much of the mean as it says, whatever the
  // prompt, chosen by the method. "headkv" needs one. Empty: budgets are the method's own.
  std::string evict_profile;
  // Tokens that a sequence may grow by behind its prompt. -1: 4096.
  int64_t evict_room = -1;
  // What becomes of the tokens that a head does not keep: "drop", for good, or "demote": they stay
  // in host memory, and each step behind the prompt attends, beside what is kept, to the blocks of
  // 16 of them that matter most to its queries by summaries on the device. Not together with
  // sessions or lossless pages.
  std::string evicted = "drop";
  // "demote": tokens of these that a head reads in a step, at most. -1: 512.
  int64_t evicted_keys = -1;
  // "demote": decode steps, one after the other, that one choice serves. -1: 1.
  int64_t evicted_refresh = -1;

  // HGCA, an approximation (Xu et al., 2025): decodes attend to a window of the last tokens and,
  // before it, to those tokens alone whose attention was above `hgca` even shares while they were
  // in the window, or when the prompt was read: 1, less for more of them. 0: to all tokens,
  // exactly; -1: there is no window. What is left out stays in the cache; whatever is appended in
  // more than one token attends to all of it, and every head chooses anew. Of encoded pages salient
  // tokens are kept decoded. Not together with selection, eviction, streaming heads or recomputing.
  double hgca = -1.0;
  int64_t hgca_window = -1;  // last tokens, at least; -1: 4096
  // What a step that is weighed adds to the moving average of a token's attention, above 0 and up
  // to 1. -1: 1/16.
  double hgca_alpha = -1.0;
  int64_t hgca_every = -1;  // steps, of which one is weighed; -1: 8
  // Of the tokens before the window, that a head attends to at most, above 0 and up to 1. -1: 0.3.
  double hgca_most = -1.0;
  // Last queries of what was read that say what its tokens are worth, from 1 to 256. -1: 32.
  int64_t hgca_queries = -1;
  // HGCA whose heads choose anew, in place of `hgca`: every so many decode steps, and in the first
  // one behind what was appended, by summaries of blocks of 16 tokens, for the query at hand.
  // hgca_most says how many. 0: tokens are chosen by the attention that they had.
  int64_t hgca_reselect = 0;
  // Where salient tokens lie: "host", for its cores, "device", or "auto".
  std::string hgca_on = "auto";
  // Above 0: where what a KV head leaves out of the tokens before the window may have more than
  // this share of the attention of one of its query heads, the host's cores read all of these
  // tokens for it in that step, but with a probability of hgca_delta (as sparse_epsilon;
  // docs/decisions/hgca.md). Salient tokens lie on the host, and beside a GPU all of the cache
  // does: placement "host-only".
  double hgca_epsilon = 0.0;
  double hgca_delta = 0.05;

  // Exact attention beyond that window, as far as the model bears it: its rotary angles are
  // stretched as configurations of models may ask for, "linear:F", "dynamic:F" or "yarn:F", by a
  // factor that the window grows by. Empty: as the model has them.
  std::string rope_scaling;

  // Exact attention beyond that window without other angles (Jin et al., "Self-Extend", 2024):
  // "G:W" counts keys W and more tokens back in groups of G, so that a window of N tokens reaches
  // G * (N - W) + W. Not together with a selector, streaming heads, a KV encoding, rope_scaling, or
  // what is recomputed or attended to by the host's cores. Empty: positions are as they are.
  std::string self_extend;

  // Drafts: guesses of the next tokens, which a decode step verifies together; those that are right
  // save steps, and what is generated is what it would be without, but for rounding. "lookup": what
  // followed the last tokens where they were before. "sparse": what the model picks in steps that
  // attend to chosen keys, as with the selector "pages" and by its numbers (sparse_keys and those
  // beside it); prompts, and steps that verify, attend to all. Anything else is a folder or a name,
  // as of the model itself: what that model picks, which has the same tokenizer and stays on the
  // device, its cache as well, of several ranks the first one's. Not together with what chooses
  // keys or positions by the query: selectors, salient tokens, demoted ones, Self-Extend; "sparse"
  // not with what lets tokens go, either.
  std::string draft = "none";  // none, lookup, sparse, or a model
  // Of a sequence in a step, at most, from 1 to 15; how many is fastest is found on the way, unless
  // the plan is frozen: then as many as there are. -1: 7.
  int64_t draft_tokens = -1;
  // For measuring: drafts of any tokens, each of which is taken as right with this probability,
  // whatever the model says. -1: none.
  double draft_acceptance = -1.0;

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

}  // namespace headway

#endif  // HEADWAY_OPTIONS_H_
