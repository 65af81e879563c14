// Sessions of ranks in processes: saved by some number of them, and gone on with by another, or by
// ranks in one process.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <tuple>

#include "base/random.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"
#include "support/mpirun.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// Ranks, each a process or all in one.
struct Ranks {
  int ranks = 1;
  bool processes = false;
};
constexpr Ranks kOne, kTwo{2, true}, kThree{3, true}, kFour{4, true}, kTwoThreads{2, false},
    kFourThreads{4, false};

class ProcessSession : public Mpirun {
 protected:
  ProcessSession() {
    Use(kOne);
    const Json line = Document(2000);
    text_ = line["context"];
    question_ = line["question"];
  }

  // Runs of the program are of such ranks from now on.
  void Use(const Ranks& ranks) {
    program_ = ranks.processes ? std::string(HEADWAY_MPIRUN) : kProgram;
  }
  static Args Launched(const Ranks& ranks, Args args) {
    args.insert(args.end(), {"--tp", std::to_string(ranks.ranks), "-t", "2"});
    return ranks.processes ? OnRanks(ranks.ranks, args) : args;
  }
  Outcome RunOn(const Ranks& ranks, const Args& args, const std::string& input = "") {
    Use(ranks);
    return Run(Launched(ranks, args), input);
  }
  Json JsonOn(const Ranks& ranks, const Args& args) {
    Use(ranks);
    return RunJson(Launched(ranks, args));
  }
  // To answer by what the document begins with; where a session is named, with it.
  Args Asking(double part, const std::string& session = "", const Args& more = {}) {
    const auto size = static_cast<size_t>(part * static_cast<double>(text_.size()));
    WriteFile(dir_.File("doc"), text_.substr(0, size));
    // The answer is sure enough not to depend on the number of ranks.
    Args args = {"run", kModel, "-f", dir_.File("doc"), "--ask", question_, "-n", "16"};
    if (!session.empty()) args.insert(args.end(), {"--session", session});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // What a session's file holds, each slab's pages read and checked.
  kv::Manifest Saved(const std::string& file) {
    Budget budget("disk", kUnlimited);
    Result<std::unique_ptr<kv::SlabFile>> opened = kv::OpenSessionAt(Env::Default(), file, &budget);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) return {};
    kv::Manifest manifest = (*opened)->manifest();
    const Status read = kv::VerifySession(Env::Default(), opened->get(), manifest);
    EXPECT_TRUE(read.ok()) << read.message();
    return manifest;
  }

  std::string text_, question_;
};

// Without the slots, which may be any.
std::vector<kv::SavedSlab> InOrder(std::vector<kv::SavedSlab> slabs) {
  std::sort(slabs.begin(), slabs.end(), [](const kv::SavedSlab& a, const kv::SavedSlab& b) {
    return std::tie(a.layer, a.group, a.segment) < std::tie(b.layer, b.group, b.segment);
  });
  for (size_t i = 0; i < slabs.size(); ++i) slabs[i].slot = static_cast<int64_t>(i);
  return slabs;
}

// All but where it lies is the same, bit for bit.
TEST_F(ProcessSession, IsThatOfRanksInOneProcess) {
  const Args variants[] = {{},
                           {"--kv-encoding", "int8"},
                           {"--kv-encoding", "lossless"},
                           {"--placement", "disk-only", "--segment", "256"},
                           {"--evict", "ada-snapkv", "--evict-budget", "192"}};
  int files = 0;
  for (const Args& more : variants) {
    SCOPED_TRACE(more.empty() ? "plain" : more.back());
    kv::Manifest saved[2];
    Json made[2];
    for (const bool processes : {false, true}) {
      const std::string file = dir_.File("s" + std::to_string(++files));
      made[processes] = JsonOn({2, processes}, Asking(0.7, file, more));
      EXPECT_EQ(made[processes]["session_saved"], true);
      saved[processes] = Saved(file);
      EXPECT_GT(saved[processes].tokens.size(), 900u);
      saved[processes].slabs = InOrder(std::move(saved[processes].slabs));
    }
    EXPECT_EQ(made[0]["tokens"], made[1]["tokens"]);
    EXPECT_FALSE(saved[0].slabs.empty());
    EXPECT_TRUE(kv::SameManifest(saved[0], saved[1]));
  }
}

