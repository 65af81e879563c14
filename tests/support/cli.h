// Runs the built program as its users do, on the demo model.
#ifndef HEADWAY_TESTS_SUPPORT_CLI_H_
#define HEADWAY_TESTS_SUPPORT_CLI_H_

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_dir.h"

namespace headway {

using Json = nlohmann::json;
using Args = std::vector<std::string>;

inline const std::string kModel = HEADWAY_SOURCE_DIR "/models/demo";

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Outcome {
  int status = -1;  // the exit status, or 128 + the signal
  std::string out, err;
  int64_t peak_bytes = 0;  // resident, of the process

  Json json() const {
    const Json parsed = Json::parse(out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << "no JSON: " << out << err;
    return parsed;
  }
};

class Cli : public ::testing::Test {
 protected:
  // Starts the program with standard input from a file; output goes to files, or `out` and `err`
  // where given. Of two that run at once, one has its own.
  pid_t Start(const Args& args, const std::string& input, const std::string& out = "",
              const std::string& err = "") {
    WriteFile(dir_.File("in"), input);
    std::vector<char*> argv;
    argv.push_back(program_.data());
    Args copy = args;
    for (std::string& arg : copy) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const std::string paths[3] = {dir_.File("in"), out.empty() ? dir_.File("out") : out,
                                  err.empty() ? dir_.File("err") : err};
    const pid_t child = fork();
    if (child != 0) return child;
    for (int fd = 0; fd < 3; ++fd) {
      const int flags = fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC;
      const int opened = open(paths[fd].c_str(), flags, 0600);
      if (opened < 0 || dup2(opened, fd) < 0) _exit(126);
    }
    if (in_child_) in_child_();
    execv(argv[0], argv.data());
    _exit(127);
  }

  Outcome Wait(pid_t child) {
    int status = 0;
    rusage usage = {};
    EXPECT_EQ(wait4(child, &status, 0, &usage), child);
    Outcome outcome;
    outcome.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = ReadFile(dir_.File("out"));
    outcome.err = ReadFile(dir_.File("err"));
    return outcome;
  }

  Outcome Run(const Args& args, const std::string& input = "") { return Wait(Start(args, input)); }

  // A command that must work, with --json.
  Json RunJson(Args args, const std::string& input = "") {
    args.push_back("--json");
    const Outcome outcome = Run(args, input);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.json();
  }

  // Kills a command within a time; returns whether it had not ended by itself.
  bool KillWithin(const Args& args, int64_t within_ms, Random* random) {
    const pid_t child = Start(args, "");
    std::this_thread::sleep_for(std::chrono::milliseconds(random->Below(within_ms + 1)));
    kill(child, SIGKILL);
    return Wait(child).status == 128 + SIGKILL;
  }

  // The tokens that a session holds; 0 where there is none yet.
  int64_t SavedIn(const std::string& session) {
    if (!std::ifstream(session).good()) return 0;
    const std::string tokens = RunJson({"inspect", session})["fields"]["tokens"];
    return std::stoll(tokens);
  }

  // A command that must fail with one line that has `message`.
  void ExpectFailure(const Args& args, int status, const std::string& message,
                     const std::string& input = "") {
    const Outcome outcome = Run(args, input);
    EXPECT_EQ(outcome.status, status) << message << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("headway: error: "));
    EXPECT_THAT(outcome.err, ::testing::HasSubstr(message));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }

  // A document of about `tokens` tokens that says a pass key, as one line of a generated set.
  Json Document(int tokens) {
    const Outcome written =
        Run({"eval", "retrieval", kModel, "--generate", "1", "--context", std::to_string(tokens),
             "--kinds", "passkey", "--write", dir_.File("lines")});
    EXPECT_EQ(written.status, 0) << written.err;
    return Json::parse(ReadFile(dir_.File("lines")), nullptr, false);
  }

  TestDir dir_;
  std::string program_ = HEADWAY_BINARY;  // or what starts it
  std::function<void()> in_child_;        // called before the program runs; may be empty
};

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_CLI_H_
