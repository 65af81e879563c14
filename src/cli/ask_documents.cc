#include "cli/ask_documents.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "base/env.h"
#include "cli/eval_report.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "engine/eval/approximation.h"

namespace headway::cli {
namespace {

double Now() { return static_cast<double>(Env::Default()->NowNanos()) * 1e-9; }

// A question and its prompt, ready to run.
struct Prompted {
  const eval::Question* question = nullptr;
  std::vector<TokenId> tokens;
  int64_t max_tokens = 0;
  bool first_of_document = false;
};

Result<std::vector<Prompted>> Prompts(const AskFlags& flags, const Asked& asked,
                                      const Engine& engine) {
  std::vector<Prompted> prompts;
  for (const eval::Document& document : asked.documents) {
    for (const eval::Question& question : document.questions) {
      Result<std::vector<TokenId>> tokens =
          eval::PromptOf(engine, document, question, flags.template_options);
      if (!tokens.ok()) return tokens.status();
      const bool own = question.max_tokens > 0 && !asked.own_max_tokens;
      prompts.push_back({&question, std::move(*tokens),
                         own ? question.max_tokens : flags.max_tokens,
                         &question == &document.questions.front()});
    }
  }
  return prompts;
}

int64_t LongestOf(const std::vector<Prompted>& prompts) {
  int64_t longest = 0;
  for (const Prompted& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(std::ssize(prompt.tokens)));
  }
  return longest;
}

// Of a context that holds each prompt and its answer.
int64_t RoomFor(const std::vector<Prompted>& prompts) {
  int64_t room = 0;
  for (const Prompted& prompt : prompts) {
    room = std::max(room, static_cast<int64_t>(std::ssize(prompt.tokens)) + prompt.max_tokens);
  }
  return room;
}

// "line 3/100  score 0.950  12:40 left  ": `done` lines have summed up to `score`.
std::string LinePrefix(size_t done, size_t count, double score, double seconds) {
  std::string prefix = fmt::format("line {}/{}  ", done + 1, count);
  if (done == 0) return prefix;
  const auto lines = static_cast<double>(done);
  return prefix + fmt::format("score {:.3f}  {} left  ", score / lines,
                              FormatDuration(seconds / lines * static_cast<double>(count - done)));
}

// Runs the prompts in a context of its own. Shown: the share done and the score so far.
class Runner {
 public:
  Runner(const AskFlags& flags, const std::vector<Prompted>& prompts, Console& console)
      : flags_(flags), prompts_(prompts), console_(console) {}

  // What runs is called `name` in the progress.
  Result<std::vector<eval::Answered>> Run(Engine& engine, const std::string& name, TierUse* tiers);

 private:
  Request RequestOf(const Prompted& prompt) const;
  void SayProgress(const std::string& name, size_t done, double sum) const;