// A document that grows, on other ranks each time, and with saves on the way.
TEST_F(ProcessSession, GoesOnWithAnyNumberOfRanks) {
  const Json fresh = JsonOn(kOne, Asking(1.0));
  for (const char* placement : {"auto", "disk-only"}) {
    SCOPED_TRACE(placement);
    const std::string session = dir_.File(std::string("s") + placement);
    const Ranks order[] = {kTwo, kOne, kFour, kTwoThreads, kThree, kFourThreads, kTwo, kFour, kOne};
    double part = 0.0;
    for (const Ranks& ranks : order) {
      SCOPED_TRACE(std::to_string(ranks.ranks) + (ranks.processes ? " processes" : " ranks"));
      part += 1.0 / static_cast<double>(std::size(order));
      const Args more = {"--placement", placement, "--segment", "256", "--save-every", "0"};
      const Json made = JsonOn(ranks, Asking(part, session, more));
      EXPECT_EQ(made["session_saved"], true);
      EXPECT_GT(made["reused_tokens"], part > 0.2 ? static_cast<int>(1800 * part - 400) : -1);
      EXPECT_TRUE(part < 0.99 || made["tokens"] == fresh["tokens"]) << made;
      Saved(session);
    }
  }
  // And without one on the way: again, from a file that is cut for one rank, of more heads a slab.
  const std::string session = dir_.File("one");
  JsonOn(kOne, Asking(0.9, session, {"--head-group", "4"}));
  const Json again = JsonOn(kTwo, Asking(1.0, session));
  EXPECT_GT(again["reused_tokens"], 1400);
  EXPECT_EQ(again["tokens"], fresh["tokens"]);
  EXPECT_EQ(JsonOn(kFour, Asking(1.0, session))["tokens"], fresh["tokens"]);
}

// Turns of a chat whose heads keep a part, each of a run of its own.
TEST_F(ProcessSession, ConversationsThatKeepAPartGoOn) {
  const std::vector<std::string> turns = {text_.substr(0, 4000) + "\n", "And who?\n", "And why?\n"};
  const auto talk = [&](const std::vector<Ranks>& on, const std::string& file) {
    std::vector<std::string> answers;
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      const Outcome made = RunOn(on[turn],
                                 {"chat", kModel, "-n", "12", "-c", "2400", "--evict", "ada-snapkv",
                                  "--evict-budget", "256", "--session", file, "-v"},
                                 turns[turn]);
      EXPECT_EQ(made.status, 0) << made.err;
      EXPECT_EQ(made.err.find("headway: 0 tokens of") != std::string::npos, turn == 0) << made.err;
      answers.push_back(made.out);
    }
    return answers;
  };
  const auto expected = talk({kTwoThreads, kTwoThreads, kTwoThreads}, dir_.File("a"));
  EXPECT_EQ(talk({kTwo, kTwo, kTwo}, dir_.File("b")), expected);
  EXPECT_EQ(talk({kTwo, kTwoThreads, kTwo}, dir_.File("c")), expected);
}

// The least that a plan says will do, does: the first one writes the manifest of all.
TEST_F(ProcessSession, FitsTheBudgetOfItsPlan) {
  const std::string session = dir_.File("s");
  const int64_t prompt = JsonOn(kOne, Asking(1.0))["prompt_tokens"];
  Args args = {"--placement", "disk-only", "--page",     "16",
               "--segment",   "16",        "--ctx-size", std::to_string(prompt + 16),
               "--session",   session};
  Args plan = {"plan", kModel, "--disk-memory", "8GiB"};
  plan.insert(plan.end(), args.begin(), args.end());
  const int64_t least = JsonOn(kTwoThreads, plan)["smallest"]["disk_memory"];
  args.insert(args.end(), {"--disk-memory", std::to_string(least), "--ignore-eos"});
  for (const Ranks& ranks : {kTwo, kTwoThreads, kTwo}) {
    EXPECT_EQ(JsonOn(ranks, Asking(1.0, "", args))["session_saved"], true);
  }
}

