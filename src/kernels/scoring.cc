#include "kernels/scoring.h"

#include <cmath>

namespace headway {

Result<double> NegativeLogLikelihood(const Scored& scored) {
  const double sum = static_cast<double>(scored.sum) / static_cast<double>(kWeightOne);
  const double result =
      static_cast<double>(scored.largest) - static_cast<double>(scored.target) + std::log(sum);
  if (std::isfinite(result)) return result;
  return Status(StatusCode::kCorrupt,
                "the model computed logits that are not finite: its weights are damaged or "
                "overflow; check the model's files");
}

}  // namespace headway
