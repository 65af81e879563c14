// What an evictor keeps, against a plain reading of prompts: scores in double precision from the
// keys in the prompt's cache and the queries that were observed, the methods' choices written down
// again. What is kept is told by its bytes alone, not by the positions that the store remembers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "support/forwarding_kernels.h"
#include "support/golden.h"
#include "support/grid.h"
#include "support/plain_eviction.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using kv::EvictionMethod;
using kv::EvictionPolicy;

Cached ReadHead(StepHarness& h, kv::Store& store, kv::SequenceId sequence, int layer, int head) {
  const PageFormat& page = store.format().page;
  Cached cached;
  cached.row_bytes = static_cast<size_t>(page.head_dim) * DTypeBytes(page.dtype);
  const Result<std::vector<KeyRun>> runs = store.KeysOf(sequence, layer, head);
  EXPECT_TRUE(runs.ok()) << runs.status().message();
  if (!runs.ok()) return cached;
  int64_t tokens = 0;
  for (const KeyRun& run : *runs) {
    if (run.pages.count > 0) cached.starts.emplace_back(tokens, run.position);
    tokens += run.pages.count;
  }
  cached.k.resize(static_cast<size_t>(tokens) * cached.row_bytes);
  cached.v.resize(cached.k.size());
  size_t at = 0;
  for (const KeyRun& run : *runs) {
    EXPECT_EQ(run.pages.first_slot, 0);
    for (int64_t first = 0; first < run.pages.count; first += page.page_slots) {
      const auto count = std::min<int64_t>(page.page_slots, run.pages.count - first);
      const size_t bytes = static_cast<size_t>(count) * cached.row_bytes;
      const int64_t from = first / page.page_slots * run.pages.page_stride;
      h.compute().Copy(cached.k.data() + at, run.pages.k + from, bytes);
      h.compute().Copy(cached.v.data() + at, run.pages.v + from, bytes);
      at += bytes;
    }
  }
  store.FinishKeys(sequence, layer, head);
  EXPECT_TRUE(h.compute().Synchronize().ok());
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

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<std::vector<Cached>> heads;  // [layers][kv_heads]
  std::vector<Queries> queries;            // [layers]
};

// The positions of kept tokens, told by K and V. Empty after a failure.
std::vector<int64_t> PositionsOf(const Cached& kept, const Cached& prompt) {
  std::map<std::string, int64_t> known;
  for (int64_t token = 0; token < prompt.tokens(); ++token) {
    EXPECT_TRUE(known.emplace(prompt.Row(token), token).second) << "two tokens look alike";
  }
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < kept.tokens(); ++i) {
    const auto found = known.find(kept.Row(i));
    EXPECT_TRUE(found != known.end()) << "row " << i << " is of no token of the prompt";
    if (found == known.end()) return {};
    EXPECT_TRUE(positions.empty() || positions.back() < found->second) << "out of order";
    positions.push_back(found->second);
  }
  for (const auto& [token, position] : kept.starts) {
    EXPECT_EQ(position, positions[static_cast<size_t>(token)]);
  }
  return positions;
}

using Lists = std::vector<std::vector<std::vector<int64_t>>>;  // [layers][kv_heads][kept tokens]

