#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <sstream>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/test_console.h"

namespace headway::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

struct AllFlags {
  ModelFlags model;
  SamplingFlags sampling;
  OutputFlags output;
};

std::optional<int> ParseAll(const Args& args, AllFlags* flags, TestConsole* test) {
  const auto app = NewApp("test", "A test.", "  headway test");
  AddModelFlags(*app, &flags->model);
  AddSamplingFlags(*app, &flags->sampling);
  AddOutputFlags(*app, &flags->output);
  return Parse(*app, args, test->console());
}

TEST(Flags, OfTheEngineAreRead) {
  AllFlags flags;
  TestConsole test;
  const Args args = {"models/demo",
                     "--kv-memory",
                     "8MiB",
                     "--host-memory=1.5GiB",
                     "--disk-memory",
                     "unlimited",
                     "--disk-path",
                     "/d",
                     "-b",
                     "512",
                     "--head-group",
                     "2",
                     "--segment",
                     "1024",
                     "--page",
                     "16",
                     "--placement",
                     "lru",
                     "--kv-encoding",
                     "int8",
                     "--session",
                     "s",
                     "-t",
                     "3",
                     "--cpu-isa",
                     "avx2",
                     "--trace",
                     "t.json"};
  const std::optional<int> status = ParseAll(args, &flags, &test);
  ASSERT_FALSE(status.has_value()) << test.err();
  const EngineOptions& engine = flags.model.engine;
  EXPECT_EQ(flags.model.model, "models/demo");
  EXPECT_EQ(engine.kv_memory, 8 * kMiB);
  EXPECT_EQ(engine.host_memory, 3 * kGiB / 2);
  EXPECT_EQ(engine.disk_memory, kNoLimit);
  EXPECT_EQ(engine.disk_path, "/d");
  EXPECT_EQ(engine.chunk, 512);
  EXPECT_EQ(engine.head_group, 2);
  EXPECT_EQ(engine.segment, 1024);
  EXPECT_EQ(engine.page_slots, 16);
  EXPECT_EQ(engine.placement, "lru");
  EXPECT_EQ(engine.kv_encoding, "int8");
  EXPECT_EQ(engine.session, "s");
  EXPECT_EQ(engine.threads, 3);
  EXPECT_EQ(engine.isa, "avx2");
  EXPECT_EQ(engine.trace, "t.json");
}

TEST(Flags, OfEvictionAreRead) {
  AllFlags flags;
  TestConsole test;
  const Args args = {"models/demo",
                     "--evict",
                     "ada-pyramidkv",
                     "--evict-budget",
                     "25%",
                     "--evict-window=64",
                     "--evict-pool",
                     "5:max",
                     "--evict-sink=0",
                     "--evict-safeguard=0",
                     "--evict-steepness",
                     "2.5",
                     "--evict-profile=p.json",
                     "--evict-room=128",
                     "--evicted=demote",
                     "--evicted-keys=256",
                     "--evicted-refresh",
                     "4"};
  const std::optional<int> status = ParseAll(args, &flags, &test);
  ASSERT_FALSE(status.has_value()) << test.err();
  const EngineOptions& engine = flags.model.engine;
  EXPECT_EQ(engine.evict, "ada-pyramidkv");
  EXPECT_EQ(engine.evict_budget, "25%");
  EXPECT_EQ(engine.evict_window, 64);
  EXPECT_EQ(engine.evict_pool, "5:max");
  EXPECT_EQ(engine.evict_sink, 0);
  EXPECT_EQ(engine.evict_safeguard, 0.0);
  EXPECT_EQ(engine.evict_steepness, 2.5);
  EXPECT_EQ(engine.evict_profile, "p.json");
  EXPECT_EQ(engine.evict_room, 128);
  EXPECT_EQ(engine.evicted, "demote");
  EXPECT_EQ(engine.evicted_keys, 256);
  EXPECT_EQ(engine.evicted_refresh, 4);
  for (const char* wrong :
       {"--evict=cake", "--evict-window=0", "--evict-window=257", "--evict-sink=-1",
        "--evict-safeguard=1.5", "--evict-steepness=0.5", "--evict-room=0", "--evicted=keep",
        "--evicted-keys=0", "--evicted-refresh=0"}) {
    AllFlags none;
    TestConsole said;
    EXPECT_EQ(ParseAll({"models/demo", wrong}, &none, &said), kExitUsage) << wrong;
    const std::string flag = wrong;
    EXPECT_THAT(said.err(), HasSubstr(flag.substr(0, flag.find('=')))) << wrong;
  }
}

