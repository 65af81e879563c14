// Shards: the part of a model's layers that one rank holds, as rows and columns of their tensors.
#ifndef HEADWAY_MODEL_WEIGHTS_SHARD_H_
#define HEADWAY_MODEL_WEIGHTS_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/head_set.h"
#include "model/arch/program.h"
#include "model/weights/weight_source.h"

namespace headway {

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

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

// Rows and columns of a tensor, ascending and apart.
struct Slice {
  std::vector<Interval> rows;
  std::vector<Interval> columns;  // empty: all, or a vector

  int64_t row_count() const;
};

// Those that the shard holds; empty: none of the tensor.
std::optional<Slice> SliceOf(const arch::TensorSpec& spec, const ModelShape& whole,
                             const Shard& shard);

// Writes the slice of a matrix whose whole has so many columns to `to`, row by row. Touches no
// other bytes of the source.
void ReadSlice(const WeightSource& source, const SourceTensor& tensor, int64_t columns,
               const Slice& slice, std::byte* to);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_SHARD_H_
