// WeightStream: brings the matrices of layers that do not stay on the device there, a layer at a
// time, ahead of use. The host holds each layer in one block; a copy of the block goes over the
// h2d lane of the store, among the slabs that it reads, in the order of use, into one of a few
// buffers by turns. All tokens of a step share what was copied: a step over many sequences reads
// each layer once, as FlexGen's column-by-column schedule does batch by batch (KVPR, "Column-by-
// column schedule").
#ifndef HEADWAY_ENGINE_WEIGHT_STREAM_H_
#define HEADWAY_ENGINE_WEIGHT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "headway/status.h"
#include "kv/store/lanes.h"
#include "model/model.h"

namespace headway {

// The layers, ascending, whose weights stream where `resident` of `layers` stay on the device:
// evenly among the others, so that the bus works while the resident ones compute.
std::vector<int> StreamedLayers(int layers, int resident);

class WeightStream {
 public:
  // For the layers of `model` that have host blocks; `buffers` are taken from `budget`, at most one
  // a layer. Everything outlives it.
  static Result<std::unique_ptr<WeightStream>> Create(const Model& model, Device& device,
                                                      kv::Lanes& lanes, Budget& budget,
                                                      int buffers);
  ~WeightStream();

  // Where the kernels of `layer`, enqueued on the compute lane next, find its block; null for a
  // layer that is resident. Layers come in ascending order, and from the first one again in the
  // next step; a step that was given up may begin anew.
  const std::byte* Acquire(int layer);
  // All kernels of the layer last acquired are enqueued.
  void Release();
  // Starts copies of the layers to come into buffers that are free. Of use once the reads of a
  // layer's slabs are enqueued: the bus is theirs first.
  void Prefetch();

 private:
  struct Slot {
    std::unique_ptr<Buffer> memory;
    int layer = -1;  // in it or on its way
    kv::Fence ready, used;
  };

  WeightStream(const Model& model, kv::Lanes& lanes, std::vector<int> layers,
               std::vector<Slot> slots);
  // Whether the layer is among those that the slots should hold, from next_ on.
  bool IsNear(int layer) const;
  Slot* Find(int layer);
  Slot* Load(int layer);

  const Model& model_;
  kv::Lanes& lanes_;
  const std::vector<int> layers_;  // streamed ones, ascending
  std::vector<Slot> slots_;
  size_t next_ = 0;       // in layers_: the one in use, or the next to be
  Slot* held_ = nullptr;  // acquired and not released
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_WEIGHT_STREAM_H_
