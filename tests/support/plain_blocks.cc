#include "support/plain_blocks.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"

namespace headway::testing {
namespace {

// Of equal codes of worth the first are taken, and there are 32 to a power of two.
const double kCode = std::exp2(1.0 / 32);

// A block's score for a query, and how far that of its codes may be from it: these have 127 steps
// for the means and 255 for the variances, and the query has the activations' dtype.
Bounded ScoreOf(const PageFormat& page, int block_slots, const Cached& keys, const float* q,
                int64_t block) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(page.head_dim));
  constexpr double kQuery = 0x1p-8;
  Bounded score;
  double reach = 0.0, square_reach = 0.0, most_mean = 0.0, most_variance = 0.0;
  for (int c = 0; c < page.head_dim; ++c) {
    double sum = 0.0, squares = 0.0;
    for (int64_t slot = 0; slot < block_slots; ++slot) {
      const double k =
          LoadAsFloat(keys.k.data(), (block * block_slots + slot) * page.head_dim + c, page.dtype);
      sum += k;
      squares += k * k;
    }
    const double mean = sum / block_slots, variance = squares / block_slots - mean * mean;
    const double x = scale * double{q[c]};
    score.value += x * mean + 0.5 * x * x * variance;
    score.error += kQuery * (std::abs(x * mean) + x * x * variance);
    reach += std::abs(x);
    square_reach += 0.5 * x * x;
    most_mean = std::max(most_mean, std::abs(mean));
    most_variance = std::max(most_variance, variance);
  }
  score.error += reach * most_mean / 127 + square_reach * most_variance / 255;
  return score;
}

}  // namespace

std::vector<Worth> WorthOf(const PageFormat& page, int block_slots, const Cached& keys,
                           const float* q, int group, int64_t blocks) {
  std::vector<Worth> worth(static_cast<size_t>(blocks));
  for (int g = 0; g < group; ++g) {
    std::vector<Bounded> scores;
    double low = 0.0, high = 0.0;  // the sum of exponentials
    for (int64_t block = 0; block < blocks; ++block) {
      scores.push_back(ScoreOf(page, block_slots, keys, q + g * page.head_dim, block));
      low += std::exp(scores.back().low());
      high += std::exp(scores.back().high());
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      worth[i].low += std::exp(scores[i].low()) / high;
      worth[i].high += std::exp(scores[i].high()) / low;
    }
  }
  return worth;
}

std::vector<bool> SurelyListed(const std::vector<Worth>& worth, int64_t listed) {
  std::vector<double> best;
  for (const Worth& each : worth) best.push_back(each.high);
  std::sort(best.rbegin(), best.rend());
  const double least = kCode * best[static_cast<size_t>(listed - 1)];
  std::vector<bool> sure;
  for (const Worth& each : worth) sure.push_back(each.low > least);
  return sure;
}

}  // namespace headway::testing
