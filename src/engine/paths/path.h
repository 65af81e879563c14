// AttentionPath: a way in which ranges of a sequence's keys are attended to (DESIGN: "attention is
// a sum you can split"). A step offers the ranges of each layer to the paths, in their order; a
// path takes those that are its own, has them read or reads them itself, and leaves partial states
// on the board. What a path leaves is the next one's; the last ones take what is there.
//
// A new path is a class of its own, a file pair here, and a line in registry.cc.
#ifndef HEADWAY_ENGINE_PATHS_PATH_H_
#define HEADWAY_ENGINE_PATHS_PATH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/paths/host_options.h"
#include "engine/step/batch.h"
#include "engine/step/board.h"
#include "engine/step/reads.h"
#include "engine/step/step_context.h"
#include "headway/status.h"

namespace headway {

class Demoted;
class Salience;

// What a path works with; all outlives it.
struct PathParts {
  StepContext& context;
  const Batch& batch;
  Reads& reads;
  Board& board;
  std::byte* memory;             // of PathKind::bytes, aligned to a page
  HostOptions host;              // of the path `host`
  int number;                    // of this path among all: its name in Reads
  Salience* salience = nullptr;  // of the path `salient`; null without it
  Demoted* demoted = nullptr;    // of the path `demoted`; null without it
};

// What a step calls, in this order: BeginStep; Take for each layer, before the first layer, or
// where some path ChoosesByQuery or all pages are on the device, at each layer's beginning; and for
// each layer BeginLayer, Attend for each head group, EndLayer, PagesClosed; EndLayers; EndStep.
class AttentionPath {
 public:
  virtual ~AttentionPath() = default;

  // Decides which ranges it takes by the queries of the layer: then nothing is taken, by any path,
  // before these are enqueued on the compute stream.
  virtual bool ChoosesByQuery() const { return false; }
  // Takes ranges whose keys and values lie on the device, as the last path does with all that is
  // left.
  virtual bool TakesResident() const { return false; }
  // Has the step keep X of its new tokens, the normed input of the K/V projection, in the
  // activations until BeginLayer.
  virtual bool WantsX() const { return false; }

  // The batch is there; the store begins its step next.
  virtual void BeginStep() {}
  // Moves the ranges of a layer that it attends to out of *ranges, whose order stays, and says what
  // of them is to be read (Reads::Add).
  virtual void Take(int layer, std::vector<SlabRange>* ranges) = 0;
  // The layer's q, k and v are enqueued, with its new keys and values on their way to the cache.
  virtual void BeginLayer(int layer) { (void)layer; }
  // Leaves states of what it took of a head group on the board. The streaming heads of a layer are
  // the group behind the others.
  virtual Status Attend(int layer, int group) = 0;
  // All states of the layer but those that are still under way are enqueued; the merge comes next.
  virtual void EndLayer(int layer) { (void)layer; }
  // The pages that the step closes in this layer are on their way to their homes.
  virtual void PagesClosed(int layer) { (void)layer; }
  // All layers are enqueued, and the store's step is over: what the host does here it does while
  // the device runs the layers.
  virtual Status EndLayers() { return OkStatus(); }
  // All is enqueued, and has run where the batch wants_logits.
  virtual void EndStep() {}
  // The step was given up, at any point between BeginStep and EndLayers. What the path gave other
  // lanes to do, and still uses the step's memory, is waited for by later work of the compute
  // stream.
  virtual void Abort() {}
};

// How a path is made.
struct PathKind {
  const char* name = "";
  // Ranges are offered to paths in this order, and in it they attend within a head group. Dense
  // paths take all that is left at PathOrder::kRest.
  int order = 0;
  // Bytes of device memory that it takes for steps of these limits; pure.
  int64_t (*bytes)(const ModelShape& shape, const ExecutorLimits& limits);
  // Null where a context of these parts has no use for it.
  std::unique_ptr<AttentionPath> (*make)(const PathParts& parts);
};

// Of the paths of this folder; others may lie between.
namespace path_order {
inline constexpr int kRecompute = 100;
inline constexpr int kSelection = 150;
inline constexpr int kSelectedPrefill = 160;
inline constexpr int kSelfExtend = 170;
inline constexpr int kSalient = 180;
inline constexpr int kDemoted = 190;
inline constexpr int kHost = 200;
inline constexpr int kRest = 1000;  // slabs that are resident, or stream
inline constexpr int kStreamingHeads = 1100;
inline constexpr int kTail = 1200;  // attends last: it has the newest keys
}  // namespace path_order

inline int64_t NoBytes(const ModelShape&, const ExecutorLimits&) { return 0; }

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_PATH_H_
