// The program as its users run it: the built binary on the demo model.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "support/cli.h"

namespace headway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
TEST_F(Cli, RunPrintsTheTextAndASummary) {
  const Outcome outcome = Run({"run", kModel, "-p", "The old man looked at", "-n", "12"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(outcome.out.size(), 12u);
  EXPECT_THAT(outcome.err, HasSubstr("prefill"));
  EXPECT_THAT(outcome.err, HasSubstr("tok/s"));
  EXPECT_THAT(outcome.err, HasSubstr("limit unlimited"));
  EXPECT_THAT(outcome.err, HasSubstr("ended by: length"));

  const Json json = RunJson({"run", kModel, "-p", "The old man looked at", "-n", "12"});
  EXPECT_EQ(json["text"].get<std::string>() + "\n", outcome.out);
  EXPECT_EQ(json["tokens"].size(), 12u);
  EXPECT_EQ(json["finish"], "length");
  EXPECT_EQ(json["timings"]["decode_tokens"], 11);
  EXPECT_GT(json["prompt_tokens"], 4);
  EXPECT_GT(json["kv_bytes"]["device"], 0);  // of the open page
  EXPECT_TRUE(json["plan"]["memory"].is_array());

  // The same prompt by other ways.
  for (const Args& args : {Args{"run", kModel, "-n", "12"},
                           Args{"run", "--model", kModel, "--file", "-", "--max-tokens", "12"}}) {
    EXPECT_EQ(RunJson(args, "The old man looked at\n")["tokens"], json["tokens"]);
  }
}

TEST_F(Cli, ManyPromptsGiveTheirTextsInOrder) {
  WriteFile(
      dir_.File("prompts"),
      "\"Once upon a time\"\n{\"prompt\": \"The old man looked at the sea and\", \"id\": \"x\", "
      "\"max_tokens\": 3}\n\n\"She said\"\n");
  const Outcome outcome =
      Run({"run", kModel, "--prompts", dir_.File("prompts"), "--parallel", "2", "-n", "8"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("3, 2 at a time"));
  std::vector<Json> lines;
  std::istringstream in(outcome.out);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  const std::vector<std::string> prompts = {"Once upon a time", "The old man looked at the sea and",
                                            "She said"};
  for (size_t i = 0; i < 3; ++i) {
    const Json alone = RunJson({"run", kModel, "-p", prompts[i], "-n", i == 1 ? "3" : "8"});
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["tokens"], alone["tokens"]) << i;
    EXPECT_EQ(lines[i]["text"], alone["text"]) << i;
    EXPECT_EQ(lines[i]["finish"], alone["finish"]) << i;
  }
  EXPECT_EQ(lines[1]["id"], "x");
  // Without --parallel all that the budget holds.
  Args args = {"run", kModel, "--prompts", dir_.File("prompts"), "-n", "8", "-c", "1000"};
  const Outcome together = Run(args);
  EXPECT_THAT(together.err, HasSubstr("3, 3 at a time"));
  EXPECT_EQ(together.out, outcome.out);
  args.insert(args.end(), {"--kv-memory", "20MiB", "--host-memory", "0"});
  const Outcome fewer = Run(args);
  EXPECT_THAT(fewer.err, HasSubstr("3, 2 at a time"));
  EXPECT_EQ(fewer.out, outcome.out);
  ExpectFailure({"run", kModel, "--prompts", "-"}, 1, "standard input, line 2", "\"a\"\n{}\n");
  ExpectFailure({"run", kModel, "--prompts", "-", "-p", "a"}, 2, "--prompt and --prompts");
}

TEST_F(Cli, WeightsStreamWhereLayersDoNotStay) {
  const Args run = {"run", kModel, "-p", "Once upon a time", "-n", "8"};
  const Json all = RunJson(run);
  Args some = run;
  some.insert(some.end(), {"--gpu-layers", "2"});
  const Json streamed = RunJson(some);
  EXPECT_EQ(streamed["tokens"], all["tokens"]);
  EXPECT_EQ(streamed["plan"]["weight_layers"], 2);
  EXPECT_GT(streamed["plan"]["streamed_weight_bytes"], 0);
  EXPECT_EQ(streamed["plan"]["disk_layers"], Json::array());
  // What host memory does not hold either is read from the model's file.
  Args on_disk = some;
  on_disk.insert(on_disk.end(), {"--host-memory", "16MiB"});
  const Json read = RunJson(on_disk);
  EXPECT_EQ(read["tokens"], all["tokens"]);
  EXPECT_EQ(read["plan"]["disk_layers"], (Json{2, 3, 6, 7}));
  EXPECT_EQ(read["plan"]["streamed_weight_bytes"], streamed["plan"]["streamed_weight_bytes"]);
  some.insert(some.end(), {"--host-memory", "1MiB"});
  ExpectFailure(some, 1, "--host-memory");
  ExpectFailure({"run", kModel, "-p", "a", "--gpu-layers", "few"}, 2, "--gpu-layers: 'few'");
  // A GPU that is not here: what does not fit it streams.
  const Json plan = RunJson({"plan", "--random-weights",
                             std::string(HEADWAY_SOURCE_DIR) + "/bench/shapes/opt-30b.json",
                             "--machine", "rtx-4090", "-c", "1024"});
  EXPECT_LT(plan["weight_layers"], 48);
  EXPECT_GT(plan["weight_layers"], 0);
  EXPECT_LT(plan["smallest"]["gpu_memory"], int64_t{8} << 30);
}

TEST_F(Cli, TakesTheMemoryThatThePlanPrints) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  const Args disk = {"--kv-memory", "8MiB", "--host-memory", "16MiB", "--disk-memory", "1GiB"};
  Args lru = disk;
  lru.insert(lru.end(), {"--placement", "lru"});
  for (const int tokens : {1500, 6000, 12'000}) {
    const Json line = Document(tokens);
    WriteFile(dir_.File("document"), line["context"]);
    for (const Args& limits : {Args{}, Args{"--kv-memory", "8MiB"}, disk, lru}) {
      if (tokens != 6000 && limits != lru) continue;
      Args args = {"run", kModel, "--file", dir_.File("document"), "--ask",     line["question"],
                   "-n",  "4",    "--json", "--no-progress",       "--threads", "2"};
      args.insert(args.end(), limits.begin(), limits.end());
      const Outcome outcome = Run(args);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const auto planned = outcome.json()["plan"]["memory_bytes"].get<double>();
      const auto peak = static_cast<double>(outcome.peak_bytes);
      EXPECT_GE(peak, 0.9 * planned) << tokens << " tokens";
      EXPECT_LE(peak, planned) << tokens << " tokens, " << limits.size() << " arguments of limits";
    }
  }
}

TEST_F(Cli, SamplingFollowsTheSeed) {
  const Args args = {"run", kModel, "-p", "She", "-n", "16", "--temp", "1.5", "--seed"};
  const auto tokens = [&](const char* seed) {
    Args seeded = args;
    seeded.push_back(seed);
    return RunJson(seeded)["tokens"];
  };
  EXPECT_EQ(tokens("1"), tokens("1"));
  EXPECT_NE(tokens("1"), tokens("2"));
}

TEST_F(Cli, StopsAtText) {
  const Json all = RunJson({"run", kModel, "-p", "Once upon a time", "-n", "40"});
  const std::string text = all["text"];
  const size_t blank = text.find(' ', text.size() / 2);
  ASSERT_NE(blank, std::string::npos);
  const std::string stop = text.substr(blank, 6);
  const Json stopped =
      RunJson({"run", kModel, "-p", "Once upon a time", "-n", "40", "--stop", stop});
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish"], "stop");
}

TEST_F(Cli, AnswersAboutADocumentUnderAnyBudget) {
  const Json line = Document(1400);
  WriteFile(dir_.File("doc.txt"), line["context"].get<std::string>() + "\n");
  const Args ask = {"run",   kModel,           "--file", dir_.File("doc.txt"),
                    "--ask", line["question"], "-n",     "24"};
  const Json resident = RunJson(ask);
  EXPECT_THAT(resident["text"].get<std::string>(), HasSubstr(line["answer"][0].get<std::string>()));
  EXPECT_EQ(resident["finish"], "eos");

  Args limited = ask;
  for (const char* arg :
       {"--kv-memory", "2MiB", "--host-memory", "4MiB", "--disk-memory", "64MiB", "--disk-path"}) {
    limited.push_back(arg);
  }
  limited.push_back(dir_.path());
  limited.push_back("--compare-resident");
  const Json streamed = RunJson(limited);
  EXPECT_EQ(streamed["tokens"], resident["tokens"]);
  EXPECT_EQ(streamed["equals_resident"], true);
  EXPECT_LE(streamed["kv_bytes"]["device"], 2 << 20);
  EXPECT_LE(streamed["kv_bytes"]["host"], 4 << 20);
  EXPECT_GT(streamed["kv_bytes"]["disk"], 0);

  const Outcome text = Run(limited);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("tokens are equal"));
  EXPECT_THAT(text.err, HasSubstr("chunk 256 and segment 1024 as before"));
  // That is not how an all-resident run is cut, which the run says, and with what it would be.
  EXPECT_EQ(resident["plan"]["cut_notice"], "");
  EXPECT_THAT(text.err, HasSubstr("headway: note: under these limits the cache is cut into chunks "
                                  "of 256 tokens instead of 1024"));
  const std::string notice = streamed["plan"]["cut_notice"];
  const size_t offer = notice.find("--kv-memory ");
  ASSERT_NE(offer, std::string::npos) << notice;
  const size_t value = offer + 12;
  Args same = ask;
  same.insert(same.end(),
              {"--kv-memory", notice.substr(value, notice.find(' ', value) - value),
               "--host-memory", "4MiB", "--disk-memory", "64MiB", "--disk-path", dir_.path()});
  const Json kept = RunJson(same);
  EXPECT_EQ(kept["plan"]["cut_notice"], "");
  EXPECT_EQ(kept["plan"]["chunk"], 1024);
  EXPECT_EQ(kept["tokens"], resident["tokens"]);

  // And with no tier between the device and the disk.
  limited[static_cast<size_t>(std::find(limited.begin(), limited.end(), "4MiB") -
                              limited.begin())] = "0";
  const Json from_disk = RunJson(limited);
  EXPECT_EQ(from_disk["equals_resident"], true);
  EXPECT_EQ(from_disk["kv_bytes"]["host"], 0);
  EXPECT_GT(from_disk["kv_bytes"]["disk"], 0);
}

TEST_F(Cli, BadInputIsOneLineAndNeverACrash) {
  const std::string prompt = "-pHello";
  ExpectFailure({"run", kModel, prompt, "--no-such-flag"}, 2, "--no-such-flag");
  ExpectFailure({"run", prompt}, 2, "MODEL is missing");
  ExpectFailure({"run", kModel, prompt, "-n", "many"}, 2, "--n-predict: 'many'");
  ExpectFailure({"run", kModel, prompt, "--kv-memory", "8 bananas"}, 2, "--kv-memory: '8 bananas'");
  ExpectFailure({"fly"}, 2, "no command 'fly'");
  ExpectFailure({"run", dir_.File("nowhere"), prompt}, 1, "nowhere");
  ExpectFailure({"run", kModel, "-p", ""}, 1, "the prompt is empty");
  ExpectFailure({"run", kModel}, 1, "standard input is empty");
  ExpectFailure({"run", kModel}, 1, "byte 0xe9 at offset 3", "caf\xe9");
  ExpectFailure({"run", kModel, "-f", dir_.File("none.txt")}, 1, "none.txt");
  ExpectFailure({"run", kModel, prompt, "-c", "1"}, 1, "--ctx-size");
  ExpectFailure({"run", kModel, prompt, "--kv-memory", "1KiB"}, 1, "--kv-memory");
  ExpectFailure({"run", kModel, prompt, "--device", "abacus"}, 1, "abacus");
  ExpectFailure({"run", kModel, prompt, "--placement", "disk-only", "--disk-memory", "1GiB",
                 "--disk-path", dir_.File("no/such/dir"), "-c", "4096"},
                1, "give another --disk-path");
  ExpectFailure({"run", kModel, prompt, "--trace", dir_.File("no/such/dir")}, 1, "--trace: ");
  ExpectFailure({"plan", kModel, "-c", "16384", "--kv-memory", "1MiB", "--host-memory", "1MiB"}, 1,
                "memory");
  ExpectFailure({"run", kModel, "-c", "16000", "--kv-memory", "2MiB", "--host-memory", "2MiB",
                 "--disk-memory", "2MiB", prompt},
                1, "does not fit; one of these would do: --disk-memory ");
  ExpectFailure({"inspect", dir_.File("nothing")}, 1, "nothing");
  ExpectFailure({"inspect", kModel + "/config.json"}, 1, "is not a Headway session; a model is");
}

TEST_F(Cli, WarnsOfContextsBeyondTheTrainedLength) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello", "-n", "1", "-c", "20000"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, StartsWith("headway: warning: a context of 20000 tokens"));
  EXPECT_THAT(outcome.err, HasSubstr("16384"));
}

