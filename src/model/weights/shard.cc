#include "model/weights/shard.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/check.h"

namespace headway {

namespace {

// The heads' rows or columns, each head `width` wide; neighbours make one interval.
std::vector<Interval> OfHeads(const HeadSet& heads, int64_t width) {
  std::vector<Interval> intervals;
  for (const int head : heads.heads) {
    const Interval own = {head * width, (head + 1) * width};
    if (!intervals.empty() && intervals.back().end == own.begin) {
      intervals.back().end = own.end;
    } else {
      intervals.push_back(own);
    }
  }
  return intervals;
}

void Check(const ModelShape& whole, const Shard& shard) {
  const std::vector<int>& heads = shard.kv_heads.heads;
  HEADWAY_CHECK(!heads.empty() && heads.front() >= 0 && heads.back() < whole.kv_heads);
  HEADWAY_CHECK(std::adjacent_find(heads.begin(), heads.end(), std::greater_equal<>()) ==
                heads.end());
  HEADWAY_CHECK(shard.inner.begin >= 0 && shard.inner.size() > 0 && shard.inner.end <= whole.d_ff);
}

}  // namespace

ModelShape ShardShape(const ModelShape& whole, const Shard& shard) {
  Check(whole, shard);
  ModelShape shape = whole;
  shape.kv_heads = shard.kv_heads.size();
  shape.query_heads = shape.kv_heads * whole.group();
  shape.d_ff = static_cast<int>(shard.inner.size());
  return shape;
}

std::optional<Slice> SliceOf(const arch::TensorSpec& spec, const ModelShape& whole,
                             const Shard& shard) {
  Check(whole, shard);
  const int64_t query_width = int64_t{whole.group()} * whole.head_dim;  // of a KV head
  const Interval all = {0, spec.rows};
  switch (spec.split) {
    case arch::Split::kWhole:
      break;
    case arch::Split::kQueryRows:
      return Slice{OfHeads(shard.kv_heads, query_width), {}};
    case arch::Split::kKvRows:
      return Slice{OfHeads(shard.kv_heads, whole.head_dim), {}};
    case arch::Split::kInnerRows:
      return Slice{{shard.inner}, {}};
    case arch::Split::kQueryColumns:
      return Slice{{all}, OfHeads(shard.kv_heads, query_width)};
    case arch::Split::kInnerColumns:
      return Slice{{all}, {shard.inner}};
    case arch::Split::kOnce:
      if (shard.sum_biases == SumBiases::kElsewhere) return std::nullopt;
      break;
  }
  return Slice{{all}, {}};
}

}  // namespace headway
