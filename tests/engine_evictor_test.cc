// What an evictor keeps, against a plain reading of prompts: scores in double precision from the
// keys in the prompt's cache and the queries that were observed, the methods' choices written down
// again. What is kept is told by its bytes alone, not by the positions that the store remembers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/eviction_reading.h"
#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using kv::EvictionMethod;
using kv::EvictionPolicy;

// --- Tests

EvictionPolicy PolicyFor(EvictionMethod method, int64_t budget) {
  EvictionPolicy policy;
  policy.method = method;
  policy.budget = budget;
  policy.window = 8;
  policy.steepness = 4.0;
  policy.future = 100;
  if (!policy.observes()) policy.window = policy.pool = 1;
  return policy;
}

std::vector<EvictionPolicy> Policies() {
  std::vector<EvictionPolicy> policies;
  for (const EvictionMethod method :
       {EvictionMethod::kStreaming, EvictionMethod::kSnap, EvictionMethod::kPyramid,
        EvictionMethod::kAdaSnap, EvictionMethod::kAdaPyramid, EvictionMethod::kCriticalSnap,
        EvictionMethod::kCriticalAdaSnap, EvictionMethod::kDefensive, EvictionMethod::kExpected,
        EvictionMethod::kHeavy}) {
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
  // Static budgets, whose shares are those of the model's heads.
  for (const EvictionMethod method :
       {EvictionMethod::kHeadKv, EvictionMethod::kAdaSnap, EvictionMethod::kStreaming}) {
    policies.push_back(PolicyFor(method, 53));
    policies.back().profiled = true;
  }
  return policies;
}

// From a third of the mean to more than half as much again; no budget is a token and a half.
std::vector<double> SharesOf(const ModelShape& shape) {
  const int heads = shape.layers * shape.kv_heads;
  std::vector<double> shares(static_cast<size_t>(heads), 1.0);
  for (size_t i = 0; i + 1 < shares.size(); i += 2) {
    shares[i] = 0.3 + 0.5 * (static_cast<double>(i) + 0.3) / heads;
    shares[i + 1] = 2.0 - shares[i];
  }
  return shares;
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

class EngineEvictor : public GoldenModel {};
class EngineEvictorLanes : public EngineEvictor {};

INSTANTIATE_TEST_SUITE_P(Models, EngineEvictorLanes, ::testing::Values("llama31"));

// Two prompts, one after the other: the second is read where the first one was.
TEST_P(EngineEvictor, KeepsWhatAPlainReadingSays) {
  const auto length = std::ssize(golden_.prompt);
  std::vector<TokenId> other(golden_.prompt.rbegin(), golden_.prompt.rend() - 9);
  const std::unique_ptr<Model> plain = Load();  // which is not moved to a GPU
  ASSERT_NE(plain, nullptr);
  int choices = 0, decided = 0;
  for (const HarnessConfig& cut : Cuts()) {
    for (const EvictionPolicy& policy : Policies()) {
      SCOPED_TRACE(std::string(EvictionName(policy.method)) + " pages of " +
                   std::to_string(cut.page_slots));
      HarnessConfig config = cut;
      config.eviction = policy;
      if (policy.profiled) config.eviction.shares = SharesOf(model_->shape());
      if (HasWindows(model_->config())) {
        EXPECT_EQ(StepHarness::Create(*model_, config, 2, length).status().code(),
                  StatusCode::kUnsupported);
        continue;
      }
      Reading reading(*model_, *plain, config, length);
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
// what is poisoned. The projection of one layer comes with its weights, ahead of use.
TEST_P(EngineEvictorLanes, MayBeLate) {
  const std::vector<TokenId> other(golden_.prompt.rbegin(), golden_.prompt.rend() - 9);
  const std::unique_ptr<Model> plain = Load();
  ASSERT_NE(plain, nullptr);
  for (const Lane lane : {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost}) {
    for (const EvictionMethod method : {EvictionMethod::kSnap, EvictionMethod::kDefensive,
                                        EvictionMethod::kExpected, EvictionMethod::kHeavy}) {
      SCOPED_TRACE(std::string(LaneName(lane)) + " " + EvictionName(method));
      Delays delays(7);
      HarnessConfig config = Cuts()[1];
      config.delays = &delays;
      config.weight_layers = 1;
      config.eviction = PolicyFor(method, 53);
      Reading reading(*model_, *plain, config, std::ssize(golden_.prompt));
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
  const std::vector<float> exact = ListedLogits(*plain, tokens, {&all, 1}, &queries).back();
  for (const EvictionMethod method : {EvictionMethod::kStreaming, EvictionMethod::kAdaSnap}) {
    HarnessConfig config;
    config.chunk = method == EvictionMethod::kStreaming ? 37 : 5;
    config.eviction = PolicyFor(method, 40);
    Reading reading(*model_, *plain, config, length + 1);
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
    const std::vector<float> expected = ListedLogits(*plain, tokens, {&lists, 1}, &same).back();
    const std::vector<float>& logits = (*step)[0][0];
    EXPECT_LE(MaxDifference(logits, expected), tolerance(expected)) << EvictionName(method);
    EXPECT_GT(MaxDifference(logits, exact), tolerance(exact)) << "nothing was let go";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineEvictor, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return GoldenTestName(param.param); });

}  // namespace
}  // namespace headway::testing
