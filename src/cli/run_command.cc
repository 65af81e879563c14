#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/run_prompts.h"
#include "headway/refusal.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway run models/demo --prompt "Once upon a time" --n-predict 64
  headway run models/demo --file book.txt --ask "Who kept the ledger?" \
      --kv-memory 8MiB --host-memory 64MiB --disk-memory 1GiB
  cat notes.txt | headway run models/demo --json
  headway run models/demo --file book.txt --ask "And who sold it?" \
      --session book.session
  headway run models/demo --prompts prompts.jsonl -n 100)";

void AddRunFlags(CLI::App& app, RunFlags* flags) {
  AddModelFlags(app, &flags->model);
  AddPromptFlags(app, &flags->prompt);
  const std::string batch = "Many prompts";
  AddText(app, batch, "--prompts", &flags->prompts,
          "file of prompts to run together, a line each: a JSON string, or an object with "
          "\"prompt\" and perhaps \"id\" and \"max_tokens\"; - is standard input. Prints a line of "
          "JSON for each, in their order")
      ->type_name("JSONL");
  AddNumber(app, More(batch), "--parallel", &flags->parallel, {0, kMostParallel},
            "most of them at a time, one that ends gives its place to the next; 0: as many as the "
            "planner says are done soonest")
      ->default_str(std::to_string(flags->parallel));
  const std::string group = "Length";
  AddNumber(app, group, "-n,--n-predict,--predict,--max-tokens", &flags->max_tokens, {0, kMaxCount},
            "most tokens to generate; 0 only reads the prompt, which fills a --session")
      ->default_str(std::to_string(flags->max_tokens));
  AddNumber(app, group, "-c,--ctx-size,--max-model-len", &flags->context, {0, kMaxCount},
            "tokens of the context; 0: as many as prompt, --n-predict and session need");
  AddNumber(app, More("Memory"), "--save-every", &flags->save_every, {0, kMaxCount},
            "seconds after which --session is saved again while the run goes on")
      ->default_str(std::to_string(flags->save_every));
  AddSamplingFlags(app, &flags->sampling);
  AddGenerationConfigFlag(app, &flags->sampling);
  AddOutputFlags(app, &flags->output);
  AddSwitch(app, More("Output"), "--compare-resident", &flags->compare_resident,
            "then run the same with no memory limit, cut into the same chunks and segments, and "
            "compare the tokens; fails if they differ. Where a run without limits would be cut in "
            "another way, which changes rounding, a note says so");
  // What many prompts have no use for.
  for (const char* flag : {"--prompt", "--file", "--ask", "--session", "--compare-resident"}) {
    app.get_option("--prompts")->excludes(app.get_option(flag));
  }
}

struct Outcome {
  Generation generation;
  Timings timings;
  TierUse tiers;
  PlanReport plan;
  std::vector<LaneReport> lanes;
  Status saved;
};

Result<int64_t> ContextLength(const RunFlags& flags, const Engine& engine, size_t prompt_tokens) {
  if (flags.context > 0) return flags.context;
  Result<int64_t> saved = engine.SessionTokens();
  if (!saved.ok()) return saved.status();
  return std::max(*saved, static_cast<int64_t>(prompt_tokens) + flags.max_tokens);
}

// With what the user should know of its plan.
Result<std::unique_ptr<Context>> OpenContext(Engine& engine, int64_t length, Console& console) {
  Result<std::unique_ptr<Context>> context = engine.NewContext({{length}});
  if (!context.ok()) return context;
  WarnOfMemory((*context)->plan(), console);
  SayCut((*context)->plan(), console);
  return context;
}

Result<Outcome> RunOnce(const EngineOptions& options, Context& context, const Request& request,
                        const GenerateView& view, const InterruptGuard& interrupt,
                        Console& console) {
  Result<Generation> made = GenerateShown(context, request, view, options, interrupt, console);
  Outcome outcome;
  outcome.timings = context.timings();
  outcome.tiers = TiersOf(context);
  outcome.plan = context.plan();
  outcome.lanes = context.Lanes();
  // Also when the text could not be written: the cache is worth keeping.
  outcome.saved = context.SaveSession();
  if (!made.ok()) return made.status();
  outcome.generation = std::move(*made);
  return outcome;
}

