// Random problems of the kernels by which eviction weighs queries, keys and values, as
// eviction_problem.h has those of the others.
#ifndef HEADWAY_KERNELS_TESTING_EVICTION_VALUES_PROBLEM_H_
#define HEADWAY_KERNELS_TESTING_EVICTION_VALUES_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/eviction.h"
#include "kernels/testing/paged_kv.h"

namespace headway {

// Queries of one layer, and sums to which theirs are added; else these are poisoned.
class QueryMomentsProblem {
 public:
  QueryMomentsProblem(int of_heads, const PageFormat& of_format, int64_t of_rows, Random& random);

  // Over the memory here.
  QueryMomentsItem Item();
  // The first sum or product that is off by more than sums of f32 explain, in words; empty where
  // there is none.
  std::string Disagreement(const std::vector<float>& got_sums,
                           const std::vector<float>& got_products);

  int heads;
  PageFormat format;  // whose dtype the queries are rounded to
  int64_t rows, q_stride;
  bool adds;
  std::vector<float> q, sums, products;
};

// Keys of one head, and queries' means and covariances; logits are poisoned.
class ExpectedLogitsProblem {
 public:
  ExpectedLogitsProblem(const PageFormat& format, const PageLayout& layout, int of_group,
                        Random& random);

  ExpectedLogitsItem Item();
  std::string Disagreement(const std::vector<float>& actual);

  PagedKv kv;
  int group;
  float scale;
  int64_t stride;
  std::vector<float> mean, covariance, logits;
};

// Values of one head, and a projection of as many query heads as it has; norms are poisoned.
class NormsProblem {
 public:
  NormsProblem(const PageFormat& format, const PageLayout& layout, int of_group, Random& random);

  ValueNormsItem Values();
  ProjectedNormsItem Projected();
  std::string ValuesDisagreement(const std::vector<float>& actual);
  std::string ProjectedDisagreement(const std::vector<float>& actual);

  PagedKv kv;
  int group;
  int64_t out, in, first_column;
  std::vector<std::byte> weight;  // [out, in] in the format's dtype
  std::vector<float> norms;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_EVICTION_VALUES_PROBLEM_H_
