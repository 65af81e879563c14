#include "parallel/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "device/cuda/cuda_errors.h"
#include "device/cuda/waiting_kernels.h"
#include "headway/refusal.h"
#include "kernels/cuda/call.h"
#include "parallel/group_errors.h"
#include "parallel/nccl/nccl_library.h"

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;

// Between two questions whether calls can still be done.
constexpr std::chrono::milliseconds kAskTime{10};
// For calls that a rank had begun before it failed: time to end, if they are going to.
constexpr std::chrono::seconds kDoubtTime{2};
constexpr std::chrono::seconds kConnectTime{120};
// Calls that the host may be ahead of the GPU. Their launches, and those of the kernels between,
// stay far below what the driver queues (1,024), so that a launch never waits for other ranks.
constexpr size_t kAhead = 32;

// Why calls have failed: set once, before they are aborted, and known to their streams, which may
// live longer than the communicator.
class Failure {
 public:
  void Set(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = why;
  }
  Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  Status status_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const nccl::Library& library, nccl::Comm comm, ProcessGroup* group, int gpu)
      : library_(library), group_(*group), gpu_(gpu), waiting_(gpu), comm_(comm) {}
  ~NcclCommunicator() override;
  // Its memory and events, and the thread that ends calls which will not be done.
  Status Prepare();

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }
  void AllReduceSum(Stream& stream, float* data, int64_t count) override;
  void AllGather(Stream& stream, const SharedColumns& matrix) override;
  void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) override;
  void Barrier(Stream& stream) override;
  Result<int64_t> OfFirst(int64_t value) override { return group_.communicator().OfFirst(value); }
  Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) override {
    return group_.communicator().GatherOnHost(own, all);
  }

 private:
  struct Problem {
    Status status;
    GaveUp why = GaveUp::kByItself;
  };

  // launch(comm, stream) enqueues NCCL's part and returns its result.
  template <typename Launch>
  void Enqueue(Stream& stream, const WorkCost& cost, const Launch& launch);
  void Watch();
  std::optional<Problem> FindProblem();
  bool AllDone();
  void Abort(const Problem& problem);

  const nccl::Library& library_;
  ProcessGroup& group_;
  const int gpu_;
  cuda::WaitingKernels waiting_;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  float* word_ = nullptr;  // that barriers sum up

  // Held for launches and never while one waits for the GPU or for another rank.
  std::mutex mutex_;
  nccl::Comm comm_;                       // null once it is aborted
  std::array<cudaEvent_t, kAhead> done_;  // behind each of the last calls, by turns
  size_t calls_ = 0;

  std::optional<Clock::time_point> doubtful_since_;  // of the thread
  std::mutex ending_mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread thread_;
};

