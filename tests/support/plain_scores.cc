// What tokens score, written down again.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/half.h"
#include "support/plain_eviction.h"

namespace headway::testing {

using kv::EvictionMethod;
using kv::EvictionPolicy;

namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of an f32

double ElementOf(const PlainLayer& layer, const std::vector<std::byte>& plane, int64_t token,
                 int i) {
  return LoadAsFloat(plane.data(), token * layer.page.head_dim + i, layer.page.dtype);
}

// Softmax over these logits, all off by `off` at most. The logarithm of the sum of exponentials is
// off by as much, by a unit for each key and by its own rounding; and so is a weight, relative to
// itself. What vanishes in f32 has no relative error.
std::vector<Bounded> Softmax(const std::vector<double>& logits, double off) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - top);
  const double lse = top + std::log(sum);
  const double units = static_cast<double>(logits.size()) + 32 + 4 * std::abs(lse);
  const double relative = std::expm1(2 * off + kUnit * units);
  std::vector<Bounded> weights;
  for (const double logit : logits) {
    const double weight = std::exp(logit - lse);
    weights.push_back({weight, weight * relative + 1e-37});
  }
  return weights;
}

// Of all observed queries of a KV head together: for each token the sum of its weights, or the
// largest.
std::vector<Bounded> Gathered(const PlainLayer& layer, size_t head, bool largest) {
  const ModelShape& shape = layer.shape;
  const Cached& keys = layer.heads[head];
  const int64_t width = int64_t{shape.query_heads} * shape.head_dim;
  const int64_t rows = std::ssize(layer.queries->q) / width;
  std::vector<Bounded> gathered(static_cast<size_t>(keys.tokens()));
  for (int64_t row = 0; row < rows; ++row) {
    for (int g = 0; g < shape.group(); ++g) {
      const int64_t of_group = static_cast<int64_t>(head) * shape.group() + g;
      const float* const q = layer.queries->q.data() + row * width + of_group * shape.head_dim;
      const std::vector<Bounded> weights =
          WeightsOf(q, keys, layer.queries->position + row + 1, layer.page);
      for (size_t i = 0; i < weights.size(); ++i) {
        Bounded& all = gathered[i];
        all.value = largest ? std::max(all.value, weights[i].value) : all.value + weights[i].value;
        all.error = largest ? std::max(all.error, weights[i].error) : all.error + weights[i].error;
      }
    }
  }
  const double additions = largest ? 0.0 : static_cast<double>(rows * shape.group());
  for (Bounded& all : gathered) all.error += additions * kUnit * all.value;
  return gathered;
}

// How the queries of one head to come are distributed: [dim] and [dim, dim].
struct Distribution {
  std::vector<Bounded> mean, covariance;
};

// matrix [dim, dim] times a vector of numbers and their errors.
std::vector<Bounded> Times(const std::vector<double>& matrix, const std::vector<Bounded>& vector) {
  const size_t dim = vector.size();
  std::vector<Bounded> product(dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      product[i].value += matrix[i * dim + j] * vector[j].value;
      product[i].error += std::abs(matrix[i * dim + j]) * vector[j].error;
    }
  }
  return product;
}

// The mean of the rotations at the positions behind `tokens`, as a matrix.
std::vector<double> MeanRotation(const PlainLayer& layer, int64_t tokens) {
  const auto dim = static_cast<size_t>(layer.page.head_dim);
  const size_t half = layer.rope.inv_freq.size();
  std::vector<double> matrix(dim * dim, 0.0);
  const double share = 1.0 / static_cast<double>(layer.policy.future);
  for (size_t i = 2 * half; i < dim; ++i) matrix[i * dim + i] = 1.0;
  for (int64_t position = tokens; position < tokens + layer.policy.future; ++position) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * double{layer.rope.inv_freq[i]};
      const double cos = share * double{layer.rope.scale} * std::cos(angle);
      const double sin = share * double{layer.rope.scale} * std::sin(angle);
      matrix[i * dim + i] += cos;
      matrix[(i + half) * dim + i + half] += cos;
      matrix[i * dim + i + half] -= sin;
      matrix[(i + half) * dim + i] += sin;
    }
  }
  return matrix;
}

