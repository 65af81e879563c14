#include "kernels/ref/ref_attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "kernels/items.h"
#include "kernels/page_codec.h"

namespace headway::ref {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

using DecodeRow = void (*)(const PageFormat& format, const std::byte* codes,
                           const std::byte* params, int64_t slot, double* row);

// The row of `slot` (counted from the run's first) in K or V pages; `decode` is theirs.
std::vector<double> LoadRow(const PageFormat& format, const std::byte* pages, const PageRun& run,
                            int64_t slot, DecodeRow decode) {
  const int64_t at = run.first_slot + slot;
  const std::byte* page = pages + at / format.page_slots * run.page_stride;
  std::vector<double> row(static_cast<size_t>(format.head_dim));
  if (run.params != nullptr) {
    decode(format, page, run.params + at / format.page_slots * run.params_page_stride,
           at % format.page_slots, row.data());
    return row;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = LoadAsFloat(page, at % format.page_slots * format.head_dim + static_cast<int64_t>(i),
                         format.dtype);
  }
  return row;
}

int64_t KeyPosition(const AttentionItem& item, int64_t key) {
  return item.keys.positions != nullptr ? item.keys.positions[key] : item.keys.position + key;
}

bool Visible(const AttentionParams& params, int64_t q_position, int64_t k_position) {
  return k_position <= q_position &&
         (params.window == 0 || k_position > q_position - params.window);
}

void RotateKey(const AttentionItem& item, int64_t key, std::vector<double>& row) {
  const KeyTransform& transform = item.transform;
  if (transform.inv_freq == nullptr) return;
  const int64_t position =
      transform.rotate_to != nullptr ? transform.rotate_to[key] : KeyPosition(item, key);
  const size_t half = static_cast<size_t>(transform.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * transform.inv_freq[i];  // f32, as RopeAngles
    const double c = std::cos(static_cast<double>(angle));
    const double s = std::sin(static_cast<double>(angle));
    const double low = row[i];
    const double high = row[i + half];
    row[i] = low * c - high * s;
    row[i + half] = high * c + low * s;
  }
}

// The state of one query row: output, normalised, and the log of the sum of exponentials.
struct State {
  std::vector<double> o;
  double lse = kNoKeys;
};

// NaN if either is: a NaN logit must come out.
double MaxOrNan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// (o, lse) merged with another partial state over other keys. A part that saw no key takes no part:
// its o is not read.
void MergeInto(State& state, const float* o, double lse) {
  const double max = MaxOrNan(state.lse, lse);
  if (max == kNoKeys) return;
  const double weight = std::exp(state.lse - max);
  const double other = std::exp(lse - max);
  for (size_t i = 0; i < state.o.size(); ++i) {
    const double mine = state.lse == kNoKeys ? 0.0 : state.o[i] * weight;
    const double theirs = lse == kNoKeys ? 0.0 : o[i] * other;
    state.o[i] = (mine + theirs) / (weight + other);
  }
  state.lse = max + std::log(weight + other);
}

// One query row against the item's keys and values, which are already rows of f64.
State AttendRow(const AttentionParams& params, const AttentionItem& item, std::span<const float> q,
                int64_t q_position, const std::vector<std::vector<double>>& k,
                const std::vector<std::vector<double>>& v) {
  const size_t head_dim = q.size();
  std::vector<double> logits(k.size(), kNoKeys);
  double max = kNoKeys;
  for (size_t key = 0; key < k.size(); ++key) {
    if (!Visible(params, q_position, KeyPosition(item, static_cast<int64_t>(key)))) continue;
    double dot = 0;
    for (size_t i = 0; i < head_dim; ++i) dot += q[i] * k[key][i];
    dot *= params.scale;
    if (params.softcap != 0) dot = params.softcap * std::tanh(dot / params.softcap);
    logits[key] = dot;
    max = MaxOrNan(dot, max);
  }
  State state{std::vector<double>(head_dim, 0.0), kNoKeys};
  if (max == kNoKeys) return state;
  double sum = 0;
  for (size_t key = 0; key < k.size(); ++key) {
    if (logits[key] == kNoKeys) continue;
    const double weight = std::exp(logits[key] - max);
    sum += weight;
    for (size_t i = 0; i < head_dim; ++i) state.o[i] += weight * v[key][i];
  }
  for (double& value : state.o) value /= sum;
  state.lse = max + std::log(sum);
  if (item.key_mass != nullptr) {
    for (size_t key = 0; key < k.size(); ++key) {
      if (logits[key] != kNoKeys) {
        item.key_mass[key] += static_cast<float>(std::exp(logits[key] - state.lse));
      }
    }
  }
  return state;
}

void AttendItem(const PageFormat& format, int group, const AttentionParams& params,
                const AttentionItem& item) {
  const size_t head_dim = static_cast<size_t>(format.head_dim);
  const PageRun& run = item.keys.pages;
  std::vector<std::vector<double>> k;
  std::vector<std::vector<double>> v;
  for (int64_t key = 0; key < run.count; ++key) {
    k.push_back(LoadRow(format, run.k, run, key, DecodeKeyRow));
    v.push_back(LoadRow(format, run.v, run, key, DecodeValueRow));
    RotateKey(item, key, k.back());
  }
  for (int64_t token = 0; token < item.tokens; ++token) {
    for (int64_t head = 0; head < group; ++head) {
      const int64_t column = head * format.head_dim;
      const float* q = static_cast<const float*>(item.q) + token * item.q_stride + column;
      State state = AttendRow(params, item, {q, head_dim}, item.q_position + token, k, v);
      float* o = item.o + token * item.o_stride + column;
      float* lse = item.lse + token * item.lse_stride + head;
      if (item.merge) MergeInto(state, o, *lse);
      for (size_t i = 0; i < head_dim; ++i) o[i] = static_cast<float>(state.o[i]);
      *lse = static_cast<float>(state.lse);
    }
  }
}

}  // namespace

