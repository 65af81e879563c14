#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/exceptions.h"
#include "parallel/group_errors.h"
#include "parallel/process_group.h"

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
// Floats that are added up, or gathered, at a time.
constexpr int64_t kBlock = int64_t{1} << 18;

// Ranks make calls in order at each place. A stream may be behind its host.
enum Place { kStreams, kHosts, kPlaces };

// What a rank says at the end of its work, so that those that wait for it do not wait for ever.
struct Farewell {
  int32_t code = 0;             // a StatusCode
  int32_t cut_short = 0;        // the error is another rank's end
  int64_t calls[kPlaces] = {};  // that it has made to their end
  char text[1000] = {};

  Status status() const { return Status(static_cast<StatusCode>(code), text); }
};

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

// Room for `count` values.
template <typename T>
T* Fit(std::vector<std::byte>* buffer, int64_t count) {
  buffer->resize(static_cast<size_t>(count) * sizeof(T));
  return reinterpret_cast<T*>(buffer->data());
}

class MpiGroup final : public ProcessGroup, private Communicator {
 public:
  static Result<std::unique_ptr<ProcessGroup>> Join();
  ~MpiGroup() override;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  int core_sharers() const override { return core_sharers_; }
  Communicator& communicator() override { return *this; }
  Status Run(const std::function<Status()>& work) override;
  const Status& broken() const override { return broken_; }
  Result<std::string> TextOfFirst(const std::string& text) override;
  Result<std::vector<int64_t>> Gather(std::span<const int64_t> values) override {
    return GatherAt(kHosts, values);
  }
  Result<std::vector<std::string>> GatherTexts(const std::string& text) override;

 private:
  void AllReduceSum(Stream& stream, float* data, int64_t count) override;
  void AllGather(Stream& stream, const SharedColumns& matrix) override;
  void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) override;
  void Barrier(Stream& stream) override;
  Result<int64_t> OfFirst(int64_t value) override;
  Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) override;

  Status CountSharers();
  // Begins a call of a place and waits for it. Calls of MPI are made by one thread at a time.
  Status Call(Place place, const std::function<int(MPI_Comm comm, MPI_Request* request)>& begin);
  // Whether a rank has ended without the call that this one is in.
  bool CutShort(Place place);
  void SayFarewell(const Farewell& own);
  Status Conclude(const Status& own);

  Status SumBlock(float* data, int64_t count);
  Status GatherColumns(const SharedColumns& matrix);
  Status GatherRows(const SharedColumns& matrix, std::span<const int64_t> shapes);
  Status SendFirst(Place place, std::span<std::byte> data, int from);
  Result<std::vector<int64_t>> GatherAt(Place place, std::span<const int64_t> values);

  int rank_ = 0, ranks_ = 1, core_sharers_ = 1;
  std::mutex mutex_;
  MPI_Comm comms_[kPlaces] = {MPI_COMM_NULL, MPI_COMM_NULL};
  MPI_Comm farewell_comm_ = MPI_COMM_NULL;
  // What a call gives and takes, which one that is cut short goes on using.
  struct {
    std::vector<std::byte> given, received;
  } buffers_[kPlaces], texts_;
  // Of this Run.
  int64_t calls_[kPlaces] = {};  // that were made to their end
  bool cut_short_ = false;
  std::vector<Farewell> farewells_;    // [ranks], the own one apart
  std::vector<MPI_Request> requests_;  // [ranks]: for them; null where one has come
  Status broken_;
};

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
  if (Status s = group->CountSharers(); !s.ok()) return s;
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

Status MpiGroup::CountSharers() {
  MPI_Comm machine = MPI_COMM_NULL;
  if (Status s = OfMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_,
                                           MPI_INFO_NULL, &machine));
      !s.ok()) {
    return s;
  }
  int processes = 1;
  MPI_Comm_size(machine, &processes);
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
  cut_short_ = false;
  std::fill(std::begin(calls_), std::end(calls_), 0);
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    const auto i = static_cast<size_t>(other);
    farewells_[i] = {};
    MPI_Irecv(&farewells_[i], sizeof(Farewell), MPI_BYTE, other, 0, farewell_comm_, &requests_[i]);
  }
  const Status status = Guarded(work);
  Farewell own;
  own.code = static_cast<int32_t>(status.code());
  own.cut_short = cut_short_ ? 1 : 0;
  std::copy_n(calls_, kPlaces, own.calls);
  status.message().copy(own.text, sizeof(own.text) - 1);
  SayFarewell(own);
  return Conclude(status);
}