// Two runs that are launched are kept apart as two processes are.
TEST_F(ProcessSession, IsOneRunsAtATime) {
  const std::string session = dir_.File("s");
  JsonOn(kTwo, Asking(0.3, session));
  const Args longer = {"run",          kModel,      "-p",   "Once upon a time", "-n", "9000",
                       "--ignore-eos", "--session", session};
  Use(kTwo);
  const pid_t first = Start(Launched(kTwo, longer), "", dir_.File("first"), dir_.File("first.err"));
  for (int i = 0; i < 1000 && ReadFile(dir_.File("first")).size() < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (const Ranks& ranks : {kOne, kTwo}) {
    const Outcome second = RunOn(ranks, Asking(0.3, session));
    EXPECT_NE(second.status, 0);
    EXPECT_THAT(second.err, HasSubstr(session + ": in use by another process"));
  }
  kill(first, SIGKILL);
  Wait(first);
}

// The file is not there on the second's machine, or another one is: as in another folder.
TEST_F(ProcessSession, AFileThatRanksDoNotShareIsToldOf) {
  for (const char* folder : {"a", "b"}) fs::create_directory(dir_.File(folder));
  const auto in = [&](const char* folder, int ranks = 2) {
    Args args = {"--wdir", dir_.File(folder), kProgram};
    const Args run = Launched({ranks, false}, Asking(0.5, "s"));
    args.insert(args.end(), run.begin(), run.end());
    return args;
  };
  const Args apart = Apart(in("a"), in("b"));
  Use(kTwo);
  ExpectOneError(apart,
                 "rank 1 of 2: cannot open s: No such file or directory; ranks in processes");
  EXPECT_TRUE(fs::is_empty(dir_.File("a")));
  JsonOn(kTwo, Asking(0.5, dir_.File("a") + "/s"));
  const std::string saved = ReadFile(dir_.File("a") + "/s");
  Use(kTwo);
  ExpectOneError(apart,
                 "rank 1 of 2: cannot open s: No such file or directory; ranks in processes");
  EXPECT_EQ(ReadFile(dir_.File("a") + "/s"), saved);
  // Which rank it is, and not one that has found the file.
  ExpectOneError(Apart(in("a", 3), in("b", 3), 2), "rank 2 of 3: cannot open s: No such file");
  EXPECT_EQ(ReadFile(dir_.File("a") + "/s"), saved);
  // The same bytes, but not the same file.
  fs::copy(dir_.File("a") + "/s", dir_.File("b") + "/s");
  ExpectOneError(apart, "rank 1 of 2: s is another file than the first rank's");
  for (const char* folder : {"a", "b"}) EXPECT_EQ(ReadFile(dir_.File(folder) + "/s"), saved);
  // One file by two names is one.
  fs::remove(dir_.File("b") + "/s");
  fs::create_symlink(dir_.File("a") + "/s", dir_.File("b") + "/s");
  const auto one = [&](const char* folder) {
    Args args = in(folder);
    args.push_back("--json");
    return args;
  };
  const Outcome again = Run(Apart(one("a"), one("b")));
  EXPECT_GT(again.json()["reused_tokens"], 0) << again.err;
}

// A rank that has no context, for whatever reason, is told of, and nobody waits for it.
TEST_F(ProcessSession, ARankThatFailsBeforeItsSessionIsOpenIsToldOf) {
  for (const char* folder : {"a", "b", "a/traces", "b/traces"}) {
    fs::create_directory(dir_.File(folder));
  }
  const std::string a = dir_.File("a") + "/s", b = dir_.File("b") + "/s";
  JsonOn(kTwo, Asking(0.5, a));
  const std::string saved = ReadFile(a);
  const auto apart = [&](const Args& more) {
    Args all[2];
    for (const int rank : {0, 1}) {
      all[rank] = {"--wdir", dir_.File(rank == 0 ? "a" : "b"), kProgram};
      const Args run = Launched({2, false}, Asking(0.5, "s", more));
      all[rank].insert(all[rank].end(), run.begin(), run.end());
    }
    return Apart(all[0], all[1]);
  };
  const std::string damaged = saved.substr(0, saved.size() / 2);
  Use(kTwo);
  WriteFile(b, damaged);
  ExpectOneError(apart({}), "rank 1 of 2: s is damaged");
  WriteFile(b, saved);
  WriteFile(a, damaged);
  ExpectOneError(apart({}), "error: s is damaged");
  WriteFile(a, saved);
  // Another model's.
  fs::copy(kModel, dir_.File("model"));
  Json config = Json::parse(ReadFile(dir_.File("model/config.json")));
  config["rope_theta"] = 2e4;
  WriteFile(dir_.File("model/config.json"), config.dump());
  fs::remove(b);
  Args other = Asking(0.5, b);
  other[1] = dir_.File("model");
  JsonOn(kOne, other);
  Use(kTwo);
  ExpectOneError(apart({}), "rank 1 of 2: session s was made with rope_theta 20000");
  // The first rank alone writes a trace.
  fs::remove(b);
  fs::create_symlink(a, b);
  fs::remove(dir_.File("a/traces"));
  ExpectOneError(apart({"--trace", "traces/t"}), "--trace: cannot open traces/t");
  EXPECT_EQ(ReadFile(a), saved);
}

// A rank whose disk is full, whichever that is: what was saved stays, and a chat goes on.
TEST_F(ProcessSession, ASaveThatFailsLosesNothing) {
  const std::string session = dir_.File("s");
  JsonOn(kTwo, Asking(0.4, session));
  const auto size = fs::file_size(session);
  const Json fresh = JsonOn(kOne, Asking(1.0));
  const auto limited = [&](const Args& run) {
    Args args = {"/bin/sh", "-c",
                 "ulimit -f " + std::to_string(size / 512 + 1024) + "; exec \"$@\"", "sh",
                 kProgram};
    args.insert(args.end(), run.begin(), run.end());
    return args;
  };
  const auto free = [&](const Args& run) {
    Args args = {kProgram};
    args.insert(args.end(), run.begin(), run.end());
    return args;
  };
  const Args run = Launched({2, false}, Asking(1.0, session, {"--save-every", "0"}));
  for (const int rank : {0, 1}) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    Use(kTwo);
    const Outcome outcome =
        Run(rank == 0 ? Apart(limited(run), free(run)) : Apart(free(run), limited(run)));
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.err, HasSubstr("error: the session was not saved: "));
    EXPECT_EQ(outcome.err.find("of 2: cannot write") != std::string::npos, rank == 1)
        << outcome.err;
    // The answer is there.
    EXPECT_EQ(outcome.out, fresh["text"].get<std::string>() + "\n");
    // That, or what both texts begin with and a save on the way had room for.
    EXPECT_GT(Saved(session).tokens.size(), 700u);
  }
  const Args chat = Launched(
      {2, false}, {"chat", kModel, "-n", "8", "-c", "4000", "--session", dir_.File("chat")});
  std::string line = text_;
  std::replace(line.begin(), line.end(), '\n', ' ');
  const Outcome talk =
      Run(Apart(free(chat), limited(chat)), line + "\n/save\nWho is it?\n/save\nAnd then?\n");
  size_t failed = 0;
  const std::string error = "error: the session was not saved: rank 1 of 2: cannot write";
  for (size_t at = 0; (at = talk.err.find(error, at)) != std::string::npos; ++at) ++failed;
  EXPECT_EQ(failed, 3u) << talk.err;
  EXPECT_EQ(std::count(talk.out.begin(), talk.out.end(), '\n'), 3) << talk.out << talk.err;
  // With room, all of it.
  EXPECT_EQ(JsonOn(kTwo, Asking(1.0, session))["tokens"], fresh["tokens"]);
}

