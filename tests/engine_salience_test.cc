// What decodes attend to before their window, against a plain reading of HGCA's algorithms 1 and 2:
// masses in double precision from the keys in the cache and the queries of each step. What was
// chosen is told by its bytes, and the logits are those of attention to just these keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/salience_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kSteps = 40;

kv::SaliencePolicy PolicyOf(double beta, double most) {
  kv::SaliencePolicy policy;
  policy.beta = beta;
  policy.window = 24;
  policy.alpha = 0.125;
  policy.every = 1;
  policy.most = most;
  policy.queries = 6;
  return policy;
}

// How caches are cut and where they lie, and what is salient of them.
std::vector<HarnessConfig> Cuts() {
  std::vector<HarnessConfig> cuts(4);
  cuts[0].chunk = 37;
  cuts[0].salience = PolicyOf(1.0, 1.0);
  cuts[0].salient_on_host = true;
  cuts[1].chunk = 50;
  cuts[1].placement = kv::PlacementKind::kRecent;
  cuts[1].device_slabs = 9;
  cuts[1].page_slots = 4;
  cuts[1].segment_pages = 3;
  cuts[1].group_heads = 1;
  cuts[1].poison_freed = true;
  cuts[1].salience = PolicyOf(0.5, 0.5);
  cuts[1].salience.every = 3;
  cuts[2].chunk = 300;
  cuts[2].placement = kv::PlacementKind::kHostOnly;
  cuts[2].device_slabs = 0;
  cuts[2].page_slots = 8;
  cuts[2].poison_freed = true;
  cuts[2].salience = PolicyOf(1e-30, 0.25);  // the largest masses
  cuts[2].salient_on_host = true;
  cuts[2].salient_by_cores = 0.5;
  cuts[3].chunk = 5;  // fewer than queries
  cuts[3].page_slots = 8;
  cuts[3].segment_pages = 1;
  cuts[3].salience = PolicyOf(1e6, 1.0);  // none
  return cuts;
}

class EngineSalience : public GoldenText {
 protected:
  EngineSalience() : GoldenText(kSteps) {}
  void ExpectListed(const SalienceDecode& decode) const {
    std::vector<std::vector<float>> queries;
    GoldenText::ExpectListed(decode, &queries);
  }
};

TEST_P(EngineSalience, AttendsToWhatAPlainReadingSays) {
  int64_t open = 0, decided = 0;
  for (size_t cut = 0; cut < Cuts().size(); ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    SalienceDecode decode(*model_, Cuts()[cut], tokens_);
    ASSERT_TRUE(decode.ok());
    decode.Prompt(std::ssize(golden_.prompt));
    for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) decode.Step();
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(decode.before(), std::ssize(golden_.prompt) - 24);  // pages have left the window
    const std::vector<int64_t>& windows = model_->config().windows;
    const bool chooses = windows.empty() || std::count(windows.begin(), windows.end(), 0) > 0;
    EXPECT_EQ(decode.chosen() > 0, chooses && cut < 3);
    ExpectListed(decode);
    open += decode.open;
    decided += decode.decided;
  }
  EXPECT_GE(decided, open * 9 / 10);
}

// Of the tokens before a window those that heads of a layer attend to in a later step, and did not
// in an earlier one.
int64_t CameBack(const std::vector<std::vector<int64_t>>& earlier,
                 const std::vector<std::vector<int64_t>>& later, int64_t before) {
  int64_t count = 0;
  for (size_t head = 0; head < earlier.size(); ++head) {
    for (const int64_t key : later[head]) {
      if (key < before && !std::binary_search(earlier[head].begin(), earlier[head].end(), key)) {
        ++count;
      }
    }
  }
  return count;
}

// What was left out comes back where what is appended needs it: all of the cache is read, and each
// head chooses anew.
TEST_P(EngineSalience, ChoosesAnewBehindWhatIsAppended) {
  HarnessConfig config = Cuts()[0];
  config.salience = PolicyOf(1e-30, 0.25);
  SalienceDecode decode(*model_, config, tokens_);
  ASSERT_TRUE(decode.ok());
  const std::vector<int64_t>& windows = model_->config().windows;
  const auto first = std::ssize(golden_.prompt) / 2;
  decode.Prompt(first);
  for (int64_t step = 0; step < 9 && !HasFailure(); ++step) decode.Step();
  ASSERT_FALSE(HasFailure());
  const int64_t before = decode.before();
  const Lists dropped_some = decode.lists().back();
  decode.Prompt(std::ssize(golden_.prompt));
  for (int64_t step = 0; step < 9 && !HasFailure(); ++step) decode.Step();
  ASSERT_FALSE(HasFailure());
  const Lists& chosen_anew = decode.lists()[9];
  for (int layer = 0; layer < model_->shape().layers; ++layer) {
    if (!windows.empty() && windows[static_cast<size_t>(layer)] > 0) continue;
    SCOPED_TRACE("layer " + std::to_string(layer));
    EXPECT_GT(CameBack(dropped_some[static_cast<size_t>(layer)],
                       chosen_anew[static_cast<size_t>(layer)], before),
              0);
  }
}

class EngineSalienceLanes : public EngineSalience {};

// Copies, kernels and cores that come late: whoever does not wait for them takes what is not there
// yet, or what is poisoned.
TEST_P(EngineSalienceLanes, MayBeLate) {
  for (const Lane lane :
       {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost, Lane::kHostCompute}) {
    SCOPED_TRACE(LaneName(lane));
    Delays delays(7);
    HarnessConfig config = Cuts()[2];
    config.chunk = 50;
    config.device_slabs = 3;
    config.placement = kv::PlacementKind::kRecent;
    config.delays = &delays;
    SalienceDecode decode(*model_, config, tokens_);
    ASSERT_TRUE(decode.ok());
    const int least_us = lane == Lane::kCompute ? 200 : 2000;
    delays.Set(lane, /*every=*/1, least_us, 2 * least_us);
    decode.Prompt(std::ssize(golden_.prompt));
    for (int64_t step = 0; step < 12 && !HasFailure(); ++step) decode.Step();
    ASSERT_FALSE(HasFailure());
    ExpectListed(decode);
    EXPECT_GT(delays.slept(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineSalienceLanes, ::testing::Values("llama31"));

INSTANTIATE_TEST_SUITE_P(Models, EngineSalience, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& model) { return GoldenTestName(model.param); });

}  // namespace
}  // namespace headway::testing
