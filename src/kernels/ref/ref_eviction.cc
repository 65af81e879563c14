#include "kernels/ref/ref_eviction.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "kernels/page_codec.h"

namespace headway::ref {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// One query of a group against all keys.
void QueryLogits(const PageFormat& format, float scale, const KeyLogitsItem& item, const float* q,
                 int64_t position, float* logits) {
  for (int64_t key = 0; key < item.keys.pages.count; ++key) {
    if (item.keys.position + key > position) {
      logits[key] = kUnseen;
      continue;
    }
    const std::byte* k = item.keys.pages.k + SlotOffset(format, item.keys.pages, 0, key);
    double sum = 0.0;
    for (int64_t i = 0; i < format.head_dim; ++i) {
      sum += double{q[i]} * double{LoadAsFloat(k, i, format.dtype)};
    }
    logits[key] = static_cast<float>(sum * double{scale});
  }
}

// A slot's key, or value, in the dtype.
void GatherRow(const PageFormat& format, const GatherSlotsItem& item, bool of_keys, int64_t taken,
               std::byte* row) {
  const PageRun& run = item.from;
  const std::byte* plane = of_keys ? run.k : run.v;
  if (run.params == nullptr) {
    std::memcpy(row, plane + SlotOffset(format, run, 0, taken),
                static_cast<size_t>(format.head_dim) * DTypeBytes(format.dtype));
    return;
  }
  const int64_t slot = run.first_slot + taken, page = slot / format.page_slots;
  std::vector<double> numbers(static_cast<size_t>(format.head_dim));
  (of_keys ? DecodeKeyRow : DecodeValueRow)(format, plane + page * run.page_stride,
                                            run.params + page * run.params_page_stride,
                                            slot % format.page_slots, numbers.data());
  for (int64_t i = 0; i < format.head_dim; ++i) {
    StoreFloat(row, i, format.dtype, static_cast<float>(numbers[static_cast<size_t>(i)]));
  }
}

}  // namespace

void KeyLogits(const PageFormat& format, int group, float scale,
               std::span<const KeyLogitsItem> items) {
  for (const KeyLogitsItem& item : items) {
    for (int64_t row = 0; row < item.rows * group; ++row) {
      const float* q = static_cast<const float*>(item.q) + row / group * item.q_stride +
                       row % group * format.head_dim;
      QueryLogits(format, scale, item, q, item.q_position + row / group,
                  item.logits + row * item.stride);
    }
  }
}

void KeyWeights(std::span<const KeyWeightsItem> items) {
  for (const KeyWeightsItem& item : items) {
    for (int64_t row = 0; row < item.rows; ++row) {
      const float* logits = item.logits + row * item.stride;
      const double top = *std::max_element(logits, logits + item.columns);
      double total = 0.0;
      for (int64_t i = 0; i < item.columns; ++i) total += std::exp(logits[i] - top);
      item.row_lse[row] = static_cast<float>(top + std::log(total));
    }
    for (int64_t i = 0; i < item.columns; ++i) {
      double sum = 0.0, max = item.raises ? double{item.max[i]} : 0.0;
      for (int64_t row = 0; row < item.rows; ++row) {
        const double weight =
            std::exp(double{item.logits[row * item.stride + i]} - double{item.row_lse[row]});
        sum += weight;
        max = std::max(max, weight);
      }
      float& there = item.sum[item.average.SlotOf(i)];
      there = item.average.Join(i, there, static_cast<float>(sum));
      if (item.max != nullptr) item.max[i] = static_cast<float>(max);
    }
  }
}

void GatherSlots(const PageFormat& format, std::span<const GatherSlotsItem> items) {
  for (const GatherSlotsItem& item : items) {
    for (int64_t i = 0; i < item.count; ++i) {
      const int64_t taken = item.slots == nullptr ? i : item.slots[i];
      const int64_t to = SlotOffset(format, item.to, 0, i);
      GatherRow(format, item, true, taken, item.to.k + to);
      if (item.to.v != nullptr) GatherRow(format, item, false, taken, item.to.v + to);
    }
  }
}

void QueryMoments(const PageFormat& format, int heads, std::span<const QueryMomentsItem> items) {
  const int64_t dim = format.head_dim;
  for (const QueryMomentsItem& item : items) {
    for (int64_t at = 0; at < heads * dim; ++at) {
      const float* const head = static_cast<const float*>(item.q) + at / dim * dim;
      const int64_t i = at % dim;
      double sum = item.adds ? double{item.sums[at]} : 0.0;
      std::vector<double> products(static_cast<size_t>(dim), 0.0);
      if (item.adds) std::copy_n(item.products + at * dim, dim, products.begin());
      for (int64_t row = 0; row < item.rows; ++row) {
        const float* const q = head + row * item.q_stride;
        sum += double{q[i]};
        for (size_t j = 0; j < products.size(); ++j) products[j] += double{q[i]} * double{q[j]};
      }
      item.sums[at] = static_cast<float>(sum);
      for (int64_t j = 0; j < dim; ++j) {
        item.products[at * dim + j] = static_cast<float>(products[static_cast<size_t>(j)]);
      }
    }
  }
}

void ExpectedLogits(const PageFormat& format, int group, float scale,
                    std::span<const ExpectedLogitsItem> items) {
  const int64_t dim = format.head_dim;
  for (const ExpectedLogitsItem& item : items) {
    for (int64_t at = 0; at < item.keys.pages.count * group; ++at) {
      const int64_t key = at / group, head = at % group;
      const std::byte* k = item.keys.pages.k + SlotOffset(format, item.keys.pages, 0, key);
      double mean = 0.0, variance = 0.0;
      for (int64_t i = 0; i < dim; ++i) {
        const double element = LoadAsFloat(k, i, format.dtype);
        mean += element * double{item.mean[head * dim + i]};
        for (int64_t j = 0; j < dim; ++j) {
          variance += element * double{item.covariance[(head * dim + i) * dim + j]} *
                      double{LoadAsFloat(k, j, format.dtype)};
        }
      }
      item.logits[head * item.stride + key] =
          static_cast<float>(double{scale} * (mean + double{scale} * variance / 2));
    }
  }
}

void ValueNorms(const PageFormat& format, std::span<const ValueNormsItem> items) {
  for (const ValueNormsItem& item : items) {
    for (int64_t slot = 0; slot < item.values.count; ++slot) {
      const std::byte* v = item.values.v + SlotOffset(format, item.values, 0, slot);
      double sum = 0.0;
      for (int64_t i = 0; i < format.head_dim; ++i) {
        const double element = LoadAsFloat(v, i, format.dtype);
        sum += element * element;
      }
      item.norms[slot] = static_cast<float>(std::sqrt(sum));
    }
  }
}

void ProjectedNorms(const PageFormat& format, int group,
                    std::span<const ProjectedNormsItem> items) {
  const int64_t dim = format.head_dim;
  for (const ProjectedNormsItem& item : items) {
    for (int64_t slot = 0; slot < item.values.count; ++slot) {
      const std::byte* v = item.values.v + SlotOffset(format, item.values, 0, slot);
      double norm = 0.0;
      for (int64_t at = 0; at < item.weight.out * group; ++at) {
        const int64_t first = at / group * item.weight.in + item.first_column + at % group * dim;
        double sum = 0.0;
        for (int64_t i = 0; i < dim; ++i) {
          sum += double{LoadAsFloat(item.weight.data, first + i, item.weight.dtype)} *
                 double{LoadAsFloat(v, i, format.dtype)};
        }
        norm += std::abs(sum);
      }
      item.norms[slot] = static_cast<float>(norm / group);
    }
  }
}

}  // namespace headway::ref
