#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <limits>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/profile_budgets.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "engine/eval/budget_profile.h"
#include "engine/eval/head_profile.h"
#include "engine/eval/tasks/generator.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway profile-heads models/demo -o heads.tsv --context 4096 --prompts 20
  headway eval retrieval models/demo --generate 20 --context 4096 \
      --head-pattern heads.tsv --sparsity 0.5
  headway profile-heads models/demo -o budgets.json --evict ada-snapkv \
      --evict-budget 512 --file book.txt --file letters.txt --context 8192
  headway profile-heads models/demo -o retrieval.json --importance retrieval
  headway run models/demo -f book.txt --ask "Who hid the letter?" \
      --evict headkv --evict-budget 512 --evict-profile retrieval.json)";

struct ProfileFlags {
  ModelFlags model;
  OutputFlags output;
  std::string file;
  int64_t context = 4096;
  int64_t prompts = 20;
  uint64_t seed = 1;
  std::string kinds = "needle,passkey,place,variables,passage";
  std::string importance = "none";
  std::vector<std::string> texts;
};

void AddFlags(CLI::App& app, ProfileFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Profile";
  AddText(app, group, "-o,--output", &flags->file,
          "file for the scores: TSV as DuoAttention has it, or JSON where the name ends in .json; "
          "with --evict or --importance JSON for --evict-profile")
      ->required()
      ->type_name("FILE");
  AddNumber(
      app, group, "-c,--context,--ctx-size", &flags->context, {1, kMaxCount},
      "tokens of each prompt, nearly reached and never exceeded; with --evict, the first ones "
      "of each text")
      ->default_str(std::to_string(flags->context));
  AddNumber(app, group, "--prompts", &flags->prompts, {1, 100'000},
            "prompts; those that the model answers wrong do not count")
      ->type_name("COUNT")
      ->default_str(std::to_string(flags->prompts));
  AddNumber(app, group, "-s,--seed", &flags->seed, {0, std::numeric_limits<uint64_t>::max()},
            "of the prompts")
      ->default_str(std::to_string(flags->seed));
  AddText(app, group, "--tasks,--task,--kinds", &flags->kinds,
          "tasks of headway eval retrieval, taken in turn")
      ->type_name("LIST")
      ->default_str(flags->kinds);
  AddChoice(app, group, "--importance", &flags->importance, {"none", "retrieval"},
            "retrieval: instead, how much of each head's attention falls on the tokens of the "
            "document that are the answer, for --evict headkv");
  app.add_option("-f,--file", flags->texts,
                 "with --evict: a text; may be given several times; - is standard input")
      ->group(group)
      ->type_name("FILE")
      ->allow_extra_args(false);
  AddOutputFlags(app, &flags->output);
}

// The lines' prompts, and the room that the longest and its answer need.
Result<std::vector<std::vector<TokenId>>> Prompts(const std::vector<eval::RetrievalLine>& lines,
                                                  const Engine& engine, int64_t* room) {
  std::vector<std::vector<TokenId>> prompts;
  *room = 0;
  for (const eval::RetrievalLine& line : lines) {
    Result<std::vector<TokenId>> prompt = eval::RetrievalPrompt(engine, line);
    if (!prompt.ok()) return prompt.status();
    *room = std::max(*room, static_cast<int64_t>(prompt->size()) + eval::kAnswerTokens);
    prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

Status Profile(const ProfileFlags& flags, Engine& engine, Console& console,
               eval::HeadProfile* profile) {
  eval::RetrievalRequest request;
  request.count = flags.prompts;
  request.lengths = {flags.context};
  request.seed = flags.seed;
  request.tasks = *eval::ParseRetrievalTasks(flags.kinds);
  Result<std::vector<eval::RetrievalLine>> lines =
      eval::GenerateRetrieval(request, eval::MeasureOf(engine));
  if (!lines.ok()) return lines.status();
  int64_t room = 0;
  Result<std::vector<std::vector<TokenId>>> prompts = Prompts(*lines, engine, &room);
  if (!prompts.ok()) return prompts.status();
  Result<std::unique_ptr<Context>> context = engine.NewContext({{room}});
  if (!context.ok()) return context.status();
  WarnOfLength(engine.info(), room, (*context)->plan(), flags.model.engine, console);
  const InterruptGuard interrupt;
  ProgressMeter meter(console, flags.model.engine, flags.output.progress_on(console));
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  for (size_t i = 0; i < lines->size(); ++i) {
    meter.SetPrefix(fmt::format("prompt {}/{}  ", i + 1, lines->size()));
    Result<bool> right =
        eval::ProfilePrompt(**context, {engine, (*lines)[i], (*prompts)[i]}, hooks, profile);
    if (!right.ok()) return right.status();
  }
  if (profile->answered > 0) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                "the model answers none of the prompts right, so that nothing shows how it "
                "retrieves; try a shorter --context, or --tasks passkey");
}

// Which heads look furthest, or at what was asked for; for people.
std::string Summary(const eval::HeadProfile& profile, const std::string& file) {
  std::vector<double> sorted = profile.scores;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
  };
  if (profile.of == eval::HeadProfile::Of::kAnswer) {
    return fmt::format(
        "{} KV heads over {} prompts answered right; attention on the answer's tokens: quartiles "
        "{:.4f} {:.4f} {:.4f}, most {:.4f}\nwrote {}; use it with --evict headkv --evict-profile "
        "{}\n",
        sorted.size(), profile.answered, at(0.25), at(0.5), at(0.75), sorted.back(), file, file);
  }
  return fmt::format(
      "{} KV heads over {} prompts answered right; attention behind {} sink and {} recent tokens: "
      "quartiles {:.3f} {:.3f} {:.3f}, most {:.3f}\nwrote {}; use it with --head-pattern {} "
      "--sparsity X\n",
      sorted.size(), profile.answered, profile.sink, profile.recent, at(0.25), at(0.5), at(0.75),
      sorted.back(), file, file);
}

std::string FileText(const eval::HeadProfile& profile, const std::string& file,
                     const ModelInfo& model) {
  if (profile.of == eval::HeadProfile::Of::kAnswer) return eval::ImportanceJson(profile, model);
  return file.ends_with(".json") ? eval::HeadProfileJson(profile) : eval::HeadProfileTsv(profile);
}

// What does not go together; empty: all does.
std::string WrongTogether(const ProfileFlags& flags) {
  const EngineOptions& options = flags.model.engine;
  const EngineOptions absent;
  const bool evicts = options.evict != absent.evict;
  if (evicts && flags.importance != "none") {
    return "--importance is measured with the exact model; leave out --evict";
  }
  if (options.evicted != absent.evicted) {
    return "what heads keep is profiled; leave out --evicted";
  }
  if (evicts && flags.texts.empty()) return "--evict profiles texts; give them with --file";
  if (!evicts && !flags.texts.empty()) return "--file needs --evict";
  if (!options.session.empty()) return "profiles are made without --session";
  if (evicts) return "";
  if (!options.head_pattern.empty() || options.sparsity >= 0.0 ||
      options.selector != absent.selector || options.hgca != absent.hgca ||
      options.hgca_reselect != absent.hgca_reselect) {
    return "the exact model is profiled; leave out --head-pattern, --sparsity, --sparse and --hgca";
  }
  return "";
}

int ProfileScores(ProfileFlags& flags, Console& console) {
  EngineOptions& options = flags.model.engine;
  eval::HeadProfile profile;
  if (flags.importance == "retrieval") profile.of = eval::HeadProfile::Of::kAnswer;
  if (options.sink_tokens >= 0) profile.sink = options.sink_tokens;
  if (options.recent_tokens > 0) profile.recent = options.recent_tokens;
  options.sink_tokens = EngineOptions{}.sink_tokens;
  options.recent_tokens = EngineOptions{}.recent_tokens;
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, options);
  if (!engine.ok()) return console.Fail(engine.status());
  profile.layers = (*engine)->info().layers;
  profile.kv_heads = (*engine)->info().kv_heads;
  if (Status s = CheckWritable(flags.file); !s.ok()) return console.Fail(s);
  const Status status = Profile(flags, **engine, console, &profile);
  if (status.code() == StatusCode::kCancelled) {
    return console.Fail(Status(StatusCode::kCancelled, "interrupted"));
  }
  if (!status.ok()) return console.Fail(status);
  const std::string text = FileText(profile, flags.file, (*engine)->info());
  if (Status s = WriteText(flags.file, text); !s.ok()) return console.Fail(s);
  if (!flags.output.json) return console.WriteResult(Summary(profile, flags.file));
  return console.WriteResult(Dump({{"file", flags.file},
                                   {"layers", profile.layers},
                                   {"kv_heads", profile.kv_heads},
                                   {"sink", profile.sink},
                                   {"recent", profile.recent},
                                   {"answered", profile.answered},
                                   {"scores", profile.scores}}));
}

}  // namespace

int ProfileHeadsCommand(const Args& args, Console& console) {
  ProfileFlags flags;
  const auto app = NewApp(
      "profile-heads",
      "Finds the KV heads that retrieve: lets the exact model answer questions about facts hidden "
      "in prose, and measures for each head which share of its attention falls behind sink and "
      "recent tokens (--sink-tokens, --recent-tokens) while it writes a right answer; of a head's "
      "queries the one that looks furthest counts. Heads with low scores lose little as streaming "
      "heads. With --evict: how many tokens of texts that method gives each head, how uneven they "
      "are, and how alike from text to text.",
      kExamples);
  AddFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (Result<std::vector<eval::RetrievalTask>> kinds = eval::ParseRetrievalTasks(flags.kinds);
      !kinds.ok()) {
    return WrongUsage(*app, "--tasks: " + kinds.status().message(), console);
  }
  if (const std::string wrong = WrongTogether(flags); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  if (flags.texts.empty()) return ProfileScores(flags, console);
  return ProfileBudgets({flags.model, flags.output, flags.file, flags.texts, flags.context},
                        console);
}

}  // namespace headway::cli