TEST_F(Cli, WarnsOfABudgetForAGpuThatIsNotAskedFor) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello", "-n", "1", "--gpu-memory", "17GiB"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--device cuda computes on a GPU"));
}

TEST_F(Cli, WarnsOfMoreMemoryThanThereIs) {
  const Outcome unlimited = Run({"plan", kModel, "-c", "1000000000"});
  EXPECT_EQ(unlimited.status, 0) << unlimited.err;
  EXPECT_THAT(unlimited.err, HasSubstr("of RAM, and the system shows "));
  const Outcome limited = Run({"plan", kModel, "-c", "4096"});
  EXPECT_THAT(limited.err, Not(HasSubstr("of RAM")));
}

TEST_F(Cli, SaysThatTheContextIsFull) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello there", "-n", "50", "-c", "16"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the context is full"));
}

TEST_F(Cli, SessionsContinue) {
  const Json line = Document(600);
  WriteFile(dir_.File("doc.txt"), line["context"]);
  const std::string session = dir_.File("s.session");
  const auto ask = [&](const std::string& question, const std::string& file) {
    Args args = {"run", kModel, "-f", dir_.File("doc.txt"), "--ask", question, "-n", "24"};
    if (!file.empty()) args.insert(args.end(), {"--session", file});
    return RunJson(args);
  };
  const Json first = ask(line["question"], session);
  EXPECT_EQ(first["session_saved"], true);
  EXPECT_EQ(first["reused_tokens"], 0);
  const Json again = ask(line["question"], session);
  EXPECT_GT(again["reused_tokens"], 500);
  EXPECT_EQ(again["tokens"], first["tokens"]);
  // Another, shorter question about the same document.
  const Json other = ask("Who?", session);
  EXPECT_GT(other["reused_tokens"], 400);
  EXPECT_EQ(other["tokens"], ask("Who?", "")["tokens"]);

  const Outcome inspected = Run({"inspect", session});
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_THAT(inspected.out, StartsWith("session file"));

  const std::string garbage(10'000, 'x');
  WriteFile(dir_.File("not-a-session"), garbage);
  ExpectFailure({"run", kModel, "-p", "Hi", "--session", dir_.File("not-a-session")}, 1,
                "not-a-session");
  EXPECT_EQ(ReadFile(dir_.File("not-a-session")), garbage) << "a foreign file was changed";
}

TEST_F(Cli, InterruptEndsCleanlyAndKeepsTheSession) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string session = dir_.File("s.session" + std::to_string(number));
    WriteFile(dir_.File("out"), "");
    const pid_t child = Start({"run", kModel, "-p", "Once upon a time", "-n", "16000",
                               "--ignore-eos", "--session", session},
                              "");
    // Once text comes, the run is under way.
    for (int i = 0; i < 3000 && ReadFile(dir_.File("out")).size() < 500; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(child, number);
    const Outcome outcome = Wait(child);
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("interrupted; what was computed is kept in " + session));
    const Json next = RunJson({"run", kModel, "-n", "1", "--session", session},
                              "Once upon a time" + outcome.out.substr(0, outcome.out.size() / 2));
    EXPECT_GE(next["reused_tokens"], 64);
  }
}