void MpiGroup::SayFarewell(const Farewell& own) {
  std::vector<MPI_Request> sends;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    MPI_Isend(&own, sizeof(own), MPI_BYTE, other, 0, farewell_comm_, &sends.emplace_back());
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
  int failed = -1, waiting = -1;  // the first rank that failed by itself, and that waited for one
  bool apart = false;             // a rank has made other calls: some may be done without it
  for (int rank = 0; rank < ranks_; ++rank) {
    const Farewell& said = farewells_[static_cast<size_t>(rank)];
    apart = apart || (rank != rank_ && !std::equal(calls_, calls_ + kPlaces, said.calls));
    if (rank == rank_ ? own.ok() : said.status().ok()) continue;
    int& first = (rank == rank_ ? cut_short_ : said.cut_short != 0) ? waiting : failed;
    if (first < 0) first = rank;
  }
  if (failed < 0 && waiting < 0) {
    if (apart) broken_ = Status(StatusCode::kInternal, "ranks have made unequal calls");
    return broken_;
  }
  const bool over = waiting >= 0 || apart;  // the next call would meet what a rank has left out
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

// Each rank adds up its part of the elements, in the order of the ranks, and gives it to all.
Status MpiGroup::SumBlock(float* data, int64_t count) {
  std::vector<int> sizes, begins, own_sizes, own_begins;
  const auto begin_of = [&](int rank) { return static_cast<int>(count * rank / ranks_); };
  const int own = begin_of(rank_ + 1) - begin_of(rank_);
  for (int rank = 0; rank < ranks_; ++rank) {
    begins.push_back(begin_of(rank));
    sizes.push_back(begin_of(rank + 1) - begin_of(rank));
    own_begins.push_back(rank * own);
    own_sizes.push_back(own);
  }
  auto& [given_bytes, received_bytes] = buffers_[kStreams];
  float* const given = Fit<float>(&given_bytes, count);
  float* const received =
      Fit<float>(&received_bytes, std::max<int64_t>(int64_t{own} * ranks_, count));
  std::copy_n(data, count, given);
  Status status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Ialltoallv(given, sizes.data(), begins.data(), MPI_FLOAT, received, own_sizes.data(),
                          own_begins.data(), MPI_FLOAT, comm, request);
  });
  if (!status.ok()) return status;
  std::copy_n(received, own, given);
  for (int rank = 1; rank < ranks_; ++rank) {
    const float* from = received + int64_t{rank} * own;
    for (int i = 0; i < own; ++i) given[i] += from[i];
  }
  status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgatherv(given, own, MPI_FLOAT, received, sizes.data(), begins.data(), MPI_FLOAT,
                           comm, request);
  });
  if (status.ok()) std::copy_n(received, count, data);
  return status;
}

void MpiGroup::AllReduceSum(Stream& stream, float* data, int64_t count) {
  const int64_t bytes = count * int64_t{sizeof(float)};
  stream.HostWork({"all-reduce", 2 * bytes, count * (ranks_ - 1)}, [this, data, count] {
    for (int64_t at = 0; at < count; at += kBlock) {
      if (Status s = SumBlock(data + at, std::min(kBlock, count - at)); !s.ok()) return s;
    }
    return OkStatus();
  });
}

// [begin, end) of each rank behind one another in `shapes`, after rows and columns.
Status MpiGroup::GatherRows(const SharedColumns& matrix, std::span<const int64_t> shapes) {
  const auto begin_of = [&](int rank) { return shapes[static_cast<size_t>(4 * rank + 2)]; };
  const auto width_of = [&](int rank) {
    return shapes[static_cast<size_t>(4 * rank + 3)] - begin_of(rank);
  };
  std::vector<int> sizes, begins;
  int total = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    begins.push_back(total);
    sizes.push_back(static_cast<int>(matrix.rows * width_of(rank)));
    total += sizes.back();
  }
  const int64_t own = width_of(rank_);
  auto& [given_bytes, received_bytes] = buffers_[kStreams];
  float* const given = Fit<float>(&given_bytes, matrix.rows * own);
  float* const received = Fit<float>(&received_bytes, total);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    std::copy_n(matrix.data + row * matrix.columns + matrix.begin, own, given + row * own);
  }
  const Status status = Call(kStreams, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgatherv(given, static_cast<int>(matrix.rows * own), MPI_FLOAT, received,
                           sizes.data(), begins.data(), MPI_FLOAT, comm, request);
  });
  if (!status.ok()) return status;
  for (int rank = 0; rank < ranks_; ++rank) {
    const float* from = received + begins[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < matrix.rows && rank != rank_; ++row) {
      std::copy_n(from + row * width_of(rank), width_of(rank),
                  matrix.data + row * matrix.columns + begin_of(rank));
    }
  }
  return OkStatus();
}

Status MpiGroup::GatherColumns(const SharedColumns& matrix) {
  const int64_t shape[] = {matrix.rows, matrix.columns, matrix.begin, matrix.end};
  const Result<std::vector<int64_t>> shapes = GatherAt(kStreams, shape);
  if (!shapes.ok()) return shapes.status();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (std::equal(shape, shape + 2, shapes->data() + 4 * rank)) continue;
    return UnequalSizes();
  }
  const int64_t most = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, matrix.columns));
  for (int64_t row = 0; row < matrix.rows; row += most) {
    SharedColumns some = matrix;
    some.data += row * matrix.columns;
    some.rows = std::min(most, matrix.rows - row);
    if (Status s = GatherRows(some, *shapes); !s.ok()) return s;
  }
  return OkStatus();
}

void MpiGroup::AllGather(Stream& stream, const SharedColumns& matrix) {
  stream.HostWork({"all-gather", 2 * matrix.rows * matrix.columns * int64_t{sizeof(float)}, 0},
                  [=, this] { return GatherColumns(matrix); });
}

