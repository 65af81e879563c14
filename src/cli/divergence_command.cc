#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "base/env.h"
#include "cli/commands.h"
#include "cli/eval_report.h"
#include "cli/eval_text.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "engine/eval/approximation.h"
#include "engine/eval/divergence.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway eval divergence models/demo --file book.txt --context 4096 \
      --kv-encoding int8
  headway eval divergence models/demo --file book.txt --context 8192 \
      --tokens 64 --windows 8 --head-pattern heads.tsv --sparsity 0.5 --json)";

struct DivergenceFlags {
  ModelFlags model;
  OutputFlags output;
  EvalTextFlags text;
  int64_t tokens = 128;
  int64_t windows = 1;
};

void AddFlags(CLI::App& app, DivergenceFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Evaluation";
  AddEvalTextFlags(app, group, &flags->text);
  AddNumber(app, group, "--tokens", &flags->tokens, {1, kMaxCount},
            "last tokens of a window, which are read one a step and compared")
      ->type_name("T")
      ->default_str(std::to_string(flags->tokens));
  AddNumber(app, group, "--windows", &flags->windows, {1, kMaxCount},
            "windows, spread evenly over the text; they may share tokens, but none that are "
            "compared")
      ->type_name("W")
      ->default_str(std::to_string(flags->windows));
  AddOutputFlags(app, &flags->output);
}

// What a comparison came to.
struct Compared {
  eval::Divergence divergence;
  std::optional<TokenId> bos;
  TierUse exact_tiers, tiers;
  BoundedHeads bounded;
};

// What is kept of the exact run is no part of any budget, and should not push the model out of RAM.
Status CheckKept(const eval::SpreadWindows::Shape& shape, int64_t vocab) {
  const int64_t bytes = eval::StepComparison::Bytes(shape, vocab), ram = RamBytes();
  if (bytes <= ram / 2) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("what is kept of the exact run, {} tokens by a vocabulary of {}, takes "
                            "{}, more than half of this machine's RAM of {}; take fewer --tokens "
                            "or --windows",
                            FormatCount(shape.count * shape.compared), FormatCount(vocab),
                            FormatBytes(bytes), FormatBytes(ram)));
}

// One run has its memory, then the other, so that each has the budgets to itself. The model is
// opened as asked first all the same: what is wrong with that is said before the exact run.
Result<Compared> Compare(const DivergenceFlags& flags, const std::string& text, const Hooks& hooks,
                         Console& console) {
  const Workload workload{{flags.text.context}};
  Result<std::unique_ptr<Engine>> asked = Engine::Open(flags.model.model, flags.model.engine);
  if (!asked.ok()) return asked.status();
  const ModelInfo& info = (*asked)->info();
  const Result<EvalText> encoded = EncodeEvalText(flags.text, text, **asked);
  if (!encoded.ok()) return encoded.status();
  const Result<eval::SpreadWindows> windows = eval::SpreadWindows::Over(
      encoded->tokens, encoded->bos, {flags.text.context, flags.windows, flags.tokens});
  if (!windows.ok()) return windows.status().Within({"--file " + flags.text.file + ": "});
  if (Status s = CheckKept(windows->shape(), info.vocab); !s.ok()) return s;
  const Result<PlanReport> plan = (*asked)->Plan(workload);
  if (!plan.ok()) return plan.status();
  WarnOfLength(info, flags.text.context, *plan, flags.model.engine, console);
  eval::StepComparison comparison(*windows, hooks);
  Compared compared;
  compared.bos = encoded->bos;
  {
    const auto named = [](const Status& status) { return status.Within({"the exact run: "}); };
    Result<std::unique_ptr<Engine>> exact =
        Engine::Open(flags.model.model, eval::ExactOptions(flags.model.engine));
    if (!exact.ok()) return named(exact.status());
    Result<std::unique_ptr<Context>> context = (*exact)->NewContext(workload);
    if (!context.ok()) return named(context.status());
    if (Status s = comparison.RunExact(**context); !s.ok()) return named(s);
    compared.exact_tiers = TiersOf(**context);
  }
  Result<std::unique_ptr<Context>> context = (*asked)->NewContext(workload);
  if (!context.ok()) return context.status();
  Result<eval::Divergence> divergence = comparison.RunApproximate(**context);
  if (!divergence.ok()) return divergence.status();
  compared.divergence = *divergence;
  compared.tiers = TiersOf(**context);
  compared.bounded = (*context)->timings().bounded;
  return compared;
}

