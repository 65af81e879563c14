#include "device/cuda/waiting_kernels.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

namespace headway::cuda {
namespace {

struct Lines {
  std::mutex mutex;
  std::ptrdiff_t count = 0;
  bool alone = false;          // there may be work that was launched alone
  std::optional<bool> shared;  // with processes that do not take turns; empty: not known yet
};

// Those of a device; of all devices from a number on together.
Lines& LinesOf(int device) {
  static std::array<Lines, 64> lines;
  return lines[std::min(static_cast<size_t>(device), lines.size() - 1)];
}

bool SharedByProcesses(int device) {
  int shared = 0;
  return cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, device) != cudaSuccess ||
         shared != 0;
}

// From now on some line is not alone. An error of the device is also that of the next launch.
void EndAlone(Lines& lines) {
  if (lines.alone) cudaDeviceSynchronize();
  lines.alone = false;
}

}  // namespace

WaitingKernels::~WaitingKernels() {
  Lines& lines = LinesOf(device_);
  const std::lock_guard lock(lines.mutex);
  lines.count -= std::ssize(lines_);
}

void WaitingKernels::Join() {
  Lines& lines = LinesOf(device_);
  const std::lock_guard lock(lines.mutex);
  lines_.push_back(this);
  ++lines.count;
  EndAlone(lines);
}

WaitingKernels::Turn WaitingKernels::Take(const void* line) {
  Lines& lines = LinesOf(device_);
  std::unique_lock lock(lines.mutex);
  if (!lines.shared.has_value()) lines.shared = SharedByProcesses(device_);
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) {
    lines_.push_back(line);
    ++lines.count;
  }
  const bool alone = lines.count == 1 && !*lines.shared;
  if (!alone) EndAlone(lines);
  lines.alone = alone;
  return {std::move(lock), alone};
}

}  // namespace headway::cuda
