// Streams whose work runs on a thread of the host: every copy and disk lane of the CPU device, the
// disk lanes of an accelerator.
#ifndef HEADWAY_DEVICE_HOST_STREAM_H_
#define HEADWAY_DEVICE_HOST_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/env.h"
#include "device/device.h"
#include "device/trace.h"

namespace headway {

// A point that a host thread comes to, over and over: recordings count up. Shared by the streams
// that record and wait, since an event may be destroyed while a stream still has it in its queue.
class HostPoint {
 public:
  int64_t NextRecording();  // times that it was called
  int64_t LastRecording();
  void Reach(int64_t recording);
  void WaitFor(int64_t recording);
  bool Reached();  // the last recording

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t recorded_ = 0;
  int64_t reached_ = 0;
};

// The work that reaches the next recording of `point`, which `owner` holds and tells. Should there
// be no memory for it, nothing was recorded, and nobody waits for what never comes.
template <typename Owner>
std::function<void()> RecordPoint(std::shared_ptr<Owner> owner, HostPoint& point) {
  const int64_t next = point.LastRecording() + 1;
  std::function<void()> reach = [owner = std::move(owner), next] { owner->Reach(next); };
  point.NextRecording();
  return reach;
}

// How a host thread waits: asleep, or keeping its core busy for a while to learn of it at once.
enum class HostWait { kSleep, kPoll };

// An event that host streams can record and wait for. What is returned runs on the stream's thread,
// and means the recording that was the last when it was asked for.
class HostEvent : public Event {
 public:
  virtual std::function<void()> RecordOnHost() = 0;
  virtual std::function<void()> WaitOnHost(HostWait how) = 0;
};

// Times work and reports it to the trace, which may be null.
class LaneClock {
 public:
  LaneClock(Env* env, Trace* trace, Lane lane) : env_(env), trace_(trace), lane_(lane) {}
  Lane lane() const { return lane_; }
  // Of work that the lane is given now.
  Trace::Place place() const { return trace_ != nullptr ? trace_->place() : Trace::Place{}; }

  template <typename Work>
  void Time(const WorkCost& cost, const Trace::Place& place, Work&& work) {
    if (trace_ == nullptr) {
      work();
      return;
    }
    const int64_t start = env_->NowNanos();
    work();
    trace_->Add(lane_, cost, place, start, env_->NowNanos());
  }

 private:
  Env* env_;
  Trace* trace_;
  Lane lane_;
};

void CopyRows(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows);
// A copy reads and writes each byte.
WorkCost CopyCost(size_t bytes);

// A queue with a thread of its own. Its events are HostEvents.
class HostStream final : public Stream {
 public:
  // kIo when the system does not start another thread.
  static Result<std::unique_ptr<Stream>> Create(Env* env, Trace* trace, Lane lane);
  ~HostStream() override;

  Lane lane() const override { return clock_.lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override;
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override;
  void HostWork(const WorkCost& cost, std::function<Status()> work) override;
  void Record(Event& event) override;
  void Wait(Event& event) override {
    Enqueue(static_cast<HostEvent&>(event).WaitOnHost(
        lane() == Lane::kHostCompute ? HostWait::kPoll : HostWait::kSleep));
  }
  Status Synchronize() override;
  Status status() override;

 private:
  HostStream(Env* env, Trace* trace, Lane lane) : clock_(env, trace, lane) {}
  // Where it throws, `work` is as it was.
  void Enqueue(std::function<void()>&& work);
  void Loop();

  LaneClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  Status status_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_HOST_STREAM_H_
