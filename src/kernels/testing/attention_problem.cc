#include "kernels/testing/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/bytes.h"
#include "base/half.h"
#include "kernels/ref/ref_attention.h"

namespace headway {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

PagedKv::Shape ShapeOf(const AttentionCase& c) {
  return {.format = c.format,
          .heads = c.heads,
          .first_slot = c.first_slot,
          .count = c.count,
          .layout = c.layout,
          .key_size = c.key_size,
          .uneven_keys = c.uneven_keys,
          .tiny_numbers = c.tiny_numbers};
}

float Rounded(float value, DType dtype) {
  std::byte bytes[sizeof(float)];
  StoreFloat(bytes, 0, dtype, value);
  return LoadAsFloat(bytes, 0, dtype);
}

}  // namespace

std::string CompareNumbers(const char* what, size_t at, double expected, double actual,
                           double tolerance) {
  const bool same = std::isfinite(expected) ? std::abs(expected - actual) <= tolerance
                    : std::isnan(expected)  ? std::isnan(actual)
                                            : expected == actual;
  if (same) return "";
  return std::string(what) + "[" + std::to_string(at) + "]: expected " + std::to_string(expected) +
         ", got " + std::to_string(actual) + ", off by " +
         std::to_string(std::abs(expected - actual)) + ", may be off by " +
         std::to_string(tolerance);
}

double UnitOf(DType dtype) {
  return dtype == DType::kF32 ? kUnit : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

std::string AttentionCase::Name() const {
  std::string name = std::string(DTypeName(format.dtype)) + " " + EncodingName(format.encoding);
  const auto add = [&](const char* what, auto value) {
    name += std::string(" ") + what + " " + std::to_string(value);
  };
  add("dim", format.head_dim);
  add("slots", format.page_slots);
  add("heads", heads);
  add("group", group);
  add("tokens", tokens);
  add("keys", count);
  add("first slot", first_slot);
  add("position", key_position);
  add("q position", q_position);
  add("window", params.window);
  add("cap", params.softcap);
  add("split", split);
  add("key size", key_size);
  if (uneven_keys) name += " uneven keys";
  if (tiny_numbers) name += " tiny numbers";
  if (positions) name += " positions";
  if (rotary_dim > 0) add("rotary", rotary_dim);
  if (rotate_to) name += " rotate to";
  if (key_mass) name += " mass";
  if (merge) name += " merge";
  return name;
}

AttentionRequest AttentionCase::Request() const {
  return {.dtype = format.dtype,
          .encoding = format.encoding,
          .head_dim = format.head_dim,
          .group = group,
          .softcap = params.softcap != 0,
          .positions = positions,
          .key_transform = rotary_dim > 0,
          .key_mass = key_mass};
}

AttentionProblem::AttentionProblem(const AttentionCase& c, Random& random)
    : spec(c), kv(ShapeOf(c), random) {
  const int64_t row = query_heads() * c.format.head_dim;
  q_stride = row + c.row_gap;
  o_stride = row + c.o_gap;
  lse_stride = query_heads() + 1;
  o_part_stride = c.tokens * o_stride + 7;
  lse_part_stride = c.tokens * lse_stride + 2;
  for (int64_t i = 0; i < c.tokens * q_stride; ++i) {
    q.push_back(i % q_stride < row ? Rounded(random.Normal(), c.activation) : kPoison);
  }
  auto position = static_cast<int32_t>(c.key_position);
  for (int64_t key = 0; key < c.count; ++key) {
    positions.push_back(position);
    position += c.positions ? 1 + static_cast<int32_t>(random.Below(3)) : 1;
    rotate_to.push_back(static_cast<int32_t>(random.Below(1000)));
  }
  for (int i = 0; i < c.rotary_dim / 2; ++i) {
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / c.rotary_dim));
  }
  outputs.o.assign(static_cast<size_t>(parts() * o_part_stride), kPoison);
  outputs.lse.assign(static_cast<size_t>(parts() * lse_part_stride), kPoison);
  if (c.key_mass) outputs.mass.assign(static_cast<size_t>(c.heads * c.count), 0.25f);
  if (c.merge) FillState(random);
}