class Reading {
 public:
  Reading(Model& model, const HarnessConfig& config, int64_t length)
      : shape_(model.shape()), policy_(config.eviction), rope_(RopeOf(model, length)) {
    Result<std::unique_ptr<StepHarness>> made = StepHarness::Create(model, config, 2, length);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) h_ = std::move(*made);
  }
  bool ok() const { return h_ != nullptr; }
  StepHarness& harness() { return *h_; }
  const RopeFrequencies& rope() const { return rope_; }

  // Reads a prompt, keeps some of it, and drops the rest.
  kv::SequenceId Evict(const std::vector<TokenId>& tokens, Prompt* prompt) {
    prompt->tokens = tokens;
    const kv::SequenceId sequence = *h_->NewSequence();
    EXPECT_TRUE(h_->Append(sequence, tokens, rope_).ok());
    // Before anything here waits for the prompt's pages. The prompt stays as it is.
    const Result<kv::SequenceId> kept = h_->evictor().Evict(sequence);
    EXPECT_TRUE(kept.ok()) << kept.status().message();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      prompt->heads.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        prompt->heads.back().push_back(ReadHead(*h_, h_->store(), sequence, layer, head));
      }
      if (policy_.observes()) prompt->queries.push_back(ReadQueries(*h_, shape_, layer));
    }
    h_->store().Drop(sequence);
    return kept.ok() ? *kept : -1;
  }

  // The lists of what is kept, checked.
  Lists Check(kv::SequenceId kept, const Prompt& prompt) {
    Lists lists;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      lists.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const Cached& all = prompt.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        lists.back().push_back(
            PositionsOf(ReadHead(*h_, h_->kept_store(), kept, layer, head), all));
      }
      CheckLayer(layer, prompt, lists.back());
    }
    return lists;
  }

  int choices = 0, decided = 0;  // of heads in layers

 private:
  void CheckLayer(int layer, const Prompt& prompt, const std::vector<std::vector<int64_t>>& lists);

  const ModelShape shape_;
  const EvictionPolicy policy_;
  const RopeFrequencies rope_;
  std::unique_ptr<StepHarness> h_;
};

void Reading::CheckLayer(int layer, const Prompt& prompt,
                         const std::vector<std::vector<int64_t>>& lists) {
  const PageFormat& page = h_->store().format().page;
  const auto tokens = std::ssize(prompt.tokens);
  const int64_t budget = PlainLayerBudget(policy_, layer, tokens);
  const EvictionParts parts(policy_, tokens, budget, page.page_slots);
  const auto heads = lists.size();
  std::vector<std::vector<Bounded>> scores;
  if (policy_.observes()) {
    const Queries& queries = prompt.queries[static_cast<size_t>(layer)];
    const int64_t rows = std::ssize(queries.q) / (int64_t{shape_.query_heads} * shape_.head_dim);
    ASSERT_EQ(rows, policy_.window);
    ASSERT_EQ(queries.position, tokens - policy_.window);
    for (size_t head = 0; head < heads; ++head) {
      const Cached& keys = prompt.heads[static_cast<size_t>(layer)][head];
      scores.push_back(PlainScores(policy_, queries, keys, page, shape_, static_cast<int>(head)));
    }
  }
  const int64_t sink = policy_.observes() ? 0 : std::min(policy_.sink, parts.candidates);
  std::vector<std::pair<int64_t, int64_t>> counts(
      heads, {std::max(parts.free, sink), std::max(parts.free, sink)});
  if (policy_.uneven()) {
    const auto share = static_cast<int64_t>(policy_.safeguard * static_cast<double>(budget));
    const int64_t anyway = tokens - parts.candidates;
    counts = SharedCounts(scores, parts, std::clamp<int64_t>(share - anyway, 0, parts.free));
  }
  for (size_t head = 0; head < heads; ++head) {
    SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head));
    const std::vector<int64_t>& list = lists[head];
    const int64_t chosen = std::ssize(list) - (tokens - parts.candidates);
    ASSERT_GE(chosen, parts.Filled(counts[head].first, page.page_slots));
    ASSERT_LE(chosen, parts.Filled(counts[head].second, page.page_slots));
    // The window and the tail, whole; a stream has the tokens before, too.
    const int64_t anyway = tokens - parts.candidates + (policy_.observes() ? 0 : chosen - sink);
    for (int64_t i = 0; i < anyway; ++i) ASSERT_EQ(list[list.size() - 1 - i], tokens - 1 - i);
    for (int64_t i = 0; i < sink; ++i) ASSERT_EQ(list[static_cast<size_t>(i)], i);
    if (!policy_.observes() || chosen == parts.candidates) continue;
    bool plain = false;
    const std::vector<int64_t> best(list.begin(), list.begin() + chosen);
    EXPECT_TRUE(AreBest(best, scores[head], parts.candidates, &plain));
    ++choices;
    decided += plain ? 1 : 0;
  }
}

