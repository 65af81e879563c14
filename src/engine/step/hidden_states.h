// HiddenStates: the residual streams of a stretch, a run of prompts' tokens that passes through one
// layer after the other, between its layers. They lie in host memory. Of three parts of them, as
// many rows each as a step has, there are buffers on the device: one is computed while the one
// before goes down and the next comes up.
#ifndef HEADWAY_ENGINE_STEP_HIDDEN_STATES_H_
#define HEADWAY_ENGINE_STEP_HIDDEN_STATES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/lanes.h"
#include "engine/step/limits.h"
#include "headway/status.h"

namespace headway {

class HiddenStates {
 public:
  struct Parts {
    Device& device;
    Lanes& lanes;
    Budget& budget;
    Budget& host_budget;
  };
  // What Create takes of the device, and of the host; pure. Nothing without stretches.
  static int64_t DeviceBytes(const ModelShape& shape, const ExecutorLimits& limits);
  static int64_t HostBytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Everything outlives it.
  static Result<std::unique_ptr<HiddenStates>> Create(const Parts& parts, const ModelShape& shape,
                                                      const ExecutorLimits& limits);
  ~HiddenStates();

  // A stretch begins, of two parts or more with so many rows each. `x` [step_tokens, d_model] is
  // the first of the buffers.
  void Begin(std::span<const int64_t> rows, int layers, float* x);
  // Where the next part's residual stream is, for kernels that are enqueued on the compute lane
  // from here on: of the layer before, or in the first layer memory for it. All parts of a layer
  // come in order, then those of the next layer.
  float* Acquire();
  // Starts to bring the part behind the acquired one up. Of use once what its layer reads is
  // enqueued: the bus is its first.
  void Prefetch();
  // All kernels of the part are enqueued: it goes down, unless its layer was the last.
  void Release();
  // The stretch is over or given up: later work of the compute lane finds all buffers free.
  void End();

  int64_t parts() const { return std::ssize(parts_); }  // of each layer, within a stretch

 private:
  static constexpr int kPlaces = 3;
  struct Place {
    float* data = nullptr;
    Fence ready, free;
  };
  struct Part {
    int64_t first_row = 0, rows = 0;
    Fence down;
  };
  HiddenStates(const Parts& parts, int64_t d_model) : lanes_(parts.lanes), d_model_(d_model) {}
  Part& PartAt(int64_t turn) { return parts_[static_cast<size_t>(turn % std::ssize(parts_))]; }
  Place& PlaceAt(int64_t turn) { return places_[static_cast<size_t>(turn % kPlaces)]; }
  bool IsFirstLayer(int64_t turn) const { return turn < std::ssize(parts_); }
  void Load(int64_t turn);

  Lanes& lanes_;
  const int64_t d_model_;
  std::unique_ptr<Buffer> others_;     // on the device, [kPlaces - 1, step_tokens, d_model]
  std::unique_ptr<Buffer> memory_;     // in host memory, [stretch_tokens, d_model]
  std::array<Place, kPlaces> places_;  // by turns
  std::vector<Part> parts_;
  int64_t turns_ = 0;   // parts times layers
  int64_t turn_ = 0;    // that is acquired, or next
  int64_t loaded_ = 0;  // those before this one are on the device, or on their way
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_HIDDEN_STATES_H_
