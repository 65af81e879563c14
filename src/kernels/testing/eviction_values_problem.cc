#include "kernels/testing/eviction_values_problem.h"

#include <cmath>

#include "base/half.h"
#include "kernels/ref/ref_eviction.h"
#include "kernels/testing/attention_problem.h"

namespace headway {
namespace {

PagedKv::Shape ShapeOf(const PageFormat& format, int64_t first_slot, int64_t count,
                       const PageLayout& layout) {
  return {.format = format, .first_slot = first_slot, .count = count, .layout = layout};
}

std::string CompareNorms(const std::vector<float>& actual, const std::vector<float>& expected,
                         double units) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double tolerance = units * kUnit * std::abs(double{expected[i]});
    std::string wrong = CompareNumbers("norm", i, expected[i], actual[i], tolerance);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

QueryMomentsProblem::QueryMomentsProblem(int of_heads, const PageFormat& of_format, int64_t of_rows,
                                         Random& random)
    : heads(of_heads),
      format(of_format),
      rows(of_rows),
      q_stride(of_heads * of_format.head_dim + 8 * random.Below(3)),
      adds(random.Below(3) != 0) {
  const int64_t width = int64_t{heads} * format.head_dim;
  for (int64_t i = 0; i < rows * q_stride; ++i) {
    std::byte rounded[sizeof(float)];
    StoreFloat(rounded, 0, format.dtype, 0.5f + random.Normal());
    q.push_back(i % q_stride < width ? LoadAsFloat(rounded, 0, format.dtype) : kPoison);
  }
  for (int64_t i = 0; i < width; ++i) sums.push_back(adds ? random.Normal() : kPoison);
  for (int64_t i = 0; i < width * format.head_dim; ++i) {
    products.push_back(adds ? random.Normal() : kPoison);
  }
}

QueryMomentsItem QueryMomentsProblem::Item() {
  return {.q = q.data(),
          .q_stride = q_stride,
          .rows = rows,
          .adds = adds,
          .sums = sums.data(),
          .products = products.data()};
}

// Each row adds a product, which is rounded with the sum: a unit for each of them, and one for what
// was there, of what the magnitudes sum up to.
std::string QueryMomentsProblem::Disagreement(const std::vector<float>& got_sums,
                                              const std::vector<float>& got_products) {
  std::vector<float> want_sums = sums, want_products = products;
  QueryMomentsItem item = Item();
  item.sums = want_sums.data();
  item.products = want_products.data();
  ref::QueryMoments(format, heads, {&item, 1});
  const int64_t dim = format.head_dim;
  const double unit = static_cast<double>(rows + 2) * kUnit;
  for (int64_t at = 0; at < heads * dim; ++at) {
    const auto i = static_cast<size_t>(at);
    double reach = adds ? std::abs(double{sums[i]}) : 0.0;
    std::vector<double> reaches;
    for (int64_t j = 0; j < dim; ++j) {
      const float there = adds ? products[static_cast<size_t>(at * dim + j)] : 0.0f;
      reaches.push_back(std::abs(double{there}));
    }
    for (int64_t row = 0; row < rows; ++row) {
      const float* const of_row = q.data() + row * q_stride;
      const float* const head = of_row + at / dim * dim;
      reach += std::abs(double{of_row[at]});
      for (size_t j = 0; j < reaches.size(); ++j) {
        reaches[j] += std::abs(double{of_row[at]} * double{head[j]});
      }
    }
    std::string wrong = CompareNumbers("sum", i, want_sums[i], got_sums[i], unit * reach);
    for (size_t j = 0; wrong.empty() && j < reaches.size(); ++j) {
      const size_t product = i * reaches.size() + j;
      wrong = CompareNumbers("product", product, want_products[product], got_products[product],
                             unit * reaches[j]);
    }
    if (!wrong.empty()) return std::to_string(rows) + " rows: " + wrong;
  }
  return "";
}

ExpectedLogitsProblem::ExpectedLogitsProblem(const PageFormat& format, const PageLayout& layout,
                                             int of_group, Random& random)
    : kv(ShapeOf(format, random.Below(3 * format.page_slots), random.Below(200), layout), random),
      group(of_group),
      scale(1.0f / std::sqrt(static_cast<float>(format.head_dim))),
      stride(kv.shape().count + random.Below(4)),
      logits(static_cast<size_t>(group * stride), kPoison) {
  const int64_t dim = format.head_dim;
  for (int64_t i = 0; i < group * dim; ++i) mean.push_back(random.Normal());
  for (int64_t i = 0; i < group * dim * dim; ++i) {
    covariance.push_back((i / dim % dim == i % dim ? 1.0f : 0.0f) + 0.2f * random.Normal());
  }
}

ExpectedLogitsItem ExpectedLogitsProblem::Item() {
  return {.keys = {.pages = kv.Run()},
          .mean = mean.data(),
          .covariance = covariance.data(),
          .logits = logits.data(),
          .stride = stride};
}

// A sum of dim sums of dim products, and one more of dim products: 2 dim + 4 units of what these
// reach.
std::string ExpectedLogitsProblem::Disagreement(const std::vector<float>& actual) {
  std::vector<float> expected = logits;
  ExpectedLogitsItem item = Item();
  item.logits = expected.data();
  const PageFormat& format = kv.shape().format;
  ref::ExpectedLogits(format, group, scale, {&item, 1});
  const int64_t dim = format.head_dim;
  for (int64_t at = 0; at < group * stride; ++at) {
    const int64_t head = at / stride, key = at % stride;
    double reach = 0.0;
    for (int64_t i = 0; key < kv.shape().count && i < dim; ++i) {
      const double element = std::abs(double{kv.K(0, key, i)});
      reach += element * std::abs(double{mean[static_cast<size_t>(head * dim + i)]});
      for (int64_t j = 0; j < dim; ++j) {
        const auto index = static_cast<size_t>((head * dim + i) * dim + j);
        reach += double{scale} / 2 * element *
                 std::abs(double{covariance[index]} * double{kv.K(0, key, j)});
      }
    }
    const auto i = static_cast<size_t>(at);
    const double tolerance = static_cast<double>(2 * dim + 4) * kUnit * double{scale} * reach;
    std::string wrong = CompareNumbers("logits", i, expected[i], actual[i], tolerance);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

NormsProblem::NormsProblem(const PageFormat& format, const PageLayout& layout, int of_group,
                           Random& random)
    : kv(ShapeOf(format, random.Below(3 * format.page_slots), random.Below(600), layout), random),
      group(of_group),
      out(1 + random.Below(100)),
      first_column(random.Below(3) * group * format.head_dim),
      norms(static_cast<size_t>(kv.shape().count + 3), kPoison) {
  const int64_t width = int64_t{group} * format.head_dim;
  in = first_column + (1 + random.Below(2)) * width;
  weight.resize(static_cast<size_t>(out * in) * DTypeBytes(format.dtype));
  for (int64_t i = 0; i < out * in; ++i) {
    const int64_t column = i % in - first_column;
    StoreFloat(weight.data(), i, format.dtype,
               column >= 0 && column < width ? random.Normal() : kPoison);
  }
}

ValueNormsItem NormsProblem::Values() { return {.values = kv.Run(), .norms = norms.data()}; }

ProjectedNormsItem NormsProblem::Projected() {
  return {.values = kv.Run(),
          .weight = {weight.data(), kv.shape().format.dtype, out, in},
          .first_column = first_column,
          .norms = norms.data()};
}

// A sum of dim squares, whose root has half of its error.
std::string NormsProblem::ValuesDisagreement(const std::vector<float>& actual) {
  std::vector<float> expected = norms;
  ValueNormsItem item = Values();
  item.norms = expected.data();
  ref::ValueNorms(kv.shape().format, {&item, 1});
  return CompareNorms(actual, expected, kv.shape().format.head_dim + 4);
}

// A sum of out * group magnitudes, a unit of the sum for each. A magnitude is off by a unit of what
// its dim products reach for each of them.
std::string NormsProblem::ProjectedDisagreement(const std::vector<float>& actual) {
  std::vector<float> expected = norms;
  ProjectedNormsItem item = Projected();
  item.norms = expected.data();
  const PageFormat& format = kv.shape().format;
  ref::ProjectedNorms(format, group, {&item, 1});
  const int64_t dim = format.head_dim;
  for (size_t slot = 0; slot < expected.size(); ++slot) {
    double reach = 0.0;
    for (int64_t at = 0; static_cast<int64_t>(slot) < kv.shape().count && at < out * group * dim;
         ++at) {
      const int64_t element = at / (group * dim) * in + first_column + at % (group * dim);
      reach += std::abs(double{LoadAsFloat(weight.data(), element, format.dtype)} *
                        double{kv.V(0, static_cast<int64_t>(slot), at % dim)});
    }
    const double tolerance =
        kUnit * (static_cast<double>(out * group + 4) * std::abs(double{expected[slot]}) +
                 static_cast<double>(dim + 4) * reach / group);
    std::string wrong = CompareNumbers("norm", slot, expected[slot], actual[slot], tolerance);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace headway
