#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <utility>

#include "cli/ask_documents.h"
#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "engine/eval/files/eval_file.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway eval file models/demo --file hotpotqa.jsonl
  headway eval file models/demo --file longbench_v2.json --context 16384 --json
  headway eval file models/demo --file scbench_kv.jsonl --sparse --compare)";

struct FileFlags {
  AskFlags ask;
  std::string path;
  std::string format = "auto";
  std::string task;
  int64_t most = 0;
  int64_t context = 0;
};

void AddFileFlags(CLI::App& app, FileFlags* flags) {
  const std::string group = "Evaluation";
  AddModelFlags(app, &flags->ask.model);
  AddText(app, group, "-f,--file", &flags->path,
          "the questions: a JSON object a line, or a JSON list; - is standard input")
      ->required()
      ->type_name("FILE");
  std::vector<std::string> formats = {"auto"};
  for (std::string& name : eval::FileFormatNames()) formats.push_back(std::move(name));
  AddChoice(
      app, group, "--format", &flags->format, formats,
      fmt::format("{}; auto tells it by the keys of the first line", fmt::join(formats, ", ")));
  AddText(app, group, "--task", &flags->task,
          "the task of files that are named by it (infinitebench, scbench), where the name was "
          "changed");
  AddNumber(app, group, "--questions", &flags->most, {1, kMaxCount},
            "lines that are read; without it, all");
  AddNumber(app, group, "-c,--context,--ctx-size", &flags->context, {1, kMaxCount},
            "most tokens of a prompt: longer documents lose their middle; without it, none does");
  AddAskFlags(app, group, &flags->ask);
}

Result<eval::EvalFile> ReadFile(const FileFlags& flags, Console& console) {
  Result<std::string> text = ReadText(flags.path, console);
  if (!text.ok()) return text.status();
  eval::FileRequest request;
  request.path = flags.path == "-" ? "standard input" : flags.path;
  request.format = eval::FileFormatOf(flags.format);  // none of "auto"
  request.task = flags.task;
  request.most = flags.most;
  Result<eval::EvalFile> file = eval::ReadEvalFile(*text, request);
  if (!file.ok()) return file.status();
  SayKeysNotRead(file->others, request.path, console);
  for (const std::string& note : file->notes) console.Say("headway: note: " + note);
  return file;
}

// Cuts what is longer than --context, and says how many documents that were.
Status CutDocuments(const FileFlags& flags, const Engine& engine,
                    std::vector<eval::Document>* documents, Console& console) {
  if (flags.context == 0) return OkStatus();
  int64_t cut = 0;
  for (eval::Document& document : *documents) {
    const Result<bool> shorter =
        eval::CutMiddle(engine, flags.context, flags.ask.template_options, &document);
    if (!shorter.ok()) return shorter.status();
    cut += *shorter ? 1 : 0;
  }
  if (cut > 0) {
    console.Say(
        fmt::format("headway: note: {} of {} documents were longer than --context {}, and "
                    "lost their middle",
                    cut, documents->size(), flags.context));
  }
  return OkStatus();
}

}  // namespace

int FileCommand(const Args& args, Console& console) {
  FileFlags flags;
  const auto app = NewApp(
      "eval file",
      "Asks the questions of a file and scores the answers by its metrics: LongBench, "
      "LongBench v2, InfiniteBench and SCBench as they are published, and lines of your own. "
      "The prompts' words are Headway's, so scores are not those of the projects' own "
      "scripts; Chinese is compared by characters. Questions about one document share what "
      "is read of it.",
      kExamples);
  AddFileFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  ChooseAtAnyLength(&flags.ask.model.engine);
  if (std::string wrong = CheckAskFlags(flags.ask); !wrong.empty()) {
    return WrongUsage(*app, wrong, console);
  }
  Result<std::unique_ptr<Engine>> engine =
      Engine::Open(flags.ask.model.model, flags.ask.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  Result<eval::EvalFile> file = ReadFile(flags, console);
  if (!file.ok()) return console.Fail(file.status());
  if (Status s = CutDocuments(flags, **engine, &file->documents, console); !s.ok()) {
    return console.Fail(s);
  }
  Asked asked;
  asked.documents = std::move(file->documents);
  asked.grouping = file->grouping;
  asked.own_max_tokens = app->count("--max-tokens") > 0;
  return AskAndPrint(flags.ask, asked, **engine, console);
}

}  // namespace headway::cli
