#include "support/cache_reading.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/half.h"
#include "kernels/page_codec.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"

namespace headway::testing {
namespace {

// Attention as other kernels compute it, but that of the last tokens, which is computed from its
// definition over the keys in lists. All tokens come in one step, whose keys are all in one run.
class ListedAttention : public ForwardingKernels {
 public:
  ListedAttention(std::unique_ptr<Kernels> kernels, std::span<const Lists> lists,
                  std::vector<std::vector<float>>* queries)
      : ForwardingKernels(std::move(kernels)), lists_(lists), queries_(*queries) {}

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    ForwardingKernels::Attend(stream, format, group, params, items);
    ASSERT_TRUE(stream.Synchronize().ok());
    ASSERT_EQ(items.size(), 1u);
    const AttentionItem& item = items[0];
    ASSERT_EQ(item.result, nullptr);
    const size_t layer = layer_++;
    std::vector<float>& queries = queries_.emplace_back();
    const int64_t width = int64_t{item.heads} * group * format.head_dim;
    for (int64_t token = 0; token + 1 < item.tokens; ++token) {
      const float* const q = static_cast<const float*>(item.q) + token * item.q_stride;
      queries.insert(queries.end(), q, q + width);
    }
    for (size_t i = 0; i < lists_.size(); ++i) {
      const auto& heads = lists_[i].at(layer);
      ASSERT_EQ(item.heads, std::ssize(heads));
      const int64_t token = item.tokens - std::ssize(lists_) + static_cast<int64_t>(i);
      for (int head = 0; head < item.heads * group; ++head) {
        const KvHead kv = {head / group, heads[static_cast<size_t>(head / group)]};
        AttendTo(format, params, item, kv, {token, head});
      }
    }
  }

 private:
  struct KvHead {
    int head;
    const std::vector<int64_t>& keys;
  };
  struct Row {
    int64_t token;
    int head;  // query head
  };
  static void AttendTo(const PageFormat& format, const AttentionParams& params,
                       const AttentionItem& item, const KvHead& kv, const Row& row) {
    const int dim = format.head_dim;
    const PageRun& pages = item.keys.pages;
    const auto element = [&](const std::byte* plane, int64_t key, int i) -> double {
      return LoadAsFloat(
          plane + kv.head * pages.head_stride + key / format.page_slots * pages.page_stride,
          key % format.page_slots * dim + i, format.dtype);
    };
    const float* q = static_cast<const float*>(item.q) + row.token * item.q_stride + row.head * dim;
    float* const out = item.o + row.token * item.o_stride + row.head * dim;
    std::vector<double> o(static_cast<size_t>(dim), 0.0);
    double sum = 0.0;
    for (const int64_t key : kv.keys) {
      double logit = 0.0;
      for (int i = 0; i < dim; ++i) logit += q[i] * element(pages.k, key, i);
      const double weight = std::exp(params.scale * logit);
      sum += weight;
      for (int i = 0; i < dim; ++i) {
        o[static_cast<size_t>(i)] += weight * element(pages.v, key, i);
      }
    }
    for (int i = 0; i < dim; ++i) out[i] = static_cast<float>(o[static_cast<size_t>(i)] / sum);
    item.lse[row.token * item.lse_stride + row.head] = static_cast<float>(std::log(sum));
  }

  const std::span<const Lists> lists_;
  std::vector<std::vector<float>>& queries_;
  size_t layer_ = 0;
};

// The numbers that a closed page's codes stand for, in the dtype.
struct DecodedPage {
  DecodedPage(StepHarness& h, const PageFormat& format, const PageRun& run, int64_t page)
      : k(format.bytes()), v(format.bytes()) {
    std::vector<std::byte> codes(format.closed_bytes()), value_codes(format.closed_bytes());
    std::vector<std::byte> params(static_cast<size_t>(ParamBytes(format)));
    h.compute().Copy(codes.data(), run.k + page * run.page_stride, codes.size());
    h.compute().Copy(value_codes.data(), run.v + page * run.page_stride, codes.size());
    h.compute().Copy(params.data(), run.params + page * run.params_page_stride, params.size());
    EXPECT_TRUE(h.compute().Synchronize().ok());
    std::vector<double> row(static_cast<size_t>(format.head_dim));
    const auto store = [&](int64_t slot, std::vector<std::byte>* plane) {
      for (int64_t i = 0; i < format.head_dim; ++i) {
        StoreFloat(plane->data(), slot * format.head_dim + i, format.dtype,
                   static_cast<float>(row[static_cast<size_t>(i)]));
      }
    };
    for (int64_t slot = 0; slot < format.page_slots; ++slot) {
      DecodeKeyRow(format, codes.data(), params.data(), slot, row.data());
      store(slot, &k);
      DecodeValueRow(format, value_codes.data(), params.data(), slot, row.data());
      store(slot, &v);
    }
  }

