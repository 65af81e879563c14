#include "model/weights/shard.h"

#include <algorithm>
#include <cstring>

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

int64_t Slice::row_count() const {
  int64_t count = 0;
  for (const Interval& interval : rows) count += interval.size();
  return count;
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

void ReadSlice(const WeightSource& source, const SourceTensor& tensor, int64_t columns,
               const Slice& slice, std::byte* to) {
  const auto take = [&](int64_t begin, int64_t count) {
    const std::span<const std::byte> bytes = source.Bytes(tensor, begin, count);
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  };
  const int64_t row_bytes = RowBytes(tensor.type, columns);
  for (const Interval& rows : slice.rows) {
    if (slice.columns.empty()) {
      take(rows.begin * row_bytes, rows.size() * row_bytes);
      continue;
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Interval& part : slice.columns) {
        take(row * row_bytes + RowBytes(tensor.type, part.begin),
             RowBytes(tensor.type, part.size()));
      }
    }
  }
}

}  // namespace headway