// Under nohup a run outlives its terminal.
TEST_F(Cli, AHangupThatIsIgnoredStaysIgnored) {
  const auto before = signal(SIGHUP, SIG_IGN);
  WriteFile(dir_.File("out"), "");
  const pid_t child =
      Start({"run", kModel, "-p", "Once upon a time", "-n", "400", "--ignore-eos"}, "");
  signal(SIGHUP, before);
  for (int i = 0; i < 3000 && ReadFile(dir_.File("out")).size() < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGHUP);
  const Outcome outcome = Wait(child);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("interrupted")));
}

// Two at once on one session: each does all of its work, or says that the file is in use.
TEST_F(Cli, OfTwoRunsAtOnceTheSecondWaitsOrSaysThatTheSessionIsInUse) {
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  WriteFile(dir_.File("doc.txt"), Document(1200)["context"]);
  for (int round = 0; round < 8; ++round) {
    const std::string session = dir_.File("s.session" + std::to_string(round / 2));
    const pid_t first = Start({"run", kModel, "-f", dir_.File("doc.txt"), "-n", "100",
                               "--ignore-eos", "--session", session, "--save-every", "0"},
                              "", dir_.File("first"));
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(1500)));
    const Outcome second = Run({"run", kModel, "-p", "Hello", "-n", "2", "--session", session});
    if (second.status != 0) {
      EXPECT_EQ(second.status, 1);
      EXPECT_THAT(second.err, HasSubstr(session + ": in use by another process; give another"));
    }
    EXPECT_EQ(Wait(first).status == 0 || second.status == 0, true);
    EXPECT_EQ(Run({"inspect", session}).status, 0);
  }
}

