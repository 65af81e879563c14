#include "kv/policy/expected_queries.h"

#include <cmath>

namespace headway::kv {

FutureTurn::FutureTurn(std::span<const float> frequencies, double scale, int64_t first,
                       int64_t count) {
  for (const float frequency : frequencies) {
    double cos = 0.0, sin = 0.0;
    for (int64_t position = first; position < first + count; ++position) {
      const double angle = static_cast<double>(position) * double{frequency};
      cos += std::cos(angle);
      sin += std::sin(angle);
    }
    cos_.push_back(scale * cos / static_cast<double>(count));
    sin_.push_back(scale * sin / static_cast<double>(count));
  }
}

void FutureTurn::Apply(double* vector, size_t stride) const {
  for (size_t i = 0; i < cos_.size(); ++i) {
    double& low = vector[i * stride];
    double& high = vector[(i + cos_.size()) * stride];
    const double turned = low * cos_[i] - high * sin_[i];
    high = high * cos_[i] + low * sin_[i];
    low = turned;
  }
}

void ExpectQueries(const FutureTurn& turn, int64_t count, std::span<float> sums,
                   std::span<float> products) {
  const size_t dim = sums.size();
  const auto queries = static_cast<double>(count);
  std::vector<double> mean(sums.begin(), sums.end());
  for (double& element : mean) element /= queries;
  std::vector<double> covariance(products.begin(), products.end());
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      double& element = covariance[i * dim + j];
      element = element / queries - mean[i] * mean[j];
    }
  }
  // R C R^T: its columns, then its rows.
  for (size_t i = 0; i < dim; ++i) turn.Apply(covariance.data() + i, dim);
  for (size_t i = 0; i < dim; ++i) turn.Apply(covariance.data() + i * dim, 1);
  turn.Apply(mean.data(), 1);
  for (size_t i = 0; i < dim; ++i) sums[i] = static_cast<float>(mean[i]);
  for (size_t i = 0; i < dim * dim; ++i) products[i] = static_cast<float>(covariance[i]);
}

}  // namespace headway::kv
