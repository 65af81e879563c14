// Runs the built program as ranks in processes, which mpirun starts.
#ifndef HEADWAY_TESTS_SUPPORT_MPIRUN_H_
#define HEADWAY_TESTS_SUPPORT_MPIRUN_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/cli.h"
#include "support/rank_gpus.h"

namespace headway {

inline const std::string kProgram = HEADWAY_BINARY;

class Mpirun : public Cli {
 public:
  using Clock = std::chrono::steady_clock;

 protected:
  Mpirun() {
    program_ = HEADWAY_MPIRUN;
    in_child_ = [] {
      for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe"}) {
        setenv(name, "1", 1);
      }
      // Containers may forbid what it would use.
      setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    };
  }

  // Ranks in processes do not share a GPU, as those of other tests do.
  void SetUp() override {
    const std::vector<int> gpus = testing::GpusOfRanks(2);
    if (gpus.empty() || gpus[0] != gpus[1]) return;
    GTEST_SKIP() << "no NVIDIA GPU can be used by each rank; HEADWAY_TEST_GPUS says how many are";
  }

  static Args OnRanks(int processes, const Args& args) {
    Args all = {"-n", std::to_string(processes), kProgram};
    all.insert(all.end(), args.begin(), args.end());
    return all;
  }
  // Ranks with command lines of their own, so many with the first and one with the second.
  static Args Apart(const Args& first, const Args& second, int with_first = 1) {
    Args all = {"-n", std::to_string(with_first)};
    all.insert(all.end(), first.begin(), first.end());
    all.insert(all.end(), {":", "-n", "1"});
    all.insert(all.end(), second.begin(), second.end());
    return all;
  }

  // A run that fails with one line of the program's; the launcher adds its own.
  void ExpectOneError(const Args& args, const std::string& message) {
    const Clock::time_point begin = Clock::now();
    const Outcome outcome = Run(args);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));  // ends
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, ::testing::HasSubstr(message));
    size_t errors = 0;
    for (size_t at = 0; (at = outcome.err.find("headway: error: ", at)) != std::string::npos;
         ++at) {
      ++errors;
    }
    EXPECT_EQ(errors, 1u) << outcome.err;
  }

  // Waits for a launcher, which ends at *ended. Open MPI 4.1 hangs in its own end at times
  // (PMIx_server_finalize): one that has been without ranks for half a minute is killed, and then
  // *ended is when the last one was seen.
  Outcome WaitFor(pid_t launcher, Clock::time_point* ended) {
    *ended = Clock::now();
    bool hangs = false;
    while (IsThere(launcher)) {
      const std::vector<pid_t> ranks = ChildrenOf(launcher);
      if (std::any_of(ranks.begin(), ranks.end(), IsThere)) *ended = Clock::now();
      hangs = Clock::now() - *ended > std::chrono::seconds(30);
      if (hangs) kill(launcher, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (!hangs) *ended = Clock::now();
    return Wait(launcher);
  }

  // What a process says of itself until it is gone.
  static bool IsThere(pid_t process) {
    return !ReadFile("/proc/" + std::to_string(process) + "/cmdline").empty();
  }
  static std::vector<pid_t> ChildrenOf(pid_t process) {
    const std::string id = std::to_string(process);
    std::istringstream ids(ReadFile("/proc/" + id + "/task/" + id + "/children"));
    std::vector<pid_t> children;
    for (pid_t child = 0; ids >> child;) children.push_back(child);
    return children;
  }
  // The process of a rank that `launcher` has started; 0: there is none yet.
  static pid_t ProcessOf(pid_t launcher, int rank) {
    const std::string name = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    for (const pid_t child : ChildrenOf(launcher)) {
      std::istringstream values(ReadFile("/proc/" + std::to_string(child) + "/environ"));
      for (std::string value; std::getline(values, value, '\0');) {
        if (value == name) return child;
      }
    }
    return 0;
  }
};

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_MPIRUN_H_