void TurnKeys(const PageFormat& format, const TurnKeysItem& item) {
  const int half = item.table.rotary_dim / 2;
  for (int head = 0; head < item.heads; ++head) {
    for (int64_t i = 0; i < item.from.count; ++i) {
      const int64_t row = SlotOffset(format, item.from, head, i);
      const auto load = [&](int channel) {
        return double{LoadAsFloat(item.from.k + row, channel, format.dtype)};
      };
      const auto store = [&](int channel, double value) {
        StoreFloat(item.to + row, channel, format.dtype, static_cast<float>(value));
      };
      for (int pair = 0; pair < half; ++pair) {
        const double c = item.table.cos[i * half + pair];
        const double s = item.table.sin[i * half + pair];
        store(pair, load(pair) * c - load(pair + half) * s);
        store(pair + half, load(pair + half) * c + load(pair) * s);
      }
      for (int channel = 2 * half; channel < format.head_dim; ++channel) {
        store(channel, load(channel));
      }
    }
  }
}

void StoreKv(const PageFormat& format, std::span<const StoreKvItem> items) {
  for (const StoreKvItem& item : items) {
    for (int64_t slot = 0; slot < item.to.count; ++slot) {
      for (int head = 0; head < item.heads; ++head) {
        const int64_t row = SlotOffset(format, item.to, head, slot);
        for (int64_t i = 0; i < format.head_dim; ++i) {
          const int64_t from = slot * item.kv_stride + int64_t{head} * format.head_dim + i;
          StoreFloat(item.to.k + row, i, format.dtype, static_cast<const float*>(item.k)[from]);
          StoreFloat(item.to.v + row, i, format.dtype, static_cast<const float*>(item.v)[from]);
        }
      }
    }
  }
}

void EncodePages(const PageFormat& format, std::span<const EncodePagesItem> items) {
  for (const EncodePagesItem& item : items) {
    const int64_t pages = item.from.count / format.page_slots;
    for (int64_t i = 0; i < item.heads * pages; ++i)
      EncodePageOf(format, item, i / pages, i % pages);
  }
}

void Attend(const PageFormat& format, int group, const AttentionParams& params,
            std::span<const AttentionItem> items) {
  for (const AttentionItem& item : SingleStates(format, group, items)) {
    AttendItem(format, group, params, item);
  }
}

void Merge(int head_dim, std::span<const MergeItem> items) {
  for (const MergeItem& item : items) {
    for (int64_t row = 0; row < item.rows; ++row) {
      State state{std::vector<double>(static_cast<size_t>(head_dim), 0.0), kNoKeys};
      for (int part = 0; part < item.AllParts(); ++part) {
        MergeInto(state, item.PartO(part) + row * head_dim, item.PartLse(part)[row]);
      }
      for (int64_t i = 0; i < head_dim; ++i) {
        static_cast<float*>(item.o)[row * head_dim + i] =
            static_cast<float>(state.o[static_cast<size_t>(i)]);
      }
      if (item.lse != nullptr) item.lse[row] = static_cast<float>(state.lse);
    }
  }
}

void ScaleHeld(int head_dim, int group, std::span<const ScaleHeldItem> items) {
  for (const ScaleHeldItem& item : items) {
    for (int64_t row = 0; row < item.rows; ++row) {
      auto* const to = static_cast<float*>(item.o) + row * item.o_stride;
      const float* const from = item.from == nullptr ? to : item.from + row * item.from_stride;
      for (int head = 0; head < group; ++head) {
        const auto lse_of = [&](int holder) {
          const auto column = int64_t{item.columns[holder]};
          return static_cast<double>(item.lse[row * item.lse_stride + column + head]);
        };
        double max = kNoKeys;
        for (int i = 0; i < item.holders; ++i) max = MaxOrNan(lse_of(i), max);
        double sum = 0.0;
        for (int i = 0; i < item.holders; ++i) sum += std::exp(lse_of(i) - max);
        const bool empty = lse_of(item.own) == kNoKeys;
        const double scale = std::exp(lse_of(item.own) - max) / sum;
        for (int64_t i = head * head_dim; i < (head + 1) * head_dim; ++i) {
          to[i] = empty ? 0.0f : static_cast<float>(from[i] * scale);
        }
      }
    }
  }
}

}  // namespace headway::ref
