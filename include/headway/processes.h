// Ranks in processes: a model that is shared by what a launcher of MPI starts, `mpirun -n N`.
//
//   auto processes = Processes::Join(version_and_arguments);
//   if (processes.ok() && *processes != nullptr && (*processes)->rank() > 0) {
//     (*processes)->Serve();
//     return 0;
//   }
//   ... Engine::Open with EngineOptions::tensor_parallel = N, in the first process alone
#ifndef HEADWAY_PROCESSES_H_
#define HEADWAY_PROCESSES_H_

#include <memory>
#include <string>

#include "headway/status.h"

namespace headway {

class ProcessGroup;  // of parallel/

class Processes {
 public:
  // Joins the processes that the launcher started with this one: once, before the first engine.
  // Null where this process was started alone. `same` must be what it is in the others, or else
  // `differs` says what it is: "another command line". kUnsupported in a build without MPI.
  static Result<std::unique_ptr<Processes>> Join(const std::string& same,
                                                 const std::string& differs);
  // Leaves the group. The first process makes the others leave; after an error that has cut a call
  // short it ends all of them, itself as well.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Which one this process is in its launcher's eyes, also where it cannot join; 0: alone, or the
  // first.
  static int LaunchedRank();

  int rank() const;
  // Of ranks from 1 on: does its part of what the first one's engines do, until that leaves.
  Status Serve();

 private:
  explicit Processes(std::unique_ptr<ProcessGroup> group);
  std::unique_ptr<ProcessGroup> group_;
};

}  // namespace headway

#endif  // HEADWAY_PROCESSES_H_
