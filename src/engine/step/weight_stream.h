// WeightStream: brings the matrices of layers that do not stay on the device there, a layer at a
// time, ahead of use. The host holds each layer in one block; a copy of the block goes over the
// h2d lane of the store, among the slabs that it reads, in the order of use, into one of a few
// buffers by turns. All tokens of a step share what was copied: a step over many sequences reads
// each layer once, as FlexGen's column-by-column schedule does batch by batch (KVPR, "Column-by-
// column schedule").
//
// Layers that the host does not hold either come from disk: a lane of its own reads them
// into bounce buffers, as many layers of that kind ahead as there are such buffers, and the h2d
// lane copies their tensors from there. The calling thread waits for neither.
//
// Where the host holds layers in their lossless form, that is what is copied, and the compute lane
// expands it into a buffer of its own before the layer's kernels.
#ifndef HEADWAY_ENGINE_STEP_WEIGHT_STREAM_H_
#define HEADWAY_ENGINE_STEP_WEIGHT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/lanes.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "model/model.h"

namespace headway {

// The layers, ascending, whose weights stream where `resident` of `layers` stay on the device:
// evenly among the others, so that the bus works while the resident ones compute.
std::vector<int> StreamedLayers(int layers, int resident);
// Of the streamed layers, those that are read from disk, `count` of them: evenly among the others,
// so that the disk works all the time.
std::vector<int> DiskLayers(const std::vector<int>& streamed, int count);

class WeightStream {
 public:
  struct Parts {
    const Model& model;
    Kernels& kernels;
    Device& device;
    Lanes& lanes;
    Budget& budget;
    Budget& host_budget;
  };
  // For the layers of the model that stream; `buffers` are taken from the budget, at most one a
  // layer, and as many bounce buffers from that of the host, at most one a layer that is on disk.
  // Everything outlives it.
  static Result<std::unique_ptr<WeightStream>> Create(const Parts& parts, int buffers);
  ~WeightStream();

  // Where the kernels of `layer`, enqueued on the compute lane next, find its block; null for a
  // layer that is resident. Layers come in ascending order, each perhaps several times in a row,
  // and from the first one again in the next step; a step that was given up may begin anew. A layer
  // that cannot be read from disk is an error of its lane, which Lanes::status says behind the work
  // that waited for it.
  const std::byte* Acquire(int layer);
  // All kernels of the layer last acquired are enqueued.
  void Release();
  // Starts copies of the layers to come into buffers that are free. Of use once the reads of a
  // layer's slabs are enqueued: the bus is theirs first. With more than one, `pieces` calls bring a
  // layer, so that what else the bus has to bring meanwhile does not wait for all of it.
  void Prefetch(int64_t pieces = 1);

 private:
  struct Slot {
    std::unique_ptr<Buffer> memory;
    int layer = -1;   // in it or on its way
    size_t left = 0;  // bytes at its end, of which no copy is under way
    Fence ready, used;
  };

  // Some buffers and the order in which layers pass through them, again and again.
  struct Ring {
    std::vector<int> layers;  // ascending
    std::vector<Slot> slots;
    size_t next = 0;  // in layers: the one in use, or the next to be

    int Ahead(size_t i) const { return layers[(next + i) % layers.size()]; }
    // Whether the layer is among those that the slots should hold, from `next` on.
    bool IsNear(int layer) const;
    Slot* Find(int layer);
    // A slot whose layer is not wanted soon: there is one where a layer that is has none.
    Slot* Free();
  };

  explicit WeightStream(const Parts& parts)
      : model_(parts.model), kernels_(parts.kernels), lanes_(parts.lanes) {}
  // Whether what is copied of a layer is its code.
  bool IsCode(int layer) const {
    return model_.HostBlocksAreCode() && !model_.HostBlock(layer).empty();
  }
  Status TakeBuffers(const Parts& parts, int buffers);
  // A layer begins to come into a free slot; nothing of it does, unless it is on disk.
  Slot* Begin(int layer);
  // So many bytes more of what is left of it.
  void Bring(Slot* slot, size_t bytes);
  // Copies a layer that is on disk from its bounce buffer, on the h2d lane.
  void CopyFromDisk(int layer, std::byte* to);
  Slot* ReadDisk(int layer);
  void ReadAhead();

  const Model& model_;
  Kernels& kernels_;
  Lanes& lanes_;
  Ring device_;                       // of all layers that stream
  Ring bounce_;                       // of those on disk
  Slot* held_ = nullptr;              // acquired and not released
  std::unique_ptr<Buffer> expanded_;  // null where no layer is copied as its code
  int expanded_layer_ = -1;           // that it holds
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_WEIGHT_STREAM_H_
