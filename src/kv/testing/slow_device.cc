#include "kv/testing/slow_device.h"

#include <chrono>
#include <functional>
#include <thread>

namespace headway::kv {
namespace {

class SlowStream : public Stream {
 public:
  SlowStream(std::unique_ptr<Stream> stream, int delay_us, const std::atomic<bool>* broken)
      : stream_(std::move(stream)), delay_us_(delay_us), broken_(broken) {}

  Lane lane() const override { return stream_->lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    Delay();
    if (Works()) stream_->Copy(to, from, bytes);
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    Delay();
    if (Works()) stream_->Copy2D(to, to_stride, from, from_stride, row_bytes, rows);
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    Delay();
    stream_->HostWork(cost, std::move(work));
  }
  void Record(Event& event) override { stream_->Record(event); }
  void Wait(Event& event) override { stream_->Wait(event); }
  Status Synchronize() override {
    Status status = stream_->Synchronize();
    return failed_ ? this->status() : status;
  }
  Status status() override {
    return failed_ ? Status(StatusCode::kIo, "a copy: the bus is gone") : stream_->status();
  }

 private:
  bool Works() {
    failed_ = failed_ || *broken_;
    return !failed_;
  }
  void Delay() {
    stream_->HostWork(WorkCost{"delay", 0, 0}, [delay = delay_us_] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      return OkStatus();
    });
  }

  std::unique_ptr<Stream> stream_;
  int delay_us_;
  const std::atomic<bool>* broken_;
  bool failed_ = false;
};

}  // namespace

Result<std::unique_ptr<Stream>> SlowDevice::NewStream(Lane lane) {
  Result<std::unique_ptr<Stream>> stream = device_->NewStream(lane);
  if (lane != slow_lane_ || !stream.ok()) return stream;
  return std::unique_ptr<Stream>(
      std::make_unique<SlowStream>(std::move(*stream), delay_us_, broken_));
}

}  // namespace headway::kv
