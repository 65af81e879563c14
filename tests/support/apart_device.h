// ApartDevice: a device whose memory the host is not to read, as that of a GPU: what comes of it is
// copied. For tests on the CPU.
#ifndef HEADWAY_TESTS_SUPPORT_APART_DEVICE_H_
#define HEADWAY_TESTS_SUPPORT_APART_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace headway::testing {

class ApartDevice final : public Device {
 public:
  explicit ApartDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  bool host_reads_memory() const override { return false; }
  bool kernels_read_host_memory() const override { return inner_->kernels_read_host_memory(); }
  Result<std::unique_ptr<Buffer>> Allocate(Budget& budget, size_t bytes,
                                           const std::string& tag) override {
    return inner_->Allocate(budget, bytes, tag);
  }
  Result<std::unique_ptr<Buffer>> AllocateHost(Budget& budget, size_t bytes,
                                               const std::string& tag) override {
    return inner_->AllocateHost(budget, bytes, tag);
  }
  Result<std::unique_ptr<Stream>> NewStream(Lane lane) override { return inner_->NewStream(lane); }
  std::unique_ptr<Event> NewEvent() override { return inner_->NewEvent(); }

 private:
  const std::unique_ptr<Device> inner_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_APART_DEVICE_H_
