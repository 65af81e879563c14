#include "parallel/mpi/mpi_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "parallel/group_errors.h"

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that waits keeps asking before it sleeps between two questions: ranks of a step
// come within less. One that waits for the first rank's next order waits for a user.
constexpr std::chrono::microseconds kAskTime{200};
constexpr std::chrono::microseconds kShortSleep{50};
constexpr std::chrono::milliseconds kAwakeTime{20};
constexpr std::chrono::milliseconds kLongSleep{1};
// Until a rank of a broken group ends itself, where the first one does not end all.
constexpr std::chrono::seconds kLastWait{5};

Status OfMpi(int error) {
  if (error == MPI_SUCCESS) return OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, text, &length);
  return Status(StatusCode::kIo, std::string("MPI: ") + text);
}

// Between two questions of a rank that has waited since `begin`.
void Pause(Clock::time_point begin) {
  const Clock::duration waited = Clock::now() - begin;
  if (waited < kAskTime) {
    sched_yield();
  } else if (waited < kAwakeTime) {
    std::this_thread::sleep_for(kShortSleep);
  } else {
    std::this_thread::sleep_for(kLongSleep);
  }
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> MpiGroup::Join() {
  int provided = 0;
  if (Status s = OfMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
      !s.ok()) {
    return s;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return Status(StatusCode::kUnsupported, "this MPI cannot be used by programs with threads");
  }
  auto group = std::make_unique<MpiGroup>();
  MPI_Comm_rank(MPI_COMM_WORLD, &group->rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &group->ranks_);
  const auto ranks = static_cast<size_t>(group->ranks_);
  group->farewells_.resize(ranks);
  group->requests_.resize(ranks, MPI_REQUEST_NULL);
  for (MPI_Comm* comm :
       {&group->comms_[kStreams], &group->comms_[kHosts], &group->farewell_comm_}) {
    if (Status s = OfMpi(MPI_Comm_dup(MPI_COMM_WORLD, comm)); !s.ok()) return s;
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  if (Status s = group->CountMachine(); !s.ok()) return s;
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

Status MpiGroup::CountMachine() {
  MPI_Comm machine = MPI_COMM_NULL;
  if (Status s = OfMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_,
                                           MPI_INFO_NULL, &machine));
      !s.ok()) {
    return s;
  }
  int processes = 1;
  MPI_Comm_size(machine, &processes);
  MPI_Comm_rank(machine, &rank_on_machine_);
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof(own), &own);
  std::vector<cpu_set_t> all(static_cast<size_t>(processes));
  const Status gathered =
      OfMpi(MPI_Allgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, machine));
  MPI_Comm_free(&machine);
  if (!gathered.ok()) return gathered;
  core_sharers_ =
      static_cast<int>(std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) {
        return CPU_EQUAL(&other, &own) != 0;
      }));
  std::vector<int> on_machines(static_cast<size_t>(ranks_));
  if (Status s = OfMpi(
          MPI_Allgather(&processes, 1, MPI_INT, on_machines.data(), 1, MPI_INT, MPI_COMM_WORLD));
      !s.ok()) {
    return s;
  }
  const bool even = std::all_of(on_machines.begin(), on_machines.end(),
                                [&](int on_machine) { return on_machine == processes; });
  machines_ = even ? ranks_ / processes : 1;
  return OkStatus();
}

