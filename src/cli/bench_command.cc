#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <functional>

#include "base/random.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace headway::cli {
namespace {

constexpr const char* kPrefillExamples =
    R"(  headway bench prefill models/demo --ctx-size 2048,8192,16384
  headway bench prefill models/demo --ctx-size 16384 --kv-memory 8MiB
  headway bench prefill --random-weights bench/shapes/llama-3.2-1b.json \
      --ctx-size 2048,4096+2048+1024+512 --repetitions 1)";

constexpr const char* kDecodeExamples =
    R"(  headway bench decode models/demo --ctx-size 2048,8192,16384 --n-predict 32
  headway bench decode --random-weights bench/shapes/llama-3.2-1b.json \
      --ctx-size 32768 --synthetic-kv)";

struct BenchFlags {
  ModelFlags model;
  OutputFlags output;
  std::string random_weights;
  std::string context = "2048";
  int64_t batch = 1;
  int64_t repetitions = 3;
  int64_t warm_up = -1;  // 1 on a device that makes plans for new shapes, else 0
  int64_t steps = 32;
  int64_t last = 0;  // 0: a chunk
  bool synthetic = false;
  double spread = 0.0;
  bool rank_shares = false;
  bool prefill = true;
};

void AddBenchFlags(CLI::App& app, BenchFlags* flags) {
  flags->model.engine.found_shares = false;  // what random tokens choose says nothing of texts
  AddModelFlags(app, &flags->model);
  app.get_option("--model")->required(false);
  app.remove_option(app.get_option("--session"));  // a benchmark has no use for one
  AddText(app, "Model", "--random-weights", &flags->random_weights,
          "instead of MODEL: a config.json, whose weights are drawn at random")
      ->type_name("CONFIG")
      ->excludes(app.get_option("--model"));
  const std::string group = "Benchmark";
  AddText(app, group, "-c,--ctx-size", &flags->context,
          "contexts to measure, divided by commas; 4096+2048 is a batch of two sequences")
      ->type_name("LIST")
      ->default_str(flags->context);
  AddNumber(app, More(group), "--batch", &flags->batch, {1, 4096},
            "that many times the sequences of each context");
  AddNumber(app, group, "-r,--repetitions", &flags->repetitions, {1, 10'000},
            "of which the median is printed")
      ->default_str(std::to_string(flags->repetitions));
  AddNumber(app, More(group), "--warm-up", &flags->warm_up, {0, 100},
            "repetitions before those that count; 1 on a GPU unless given");
  if (!flags->prefill) {
    AddNumber(app, group, "-n,--n-predict,--max-tokens", &flags->steps, {1, kMaxCount},
              "decode steps; with drafts, tokens that they generate")
        ->default_str(std::to_string(flags->steps));
    AddNumber(
        app, More(group), "--draft-acceptance", &flags->model.engine.draft_acceptance, {0.0, 1.0},
        "verify drafts of any tokens, and take each as right with this probability: what is "
        "generated is then meaningless. Steps of --draft sparse or a model are run, too. Roofline "
        "and prediction stay those of steps without drafts")
        ->type_name("P");
  }
  AddSwitch(app, group, "--synthetic-kv", &flags->synthetic,
            flags->prefill ? "fill the cache with random keys and values but for the last tokens, "
                             "which alone are measured"
                           : "fill the cache with random keys and values instead of reading a "
                             "prompt");
  if (flags->prefill) {
    AddNumber(app, More(group), "--last", &flags->last, {1, kMaxCount},
              "with --synthetic-kv: how many tokens are measured; a chunk unless given")
        ->needs(app.get_option("--synthetic-kv"));
  }
  AddNumber(
      app, More(group), "--synthetic-spread", &flags->spread, {0.0, 4.0},
      "with --synthetic-kv: by how much the sizes of keys differ from one run of 16 tokens to "
      "the next (the deviation of their logarithms): then --sparse chooses some again and "
      "again, as of a text; 0: all are alike")
      ->type_name("X")
      ->needs(app.get_option("--synthetic-kv"));
  AddSize(app, More(group), "--alias-host-memory", &flags->model.engine.alias_host_memory,
          "let host KV slabs share that much memory: for contexts larger than the machine's; what "
          "is computed is then meaningless");
  AddSwitch(app, More(group), "--rank-shares", &flags->rank_shares,
            "with --tp: in each layer, how long each rank attends, as a share of the last one's "
            "time; a GPU's kernels are timed for it. With --json: attend_seconds, which are always "
            "there");
  AddOutputFlags(app, &flags->output);
}

std::string CheckBenchFlags(const CLI::App& app, BenchFlags* flags) {
  if (flags->rank_shares && flags->model.engine.tensor_parallel < 2) {
    return "--rank-shares is for --tp 2 or more";
  }
  flags->model.engine.time_kernels |= flags->rank_shares;
  const bool random = app.count("--random-weights") > 0;
  if (!random && app.count("--model") == 0) return "give either MODEL or --random-weights CONFIG";
  if (random) {
    flags->model.model = flags->random_weights;
    flags->model.engine.random_weights = true;
  }
  Result<std::vector<Workload>> workloads = ParseWorkloads(flags->context, flags->batch);
  return workloads.ok() ? "" : "--ctx-size: " + workloads.status().message();
}

bool OnGpu(const BenchFlags& flags) { return flags.model.engine.device != "cpu"; }

constexpr int64_t kStepsBeside = 2;  // those before the first that is measured, and room behind

// As long as the sequences get.
Workload Reached(const BenchFlags& flags, const Workload& workload) {
  Workload reached = workload;
  if (!flags.prefill) {
    for (int64_t& length : reached.lengths) length += flags.steps + kStepsBeside;
  }
  return reached;
}

Status Cancelled() { return Status(StatusCode::kCancelled, "interrupted"); }

// Tokens of a sequence that a prefill reads: all, or the last ones behind a synthetic prefix.
int64_t MeasuredTokens(const BenchFlags& flags, const Context& context, size_t sequence,
                       const Measured& measured) {
  if (!flags.prefill) return 0;
  const int64_t length = measured.lengths[sequence];
  if (!flags.synthetic) return length;
  return std::min(length, flags.last > 0 ? flags.last : context.plan().chunk);
}

// Keys of a KV head that a decode step of so many tokens reads, at most, selection apart.
int64_t KeysRead(const PlanReport& plan, int64_t length) {
  if (const auto& eviction = plan.eviction; eviction.has_value()) {
    const auto of_share = static_cast<int64_t>(eviction->share * static_cast<double>(length));
    return std::min(length, std::max(eviction->budget, of_share) + eviction->demoted_keys);
  }
  if (!plan.salience.has_value()) return length;
  const int64_t before = std::max<int64_t>(0, length - plan.salience->window);
  return length - before + static_cast<int64_t>(plan.salience->most * static_cast<double>(before));
}

// One repetition: fills the contexts and measures the phase that is asked for.
Status Repeat(const BenchFlags& flags, const Engine& engine, Context& context, uint64_t seed,
              const Hooks& hooks, Measured* measured) {
  Random random(seed);
  std::vector<Request> requests;
  context.Reset();
  for (size_t i = 0; i < measured->lengths.size(); ++i) {
    Request request;
    const auto length = static_cast<size_t>(measured->lengths[i]);
    if (flags.synthetic) {
      const int64_t filled = measured->lengths[i] - MeasuredTokens(flags, context, i, *measured);
      if (Status s =
              context.FillSynthetic(static_cast<int>(i), filled, random.Next(), flags.spread);
          !s.ok()) {
        return s;
      }
      // A prompt of zeros continues a cache that was filled so.
      request.prompt.assign(static_cast<size_t>(filled), 0);
    }
    while (request.prompt.size() < length + (flags.prefill ? 0 : 1)) {
      request.prompt.push_back(static_cast<TokenId>(random.Below(engine.info().vocab)));
    }
    // The first token comes from the prompt's last logits, each later one takes a step.
    request.max_tokens = flags.prefill ? 0 : flags.steps + 1;
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  context.ResetLanes();
  const auto phase = flags.prefill ? Progress::Phase::kPrefill : Progress::Phase::kDecode;
  const AttendTimes before = context.AttendSeconds(phase);
  Result<std::vector<Generation>> made = context.Generate(requests, hooks);
  if (!made.ok()) return made.status();
  measured->attended = context.AttendSeconds(phase);
  for (size_t rank = 0; rank < before.size(); ++rank) {
    std::ranges::transform(measured->attended[rank], before[rank], measured->attended[rank].begin(),
                           std::minus());
  }
  if (made->front().finish == FinishReason::kCancelled) return Cancelled();
  const Timings timings = context.timings();
  measured->tokens = flags.prefill ? timings.prefill_tokens : timings.decode_tokens;
  measured->seconds.push_back(flags.prefill ? timings.prefill_seconds : timings.decode_seconds);
  return OkStatus();
}

// What must be moved and computed at least, for tokens behind `prefixes` of each sequence.
Work WorkOf(const BenchFlags& flags, ModelInfo model, const PlanReport& plan,
            const Measured& measured, std::span<const int64_t> prefixes) {
  model.kv_bytes_per_token = plan.kv_bytes_per_token;
  std::vector<int64_t> kept = measured.lengths;
  for (int64_t& length : kept) length = KeysRead(plan, length);
  Work work = flags.prefill ? PrefillWork(model, measured.lengths, prefixes, plan)
                            : DecodeWork(model, kept, flags.steps, plan.selection);
  // Each decode step reads what the disk holds; a prefill may read it as seldom as once a prompt.
  // What a selection brings over the bus depends on what it chooses; salient tokens stay below.
  if (!flags.prefill && !plan.selection.has_value() && !plan.salience.has_value()) {
    work.disk_bytes = static_cast<double>(flags.steps * measured.tiers.bytes[2]);
    work.bus_bytes = static_cast<double>(flags.steps) *
                     static_cast<double>(measured.tiers.bytes[1] + measured.tiers.bytes[2]);
  }
  // A prefill may be as little as one step.
  const auto weight_steps = static_cast<double>(flags.prefill ? 1 : flags.steps);
  work.weight_bytes = weight_steps * static_cast<double>(plan.streamed_weight_bytes);
  work.bus_bytes += work.weight_bytes;
  work.disk_bytes += weight_steps * static_cast<double>(plan.disk_weight_bytes);
  return work;
}

// One of the workloads.
struct Turn {
  const Workload& workload;
  std::string which;  // for the status line
};

Result<Measured> Measure(const BenchFlags& flags, Engine& engine, const Turn& turn,
                         const MachinePeaks& peaks, const InterruptGuard& interrupt,
                         Console& console) {
  Measured measured;
  measured.lengths = turn.workload.lengths;
  const std::string& which = turn.which;
  const Workload reached = Reached(flags, turn.workload);
  Result<std::unique_ptr<Context>> context = engine.NewContext(reached);
  if (!context.ok()) return context.status();
  ProgressMeter meter(console, flags.model.engine, flags.output.progress());
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  double step_began = 0.0;
  hooks.on_progress = [&](const Progress& progress) {
    if (progress.phase == Progress::Phase::kDecode) {
      measured.step_seconds.push_back(progress.seconds - step_began);
      step_began = progress.seconds;
    }
    meter.Show(progress);
  };
  const int64_t warm_up = flags.warm_up >= 0 ? flags.warm_up : OnGpu(flags) ? 1 : 0;
  for (int64_t i = 0; i < warm_up + flags.repetitions; ++i) {
    if (interrupt.raised()) return Cancelled();
    const std::string repetition =
        i < warm_up ? "warm-up" : fmt::format("{}/{}", i - warm_up + 1, flags.repetitions);
    meter.SetPrefix(fmt::format("{} {}  ", which, repetition));
    if (!flags.output.no_progress) console.SetStatusLine(which + " " + repetition);
    if (i == warm_up) {
      measured.seconds.clear();
      measured.step_seconds.clear();
    }
    step_began = 0.0;
    if (Status s = Repeat(flags, engine, **context, static_cast<uint64_t>(i), hooks, &measured);
        !s.ok()) {
      return s;
    }
  }
  measured.lanes = (*context)->Lanes();
  measured.lanes_alone = flags.prefill || flags.synthetic;
  const EngineOptions& options = flags.model.engine;
  const bool timed = !OnGpu(flags) || options.time_kernels || !options.trace.empty();
  if (options.tensor_parallel > 1 && timed) measured.shares = SharesOf(measured.attended);
  measured.tiers = TiersOf(**context);
  measured.timings = (*context)->timings();
  measured.recompute_share = (*context)->plan().recompute_share;
  measured.kv_encoding = (*context)->plan().kv_encoding;
  std::vector<int64_t> prefixes;
  for (size_t i = 0; i < measured.lengths.size(); ++i) {
    prefixes.push_back(measured.lengths[i] - MeasuredTokens(flags, **context, i, measured));
  }
  const Work work = WorkOf(flags, engine.info(), (*context)->plan(), measured, prefixes);
  // Runs of layers take chunks side by side, each with a bus as if it were alone.
  const int ranks = options.tensor_parallel * (flags.prefill ? options.layers_over : 1);
  measured.floor_seconds = FloorSeconds(work, PeaksOfGpus(peaks, OnGpu(flags) ? ranks : 1));
  const Result<double> predicted =
      engine.PredictSeconds(reached, {measured.lengths, prefixes, flags.prefill ? 0 : flags.steps});
  if (predicted.ok()) measured.predicted_seconds = *predicted;
  return measured;
}

// Measures one context after the other; a row is printed as soon as it is there.
int Run(const BenchFlags& flags, Engine& engine, const std::vector<Workload>& workloads,
        const MachinePeaks& peaks, Console& console) {
  size_t width = std::string_view("context").size();
  for (const Workload& workload : workloads) {
    width = std::max(width, Lengths(workload.lengths).size());
  }
  const auto print = [&](const std::string& text) {
    return flags.output.json ? kExitDone : console.WriteResult(text);
  };
  int status = print(BenchHead(engine, peaks, width));
  const InterruptGuard interrupt;
  std::vector<Measured> all;
  for (size_t i = 0; i < workloads.size() && status == kExitDone; ++i) {
    const Turn turn{workloads[i], fmt::format("context {} of {},", i + 1, workloads.size())};
    Result<Measured> measured = Measure(flags, engine, turn, peaks, interrupt, console);
    if (!measured.ok()) return console.Fail(measured.status());
    status = print(BenchRow(*measured, width) +
                   (flags.rank_shares ? RankSharesTable(measured->shares) : ""));
    all.push_back(std::move(*measured));
  }
  if (status != kExitDone || !flags.output.json) return status;
  return console.WriteResult(
      Dump(BenchJson(flags.prefill ? "prefill" : "decode", engine, peaks, all)));
}

// `flags` say which phase is measured.
int Bench(BenchFlags flags, const Args& args, Console& console) {
  const bool prefill = flags.prefill;
  const auto app = NewApp(
      prefill ? "bench prefill" : "bench decode",
      std::string(prefill ? "Measures how fast prompts are read"
                          : "Measures how fast tokens are generated behind a context") +
          ", and compares with the roofline: the time that moving and computing what must be "
          "would take at the memory bandwidth and matrix speed measured at the start.",
      prefill ? kPrefillExamples : kDecodeExamples);
  AddBenchFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (std::string wrong = CheckBenchFlags(*app, &flags); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  if (!prefill) MakeRoomFor(flags.steps + kStepsBeside, &flags.model.engine);
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  const std::vector<Workload> workloads = *ParseWorkloads(flags.context, flags.batch);
  for (const Workload& workload : workloads) {
    // Before an hour of measuring, not behind it.
    const Result<PlanReport> plan = (*engine)->Plan(Reached(flags, workload));
    if (!plan.ok()) return console.Fail(plan.status());
    SayApproximations(*plan, console);
  }
  if (!flags.output.no_progress) console.SetStatusLine("measuring what the machine does at best");
  Result<MachinePeaks> peaks = MeasurePeaks(flags.model.engine);
  console.ClearStatusLine();
  if (!peaks.ok()) return console.Fail(peaks.status());
  return Run(flags, **engine, workloads, *peaks, console);
}

}  // namespace

int BenchPrefillCommand(const Args& args, Console& console) {
  BenchFlags flags;
  flags.prefill = true;
  return Bench(std::move(flags), args, console);
}

int BenchDecodeCommand(const Args& args, Console& console) {
  BenchFlags flags;
  flags.prefill = false;
  return Bench(std::move(flags), args, console);
}

}  // namespace headway::cli