int64_t AttentionProblem::parts() const {
  return spec.split == 0 ? 1 : CeilDiv(spec.count, spec.split);
}

size_t AttentionProblem::OAt(int64_t part, int64_t token, int64_t head) const {
  return static_cast<size_t>(part * o_part_stride + token * o_stride + head * spec.format.head_dim);
}

size_t AttentionProblem::LseAt(int64_t part, int64_t token, int64_t head) const {
  return static_cast<size_t>(part * lse_part_stride + token * lse_stride + head);
}

void AttentionProblem::FillState(Random& random) {
  for (int64_t token = 0; token < spec.tokens; ++token) {
    for (int64_t head = 0; head < query_heads(); ++head) {
      const bool none = random.Below(4) == 0;
      outputs.lse[LseAt(0, token, head)] = none ? kNoKeys : 4 * random.Normal();
      for (int64_t i = 0; i < spec.format.head_dim && !none; ++i) {
        outputs.o[OAt(0, token, head) + static_cast<size_t>(i)] = random.Normal();
      }
    }
  }
}

AttentionItem AttentionProblem::Item() {
  return {.q = q.data(),
          .q_stride = q_stride,
          .tokens = spec.tokens,
          .q_position = spec.q_position,
          .heads = spec.heads,
          .keys = {.pages = kv.Run(),
                   .position = spec.positions ? -1 : spec.key_position,
                   .positions = spec.positions ? positions.data() : nullptr},
          .transform = {.inv_freq = spec.rotary_dim > 0 ? inv_freq.data() : nullptr,
                        .rotary_dim = spec.rotary_dim,
                        .rotate_to = spec.rotate_to ? rotate_to.data() : nullptr},
          .split = spec.split,
          .o = outputs.o.data(),
          .o_stride = o_stride,
          .o_part_stride = o_part_stride,
          .lse = outputs.lse.data(),
          .lse_stride = lse_stride,
          .lse_part_stride = lse_part_stride,
          .merge = spec.merge,
          .key_mass = spec.key_mass ? outputs.mass.data() : nullptr};
}

AttentionOutputs AttentionProblem::Expected(const std::vector<float>& queries) {
  AttentionOutputs expected = outputs;
  AttentionItem item = Item();
  item.q = queries.data();
  item.o = expected.o.data();
  item.lse = expected.lse.data();
  if (spec.key_mass) item.key_mass = expected.mass.data();
  ref::Attend(spec.format, spec.group, spec.params, {&item, 1});
  return expected;
}

bool AttentionProblem::Visible(int64_t token, int64_t key) const {
  const int64_t position = positions[static_cast<size_t>(key)];
  const int64_t q_position = spec.q_position + token;
  return position <= q_position &&
         (spec.params.window == 0 || position > q_position - spec.params.window);
}

std::vector<float> AttentionProblem::Magnitudes() {
  AttentionCase plain = spec;
  plain.format = {
      .dtype = DType::kF32, .page_slots = spec.format.page_slots, .head_dim = spec.format.head_dim};
  plain.merge = false;
  Random unused(0);
  PagedKv sizes(ShapeOf(plain), unused);
  for (int head = 0; head < spec.heads; ++head) {
    for (int64_t key = 0; key < spec.count; ++key) {
      const std::vector<double> k = kv.KeyRow(head, key);
      const std::vector<double> v = kv.ValueReach(head, key);
      for (size_t i = 0; i < k.size(); ++i) {
        sizes.SetK(head, key, static_cast<int64_t>(i), static_cast<float>(k[i]));
        sizes.SetV(head, key, static_cast<int64_t>(i), static_cast<float>(v[i]));
      }
    }
  }
  AttentionItem item = Item();
  AttentionOutputs of_sizes = outputs;
  item.keys.pages = sizes.Run();
  item.o = of_sizes.o.data();
  item.lse = of_sizes.lse.data();
  item.merge = false;
  item.key_mass = nullptr;
  ref::Attend(plain.format, spec.group, spec.params, {&item, 1});
  return of_sizes.o;
}

