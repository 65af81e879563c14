#include "device/cpu/cpu_device.h"

#include <cstring>
#include <utility>

#include "device/host_stream.h"

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

class CpuEvent final : public HostEvent {
 public:
  void Wait() override { WaitOnHost(HostWait::kSleep)(); }
  bool Reached() override { return state_->Reached(); }
  std::function<void()> RecordOnHost() override { return RecordPoint(state_, *state_); }
  std::function<void()> WaitOnHost(HostWait) override {
    return [state = state_, recording = state_->LastRecording()] { state->WaitFor(recording); };
  }

 private:
  const std::shared_ptr<HostPoint> state_ = std::make_shared<HostPoint>();
};

// Runs everything at once on the calling thread: the compute stream.
class InlineStream final : public Stream {
 public:
  InlineStream(Env* env, Trace* trace, Lane lane) : clock_(env, trace, lane) {}

  Lane lane() const override { return clock_.lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    clock_.Time(CopyCost(bytes), clock_.place(), [&] { std::memcpy(to, from, bytes); });
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    clock_.Time(CopyCost(row_bytes * rows), clock_.place(),
                [&] { CopyRows(to, to_stride, from, from_stride, row_bytes, rows); });
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    if (!status_.ok()) return;
    clock_.Time(cost, clock_.place(), [&] { status_ = work(); });
  }
  void Record(Event& event) override { static_cast<CpuEvent&>(event).RecordOnHost()(); }
  void Wait(Event& event) override { event.Wait(); }
  Status Synchronize() override { return status_; }
  Status status() override { return status_; }

 private:
  LaneClock clock_;
  Status status_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(Env* env, Trace* trace) : env_(env), trace_(trace) {}

  std::string name() const override { return "cpu"; }
  bool host_reads_memory() const override { return true; }
  bool kernels_read_host_memory() const override { return true; }
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
  Result<std::unique_ptr<Stream>> NewStream(Lane lane) override {
    if (lane != Lane::kCompute) return HostStream::Create(env_, trace_, lane);
    return std::unique_ptr<Stream>(std::make_unique<InlineStream>(env_, trace_, lane));
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