  const AskFlags& flags_;
  const std::vector<Prompted>& prompts_;
  Console& console_;
};

Request Runner::RequestOf(const Prompted& prompt) const {
  Request request;
  request.prompt = prompt.tokens;
  request.max_tokens = prompt.max_tokens;
  request.sampling = flags_.sampling.options;
  request.stop = flags_.sampling.stop;
  request.ignore_eos = flags_.sampling.ignore_eos;
  return request;
}

// Elsewhere than on a terminal, a line now and then is enough.
void Runner::SayProgress(const std::string& name, size_t done, double sum) const {
  if (flags_.output.no_progress || console_.err_is_terminal()) return;
  if (done * 10 / prompts_.size() == (done - 1) * 10 / prompts_.size()) return;
  console_.Say(fmt::format("headway: {}line {} of {}, score so far {:.3f}", name, done,
                           prompts_.size(), sum / static_cast<double>(done)));
}

Result<std::vector<eval::Answered>> Runner::Run(Engine& engine, const std::string& name,
                                                TierUse* tiers) {
  Result<std::unique_ptr<Context>> context = engine.NewContext({{RoomFor(prompts_)}});
  if (!context.ok()) return context.status();
  const InterruptGuard interrupt;
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  ProgressMeter meter(console_, flags_.model.engine, flags_.output.progress_on(console_));
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  std::vector<eval::Answered> results;
  double sum = 0.0;
  const double start = Now();
  for (const Prompted& prompt : prompts_) {
    meter.SetPrefix(name + LinePrefix(results.size(), prompts_.size(), sum, Now() - start));
    // Questions about one document share what is read of it; documents share nothing.
    if (prompt.first_of_document) (*context)->Reset();
    Result<eval::Answered> result =
        eval::Ask(**context, *prompt.question, RequestOf(prompt), hooks);
    if (!result.ok()) return result.status();
    sum += result->score;
    results.push_back(std::move(*result));
    SayProgress(name, results.size(), sum);
  }
  console_.ClearStatusLine();
  *tiers = TiersOf(**context);
  return results;
}

// As asked, then exactly if that is asked for, each with the memory to itself.
Result<Answers> RunAll(const AskFlags& flags, const Asked& asked, Engine& engine,
                       Console& console) {
  const Result<std::vector<Prompted>> prompts = Prompts(flags, asked, engine);
  if (!prompts.ok()) return prompts.status();
  const Result<PlanReport> plan = engine.Plan({{RoomFor(*prompts)}});
  if (!plan.ok()) return plan.status();
  WarnOfLength(engine.info(), LongestOf(*prompts), *plan, flags.model.engine, console);
  Answers answers;
  answers.grouping = asked.grouping;
  answers.approximations = eval::ApproximationsOf(flags.model.engine);
  Runner runner(flags, *prompts, console);
  Result<std::vector<eval::Answered>> results = runner.Run(engine, "", &answers.tiers);
  if (!results.ok()) return results.status();
  answers.results = std::move(*results);
  if (!flags.compare) return answers;
  const auto named = [](const Status& status) { return status.Within({"the exact run: "}); };
  Result<std::unique_ptr<Engine>> exact =
      Engine::Open(flags.model.model, eval::ExactOptions(flags.model.engine));
  if (!exact.ok()) return named(exact.status());
  TierUse exact_tiers;
  results = runner.Run(**exact, "exact: ", &exact_tiers);
  if (!results.ok()) return named(results.status());
  answers.exact = std::move(*results);
  return answers;
}

}  // namespace

void AddAskFlags(CLI::App& app, const std::string& group, AskFlags* flags) {
  AddNumber(app, group, "-n,--n-predict,--max-tokens", &flags->max_tokens, {1, kMaxCount},
            "most tokens of an answer, for those whose task or file says nothing else")
      ->default_str(std::to_string(flags->max_tokens));
  AddSwitch(app, group, "--compare", &flags->compare,
            "also run the model without what approximates (--sparse, --evict, --hgca, "
            "--kv-encoding, --head-pattern), and print both scores");
  AddTemplateFlag(app, group, &flags->template_options);
  AddSamplingFlags(app, &flags->sampling);
  AddOutputFlags(app, &flags->output);
}

std::string CheckAskFlags(const AskFlags& flags) {
  if (flags.compare && eval::ApproximationsOf(flags.model.engine).empty()) {
    return "--compare needs --sparse, --evict, --hgca, --kv-encoding or --head-pattern";
  }
  return "";
}

// Most often they are a data set's own. There may be any number of them.
void SayKeysNotRead(const std::set<std::string>& others, const std::string& name,
                    Console& console) {
  if (others.empty()) return;
  const size_t shown = std::min<size_t>(others.size(), 8);
  console.Say(fmt::format("headway: note: keys of {} that are not read: {}{}", name,
                          fmt::join(others.begin(), std::next(others.begin(), shown), ", "),
                          shown < others.size() ? ", ..." : ""));
}

int AskAndPrint(const AskFlags& flags, const Asked& asked, Engine& engine, Console& console) {
  const double start = Now();
  Result<Answers> answers = RunAll(flags, asked, engine, console);
  if (!answers.ok()) return console.Fail(answers.status());
  answers->seconds = Now() - start;
  return console.WriteResult(flags.output.json ? AnswersJson(*answers) : AnswersText(*answers));
}

}  // namespace headway::cli
