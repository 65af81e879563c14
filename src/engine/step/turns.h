// Turns: what rotates in a step beside q and k where a context reaches beyond the window that its
// model was trained for (kv::SelectionPolicy::distance): the slots of pages that close, whose
// summaries are of keys without rotation; queries, which are scored at one distance; and listed
// blocks, which are moved together.
#ifndef HEADWAY_ENGINE_STEP_TURNS_H_
#define HEADWAY_ENGINE_STEP_TURNS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/limits.h"
#include "engine/step/step_context.h"
#include "kernels/elementwise.h"
#include "kernels/selection.h"
#include "kv/step/step_types.h"
#include "model/rope.h"

namespace headway {

class Turns {
 public:
  // Bytes that it takes; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Takes them from `memory`.
  Turns(StepContext& context, const Batch& batch, Memory* memory);

  // The batch is there.
  void Begin();

  // Of the step's entries; nothing turns where the context stays within the window.
  RopeTable OfRows(int entry) const;     // a row for each of its tokens
  RopeTable OfClosing(int entry) const;  // one for each slot of the pages that it closes
  // Between steps, of any slots of a sequence whose keys were rotated by `rope`, which outlives it.
  kv::SlotAngles OfSlots(const RopeFrequencies& rope);
  // What keys that are read where they lie have of it, and where they count in a layer.
  KeyRotation OfKeys(int entry, int layer) const;
  // Of blocks that are listed up to the position `end`, the last `recent` of which always are.
  BlockMove MoveTo(int entry, int64_t end, int64_t recent) const;

 private:
  // Room for some rows of cosines, and of sines behind those of all of them.
  struct Angles {
    float* cos = nullptr;
    float* sin = nullptr;
  };
  bool Turn(int entry) const;
  void Fill(const RopeFrequencies& rope, std::span<const int32_t> positions, const Angles& angles,
            int64_t row);
  RopeTable At(const Angles& angles, int64_t row) const;
  // The first row of an entry's closing slots.
  int64_t ClosingRow(int entry) const;

  StepContext& context_;
  const Batch& batch_;
  const int64_t half_;
  Angles rows_;                                // [step_tokens, half]
  Angles slots_;                               // [step_tokens + entries * page_slots, half]
  float* inv_freq_ = nullptr;                  // [entries, half]
  std::vector<std::vector<float>> on_device_;  // what inv_freq_ holds
  std::vector<int32_t> positions_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_TURNS_H_