TEST_F(Cli, ASessionThatIsALinkIsMadeWhereItLeads) {
  ASSERT_EQ(symlink("target.session", dir_.File("link").c_str()), 0);
  const Args args = {"run", kModel,         "-p",        "Hello",          "-n",
                     "70",  "--ignore-eos", "--session", dir_.File("link")};
  EXPECT_EQ(RunJson(args)["session_saved"], true);
  struct stat info = {};
  ASSERT_EQ(lstat(dir_.File("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  EXPECT_EQ(Run({"inspect", dir_.File("target.session")}).status, 0);
  EXPECT_EQ(RunJson(args)["session_saved"], true);
  ASSERT_EQ(symlink("/nowhere/target", dir_.File("lost").c_str()), 0);
  ExpectFailure({"run", kModel, "-p", "Hello", "-n", "2", "--session", dir_.File("lost")}, 1,
                "cannot open /nowhere/target: No such file or directory; give another --session");
}

// Of both, the error and its way out.
TEST_F(Cli, ASessionCutForMoreMemoryIsReadAgainWhenAsked) {
  WriteFile(dir_.File("doc.txt"), Document(2000)["context"]);
  const std::string session = dir_.File("s.session");
  Args args = {"run", kModel, "-f", dir_.File("doc.txt"), "-n", "8", "--session", session};
  Args large = args;
  large.insert(large.end(), {"--head-group", "4", "--segment", "2048"});
  const Json first = RunJson(large);
  args.insert(args.end(), {"--kv-memory", "3MiB"});
  ExpectFailure(args, 1, "session " + session + " fixes how the cache is cut (head group 4, ");
  args.push_back("--session-recut");
  const Json recut = RunJson(args);
  EXPECT_EQ(recut["reused_tokens"], 0);
  EXPECT_EQ(recut["tokens"], first["tokens"]);
  EXPECT_EQ(recut["session_saved"], true);
  EXPECT_GT(RunJson(args)["reused_tokens"], 1000);
}

TEST_F(Cli, ASessionSurvivesAKillAtAnyMoment) {
  const std::string session = dir_.File("s.session");
  const Json line = Document(2000);
  const std::string text = line["context"];
  const auto args = [&](size_t length) {
    WriteFile(dir_.File("doc.txt"), text.substr(0, length));
    // The answer is sure enough not to depend on where the last run was killed.
    return Args{
        "run", kModel,        "-f",   dir_.File("doc.txt"), "--ask", line["question"], "-n",
        "16",  "--kv-memory", "8MiB", "--save-every",       "0",     "--session",      session};
  };
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  int killed = 0;
  for (int i = 1; i <= 12; ++i) {
    const pid_t child = Start(args(text.size() * static_cast<size_t>(i) / 13), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(500)));
    kill(child, SIGKILL);
    killed += Wait(child).status == 128 + SIGKILL ? 1 : 0;
    if (std::ifstream(session).good()) {
      const Outcome inspected = Run({"inspect", session});
      ASSERT_EQ(inspected.status, 0) << inspected.err;
    }
  }
  EXPECT_GT(killed, 0);
  const Json continued = RunJson(args(text.size()));
  EXPECT_EQ(continued["session_saved"], true);
  Args fresh = args(text.size());
  fresh.resize(fresh.size() - 2);
  EXPECT_EQ(continued["tokens"], RunJson(fresh)["tokens"]);
}

TEST_F(Cli, FailsWhereNobodyReads) {
  const Outcome outcome = Wait(Start({"run", kModel, "-p", "Hello", "-n", "8"}, "", "/dev/full"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output"));
}

TEST_F(Cli, AFileThatMayNotGrowIsAnError) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 256 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const pid_t child = Start(
      {"run", kModel, "-p", "Hello", "-n", "80", "--ignore-eos", "--session", dir_.File("session")},
      "");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  const Outcome outcome = Wait(child);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: the session was not saved: "));
}

// Else a session file could get the number of a closed stream, and what is printed with it.
TEST_F(Cli, NoFileTakesTheNumberOfAClosedStream) {
  const std::string prompt = dir_.File("prompt");
  ASSERT_EQ(mkfifo(prompt.c_str(), 0600), 0);
  std::string args[] = {HEADWAY_BINARY, "run", kModel, "-f", prompt};
  char* argv[] = {args[0].data(), args[1].data(), args[2].data(),
                  args[3].data(), args[4].data(), nullptr};
  const pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd < 3; ++fd) close(fd);
    execv(argv[0], argv);
    _exit(127);
  }
  const int fifo = open(prompt.c_str(), O_WRONLY);  // waits for the reader
  ASSERT_GE(fifo, 0);
  for (int fd = 0; fd < 3; ++fd) {
    char target[64] = {};
    const std::string link = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd);
    EXPECT_GT(readlink(link.c_str(), target, sizeof target - 1), 0);
    EXPECT_STREQ(target, "/dev/null");
  }
  close(fifo);
  EXPECT_EQ(Wait(child).status, 1);
}

