#include <CLI/App.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/flags.h"
#include "cli/help_formatter.h"
#include "cli/read_number.h"
#include "cli/selection_flags.h"

namespace headway::cli {
namespace {

// A share from 0 to 1; off is 0, and auto, the default, is `automatic`.
void AddShare(CLI::App& app, const std::string& group, const std::string& name, double* target,
              double automatic, const std::string& help) {
  AddRead(app, group, name, help,
          [target, automatic](const std::string& text) {
            if (text == "off") {
              *target = 0.0;
            } else if (text == "auto") {
              *target = automatic;
            } else if (!ReadNumber<double>(text, 0.0, 1.0, target).ok()) {
              return Status(StatusCode::kInvalidArgument,
                            fmt::format("'{}' is none of off, auto and a share from 0 to 1", text));
            }
            return OkStatus();
          })
      ->type_name("SHARE")
      ->default_str("auto");
}

// What each tier may hold.
void AddMemoryFlags(CLI::App& app, EngineOptions& engine) {
  const std::string memory = "Memory", more = More(memory);
  AddSize(app, memory, "--gpu-memory", &engine.gpu_memory,
          "most that may be on the GPU in all, weights and driver too, such as 17GiB; 0 takes what "
          "is free");
  AddRead(
      app, more, "--gpu-layers,--n-gpu-layers",
      "layers whose weights stay on the GPU; those of the others lie in host memory, or on disk "
      "where --host-memory is too small, and stream in each step; auto: as many as fit",
      [&engine](const std::string& text) {
        if (text == "auto") {
          engine.gpu_layers = -1;
        } else if (!ReadNumber<int>(text, 0, 1 << 20, &engine.gpu_layers).ok()) {
          return Status(StatusCode::kInvalidArgument,
                        fmt::format("'{}' is neither auto nor a number of layers", text));
        }
        return OkStatus();
      })
      ->type_name("N")
      ->default_str("auto");
  AddChoice(app, more, "--weight-encoding", &engine.weight_encoding, {"none", "lossless"},
            "how host memory holds weights that stream: none, as they are; lossless, the same "
            "numbers of bf16 in three quarters of the bytes, which the GPU expands");
  AddSize(app, memory, "--kv-memory", &engine.kv_memory,
          "most that the fast tier may hold of the KV cache and its buffers, such as 8MiB");
  AddSize(
      app, memory, "--host-memory", &engine.host_memory,
      "most that host memory may hold of the KV cache behind the fast tier, and of weights that "
      "stream; 0: nothing but the buffers that --disk-memory needs");
  AddSize(app, memory, "--disk-memory", &engine.disk_memory,
          "most that the disk may hold of it behind both");
  AddText(app, more, "--disk-path", &engine.disk_path,
          "directory for the disk's share; else TMPDIR, or /tmp")
      ->type_name("DIR");
}

// InfiniteHiP as published: its selector, with the preset's intervals, in prompts, too. Flags that
// follow in the help may say otherwise.
void AskForInfiniteHip(const HipPreset& preset, EngineOptions& engine) {
  engine.policy = EngineOptions{}.policy;
  engine.selector = kInfiniteHip;
  engine.hip_refresh = preset.hip_refresh;
  engine.sparse_refresh = preset.sparse_refresh;
  engine.sparse_prefill = true;
}

void AddPolicyFlag(CLI::App& app, const std::string& group, EngineOptions& engine) {
  const auto read = [&engine](const std::string& name) {
    engine.policy = name;
    if (const HipPreset* preset = HipPresetOf(name)) AskForInfiniteHip(*preset, engine);
  };
  std::vector<std::string> names = {"auto", "headinfer", "layerwise", "kvpr"};
  for (const HipPreset& preset : kHipPresets) names.emplace_back(preset.policy);
  app.add_option_function<std::string>(
         "--policy", read,
         "how the cache moves: auto, or as a published method does, for comparison: headinfer "
         "(one head's whole cache at a time), layerwise (one layer's) or kvpr (recomputing a "
         "part of it); infinitehip, an approximation, is --selector infinitehip --sparse-refresh 4 "
         "--hip-refresh 16,8 --sparse-prefill, infinitehip-fast the same with 8 and 32,16, "
         "infinitehip-flash with 8 and 96,24")
      ->check(CLI::IsMember(names).description(""))
      ->group(group)
      ->type_name("NAME")
      ->default_str(engine.policy);
}

// How the cache is cut, placed and stored.
void AddCutFlags(CLI::App& app, EngineOptions& engine) {
  const std::string more = More("Memory");
  AddChoice(app, more, "--placement", &engine.placement,
            {"auto", "first-fit", "lru", "recent", "host-only", "disk-only"},
            "where parts of the cache go: first-fit (the fastest memory with room), lru, recent "
            "(the last tokens stay on the device, older ones make room), host-only or disk-only; "
            "auto: recent with --sparse, --selector or --draft sparse, else first-fit");
  AddPolicyFlag(app, more, engine);
  AddChoice(
      app, more, "--kv-encoding", &engine.kv_encoding,
      {"auto", "none", "bf16", "f16", "lossless", "int8", "fp8", "int4"},
      "how the cache's full pages are stored: none, in the model's dtype; lossless, the same "
      "numbers of bf16 in three quarters of the bytes; auto, lossless where a GPU's memory is "
      "short and that is predicted to be faster; int8, fp8 or int4, an approximation in a half or "
      "a quarter of the bytes");
  AddAuto(app, more, "-b,--chunk,--batch-size", &engine.chunk, kMaxCount,
          "tokens of a prefill step; auto: the planner's choice");
  AddChoice(app, more, "--prompt-order", &engine.prompt_order, {"auto", "chunks", "layers"},
            "how prompts pass through the model: chunks, each through all layers, or layers, each "
            "of all chunks, which lie in host memory between them; auto: layers where weights "
            "stream and that is predicted to be faster");
  AddAuto(app, more, "--head-group", &engine.head_group, 1 << 20,
          "KV heads that move together; auto: the most that leave half of the fast tier to pages");
  AddAuto(app, more, "--segment", &engine.segment, kMaxCount,
          "tokens that move together; auto: the planner's choice");
  AddAuto(app, more, "--page,--block-size", &engine.page_slots, 4096,
          "tokens of a page; auto: 64, and with --kv-encoding lossless more where heads are small");
}

// The paths beside streaming.
void AddShareFlags(CLI::App& app, EngineOptions& engine) {
  const std::string more = More("Memory");
  AddShare(
      app, more, "--host-attention", &engine.host_share, kHostShareAuto,
      "share of what decode would stream from host memory that CPU cores attend to there "
      "instead, at the same time: off, a number from 0 to 1, or auto, which beside a GPU begins "
      "with the planner's share and is corrected after each step; with --hgca the cores' share of "
      "salient tokens on the host, of which the device reads the rest over its bus");
  AddShare(
      app, more, "--recompute", &engine.recompute_share, kRecomputeAuto,
      "share of the tokens whose keys and values are recomputed from their layer's input, kept "
      "in host memory instead: off, a number from 0 to 1, or auto, which is what the machine's "
      "profile says is fastest");
  AddSwitch(app, more, "--freeze-plan", &engine.freeze_plan,
            "correct nothing while it runs: what began alike gives the same bits");
}

// Heads that keep sink and recent tokens.
void AddStreamingHeadFlags(CLI::App& app, EngineOptions& engine) {
  const std::string streaming = More("Streaming heads (an approximation)");
  AddText(app, streaming, "--head-pattern", &engine.head_pattern,
          "file that says which KV heads keep sink and recent tokens only: DuoAttention's TSV or "
          "its folder, JSON, or what headway profile-heads makes; without it, all is exact")
      ->type_name("FILE");
  AddNumber(app, streaming, "--sparsity", &engine.sparsity, {0.0, 1.0},
            "share of the KV heads to stream, those with the lowest scores; without it, those "
            "below the file's threshold, or 0.5")
      ->type_name("X");
  AddNumber(app, streaming, "--sink-tokens", &engine.sink_tokens, {0, kMaxCount},
            "first tokens that streaming heads keep; without it, the file's, or 64");
  AddNumber(app, streaming, "--recent-tokens", &engine.recent_tokens, {1, kMaxCount},
            "last tokens that they see; without it, the file's, or 256");
}

// What heads keep of prompts.
void AddEvictionFlags(CLI::App& app, EngineOptions& engine) {
  const std::string eviction = More("Eviction (an approximation)");
  AddChoice(
      app, eviction, "--evict", &engine.evict,
      {"none", "streamingllm", "snapkv", "pyramidkv", "ada-snapkv", "ada-pyramidkv",
       "critical-snapkv", "critical-ada-snapkv", "defensivekv", "expectedattention", "h2o",
       "headkv", "kvzip"},
      "when a prompt has been read, each KV head keeps --evict-budget of its tokens and "
      "drops the others for good (--evicted), as a published method chooses: streamingllm, snapkv, "
      "pyramidkv, ada-snapkv, ada-pyramidkv, critical-snapkv, critical-ada-snapkv, defensivekv, "
      "expectedattention, h2o, headkv or kvzip, which has the model repeat the prompt once more");
  AddText(app, eviction, "--evict-budget", &engine.evict_budget,
          "tokens of a prompt that a KV head keeps, on average, or a share of it, such as 25%")
      ->type_name("N|P%")
      ->default_str(kDefaultEvictBudget);
  AddNumber(app, eviction, "--evict-window", &engine.evict_window, {1, 256},
            "last tokens of the prompt, whose queries say what matters, and which are kept")
      ->default_str("32");
  AddText(app, eviction, "--evict-pool", &engine.evict_pool,
          "neighbouring tokens whose scores are pooled, an odd number, by mean or max")
      ->type_name("N[:mean|max]")
      ->default_str("7:mean, of defensivekv 5:mean");
  AddNumber(app, eviction, "--evict-sink", &engine.evict_sink, {0, kMaxCount},
            "streamingllm, expectedattention, kvzip: first tokens that are kept")
      ->default_str("4");
  AddNumber(
      app, eviction, "--evict-safeguard", &engine.evict_safeguard, {0.0, 1.0},
      "ada-snapkv, ada-pyramidkv and critical-ada-snapkv, whose heads share a layer's budget: "
      "the share of an even one that each keeps for itself; headkv: the share that is not handed "
      "out by importance, 1 - 1 / beta")
      ->type_name("X")
      ->default_str("0.2, of headkv 1/6");
  AddNumber(app, eviction, "--evict-steepness", &engine.evict_steepness, {1.0, 1000.0},
            "pyramidkv and ada-pyramidkv, whose budgets fall from layer to layer: how many times "
            "smaller than their mean the last one is")
      ->type_name("X")
      ->default_str("20");
  AddNumber(
      app, eviction, "--evict-future", &engine.evict_future, {1, 65536},
      "expectedattention: positions behind the prompt over which queries to come are averaged")
      ->default_str("512");
  AddText(app, eviction, "--evict-profile", &engine.evict_profile,
          "of headway profile-heads --evict: each head keeps as much of the budget as it says, "
          "chosen by --evict; headkv needs one")
      ->type_name("FILE");
  AddNumber(app, eviction, "--evict-room", &engine.evict_room, {1, kMaxCount},
            "tokens that a sequence may grow by behind its prompt")
      ->default_str("as many as are generated, or 4096");
  AddChoice(
      app, eviction, "--evicted", &engine.evicted, {"drop", "demote"},
      "what becomes of the tokens that a head does not keep: drop, or demote, to host memory, "
      "where each decode step attends to blocks of them that summaries choose");
  AddNumber(app, eviction, "--evicted-keys", &engine.evicted_keys, {1, kMaxCount},
            "demote: tokens of these that a head reads in a step, at most")
      ->default_str("512");
  AddNumber(app, eviction, "--evicted-refresh", &engine.evicted_refresh, {1, kMaxCount},
            "demote: decode steps that one choice serves")
      ->default_str("1");
}

// A dense window, and salient tokens before it.
void AddHgcaFlags(CLI::App& app, EngineOptions& engine) {
  const std::string hgca = More("HGCA (an approximation)");
  AddNumber(app, hgca, "--hgca", &engine.hgca, {0.0, 1e6},
            "decode attends to the last --hgca-window tokens and, before them, to those whose "
            "attention was above X even shares: 1, or less for more of them; 0: to all, exactly. "
            "Prompts are read exactly, and every head chooses anew behind them")
      ->type_name("X")
      ->default_str("none");
  AddNumber(app, hgca, "--hgca-window", &engine.hgca_window, {1, kMaxCount},
            "last tokens that every head attends to")
      ->default_str("4096");
  AddNumber(app, hgca, "--hgca-alpha", &engine.hgca_alpha, {0.0, 1.0},
            "what a weighed step adds to the moving average of a token's attention")
      ->type_name("X")
      ->default_str("1/16");
  AddNumber(app, hgca, "--hgca-every", &engine.hgca_every, {1, kMaxCount},
            "steps, of which one is weighed")
      ->default_str("8");
  AddNumber(app, hgca, "--hgca-most", &engine.hgca_most, {0.0, 1.0},
            "of the tokens before the window, that a head attends to at most")
      ->type_name("X")
      ->default_str("0.3");
  AddNumber(app, hgca, "--hgca-queries", &engine.hgca_queries, {1, 256},
            "last queries of a prompt that say what its tokens are worth")
      ->default_str("32");
  AddNumber(
      app, hgca, "--hgca-reselect", &engine.hgca_reselect, {0, kMaxCount},
      "in place of --hgca: every N steps each head chooses --hgca-most of the tokens anew, by "
      "summaries of blocks of 16 and the query at hand; 0: never")
      ->default_str("0");
  AddChoice(app, hgca, "--hgca-on", &engine.hgca_on, {"auto", "host", "device"},
            "where salient tokens lie: in memory of the host, whose cores attend to them, or of "
            "the device");
  AddNumber(app, hgca, "--hgca-epsilon", &engine.hgca_epsilon, {0.0, 1.0},
            "have the cores read all tokens before the window for a KV head and step where what "
            "it leaves out may have more than this share of its attention, as a sample of the "
            "keys tells; beside a GPU with --placement host-only; 0: no bound")
      ->type_name("E");
  AddNumber(app, hgca, "--hgca-delta", &engine.hgca_delta, {0.0, 1.0},
            "probability with which what a head leaves out may have more than --hgca-epsilon")
      ->type_name("D");
}

// Guesses of the next tokens.
void AddDraftFlags(CLI::App& app, EngineOptions& engine) {
  const std::string drafts = More("Drafts");
  AddText(app, drafts, "--draft", &engine.draft,
          "guess the next tokens, and have one step verify them: what comes out is the same but "
          "for rounding, in fewer steps. lookup: what followed the last tokens where they were "
          "before, for answers that quote or edit their prompt; sparse: what the model says by "
          "keys that it chooses as --sparse does, for contexts that take long to read "
          "(--sparse-keys and the flags beside it); a folder, or org/name: what another model with "
          "the same tokenizer says, a small one, which stays on the device, its cache as well")
      ->type_name("none|lookup|sparse|MODEL");
  AddNumber(app, drafts, "--draft-tokens", &engine.draft_tokens, {1, 15},
            "tokens that a step verifies of a sequence, at most; how many is found on the way")
      ->default_str("7");
}

// Beyond the trained window by other angles, or positions.
void AddRopeFlags(CLI::App& app, EngineOptions& engine) {
  AddText(app, More("Model"), "--rope-scaling", &engine.rope_scaling,
          "stretch the model's rotary angles for a window that is longer by a factor: linear:F, "
          "dynamic:F (by the prompt's length) or yarn:F; without it, as the model has them")
      ->type_name("TYPE:F");
  AddText(app, More("Model"), "--self-extend", &engine.self_extend,
          "beyond the trained window by exact attention: keys that lie W or more tokens back count "
          "in groups of G, so that a window of N tokens reaches G * (N - W) + W (Self-Extend)")
      ->type_name("G:W");
}

// The cache between runs.
void AddSessionFlags(CLI::App& app, EngineOptions& engine) {
  const std::string memory = "Memory", more = More(memory);
  AddText(app, memory, "--session", &engine.session,
          "file that keeps the cache between runs: a prompt that begins like the last one "
          "continues from there")
      ->type_name("FILE");
  AddSwitch(app, more, "--session-recut", &engine.session_recut,
            "where the session is cut for larger budgets than these, read the prompt again into a "
            "cut that fits; the first save replaces the file");
}

// Where and with what to compute.
void AddComputeFlags(CLI::App& app, EngineOptions& engine) {
  const std::string compute = "Computing", more_compute = More(compute);
  AddNumber(app, more_compute, "-t,--threads", &engine.threads, {0, 1024},
            "compute threads; 0: all cores");
  AddNumber(
      app, more_compute, "--tp", &engine.tensor_parallel, {1, 64},
      "ranks that share the model: each has some of its heads, of its MLP and of its vocabulary, "
      "and a share of threads and budgets (tensor parallelism); with --device cuda each has a GPU. "
      "Behind mpirun -n N, with --tp N, each is a process, and the first prints")
      ->default_str(std::to_string(engine.tensor_parallel));
  AddNumber(app, more_compute, "--layers-over", &engine.layers_over, {1, 64},
            "ranks that have a run of the layers each, one behind the other, and a share of "
            "budgets; with --device cuda each has a GPU, and as many layers as its memory allows")
      ->default_str(std::to_string(engine.layers_over));
  AddChoice(
      app, more_compute, "--assignment", &engine.assignment,
      {"balanced", "fairkv", "static", "tokens"},
      "which rank of --tp has which heads, where a profile says what these keep: balanced, so "
      "that the busiest rank of a layer has as little as can be; fairkv, so that the busiest "
      "and the idlest differ least; static, in their order; tokens, balanced, with what heads keep "
      "of each prompt shared between ranks where that helps");
  AddNumber(app, more_compute, "--assignment-copies", &engine.assignment_copies, {0, 4},
            "of balanced and fairkv: ranks more than one that the heads of a layer may have "
            "together; those with the same head divide sequences among them");
  AddText(app, more_compute, "--assignment-profile", &engine.assignment_profile,
          "of headway profile-heads --evict: what heads are expected to keep where --evict shares "
          "budgets out by each prompt; without it, --evict-profile")
      ->type_name("FILE");
  AddText(
      app, compute, "--device", &engine.device,
      "where to compute: cpu, cuda, or cuda:N for GPU N, with ranks from GPU N on; cuda:N,M,... "
      "names the GPU of each rank")
      ->type_name("NAME")
      ->default_str(engine.device);
  AddText(app, more_compute, "--machine", &engine.machine,
          "profile to plan for: a shipped one, such as h200 or rtx-4090, or a file that headway "
          "probe -o wrote; without it, this machine's probe, or the profile shipped for its GPU")
      ->type_name("PROFILE");
  AddChoice(app, more_compute, "--cpu-isa", &engine.isa, {"auto", "amx", "avx512", "avx2"},
            "instruction set of the CPU kernels: auto, amx, avx512 or avx2");
  AddText(app, more_compute, "--trace", &engine.trace,
          "file for a trace of the lanes, to be opened in Perfetto or chrome://tracing")
      ->type_name("FILE");
}

}  // namespace

void MakeRoomFor(int64_t tokens, EngineOptions* options) {
  const EngineOptions absent;
  if (options->evict == absent.evict || options->evict_room != absent.evict_room ||
      !options->session.empty()) {
    return;
  }
  options->evict_room = std::max<int64_t>(tokens, 1);
}

void AddModelFlags(CLI::App& app, ModelFlags* flags) {
  EngineOptions& engine = flags->engine;
  AddText(app, "Model", "MODEL,-m,--model", &flags->model,
          "folder of a model as Hugging Face publishes them, or org/name found in the local "
          "Hugging Face cache")
      ->required()
      ->type_name("MODEL");
  AddMemoryFlags(app, engine);
  AddCutFlags(app, engine);
  AddShareFlags(app, engine);
  AddStreamingHeadFlags(app, engine);
  AddSelectionFlags(app, engine);
  AddEvictionFlags(app, engine);
  AddHgcaFlags(app, engine);
  AddDraftFlags(app, engine);
  AddRopeFlags(app, engine);
  AddSessionFlags(app, engine);
  AddComputeFlags(app, engine);
}

}  // namespace headway::cli