// --- Tests

EvictionPolicy PolicyFor(EvictionMethod method, int64_t budget) {
  EvictionPolicy policy;
  policy.method = method;
  policy.budget = budget;
  policy.window = 8;
  policy.steepness = 4.0;
  if (!policy.observes()) policy.window = 1;
  return policy;
}

std::vector<EvictionPolicy> Policies() {
  std::vector<EvictionPolicy> policies;
  for (const EvictionMethod method :
       {EvictionMethod::kStreaming, EvictionMethod::kSnap, EvictionMethod::kPyramid,
        EvictionMethod::kAdaSnap, EvictionMethod::kAdaPyramid, EvictionMethod::kDefensive}) {
    policies.push_back(PolicyFor(method, 53));
  }
  EvictionPolicy wide = PolicyFor(EvictionMethod::kSnap, 0);
  wide.share = 0.4;
  wide.window = 21;
  wide.pooling = EvictionPolicy::Pool::kMax;
  policies.push_back(wide);
  EvictionPolicy safe = PolicyFor(EvictionMethod::kAdaSnap, 48);
  safe.pool = 1;
  safe.safeguard = 0.9;
  policies.push_back(safe);
  EvictionPolicy defensive = PolicyFor(EvictionMethod::kDefensive, 40);
  defensive.pool = 3;
  defensive.pooling = EvictionPolicy::Pool::kMax;
  policies.push_back(defensive);
  return policies;
}

// How caches are cut and where they lie.
std::vector<HarnessConfig> Cuts() {
  std::vector<HarnessConfig> cuts(4);
  cuts[0].chunk = 37;
  cuts[1].chunk = 50;
  cuts[1].placement = kv::PlacementKind::kHostOnly;
  cuts[1].device_slabs = 0;
  cuts[1].poison_freed = true;
  cuts[2].chunk = 5;  // less than windows
  cuts[2].page_slots = 4;
  cuts[2].segment_pages = 3;
  cuts[2].group_heads = 1;
  cuts[2].device_slabs = 9;  // and the rest on the host
  cuts[2].poison_freed = true;
  cuts[3].chunk = 300;  // all at once
  cuts[3].page_slots = 64;
  cuts[3].segment_pages = 1;
  return cuts;
}

bool HasWindows(const ModelConfig& config) {
  return std::any_of(config.windows.begin(), config.windows.end(),
                     [](int64_t window) { return window > 0; });
}

class EngineEvictor : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    golden_ = std::move(*golden);
    model_ = Load();
  }
  std::unique_ptr<Model> Load() const {
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden_.folder);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  Golden golden_;
  std::unique_ptr<Model> model_;
};

class EngineEvictorLanes : public EngineEvictor {};

INSTANTIATE_TEST_SUITE_P(Models, EngineEvictorLanes, ::testing::Values("llama31"));

// Two prompts, one after the other: the second is read where the first one was.
TEST_P(EngineEvictor, KeepsWhatAPlainReadingSays) {
  const auto length = std::ssize(golden_.prompt);
  std::vector<TokenId> other(golden_.prompt.rbegin(), golden_.prompt.rend() - 9);
  int choices = 0, decided = 0;
  for (const HarnessConfig& cut : Cuts()) {
    for (const EvictionPolicy& policy : Policies()) {
      SCOPED_TRACE(std::string(EvictionName(policy.method)) + " pages of " +
                   std::to_string(cut.page_slots));
      HarnessConfig config = cut;
      config.eviction = policy;
      if (HasWindows(model_->config())) {
        EXPECT_EQ(StepHarness::Create(*model_, config, 2, length).status().code(),
                  StatusCode::kUnsupported);
        continue;
      }
      Reading reading(*model_, config, length);
      ASSERT_TRUE(reading.ok());
      Prompt first, second;
      const kv::SequenceId a = reading.Evict(golden_.prompt, &first);
      const kv::SequenceId b = reading.Evict(other, &second);
      reading.Check(b, second);
      reading.Check(a, first);
      ASSERT_FALSE(HasFailure());
      choices += reading.choices;
      decided += reading.decided;
    }
  }
  if (HasWindows(model_->config())) return;
  // Bounds leave few choices open.
  EXPECT_GT(choices, 50);
  EXPECT_GE(decided, choices * 9 / 10);
}

