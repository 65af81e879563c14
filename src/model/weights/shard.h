// Shards: the part of a model's layers that one rank holds, as rows and columns of their tensors.
#ifndef HEADWAY_MODEL_WEIGHTS_SHARD_H_
#define HEADWAY_MODEL_WEIGHTS_SHARD_H_

#include <cstdint>
#include <optional>

#include "base/head_set.h"
#include "model/arch/program.h"
#include "model/weights/weight_source.h"

namespace headway {

// Who adds the biases of products that are sums over the ranks.
enum class SumBiases : uint8_t { kHere, kElsewhere };

// The same of every layer. Embeddings, head and norms are whole on each rank.
struct Shard {
  HeadSet kv_heads;  // with the query heads of their groups
  Interval inner;    // of d_ff
  SumBiases sum_biases = SumBiases::kHere;
};

// The shape of the model that the shard is.
ModelShape ShardShape(const ModelShape& whole, const Shard& shard);

// Where the files have the rows of a whole tensor.
Slice WholeSlice(const arch::TensorSpec& spec);

// The same of those that the shard holds; empty: none of the tensor.
std::optional<Slice> SliceOf(const arch::TensorSpec& spec, const ModelShape& whole,
                             const Shard& shard);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_SHARD_H_
