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

// Rows of one of the tensors that the files hold as one.
std::vector<Interval> RowsInFiles(const arch::Fused& fused, const std::vector<Interval>& rows) {
  if (fused.tensors == 1) return rows;
  std::vector<Interval> in_files;
  for (const Interval& interval : rows) {
    for (int64_t row = interval.begin; row < interval.end;) {
      const int64_t turn = row / fused.rows;
      const int64_t end = std::min((turn + 1) * fused.rows, interval.end);
      // Of the turns of all tensors before this one of this tensor.
      const int64_t before = (turn * (fused.tensors - 1) + fused.at) * fused.rows;
      in_files.push_back({before + row, before + end});
      row = end;
    }
  }
  return in_files;
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

Slice WholeSlice(const arch::TensorSpec& spec) {
  return {RowsInFiles(spec.fused, {{0, spec.rows}}), {}};
}

std::optional<Slice> SliceOf(const arch::TensorSpec& spec, const ModelShape& whole,
                             const Shard& shard) {
  Check(whole, shard);
  const int64_t query_width = int64_t{whole.group()} * whole.head_dim;  // of a KV head
  const auto rows = [&](const std::vector<Interval>& intervals) {
    return Slice{RowsInFiles(spec.fused, intervals), {}};
  };
  Slice all = WholeSlice(spec);
  switch (spec.split) {
    case arch::Split::kWhole:
      break;
    case arch::Split::kQueryRows:
      return rows(OfHeads(shard.kv_heads, query_width));
    case arch::Split::kKvRows:
      return rows(OfHeads(shard.kv_heads, whole.head_dim));
    case arch::Split::kInnerRows:
      return rows({shard.inner});
    case arch::Split::kQueryColumns:
      all.columns = OfHeads(shard.kv_heads, query_width);
      break;
    case arch::Split::kInnerColumns:
      all.columns = {shard.inner};
      break;
    case arch::Split::kOnce:
      if (shard.sum_biases == SumBiases::kElsewhere) return std::nullopt;
      break;
  }
  return all;
}

}  // namespace headway
