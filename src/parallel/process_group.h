// ProcessGroup: ranks that a launcher of MPI started (mpirun, srun), each a process of its own.
#ifndef HEADWAY_PARALLEL_PROCESS_GROUP_H_
#define HEADWAY_PARALLEL_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headway/status.h"
#include "parallel/communicator.h"

namespace headway {

// What a launcher of MPI tells a process in its environment.
struct Launch {
  int rank = 0;
  int processes = 1;
};
// Empty where none started this process.
std::optional<Launch> LaunchOfProcess();

// What is known of calls that ranks make of each other by other means than the group's: from GPU to
// GPU. Such a call is done once every rank has begun it.
enum class DeviceCalls {
  kOpen,       // nothing speaks against it
  kDoubtful,   // a rank has ended with an error; it had begun as many, which may never end there
  kNeverDone,  // a rank has ended, or given up, without one that this rank has begun
};
// Why a rank makes no such calls any more: for what happened to itself, or to another.
enum class GaveUp { kByItself, kForAnother };

class ProcessGroup {
 public:
  // Leaves the group together with the others. Of one that is broken rank 0 ends all processes.
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Processes of this machine that may use the same cores as this one, itself among them.
  virtual int core_sharers() const = 0;
  // Its number among the ranks of its machine: the lowest rank there has 0.
  virtual int rank_on_machine() const = 0;
  // Machines that the ranks are on where each has as many of them; else 1.
  virtual int machines() const = 0;
  // For use in Run, on a device whose memory the host reads; on others what hosts say alone.
  virtual Communicator& communicator() = 0;

  // What ThreadGroup::Run is: all ranks call it, each with its own work, and it returns in all of
  // them when all have done theirs. The error is a rank's own, or else that of the first rank that
  // has one.
  virtual Status Run(const std::function<Status()>& work) = 0;
  // What every later Run returns: not ok once an error has cut a call short.
  virtual const Status& broken() const = 0;

  // In Run: rank 0's bytes on every rank.
  virtual Result<std::string> TextOfFirst(const std::string& text) = 0;
  // In Run: the values of all ranks, one rank after the other; each gives as many.
  virtual Result<std::vector<int64_t>> Gather(std::span<const int64_t> values) = 0;
  // In Run: every rank's bytes on rank 0, of which each gives as many as it has; on the others
  // nothing. kUnsupported, on all of them, where these are more than kMostGatheredBytes in all.
  virtual Result<std::vector<std::string>> GatherTexts(const std::string& text) = 0;

  // From any thread. In Run: this rank begins one more call of devices.
  virtual void CountDeviceCall() = 0;
  virtual DeviceCalls AskDeviceCalls() = 0;
  // This rank's calls of devices are at their end, and the group is with this Run or the next.
  virtual void GiveUpDeviceCalls(GaveUp why) = 0;
};

inline constexpr int64_t kMostGatheredBytes = int64_t{1} << 30;

// Joins the other processes of the launcher, once in a process. kUnsupported in a build that has no
// MPI.
Result<std::unique_ptr<ProcessGroup>> JoinProcesses();

}  // namespace headway

#endif  // HEADWAY_PARALLEL_PROCESS_GROUP_H_