// Copies and kernels that come late: whoever does not wait for them takes what is not there yet, or
// what is poisoned.
TEST_P(EngineEvictorLanes, MayBeLate) {
  const std::vector<TokenId> other(golden_.prompt.rbegin(), golden_.prompt.rend() - 9);
  for (const Lane lane : {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost}) {
    SCOPED_TRACE(LaneName(lane));
    Delays delays(7);
    HarnessConfig config = Cuts()[1];
    config.delays = &delays;
    config.eviction = PolicyFor(EvictionMethod::kSnap, 53);
    Reading reading(*model_, config, std::ssize(golden_.prompt));
    ASSERT_TRUE(reading.ok());
    // Longer than a layer takes.
    const int least_us = lane == Lane::kCompute ? 200 : 4000;
    delays.Set(lane, /*every=*/1, least_us, 2 * least_us);
    Prompt first, second;
    const kv::SequenceId a = reading.Evict(golden_.prompt, &first);
    const kv::SequenceId b = reading.Evict(other, &second);
    reading.Check(b, second);
    reading.Check(a, first);
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(delays.slept(), 0);
  }
}

// Attention as other kernels compute it, but that of the last token, which is computed from its
// definition over the keys in lists. All tokens come in one step, whose keys are all in one run.
// Of each layer `queries` gets those of the tokens before.
class ListedAttention : public ForwardingKernels {
 public:
  ListedAttention(std::unique_ptr<Kernels> kernels, Lists lists,
                  std::vector<std::vector<float>>* queries)
      : ForwardingKernels(std::move(kernels)), lists_(std::move(lists)), queries_(*queries) {}

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    ForwardingKernels::Attend(stream, format, group, params, items);
    ASSERT_TRUE(stream.Synchronize().ok());
    ASSERT_EQ(items.size(), 1u);
    ASSERT_EQ(items[0].result, nullptr);
    const std::vector<std::vector<int64_t>>& lists = lists_.at(layer_++);
    ASSERT_EQ(items[0].heads, std::ssize(lists));
    std::vector<float>& queries = queries_.emplace_back();
    const int64_t width = int64_t{items[0].heads} * group * format.head_dim;
    for (int64_t token = 0; token + 1 < items[0].tokens; ++token) {
      const float* const q = static_cast<const float*>(items[0].q) + token * items[0].q_stride;
      queries.insert(queries.end(), q, q + width);
    }
    for (int head = 0; head < items[0].heads * group; ++head) {
      AttendLast(format, params, items[0], head, lists[static_cast<size_t>(head / group)],
                 head / group);
    }
  }

 private:
  static void AttendLast(const PageFormat& format, const AttentionParams& params,
                         const AttentionItem& item, int head, const std::vector<int64_t>& keys,
                         int kv_head) {
    const int dim = format.head_dim;
    const PageRun& pages = item.keys.pages;
    const auto element = [&](const std::byte* plane, int64_t key, int i) -> double {
      return LoadAsFloat(
          plane + kv_head * pages.head_stride + key / format.page_slots * pages.page_stride,
          key % format.page_slots * dim + i, format.dtype);
    };
    const int64_t last = item.tokens - 1;
    const float* q = static_cast<const float*>(item.q) + last * item.q_stride + head * dim;
    float* const out = item.o + last * item.o_stride + head * dim;
    std::vector<double> o(static_cast<size_t>(dim), 0.0);
    double sum = 0.0;
    for (const int64_t key : keys) {
      double logit = 0.0;
      for (int i = 0; i < dim; ++i) logit += q[i] * element(pages.k, key, i);
      const double weight = std::exp(params.scale * logit);
      sum += weight;
      for (int i = 0; i < dim; ++i) {
        o[static_cast<size_t>(i)] += weight * element(pages.v, key, i);
      }
    }
    for (int i = 0; i < dim; ++i) out[i] = static_cast<float>(o[static_cast<size_t>(i)] / sum);
    item.lse[last * item.lse_stride + head] = static_cast<float>(std::log(sum));
  }

  const Lists lists_;
  std::vector<std::vector<float>>& queries_;
  size_t layer_ = 0;
};

