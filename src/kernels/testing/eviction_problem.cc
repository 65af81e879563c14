#include "kernels/testing/eviction_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "kernels/lossless_codec.h"
#include "kernels/ref/ref_eviction.h"
#include "kernels/testing/attention_problem.h"

namespace headway {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

PagedKv::Shape ShapeOf(const PageFormat& format, int64_t first_slot, int64_t count,
                       const PageLayout& layout) {
  return {.format = format,
          .first_slot = first_slot,
          .count = count,
          .layout = layout,
          .tiny_numbers = format.encoding == Encoding::kLossless};
}

PageFormat Plain(PageFormat format) {
  format.encoding = Encoding::kNone;
  return format;
}

}  // namespace

std::string KeyLogitsCase::Name() const {
  std::string name = DTypeName(format.dtype);
  const auto add = [&](const char* what, int64_t value) {
    name += std::string(" ") + what + " " + std::to_string(value);
  };
  add("dim", format.head_dim);
  add("slots", format.page_slots);
  add("group", group);
  add("rows", rows);
  add("keys", count);
  add("first slot", first_slot);
  add("position", key_position);
  add("q position", q_position);
  return name;
}

KeyLogitsCase RandomKeyLogits(const PageFormat& format, const PageLayout& layout, Random& random) {
  KeyLogitsCase c;
  c.format = format;
  c.group = static_cast<int>(1 + random.Below(random.Below(4) == 0 ? 16 : 5));
  c.scale = 1.0f / std::sqrt(static_cast<float>(format.head_dim));
  c.rows = 1 + random.Below(random.Below(4) == 0 ? 64 : 20);
  c.count = Pick<int64_t>(random, {0, 1, random.Below(70), random.Below(400)});
  c.first_slot = random.Below(3 * format.page_slots);
  c.key_position = random.Below(50);
  // Queries before all keys, among them and behind them.
  c.q_position = c.key_position + random.Below(c.count + 20) - 10;
  c.layout = layout;
  c.logits_gap = random.Below(5);
  return c;
}

KeyLogitsProblem::KeyLogitsProblem(const KeyLogitsCase& c, Random& random)
    : spec(c),
      kv(ShapeOf(c.format, c.first_slot, c.count, c.layout), random),
      logits(static_cast<size_t>(c.rows * c.group * stride()), kPoison) {
  const int64_t row = int64_t{c.group} * c.format.head_dim;
  for (int64_t i = 0; i < c.rows * q_stride(); ++i) {
    std::byte rounded[sizeof(float)];
    StoreFloat(rounded, 0, c.activation, random.Normal());
    q.push_back(i % q_stride() < row ? LoadAsFloat(rounded, 0, c.activation) : kPoison);
  }
}

KeyLogitsItem KeyLogitsProblem::Item() {
  return {.q = q.data(),
          .q_stride = q_stride(),
          .rows = spec.rows,
          .q_position = spec.q_position,
          .keys = {.pages = kv.Run(), .position = spec.key_position},
          .logits = logits.data(),
          .stride = stride()};
}

std::vector<float> KeyLogitsProblem::Expected() {
  std::vector<float> expected = logits;
  KeyLogitsItem item = Item();
  item.logits = expected.data();
  ref::KeyLogits(spec.format, spec.group, spec.scale, {&item, 1});
  return expected;
}

// A sum of dim products of f32, then scaled: at most (dim_units * dim + 4) u |scale| |q| |k|.
std::string KeyLogitsProblem::Disagreement(double dim_units, const std::vector<float>& actual) {
  const std::vector<float> expected = Expected();
  const int64_t dim = spec.format.head_dim;
  for (int64_t row = 0; row < spec.rows * spec.group; ++row) {
    const float* query = q.data() + row / spec.group * q_stride() + row % spec.group * dim;
    for (int64_t key = 0; key < stride(); ++key) {
      const auto at = static_cast<size_t>(row * stride() + key);
      double reach = 0.0;
      for (int64_t i = 0; key < spec.count && i < dim; ++i) {
        reach += std::abs(double{query[i]} * double{kv.K(0, key, i)});
      }
      const double tolerance =
          (dim_units * static_cast<double>(dim) + 4) * kUnit * double{spec.scale} * reach;
      std::string wrong = CompareNumbers("logits", at, expected[at], actual[at], tolerance);
      if (!wrong.empty()) return spec.Name() + ": " + wrong;
    }
  }
  return "";
}

KeyWeightsProblem::KeyWeightsProblem(int64_t of_rows, int64_t of_columns, bool with_max,
                                     Random& random)
    : rows(of_rows),
      columns(of_columns),
      stride(of_columns + random.Below(4)),
      has_max(with_max),
      raises(with_max && random.Below(2) == 0) {
  const float spread = Pick(random, {1.0f, 5.0f, 30.0f});
  const float level = 100.0f * random.Normal();
  for (int64_t row = 0; row < rows; ++row) {
    // Of some rows the most is unseen, of some the end, as of queries among the keys.
    const int64_t seen = 1 + random.Below(columns);
    const int64_t always = random.Below(seen);
    const bool few = random.Below(3) == 0;
    for (int64_t i = 0; i < stride; ++i) {
      const bool unseen = i >= seen || (few && i != always && random.Below(5) != 0);
      logits.push_back(i >= columns ? kPoison
                       : unseen     ? kUnseen
                                    : level + spread * random.Normal());
    }
  }
  outputs.sum.assign(static_cast<size_t>(columns + 3), kPoison);
  outputs.max = outputs.sum;
  for (int64_t column = 0; raises && column < columns; ++column) {
    outputs.max[static_cast<size_t>(column)] = 0.1f * static_cast<float>(random.Uniform());
  }
  if (random.Below(2) == 0) {
    average.ring = columns + random.Below(4);
    average.first = random.Below(3 * average.ring);
    average.kept = random.Below(columns + 1);
    average.keep = 0.75f;
    average.share = 0.125f;
    for (int64_t column = 0; column < average.kept; ++column) {
      outputs.sum[static_cast<size_t>(average.SlotOf(column))] =
          std::abs(random.Normal()) * static_cast<float>(rows);
    }
  }
  outputs.row_lse.assign(static_cast<size_t>(rows + 3), kPoison);
  before = outputs;
}

