// What is left of a decode behind its listed blocks (DecodeRest), for random problems of selection:
// run on any backend and compared with kernels/ref.
#ifndef HEADWAY_KERNELS_TESTING_SELECTION_REST_H_
#define HEADWAY_KERNELS_TESTING_SELECTION_REST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"
#include "kernels/testing/attention_problem.h"
#include "kernels/testing/selection_problem.h"

namespace headway {

class RestProblem {
 public:
  // Open pages for the heads of a problem of decode without bad numbers, which outlives this; NaN
  // lies behind their last keys and between them.
  RestProblem(SelectionProblem& problem, Random& random);

  // Runs the calls of selection, the last one with its rest, which is attention's to what is
  // listed, or one behind it; the result as numbers. With a cache, attention runs in kCachedSteps
  // steps.
  enum class Rest : uint8_t { kWithAttention, kBehindAttention };
  std::vector<float> Run(Kernels& kernels, Stream& stream, SelectionHost& host,
                         BlockCache cache = {}, Rest rest = Rest::kWithAttention) const;
  // The first difference of a result beyond what `precision` allows, in words, or empty.
  std::string Disagreement(const AttentionPrecision& precision, const std::vector<float>& actual);

 private:
  // Memory of one run, beside that of the problem.
  struct Places {
    std::byte* open = nullptr;
    std::byte* states = nullptr;  // of all parts and one more
    std::byte* result = nullptr;
  };
  void Point(const Places& places, AttendBlocksItem* item) const;
  std::vector<std::byte> Poison(int64_t bytes) const;
  int64_t StateBytes(const AttendBlocksItem& item) const;
  int64_t ResultBytes(DType activation) const;
  std::vector<float> Expected();
  StateReach Reach(int64_t q_head);
  // Of a head's K or V.
  int64_t RowOf(int head, bool of_keys) const;
  int64_t query_heads() const { return int64_t{problem_.spec.heads} * problem_.spec.group; }

  SelectionProblem& problem_;
  int64_t row_stride_ = 0;
  int64_t count_ = 0;
  std::vector<std::byte> open_;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_SELECTION_REST_H_
