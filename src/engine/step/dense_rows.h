// DenseRows: where the rows of a prompt's chunk attend to chosen keys, every N-th row attends to
// all keys besides. What that changes in its output is added to the outputs of the rows up to the
// next such row (Willette et al., "Delta Attention", 2025; kv::SelectionPolicy::dense_every).
#ifndef HEADWAY_ENGINE_STEP_DENSE_ROWS_H_
#define HEADWAY_ENGINE_STEP_DENSE_ROWS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/step_context.h"
#include "kernels/kernels.h"

namespace headway {

class DenseRows {
 public:
  // Bytes that it takes; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits);
  // Takes them from `memory`.
  DenseRows(StepContext& context, const Batch& batch, Memory* memory);

  // A layer begins: no entry has dense rows.
  void BeginLayer();
  // The entry has them in this layer: its queries are enqueued, and its rows attend to chosen keys.
  void Begin(int entry);
  bool Has(int entry) const { return entries_[static_cast<size_t>(entry)].begun; }
  // The rows' attention to these keys of the heads of a run: to those of pages before the chunk, in
  // the order of calls, and to the chunk's, which come last. The items of one call may run
  // together.
  void MakeItems(int entry, const kv::HeadRun& run, const KeyRun& keys,
                 std::vector<AttentionItem>* items);
  // All rows have their outputs: corrects them in the activations.
  void Correct();

 private:
  struct Entry {
    bool begun = false;
    int64_t first = 0;               // its first row here
    std::vector<bool> started = {};  // [kv_heads]: there is a state
  };
  // Of an entry's `tokens`.
  int64_t RowsOf(int64_t tokens) const { return CeilDiv(tokens, every_); }

  StepContext& context_;
  const Batch& batch_;
  const int64_t every_;  // 0: there are none
  std::byte* q_;         // [rows, query_heads, head_dim], activations
  float* o_;             // the same
  float* lse_;           // [rows, query_heads]
  std::vector<Entry> entries_;
  int64_t rows_ = 0;  // of the layer so far
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_DENSE_ROWS_H_
