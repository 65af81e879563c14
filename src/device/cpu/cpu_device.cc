#include "device/cpu/cpu_device.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace headway {
namespace {

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(Env* env, std::byte* data, size_t size, Reservation reservation)
      : Buffer(data, size), env_(env), reservation_(std::move(reservation)) {}
  ~CpuBuffer() override { env_->FreeMemory(data_, size_); }

 private:
  Env* env_;
  Reservation reservation_;
};

// Shared by the streams that record and wait: an event may be destroyed while a stream still has it
// in its queue.
struct EventState {
  std::mutex mutex;
  std::condition_variable reached_changed;
  int64_t recorded = 0;  // times Record was called
  int64_t reached = 0;   // the last recording that its stream has come to

  int64_t NextRecording() {
    std::lock_guard lock(mutex);
    return ++recorded;
  }
  int64_t LastRecording() {
    std::lock_guard lock(mutex);
    return recorded;
  }
  void Reach(int64_t recording) {
    {
      std::lock_guard lock(mutex);
      if (recording > reached) reached = recording;
    }
    reached_changed.notify_all();
  }
  void WaitFor(int64_t recording) {
    std::unique_lock lock(mutex);
    reached_changed.wait(lock, [&] { return reached >= recording; });
  }
};

class CpuEvent final : public Event {
 public:
  void Wait() override { state->WaitFor(state->LastRecording()); }
  bool Reached() override {
    std::lock_guard lock(state->mutex);
    return state->reached >= state->recorded;
  }
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

// Times work and reports it to the trace.
class LaneClock {
 public:
  LaneClock(Env* env, Trace* trace, Lane lane) : env_(env), trace_(trace), lane_(lane) {}
  Lane lane() const { return lane_; }

  template <typename Work>
  void Time(const WorkCost& cost, Work&& work) {
    if (trace_ == nullptr) {
      work();
      return;
    }
    const int64_t start = env_->NowNanos();
    work();
    trace_->Add(lane_, cost, start, env_->NowNanos());
  }

 private:
  Env* env_;
  Trace* trace_;
  Lane lane_;
};

void CopyRows(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, row_bytes);
  }
}

WorkCost CopyCost(size_t bytes) {
  // A copy reads and writes each byte.
  return WorkCost{"copy", static_cast<int64_t>(2 * bytes), 0};
}

// Runs everything at once on the calling thread: the compute stream.
class InlineStream final : public Stream {
 public:
  InlineStream(Env* env, Trace* trace, Lane lane) : clock_(env, trace, lane) {}

  Lane lane() const override { return clock_.lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    clock_.Time(CopyCost(bytes), [&] { std::memcpy(to, from, bytes); });
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    clock_.Time(CopyCost(row_bytes * rows),
                [&] { CopyRows(to, to_stride, from, from_stride, row_bytes, rows); });
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    if (!status_.ok()) return;
    clock_.Time(cost, [&] { status_ = work(); });
  }
  void Record(Event& event) override {
    EventState& state = *static_cast<CpuEvent&>(event).state;
    state.Reach(state.NextRecording());
  }
  void Wait(Event& event) override { event.Wait(); }
  Status Synchronize() override { return status_; }
  Status status() override { return status_; }

 private:
  LaneClock clock_;
  Status status_;
};

// A queue with a thread of its own: copies and disk I/O.
class ThreadStream final : public Stream {
 public:
  ThreadStream(Env* env, Trace* trace, Lane lane)
      : clock_(env, trace, lane), thread_([this] { Loop(); }) {}
  ~ThreadStream() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Lane lane() const override { return clock_.lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    Enqueue([this, to, from, bytes] {
      clock_.Time(CopyCost(bytes), [&] { std::memcpy(to, from, bytes); });
    });
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    Enqueue([=, this] {
      clock_.Time(CopyCost(row_bytes * rows),
                  [&] { CopyRows(to, to_stride, from, from_stride, row_bytes, rows); });
    });
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    Enqueue([this, cost, work = std::move(work)] {
      if (!status().ok()) return;
      Status result;
      clock_.Time(cost, [&] { result = work(); });
      if (result.ok()) return;
      std::lock_guard lock(mutex_);
      status_ = std::move(result);
    });
  }
  void Record(Event& event) override {
    std::shared_ptr<EventState> state = static_cast<CpuEvent&>(event).state;
    const int64_t recording = state->NextRecording();
    Enqueue([state = std::move(state), recording] { state->Reach(recording); });
  }
  void Wait(Event& event) override {
    std::shared_ptr<EventState> state = static_cast<CpuEvent&>(event).state;
    const int64_t recording = state->LastRecording();
    Enqueue([state = std::move(state), recording] { state->WaitFor(recording); });
  }
  Status Synchronize() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
    return status_;
  }
  Status status() override {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void Enqueue(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
    }
  }

  LaneClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  Status status_;
  std::thread thread_;  // last: it uses all of the above
};

class CpuDevice final : public Device {
 public:
  CpuDevice(Env* env, Trace* trace) : env_(env), trace_(trace) {}

  std::string name() const override { return "cpu"; }
  bool host_reads_memory() const override { return true; }
  Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                           const std::string& tag) override {
    Result<Reservation> reservation = budget.Reserve(static_cast<int64_t>(bytes), tag);
    if (!reservation.ok()) return reservation.status();
    Result<std::byte*> data = env_->AllocateMemory(bytes);
    if (!data.ok()) return data.status();
    return std::unique_ptr<Buffer>(
        std::make_unique<CpuBuffer>(env_, *data, bytes, std::move(*reservation)));
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                               const std::string& tag) override {
    return Allocate(budget, bytes, tag);
  }
  std::unique_ptr<Stream> NewStream(Lane lane) override {
    if (lane == Lane::kCompute) return std::make_unique<InlineStream>(env_, trace_, lane);
    return std::make_unique<ThreadStream>(env_, trace_, lane);
  }
  std::unique_ptr<Event> NewEvent() override { return std::make_unique<CpuEvent>(); }

 private:
  Env* env_;
  Trace* trace_;
};

}  // namespace

std::unique_ptr<Device> NewCpuDevice(Env* env, Trace* trace) {
  return std::make_unique<CpuDevice>(env, trace);
}

}  // namespace headway
