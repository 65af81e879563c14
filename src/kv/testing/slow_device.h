// SlowDevice: a device of which one lane takes a while for everything that it does, for tests.
#ifndef HEADWAY_KV_TESTING_SLOW_DEVICE_H_
#define HEADWAY_KV_TESTING_SLOW_DEVICE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "device/device.h"

namespace headway::kv {

// The slow lane fails to copy from the moment at which *broken is true.
class SlowDevice : public Device {
 public:
  SlowDevice(std::unique_ptr<Device> device, std::optional<Lane> slow_lane, int delay_us,
             const std::atomic<bool>* broken)
      : device_(std::move(device)), slow_lane_(slow_lane), delay_us_(delay_us), broken_(broken) {}

  std::string name() const override { return device_->name(); }
  bool host_reads_memory() const override { return device_->host_reads_memory(); }
  bool kernels_read_host_memory() const override { return device_->kernels_read_host_memory(); }
  Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                           const std::string& tag) override {
    return device_->Allocate(budget, bytes, tag);
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                               const std::string& tag) override {
    return device_->AllocateHost(budget, bytes, tag);
  }
  Result<std::unique_ptr<Stream>> NewStream(Lane lane) override;
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }

 private:
  std::unique_ptr<Device> device_;
  std::optional<Lane> slow_lane_;
  int delay_us_;
  const std::atomic<bool>* broken_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TESTING_SLOW_DEVICE_H_