// The logits behind the last of these tokens, which attends to the tokens in the lists, by the
// reference's kernels; `queries` as there.
std::vector<float> ListedLogits(Model& model, const std::vector<TokenId>& tokens,
                                const Lists& lists, std::vector<std::vector<float>>* queries) {
  HarnessConfig config;
  config.chunk = std::ssize(tokens);
  config.use_ref_kernels = true;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<ListedAttention>(std::move(kernels), lists, queries);
  };
  const LogitRows rows = RunTokens(model, config, tokens, 0);
  return rows.empty() ? std::vector<float>() : rows.back();
}

// The token behind the prompt attends to what was kept of it, and to nothing else; what was
// observed are queries that attention had.
TEST_P(EngineEvictor, DecodesByWhatWasKept) {
  if (HasWindows(model_->config())) GTEST_SKIP() << "refused";
  const std::unique_ptr<Model> plain = Load();  // a model that is not moved to a GPU
  ASSERT_NE(plain, nullptr);
  const ModelShape& shape = plain->shape();
  const DType activations = TestDevice() == "cpu" ? DType::kF32 : shape.dtype;
  const auto length = std::ssize(golden_.prompt);
  // Both sides are as far from exact as one may be from Transformers.
  const auto tolerance = [&](std::span<const float> values) {
    return 2 * GoldenTolerance(shape, length, shape.dtype, values, activations);
  };
  std::vector<TokenId> tokens = golden_.prompt;
  tokens.push_back(golden_.tokens[0]);
  std::vector<int64_t> everything(tokens.size());
  std::iota(everything.begin(), everything.end(), 0);
  const Lists all(
      static_cast<size_t>(shape.layers),
      std::vector<std::vector<int64_t>>(static_cast<size_t>(shape.kv_heads), everything));
  std::vector<std::vector<float>> queries;
  const std::vector<float> exact = ListedLogits(*plain, tokens, all, &queries);
  for (const EvictionMethod method : {EvictionMethod::kStreaming, EvictionMethod::kAdaSnap}) {
    HarnessConfig config;
    config.chunk = method == EvictionMethod::kStreaming ? 37 : 5;
    config.eviction = PolicyFor(method, 40);
    Reading reading(*model_, config, length + 1);
    ASSERT_TRUE(reading.ok());
    Prompt prompt;
    const kv::SequenceId kept = reading.Evict(golden_.prompt, &prompt);
    for (size_t layer = 0; layer < prompt.queries.size(); ++layer) {
      const std::vector<float>& observed = prompt.queries[layer].q;
      const std::span<const float> expected = std::span(queries[layer]).last(observed.size());
      EXPECT_LE(MaxDifference(observed, expected), tolerance(expected));
    }
    Lists lists = reading.Check(kept, prompt);
    ASSERT_FALSE(HasFailure());
    const StepInput input{kept, std::span(tokens).last(1), &reading.rope(), LogitsMode::kAll};
    const Result<std::vector<LogitRows>> step = reading.harness().StepKept({&input, 1});
    ASSERT_TRUE(step.ok()) << step.status().message();
    for (auto& layer : lists) {
      for (std::vector<int64_t>& head : layer) head.push_back(length);
    }
    std::vector<std::vector<float>> same;
    const std::vector<float> expected = ListedLogits(*plain, tokens, lists, &same);
    const std::vector<float>& logits = (*step)[0][0];
    EXPECT_LE(MaxDifference(logits, expected), tolerance(expected)) << EvictionName(method);
    EXPECT_GT(MaxDifference(logits, exact), tolerance(exact)) << "nothing was let go";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineEvictor, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

}  // namespace
}  // namespace headway::testing
