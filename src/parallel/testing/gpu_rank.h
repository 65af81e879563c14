// What a rank of a test has of its GPU.
#ifndef HEADWAY_PARALLEL_TESTING_GPU_RANK_H_
#define HEADWAY_PARALLEL_TESTING_GPU_RANK_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "base/env.h"
#include "device/budget.h"
#include "device/cuda/cuda_device.h"
#include "headway/status.h"

namespace headway {

// A rank's GPU, streams and a buffer on it with one in pinned memory, made before ranks wait for
// each other.
struct GpuRank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream, aside;
  std::unique_ptr<Event> made, done;
  Budget budget{"test", kUnlimited};
  std::unique_ptr<Buffer> buffer, pinned;

  GpuRank(int gpu, size_t bytes) {
    device = std::move(*NewCudaDevice({.index = gpu}, Env::Default(), nullptr));
    stream = std::move(*device->NewStream(Lane::kCompute));
    aside = std::move(*device->NewStream(Lane::kRanks));
    made = device->NewEvent();
    done = device->NewEvent();
    buffer = std::move(*device->Allocate(budget, bytes, "data"));
    pinned = std::move(*device->AllocateHost(budget, bytes, "data"));
  }
  float* floats(size_t offset = 0) const {
    return reinterpret_cast<float*>(buffer->data()) + offset;
  }
  void Give(const void* from, size_t bytes, size_t offset = 0) const {
    std::memcpy(pinned->data(), from, bytes);
    stream->Copy(buffer->data() + offset, pinned->data(), bytes);
  }
  // Behind what the stream was given, and before what it will be given, on another stream.
  template <typename Call>
  void Aside(const Call& call) const {
    stream->Record(*made);
    aside->Wait(*made);
    call(*aside);
    aside->Record(*done);
    stream->Wait(*done);
  }
  // Waits for all that was enqueued.
  Status Take(void* to, size_t bytes, size_t offset = 0) const {
    stream->Copy(pinned->data(), buffer->data() + offset, bytes);
    const Status status = stream->Synchronize();
    std::memcpy(to, pinned->data(), bytes);
    return status;
  }
};

}  // namespace headway

#endif  // HEADWAY_PARALLEL_TESTING_GPU_RANK_H_