// A process of a run is killed at any moment, whichever it is: all end, and what was saved last
// opens, on any ranks.
TEST_F(ProcessSession, SurvivesAKillAtAnyMoment) {
  const std::string session = dir_.File("s");
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  const auto begin = Clock::now();
  const Json fresh = JsonOn(kTwo, Asking(1.0, "", {"--kv-memory", "8MiB"}));
  int64_t within_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  int killed = 0;
  size_t held = 0;
  for (int i = 1; i <= 12; ++i) {
    SCOPED_TRACE("run " + std::to_string(i));
    const Ranks& on = i % 3 == 0 ? kFour : kTwo;
    Use(kTwo);
    const pid_t launcher = Start(
        Launched(on, Asking(i / 13.0, session, {"--kv-memory", "8MiB", "--save-every", "0"})), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(within_ms + 1)));
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < on.ranks; ++rank) ranks.push_back(ProcessOf(launcher, rank));
    const pid_t victim = ranks[static_cast<size_t>(random.Below(on.ranks))];
    if (victim > 0) kill(victim, SIGKILL);
    const auto at = Clock::now();
    Clock::time_point ended;
    const Outcome outcome = WaitFor(launcher, &ended);
    if (outcome.err.find("signal 9") != std::string::npos) {
      ++killed;
      EXPECT_LT(ended - at, std::chrono::seconds(10));
      EXPECT_THAT(outcome.err, Not(HasSubstr("headway: error")));
    } else if (Clock::now() - at < std::chrono::milliseconds(100)) {
      within_ms /= 2;  // it had ended; else the victim was yet to begin
    }
    for (const pid_t rank : ranks) {
      while (rank > 0 && IsThere(rank) && Clock::now() - at < std::chrono::seconds(10)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    if (!fs::exists(session)) continue;
    const size_t now = Saved(session).tokens.size();
    EXPECT_GE(now + 256, held) << "what was saved is gone";
    held = now;
  }
  EXPECT_GT(killed, 0);
  for (const Ranks& ranks : {kTwo, kOne}) {
    const std::string copy = dir_.File("copy" + std::to_string(ranks.ranks));
    fs::copy(session, copy);
    EXPECT_EQ(JsonOn(ranks, Asking(1.0, copy))["tokens"], fresh["tokens"]);
  }
}

}  // namespace
}  // namespace headway