TEST(Flags, OfSamplingAndOutputAreRead) {
  AllFlags flags;
  TestConsole test;
  const Args args = {"models/demo",
                     "--temperature",
                     "0.7",
                     "--top-k",
                     "40",
                     "--top-p",
                     "0.9",
                     "--min-p",
                     "0.05",
                     "--repetition-penalty",
                     "1.1",
                     "--presence-penalty",
                     "-0.5",
                     "--frequency-penalty",
                     "0.25",
                     "--seed",
                     "18446744073709551615",
                     "--stop",
                     "a b",
                     "--stop",
                     "",
                     "--ignore-eos",
                     "--json",
                     "--no-progress"};
  const std::optional<int> status = ParseAll(args, &flags, &test);
  ASSERT_FALSE(status.has_value()) << test.err();
  const SamplingOptions& sampling = flags.sampling.options;
  EXPECT_EQ(sampling.temperature, 0.7f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.min_p, 0.05f);
  EXPECT_EQ(sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(sampling.presence_penalty, -0.5);
  EXPECT_EQ(sampling.frequency_penalty, 0.25);
  EXPECT_EQ(sampling.seed, UINT64_MAX);
  EXPECT_EQ(flags.sampling.stop, (std::vector<std::string>{"a b", ""}));
  EXPECT_TRUE(flags.sampling.ignore_eos);
  EXPECT_TRUE(flags.output.json);
  EXPECT_TRUE(flags.output.no_progress);
}

TEST(Flags, LeaveTheDefaultsOfTheEngine) {
  AllFlags flags;
  TestConsole test;
  ASSERT_FALSE(ParseAll({"-m", "m"}, &flags, &test).has_value()) << test.err();
  EXPECT_EQ(flags.model.model, "m");
  EXPECT_EQ(flags.model.engine.kv_memory, kNoLimit);
  EXPECT_EQ(flags.model.engine.disk_memory, 0);
  EXPECT_EQ(flags.model.engine.page_slots, 0);
  EXPECT_EQ(flags.sampling.options.temperature, 0.0);
  EXPECT_TRUE(flags.sampling.stop.empty());
  EXPECT_FALSE(flags.output.json);
}

TEST(Flags, ComeFromTheEnvironment) {
  const Variable model("HEADWAY_MODEL", "m"), memory("HEADWAY_KV_MEMORY", "2MiB"),
      temperature("HEADWAY_TEMP", "0.5"), stop("HEADWAY_STOP", "end"), json("HEADWAY_JSON", "1"),
      threads("HEADWAY_THREADS", "2");
  AllFlags flags;
  TestConsole test;
  ASSERT_FALSE(ParseAll({"--threads", "1"}, &flags, &test).has_value()) << test.err();
  EXPECT_EQ(flags.model.model, "m");
  EXPECT_EQ(flags.model.engine.kv_memory, 2 * kMiB);
  EXPECT_EQ(flags.sampling.options.temperature, 0.5);
  EXPECT_EQ(flags.sampling.stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(flags.output.json);
  EXPECT_EQ(flags.model.engine.threads, 1) << "the command line wins";
}

TEST(Flags, APolicyMayStandForOthers) {
  const auto read = [](Args args) {
    AllFlags flags;
    TestConsole test;
    args.insert(args.begin(), "m");
    EXPECT_FALSE(ParseAll(args, &flags, &test).has_value()) << test.err();
    return flags.model.engine;
  };
  EXPECT_EQ(read({"--policy", "kvpr"}).policy, "kvpr");
  EngineOptions engine = read({"--sparse", "--policy", "infinitehip"});
  EXPECT_EQ(engine.policy, "auto");
  EXPECT_EQ(engine.selector, "infinitehip");
  EXPECT_EQ(engine.hip_refresh, "16,8");
  EXPECT_EQ(engine.sparse_refresh, 4);
  EXPECT_TRUE(engine.sparse_prefill);
  EXPECT_EQ(engine.hip_positions, "published");
  EXPECT_EQ(read({"--policy", "infinitehip", "--hip-positions", "one"}).hip_positions, "one");
  engine = read({"--policy", "infinitehip-fast"});
  EXPECT_EQ(engine.selector, "infinitehip");
  EXPECT_EQ(engine.hip_refresh, "32,16");
  EXPECT_EQ(engine.sparse_refresh, 8);
  engine = read({"--policy", "infinitehip-flash", "--sparse-refresh", "12"});
  EXPECT_EQ(engine.policy, "auto");
  EXPECT_EQ(engine.hip_refresh, "96,24");
  EXPECT_EQ(engine.sparse_refresh, 12);
  EXPECT_TRUE(engine.sparse_prefill);
  engine = read({"--sparse-refresh", "8", "--hip-refresh", "32,16", "--policy", "infinitehip",
                 "--sparse-prefill=false"});
  EXPECT_EQ(engine.hip_refresh, "32,16");
  EXPECT_EQ(engine.sparse_refresh, 8);
  EXPECT_FALSE(engine.sparse_prefill);
}

TEST(Flags, WrongOnesAreNamedInOneLine) {
  const std::pair<Args, std::string> cases[] = {
      {{}, "MODEL is missing"},
      {{"m", "--kv-memory", "8 apples"}, "--kv-memory: '8 apples' is not a size"},
      {{"m", "--kv-memory", "-1"}, "--kv-memory"},
      {{"m", "--threads", "two"}, "--threads: 'two' is not a whole number from 0 to 1024"},
      {{"m", "--threads", "-1"}, "--threads"},
      {{"m", "--policy", "random"}, "--policy: random not in {auto,headinfer,layerwise"},
      {{"m", "--host-attention", "1.5"},
       "--host-attention: '1.5' is none of off, auto and a share from 0 to 1"},
      {{"m", "--host-attention", "-1"}, "--host-attention: '-1' is none of off"},
      {{"m", "--host-attention", "nan"}, "--host-attention: 'nan' is none of off"},
      {{"m", "--recompute", "1.5"},
       "--recompute: '1.5' is none of off, auto and a share from 0 to 1"},
      {{"m", "--chunk", "automatic"}, "--chunk: 'automatic' is not a whole number"},
      {{"m", "--placement", "anywhere"}, "--placement: anywhere not in {auto,first-fit,lru,recent"},
      {{"m", "--top-p", "1.5"}, "--top-p"},
      {{"m", "--temp", "nan"}, "--temp"},
      {{"m", "--no-such-flag"}, "there is no flag --no-such-flag"},
      {{"m", "--kv-memry", "8MiB"}, "there is no flag --kv-memry"},
      {{"m", "another"}, "'another' belongs to no flag"},
      {{"m", "--chunk", "1", "-b", "2"}, "--chunk is given more than once"},
      {{"m", "--model", "n"}, "--model is given more than once"},
      {{"m", "--seed", "-1"}, "--seed"},
      {{"m", "--chunk"}, "--chunk"},
  };
  for (const auto& [args, message] : cases) {
    AllFlags flags;
    TestConsole test;
    EXPECT_EQ(ParseAll(args, &flags, &test), kExitUsage) << message;
    const std::string err = test.err();
    EXPECT_THAT(err, HasSubstr(message));
    EXPECT_THAT(err, StartsWith("headway: error: "));
    EXPECT_THAT(err, EndsWith("; see headway test --help\n"));
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
    EXPECT_EQ(test.out(), "");
  }
  const Variable memory("HEADWAY_KV_MEMORY", "much");
  AllFlags flags;
  TestConsole test;
  EXPECT_EQ(ParseAll({"m"}, &flags, &test), kExitUsage);
  EXPECT_THAT(test.err(), HasSubstr("HEADWAY_KV_MEMORY: 'much' is not a size"));
  // Not where the command line says it.
  TestConsole given;
  EXPECT_EQ(ParseAll({"m", "--kv-memory", "more"}, &flags, &given), kExitUsage);
  EXPECT_THAT(given.err(), HasSubstr("--kv-memory: 'more' is not a size"));
}

TEST(Flags, EveryNameIsAVariable) {
  const Variable temperature("HEADWAY_TEMPERATURE", "0.5"), chunk("HEADWAY_BATCH_SIZE", "64");
  AllFlags flags;
  TestConsole test;
  EXPECT_EQ(ParseAll({"m"}, &flags, &test), std::nullopt) << test.err();
  EXPECT_EQ(flags.sampling.options.temperature, 0.5f);
  EXPECT_EQ(flags.model.engine.chunk, 64);
}

TEST(Flags, VariablesOfSwitchesAreBooleans) {
  for (const char* text : {"true", "1", "YES", "on", "false", "0", "No", "OFF", ""}) {
    const Variable json("HEADWAY_JSON", text);
    AllFlags flags;
    TestConsole test;
    EXPECT_EQ(ParseAll({"m"}, &flags, &test), std::nullopt) << text << test.err();
    const std::string yes = "true 1 YES on";
    EXPECT_EQ(flags.output.json, *text != '\0' && yes.find(text) != std::string::npos) << text;
  }
  for (const char* text : {"perhaps", "2", "-1", "+", "t", "enable", " 1", "truee"}) {
    const Variable json("HEADWAY_JSON", text);
    AllFlags flags;
    TestConsole test;
    EXPECT_EQ(ParseAll({"m"}, &flags, &test), kExitUsage) << text;
    EXPECT_EQ(test.err(), std::string("headway: error: HEADWAY_JSON: '") + text +
                              "' is none of true, false, 1, 0, yes, no, on and off; see headway "
                              "test --help\n");
    // Not where the command line has it.
    EXPECT_EQ(ParseAll({"m", "--json"}, &flags, &test), std::nullopt) << text;
  }
}

struct Exclusive {
  std::string model, text, file;
  bool fast = false;
};

// Of `args`; what was wrong is in test->err().
std::optional<int> ParseExclusive(const Args& args, Exclusive* flags, TestConsole* test) {
  const auto app = NewApp("test", "A test.", "");
  AddText(*app, "Group", "MODEL,-m,--model", &flags->model, "a model");
  AddText(*app, "Group", "-t,--text", &flags->text, "a text");
  AddText(*app, "Group", "--text-file", &flags->file, "a file")
      ->excludes(app->get_option("--text"))
      ->excludes(app->get_option("--model"));
  AddSwitch(*app, "Group", "--fast", &flags->fast, "a switch")
      ->excludes(app->get_option("--text-file"));
  return Parse(*app, args, test->console());
}

TEST(Flags, TheCommandLineBeatsVariablesThatItExcludes) {
  TestConsole test;
  {
    const Variable text("HEADWAY_TEXT", "variable"), model("HEADWAY_MODEL", "variable");
    Exclusive flags;
    EXPECT_EQ(ParseExclusive({"--text-file", "f"}, &flags, &test), std::nullopt) << test.err();
    EXPECT_EQ(flags.file, "f");
    EXPECT_EQ(flags.text + flags.model, "");
  }
  const Variable file("HEADWAY_TEXT_FILE", "variable");
  for (const Args& args : {Args{"-tt"}, Args{"-t", "t"}, Args{"--text=t"}, Args{"m"}}) {
    Exclusive flags;
    EXPECT_EQ(ParseExclusive(args, &flags, &test), std::nullopt) << test.err();
    EXPECT_EQ(flags.file, "");
  }
  // A value that looks like a flag is none.
  Exclusive flags;
  EXPECT_EQ(ParseExclusive({"--text-file", "--text"}, &flags, &test), std::nullopt) << test.err();
  EXPECT_EQ(flags.file, "--text");
  flags = Exclusive();
  // A switch that is off in its variable excludes nothing.
  const Variable fast("HEADWAY_FAST", "off");
  EXPECT_EQ(ParseExclusive({}, &flags, &test), std::nullopt) << test.err();
  EXPECT_EQ(flags.file, "variable");
  EXPECT_FALSE(flags.fast);
}

TEST(Flags, ExclusiveOnesAreNamed) {
  Exclusive flags;
  {
    TestConsole test;
    EXPECT_EQ(ParseExclusive({"--text", "a", "--text-file", "b"}, &flags, &test), kExitUsage);
    EXPECT_THAT(test.err(),
                StartsWith("headway: error: --text and --text-file exclude each other; see"));
  }
  TestConsole test;
  const Variable text("HEADWAY_TEXT", "a"), file("HEADWAY_TEXT_FILE", "b");
  EXPECT_EQ(ParseExclusive({}, &flags, &test), kExitUsage);
  EXPECT_THAT(
      test.err(),
      StartsWith("headway: error: HEADWAY_TEXT and HEADWAY_TEXT_FILE exclude each other; see"));
}

const Args kCommands[] = {{"run"},
                          {"chat"},
                          {"plan"},
                          {"probe"},
                          {"inspect"},
                          {"profile-heads"},
                          {"eval", "perplexity"},
                          {"eval", "divergence"},
                          {"eval", "recall"},
                          {"eval", "retrieval"},
                          {"eval", "file"},
                          {"bench", "prefill"},
                          {"bench", "decode"}};

std::string HelpOf(Args command, const std::string& flag) {
  TestConsole test;
  command.push_back(flag);
  EXPECT_EQ(Main(command, test.console()), kExitDone) << test.err();
  return test.out();
}

// Lines that begin with a flag.
int FlagsIn(const std::string& help) {
  int count = 0;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) count += line.starts_with("  -") ? 1 : 0;
  return count;
}

TEST(Flags, HelpSaysAllAndFits) {
  for (const Args& command : kCommands) {
    for (const char* flag : {"--help", "--help-all"}) {
      const std::string help = HelpOf(command, flag);
      EXPECT_THAT(help, HasSubstr("Usage: headway " + command[0]));
      EXPECT_THAT(help, HasSubstr("Examples:\n"));
      std::istringstream lines(help);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    }
    if (command[0] == "inspect" || command[0] == "probe") continue;
    EXPECT_THAT(HelpOf(command, "--help"), HasSubstr("--kv-memory SIZE"));
    EXPECT_THAT(HelpOf(command, "--help-all"), HasSubstr("[HEADWAY_KV_MEMORY]"));
    EXPECT_THAT(HelpOf(command, "--help-all"), HasSubstr("--head-group N"));
  }
}

TEST(Flags, HelpHasThoseOfAFirstDay) {
  for (const Args& command : kCommands) {
    const std::string help = HelpOf(command, "-h"), all = HelpOf(command, "--help-all");
    const int left_out = FlagsIn(all) - FlagsIn(help);
    EXPECT_LE(FlagsIn(help), 18) << help;
    EXPECT_GE(left_out, 0);
    if (left_out == 0) continue;
    EXPECT_THAT(help, EndsWith("--help-all lists " + std::to_string(left_out) +
                               " more flags, and all variables.\n"));
    EXPECT_THAT(help, Not(HasSubstr("--head-group")));
    EXPECT_THAT(help, Not(HasSubstr("[HEADWAY_")));
  }
  EXPECT_GT(FlagsIn(HelpOf({"run"}, "--help-all")), 40);
}

TEST(Commands, UnknownOnesAreWrongUsage) {
  for (const Args& args : {Args{}, Args{"fly"}, Args{"eval"}, Args{"eval", "taste"}, Args{"bench"},
                           Args{"--flag"}, Args{""}}) {
    TestConsole test;
    EXPECT_EQ(Main(args, test.console()), kExitUsage);
    EXPECT_THAT(test.err(), HasSubstr("headway: error: "));
    EXPECT_THAT(test.err(), HasSubstr("see headway --help\n"));
  }
  for (const Args& args : {Args{"--help"}, Args{"-h"}, Args{"help"}, Args{"eval", "--help"}}) {
    TestConsole test;
    EXPECT_EQ(Main(args, test.console()), kExitDone);
    EXPECT_THAT(test.out(), HasSubstr("eval retrieval"));
  }
  TestConsole eval;
  EXPECT_EQ(Main({"eval", "--help"}, eval.console()), kExitDone);
  EXPECT_THAT(eval.out(), HasSubstr("Usage: headway eval WHAT MODEL"));
  for (const char* what : {"perplexity", "divergence", "recall", "retrieval", "file"}) {
    EXPECT_THAT(eval.out(), HasSubstr(std::string("\n  ") + what + " "));
  }
  TestConsole test;
  EXPECT_EQ(Main({"--version"}, test.console()), kExitDone);
  EXPECT_THAT(test.out(), StartsWith("headway "));
}

TEST(Workloads, AreParsed) {
  const auto one = ParseWorkloads("8192", 1);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].lengths, std::vector<int64_t>{8192});
  const auto several = ParseWorkloads("16,4+2,8", 2);
  ASSERT_TRUE(several.ok());
  ASSERT_EQ(several->size(), 3u);
  EXPECT_EQ((*several)[0].lengths, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ((*several)[1].lengths, (std::vector<int64_t>{4, 2, 4, 2}));
  for (const char* bad : {"", ",", "8,", "8+", "-1", "0", "8k", "9999999999999999999", "1 2"}) {
    EXPECT_FALSE(ParseWorkloads(bad, 1).ok()) << bad;
  }
  EXPECT_FALSE(ParseWorkloads("1+1", 4096).ok());
}

TEST(Limits, AreFormatted) {
  EXPECT_EQ(FormatLimit(kNoLimit), "unlimited");
  EXPECT_EQ(FormatLimit(8 * kMiB), "8.0 MiB");
  EXPECT_EQ(FormatLimit(0), "0 B");
}

}  // namespace
}  // namespace headway::cli