KeyWeightsItem KeyWeightsProblem::Item() {
  return {.logits = logits.data(),
          .stride = stride,
          .rows = rows,
          .columns = columns,
          .sum = outputs.sum.data(),
          .average = average,
          .max = has_max ? outputs.max.data() : nullptr,
          .raises = raises,
          .row_lse = outputs.row_lse.data()};
}

KeyWeightsOutputs KeyWeightsProblem::Expected() {
  KeyWeightsOutputs expected = before;
  KeyWeightsItem item = Item();
  item.sum = expected.sum.data();
  if (has_max) item.max = expected.max.data();
  item.row_lse = expected.row_lse.data();
  ref::KeyWeights({&item, 1});
  return expected;
}

// A row's sum of exponentials is off by a unit for each column at most, and by what an exponential
// is off; its logarithm rounds, on both sides, to a unit of its size. The exponent of a weight, l -
// lse, rounds to a unit of its own size, which times the weight is less than a unit, and an
// exponential is within some units. A sum over rows adds a unit for each of them.
std::string KeyWeightsProblem::Disagreement(const KeyWeightsOutputs& actual) {
  const KeyWeightsOutputs expected = Expected();
  double lse = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    lse = std::max(lse, std::abs(double{expected.row_lse[static_cast<size_t>(row)]}));
  }
  const double units = static_cast<double>(columns + rows) + 32 + 4 * lse;
  const auto compare = [&](const char* what, const std::vector<float>& want,
                           const std::vector<float>& got, int64_t added) -> std::string {
    for (size_t i = 0; i < want.size(); ++i) {
      const double tolerance = kUnit * (units * double{want[i]} + static_cast<double>(added));
      std::string wrong = CompareNumbers(what, i, want[i], got[i], tolerance);
      if (!wrong.empty()) return std::to_string(rows) + " rows: " + wrong;
    }
    return "";
  };
  for (int64_t i = rows; i < rows + 3; ++i) {
    if (!std::isnan(actual.row_lse[static_cast<size_t>(i)])) return "wrote behind row_lse";
  }
  const std::string wrong = compare("sum", expected.sum, actual.sum, rows);
  return wrong.empty() ? compare("max", expected.max, actual.max, 1) : wrong;
}

PageFormat AnyEncoding(const PageFormat& format, Random& random) {
  PageFormat encoded = format;
  encoded.encoding = Pick(random, {Encoding::kNone, Encoding::kInt8, Encoding::kFp8E4M3,
                                   Encoding::kInt4, Encoding::kLossless});
  const bool takes = encoded.encoding != Encoding::kLossless || lossless::Takes(encoded);
  return takes ? encoded : format;
}

GatherSlotsProblem::GatherSlotsProblem(const PageFormat& format, const PageLayout& from_layout,
                                       const PageLayout& to_layout, Random& random)
    : from(ShapeOf(format, random.Below(2 * format.page_slots), 1 + random.Below(300), from_layout),
           random),
      to(ShapeOf(Plain(format), random.Below(2 * format.page_slots), random.Below(200), to_layout),
         random) {
  in_order = to.shape().count <= from.shape().count && random.Below(3) == 0;
  keys_only = random.Below(4) == 0;
  for (int64_t i = 0; i < to.shape().count; ++i) {
    slots.push_back(static_cast<int32_t>(in_order ? i : random.Below(from.shape().count)));
    for (int64_t channel = 0; channel < format.head_dim; ++channel) {
      to.SetK(0, i, channel, kPoison);
      to.SetV(0, i, channel, kPoison);
    }
  }
}

GatherSlotsItem GatherSlotsProblem::ItemIn(std::byte* from_memory, std::byte* to_memory,
                                           const int32_t* at_slots) {
  GatherSlotsItem item = {.from = from.RunIn(from_memory),
                          .slots = in_order ? nullptr : at_slots,
                          .count = to.shape().count,
                          .to = to.RunIn(to_memory)};
  if (keys_only) item.to.v = nullptr;
  return item;
}

const std::vector<std::byte>& GatherSlotsProblem::Expected() {
  for (size_t i = 0; i < slots.size(); ++i) {
    for (int64_t channel = 0; channel < to.shape().format.head_dim; ++channel) {
      const auto slot = static_cast<int64_t>(i);
      const auto at = static_cast<size_t>(channel);
      to.SetK(0, slot, channel, static_cast<float>(from.KeyRow(0, slots[i])[at]));
      if (keys_only) continue;
      to.SetV(0, slot, channel, static_cast<float>(from.ValueRow(0, slots[i])[at]));
    }
  }
  return to.memory();
}

}  // namespace headway
