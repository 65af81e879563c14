// Random problems of eviction's kernels with what their results may be off by, for the tests of
// every backend. Results are compared with kernels/ref, the definition.
#ifndef HEADWAY_KERNELS_TESTING_EVICTION_PROBLEM_H_
#define HEADWAY_KERNELS_TESTING_EVICTION_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/eviction.h"
#include "kernels/testing/paged_kv.h"

namespace headway {

struct KeyLogitsCase {
  PageFormat format;
  int group = 1;
  float scale = 1.0f;
  int64_t rows = 1;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t key_position = 0;
  int64_t q_position = 0;
  PageLayout layout;
  int64_t row_gap = 5;             // elements between rows of queries
  int64_t logits_gap = 3;          // and between rows of logits
  DType activation = DType::kF32;  // of the queries, whose numbers are rounded to it

  std::string Name() const;
};

// Any shape; pages as the layout has them.
KeyLogitsCase RandomKeyLogits(const PageFormat& format, const PageLayout& layout, Random& random);

// One item with its memory on the host; logits are poisoned.
class KeyLogitsProblem {
 public:
  KeyLogitsProblem(const KeyLogitsCase& c, Random& random);

  KeyLogitsItem Item();
  std::vector<float> Expected();  // logits of the definition
  // The first logit that is off by more than the sums of f32 explain, in words; empty where there
  // is none. A sum is off by `dim_units` for each element of a head. Whatever lies between the rows
  // must still be poisoned.
  std::string Disagreement(double dim_units, const std::vector<float>& actual);

  KeyLogitsCase spec;
  PagedKv kv;
  std::vector<float> q;
  std::vector<float> logits;

 private:
  int64_t q_stride() const { return int64_t{spec.group} * spec.format.head_dim + spec.row_gap; }
  int64_t stride() const { return spec.count + spec.logits_gap; }
};

struct KeyWeightsOutputs {
  std::vector<float> sum, max, row_lse;
};

// Rows of logits of which each sees a column at least; outputs are poisoned and have more room than
// their results.
class KeyWeightsProblem {
 public:
  // Every second one is averaged with what was there; the largest of every second one are raised.
  KeyWeightsProblem(int64_t of_rows, int64_t of_columns, bool with_max, Random& random);

  // Over the memory here.
  KeyWeightsItem Item();
  // Of what the outputs were at first.
  KeyWeightsOutputs Expected();
  // As that of KeyLogitsProblem.
  std::string Disagreement(const KeyWeightsOutputs& actual);

  int64_t rows, columns, stride;
  bool has_max;
  bool raises;
  MovingAverage average;
  std::vector<float> logits;
  KeyWeightsOutputs outputs, before;
};

// The same with pages in any encoding that takes it, or in none.
PageFormat AnyEncoding(const PageFormat& format, Random& random);

// Slots of one run, in any order, and where they go.
class GatherSlotsProblem {
 public:
  // Runs of `format` as the layouts have them; the second is not encoded.
  GatherSlotsProblem(const PageFormat& format, const PageLayout& from_layout,
                     const PageLayout& to_layout, Random& random);

  // Over copies of the memory of both runs, and of the slots.
  GatherSlotsItem ItemIn(std::byte* from_memory, std::byte* to_memory, const int32_t* at_slots);
  // What the memory of the second run has to hold afterwards. Once.
  const std::vector<std::byte>& Expected();

  PagedKv from, to;
  std::vector<int32_t> slots;
  bool in_order = false;   // the first ones, of which the item has no list
  bool keys_only = false;  // the item has no place for values
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_EVICTION_PROBLEM_H_