Status MpiGroup::SendFirst(Place place, std::span<std::byte> data, int from) {
  HEADWAY_CHECK(data.size() <= INT_MAX);
  std::vector<std::byte>& buffer = buffers_[place].given;
  buffer.assign(data.begin(), data.end());
  const Status status = Call(place, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Ibcast(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, from, comm,
                      request);
  });
  if (status.ok()) std::copy(buffer.begin(), buffer.end(), data.begin());
  return status;
}

void MpiGroup::Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) {
  stream.HostWork({"broadcast", 2 * bytes, 0}, [=, this] {
    return SendFirst(kStreams, {data, static_cast<size_t>(bytes)}, from);
  });
}

void MpiGroup::Barrier(Stream& stream) {
  stream.HostWork({"barrier", 0, 0}, [this] {
    return Call(kStreams, [](MPI_Comm comm, MPI_Request* r) { return MPI_Ibarrier(comm, r); });
  });
}

Result<int64_t> MpiGroup::OfFirst(int64_t value) {
  const Status status = SendFirst(kHosts, std::as_writable_bytes(std::span(&value, 1)), 0);
  if (!status.ok()) return status;
  return value;
}

Status MpiGroup::GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) {
  HEADWAY_CHECK(all.size() == own.size() * static_cast<size_t>(ranks_) && own.size() <= INT_MAX);
  const auto count = static_cast<int>(own.size());
  auto& [given, received] = buffers_[kHosts];
  given.assign(own.begin(), own.end());
  received.resize(all.size());
  const Status status = Call(kHosts, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgather(given.data(), count, MPI_BYTE, received.data(), count, MPI_BYTE, comm,
                          request);
  });
  if (status.ok()) std::copy(received.begin(), received.end(), all.begin());
  return status;
}

Result<std::string> MpiGroup::TextOfFirst(const std::string& text) {
  const Result<int64_t> size = OfFirst(std::ssize(text));
  if (!size.ok()) return size.status();
  std::string all = text;
  all.resize(static_cast<size_t>(*size));
  const Status status = SendFirst(kHosts, std::as_writable_bytes(std::span(all)), 0);
  if (!status.ok()) return status;
  return all;
}

Result<std::vector<int64_t>> MpiGroup::GatherAt(Place place, std::span<const int64_t> values) {
  const auto count = static_cast<int>(values.size());
  const int64_t total = int64_t{count} * ranks_;
  int64_t* const given = Fit<int64_t>(&buffers_[place].given, count);
  int64_t* const received = Fit<int64_t>(&buffers_[place].received, total);
  std::copy(values.begin(), values.end(), given);
  const Status status = Call(place, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Iallgather(given, count, MPI_INT64_T, received, count, MPI_INT64_T, comm, request);
  });
  if (!status.ok()) return status;
  return std::vector<int64_t>(received, received + total);
}

// Room for all of it first, on all ranks: none begins what another one cannot end.
Result<std::vector<std::string>> MpiGroup::GatherTexts(const std::string& text) {
  const int64_t own = std::ssize(text);
  const Result<std::vector<int64_t>> sizes = GatherAt(kHosts, {&own, 1});
  if (!sizes.ok()) return sizes.status();
  const int64_t total = std::accumulate(sizes->begin(), sizes->end(), int64_t{0});
  if (total > kMostGatheredBytes) {
    return Status(StatusCode::kUnsupported, "what ranks tell the first one takes more than " +
                                                FormatBytes(kMostGatheredBytes));
  }
  std::vector<int> counts, begins;
  auto& [given, received] = texts_;
  const Status fits = Guarded([&] {
    counts.assign(sizes->begin(), sizes->end());
    begins.resize(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    std::copy(text.begin(), text.end(), Fit<char>(&given, own));
    Fit<char>(&received, rank_ == 0 ? total : 0);
    return OkStatus();
  });
  const int64_t room[] = {fits.ok() ? 1 : 0};
  const Result<std::vector<int64_t>> all = GatherAt(kHosts, room);
  if (!all.ok() || !fits.ok()) return all.ok() ? fits : all.status();
  if (std::find(all->begin(), all->end(), 0) != all->end()) {
    return Status(StatusCode::kIo, "a rank has no memory for what ranks tell the first one");
  }
  const Status status = Call(kHosts, [&](MPI_Comm comm, MPI_Request* request) {
    return MPI_Igatherv(given.data(), static_cast<int>(own), MPI_CHAR, received.data(),
                        counts.data(), begins.data(), MPI_CHAR, 0, comm, request);
  });
  if (!status.ok()) return status;
  const auto* const bytes = reinterpret_cast<const char*>(received.data());
  std::vector<std::string> texts;
  for (size_t rank = 0; rank_ == 0 && rank < counts.size(); ++rank) {
    texts.emplace_back(bytes + begins[rank], static_cast<size_t>(counts[rank]));
  }
  given = {};  // they may be much
  received = {};
  return texts;
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> JoinProcesses() { return MpiGroup::Join(); }

}  // namespace headway
