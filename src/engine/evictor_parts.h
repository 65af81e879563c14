// What an evictor is made for, and what it works with.
#ifndef HEADWAY_ENGINE_EVICTOR_PARTS_H_
#define HEADWAY_ENGINE_EVICTOR_PARTS_H_

#include <cstdint>

#include "base/head_set.h"
#include "device/budget.h"
#include "device/device.h"
#include "engine/executor.h"
#include "engine/step/demoted.h"
#include "engine/step/weight_stream.h"
#include "kernels/kernels.h"
#include "kv/policy/eviction.h"
#include "kv/store/store.h"
#include "model/config.h"
#include "model/model.h"
#include "parallel/communicator.h"

namespace headway {

struct EvictorLimits {
  ModelShape shape;
  PageFormat page;                      // of prompts
  Encoding encoding = Encoding::kNone;  // of closed pages of what is kept
  kv::EvictionPolicy policy;
  // Which rank has which heads of the model: those of this one come first in each layer of the
  // shape. Where there are fewer, the others are zeros, which nothing is kept of.
  RankHeads heads;
  int64_t head_pages = 0;                // that a head keeps, at most
  int64_t length = 0;                    // of the longest prompt
  int64_t behind = 0;                    // tokens that are read behind it, for a time
  DType activation_dtype = DType::kF32;  // of queries
  bool host_reads_device = true;

  int64_t all() const { return length + behind; }
};

// All outlives it.
struct EvictorParts {
  const Model& model;
  Kernels& kernels;
  Device& device;
  Stream& compute;
  const Executor& executor;         // that reads prompts
  kv::Store& from;                  // where their tokens are
  kv::Store& to;                    // where those that are kept go
  Budget& budget;                   // of the device's memory
  Budget& host_budget;              // of memory that results come to, where the host does not read
                                    // that
  WeightStream* weights = nullptr;  // brings the layers that are not resident; null: all are
  Communicator* communicator = nullptr;  // of a rank; null: it has all heads
  Demoted* demoted = nullptr;            // holds what is let go of; null: it is dropped
  const SharedHeads* shared = nullptr;   // of which other ranks have a part; null: there are none
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_EVICTOR_PARTS_H_
