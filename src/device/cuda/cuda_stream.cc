#include "device/cuda/cuda_stream.h"

#include <string>
#include <utility>

#include "base/exceptions.h"

namespace headway::cuda {
namespace {

constexpr size_t kWordBlock = 4096;  // bytes of pinned memory made at a time

// Asks for an event again and again: a thread that sleeps learns of it tens of microseconds late. A
// wait that takes longer is not worth a core.
constexpr int64_t kPollNanos = 10'000'000;
constexpr int kPausesBetweenPolls = 16;

void Poll(Env& env, cudaEvent_t event) {
  const int64_t start = env.NowNanos();
  while (cudaEventQuery(event) == cudaErrorNotReady && env.NowNanos() - start < kPollNanos) {
    for (int i = 0; i < kPausesBetweenPolls; ++i) __builtin_ia32_pause();
  }
}

}  // namespace

// --- CudaShared

CudaShared::~CudaShared() {
  cudaSetDevice(device);
  if (origin != nullptr) cudaEventDestroy(origin);
  for (const std::vector<cudaEvent_t>& events : events_) {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  for (void* block : blocks_) cudaFreeHost(block);
}

volatile uint32_t* CudaShared::TakeWord() {
  std::lock_guard lock(mutex_);
  if (words_.empty()) {
    void* block = nullptr;
    if (cudaHostAlloc(&block, kWordBlock, cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();  // it is handled: the host waits instead
      return nullptr;
    }
    blocks_.push_back(block);
    for (size_t i = 0; i < kWordBlock / sizeof(uint32_t); ++i) {
      words_.push_back(static_cast<volatile uint32_t*>(block) + i);
    }
  }
  volatile uint32_t* word = words_.back();
  words_.pop_back();
  *word = 0;
  return word;
}

void CudaShared::GiveWord(volatile uint32_t* word) {
  std::lock_guard lock(mutex_);
  words_.push_back(word);
}

cudaEvent_t CudaShared::TakeEvent(EventUse use) {
  std::lock_guard lock(mutex_);
  std::vector<cudaEvent_t>& events = events_[static_cast<size_t>(use)];
  if (!events.empty()) {
    cudaEvent_t event = events.back();
    events.pop_back();
    return event;
  }
  cudaSetDevice(device);
  cudaEvent_t event = nullptr;
  // A host thread that waits for long sleeps.
  const unsigned flags =
      use == EventUse::kTiming ? cudaEventDefault : cudaEventDisableTiming | cudaEventBlockingSync;
  if (cudaEventCreateWithFlags(&event, flags) != cudaSuccess) return nullptr;
  return event;
}

void CudaShared::GiveEvent(cudaEvent_t event, EventUse use) {
  std::lock_guard lock(mutex_);
  events_[static_cast<size_t>(use)].push_back(event);
}

// --- CudaEvent

struct CudaEvent::HostWord {
  explicit HostWord(std::shared_ptr<CudaShared> s)
      : shared(std::move(s)), word(shared->TakeWord()) {}
  ~HostWord() {
    if (word != nullptr) shared->GiveWord(word);
  }
  void Reach(int64_t recording) {
    if (word != nullptr) *word = static_cast<uint32_t>(recording);
    point.Reach(recording);
  }
  const std::shared_ptr<CudaShared> shared;
  volatile uint32_t* const word;  // null when the system had no memory: then the host waits
  HostPoint point;
};

CudaEvent::CudaEvent(std::shared_ptr<CudaShared> shared) : shared_(std::move(shared)) {
  cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void CudaEvent::Wait() {
  if (stream_ != nullptr) {
    stream_->Check(cudaEventSynchronize(event_), "waiting for the GPU");
  } else if (word_ != nullptr) {
    word_->point.WaitFor(word_->point.LastRecording());
  }
}

bool CudaEvent::Reached() {
  if (stream_ != nullptr) {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    stream_->Check(error, "work on the GPU");
    return true;
  }
  return word_ == nullptr || word_->point.Reached();
}

std::function<void()> CudaEvent::RecordOnHost() {
  stream_ = nullptr;
  if (word_ == nullptr) word_ = std::make_shared<HostWord>(shared_);
  return RecordPoint(word_, word_->point);
}

std::function<void()> CudaEvent::WaitOnHost(HostWait how) {
  if (stream_ == nullptr) {
    if (word_ == nullptr) return [] {};
    return [word = word_, recording = word_->point.LastRecording()] {
      word->point.WaitFor(recording);
    };
  }
  // The thread will come to it later, when this event may stand for another point: it waits for an
  // event of its own, recorded now, behind the point in question.
  cudaEvent_t mine = shared_->TakeEvent(EventUse::kOrder);
  if (mine == nullptr || cudaEventRecord(mine, stream_->native()) != cudaSuccess) {
    Wait();
    return [] {};
  }
  return [shared = shared_, mine, how] {
    cudaSetDevice(shared->device);
    if (how == HostWait::kPoll) Poll(*shared->env, mine);
    cudaEventSynchronize(mine);  // its error is the stream's
    shared->GiveEvent(mine, EventUse::kOrder);
  };
}

cudaError_t CudaEvent::RecordOn(CudaStream& stream) {
  stream_ = &stream;
  return cudaEventRecord(event_, stream.native());
}

cudaError_t CudaEvent::WaitOn(cudaStream_t stream) {
  if (stream_ != nullptr) return cudaStreamWaitEvent(stream, event_, 0);
  if (Reached()) return cudaSuccess;
  if (word_->word == nullptr || shared_->wait_value == nullptr) {
    Wait();
    return cudaSuccess;
  }
  const auto address = reinterpret_cast<CUdeviceptr>(const_cast<uint32_t*>(word_->word));
  const auto value = static_cast<cuuint32_t>(word_->point.LastRecording());
  const CUresult result = shared_->wait_value(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

// --- CudaStream

CudaStream::CudaStream(std::shared_ptr<CudaShared> shared, Lane lane)
    : shared_(std::move(shared)), lane_(lane) {
  cudaSetDevice(shared_->device);
  // Sums of ranks get the multiprocessors that become free, before products beside which they run.
  int least = 0, greatest = 0;
  Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
  const int priority = lane == Lane::kRanks ? greatest : least;
  Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority), "making a stream");
}

CudaStream::~CudaStream() {
  cudaSetDevice(shared_->device);
  cudaStreamSynchronize(stream_);
  Report(Unfinished::kAwait);
  cudaStreamDestroy(stream_);
}

void CudaStream::Fail(const Status& status) {
  if (status.ok()) return;
  std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
}

void CudaStream::Watch(std::function<Status()> failure) {
  std::lock_guard lock(mutex_);
  watched_ = std::move(failure);
}

void CudaStream::Check(cudaError_t error, const char* what) { Fail(StatusOf(error, what)); }

void CudaStream::BeginCopy(size_t bytes) {
  // A copy out of pageable memory may read it when it is enqueued, before the events that the
  // stream waits for.
  if (lane_ == Lane::kHostToDevice && shared_->pageable) {
    Check(cudaStreamSynchronize(stream_), "work on the GPU");
  }
  if (lane_ != Lane::kCompute) BeginTimed(CopyCost(bytes));
}

void CudaStream::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  BeginCopy(bytes);
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "a copy");
  End();
}

void CudaStream::Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
                        size_t row_bytes, size_t rows) {
  BeginCopy(row_bytes * rows);
  Check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, rows, cudaMemcpyDefault,
                          stream_),
        "a copy");
  End();
}