void AttentionProblem::MeasureRows() {
  const int64_t step = spec.split == 0 ? std::max<int64_t>(spec.count, 1) : spec.split;
  const auto dim = static_cast<size_t>(spec.format.head_dim);
  rows_.assign(static_cast<size_t>(parts() * spec.tokens * query_heads()), {});
  for (StateReach& row : rows_)
    row.values = spec.merge ? 6 : 1;  // of the states that are merged into
  for (int kv_head = 0; kv_head < spec.heads; ++kv_head) {
    for (int64_t key = 0; key < spec.count; ++key) {
      const std::vector<double> k = kv.KeyReach(kv_head, key);
      const std::vector<double> v = kv.ValueReach(kv_head, key);
      const double largest = v.empty() ? 0 : *std::max_element(v.begin(), v.end());
      for (int64_t token = 0; token < spec.tokens; ++token) {
        if (!Visible(token, key)) continue;
        for (int64_t head = kv_head * spec.group; head < (kv_head + 1) * spec.group; ++head) {
          const float* query = q.data() + token * q_stride + head * spec.format.head_dim;
          double sum = 0, q_squares = 0, k_squares = 0;
          for (size_t i = 0; i < dim; ++i) {
            sum += std::abs(query[i]) * k[i];
            q_squares += double{query[i]} * query[i];
            k_squares += k[i] * k[i];
          }
          // A rotated key has the same norm, its elements are others.
          if (spec.rotary_dim > 0) sum = std::sqrt(q_squares * k_squares);
          StateReach& row = RowAt(key / step, token, head);
          row.logits = std::max(row.logits, std::abs(double{spec.params.scale}) * sum);
          row.values = std::max(row.values, largest);
          ++row.keys;
        }
      }
    }
  }
}

// A logit is a sum of dim products of f32, then scaled (and capped, its keys rotated): it is off by
// at most delta = (dim_units * dim + 16) u |scale| |q| |k|, plus a few units of the cap. Softmax
// weights are then off by a relative 2 delta + 8u (exponentials are within a few ulp, for weight
// and sum), n of them are added one by one to o and to the sum (n u each), and o is a convex
// combination of values, so |o - o'| <= (2 delta + 8u + 2 n u) max |v|. The log of the sum is off
// by half of that, and rounds. Merging and the final division add a few u. What an implementation
// rounds further is added to the weights, or to o by the magnitudes that it is a share of.
StateTolerance ToleranceOf(const AttentionPrecision& precision, int head_dim, float softcap,
                           const StateReach& reach, double lse) {
  const double units = precision.dim_units * head_dim + 16 * std::max(1.0, precision.dim_units);
  const double delta =
      (units * kUnit + precision.logit) * reach.logits + 8 * kUnit * double{softcap};
  const double weights =
      2 * delta + (24 + 2 * static_cast<double>(reach.keys) + precision.more_units) * kUnit;
  const double in_sum = precision.weight_in_sum ? precision.weight : 0;
  const double values = precision.values != 0 ? precision.values : reach.values;
  return {.o = precision.slack * (weights + precision.weight) * values,
          .lse = precision.slack / 2 * (weights + in_sum) + 4 * kUnit +
                 4 * precision.slack * kUnit * std::abs(lse)};
}