  std::vector<std::byte> k, v;
};

}  // namespace

Cached ReadRuns(StepHarness& h, const PageFormat& page, std::span<const KeyRun> runs) {
  Cached cached;
  cached.row_bytes = static_cast<size_t>(page.head_dim) * DTypeBytes(page.dtype);
  int64_t tokens = 0;
  for (const KeyRun& run : runs) {
    if (run.pages.count > 0) cached.starts.emplace_back(tokens, run.position);
    tokens += run.pages.count;
  }
  cached.k.resize(static_cast<size_t>(tokens) * cached.row_bytes);
  cached.v.resize(cached.k.size());
  size_t at = 0;
  for (const KeyRun& run : runs) {
    EXPECT_EQ(run.pages.first_slot, 0);
    for (int64_t first = 0; first < run.pages.count; first += page.page_slots) {
      const auto count = std::min<int64_t>(page.page_slots, run.pages.count - first);
      const size_t bytes = static_cast<size_t>(count) * cached.row_bytes;
      const int64_t from = first / page.page_slots * run.pages.page_stride;
      if (run.pages.params != nullptr) {
        const DecodedPage decoded(h, page, run.pages, first / page.page_slots);
        std::memcpy(cached.k.data() + at, decoded.k.data(), bytes);
        std::memcpy(cached.v.data() + at, decoded.v.data(), bytes);
      } else {
        h.compute().Copy(cached.k.data() + at, run.pages.k + from, bytes);
        h.compute().Copy(cached.v.data() + at, run.pages.v + from, bytes);
      }
      at += bytes;
    }
  }
  EXPECT_TRUE(h.compute().Synchronize().ok());
  return cached;
}

Cached ReadHead(StepHarness& h, kv::Store& store, kv::SequenceId sequence, int layer, int head) {
  const Result<std::vector<KeyRun>> runs = store.KeysOf(sequence, layer, head);
  EXPECT_TRUE(runs.ok()) << runs.status().message();
  if (!runs.ok()) return {};
  Cached cached = ReadRuns(h, store.format().page, *runs);
  store.FinishKeys(sequence, layer, head);
  return cached;
}

Queries ReadQueries(StepHarness& h, const ModelShape& shape, int layer) {
  const DType dtype = h.executor().limits().activation_dtype;
  const auto width = static_cast<size_t>(shape.query_heads) * static_cast<size_t>(shape.head_dim);
  Queries queries;
  queries.position = -1;
  for (const ObservedQueries::Run& run : h.executor().observed().Of(layer)) {
    if (run.rows == 0) continue;
    const auto next = queries.position + static_cast<int64_t>(queries.q.size() / width);
    if (queries.position < 0) {
      queries.position = run.position;
    } else {
      EXPECT_EQ(run.position, next);
    }
    const size_t count = static_cast<size_t>(run.rows) * width;
    std::vector<std::byte> bytes(count * DTypeBytes(dtype));
    h.compute().Copy(bytes.data(), run.q, bytes.size());
    EXPECT_TRUE(h.compute().Synchronize().ok());
    for (size_t i = 0; i < count; ++i) {
      queries.q.push_back(LoadAsFloat(bytes.data(), static_cast<int64_t>(i), dtype));
    }
  }
  return queries;
}

std::vector<int64_t> PositionsOf(const Cached& some, const Cached& all) {
  std::map<std::string, int64_t> known;
  for (int64_t token = 0; token < all.tokens(); ++token) {
    EXPECT_TRUE(known.emplace(all.Row(token), token).second) << "two tokens look alike";
  }
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < some.tokens(); ++i) {
    const auto found = known.find(some.Row(i));
    EXPECT_TRUE(found != known.end()) << "row " << i << " is of no token of the cache";
    if (found == known.end()) return {};
    EXPECT_TRUE(positions.empty() || positions.back() < found->second) << "out of order";
    positions.push_back(found->second);
  }
  return positions;
}

LogitRows ListedLogits(Model& model, std::span<const TokenId> tokens, std::span<const Lists> lists,
                       std::vector<std::vector<float>>* queries) {
  HarnessConfig config;
  config.chunk = std::ssize(tokens);
  config.use_ref_kernels = true;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ListedAttention>(std::move(kernels), lists, queries);
  };
  LogitRows rows = RunTokens(model, config, tokens, 0);
  if (rows.size() < lists.size()) return {};
  rows.erase(rows.begin(), rows.end() - std::ssize(lists));
  return rows;
}

}  // namespace headway::testing