// What may be compared with a run that is cut in the same way.
std::string ComparedCut(const PlanReport& plan) {
  const bool other_sums = plan.host_share > 0.0 || plan.x_slabs > 0;
  return fmt::format("chunk {} and segment {} as before ({})", plan.chunk, plan.segment,
                     other_sums ? "equal within rounding: a part was recomputed or left to the CPU"
                                : "which promises the same bits");
}

// The same request on the same cut of the cache with everything in fast memory, which must give
// the same tokens: where a page lies never changes a bit.
Result<bool> CompareResident(const RunFlags& flags, const Request& request, int64_t length,
                             const Outcome& first, const InterruptGuard& interrupt,
                             Console& console) {
  EngineOptions options = flags.model.engine;
  options.kv_memory = kNoLimit;
  options.host_memory = kNoLimit;
  options.disk_memory = 0;
  options.gpu_memory = 0;
  options.host_share = 0.0;
  options.recompute_share = 0.0;
  options.policy = "auto";
  options.placement = "first-fit";
  options.session.clear();
  options.trace.clear();
  options.chunk = first.plan.chunk;
  options.prompt_order = "chunks";
  options.head_group = first.plan.head_group;
  options.segment = first.plan.segment;
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, options);
  if (!engine.ok()) return engine.status();
  const GenerateView view{.stream_text = false, .progress = flags.output.progress()};
  Result<std::unique_ptr<Context>> context = OpenContext(**engine, length, console);
  if (!context.ok()) return context.status();
  Result<Outcome> second = RunOnce(options, **context, request, view, interrupt, console);
  if (!second.ok()) return second.status();
  if (second->generation.finish == FinishReason::kCancelled) {
    return Status(StatusCode::kCancelled, "interrupted before the comparison was done");
  }
  const bool equal = second->generation.tokens == first.generation.tokens;
  const int64_t beside = second->tiers.bytes[1] + second->tiers.bytes[2];
  console.Say(
      fmt::format("compare   without a limit, {} on the device, {}: {:.1f} tok/s prefill, "
                  "{:.1f} tok/s decode; the {} tokens are {}",
                  beside == 0 ? "everything" : "all that fits", ComparedCut(first.plan),
                  TokensPerSecond(second->timings.prefill_tokens, second->timings.prefill_seconds),
                  TokensPerSecond(second->timings.decode_tokens, second->timings.decode_seconds),
                  first.generation.tokens.size(), equal ? "equal" : "DIFFERENT"));
  return equal;
}

Json OutcomeJson(const Outcome& outcome, const RunFlags& flags) {
  const Generation& generation = outcome.generation;
  Json json = {{"text", generation.text},
               {"tokens", generation.tokens},
               {"finish", FinishReasonName(generation.finish)},
               {"prompt_tokens", generation.prompt_tokens},
               {"reused_tokens", generation.reused_tokens},
               {"timings", TimingsJson(outcome.timings)},
               {"kv_bytes", TiersJson(outcome.tiers)},
               {"plan", PlanJson(outcome.plan)},
               {"lanes", LanesJson(outcome.lanes)},
               {"sampling", SamplingJson(flags.sampling.options)},
               {"notices", generation.notices}};
  if (!flags.model.engine.session.empty()) json["session_saved"] = outcome.saved.ok();
  return json;
}

void Summarize(const RunFlags& flags, const Outcome& outcome, Console& console) {
  const std::string& text = outcome.generation.text;
  if (!text.empty() && !text.ends_with('\n')) console.Write("\n");
  for (const std::string& line :
       RunSummary(outcome.generation, outcome.timings, outcome.tiers, flags.model.engine)) {
    console.Say(line);
  }
  const PlanReport& plan = outcome.plan;
  SayApproximations(plan, console);
  if (!flags.output.verbose) return;
  console.Say(fmt::format(
      "plan      chunk {}, head group {}, segment {}, slabs of {}; RAM in all {}", plan.chunk,
      plan.head_group, plan.segment, FormatBytes(plan.slab_bytes), FormatBytes(plan.memory_bytes)));
  for (const std::string& reason : plan.reasons) console.Say("          " + reason);
  if (const Prediction& prediction = plan.prediction; !prediction.machine.empty()) {
    console.Say(fmt::format(
        "predicted {:.1f} tok/s prefill (limited by {}), {:.1f} tok/s decode ({}) at full length",
        prediction.prefill.tokens_per_second, prediction.prefill.limit,
        prediction.decode.tokens_per_second, prediction.decode.limit));
  }
  for (const LaneReport& lane : outcome.lanes) {
    console.Say(fmt::format("lane      {:<10} busy {:>8.2f} s  {:>10}", lane.lane,
                            lane.busy_seconds, FormatBytes(lane.bytes)));
  }
}