Status NcclCommunicator::Prepare() {
  const char* const what = "connecting the GPUs of ranks";
  cudaSetDevice(gpu_);
  waiting_.Join();
  done_.fill(nullptr);
  for (cudaEvent_t& event : done_) {
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) return cuda::StatusOf(error, what);
  }
  void* memory = nullptr;
  Status made = cuda::StatusOf(cudaMalloc(&memory, sizeof(float)), what);
  word_ = static_cast<float*>(memory);
  if (made.ok()) made = cuda::StatusOf(cudaMemset(word_, 0, sizeof(float)), what);
  if (made.ok()) made = cuda::StatusOf(cudaDeviceSynchronize(), what);
  if (made.ok()) thread_ = std::thread([this] { Watch(); });
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::lock_guard lock(ending_mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  if (thread_.joinable()) thread_.join();
  cudaSetDevice(gpu_);
  // Nothing is under way. Destroying it the other way would wait for the other ranks, which may
  // have ended.
  if (comm_ != nullptr) library_.CommAbort(comm_);
  for (cudaEvent_t event : done_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFree(word_);
}

template <typename Launch>
void NcclCommunicator::Enqueue(Stream& stream, const WorkCost& cost, const Launch& launch) {
  auto& own = static_cast<cuda::CudaStream&>(stream);
  // Each time: where a stream was there may be another one now.
  own.Watch([failure = failure_] { return failure->status(); });
  cudaEvent_t done = done_[calls_ % kAhead];
  ++calls_;
  own.Check(cudaEventSynchronize(done), cost.name);
  group_.CountDeviceCall();
  cuda::Call call(stream, cost);
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  failure_->Set(nccl::StatusOf(library_, launch(comm_, call.native()), cost.name));
  call.Check(cudaEventRecord(done, call.native()), cost.name);
}

void NcclCommunicator::AllReduceSum(Stream& stream, float* data, int64_t count) {
  if (count == 0) return;
  Enqueue(stream, {"all-reduce", 2 * count * int64_t{sizeof(float)}, count * (ranks() - 1)},
          [&](nccl::Comm comm, cudaStream_t native) {
            return library_.AllReduce(data, data, static_cast<size_t>(count), nccl::kFloat32,
                                      nccl::kSum, comm, native);
          });
}

// As a sum with zeros: ranks have unequal numbers of columns, which NCCL does not gather. It leaves
// all values as they are but for -0, which becomes 0.
void NcclCommunicator::AllGather(Stream& stream, const SharedColumns& matrix) {
  const int64_t count = matrix.rows * matrix.columns;
  if (count == 0) return;
  {
    cuda::Call call(stream, {"all-gather", count * int64_t{sizeof(float)}, 0});
    const auto clear = [&](int64_t begin, int64_t end) {
      if (begin == end) return;
      const auto bytes_of = [](int64_t columns) {
        return static_cast<size_t>(columns) * sizeof(float);
      };
      call.Check(
          cudaMemset2DAsync(matrix.data + begin, bytes_of(matrix.columns), 0, bytes_of(end - begin),
                            static_cast<size_t>(matrix.rows), call.native()),
          "gathering columns");
    };
    clear(0, matrix.begin);
    clear(matrix.end, matrix.columns);
  }
  AllReduceSum(stream, matrix.data, count);
}

void NcclCommunicator::Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) {
  if (bytes == 0) return;
  Enqueue(stream, {"broadcast", 2 * bytes, 0}, [&](nccl::Comm comm, cudaStream_t native) {
    return library_.Broadcast(data, data, static_cast<size_t>(bytes), nccl::kInt8, from, comm,
                              native);
  });
}

void NcclCommunicator::Barrier(Stream& stream) { AllReduceSum(stream, word_, 1); }

void NcclCommunicator::Watch() {
  cudaSetDevice(gpu_);
  std::unique_lock lock(ending_mutex_);
  while (!ending_.wait_for(lock, kAskTime, [this] { return ends_; })) {
    lock.unlock();
    const std::optional<Problem> problem = FindProblem();
    if (problem.has_value()) {
      Abort(*problem);
      return;
    }
    lock.lock();
  }
}

// This thread alone aborts, so that comm_ is there.
std::optional<NcclCommunicator::Problem> NcclCommunicator::FindProblem() {
  if (const Status own = failure_->status(); !own.ok()) return Problem{own};
  const DeviceCalls calls = group_.AskDeviceCalls();
  if (calls == DeviceCalls::kNeverDone) return Problem{WaitsInVain(), GaveUp::kForAnother};
  int error = nccl::kSuccess;
  library_.CommGetAsyncError(comm_, &error);
  const bool failed = error != nccl::kSuccess && error != nccl::kInProgress;
  // Where nothing is under way another rank may have left in good order.
  if ((calls == DeviceCalls::kOpen && !failed) || AllDone()) {
    doubtful_since_.reset();
    return std::nullopt;
  }
  if (failed) return Problem{nccl::StatusOf(library_, error, "connections of ranks")};
  const Clock::time_point now = Clock::now();
  if (now - doubtful_since_.value_or(now) > kDoubtTime) {
    return Problem{WaitsInVain(), GaveUp::kForAnother};
  }
  if (!doubtful_since_.has_value()) doubtful_since_ = now;
  return std::nullopt;
}

// Whether nothing that was begun is under way.
bool NcclCommunicator::AllDone() {
  const std::lock_guard lock(mutex_);
  return std::all_of(done_.begin(), done_.end(),
                     [](cudaEvent_t event) { return cudaEventQuery(event) != cudaErrorNotReady; });
}

void NcclCommunicator::Abort(const Problem& problem) {
  // Before streams come to their ends with what calls have left undone.
  failure_->Set(problem.status);
  group_.GiveUpDeviceCalls(problem.why);
  nccl::Comm comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::swap(comm, comm_);
  }
  library_.CommAbort(comm);
}

