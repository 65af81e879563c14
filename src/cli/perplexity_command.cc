#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/eval_text.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "engine/eval/approximation.h"
#include "engine/eval/perplexity.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway eval perplexity models/demo --file book.txt --context 2048
  headway eval perplexity models/demo --file book.txt --context 16384 \
      --windows 4 --kv-memory 8MiB --json
  headway eval perplexity models/demo --file book.txt --context 4096 \
      --chunk 64 --kv-encoding int4 --compare)";

struct PerplexityFlags {
  ModelFlags model;
  OutputFlags output;
  EvalTextFlags text;
  int64_t windows = 0;
  bool compare = false;
};

int PrintPerplexity(const PerplexityFlags& flags, std::optional<TokenId> bos,
                    const eval::Comparison& compared, double seconds, const TierUse& tiers,
                    Console& console) {
  const eval::Perplexity& result = compared.approximate;
  std::string text;
  if (flags.output.json) {
    Json json = {{"perplexity", result.perplexity},
                 {"tokens", result.tokens},
                 {"windows", result.windows},
                 {"context", flags.text.context},
                 {"bos", bos.has_value() ? Json(*bos) : Json()},
                 {"negative_log_likelihood", result.negative_log_likelihood},
                 {"seconds", seconds},
                 {"kv_bytes", TiersJson(tiers)}};
    if (flags.compare) {
      json["exact_perplexity"] = compared.exact.perplexity;
      json["kl_divergence"] = compared.kl_divergence;
      json["same_top"] = compared.same_top;
    }
    text = Dump(json);
  } else {
    text = fmt::format("perplexity {:.4f} over {} tokens in {} window{} of {}; {:.1f} tok/s\n",
                       result.perplexity, FormatCount(result.tokens), result.windows,
                       result.windows == 1 ? "" : "s", flags.text.context,
                       TokensPerSecond(result.tokens, seconds));
    if (flags.compare) {
      text += fmt::format(
          "exact {:.4f}; KL divergence {:.6f} nats a token; the same likeliest token {:.2f} %\n",
          compared.exact.perplexity, compared.kl_divergence, 100.0 * compared.same_top);
    }
  }
  return console.WriteResult(text);
}

double Now() { return static_cast<double>(Env::Default()->NowNanos()) * 1e-9; }

void AddPerplexityFlags(CLI::App& app, PerplexityFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Evaluation";
  AddEvalTextFlags(app, group, &flags->text);
  AddNumber(app, group, "--windows", &flags->windows, {0, kMaxCount},
            "most windows; 0: all that the text has")
      ->type_name("K");
  AddSwitch(app, group, "--compare", &flags->compare,
            "also run the model without --kv-encoding and --head-pattern, with a cache and budgets "
            "of its own, and print how far the two are apart");
  AddOutputFlags(app, &flags->output);
}

// Of the context; with flags.compare beside that of the exact model.
Result<eval::Comparison> MeasureWindows(const PerplexityFlags& flags, Context& context,
                                        std::span<const std::vector<TokenId>> windows,
                                        int64_t longest, const Hooks& hooks) {
  if (!flags.compare) {
    Result<eval::Perplexity> measured = eval::MeasurePerplexity(context, windows, hooks);
    if (!measured.ok()) return measured.status();
    eval::Comparison result;
    result.approximate = *measured;
    return result;
  }
  Result<std::unique_ptr<Engine>> exact =
      Engine::Open(flags.model.model, eval::ExactOptions(flags.model.engine));
  if (!exact.ok()) return exact.status();
  Result<std::unique_ptr<Context>> beside = (*exact)->NewContext({{longest}});
  if (!beside.ok()) return beside.status();
  return eval::ComparePerplexity(**beside, context, windows, hooks);
}

}  // namespace

int PerplexityCommand(const Args& args, Console& console) {
  PerplexityFlags flags;
  const auto app =
      NewApp("eval perplexity",
             "Perplexity of a text over windows that do not overlap, each begun as the tokenizer "
             "begins a text, every prediction counted.",
             kExamples);
  AddPerplexityFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  ChooseAtAnyLength(&flags.model.engine);
  if (flags.compare && eval::ApproximationsOf(flags.model.engine).empty()) {
    return WrongUsage(*app, "--compare needs --kv-encoding or --head-pattern", console);
  }
  if (flags.model.engine.selector != EngineOptions{}.selector &&
      !flags.model.engine.sparse_prefill) {
    return WrongUsage(*app,
                      "a text is scored as prompts are, which --sparse reads exactly without "
                      "--sparse-prefill; headway eval divergence compares token by token",
                      console);
  }
  for (const auto& [given, flag] :
       {std::pair{flags.model.engine.evict != EngineOptions{}.evict, "--evict"},
        std::pair{flags.model.engine.hgca != EngineOptions{}.hgca, "--hgca"},
        std::pair{flags.model.engine.hgca_reselect > 0, "--hgca-reselect"}}) {
    if (!given) continue;
    return WrongUsage(*app,
                      std::string("a text is scored as prompts are, which ") + flag +
                          " reads exactly; headway eval divergence compares token by token",
                      console);
  }
  Result<std::string> text = ReadText(flags.text.file, console);
  if (!text.ok()) return console.Fail(text.status());
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  Result<EvalText> encoded = EncodeEvalText(flags.text, *text, **engine);
  if (!encoded.ok()) return console.Fail(encoded.status());
  const auto windows =
      eval::CutWindows(encoded->tokens, encoded->bos, flags.text.context, flags.windows);
  int64_t longest = 1;
  for (const auto& window : windows) {
    longest = std::max(longest, static_cast<int64_t>(window.size()));
  }
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{longest}});
  if (!context.ok()) return console.Fail(context.status());
  WarnOfLength((*engine)->info(), longest, (*context)->plan(), flags.model.engine, console);
  const InterruptGuard interrupt;
  ProgressMeter meter(console, flags.model.engine, flags.output.progress());
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  const double start = Now();
  Result<eval::Comparison> result = MeasureWindows(flags, **context, windows, longest, hooks);
  if (result.status().code() == StatusCode::kCancelled) {
    return console.Fail(Status(StatusCode::kCancelled, "interrupted"));
  }
  if (!result.ok()) return console.Fail(result.status());
  return PrintPerplexity(flags, encoded->bos, *result, Now() - start, TiersOf(**context), console);
}

}  // namespace headway::cli
