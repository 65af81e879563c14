#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/eval_text.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "engine/eval/approximation.h"
#include "engine/eval/perplexity.h"
#include "engine/eval/retrieval_generator.h"

namespace headway::cli {
namespace {

constexpr const char* kPerplexityExamples =
    R"(  headway eval perplexity models/demo --file book.txt --context 2048
  headway eval perplexity models/demo --file book.txt --context 16384 \
      --windows 4 --kv-memory 8MiB --json
  headway eval perplexity models/demo --file book.txt --context 4096 \
      --chunk 64 --kv-encoding int4 --compare)";

constexpr const char* kRetrievalExamples =
    R"(  headway eval retrieval models/demo --generate 100 --context 4096 --seed 1
  headway eval retrieval models/demo --generate 100 --context 16384 \
      --kinds needle,place --haystack book.txt --write lines.jsonl
  headway eval retrieval models/demo --jsonl lines.jsonl --json)";

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
             kPerplexityExamples);
  AddPerplexityFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
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
  if (std::string warning = LongContextWarning((*engine)->info(), longest, flags.model.engine);
      !warning.empty()) {
    console.Warn(warning);
  }
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{longest}});
  if (!context.ok()) return console.Fail(context.status());
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

namespace {

struct RetrievalFlags {
  ModelFlags model;
  SamplingFlags sampling;
  OutputFlags output;
  std::string jsonl;
  int64_t generate = 0;
  int64_t context = 0;
  std::string kinds = "needle,passkey,place,variables,passage";
  std::string haystack;
  std::string write;
  int64_t max_tokens = 64;
  ChatOptions template_options;
};

void AddRetrievalFlags(CLI::App& app, RetrievalFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Evaluation";
  AddText(app, group, "--jsonl", &flags->jsonl,
          "file of lines with `context`, `question`, `answer` (strings that must all appear) and "
          "perhaps `id`; - is standard input")
      ->type_name("FILE");
  AddNumber(app, group, "--generate", &flags->generate, {1, 100'000},
            "make up this many lines instead")
      ->type_name("COUNT");
  AddNumber(app, group, "-c,--context,--ctx-size", &flags->context, {1, kMaxCount},
            "with --generate: tokens of each prompt, nearly reached and never exceeded");
  AddText(app, group, "--kinds", &flags->kinds, "with --generate: kinds of facts, taken in turn")
      ->type_name("LIST")
      ->default_str(flags->kinds);
  AddText(app, group, "--haystack", &flags->haystack,
          "with --generate: text to hide facts in; without it, prose is made up")
      ->type_name("FILE");
  AddText(app, group, "--write", &flags->write,
          "with --generate: write the lines to this file and stop; --jsonl runs them")
      ->type_name("FILE");
  AddNumber(app, group, "-n,--n-predict,--max-tokens", &flags->max_tokens, {1, kMaxCount},
            "most tokens of an answer")
      ->default_str(std::to_string(flags->max_tokens));
  app.get_option("--generate")->excludes(app.get_option("--jsonl"));
  AddTemplateFlag(app, group, &flags->template_options);
  AddSamplingFlags(app, &flags->sampling);
  AddOutputFlags(app, &flags->output);
}

std::string CheckRetrievalFlags(const CLI::App& app, const RetrievalFlags& flags) {
  const bool generate = app.count("--generate") > 0;
  if (!generate && app.count("--jsonl") == 0) return "give either --jsonl FILE or --generate COUNT";
  if (generate && flags.context == 0) return "--generate needs --context N";
  for (const char* name : {"--haystack", "--write", "--context"}) {
    if (!generate && app.count(name) > 0) return std::string(name) + " needs --generate";
  }
  if (!eval::ParseRetrievalKinds(flags.kinds).ok()) {
    return "--kinds: " + eval::ParseRetrievalKinds(flags.kinds).status().message();
  }
  return "";
}

Result<std::vector<eval::RetrievalLine>> Lines(const RetrievalFlags& flags, const Engine& engine,
                                               Console& console) {
  if (flags.generate == 0) {
    Result<std::string> text = ReadText(flags.jsonl, console);
    if (!text.ok()) return text.status();
    const std::string name = flags.jsonl == "-" ? "standard input" : flags.jsonl;
    std::set<std::string> others;
    Result<std::vector<eval::RetrievalLine>> lines =
        eval::ParseRetrievalLines(*text, name, &others);
    if (lines.ok() && !others.empty()) {
      // Most often a data set's own. There may be any number of them.
      const size_t shown = std::min<size_t>(others.size(), 8);
      console.Say(fmt::format("headway: note: keys of {} that are not read: {}{}", name,
                              fmt::join(others.begin(), std::next(others.begin(), shown), ", "),
                              shown < others.size() ? ", ..." : ""));
    }
    return lines;
  }
  eval::RetrievalRequest request;
  request.count = flags.generate;
  request.length = flags.context;
  request.seed = flags.sampling.options.seed;
  request.kinds = *eval::ParseRetrievalKinds(flags.kinds);
  if (!flags.haystack.empty()) {
    Result<std::string> haystack = ReadText(flags.haystack, console);
    if (!haystack.ok()) return haystack.status();
    request.haystack = std::move(*haystack);
  }
  return eval::GenerateRetrieval(request, eval::MeasureOf(engine, flags.template_options));
}

Status WriteLines(const std::vector<eval::RetrievalLine>& lines, const std::string& path) {
  std::string text;
  for (const eval::RetrievalLine& line : lines) text += eval::RetrievalLineJson(line);
  return WriteText(path, text);
}

// "line 3/100  score 0.950  12:40 left  ": `done` lines have summed up to `score`.
std::string LinePrefix(size_t done, size_t count, double score, double seconds) {
  std::string prefix = fmt::format("line {}/{}  ", done + 1, count);
  if (done == 0) return prefix;
  const auto lines = static_cast<double>(done);
  return prefix + fmt::format("score {:.3f}  {} left  ", score / lines,
                              FormatDuration(seconds / lines * static_cast<double>(count - done)));
}

// Runs the lines one after the other. Shown: the share done and the score so far.
Result<std::vector<eval::RetrievalResult>> RunLines(const RetrievalFlags& flags,
                                                    const std::vector<eval::RetrievalLine>& lines,
                                                    Engine& engine, TierUse* tiers,
                                                    Console& console) {
  std::vector<std::vector<TokenId>> prompts;
  int64_t longest = 0;
  for (const eval::RetrievalLine& line : lines) {
    Result<std::vector<TokenId>> prompt =
        eval::RetrievalPrompt(engine, line, flags.template_options);
    if (!prompt.ok()) return prompt.status();
    longest = std::max(longest, static_cast<int64_t>(prompt->size()));
    prompts.push_back(std::move(*prompt));
  }
  if (std::string warning = LongContextWarning(engine.info(), longest, flags.model.engine);
      !warning.empty()) {
    console.Warn(warning);
  }
  Result<std::unique_ptr<Context>> context = engine.NewContext({{longest + flags.max_tokens}});
  if (!context.ok()) return context.status();
  const InterruptGuard interrupt;
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  // Elsewhere than on a terminal, a line now and then is enough.
  ProgressMeter meter(console, flags.model.engine, flags.output.progress_on(console));
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  std::vector<eval::RetrievalResult> results;
  double sum = 0.0;
  const double start = Now();
  for (size_t i = 0; i < lines.size(); ++i) {
    meter.SetPrefix(LinePrefix(i, lines.size(), sum, Now() - start));
    Request request;
    request.prompt = std::move(prompts[i]);
    request.max_tokens = flags.max_tokens;
    request.sampling = flags.sampling.options;
    request.stop = flags.sampling.stop;
    request.ignore_eos = flags.sampling.ignore_eos;
    Result<eval::RetrievalResult> result =
        eval::RunRetrievalLine(**context, lines[i], std::move(request), hooks);
    if (!result.ok()) return result.status();
    sum += result->score;
    results.push_back(std::move(*result));
    const std::string line = fmt::format("line {} of {}, score so far {:.3f}", i + 1, lines.size(),
                                         sum / static_cast<double>(i + 1));
    if (flags.output.no_progress || console.err_is_terminal()) continue;
    if ((i + 1) * 10 / lines.size() != i * 10 / lines.size()) console.Say("headway: " + line);
  }
  console.ClearStatusLine();
  *tiers = TiersOf(**context);
  return results;
}

int PrintRetrieval(const RetrievalFlags& flags, const std::vector<eval::RetrievalResult>& results,
                   double seconds, const TierUse& tiers, Console& console) {
  double score = 0.0;
  int64_t tokens = 0;
  for (const eval::RetrievalResult& result : results) {
    score += result.score;
    tokens += result.prompt_tokens;
  }
  score /= static_cast<double>(results.size());
  std::string text;
  if (flags.output.json) {
    Json list = Json::array();
    for (const eval::RetrievalResult& result : results) {
      list.push_back({{"id", result.id},
                      {"output", result.output},
                      {"score", result.score},
                      {"prompt_tokens", result.prompt_tokens}});
    }
    text = Dump({{"score", score},
                 {"results", std::move(list)},
                 {"prompt_tokens", tokens},
                 {"seconds", seconds},
                 {"kv_bytes", TiersJson(tiers)}});
  } else {
    for (const eval::RetrievalResult& result : results) {
      std::string output = result.output;
      std::replace(output.begin(), output.end(), '\n', ' ');
      text += fmt::format("{:.2f}  {}  {}\n", result.score, result.id, output);
    }
    text += fmt::format("score {:.4f} over {} lines of {} prompt tokens in all, in {:.1f} s\n",
                        score, results.size(), FormatCount(tokens), seconds);
  }
  return console.WriteResult(text);
}

}  // namespace

int RetrievalCommand(const Args& args, Console& console) {
  RetrievalFlags flags;
  const auto app =
      NewApp("eval retrieval",
             "Asks about facts hidden in long documents and scores the answers: the share of the "
             "expected strings that appear. Each line goes through the chat template as document, "
             "blank line, question, and is decoded greedily unless sampling is asked for.",
             kRetrievalExamples);
  AddRetrievalFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (std::string wrong = CheckRetrievalFlags(*app, flags); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  Result<std::vector<eval::RetrievalLine>> lines = Lines(flags, **engine, console);
  if (!lines.ok()) return console.Fail(lines.status());
  if (!flags.write.empty()) {
    if (Status s = WriteLines(*lines, flags.write); !s.ok()) return console.Fail(s);
    console.Say(fmt::format("headway: wrote {} lines to {}", lines->size(), flags.write));
    return kExitDone;
  }
  TierUse tiers;
  const double start = Now();
  Result<std::vector<eval::RetrievalResult>> results =
      RunLines(flags, *lines, **engine, &tiers, console);
  if (!results.ok()) return console.Fail(results.status());
  return PrintRetrieval(flags, *results, Now() - start, tiers, console);
}

}  // namespace headway::cli