// Sums of f32 over queries are off by a unit for each of them, and the results are rounded.
Distribution Expected(const PlainLayer& layer, int query_head, int64_t tokens) {
  const auto dim = static_cast<size_t>(layer.page.head_dim);
  const auto width = static_cast<int64_t>(layer.shape.query_heads) * layer.shape.head_dim;
  const auto count = static_cast<double>(tokens - layer.policy.sink);
  Distribution d = {std::vector<Bounded>(dim), std::vector<Bounded>(dim * dim)};
  const double unit = (count + 4) * kUnit;
  for (int64_t token = layer.policy.sink; token < tokens; ++token) {
    const float* const q = layer.queries->q.data() + token * width +
                           static_cast<int64_t>(query_head) * layer.shape.head_dim;
    for (size_t i = 0; i < dim; ++i) {
      d.mean[i].value += double{q[i]} / count;
      d.mean[i].error += unit * std::abs(double{q[i]}) / count;
      for (size_t j = 0; j < dim; ++j) {
        const double product = double{q[i]} * double{q[j]} / count;
        d.covariance[i * dim + j].value += product;
        d.covariance[i * dim + j].error += unit * std::abs(product);
      }
    }
  }
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      const Bounded &left = d.mean[i], &right = d.mean[j];
      Bounded& element = d.covariance[i * dim + j];
      element.value -= left.value * right.value;
      element.error += std::abs(left.value) * right.error + left.error * std::abs(right.value) +
                       left.error * right.error;
    }
  }
  const std::vector<double> rotation = MeanRotation(layer, tokens);
  d.mean = Times(rotation, d.mean);
  for (int turn = 0; turn < 2; ++turn) {  // R C, then R (R C)^T
    std::vector<Bounded> turned(dim * dim);
    for (size_t j = 0; j < dim; ++j) {
      std::vector<Bounded> column(dim);
      for (size_t i = 0; i < dim; ++i) column[i] = d.covariance[i * dim + j];
      column = Times(rotation, column);
      for (size_t i = 0; i < dim; ++i) turned[j * dim + i] = column[i];
    }
    d.covariance = turned;
  }
  return d;
}