// Whether every rank can take part, and none has the GPU of another one: NCCL would wait for one
// that cannot. False: another rank says why not.
Result<bool> AgreeOnGpus(ProcessGroup& group, int gpu, const Status& own) {
  cudaDeviceProp properties = {};
  Status status = own;
  if (status.ok()) {
    status = cuda::StatusOf(cudaGetDeviceProperties(&properties, gpu), "asking for the GPU");
  }
  int64_t told[3] = {status.ok() ? 1 : 0};
  static_assert(sizeof(properties.uuid) == 2 * sizeof(told[0]));
  std::memcpy(told + 1, &properties.uuid, sizeof(properties.uuid));
  const Result<std::vector<int64_t>> all = group.Gather(told);
  if (!all.ok()) return all.status();
  if (!status.ok()) return status;
  bool can = true, apart = true;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    const int64_t* const other = all->data() + 3 * rank;
    can = can && other[0] != 0;
    for (int lower = 0; lower < rank; ++lower) {
      apart = apart && !std::equal(other + 1, other + 3, all->data() + 3 * lower + 1);
    }
  }
  if (!can) return false;
  if (apart) return true;
  return Status(StatusCode::kUnsupported,
                Refusal{{"ranks in processes need a GPU each, and two of them have the same one: "
                         "give fewer ranks, or a list of GPUs with ",
                         Option::kDevice, " cuda:N,M"}});
}

// Waits for the other ranks a limited time, in a thread that is left behind where they do not come.
Result<nccl::Comm> Connect(const nccl::Library& library, ProcessGroup& group,
                           const nccl::UniqueId& id, int gpu) {
  struct Start {
    nccl::Comm comm = nullptr;
    int error = nccl::kSuccess;
    std::atomic<bool> done = false;
  };
  const auto start = std::make_shared<Start>();
  group.CountDeviceCall();
  std::thread([start, &library, id, gpu, rank = group.rank(), ranks = group.ranks()] {
    cudaSetDevice(gpu);
    start->error = library.CommInitRank(&start->comm, ranks, id, rank);
    start->done = true;
  }).detach();
  const Clock::time_point begin = Clock::now();
  Clock::time_point certain = begin;
  while (!start->done) {
    std::this_thread::sleep_for(kAskTime);
    const Clock::time_point now = Clock::now();
    const DeviceCalls calls = group.AskDeviceCalls();
    if (calls == DeviceCalls::kOpen) certain = now;
    const bool late = now - begin > kConnectTime;
    if (!late && calls != DeviceCalls::kNeverDone && now - certain < kDoubtTime) continue;
    group.GiveUpDeviceCalls(late ? GaveUp::kByItself : GaveUp::kForAnother);
    if (!late) return WaitsInVain();
    return Status(StatusCode::kIo, "NCCL has not connected the GPUs of the ranks in " +
                                       std::to_string(kConnectTime.count()) +
                                       " s; NCCL_DEBUG=INFO in the environment makes it say more");
  }
  const Status connected = nccl::StatusOf(library, start->error, "connecting the GPUs of ranks");
  if (connected.ok()) return start->comm;
  group.GiveUpDeviceCalls(GaveUp::kByItself);
  return connected;
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectGpus(ProcessGroup& group, int gpu) {
  const Result<const nccl::Library*> library = nccl::LoadLibrary();
  nccl::UniqueId id;
  Status own = library.status();
  if (own.ok() && group.rank() == 0) {
    own = nccl::StatusOf(**library, (*library)->GetUniqueId(&id), "making a group");
  }
  const Result<bool> agreed = AgreeOnGpus(group, gpu, own);
  if (!agreed.ok()) return agreed.status();
  if (!*agreed) return std::unique_ptr<Communicator>();
  const Result<std::string> first = group.TextOfFirst(std::string(id.bytes, sizeof(id.bytes)));
  if (!first.ok()) return first.status();
  first->copy(id.bytes, sizeof(id.bytes));
  const Result<nccl::Comm> comm = Connect(**library, group, id, gpu);
  if (!comm.ok()) return comm.status();
  auto made = std::make_unique<NcclCommunicator>(**library, *comm, &group, gpu);
  if (Status s = made->Prepare(); !s.ok()) return s;
  return std::unique_ptr<Communicator>(std::move(made));
}

}  // namespace headway
