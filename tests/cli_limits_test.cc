// The program under limits of the system, and before files that are none: one line and exit 1,
// never a signal and never a wait for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "support/cli.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr rlim_t kMebibyte = rlim_t{1} << 20;
constexpr unsigned kSecondsOfARun = 60;  // a run that hangs ends by SIGALRM, which is no success
constexpr int kNotExecuted = 127;

class CliLimits : public Cli {
 protected:
  void SetUp() override {
#ifdef HEADWAY_SANITIZED
    GTEST_SKIP() << "sanitizers need more memory and threads than that";
#endif
  }

  // Runs a command with a limit, which may be too low for it. Returns whether it went well.
  bool RunLimited(const Args& args, int resource, rlim_t limit, bool as_nobody = false) {
    in_child_ = [=] {
      alarm(kSecondsOfARun);
      const rlimit none = {0, 0};
      setrlimit(RLIMIT_CORE, &none);
      if (as_nobody && geteuid() == 0 && setuid(kNobody) != 0) _exit(kNotExecuted);
      const rlimit limits = {limit, limit};
      if (setrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) _exit(kNotExecuted);
    };
    const Outcome outcome = Run(args);
    int errors = 0;
    size_t at = 0;
    while (at < outcome.err.size()) {
      const size_t end = std::min(outcome.err.find('\n', at), outcome.err.size());
      const std::string line = outcome.err.substr(at, end - at);
      at = end + 1;
      if (line.starts_with("headway: error: ")) ++errors;
    }
    EXPECT_EQ(errors, outcome.status == 0 ? 0 : 1) << outcome.err;
    EXPECT_TRUE(outcome.status == 0 || outcome.status == 1)
        << args.front() << ", limit " << limit << ": status " << outcome.status << "\n"
        << outcome.err;
    return outcome.status == 0;
  }

  static constexpr uid_t kNobody = 65534;
  const Args run_ = {"run", kModel, "-p", "Hello", "-n", "4", "--no-progress"};
};

TEST_F(CliLimits, MemoryThatCannotBeHadIsAnError) {
  const Args session = {"run",
                        kModel,
                        "-p",
                        "Hello",
                        "-n",
                        "4",
                        "-c",
                        "2048",
                        "-t",
                        "4",
                        "--kv-memory",
                        "2MiB",
                        "--disk-memory",
                        "64MiB",
                        "--no-progress",
                        "--session",
                        dir_.File("session")};
  int done = 0, failed = 0;
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) {
    // Steps that meet no two limits of the same pages, so that each falls elsewhere in the program.
    for (rlim_t limit = 20 * kMebibyte; limit <= 200 * kMebibyte; limit += 11 * kMebibyte + 4096) {
      for (const Args& args : {run_, session, Args{"plan", kModel}, Args{"inspect", kModel}}) {
        ++(RunLimited(args, resource, limit) ? done : failed);
      }
    }
  }
  // Both happen, or the limits were no test.
  EXPECT_GT(done, 0);
  EXPECT_GT(failed, 0);
}

TEST_F(CliLimits, ThreadsThatCannotBeStartedAreAnError) {
  in_child_ = [] {
    if (geteuid() == 0 && setuid(kNobody) != 0) _exit(kNotExecuted);
  };
  if (Run({"inspect", kModel}).status != 0) GTEST_SKIP() << "another user cannot read the model";
  for (const rlim_t threads : {1, 2, 5, 9, 12}) {
    const bool done = RunLimited(run_, RLIMIT_NPROC, threads, /*as_nobody=*/true);
    EXPECT_TRUE(!done || threads > 1);
    EXPECT_TRUE(RunLimited({"inspect", kModel}, RLIMIT_NPROC, threads, /*as_nobody=*/true));
  }
}

class CliFiles : public Cli {
 protected:
  void SetUp() override {
    in_child_ = [] { alarm(kSecondsOfARun); };
    ASSERT_EQ(mkfifo(dir_.File("pipe").c_str(), 0600), 0);
  }

  // And without much memory: reading a device up to the bound of a text would take gigabytes.
  void ExpectRefused(const Args& args, const std::string& message) {
    ExpectFailure(args, 1, message);
#ifndef HEADWAY_SANITIZED
    EXPECT_LT(Run(args).peak_bytes, int64_t{512} << 20) << message;
#endif
  }
};

