#include "block_summaries.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/page_codec_math.h"

namespace headway::bench {
namespace {

// Rows of two numbers a channel.
struct Rows {
  std::vector<float> first, second;
};

// The numbers as codes of so many bits have them, with one scale. `most` is the largest code.
void Round(std::vector<float>& row, float largest, float most) {
  if (largest <= 0.0f) return;
  const float scale = largest / most;
  for (float& x : row) x = scale * std::nearbyint(x / scale);
}

float LargestOf(const std::vector<float>& row) {
  float largest = 0.0f;
  for (const float x : row) largest = std::max(largest, std::abs(x));
  return largest;
}

float SignedCodes(int bits) { return static_cast<float>((1 << (bits - 1)) - 1); }
float UnsignedCodes(int bits) { return static_cast<float>((1 << bits) - 1); }

// Of keys [count, head_dim].
Rows MomentsOf(std::span<const float> keys, size_t dim) {
  const float share = 1.0f / static_cast<float>(keys.size() / dim);
  Rows rows{std::vector<float>(dim, 0.0f), std::vector<float>(dim, 0.0f)};
  for (size_t i = 0; i < keys.size(); ++i) rows.first[i % dim] += share * keys[i];
  for (size_t i = 0; i < keys.size(); ++i) {
    const float off = keys[i] - rows.first[i % dim];
    rows.second[i % dim] += share * off * off;
  }
  return rows;
}

Rows BoxOf(std::span<const float> keys, size_t dim) {
  Rows rows{{keys.begin(), keys.begin() + static_cast<ptrdiff_t>(dim)}, {}};
  rows.second = rows.first;
  for (size_t i = dim; i < keys.size(); ++i) {
    rows.first[i % dim] = std::min(rows.first[i % dim], keys[i]);
    rows.second[i % dim] = std::max(rows.second[i % dim], keys[i]);
  }
  return rows;
}

// Least and greatest keys as the parameters of an encoded page have them: the least one is rounded
// down, and the greatest one is the number of the largest code.
Rows EncodedBoxOf(std::span<const float> keys, size_t dim, Encoding encoding) {
  Rows rows = BoxOf(keys, dim);
  for (size_t i = 0; i < dim; ++i) {
    codec::Span span;
    span.Add(rows.first[i]);
    span.Add(rows.second[i]);
    const codec::Params params = codec::ParamsOf(span, encoding);
    rows.first[i] = params.zero;
    rows.second[i] = params.zero + params.scale * codec::Levels(encoding);
  }
  return rows;
}

// 64 normal numbers span 4.69 standard deviations on average.
void BoxToMoments(Rows& rows) {
  constexpr float kSpan = 4.69f;
  for (size_t i = 0; i < rows.first.size(); ++i) {
    const float least = rows.first[i], greatest = rows.second[i];
    const float deviation = (greatest - least) / kSpan;
    rows.first[i] = 0.5f * (least + greatest);
    rows.second[i] = deviation * deviation;
  }
}

void RoundMoments(Rows& rows, const Way& way) {
  Round(rows.first, LargestOf(rows.first), SignedCodes(way.bits));
  const bool roots = way.kept == Kept::kDeviations;
  for (float& x : rows.second) x = roots ? std::sqrt(x) : x;
  Round(rows.second, LargestOf(rows.second), UnsignedCodes(way.bits));
  for (float& x : rows.second) x = roots ? x * x : x;
}

void RoundBox(Rows& rows, const Way& way) {
  const float largest = std::max(LargestOf(rows.first), LargestOf(rows.second));
  Round(rows.first, largest, SignedCodes(way.bits));
  Round(rows.second, largest, SignedCodes(way.bits));
}

// What the parameters of an encoded page of these keys say.
Rows ParametersOf(const Way& way, std::span<const float> page, size_t dim) {
  Rows rows = EncodedBoxOf(page, dim, way.encoding);
  if (way.kept != Kept::kEncodedBoxes) BoxToMoments(rows);
  return rows;
}

// Of the keys of a block, not by parameters.
Rows SummaryOf(const Way& way, std::span<const float> keys, size_t dim) {
  if (way.kept == Kept::kBoxes) {
    Rows rows = BoxOf(keys, dim);
    if (way.bits > 0) RoundBox(rows, way);
    return rows;
  }
  Rows rows = MomentsOf(keys, dim);
  if (way.kept == Kept::kMeans) std::fill(rows.second.begin(), rows.second.end(), 0.0f);
  if (way.bits > 0) RoundMoments(rows, way);
  return rows;
}

bool IsOfParameters(Kept kept) {
  return kept == Kept::kEncodedBoxes || kept == Kept::kEncodedMoments;
}
bool ScoresAsBoxes(Kept kept) { return kept == Kept::kBoxes || kept == Kept::kEncodedBoxes; }

// Σ term(i) over a multiple of 8, in lanes that a compiler adds at once.
template <typename Term>
float SumInLanes(size_t count, const Term& term) {
  constexpr size_t kLanes = 8;
  std::array<float, kLanes> sums = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0f);
}

}  // namespace