// What these are expected to give the keys of a KV head, query head by query head.
std::vector<Bounded> ExpectedWeights(const PlainLayer& layer, size_t head) {
  const Cached& keys = layer.heads[head];
  const auto dim = static_cast<size_t>(layer.page.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const int group = layer.shape.group();
  std::vector<Bounded> scores(static_cast<size_t>(keys.tokens()));
  for (int g = 0; g < group; ++g) {
    const Distribution d = Expected(layer, static_cast<int>(head) * group + g, keys.tokens());
    std::vector<double> logits;
    double off = 0.0;
    for (int64_t token = 0; token < keys.tokens(); ++token) {
      double logit = 0.0, reach = 0.0, error = 0.0;
      for (size_t i = 0; i < dim; ++i) {
        const double k = ElementOf(layer, keys.k, token, static_cast<int>(i));
        logit += scale * k * d.mean[i].value;
        reach += scale * std::abs(k * d.mean[i].value);
        error += scale * std::abs(k) * d.mean[i].error;
        for (size_t j = 0; j < dim; ++j) {
          const double both =
              scale * scale / 2 * k * ElementOf(layer, keys.k, token, static_cast<int>(j));
          logit += both * d.covariance[i * dim + j].value;
          reach += std::abs(both * d.covariance[i * dim + j].value);
          error += std::abs(both) * d.covariance[i * dim + j].error;
        }
      }
      logits.push_back(logit);
      off = std::max(off, error + static_cast<double>(2 * dim + 6) * kUnit * reach);
    }
    const std::vector<Bounded> weights = Softmax(logits, off);
    for (size_t i = 0; i < weights.size(); ++i) {
      scores[i].value += weights[i].value;
      scores[i].error += weights[i].error + group * kUnit * weights[i].value;
    }
  }
  return scores;
}

// The Euclidean norm of a value.
Bounded OwnNorm(const PlainLayer& layer, size_t head, int64_t token) {
  double sum = 0.0;
  for (int i = 0; i < layer.page.head_dim; ++i) {
    const double element = ElementOf(layer, layer.heads[head].v, token, i);
    sum += element * element;
  }
  return {std::sqrt(sum), (layer.page.head_dim + 4) * kUnit * std::sqrt(sum)};
}

// What a value reaches behind the projection.
Bounded ProjectedNorm(const PlainLayer& layer, size_t head, int64_t token) {
  const int dim = layer.page.head_dim, group = layer.shape.group();
  const WeightView& weight = layer.projection;
  double norm = 0.0, reach = 0.0;
  for (int64_t at = 0; at < weight.out * group; ++at) {
    const int64_t first =
        at / group * weight.in + (static_cast<int64_t>(head) * group + at % group) * dim;
    double sum = 0.0;
    for (int i = 0; i < dim; ++i) {
      const double product = double{LoadAsFloat(weight.data, first + i, weight.dtype)} *
                             ElementOf(layer, layer.heads[head].v, token, i);
      sum += product;
      reach += std::abs(product) / group;
    }
    norm += std::abs(sum) / group;
  }
  const auto additions = static_cast<double>(weight.out * group + 4);
  return {norm, kUnit * (additions * norm + (dim + 4) * reach)};
}

Bounded Product(const Bounded& a, const Bounded& b) {
  return {a.value * b.value, a.value * b.error + a.error * b.value + a.error * b.error};
}

// The same tokens, pooled, of the first `count`.
std::vector<Bounded> Pooled(const EvictionPolicy& policy, const std::vector<Bounded>& gathered,
                            int64_t count, double divisor) {
  std::vector<Bounded> scores;
  for (int64_t i = 0; i < count; ++i) {
    Bounded score;
    for (int64_t j = std::max<int64_t>(0, i - policy.pool / 2);
         j <= std::min(count - 1, i + policy.pool / 2); ++j) {
      const Bounded& one = gathered[static_cast<size_t>(j)];
      if (policy.pooling == EvictionPolicy::Pool::kMean) {
        score.value += one.value / policy.pool / divisor;
        score.error += one.error / policy.pool / divisor;
      } else {
        score.value = std::max(score.value, one.value / divisor);
        score.error = std::max(score.error, one.error / divisor);
      }
    }
    score.error += 1e-13 * score.value;  // sums in double
    scores.push_back(score);
  }
  return scores;
}

// Tokens that have 0.9 of the mean attention with the window, and no more than `free`, are chosen
// whatever they score: perhaps, where rounding decides it.
void ChooseMost(const std::vector<Bounded>& sums, const Bounded& window, int64_t free,
                std::vector<Bounded>* scores) {
  Bounded all;
  for (size_t i = 0; i < scores->size(); ++i) {
    all.value += sums[i].value;
    all.error += sums[i].error;
  }
  const double least = std::max(0.0, 0.9 - window.high()) * all.low() * (1 - 1e-12);
  const double most = std::max(0.0, 0.9 - window.low()) * all.high() * (1 + 1e-12);
  for (size_t i = 0; i < scores->size(); ++i) {
    double below = sums[i].low(), above = sums[i].high();
    int64_t fewest = 0, perhaps = 0;
    for (size_t other = 0; other < scores->size(); ++other) {
      if (other == i) continue;
      if (sums[other].low() > sums[i].high()) {
        below += sums[other].low();
        ++fewest;
      }
      if (sums[other].high() >= sums[i].low()) {
        above += sums[other].high();
        ++perhaps;
      }
    }
    if (below >= most || fewest >= free) continue;
    const bool sure = above < least && perhaps < free;
    (*scores)[i] = sure ? Bounded{INFINITY, 0.0} : Bounded{(*scores)[i].value, INFINITY};
  }
}

std::vector<std::vector<Bounded>> DefensiveScores(const PlainLayer& layer, int64_t free) {
  const int64_t tokens = layer.heads[0].tokens();
  const int64_t count = tokens - layer.policy.window;
  const auto heads = static_cast<double>(layer.heads.size());
  const auto queries = static_cast<double>(layer.policy.window * layer.shape.group());
  std::vector<std::vector<Bounded>> sums, norms, all;
  Bounded window;
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    sums.push_back(Gathered(layer, head, false));
    for (int64_t token = count; token < tokens; ++token) {
      window.value += sums[head][static_cast<size_t>(token)].value / (heads * queries);
      window.error += sums[head][static_cast<size_t>(token)].error / (heads * queries);
    }
    norms.emplace_back();
    for (int64_t token = 0; token < count; ++token) {
      norms[head].push_back(ProjectedNorm(layer, head, token));
    }
  }
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    std::vector<Bounded> scores = Pooled(layer.policy, Gathered(layer, head, true), count, 1.0);
    Bounded mean;
    for (const Bounded& score : scores) {
      mean.value += score.value / static_cast<double>(count);
      mean.error += score.error / static_cast<double>(count);
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      const Bounded score = {std::max(scores[i].value, mean.value),
                             std::max(scores[i].error, mean.error)};
      Bounded norm = norms[head][i];
      double reach = 0.0, off = 0.0;
      for (const std::vector<Bounded>& other : norms) {
        reach += other[i].value;
        off += other[i].error;
      }
      norm = {norm.value / reach, (norm.error + norm.value / reach * off) / (reach - off)};
      scores[i] = Product(score, norm);
    }
    ChooseMost(sums[head], window, free, &scores);
    all.push_back(scores);
  }
  return all;
}

}  // namespace