TEST_F(CliFiles, AModelsFilesAreRegularFiles) {
  namespace fs = std::filesystem;
  for (const std::string name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors", "model.safetensors.index.json", "chat_template.jinja"}) {
    for (const std::string& odd : {dir_.File("pipe"), std::string("/dev/zero")}) {
      const std::string model = dir_.File("model");
      fs::remove_all(model);
      fs::create_directory(model);
      for (const auto& file : fs::directory_iterator(kModel)) {
        fs::create_symlink(file.path(), model + "/" + file.path().filename().string());
      }
      fs::remove(model + "/" + name);
      if (name == "model.safetensors.index.json") fs::remove(model + "/model.safetensors");
      fs::create_symlink(odd, model + "/" + name);
      const Outcome outcome = Run({"run", model, "-pHello", "-n1", "--no-progress"});
      // A template that cannot be read is no reason not to run a plain prompt.
      const bool needed = name != "chat_template.jinja";
      EXPECT_EQ(outcome.status, needed ? 1 : 0) << name << "\n" << outcome.err;
      EXPECT_THAT(outcome.err,
                  HasSubstr(odd == "/dev/zero" ? "is a character device" : "is a pipe"))
          << name;
    }
  }
}

TEST_F(CliFiles, FlagsThatNameAFileRefuseWhatIsNone) {
  const std::string pipe = dir_.File("pipe");
  const std::string device = "/dev/zero is a device; give a text file";
  ExpectRefused({"run", kModel, "-f", "/dev/zero"}, device);
  ExpectRefused({"run", kModel, "--prompts", "/dev/zero"}, device);
  ExpectRefused({"eval", "retrieval", kModel, "--jsonl", "/dev/zero"}, device);
  ExpectRefused({"eval", "perplexity", kModel, "--file", "/dev/zero", "--context", "512"}, device);
  for (const auto& [odd, kind] : {std::pair{std::string("/dev/zero"), "is a character device"},
                                  std::pair{pipe, "is a pipe"}}) {
    ExpectRefused({"plan", kModel, "--machine", odd}, kind);
    ExpectRefused({"run", kModel, "-pHello", "--head-pattern", odd}, kind);
    ExpectRefused({"run", kModel, "-pHello", "--session", odd}, kind);
    ExpectRefused({"run", kModel, "-pHello", "--trace", odd}, kind);
    ExpectRefused({"inspect", odd}, "is not a Headway session");
  }
}

TEST_F(CliFiles, TextComesThroughPipes) {
  const std::string pipe = dir_.File("pipe");
  std::thread writer([&] { WriteFile(pipe, "The old man"); });
  const Outcome piped = Run({"run", kModel, "-f", pipe, "-n", "4", "--json"});
  writer.join();
  const Outcome named = Run({"run", kModel, "-p", "The old man", "-n", "4", "--json"});
  const Outcome standard =
      Run({"run", kModel, "-f", "/dev/stdin", "-n", "4", "--json"}, "The old man");
  ASSERT_EQ(named.status, 0) << named.err;
  EXPECT_EQ(piped.json()["tokens"], named.json()["tokens"]);
  EXPECT_EQ(standard.json()["tokens"], named.json()["tokens"]);
}

TEST_F(CliFiles, AByteOrderMarkIsLeftOut) {
  const Outcome marked = Run({"run", kModel, "-n", "4", "--json"}, "\xef\xbb\xbfThe old man");
  const Outcome plain = Run({"run", kModel, "-n", "4", "--json"}, "The old man");
  ASSERT_EQ(marked.status, 0) << marked.err;
  EXPECT_EQ(marked.json()["prompt_tokens"], plain.json()["prompt_tokens"]);
  EXPECT_EQ(marked.json()["tokens"], plain.json()["tokens"]);
  EXPECT_THAT(marked.err, HasSubstr("note: standard input begins with a byte order mark"));
  EXPECT_THAT(plain.err, Not(HasSubstr("byte order")));
}

TEST_F(CliFiles, WhatIsWrongAnywayIsSaidFirst) {
  ExpectFailure({"run", dir_.File("nosuch")}, 1, "nosuch");  // and nothing on standard input
  ExpectFailure({"probe", "-o", dir_.File("no/such/file")}, 1, "cannot create " + dir_.File("no"));
}

}  // namespace
}  // namespace headway