std::string DivergenceJson(const DivergenceFlags& flags, const Compared& compared, double seconds) {
  const eval::Divergence& found = compared.divergence;
  return Dump({{"kl_divergence", found.mean},
               {"kl_standard_error",
                found.standard_error.has_value() ? Json(*found.standard_error) : Json()},
               {"kl_p95", found.p95},
               {"kl_max", found.most},
               {"same_top", found.same_top},
               {"perplexity", found.approximate.perplexity},
               {"exact_perplexity", found.exact.perplexity},
               {"tokens", found.approximate.tokens},
               {"windows", found.approximate.windows},
               {"context", flags.text.context},
               {"bos", compared.bos.has_value() ? Json(*compared.bos) : Json()},
               {"approximations", ApproximationsJson(eval::ApproximationsOf(flags.model.engine))},
               {"seconds", seconds},
               {"kv_bytes", TiersJson(compared.tiers)},
               {"exact_kv_bytes", TiersJson(compared.exact_tiers)},
               {"hgca_bound", BoundedJson(compared.bounded)}});
}

std::string DivergenceText(const DivergenceFlags& flags, const Compared& compared, double seconds) {
  const eval::Divergence& found = compared.divergence;
  std::string error;
  if (found.standard_error.has_value()) {
    error = fmt::format(" (standard error {:.2g} over {} windows)", *found.standard_error,
                        flags.windows);
  }
  std::string bounded;
  if (compared.bounded.heads > 0) {
    bounded = fmt::format("{:.2f} % of heads read all before the window\n",
                          100.0 * ReadAllShare(compared.bounded));
  }
  return fmt::format(
      "KL divergence {:.4g} nats a token{}; 95 % at most {:.4g}, largest {:.4g}\n"
      "the same likeliest token {:.2f} %\n"
      "perplexity {:.4f}, exact {:.4f}, over {} decode steps in {} window{} of {}; {:.1f} s\n"
      "{}approximation: {}\n",
      found.mean, error, found.p95, found.most, 100.0 * found.same_top,
      found.approximate.perplexity, found.exact.perplexity, FormatCount(found.approximate.tokens),
      flags.windows, flags.windows == 1 ? "" : "s", flags.text.context, seconds, bounded,
      ApproximationsText(eval::ApproximationsOf(flags.model.engine)));
}

}  // namespace

int DivergenceCommand(const Args& args, Console& console) {
  DivergenceFlags flags;
  const auto app = NewApp(
      "eval divergence",
      "How far an approximation is from exact in decode: reads the beginning of a text, then its "
      "next tokens as they are, one a step, without what approximates (--sparse, "
      "--evict, --hgca, --kv-encoding, --head-pattern) and as asked, and compares the "
      "distributions of the "
      "next token. The runs "
      "follow one another, each with the budgets to itself; beside these, the logits of the exact "
      "one stay in RAM.",
      kExamples);
  AddFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  ChooseAtAnyLength(&flags.model.engine);
  if (flags.tokens >= flags.text.context) {
    return WrongUsage(*app,
                      fmt::format("--tokens {} leaves nothing of a --context of {} to read before",
                                  flags.tokens, flags.text.context),
                      console);
  }
  Result<std::string> text = ReadText(flags.text.file, console);
  if (!text.ok()) return console.Fail(text.status());
  const InterruptGuard interrupt;
  ProgressMeter meter(console, flags.model.engine, flags.output.progress());
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  const int64_t start = Env::Default()->NowNanos();
  const Result<Compared> compared = Compare(flags, *text, hooks, console);
  if (compared.status().code() == StatusCode::kCancelled) {
    return console.Fail(Status(StatusCode::kCancelled, "interrupted"));
  }
  if (!compared.ok()) return console.Fail(compared.status());
  const double seconds = static_cast<double>(Env::Default()->NowNanos() - start) * 1e-9;
  return console.WriteResult(flags.output.json ? DivergenceJson(flags, *compared, seconds)
                                               : DivergenceText(flags, *compared, seconds));
}

}  // namespace headway::cli