TEST_F(Cli, ChatKeepsTheConversation) {
  const Json line = Document(500);
  WriteFile(dir_.File("doc.txt"), line["context"]);
  const std::string question = line["question"];
  const Outcome outcome =
      Run({"chat", kModel, "-f", dir_.File("doc.txt"), "-n", "24", "-c", "1024", "-v"},
          question + "\n\n/what\n" + question + "\n/exit\nnever read\n");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string key = line["answer"][0];
  const size_t first = outcome.out.find(key);
  ASSERT_NE(first, std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(key, first + 1), std::string::npos) << outcome.out;
  EXPECT_THAT(outcome.err, HasSubstr("headway: 0 tokens of the conversation were in the cache"));
  EXPECT_THAT(outcome.err, HasSubstr("there is no /what"));
  // The second turn found what whole pages held of the first.
  EXPECT_EQ(outcome.err.find("headway: 0 tokens"), outcome.err.rfind("headway: 0 tokens"));

  const Outcome too_long = Run({"chat", kModel, "-c", "32"}, std::string(500, 'x') + "\n");
  EXPECT_EQ(too_long.status, 1);
  EXPECT_THAT(too_long.err, HasSubstr("larger --ctx-size"));
}

TEST_F(Cli, ChatContinuesASession) {
  const std::string session = dir_.File("chat.session");
  const auto chat = [&](const std::string& input, const Args& more = {}) {
    Args args = {"chat", kModel, "-n", "8", "-c", "1024", "--session", session, "-v"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Run(args, input);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome;
  };
  std::string turn = "Tell me about";
  for (int i = 0; i < 60; ++i) turn += " the river and the wood,";
  EXPECT_THAT(chat(turn + "\n/save\n").err, HasSubstr("saved in " + session));
  // The second chat answers as the first would have.
  const Outcome second = chat(" \n\nAnd the wood?\n/help\n");
  EXPECT_THAT(second.err, HasSubstr("goes on behind its 2 messages"));
  EXPECT_THAT(second.err, Not(HasSubstr("headway: 0 tokens of")));
  EXPECT_THAT(second.err, HasSubstr("/reset   forget"));
  Args whole = {"chat", kModel, "-n", "8", "-c", "1024"};
  EXPECT_THAT(Run(whole, turn + "\nAnd the wood?\n").out, EndsWith(second.out));
  // One that says nothing changes nothing; one that began otherwise is another conversation.
  EXPECT_THAT(chat("").err, HasSubstr("goes on behind its 4 messages"));
  EXPECT_THAT(chat("", {"--system", "Be brief."}).err, HasSubstr("this is a new one"));
  EXPECT_THAT(chat("/reset\n").err, HasSubstr("goes on behind its 4 messages"));
  EXPECT_THAT(chat("").err, HasSubstr("what begins like them is not computed again"));
}

TEST_F(Cli, PlanPrintsMemoryAndTheSmallestBudgets) {
  const Args args = {"plan", kModel, "-c", "16384", "--kv-memory", "8MiB"};
  const Outcome outcome = Run(args);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"weights", "RAM in all", "--kv-memory", "smallest budgets"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
  const Json json = RunJson(args);
  int64_t ram = 0, kv = 0;
  for (const Json& row : json["memory"]) {
    if (row["tier"] != "disk") ram += row["bytes"].get<int64_t>();
    if (row["tier"] == "device" && row["what"].get<std::string>().starts_with("KV")) {
      kv += row["bytes"].get<int64_t>();
    }
  }
  EXPECT_EQ(json["memory_bytes"], ram);
  EXPECT_LE(kv, 8 << 20);
  // The smallest budget does, and one byte less does not.
  const int64_t smallest = json["smallest"]["kv_memory"];
  EXPECT_EQ(Run({"plan", kModel, "-c", "16384", "--kv-memory", std::to_string(smallest)}).status,
            0);
  ExpectFailure({"plan", kModel, "-c", "16384", "--kv-memory", std::to_string(smallest - 1)}, 1,
                "--kv-memory");
  const Json batch = RunJson({"plan", kModel, "-c", "1024+512", "--batch", "2"});
  EXPECT_EQ(batch["lengths"], (std::vector<int64_t>{1024, 512, 1024, 512}));
}

TEST_F(Cli, PlansBeforeTheModelIsHere) {
  const std::string config = ReadFile(kModel + "/config.json");
  WriteFile(dir_.File("config.json"), config);
  const Json here = RunJson({"plan", kModel, "-c", "16384", "--kv-memory", "8MiB"});
  for (const std::string& model : {dir_.path(), dir_.File("config.json")}) {
    const Args args = {"plan", model, "-c", "16384", "--kv-memory", "8MiB"};
    const Json absent = RunJson(args);
    for (const char* same : {"memory", "memory_bytes", "slabs", "kv_bytes", "smallest"}) {
      EXPECT_EQ(absent[same], here[same]) << model;
    }
    const Outcome outcome = Run(args);
    EXPECT_THAT(outcome.err, HasSubstr(model + ": no weights here; sizes are computed from"));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  ExpectFailure({"run", dir_.path(), "-pHello"}, 1, "no model.safetensors");
  ExpectFailure({"run", dir_.File("config.json"), "-pHello"}, 1, "a file; a model is the folder");
  WriteFile(dir_.File("config.json"), config.substr(0, 60));
  ExpectFailure({"plan", dir_.File("config.json")}, 1, "config.json: not valid JSON: it ends too");
}

const Args kLlama = {"--random-weights",
                     std::string(HEADWAY_SOURCE_DIR) + "/bench/shapes/llama-3-8b.json"};

Args PlanFor(const Args& more) {
  Args args = {"plan", "--context", "131072", "--gpu-memory", "18GiB"};
  args.insert(args.end(), kLlama.begin(), kLlama.end());
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST_F(Cli, PlansForAGpuThatIsNotHere) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = Run(PlanFor({"--machine", "h200", "--explain"}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"driver and libraries", "in host memory", "predicted for NVIDIA H200",
                           "shipped profile h200", "decode: host to device",
                           "1 GiB more on the GPU", "a bus twice as fast"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(took.count(), 1.0);
#endif
  // As docs/BENCHMARKS.md has them.
  const auto streamed = [&](const std::string& machine) {
    return RunJson(
        PlanFor({"--machine", machine, "--placement", "host-only", "--host-attention", "off"}));
  };
  const Json json = streamed("h200");
  EXPECT_NEAR(json["prediction"]["decode"]["tokens_per_second"].get<double>(), 3.22, 0.1);
  EXPECT_NEAR(json["prediction"]["prefill"]["tokens_per_second"].get<double>(), 12093, 900);
  EXPECT_EQ(json["prediction"]["decode"]["limit"], "host to device");
  // The same by a file, and slower on a slower bus.
  const std::string file = std::string(HEADWAY_SOURCE_DIR) + "/machines/h200.json";
  EXPECT_EQ(streamed(file)["slabs"], json["slabs"]);
  const Json slow = streamed("rtx-4090");
  EXPECT_LT(slow["prediction"]["decode"]["tokens_per_second"].get<double>(), 1.6);
}

TEST_F(Cli, RefusesMachinesThatAreNone) {
  ExpectFailure(PlanFor({"--machine", "h2000"}), 1, "neither a file nor one of a100-40-pcie");
  WriteFile(dir_.File("bad.json"), "{\"format\": \"headway-machine\", \"version\": 0}");
  ExpectFailure(PlanFor({"--machine", dir_.File("bad.json")}), 1, "another version of the format");
  ExpectFailure({"run", kModel, "-pHello", "--machine", dir_.File("bad.json")}, 1, "bad.json");
  ExpectFailure({"run", kModel, "-pHello", "--machine", "h200"}, 1,
                "--machine: shipped profile h200 is of a GPU; give --device cuda");
  WriteFile(dir_.File("empty.json"), "");
  ExpectFailure({"bench", "prefill", kModel, "--machine", dir_.File("empty.json")}, 1,
                "is not JSON");
  ExpectFailure(PlanFor({"--machine", "rtx-4090", "--host-memory", "1GiB"}), 1,
                "or a context of at most");
  ExpectFailure({"plan"}, 2, "MODEL is missing");
}

TEST_F(Cli, ProbesOnceAndPlansByIt) {
  const std::string cache = dir_.File("cache");
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const Outcome probe =
      Run({"probe", "-t", "2", "--disk-path", dir_.path(), "-o", dir_.File("here.json")});
  EXPECT_EQ(probe.status, 0) << probe.err;
  for (const char* text : {"matrix product", "host memory read", "disk read", "kept in "}) {
    EXPECT_THAT(probe.out, HasSubstr(text));
  }
  const Args plan = {"plan", kModel, "-t", "2"};
  Json json = RunJson(plan);
  EXPECT_EQ(json["prediction"]["origin"], "headway probe");
  // Another number of threads is other hardware.
  EXPECT_EQ(RunJson({"plan", kModel, "-t", "1"})["prediction"]["origin"], "quick measurement");
  EXPECT_EQ(RunJson({"plan", kModel, "--machine", dir_.File("here.json")})["prediction"]["origin"],
            "profile " + dir_.File("here.json"));
  // A damaged cache is said and not used.
  const std::string kept = probe.out.substr(probe.out.find("kept in ") + 8);
  WriteFile(kept.substr(0, kept.find('\n')), "{\"format\": ");
  const Outcome damaged = Run(plan);
  EXPECT_EQ(damaged.status, 0);
  EXPECT_THAT(damaged.err, HasSubstr("is not JSON; headway probe measures anew"));
  EXPECT_THAT(damaged.out, HasSubstr("quick measurement"));
  // A place that takes no files is no error.
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  EXPECT_EQ(Run({"run", kModel, "-pHello", "-n", "1"}).status, 0);
  unsetenv("XDG_CACHE_HOME");
}

TEST_F(Cli, InspectDescribesAModel) {
  const Outcome outcome = Run({"inspect", kModel});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("LlamaForCausalLM"));
  const Json json = RunJson({"inspect", kModel});
  EXPECT_EQ(json["kind"], "model folder");
  EXPECT_EQ(json["fields"]["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(json["fields"]["tokenizer"], "8192 tokens");
  EXPECT_EQ(json["fields"]["chat template"], "yes");
}

TEST_F(Cli, PerplexityCountsEveryPrediction) {
  WriteFile(dir_.File("text"), Document(700)["context"]);
  const Args args = {"eval", "perplexity", kModel, "--file", dir_.File("text"), "--context", "200"};
  const Json json = RunJson(args);
  EXPECT_GT(json["perplexity"], 5.0);
  EXPECT_LT(json["perplexity"], 500.0);
  EXPECT_GT(json["tokens"], 600);
  EXPECT_EQ(json["windows"], 4);
  Args limited = args;
  limited.insert(limited.end(), {"--kv-memory", "1MiB", "--windows", "2", "--chunk", "64"});
  const Json two = RunJson(limited);
  EXPECT_EQ(two["tokens"], 2 * 199);
  EXPECT_EQ(two["windows"], 2);
  Args encoded = args;
  encoded.insert(encoded.end(),
                 {"--windows", "2", "--chunk", "64", "--kv-encoding", "int4", "--compare"});
  const Json compared = RunJson(encoded);
  EXPECT_NEAR(compared["exact_perplexity"].get<double>(), two["perplexity"].get<double>(), 1e-3);
  EXPECT_NE(compared["perplexity"], two["perplexity"]);
  EXPECT_GT(compared["kl_divergence"], 0.0);
  EXPECT_LT(compared["kl_divergence"], 0.1);
  EXPECT_GT(compared["same_top"], 0.8);
  EXPECT_LT(compared["same_top"], 1.0);
  ExpectFailure({"eval", "perplexity", kModel, "--context", "9"}, 2, "--file is missing");
  ExpectFailure({"eval", "perplexity", kModel, "--file", "x", "--context", "9", "--compare"}, 2,
                "--compare needs --kv-encoding or --head-pattern");
}

TEST_F(Cli, RetrievalScoresGeneratedAndGivenLines) {
  const Args generate = {
      "eval",   "retrieval", kModel,    "--generate",          "3", "--context", "400",
      "--seed", "3",         "--kinds", "needle,passkey,place"};
  const Json made = RunJson(generate);
  EXPECT_GE(made["score"], 0.6);
  ASSERT_EQ(made["results"].size(), 3u);
  EXPECT_EQ(made["results"][1]["id"], "passkey-1");
  EXPECT_LE(made["results"][0]["prompt_tokens"], 400);
  EXPECT_GE(made["results"][0]["prompt_tokens"], 350);

  Args write = generate;
  write.insert(write.end(), {"--write", dir_.File("lines")});
  EXPECT_EQ(Run(write).status, 0);
  const Json read = RunJson({"eval", "retrieval", kModel, "--jsonl", dir_.File("lines")});
  EXPECT_EQ(read["results"], made["results"]);
  EXPECT_EQ(read["score"], made["score"]);

  ExpectFailure({"eval", "retrieval", kModel}, 2, "either --jsonl");
  ExpectFailure({"eval", "retrieval", kModel, "--jsonl", "-"}, 1, "standard input, line 1", "{}\n");
}

TEST_F(Cli, ProfiledHeadsStreamAndRetrieve) {
  const std::string tsv = dir_.File("heads.tsv"), json = dir_.File("heads.json");
  const Json profile = RunJson({"profile-heads", kModel, "-o", tsv, "--context", "1024",
                                "--prompts", "3", "--kinds", "passkey,needle"});
  EXPECT_GT(profile["answered"].get<int>(), 0);
  EXPECT_EQ(profile["scores"].size(), 32u);
  for (const Json& score : profile["scores"]) {
    EXPECT_GE(score.get<double>(), 0.0);
    EXPECT_LE(score.get<double>(), 1.0);
  }
  const std::string text = ReadFile(tsv);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9) << text;
  const Outcome again = Run({"profile-heads", kModel, "-o", json, "--context", "1024", "--prompts",
                             "1", "--kinds", "passkey", "--sink-tokens", "4"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("wrote " + json));
  EXPECT_EQ(Json::parse(ReadFile(json), nullptr, false)["sink"], 4);

  const Args retrieval = {"eval", "retrieval", kModel, "--generate", "3",      "--context",
                          "1024", "--seed",    "9",    "--kinds",    "passkey"};
  Args with = retrieval;
  with.insert(with.end(), {"--head-pattern", tsv, "--sparsity", "0.25"});
  EXPECT_EQ(RunJson(with)["score"], RunJson(retrieval)["score"]);

  // Half of the heads, and half of the cache.
  const Json exact = RunJson({"plan", kModel, "-c", "16384"});
  const Json half =
      RunJson({"plan", kModel, "-c", "16384", "--head-pattern", json, "--sparsity", "0.5"});
  EXPECT_LT(half["kv_bytes"].get<double>(), 0.55 * exact["kv_bytes"].get<double>());
  EXPECT_THAT(half.dump(), HasSubstr("KV: streaming heads"));

  const Args run = {"run", kModel, "-p", "Once", "-n", "2"};
  const auto refused = [&](const Args& more, int status, const std::string& message) {
    Args args = run;
    args.insert(args.end(), more.begin(), more.end());
    ExpectFailure(args, status, message);
  };
  refused({"--sparsity", "0.5"}, 1, "give a --head-pattern file");
  refused({"--head-pattern", tsv, "--sparsity", "1.5"}, 2, "--sparsity");
  refused({"--head-pattern", dir_.File("absent")}, 1, "--head-pattern: ");
  refused({"--head-pattern", tsv, "--sparsity", "0.5", "--session", dir_.File("s")}, 1,
          "leave out --session or --head-pattern");
  WriteFile(tsv, "1 1 1 1\n1 x 1 1\n");
  refused({"--head-pattern", tsv}, 1, tsv + ", line 2: 'x' is not a number");
  ExpectFailure({"profile-heads", kModel, "-o", json, "--head-pattern", json}, 2,
                "the exact model is profiled");
}

TEST_F(Cli, BenchMeasures) {
  const Json prefill =
      RunJson({"bench", "prefill", kModel, "-c", "64,64+32", "--repetitions", "2"});
  ASSERT_EQ(prefill["results"].size(), 2u);
  EXPECT_EQ(prefill["results"][1]["tokens"], 96);
  EXPECT_EQ(prefill["results"][1]["seconds"].size(), 2u);
  EXPECT_GT(prefill["results"][0]["tokens_per_second"], 0.0);
  EXPECT_GT(prefill["peaks"]["read_bytes_per_second"], 1e9);

  const std::string config = kModel + "/config.json";
  const Json decode = RunJson({"bench", "decode", "--random-weights", config, "-c", "256", "-n",
                               "4", "-r", "1", "--synthetic-kv"});
  EXPECT_EQ(decode["results"][0]["tokens"], 4);
  EXPECT_GT(decode["results"][0]["roofline_share"], 0.0);
  EXPECT_LT(decode["results"][0]["roofline_share"], 1.5);
  ExpectFailure({"bench", "decode", "-c", "64"}, 2, "either MODEL");
  const std::string opt = HEADWAY_SOURCE_DIR "/tests/golden/models/opt/config.json";
  const Args args = {"bench", "decode", "--random-weights", opt, "-n", "4", "-r", "1"};
  const auto with_context = [&args](const char* context) {
    Args all = args;
    all.insert(all.end(), {"-c", context});
    return all;
  };
  EXPECT_EQ(RunJson(with_context("100+90"))["results"][0]["tokens"], 8);
  ExpectFailure(with_context("198"), 1, "has learned 200 positions");
}

}  // namespace
}  // namespace headway