void CudaStream::CopyAll(std::span<const CopyPiece> pieces) {
  if (pieces.size() < 2 || shared_->pageable) return Stream::CopyAll(pieces);
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
  size_t all = 0;
  for (const CopyPiece& piece : pieces) {
    to.push_back(piece.to);
    from.push_back(piece.from);
    bytes.push_back(piece.bytes);
    all += piece.bytes;
  }
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;  // of the copies that these attributes are of
  BeginCopy(all);
  Check(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), bytes.size(), &attributes,
                             &first, 1, stream_),
        "copies");
  End();
}

void CudaStream::HostWork(const WorkCost& cost, std::function<Status()> work) {
  Begin(cost);
  struct Call {
    CudaStream* stream;
    std::function<Status()> work;
  };
  auto call = std::make_unique<Call>(Call{this, std::move(work)});
  const auto run = [](void* data) {
    const std::unique_ptr<Call> mine(static_cast<Call*>(data));
    if (mine->stream->first_error().ok()) mine->stream->Fail(Guarded(mine->work));
  };
  const cudaError_t error = cudaLaunchHostFunc(stream_, run, call.get());
  if (error == cudaSuccess) static_cast<void>(call.release());  // run owns it
  Check(error, "work on the host");
  End();
}

void CudaStream::Record(Event& event) {
  Check(static_cast<CudaEvent&>(event).RecordOn(*this), "recording an event");
}

void CudaStream::Wait(Event& event) {
  Check(static_cast<CudaEvent&>(event).WaitOn(stream_), "waiting for an event");
}

Status CudaStream::Synchronize() {
  Check(cudaStreamSynchronize(stream_), "work on the GPU");
  Report(Unfinished::kLeave);
  return first_error();
}

Status CudaStream::status() {
  // Work that the GPU has come to by now may have failed.
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error != cudaErrorNotReady) Check(error, "work on the GPU");
  return first_error();
}

Status CudaStream::first_error() {
  std::lock_guard lock(mutex_);
  if (status_.ok() && watched_) status_ = watched_();
  return status_;
}

void CudaStream::Begin(const WorkCost& cost) {
  if (times_kernels()) BeginTimed(cost);
}

void CudaStream::BeginTimed(const WorkCost& cost) {
  if (shared_->trace == nullptr) return;
  Report(Unfinished::kLeave);
  Timed timed{cost, shared_->trace->place(), shared_->TakeEvent(EventUse::kTiming),
              shared_->TakeEvent(EventUse::kTiming)};
  if (timed.start == nullptr || timed.end == nullptr) return;
  Check(cudaEventRecord(timed.start, stream_), "recording an event");
  timed_.push_back(timed);
  open_ = true;
}

void CudaStream::End() {
  if (!open_) return;
  open_ = false;
  Check(cudaEventRecord(timed_.back().end, stream_), "recording an event");
}

void CudaStream::Report(Unfinished unfinished) {
  while (!timed_.empty()) {
    const Timed timed = timed_.front();
    if (unfinished == Unfinished::kLeave && cudaEventQuery(timed.end) == cudaErrorNotReady) return;
    timed_.pop_front();
    float start = 0, end = 0;  // milliseconds
    if (cudaEventElapsedTime(&start, shared_->origin, timed.start) == cudaSuccess &&
        cudaEventElapsedTime(&end, shared_->origin, timed.end) == cudaSuccess) {
      const auto at = [&](float ms) {
        return shared_->origin_ns + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
      };
      shared_->trace->Add(lane_, timed.cost, timed.place, at(start), at(end));
    }
    shared_->GiveEvent(timed.start, EventUse::kTiming);
    shared_->GiveEvent(timed.end, EventUse::kTiming);
  }
}

}  // namespace headway::cuda