// A logit is a sum of dim products of f32, then scaled: it is off by at most (dim + 4) units of
// what its products reach.
std::vector<Bounded> WeightsOf(const float* q, const Cached& keys, int64_t count,
                               const PageFormat& page) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(page.head_dim));
  std::vector<double> logits;
  double off = 0.0;
  for (int64_t key = 0; key < count; ++key) {
    double logit = 0.0, reach = 0.0;
    for (int i = 0; i < page.head_dim; ++i) {
      const double product =
          double{q[i]} * LoadAsFloat(keys.k.data(), key * page.head_dim + i, page.dtype);
      logit += product;
      reach += std::abs(product);
    }
    logits.push_back(scale * logit);
    off = std::max(off, (page.head_dim + 4) * kUnit * scale * reach);
  }
  return Softmax(logits, off);
}

std::vector<std::vector<Bounded>> PlainScores(const PlainLayer& layer, int64_t free) {
  const EvictionPolicy& policy = layer.policy;
  if (policy.method == EvictionMethod::kDefensive) return DefensiveScores(layer, free);
  std::vector<std::vector<Bounded>> all;
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    const int64_t tokens = layer.heads[head].tokens();
    const int64_t count = tokens - PlainWindow(policy, tokens);
    if (policy.method != EvictionMethod::kExpected) {
      const double queries = policy.method == EvictionMethod::kHeavy
                                 ? 1.0
                                 : static_cast<double>(policy.window * layer.shape.group());
      all.push_back(Pooled(policy, Gathered(layer, head, false), count, queries));
      continue;
    }
    std::vector<Bounded> scores =
        Pooled(policy, ExpectedWeights(layer, head), count, layer.shape.group());
    for (int64_t token = 0; token < count; ++token) {
      Bounded& score = scores[static_cast<size_t>(token)];
      score = token < policy.sink ? Bounded{INFINITY, 0.0}
                                  : Product(score, OwnNorm(layer, head, token));
    }
    all.push_back(scores);
  }
  return all;
}

std::vector<Bounded> PlainLastScores(const PlainLayer& layer, size_t head,
                                     const std::vector<Bounded>& scores) {
  std::vector<Bounded> last;
  for (size_t token = 0; token < scores.size(); ++token) {
    last.push_back(Product({scores[token].value + 1e-4, scores[token].error},
                           ProjectedNorm(layer, head, static_cast<int64_t>(token))));
  }
  return last;
}

}  // namespace headway::testing
