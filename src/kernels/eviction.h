// Kernels of eviction: how much attention the tokens of a cache had from some queries or are to
// expect, how large their values are, and gathering the tokens that are kept.
#ifndef HEADWAY_KERNELS_EVICTION_H_
#define HEADWAY_KERNELS_EVICTION_H_

#include <cstdint>
#include <span>

#include "device/device.h"
#include "kernels/attention.h"
#include "kernels/pages.h"
#include "kernels/weight_view.h"

namespace headway {

// Logits of the queries of one KV head's group against a run of its keys, which lies on the device
// or in memory of the host that kernels read.
struct KeyLogitsItem {
  const void* q = nullptr;  // activations [rows, group, head_dim]; rows q_stride elements apart
  int64_t q_stride = 0;
  int64_t rows = 0;
  int64_t q_position = 0;  // of the first row; a query at p sees keys at positions <= p
  KeyRun keys;             // of one head, not encoded, at consecutive positions
  // Key i of query head g of row r goes to (r * group + g) * stride + i; -inf for keys that it does
  // not see.
  float* logits = nullptr;
  int64_t stride = 0;
};

// Where sums of weights go that are averaged over steps: that of column c to slot (first + c) %
// ring, as share * sum, to which the first `kept` columns add keep * what is there.
struct MovingAverage {
  int64_t ring = 0;  // slots; 0: sums are not averaged, and column c's goes to slot c
  int64_t first = 0;
  int64_t kept = 0;
  float keep = 0.0f;
  float share = 1.0f;

  constexpr int64_t SlotOf(int64_t column) const {
    return ring == 0 ? column : (first + column) % ring;
  }
  constexpr float Join(int64_t column, float there, float sum) const {
    return column < kept ? keep * there + share * sum : share * sum;
  }
};

// Weights of the softmax over each row of logits, added up over the rows, and the largest.
struct KeyWeightsItem {
  const float* logits = nullptr;  // [rows, columns], rows `stride` apart; each has a finite one
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  float* sum = nullptr;  // [columns], or [average.ring]
  MovingAverage average = {};
  float* max = nullptr;      // [columns], or null
  bool raises = false;       // a larger `max` that is there stays
  float* row_lse = nullptr;  // [rows], scratch: the natural logarithm of the sum of exponentials
};

// K and V of some slots of one head, one behind the other.
struct GatherSlotsItem {
  PageRun from;  // of one head; pages in the encoding become rows of the dtype (decoded_rows.h)
  // [count] of the run, in memory that kernels read; null: its first ones in order.
  const int32_t* slots = nullptr;
  int64_t count = 0;
  PageRun to;  // not encoded; its count is `count`. A null `v`: keys alone
};

// Sums over the queries of one layer that are not rotated yet, and over their products: what says
// how queries are distributed.
struct QueryMomentsItem {
  const void* q = nullptr;  // activations [rows, heads, head_dim]; rows q_stride elements apart
  int64_t q_stride = 0;
  int64_t rows = 0;
  bool adds = true;           // to what is there; off: it is overwritten
  float* sums = nullptr;      // [heads, head_dim]
  float* products = nullptr;  // [heads, head_dim, head_dim]
};

// Logarithms of how much attention the keys of one head are to expect from queries that are
// normally distributed: of a query head g and a key k
//   scale mean_g·k + scale² k·covariance_g·k / 2,
// which is the logarithm of the mean of exp(scale q·k) over such queries.
struct ExpectedLogitsItem {
  KeyRun keys;                        // of one head, not encoded
  const float* mean = nullptr;        // [group, head_dim]
  const float* covariance = nullptr;  // [group, head_dim, head_dim]
  float* logits = nullptr;            // [group, keys], rows `stride` apart
  int64_t stride = 0;
};

// Euclidean norms of the values of one head.
struct ValueNormsItem {
  PageRun values;          // not encoded
  float* norms = nullptr;  // [values.count]
};

// What the values of one head reach behind the projection of attention's output: the sum of the
// magnitudes of that output, its mean over the group's query heads.
struct ProjectedNormsItem {
  PageRun values;            // not encoded
  WeightView weight;         // [out, in]
  int64_t first_column = 0;  // the group's columns begin here: head_dim for each query head
  float* norms = nullptr;    // [values.count]
};

// Pages on a GPU are those that attention takes there, and rows of q lie on 16 bytes; others are an
// error of the stream, and nothing is written.
class EvictionKernels {
 public:
  virtual ~EvictionKernels() = default;
  // Each key is read once, whatever the rows.
  virtual void KeyLogits(Stream& stream, const PageFormat& format, int group, float scale,
                         std::span<const KeyLogitsItem> items) = 0;
  // A column's weights are added up row by row.
  virtual void KeyWeights(Stream& stream, std::span<const KeyWeightsItem> items) = 0;
  virtual void GatherSlots(Stream& stream, const PageFormat& format,
                           std::span<const GatherSlotsItem> items) = 0;
  // Rows are added one after the other.
  virtual void QueryMoments(Stream& stream, const PageFormat& format, int heads,
                            std::span<const QueryMomentsItem> items) = 0;
  virtual void ExpectedLogits(Stream& stream, const PageFormat& format, int group, float scale,
                              std::span<const ExpectedLogitsItem> items) = 0;
  virtual void ValueNorms(Stream& stream, const PageFormat& format,
                          std::span<const ValueNormsItem> items) = 0;
  virtual void ProjectedNorms(Stream& stream, const PageFormat& format, int group,
                              std::span<const ProjectedNormsItem> items) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_EVICTION_H_
