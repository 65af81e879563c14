// Streams and events of a CUDA device. An event may be recorded on one kind of stream and waited
// for on the other: GPU streams wait for host threads by a word in pinned memory, host threads for
// GPU streams by an event of the runtime.
#ifndef HEADWAY_DEVICE_CUDA_CUDA_STREAM_H_
#define HEADWAY_DEVICE_CUDA_CUDA_STREAM_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_errors.h"
#include "device/device.h"
#include "device/host_stream.h"
#include "device/trace.h"

namespace headway::cuda {

class CudaStream;

// Events for timing, and those that host threads wait for.
enum class EventUse { kOrder, kTiming };

// What the streams and events of a device share; outlives them by shared ownership.
struct CudaShared {
  ~CudaShared();

  int device = 0;
  Env* env = nullptr;
  Trace* trace = nullptr;
  bool time_kernels = false;     // kernels are timed one by one, which costs time itself
  cudaEvent_t origin = nullptr;  // when the device's clock was read at origin_ns
  int64_t origin_ns = 0;
  std::atomic<bool> pageable = false;  // host memory that was asked for could not be pinned
  CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned int) = nullptr;

  // Words in pinned memory that host threads write and GPU streams wait for.
  volatile uint32_t* TakeWord();
  void GiveWord(volatile uint32_t* word);
  // Made once and used again.
  cudaEvent_t TakeEvent(EventUse use);
  void GiveEvent(cudaEvent_t event, EventUse use);

 private:
  std::mutex mutex_;
  std::vector<void*> blocks_;
  std::vector<volatile uint32_t*> words_;
  std::vector<cudaEvent_t> events_[2];  // by EventUse
};

class CudaEvent final : public HostEvent {
 public:
  explicit CudaEvent(std::shared_ptr<CudaShared> shared);
  ~CudaEvent() override;

  void Wait() override;
  bool Reached() override;
  std::function<void()> RecordOnHost() override;
  std::function<void()> WaitOnHost(HostWait how) override;

  // For CudaStream.
  cudaError_t RecordOn(CudaStream& stream);
  cudaError_t WaitOn(cudaStream_t stream);

 private:
  struct HostWord;  // reached by a host thread

  std::shared_ptr<CudaShared> shared_;
  cudaEvent_t event_ = nullptr;
  CudaStream* stream_ = nullptr;    // that recorded it last; null: a host thread did, or none
  std::shared_ptr<HostWord> word_;  // made when a host thread records for the first time
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaShared> shared, Lane lane);
  ~CudaStream() override;

  Lane lane() const override { return lane_; }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override;
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override;
  void CopyAll(std::span<const CopyPiece> pieces) override;
  void HostWork(const WorkCost& cost, std::function<Status()> work) override;
  void Record(Event& event) override;
  void Wait(Event& event) override;
  Status Synchronize() override;
  Status status() override;

  cudaStream_t native() const { return stream_; }
  int device() const { return shared_->device; }
  // Asked for an error whenever the stream is, until there is one: for kernels that tell what went
  // wrong in memory of the host. It outlives the stream's last call.
  void Watch(std::function<Status()> failure);
  // Keeps the first error; ok and cudaSuccess do nothing.
  void Fail(const Status& status);
  void Check(cudaError_t error, const char* what);

  bool times_kernels() const { return shared_->time_kernels; }
  // Work enqueued between the two is timed where the trace wants it.
  void Begin(const WorkCost& cost);
  void End();

 private:
  // Timed work that the trace has not been told of yet.
  struct Timed {
    WorkCost cost;
    Trace::Place place;
    cudaEvent_t start = nullptr;
    cudaEvent_t end = nullptr;
  };
  void BeginCopy(size_t bytes);
  void BeginTimed(const WorkCost& cost);
  Status first_error();
  // Tells the trace of timed work: what is not finished is left for later, or waited for.
  enum class Unfinished { kLeave, kAwait };
  void Report(Unfinished unfinished);

  std::shared_ptr<CudaShared> shared_;
  const Lane lane_;
  cudaStream_t stream_ = nullptr;
  std::deque<Timed> timed_;
  bool open_ = false;  // Begin without End so far
  std::mutex mutex_;   // of what follows, which host work uses, too
  Status status_;
  std::function<Status()> watched_;  // may be null
};

}  // namespace headway::cuda

#endif  // HEADWAY_DEVICE_CUDA_CUDA_STREAM_H_
