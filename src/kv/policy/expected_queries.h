// How queries to come are distributed, from how those of a prompt were before their rotation
// (ExpectedAttention; Devoto et al., 2025): the same, rotated as the positions to come do on
// average.
#ifndef HEADWAY_KV_POLICY_EXPECTED_QUERIES_H_
#define HEADWAY_KV_POLICY_EXPECTED_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::kv {

// The mean of the rotations at positions [first, first + count): a matrix that turns and shrinks
// elements i and i + half of a query, and leaves what is behind these pairs.
class FutureTurn {
 public:
  // Pairs turn by position * frequencies[i] [half]; cosine and sine count `scale` times.
  FutureTurn(std::span<const float> frequencies, double scale, int64_t first, int64_t count);

  // vector [dim], elements `stride` apart, in place.
  void Apply(double* vector, size_t stride) const;

 private:
  std::vector<double> cos_, sin_;
};

// sums [dim] and sums of products [dim, dim] of `count` queries become their mean and their
// covariance, rotated.
void ExpectQueries(const FutureTurn& turn, int64_t count, std::span<float> sums,
                   std::span<float> products);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_EXPECTED_QUERIES_H_
