// Random attention problems with what their results may be off by: one set-up for the tests of
// every backend and for the fuzzer. Results are compared with kernels/ref, the definition.
#ifndef HEADWAY_KERNELS_TESTING_ATTENTION_PROBLEM_H_
#define HEADWAY_KERNELS_TESTING_ATTENTION_PROBLEM_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/attention.h"
#include "kernels/testing/paged_kv.h"

namespace headway {

inline constexpr double kUnit = 0x1p-24;  // rounding to f32 is off by at most this, relatively
// The same for any dtype.
double UnitOf(DType dtype);

struct AttentionCase {
  PageFormat format;
  int heads = 1;
  int group = 1;
  AttentionParams params;
  int64_t tokens = 1;
  int64_t count = 0;
  int64_t first_slot = 0;
  int64_t key_position = 0;
  int64_t q_position = 0;
  bool positions = false;  // random gaps between the keys' positions
  int rotary_dim = 0;      // not 0: keys are rotated at attention time
  bool rotate_to = false;  // to positions of their own
  bool key_mass = false;
  bool merge = false;
  int64_t split = 0;
  float key_size = 1.0f;
  bool uneven_keys = false;  // PagedKv::Shape
  bool tiny_numbers = false;
  PageLayout layout;
  int64_t row_gap = 5;             // elements between rows of queries
  int64_t o_gap = 5;               // and of outputs
  DType activation = DType::kF32;  // of the queries, whose numbers are rounded to it

  std::string Name() const;
  AttentionRequest Request() const;
};

// What Attend writes. Without `lse`, that is not compared.
struct AttentionOutputs {
  std::vector<float> o;
  std::vector<float> lse;
  std::vector<float> mass;
};

// What an implementation rounds beside the sums and products of f32 that every one has.
struct AttentionPrecision {
  double dim_units = 1.0;  // a logit's sum is off by so many units for each element of a head
  double more_units = 0;   // units of a weight beside those of Tolerances
  double slack = 1.0;
  double logit = 0;           // relative rounding of what a logit is a product of
  double weight = 0;          // relative rounding of a softmax weight
  bool weight_in_sum = true;  // the sum is of the rounded weights
  double magnitude = 0;       // rounding relative to the weighted sum of the values' magnitudes
  double values = 0;          // the largest value, where it is not taken from the problem
  double result = 0;          // rounding of the output
};

// What the error of one row's state depends on.
struct StateReach {
  double logits = 0;  // the largest |scale| * sum of |q_i| |k_i| of a key that the row sees
  double values = 0;  // the largest magnitude of a value
  int64_t keys = 0;   // that it sees
};

// What a state may be off by: its o, but for what is relative to results and magnitudes, and lse.
struct StateTolerance {
  double o = 0;
  double lse = 0;
};
StateTolerance ToleranceOf(const AttentionPrecision& precision, int head_dim, float softcap,
                           const StateReach& reach, double lse);

// Empty where the numbers agree. NaN agrees with NaN alone, an infinity with itself.
std::string CompareNumbers(const char* what, size_t at, double expected, double actual,
                           double tolerance);

// One item with its memory on the host. Outputs are poisoned, or hold a random state to merge into:
// some such states have seen no key, and their o is poisoned, too.
class AttentionProblem {
 public:
  AttentionProblem(const AttentionCase& c, Random& random);

  // Over the memory here. Calls write to `outputs`.
  AttentionItem Item();
  // The definition's result for `q`; `outputs` stay as they are.
  AttentionOutputs Expected(const std::vector<float>& q);
  AttentionOutputs Expected() { return Expected(q); }
  // The first number of `actual` that is further from `expected` than `precision` allows, in words;
  // empty where there is none. Whatever no result owns must still be poisoned.
  std::string Disagreement(const AttentionPrecision& precision, const AttentionOutputs& expected,
                           const AttentionOutputs& actual);

  int64_t parts() const;
  int64_t query_heads() const { return int64_t{spec.heads} * spec.group; }
  size_t OAt(int64_t part, int64_t token, int64_t head) const;
  size_t LseAt(int64_t part, int64_t token, int64_t head) const;

  AttentionCase spec;
  PagedKv kv;
  int64_t q_stride = 0;
  int64_t o_stride = 0;
  int64_t o_part_stride = 0;
  int64_t lse_stride = 0;
  int64_t lse_part_stride = 0;
  std::vector<float> q;
  std::vector<int32_t> positions;
  std::vector<int32_t> rotate_to;
  std::vector<float> inv_freq;
  AttentionOutputs outputs;

 private:
  void FillState(Random& random);
  bool Visible(int64_t token, int64_t key) const;
  void MeasureRows();
  // o of attention to the magnitudes of the values.
  std::vector<float> Magnitudes();
  StateReach& RowAt(int64_t part, int64_t token, int64_t head) {
    return rows_[static_cast<size_t>((part * spec.tokens + token) * query_heads() + head)];
  }
  std::string RowDisagreement(const AttentionPrecision& precision, const AttentionOutputs& expected,
                              const AttentionOutputs& actual, const StateReach& row, size_t o_at,
                              size_t lse_at) const;
  std::string MassDisagreement(const AttentionPrecision& precision,
                               const AttentionOutputs& expected, const AttentionOutputs& actual);

  std::vector<StateReach> rows_;
  std::vector<float> magnitudes_;
};

// Cases for kernels of the host: any dtype, encoding, shape and feature.
AttentionCase RandomAttentionCase(Random& random);
// Decode as it goes to tiles: blocks, tiles and pages end anywhere.
AttentionCase RandomDecodeCase(Random& random);

// One case for each feature that AttentionRequest names, beside a plain one; heads of 64 elements,
// 2 to a KV head, pages as a GPU wants them.
std::vector<AttentionCase> FeatureCases(DType dtype, DType activation);

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.Below(static_cast<int64_t>(choices.size()))];
}

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_ATTENTION_PROBLEM_H_
