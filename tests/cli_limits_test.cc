// The program under limits of the system: what it cannot have is one line and exit 1, never a
// signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "support/cli.h"

namespace headway {
namespace {

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

}  // namespace
}  // namespace headway
