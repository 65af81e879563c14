#include "support/decode_outputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/half.h"

namespace headway::testing {
namespace {

constexpr double kUnit = 0x1p-24;
// Units that an exponential is off by at most.
constexpr double kExponential = 64.0;
// A number of an encoded page is the sum of its group's zero, which is no larger than the largest
// number of the group but for a hundredth, and the rest.
constexpr double kReach = 3.05;

// Keys and values of a head as numbers.
struct Numbers {
  Numbers(const Cached& cached, const PageFormat& page) : dim(page.head_dim) {
    for (int64_t i = 0; i < cached.tokens() * dim; ++i) {
      k.push_back(double{LoadAsFloat(cached.k.data(), i, page.dtype)});
      v.push_back(double{LoadAsFloat(cached.v.data(), i, page.dtype)});
    }
    for (const double x : k) largest_k = std::max(largest_k, std::abs(x));
    for (const double x : v) largest_v = std::max(largest_v, std::abs(x));
  }

  int64_t dim;
  std::vector<double> k, v;
  double largest_k = 0.0, largest_v = 0.0;
};

std::vector<double> AttentionTo(const Numbers& of, std::span<const float> q,
                                std::span<const int64_t> keys) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(of.dim));
  std::vector<double> o(q.size(), 0.0);
  double sum = 0.0;
  for (const int64_t key : keys) {
    const auto at = static_cast<size_t>(key * of.dim);
    double logit = 0.0;
    for (size_t i = 0; i < q.size(); ++i) logit += double{q[i]} * of.k[at + i];
    const double weight = std::exp(scale * logit);
    sum += weight;
    for (size_t i = 0; i < q.size(); ++i) o[i] += weight * of.v[at + i];
  }
  for (double& x : o) x /= sum;
  return o;
}

// Weights are off by what their logits are, in both sums, and sums of values by a unit for each.
double ToleranceOf(const Numbers& of, std::span<const float> q, size_t keys) {
  double norm = 0.0;
  for (const float x : q) norm += std::abs(double{x});
  const double logit = static_cast<double>(of.dim + 8) * kUnit * kReach * of.largest_k * norm /
                       std::sqrt(static_cast<double>(of.dim));
  return (2.0 * (logit + kExponential * kUnit) + static_cast<double>(keys + 16) * kUnit) * kReach *
         of.largest_v;
}

double Distance(std::span<const float> a, std::span<const double> b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

}  // namespace

void RecordingKernels::Attend(Stream& stream, const PageFormat& format, int group,
                              const AttentionParams& params, std::span<const AttentionItem> items) {
  ForwardingKernels::Attend(stream, format, group, params, items);
  for (const AttentionItem& item : items) {
    if (item.split == 0) continue;  // no decode
    const auto* const q = static_cast<const float*>(item.q);
    queries_[q].assign(q, q + int64_t{item.heads} * group * format.head_dim);
  }
}

void RecordingKernels::Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) {
  ForwardingKernels::Merge(stream, head_dim, items);
  ASSERT_TRUE(stream.Synchronize().ok());
  std::map<const float*, int64_t> rows;
  for (const MergeItem& item : items) rows[static_cast<const float*>(item.o)] = item.rows;
  DecodeOutput& output = outputs_.emplace_back();
  for (const auto& [o, count] : rows) {
    ASSERT_EQ(o, rows.begin()->first + output.o.size());
    output.o.insert(output.o.end(), o, o + count * head_dim);
  }
  output.q.resize(output.o.size());
  for (const auto& [q, numbers] : queries_) {
    const auto at = static_cast<size_t>(q - queries_.begin()->first);
    ASSERT_LE(at + numbers.size(), output.q.size());
    std::copy(numbers.begin(), numbers.end(), output.q.begin() + static_cast<ptrdiff_t>(at));
  }
  queries_.clear();
}

int64_t ExpectOutputs(const ListedStep& step, std::span<const DecodeOutput> outputs,
                      int64_t first) {
  const ModelShape& shape = step.shape;
  const PageFormat& page = step.harness.store().format().page;
  EXPECT_EQ(std::ssize(outputs), shape.layers);
  if (std::ssize(outputs) != shape.layers) return 0;
  int64_t others = 0;
  for (int head = 0; head < shape.layers * shape.query_heads; ++head) {
    const auto layer = static_cast<size_t>(head / shape.query_heads);
    const int of_layer = head % shape.query_heads;
    const auto kv = static_cast<size_t>(of_layer / shape.group());
    const Numbers numbers(ReadHead(step.harness, step.harness.store(), step.sequence,
                                   static_cast<int>(layer), static_cast<int>(kv)),
                          page);
    const auto at = static_cast<size_t>(of_layer * shape.head_dim);
    const auto dim = static_cast<size_t>(shape.head_dim);
    const std::span<const float> q = std::span(outputs[layer].q).subspan(at, dim);
    const std::span<const float> o = std::span(outputs[layer].o).subspan(at, dim);
    const std::vector<int64_t>& keys = step.lists[layer][kv];
    const double tolerance = ToleranceOf(numbers, q, keys.size());
    EXPECT_LE(Distance(o, AttentionTo(numbers, q, keys)), tolerance)
        << "layer " << layer << " query head " << of_layer << " of " << keys.size() << " keys";
    std::vector<int64_t> last;
    for (const int64_t key : keys) {
      if (key >= first) last.push_back(key);
    }
    others += Distance(o, AttentionTo(numbers, q, last)) > tolerance ? 1 : 0;
  }
  return others;
}

}  // namespace headway::testing
