// Shards: the part of a model's layers that one rank holds, as rows and columns of their tensors.
#ifndef HEADWAY_MODEL_WEIGHTS_SHARD_H_
#define HEADWAY_MODEL_WEIGHTS_SHARD_H_

#include <cstdint>
#include <vector>

#include "base/head_set.h"
#include "model/arch/program.h"
#include "model/weights/weight_source.h"

namespace headway {

// Embeddings and norms are whole on each rank, of the MLP and the head it has neighbours.
struct Shard {
  // [layers], with the query heads of their groups. A layer may have none.
  std::vector<HeadSet> kv_heads;
  // Heads of every layer of the shard's model: behind its own a layer has zeros in the place of
  // those that others have more. They make zeros of whatever they read.
  int head_slots = 0;
  Interval inner;  // of d_ff
  Interval vocab;  // rows of the head
  arch::SumRole role = arch::SumRole::kAlone;
  // Whether it has the tables of tokens and positions that the residual stream begins with: not
  // where its layers follow others. One that is the head, too, is there anyway.
  bool embeds = true;
};

// The shards of as many ranks as there are lists of heads, [ranks][layers]; d_ff and the vocabulary
// are cut evenly, the first shard is the largest. There are no more ranks than either has rows.
std::vector<Shard> CutShards(const ModelShape& whole,
                             const std::vector<std::vector<HeadSet>>& heads);

// The shape of the model that the shard is.
ModelShape ShardShape(const ModelShape& whole, const Shard& shard);

// Where the files have the rows of a whole tensor.
Slice WholeSlice(const arch::TensorSpec& spec);

// The part of a tensor that is held.
struct HeldPart {
  Slice slice = {};          // of the files; without rows: nothing of them
  int64_t zero_rows = 0;     // behind those of the slice
  int64_t zero_columns = 0;  // the same, of a slice with columns of its own
  int64_t columns = 0;       // in all; 0: a vector

  int64_t rows() const { return slice.row_count() + zero_rows; }
};

// That which the shard has of a layer's tensor, or of one of no layer; no rows: none of it.
HeldPart PartOf(const arch::TensorSpec& spec, const ModelShape& whole, const Shard& shard,
                int layer);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_SHARD_H_
