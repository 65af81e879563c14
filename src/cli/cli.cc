#include <signal.h>

#include <memory>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/option_flags.h"
#include "headway/processes.h"

#ifndef HEADWAY_VERSION
#error "the build defines HEADWAY_VERSION"
#endif

namespace headway::cli {
namespace {

constexpr const char* kHelp =
    R"(Usage: headway COMMAND [ARGUMENTS]

Runs language models over contexts whose KV cache does not fit in fast memory.

Commands:
  run                 answer or continue a prompt
  chat                talk, with the cache kept between turns
  plan                what a context would take, how fast it would be, and why
  probe               measures the machine, for plans to come
  inspect             what a model folder or a session file holds
  eval perplexity     perplexity of a text
  eval divergence     how far decode is from exact, by an approximation
  eval recall         how much of the attention selectors find
  eval retrieval      questions about facts hidden in long documents
  eval file           questions of LongBench, InfiniteBench, SCBench and the like
  profile-heads       which heads retrieve, for --head-pattern, and what --evict
                      gives each head, for --evict-profile
  bench prefill       speed of reading prompts, beside what the machine can do
  bench decode        speed of generating, likewise

headway COMMAND --help says more about each. headway --version prints the version.

Example:
  headway run models/demo --file book.txt --ask "Who kept the ledger?" \
      --kv-memory 8MiB
)";

constexpr const char* kEvalHelp =
    R"(Usage: headway eval WHAT MODEL [ARGUMENTS]

How well a model does, exactly and with approximations.

What:
  perplexity    perplexity of a text over windows; --compare has KL divergence
                from exact beside it
  divergence    KL divergence of decode steps from exact ones, token by token:
                what --sparse, --evict, --hgca, --kv-encoding and --head-pattern cost
  recall        the share of far attention that the blocks hold which selectors
                list, beside an oracle's, by layer and head
  retrieval     questions about generated documents of any length: passkey at
                chosen depths, RULER's needles (single, multi-key, multi-value,
                multi-query), variable tracking, common and frequent words, QA
                over given texts, and the tasks of the demo model
  file          questions of files on disk: LongBench v1 and v2, InfiniteBench,
                SCBench, lines of your own

retrieval and file take --compare, which runs the exact model beside the
approximation and prints both scores. All take --json.

Examples:
  headway eval divergence models/demo --file book.txt --context 8192 --sparse
  headway eval retrieval models/demo --tasks ruler --lines 70 --length 4k,16k
  headway eval file models/demo --file hotpotqa.jsonl

headway eval WHAT --help says more about each.
)";

struct Command {
  const char* name;
  const char* second;  // word of a two-word name, or null
  int (*run)(const Args& args, Console& console);
};

constexpr Command kCommands[] = {
    {"run", nullptr, RunCommand},
    {"chat", nullptr, ChatCommand},
    {"plan", nullptr, PlanCommand},
    {"probe", nullptr, ProbeCommand},
    {"inspect", nullptr, InspectCommand},
    {"eval", "perplexity", PerplexityCommand},
    {"eval", "divergence", DivergenceCommand},
    {"eval", "recall", RecallCommand},
    {"eval", "retrieval", RetrievalCommand},
    {"eval", "file", FileCommand},
    {"profile-heads", nullptr, ProfileHeadsCommand},
    {"bench", "prefill", BenchPrefillCommand},
    {"bench", "decode", BenchDecodeCommand},
};

bool IsHelp(const std::string& arg) { return arg == "--help" || arg == "-h" || arg == "help"; }

// What is wrong with a command line that names no command.
int UnknownCommand(const Args& args, Console& console) {
  std::string words;
  for (const Command& command : kCommands) {
    if (command.second != nullptr && args[0] == command.name) {
      words += std::string(words.empty() ? "" : " or ") + command.second;
    }
  }
  if (words.empty()) {
    console.Say("headway: error: there is no command '" + args[0] + "'; see headway --help");
    return kExitUsage;
  }
  if (args.size() > 1 && IsHelp(args[1])) {
    return console.WriteResult(args[0] == "eval" ? kEvalHelp : kHelp);
  }
  console.Say("headway: error: say headway " + args[0] + " " + words + "; see headway --help");
  return kExitUsage;
}

int Dispatch(const Args& args, Console& console) {
  if (args.empty()) {
    console.Say("headway: error: no command given; see headway --help");
    return kExitUsage;
  }
  if (IsHelp(args[0])) return console.WriteResult(kHelp);
  if (args[0] == "--version") {
    return console.WriteResult("headway " HEADWAY_VERSION "\n");
  }
  for (const Command& command : kCommands) {
    if (args[0] != command.name) continue;
    if (command.second == nullptr) return command.run(Args(args.begin() + 1, args.end()), console);
    if (args.size() > 1 && args[1] == command.second) {
      return command.run(Args(args.begin() + 2, args.end()), console);
    }
  }
  return UnknownCommand(args, console);
}

}  // namespace

int Main(const Args& args, Console& console) {
  const auto say = [&console](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) console.Warn(line);
    if (level == LogLevel::kError) console.Say("headway: error: " + std::string(line));
  };
  SetLogSink(say, FlagOf);
  const int status = Dispatch(args, console);
  SetLogSink({});
  return status;
}

int MainOfProcess(const Args& args, Console& console) {
  // A reader of ours that went away ends the run cleanly, its session kept: writing fails instead.
  // So does a file that may not grow further (ulimit -f).
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  std::string same = HEADWAY_VERSION;
  for (const std::string& arg : args) same += '\0' + arg;
  const Result<std::unique_ptr<Processes>> joined =
      Processes::Join(same, "another command line or version of headway");
  // Only the first of them speaks, and only its exit status says how all went: a launcher ends all
  // at once behind the first status that is not 0.
  const bool first = Processes::LaunchedRank() == 0;
  if (!joined.ok()) return first ? console.Fail(joined.status()) : kExitDone;
  if (first) return Main(args, console);
  SetLogSink([](LogLevel, std::string_view) {});
  (void)(*joined)->Serve();  // the first one says what ended it
  return kExitDone;
}

}  // namespace headway::cli