MpiGroup::~MpiGroup() {
  if (broken_.ok()) {
    MPI_Finalize();
    return;
  }
  // The first rank has said why. The others leave it the time for that.
  if (rank_ != 0) std::this_thread::sleep_for(kLastWait);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

Status MpiGroup::Run(const std::function<Status()>& work) {
  if (!broken_.ok()) return broken_;
  {
    const std::lock_guard lock(mutex_);
    cut_short_ = false;
    std::fill(std::begin(calls_), std::end(calls_), 0);
    if (given_up_) calls_[kDevices] = kGivenUp;
    for (int other = 0; other < ranks_; ++other) {
      if (other == rank_) continue;
      Farewell* const said = &farewells_[static_cast<size_t>(other)];
      *said = {};
      MPI_Irecv(said, sizeof(Farewell), MPI_BYTE, other, 0, farewell_comm_,
                &requests_[static_cast<size_t>(other)]);
    }
    runs_ = true;
  }
  const Status status = Guarded(work);
  SayFarewell(status);
  const std::lock_guard lock(mutex_);
  runs_ = false;
  return Conclude(status);
}

void MpiGroup::SayFarewell(const Status& status) {
  Farewell& own = farewells_[static_cast<size_t>(rank_)];
  own = {};
  own.code = static_cast<int32_t>(status.code());
  status.message().copy(own.text, sizeof(own.text) - 1);
  std::vector<MPI_Request> sends;
  {
    const std::lock_guard lock(mutex_);
    own.cut_short = cut_short_ ? 1 : 0;
    std::copy_n(calls_, kPlaces, own.calls);
    for (int other = 0; other < ranks_; ++other) {
      if (other == rank_) continue;
      MPI_Isend(&own, sizeof(own), MPI_BYTE, other, 0, farewell_comm_, &sends.emplace_back());
    }
  }
  const auto all = [&](std::vector<MPI_Request>* requests) {
    const std::lock_guard lock(mutex_);
    int done = 0;
    MPI_Testall(static_cast<int>(requests->size()), requests->data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  };
  const Clock::time_point begin = Clock::now();
  while (!all(&sends) || !all(&requests_)) Pause(begin);
}

Status MpiGroup::Conclude(const Status& own) {
  // What this rank has said counts, as with the others: all come to one conclusion.
  const int64_t* const calls = farewells_[static_cast<size_t>(rank_)].calls;
  int failed = -1, waiting = -1;  // the first rank that failed by itself, and that waited for one
  bool apart = false;             // a rank has made other calls: some may be done without it
  for (int rank = 0; rank < ranks_; ++rank) {
    const Farewell& said = farewells_[static_cast<size_t>(rank)];
    apart = apart || !std::equal(calls, calls + kPlaces, said.calls);
    if (said.status().ok()) continue;
    int& first = said.cut_short != 0 ? waiting : failed;
    if (first < 0) first = rank;
  }
  if (failed < 0 && waiting < 0) {
    if (apart) broken_ = Status(StatusCode::kInternal, "ranks have made unequal calls");
    return broken_;
  }
  // The next call would meet what a rank has left out, or has no way any more.
  const bool over = waiting >= 0 || apart || calls[kDevices] == kGivenUp;
  if (!own.ok() && !over) return own;
  const int rank = failed < 0 ? waiting : failed;
  const Status told =
      OfRank(rank, ranks_, rank == rank_ ? own : farewells_[static_cast<size_t>(rank)].status());
  if (over) broken_ = told;
  return told;
}

bool MpiGroup::CutShort(Place place) {
  for (size_t other = 0; other < requests_.size(); ++other) {
    int come = 0;
    // A null request has come.
    MPI_Test(&requests_[other], &come, MPI_STATUS_IGNORE);
    const bool own = other == static_cast<size_t>(rank_);
    if (!own && come != 0 && farewells_[other].calls[place] <= calls_[place]) return true;
  }
  return false;
}

void MpiGroup::CountDeviceCall() {
  const std::lock_guard lock(mutex_);
  if (!given_up_) ++calls_[kDevices];
}

DeviceCalls MpiGroup::AskDeviceCalls() {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return DeviceCalls::kNeverDone;
  DeviceCalls calls = DeviceCalls::kOpen;
  for (size_t other = 0; runs_ && other < requests_.size(); ++other) {
    if (other == static_cast<size_t>(rank_)) continue;
    int come = 0;
    MPI_Test(&requests_[other], &come, MPI_STATUS_IGNORE);
    if (come == 0) continue;
    const Farewell& said = farewells_[other];
    if (said.calls[kDevices] < calls_[kDevices]) return DeviceCalls::kNeverDone;
    if (!said.status().ok()) calls = DeviceCalls::kDoubtful;
  }
  return calls;
}

void MpiGroup::GiveUpDeviceCalls(GaveUp why) {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  calls_[kDevices] = kGivenUp;
  if (why == GaveUp::kForAnother) cut_short_ = true;
}

Status MpiGroup::Call(Place place,
                      const std::function<int(MPI_Comm comm, MPI_Request* request)>& begin) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    if (Status s = OfMpi(begin(comms_[place], &request)); !s.ok()) return s;
  }
  const Clock::time_point start = Clock::now();
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      int done = 0;
      if (Status s = OfMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE)); !s.ok()) return s;
      if (done != 0) {
        ++calls_[place];
        return OkStatus();
      }
      if (CutShort(place)) {
        cut_short_ = true;
        return WaitsInVain();
      }
    }
    Pause(start);
  }
}

Result<std::unique_ptr<ProcessGroup>> JoinProcesses() { return MpiGroup::Join(); }

}  // namespace headway
