// Sessions and chats as users keep them, through interrupts, kills and files that cannot grow.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "base/random.h"
#include "support/cli.h"

namespace headway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
                              "", dir_.File("first"), dir_.File("first.err"));
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

// Runs on these numbers of ranks by turns are killed, and one on the first number goes on.
struct Killed {
  std::string name;
  std::vector<int> ranks;
  std::string encoding = "none";
  int runs = 12;
};
class CliKilled : public Cli, public ::testing::WithParamInterface<Killed> {};

// What the next text does not begin with, of a question and its answer, and pages that are not
// full.
constexpr int64_t kTail = 256;

TEST_P(CliKilled, ASessionSurvivesAKillAtAnyMoment) {
  const std::string session = dir_.File("s.session");
  const std::vector<int>& ranks = GetParam().ranks;
  const Json line = Document(2000);
  const std::string text = line["context"];
  const auto args = [&](size_t length, int on) {
    WriteFile(dir_.File("doc.txt"), text.substr(0, length));
    // The answer is sure enough not to depend on where the last run was killed, nor on the ranks.
    Args all = {"run",          kModel,
                "-f",           dir_.File("doc.txt"),
                "--ask",        line["question"],
                "-n",           "16",
                "--kv-memory",  "8MiB",
                "--save-every", "0",
                "--tp",         std::to_string(on),
                "--session",    session};
    all.insert(all.end(), {"--kv-encoding", GetParam().encoding});
    return all;
  };
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  Args fresh = args(text.size(), ranks.front());
  fresh.resize(fresh.size() - 4);  // of plain pages, which give the same answer
  // Kills come within the time that a run takes: at first a whole one's, and half of it after each
  // that had ended before, since most of a text is in the session by then.
  const auto begin = std::chrono::steady_clock::now();
  const Json uninterrupted = RunJson(fresh);
  int64_t within_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - begin)
                          .count();
  int killed = 0;
  int64_t held = 0;
  const auto runs = static_cast<size_t>(GetParam().runs);
  for (size_t i = 1; i <= runs; ++i) {
    const int on = ranks[i % ranks.size()];
    if (KillWithin(args(text.size() * i / (runs + 1), on), within_ms, &random)) {
      ++killed;
    } else {
      within_ms /= 2;
    }
    const int64_t saved = SavedIn(session);
    ASSERT_FALSE(HasFailure());
    EXPECT_GE(saved + kTail, held) << "what was saved is gone";
    held = saved;
  }
  EXPECT_GT(killed, 0);
  const Json continued = RunJson(args(text.size(), ranks.front()));
  EXPECT_GE(continued["reused_tokens"].get<int64_t>() + kTail, held);
  EXPECT_EQ(continued["session_saved"], true);
  EXPECT_EQ(continued["tokens"], uninterrupted["tokens"]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CliKilled,
                         ::testing::Values(Killed{"One", {1}}, Killed{"Several", {2, 4, 1}},
                                           Killed{"Lossless", {1, 2}, "lossless", 6}),
                         [](const auto& instance) { return instance.param.name; });

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

}  // namespace
}  // namespace headway