std::string AttentionProblem::RowDisagreement(const AttentionPrecision& precision,
                                              const AttentionOutputs& expected,
                                              const AttentionOutputs& actual, const StateReach& row,
                                              size_t o_at, size_t lse_at) const {
  const StateTolerance allowed =
      ToleranceOf(precision, spec.format.head_dim, spec.params.softcap, row, expected.lse[lse_at]);
  if (!actual.lse.empty()) {
    std::string wrong =
        CompareNumbers("lse", lse_at, expected.lse[lse_at], actual.lse[lse_at], allowed.lse);
    if (!wrong.empty()) return wrong;
  }
  for (size_t i = o_at; i < o_at + static_cast<size_t>(spec.format.head_dim); ++i) {
    double tolerance = allowed.o;
    if (precision.magnitude != 0) tolerance += precision.magnitude * double{magnitudes_[i]};
    if (precision.result != 0) {
      tolerance += precision.result * std::abs(double{expected.o[i]}) + kUnit;
    }
    std::string wrong = CompareNumbers("o", i, expected.o[i], actual.o[i], tolerance);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string AttentionProblem::MassDisagreement(const AttentionPrecision& precision,
                                               const AttentionOutputs& expected,
                                               const AttentionOutputs& actual) {
  for (size_t at = 0; at < actual.mass.size(); ++at) {
    const auto head = static_cast<int64_t>(at) / spec.count;
    const int64_t part = spec.split == 0 ? 0 : static_cast<int64_t>(at) % spec.count / spec.split;
    double logits = 0;
    for (int64_t token = 0; token < spec.tokens; ++token) {
      for (int64_t i = 0; i < spec.group; ++i) {
        logits = std::max(logits, RowAt(part, token, head * spec.group + i).logits);
      }
    }
    const double delta = kUnit * ((precision.dim_units * spec.format.head_dim + 16) * logits +
                                  8 * double{spec.params.softcap});
    const auto sums = static_cast<double>(2 * spec.count + spec.tokens * spec.group);
    const double tolerance = (2 * delta + (24 + sums) * kUnit) * (1 + double{expected.mass[at]});
    std::string wrong = CompareNumbers("mass", at, expected.mass[at], actual.mass[at], tolerance);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string AttentionProblem::Disagreement(const AttentionPrecision& precision,
                                           const AttentionOutputs& expected,
                                           const AttentionOutputs& actual) {
  if (rows_.empty()) MeasureRows();
  if (precision.magnitude != 0 && magnitudes_.empty()) magnitudes_ = Magnitudes();
  std::vector<bool> o_owned(actual.o.size()), lse_owned(actual.lse.size());
  for (int64_t part = 0; part < parts(); ++part) {
    for (int64_t token = 0; token < spec.tokens; ++token) {
      for (int64_t head = 0; head < query_heads(); ++head) {
        const size_t o_at = OAt(part, token, head);
        const size_t lse_at = LseAt(part, token, head);
        std::string wrong =
            RowDisagreement(precision, expected, actual, RowAt(part, token, head), o_at, lse_at);
        if (!wrong.empty()) {
          return "part " + std::to_string(part) + " token " + std::to_string(token) + " head " +
                 std::to_string(head) + ": " + wrong;
        }
        std::fill_n(o_owned.begin() + static_cast<std::ptrdiff_t>(o_at), spec.format.head_dim,
                    true);
        if (!lse_owned.empty()) lse_owned[lse_at] = true;
      }
    }
  }
  for (size_t i = 0; i < o_owned.size(); ++i) {
    if (!o_owned[i] && !std::isnan(actual.o[i])) return "wrote o[" + std::to_string(i) + "]";
  }
  for (size_t i = 0; i < lse_owned.size(); ++i) {
    if (!lse_owned[i] && !std::isnan(actual.lse[i])) return "wrote lse[" + std::to_string(i) + "]";
  }
  return MassDisagreement(precision, expected, actual);
}

AttentionCase RandomAttentionCase(Random& random) {
  AttentionCase c;
  c.format.dtype = Pick(random, {DType::kF32, DType::kF16, DType::kBF16});
  c.format.page_slots = Pick(random, {4, 8, 24, 64});
  c.format.head_dim = Pick(random, {4, 16, 20, 32, 64, 80, 96, 128, 256});
  c.heads = Pick(random, {1, 1, 2, 3});
  c.group = Pick(random, {1, 2, 3, 4, 7, 8});
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.format.head_dim));
  if (random.Below(4) == 0) c.params.softcap = 2.0f;
  if (random.Below(3) == 0) c.params.window = 1 + random.Below(200);
  c.tokens = Pick<int64_t>(random, {1, 1, 2, 5, 17, 48, 70});
  c.count = Pick<int64_t>(random, {0, 1, 3, 64, 127, 128, 129, 300});
  c.first_slot = random.Below(3 * c.format.page_slots);
  c.key_position = random.Below(50);
  // From queries before all keys to queries after them.
  c.q_position = c.key_position + random.Below(c.count + 20) - 10;
  c.positions = random.Below(4) == 0;
  if (random.Below(4) == 0) {
    c.rotary_dim = c.format.head_dim / 2 / (1 + static_cast<int>(random.Below(2))) * 2;
    c.rotate_to = random.Below(2) == 0;
  }
  c.key_mass = random.Below(4) == 0;
  c.merge = random.Below(3) == 0;
  if (!c.merge) c.split = Pick<int64_t>(random, {0, 0, 7, 64, 100, 5000});
  c.format.encoding = Pick(random, {Encoding::kNone, Encoding::kNone, Encoding::kInt8,
                                    Encoding::kFp8E4M3, Encoding::kInt4, Encoding::kLossless});
  if (c.format.encoding == Encoding::kLossless) {
    c.format.head_dim = static_cast<int>(RoundUp(c.format.head_dim, 8));
    c.format.dtype = DType::kBF16;
    c.tiny_numbers = true;
  }
  const bool words = c.format.dtype == DType::kF32 && c.format.encoding == Encoding::kNone;
  c.layout.alignment = words ? 4 : 2;  // what a number, a code's row, a parameter needs
  c.layout.page_gap =
      2 * random.Below(20) + random.Below(3) * static_cast<int64_t>(c.format.bytes());
  c.layout.head_gap = 4 * random.Below(20);
  c.layout.params_gap = 2 * random.Below(20);
  c.layout.descending = random.Below(2) == 0;
  c.layout.values_first = random.Below(2) == 0;
  c.layout.params_by_page = random.Below(2) == 0;
  c.uneven_keys = random.Below(4) == 0;
  return c;
}

AttentionCase RandomDecodeCase(Random& random) {
  AttentionCase c;
  c.format.dtype = DType::kBF16;
  c.format.page_slots = Pick(random, {4, 16, 24, 64});
  c.format.head_dim = 32 * static_cast<int>(1 + random.Below(8));
  c.group = static_cast<int>(1 + random.Below(16));
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.format.head_dim));
  if (random.Below(3) == 0) c.params.window = 1 + random.Below(200);
  c.count = random.Below(300);
  c.first_slot = random.Below(3) == 0 ? 0 : random.Below(3 * c.format.page_slots);
  c.key_position = random.Below(50);
  c.q_position = c.key_position + c.count + random.Below(40) - 20;
  c.positions = random.Below(4) == 0;
  c.merge = random.Below(3) == 0;
  c.layout.alignment = 2;
  c.layout.page_gap = random.Below(3) * static_cast<int64_t>(c.format.bytes());
  c.layout.descending = random.Below(2) == 0;
  c.layout.values_first = random.Below(2) == 0;
  if (random.Below(2) == 0) c.activation = DType::kBF16;
  if (random.Below(2) == 0) {  // with drafts
    c.tokens = 1 + random.Below(std::max(1, 32 / c.group));
    c.row_gap = random.Below(2) * 8;
  }
  return c;
}

std::vector<AttentionCase> FeatureCases(DType dtype, DType activation) {
  AttentionCase plain;
  plain.format = {.dtype = dtype, .page_slots = 16, .head_dim = 64};
  plain.heads = 2;
  plain.group = 2;
  plain.params.scale = 0.125f;
  plain.tokens = 3;
  plain.count = 100;
  plain.first_slot = 5;
  plain.q_position = 97;
  plain.layout = {.alignment = 16, .params_alignment = 16};
  plain.row_gap = 8;
  plain.o_gap = 8;
  plain.activation = activation;
  std::vector<AttentionCase> cases(9, plain);
  cases[1].params.softcap = 2.0f;
  cases[2].params.window = 30;
  cases[3].positions = true;
  cases[4].rotary_dim = 64;
  cases[5].key_mass = true;
  cases[6].format.encoding = Encoding::kInt8;
  cases[7].format.encoding = Encoding::kFp8E4M3;
  cases[8].format.encoding = Encoding::kInt4;
  if (dtype == DType::kBF16) {
    cases.push_back(plain);
    cases.back().format.encoding = Encoding::kLossless;
    cases.back().tiny_numbers = true;
  }
  return cases;
}

}  // namespace headway