int Finish(const RunFlags& flags, const Outcome& outcome, std::optional<bool> equal,
           Console& console) {
  if (flags.output.json) {
    Json json = OutcomeJson(outcome, flags);
    if (equal.has_value()) json["equals_resident"] = *equal;
    if (const int failed = console.WriteResult(Dump(json)); failed != kExitDone) return failed;
  }
  int status = kExitDone;
  const bool cancelled = outcome.generation.finish == FinishReason::kCancelled;
  if (!outcome.saved.ok()) {
    status = console.Fail(outcome.saved.Within({"the session was not saved: "}));
  } else if (cancelled) {
    const std::string& session = flags.model.engine.session;
    console.Say("headway: interrupted; " +
                (session.empty() ? std::string("nothing was kept, for there is no --session")
                                 : "what was computed is kept in " + session));
  }
  if (cancelled || (equal.has_value() && !*equal)) status = kExitFailed;
  return status;
}

// What is wrong with the flags of many prompts, empty when nothing is.
std::string CheckBatch(const CLI::App& app, const RunFlags& flags) {
  for (const char* flag : {"--system", "--chat-template-kwargs"}) {
    if (app.count(flag) > 0 && !flags.prompt.chat) return std::string(flag) + " needs --chat";
  }
  return "";
}

}  // namespace

Request RequestOf(const RunFlags& flags, std::vector<TokenId> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = flags.max_tokens;
  request.sampling = flags.sampling.options;
  request.stop = flags.sampling.stop;
  request.ignore_eos = flags.sampling.ignore_eos;
  return request;
}

int RunCommand(const Args& args, Console& console) {
  RunFlags flags;
  const auto app = NewApp("run",
                          "Continues a prompt, or answers it through the model's chat "
                          "template. The text goes to standard output, all else to "
                          "standard error.",
                          kExamples);
  AddRunFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (!flags.prompts.empty()) {
    if (std::string wrong = CheckBatch(*app, flags); !wrong.empty()) {
      return WrongUsage(*app, wrong, console);
    }
    return RunPrompts(*app, flags, console);
  }
  if (std::string wrong = CheckPromptFlags(*app, console, &flags.prompt); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  MakeRoomFor(flags.max_tokens, &flags.model.engine);
  // Before the prompt: a model that is not there is the greater mistake.
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  if (Status s = TakeSamplingDefaults(*app, (*engine)->info(), &flags.sampling, console); !s.ok()) {
    return console.Fail(s);
  }
  Result<PromptText> text = ReadPrompt(flags.prompt, console);
  if (!text.ok()) return console.Fail(text.status());
  Result<std::vector<TokenId>> prompt = EncodePrompt(**engine, *text);
  if (!prompt.ok()) return console.Fail(prompt.status());
  Result<int64_t> length = ContextLength(flags, **engine, prompt->size());
  if (!length.ok()) return console.Fail(length.status());
  const Request request = RequestOf(flags, std::move(*prompt));
  const InterruptGuard interrupt;
  const GenerateView view{.stream_text = !flags.output.json,
                          .progress = flags.output.progress(),
                          .save_every = flags.save_every};
  Result<std::unique_ptr<Context>> context = OpenContext(**engine, *length, console);
  if (!context.ok()) return console.Fail(context.status());
  WarnOfLength((*engine)->info(), *length, (*context)->plan(), flags.model.engine, console);
  Result<Outcome> outcome =
      RunOnce(flags.model.engine, **context, request, view, interrupt, console);
  if (!outcome.ok()) return console.Fail(outcome.status());
  context->reset();
  SayNotices(outcome->generation, console);
  if (!flags.output.json) Summarize(flags, *outcome, console);
  std::optional<bool> equal;
  if (flags.compare_resident && outcome->generation.finish != FinishReason::kCancelled) {
    engine->reset();
    Result<bool> compared = CompareResident(flags, request, *length, *outcome, interrupt, console);
    if (!compared.ok()) return console.Fail(compared.status());
    equal = *compared;
  }
  return Finish(flags, *outcome, equal, console);
}

}  // namespace headway::cli