double BytesPerKey(const Way& way, int head_dim) {
  if (way.kept == Kept::kMasses || IsOfParameters(way.kept)) return 0.0;  // pages have it already
  const int rows = way.kept == Kept::kMeans || way.kept == Kept::kMeansInPages ? 1 : 2;
  const int bits_of_row = way.bits > 0 ? way.bits * head_dim + 32 : 32 * head_dim;
  return rows * bits_of_row / 8.0 / way.block;
}

HeadSummaries::HeadSummaries(std::span<const Way> ways, int head_dim)
    : ways_(ways), head_dim_(head_dim), rows_(ways.size()) {
  HEADWAY_CHECK(head_dim % 8 == 0);
}

void HeadSummaries::Append(std::span<const float> keys) {
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  const auto dim = static_cast<size_t>(head_dim_);
  const size_t page = kPageKeys * dim;
  for (size_t w = 0; w < ways_.size(); ++w) {
    const Way& way = ways_[w];
    if (way.kept == Kept::kMasses) continue;
    const size_t block = static_cast<size_t>(way.block) * dim;
    for (size_t at = 0; at < keys.size(); at += block) {
      const std::span<const float> of_page = keys.subspan(at / page * page, page);
      Rows rows = IsOfParameters(way.kept) ? ParametersOf(way, of_page, dim)
                                           : SummaryOf(way, keys.subspan(at, block), dim);
      if (way.kept == Kept::kMeansInPages) rows.second = ParametersOf(way, of_page, dim).second;
      rows_[w].insert(rows_[w].end(), rows.first.begin(), rows.first.end());
      rows_[w].insert(rows_[w].end(), rows.second.begin(), rows.second.end());
    }
  }
}

const float* HeadSummaries::RowOf(size_t way, int64_t block, int row) const {
  return rows_[way].data() + (2 * block + row) * head_dim_;
}

std::vector<float> HeadSummaries::Scores(size_t way, std::span<const float> q, float scale) const {
  std::vector<float> squares;
  for (const float x : q) squares.push_back(0.5f * scale * x * x);
  std::vector<float> scores(static_cast<size_t>(count() / ways_[way].block));
  const bool boxes = ScoresAsBoxes(ways_[way].kept);
  for (size_t block = 0; block < scores.size(); ++block) {
    const float* const first = RowOf(way, static_cast<int64_t>(block), 0);
    const float* const second = RowOf(way, static_cast<int64_t>(block), 1);
    const float sum =
        boxes ? SumInLanes(q.size(),
                           [&](size_t i) { return std::max(q[i] * first[i], q[i] * second[i]); })
              : SumInLanes(q.size(),
                           [&](size_t i) { return q[i] * first[i] + squares[i] * second[i]; });
    scores[block] = scale * sum;
  }
  return scores;
}

float HeadSummaries::Product(std::span<const float> q, int64_t index) const {
  const float* const key = keys_.data() + index * head_dim_;
  return SumInLanes(q.size(), [&](size_t i) { return q[i] * key[i]; });
}

}  // namespace headway::bench
