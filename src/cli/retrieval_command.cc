#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "cli/ask_documents.h"
#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "cli/read_list.h"
#include "engine/eval/tasks/generator.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway eval retrieval models/demo --lines 100 --length 4k --seed 1
  headway eval retrieval models/demo --tasks passkey,niah-single --lines 20 \
      --length 4k,16k --depths 0,25,50,75,100 --sparse --compare
  headway eval retrieval models/demo --tasks ruler --lines 70 --length 16k \
      --haystack book.txt --write lines.jsonl
  headway eval retrieval models/demo --jsonl lines.jsonl --json)";

struct RetrievalFlags {
  AskFlags ask;
  std::string jsonl;
  int64_t generate = 0;
  std::vector<int64_t> lengths;
  std::vector<double> depths;  // percent
  std::string tasks = "needle,passkey,place,variables,passage";
  std::string haystack;
  std::string questions;
  std::string write;
};

void AddRetrievalFlags(CLI::App& app, RetrievalFlags* flags) {
  AddModelFlags(app, &flags->ask.model);
  const std::string group = "Evaluation";
  AddText(app, group, "--jsonl", &flags->jsonl,
          "file of lines with `context`, `question`, `answer` (strings that must all appear) and "
          "perhaps `id`, as --write makes them; - is standard input")
      ->type_name("FILE");
  AddNumber(app, group, "--generate,--lines", &flags->generate, {1, 100'000},
            "make up this many lines of each length instead")
      ->type_name("COUNT");
  AddRead(app, group, "-c,--context,--ctx-size,--length",
          "with --generate: tokens of each prompt, nearly reached and never exceeded; several "
          "divided by commas, 64k and 1m for 65536 and 1048576",
          [flags](const std::string& text) { return ReadLengths(text, &flags->lengths); })
      ->type_name("LIST");
  AddText(app, group, "--tasks,--task,--kinds", &flags->tasks,
          "with --generate: tasks, taken in turn: " + eval::RetrievalTaskNames() +
              "; ruler is all of RULER's, from niah-single to frequent-words")
      ->type_name("LIST")
      ->default_str(flags->tasks);
  AddRead(app, More(group), "--depths",
          "with --generate: where passkey, niah-single and niah-multikey-full hide their fact, in "
          "percent of the document, taken in turn; without it, anywhere",
          [flags](const std::string& text) { return ReadPercents(text, &flags->depths); })
      ->type_name("LIST");
  AddText(app, More(group), "--haystack", &flags->haystack,
          "with --generate: text to hide facts in; without it, prose is made up")
      ->type_name("FILE");
  AddText(app, More(group), "--qa", &flags->questions,
          "with --generate and the task qa: questions and their paragraphs, JSON as SQuAD or "
          "HotpotQA have it")
      ->type_name("FILE");
  AddText(app, group, "--write", &flags->write,
          "with --generate: write the lines to this file and stop; --jsonl runs them")
      ->type_name("FILE");
  AddAskFlags(app, group, &flags->ask);
  app.get_option("--generate")->excludes(app.get_option("--jsonl"));
}

std::string CheckRetrievalFlags(const CLI::App& app, const RetrievalFlags& flags) {
  const bool generate = app.count("--generate") > 0;
  if (!generate && app.count("--jsonl") == 0) return "give either --jsonl FILE or --generate COUNT";
  if (generate && flags.lengths.empty()) return "--generate needs --context N";
  for (const char* name : {"--haystack", "--write", "--context", "--depths", "--qa"}) {
    if (!generate && app.count(name) > 0) return std::string(name) + " needs --generate";
  }
  const auto tasks = eval::ParseRetrievalTasks(flags.tasks);
  if (!tasks.ok()) return "--tasks: " + tasks.status().message();
  if (!flags.depths.empty() && std::ranges::none_of(*tasks, eval::HasDepth)) {
    return "--depths needs one of the tasks passkey, niah-single and niah-multikey-full";
  }
  const bool asks = std::ranges::count(*tasks, eval::RetrievalTask::kQuestions) > 0;
  if (asks != !flags.questions.empty()) {
    return asks ? "the task qa needs --qa FILE" : "--qa needs the task qa";
  }
  return CheckAskFlags(flags.ask);
}

Result<std::vector<eval::RetrievalLine>> ReadLines(const RetrievalFlags& flags, Console& console) {
  Result<std::string> text = ReadText(flags.jsonl, console);
  if (!text.ok()) return text.status();
  const std::string name = flags.jsonl == "-" ? "standard input" : flags.jsonl;
  std::set<std::string> others;
  Result<std::vector<eval::RetrievalLine>> lines = eval::ParseRetrievalLines(*text, name, &others);
  if (lines.ok()) SayKeysNotRead(others, name, console);
  return lines;
}

Result<std::vector<eval::RetrievalLine>> MakeLines(const RetrievalFlags& flags,
                                                   const Engine& engine, Console& console) {
  eval::RetrievalRequest request;
  request.count = flags.generate;
  request.lengths = flags.lengths;
  request.seed = flags.ask.sampling.options.seed;
  request.tasks = *eval::ParseRetrievalTasks(flags.tasks);
  for (const double percent : flags.depths) request.depths.push_back(percent / 100.0);
  if (!flags.haystack.empty()) {
    Result<std::string> haystack = ReadText(flags.haystack, console);
    if (!haystack.ok()) return haystack.status();
    request.haystack = std::move(*haystack);
  }
  if (!flags.questions.empty()) {
    Result<std::string> text = ReadText(flags.questions, console);
    if (!text.ok()) return text.status();
    Result<eval::Passages> passages = eval::ParsePassages(*text, flags.questions);
    if (!passages.ok()) return passages.status();
    request.passages = std::move(*passages);
  }
  return eval::GenerateRetrieval(request, eval::MeasureOf(engine, flags.ask.template_options));
}

Status WriteLines(const std::vector<eval::RetrievalLine>& lines, const std::string& path) {
  std::string text;
  for (const eval::RetrievalLine& line : lines) text += eval::RetrievalLineJson(line);
  return WriteText(path, text);
}

}  // namespace

int RetrievalCommand(const Args& args, Console& console) {
  RetrievalFlags flags;
  const auto app =
      NewApp("eval retrieval",
             "Asks about facts hidden in long documents and scores the answers: the share of the "
             "expected strings that appear. Each line goes through the chat template as document, "
             "blank line, question, and is decoded greedily unless sampling is asked for. Tasks "
             "are those of the demo model's card and RULER's, in our own words.",
             kExamples);
  AddRetrievalFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  ChooseAtAnyLength(&flags.ask.model.engine);
  if (std::string wrong = CheckRetrievalFlags(*app, flags); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  Result<std::unique_ptr<Engine>> engine =
      Engine::Open(flags.ask.model.model, flags.ask.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  const Result<std::vector<eval::RetrievalLine>> lines =
      flags.generate > 0 ? MakeLines(flags, **engine, console) : ReadLines(flags, console);
  if (!lines.ok()) return console.Fail(lines.status());
  if (!flags.write.empty()) {
    if (Status s = WriteLines(*lines, flags.write); !s.ok()) return console.Fail(s);
    console.Say(fmt::format("headway: wrote {} lines to {}", lines->size(), flags.write));
    return kExitDone;
  }
  Asked asked;
  asked.own_max_tokens = app->count("--max-tokens") > 0;
  for (const eval::RetrievalLine& line : *lines) asked.documents.push_back(DocumentOf(line));
  return AskAndPrint(flags.ask, asked, **engine, console);
}

}  // namespace headway::cli
