// StepContext: what all parts of a step work on. It belongs to the executor and outlives them.
#ifndef HEADWAY_ENGINE_STEP_STEP_CONTEXT_H_
#define HEADWAY_ENGINE_STEP_STEP_CONTEXT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"
#include "engine/step/limits.h"
#include "engine/step/listed_count.h"
#include "engine/step/shared_heads.h"
#include "kernels/kernels.h"
#include "kv/pages/format.h"
#include "kv/store/store.h"
#include "model/model.h"
#include "parallel/communicator.h"

namespace headway {

class Turns;

struct StepContext {
  StepContext(const Model& step_model, Kernels& step_kernels, Stream& compute_stream,
              kv::Store& step_store, const ExecutorLimits& step_limits)
      : model(step_model),
        shape(step_model.shape()),
        kernels(step_kernels),
        compute(compute_stream),
        store(step_store),
        limits(step_limits),
        format(step_store.format().page) {
    const kv::CacheFormat& cache = store.format();
    for (int layer = 0; layer < cache.layers; ++layer) {
      std::vector<std::vector<kv::HeadRun>>& groups = runs.emplace_back();
      for (int group = 0; group <= cache.StreamingGroup(layer); ++group) {
        groups.push_back(cache.Runs(layer, group));
      }
    }
  }

  // Where the heads of a group are in the model.
  std::span<const kv::HeadRun> RunsOf(int layer, int group) const {
    return runs[static_cast<size_t>(layer)][static_cast<size_t>(group)];
  }
  // Tokens that a layer's queries look back; 0: all.
  int64_t WindowOf(int layer) const {
    const std::vector<int64_t>& windows = model.config().windows;
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  // A layer's number in the model, of which these may be a run of layers.
  int LayerOfModel(int layer) const { return model.config().first_layer + layer; }
  // Elements of a token's q, and of its attention's output.
  int64_t QWidth() const { return int64_t{shape.query_heads} * shape.head_dim; }
  // Bytes of `count` activations.
  int64_t ActivationBytes(int64_t count) const {
    return count * static_cast<int64_t>(DTypeBytes(limits.activation_dtype));
  }
  // Query head `head` of row `row` of q.
  std::byte* QueryAt(int64_t row, int64_t head) const {
    return static_cast<std::byte*>(act.q) +
           ActivationBytes(row * act.qkv_stride + head * shape.head_dim);
  }

  const Model& model;
  const ModelShape& shape;
  Kernels& kernels;
  Stream& compute;
  kv::Store& store;
  const ExecutorLimits limits;
  const PageFormat format;
  // [layers][head groups, the streaming heads last]
  std::vector<std::vector<std::vector<kv::HeadRun>>> runs;
  Activations act;
  const Turns* turns = nullptr;
  const std::byte* block = nullptr;  // of the layer at hand: its weights, where they stream
  Communicator* communicator =
      nullptr;  // of ranks that have shards of the model; null: one has all
  // Heads of which other ranks have a part; null: there are none.
  const SharedHeads* shared = nullptr;
  ListedCount listed;             // by the path of selection
  ListedCount listed_of_prompts;  // by that of selected prompts
  // Kernels wait for work of other lanes whose errors neither the store's reads nor the compute
  // stream tell, or count pages that do not fit their encoding.
  bool awaits_lanes = false;
};

// Hands out a buffer's parts, one behind the other.
class Memory {
 public:
  explicit Memory(std::byte* at) : at_(at) {}
  std::byte* Take(int64_t bytes) { return std::exchange(at_, at_ + bytes); }
  float* Floats(int64_t bytes) { return reinterpret_cast<float*>(Take(bytes)); }

 private:
  std::byte* at_;
};

// What logits are multiplied by.
inline float AttentionScale(const ModelShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

// Bytes of `count` floats, padded so that what lies behind them is aligned.
inline int64_t FloatBytes(int64_t count) { return RoundUp(count * int64_t{sizeof(float)}, 64); }

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_STEP_CONTEXT_H_
