#include "model/weights/shard.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/bytes.h"
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
  HEADWAY_CHECK(std::ssize(shard.kv_heads) == whole.layers && shard.head_slots > 0);
  for (const HeadSet& set : shard.kv_heads) {
    const std::vector<int>& heads = set.heads;
    HEADWAY_CHECK(set.size() <= shard.head_slots);
    HEADWAY_CHECK(heads.empty() || (heads.front() >= 0 && heads.back() < whole.kv_heads));
    HEADWAY_CHECK(std::adjacent_find(heads.begin(), heads.end(), std::greater_equal<>()) ==
                  heads.end());
  }
  HEADWAY_CHECK(shard.inner.begin >= 0 && shard.inner.size() > 0 && shard.inner.end <= whole.d_ff);
  HEADWAY_CHECK(shard.vocab.begin >= 0 && shard.vocab.size() > 0 && shard.vocab.end <= whole.vocab);
}

// The `index`-th of `parts` of so many rows, in whole vectors where there are enough of them.
Interval Cut(int64_t rows, int64_t parts, int64_t index) {
  int64_t unit = 64;
  while (unit > 1 && CeilDiv(rows, unit) < 8 * parts) unit /= 2;
  const int64_t units = CeilDiv(rows, unit);
  const auto begin = [&](int64_t part) {
    return std::min(rows, (units / parts * part + std::min(part, units % parts)) * unit);
  };
  return {begin(index), begin(index + 1)};
}

}  // namespace

std::vector<Shard> CutShards(const ModelShape& whole,
                             const std::vector<std::vector<HeadSet>>& heads) {
  int slots = 1;
  for (const std::vector<HeadSet>& layers : heads) {
    for (const HeadSet& set : layers) slots = std::max(slots, set.size());
  }
  const std::ptrdiff_t ranks = std::ssize(heads);
  std::vector<Shard> shards;
  for (std::ptrdiff_t rank = 0; rank < ranks; ++rank) {
    shards.push_back({.kv_heads = heads[static_cast<size_t>(rank)],
                      .head_slots = slots,
                      .inner = Cut(whole.d_ff, ranks, rank),
                      .vocab = Cut(whole.vocab, ranks, rank),
                      .role = ranks == 1  ? arch::SumRole::kAlone
                              : rank == 0 ? arch::SumRole::kFirst
                                          : arch::SumRole::kOther});
  }
  return shards;
}

ModelShape ShardShape(const ModelShape& whole, const Shard& shard) {
  Check(whole, shard);
  ModelShape shape = whole;
  shape.kv_heads = shard.head_slots;
  shape.query_heads = shape.kv_heads * whole.group();
  shape.d_ff = static_cast<int>(shard.inner.size());
  return shape;
}

Slice WholeSlice(const arch::TensorSpec& spec) {
  return {RowsInFiles(spec.fused, {{0, spec.rows}}), {}};
}

HeldPart PartOf(const arch::TensorSpec& spec, const ModelShape& whole, const Shard& shard,
                int layer) {
  Check(whole, shard);
  const HeadSet none;
  const HeadSet& heads = layer < 0 ? none : shard.kv_heads[static_cast<size_t>(layer)];
  const int64_t query_width = int64_t{whole.group()} * whole.head_dim;  // of a KV head
  const int64_t missing = shard.head_slots - heads.size();
  const auto rows = [&](const std::vector<Interval>& intervals, int64_t zeros) {
    return HeldPart{{RowsInFiles(spec.fused, intervals), {}}, zeros, 0, spec.columns};
  };
  HeldPart all = {.slice = WholeSlice(spec), .columns = spec.columns};
  switch (spec.split) {
    case arch::Split::kWhole:
      return all;
    case arch::Split::kQueryRows:
      return rows(OfHeads(heads, query_width), missing * query_width);
    case arch::Split::kKvRows:
      return rows(OfHeads(heads, whole.head_dim), missing * whole.head_dim);
    case arch::Split::kInnerRows:
      return rows({shard.inner}, 0);
    case arch::Split::kVocabRows:
      return rows({shard.vocab}, 0);
    case arch::Split::kQueryColumns:
      all.columns = shard.head_slots * query_width;
      if (heads.size() == 0) return {.zero_rows = spec.rows, .columns = all.columns};
      all.slice.columns = OfHeads(heads, query_width);
      all.zero_columns = missing * query_width;
      return all;
    case arch::Split::kInnerColumns:
      all.slice.columns = {shard.inner};
      all.columns = shard.inner.size();
      return all;
    case arch::Split::kOnce:
      return shard.role == arch::SumRole::kOther ? HeldPart{.columns = spec.columns} : all;
  }
  HEADWAY_CHECK(false);
  return all;
}

}  // namespace headway
