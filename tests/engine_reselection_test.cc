// What decodes attend to before their window where heads choose anew by summaries, against a plain
// reading: moments of the keys in the cache, and scores of a reference's queries, in double
// precision. What lies in a head's memory is told by its bytes, and the logits are those of
// attention to just these keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/reselection_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kSteps = 40;

kv::SaliencePolicy PolicyOf(int64_t reselect, double most) {
  kv::SaliencePolicy policy;
  policy.reselect = reselect;
  policy.window = 24;
  policy.most = most;
  return policy;
}

// How caches are cut and where they lie, and how often what is chosen.
std::vector<HarnessConfig> Cuts() {
  std::vector<HarnessConfig> cuts(3);
  cuts[0].chunk = 37;
  cuts[0].salience = PolicyOf(1, 0.5);
  cuts[0].salient_on_host = true;
  cuts[0].salient_by_cores = 0.7;
  cuts[1].chunk = 50;
  cuts[1].placement = kv::PlacementKind::kRecent;
  cuts[1].device_slabs = 9;
  cuts[1].segment_pages = 3;
  cuts[1].group_heads = 1;
  cuts[1].poison_freed = true;
  cuts[1].salience = PolicyOf(3, 0.4);
  cuts[2].chunk = 300;
  cuts[2].placement = kv::PlacementKind::kHostOnly;
  cuts[2].device_slabs = 0;
  cuts[2].page_slots = 32;
  cuts[2].segment_pages = 1;
  cuts[2].poison_freed = true;
  cuts[2].salience = PolicyOf(1000, 0.7);
  cuts[2].salient_on_host = true;
  return cuts;
}

class EngineReselection : public GoldenText {
 protected:
  EngineReselection() : GoldenText(kSteps) {}
  bool Windowed(int layer) const {
    const std::vector<int64_t>& windows = model_->config().windows;
    return !windows.empty() && windows[static_cast<size_t>(layer)] > 0;
  }
  // The logits of a decode are those of attention to its lists, and these have what the queries of
  // that attention want most.
  void ExpectChosen(ReselectionDecode* decode) {
    const std::span<const Lists> lists = decode->lists();
    std::vector<std::vector<float>> queries;
    ExpectListed(*decode, &queries);
    if (HasFatalFailure()) return;
    const ModelShape& shape = model_->shape();
    const auto width = static_cast<size_t>(shape.query_heads * shape.head_dim);
    const size_t first = decode->length() - lists.size();
    for (size_t step = 0; step + 1 < lists.size(); ++step) {
      for (int layer = 0; decode->chose()[step] && layer < shape.layers; ++layer) {
        if (Windowed(layer)) continue;
        const float* const q = queries[static_cast<size_t>(layer)].data() + (first + step) * width;
        decode->CheckChoice(step, layer, q, &decided_);
      }
    }
  }

  int64_t decided_ = 0;  // of blocks: they had to be there
};

TEST_P(EngineReselection, AttendsToWhatAPlainReadingSays) {
  int64_t stayed = 0, came = 0;
  for (size_t cut = 0; cut < Cuts().size(); ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    ReselectionDecode decode(*model_, Cuts()[cut], tokens_);
    ASSERT_TRUE(decode.ok());
    decode.Prompt(std::ssize(golden_.prompt));
    for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) decode.Step();
    ASSERT_FALSE(HasFailure());
    ExpectChosen(&decode);
    stayed += decode.stayed;
    came += decode.came;
  }
  bool chooses = false;
  for (int layer = 0; layer < model_->shape().layers; ++layer) {
    chooses = chooses || !Windowed(layer);
  }
  EXPECT_EQ(came > 0, chooses);
  EXPECT_EQ(decided_ > 0, chooses);
  EXPECT_GE(stayed, came);
}

// Behind what is appended the first step chooses from all of the cache.
TEST_P(EngineReselection, ChoosesAnewBehindWhatIsAppended) {
  HarnessConfig config = Cuts()[2];
  ReselectionDecode decode(*model_, config, tokens_);
  ASSERT_TRUE(decode.ok());
  decode.Prompt(std::ssize(golden_.prompt) / 2);
  for (int64_t step = 0; step < 5 && !HasFailure(); ++step) decode.Step();
  decode.Prompt(std::ssize(golden_.prompt));
  for (int64_t step = 0; step < 5 && !HasFailure(); ++step) decode.Step();
  EXPECT_TRUE(decode.chose()[5]);
}

class EngineReselectionLanes : public EngineReselection {};

// Copies, kernels and cores that come late: whoever does not wait for them takes what is not there
// yet, or what is poisoned.
TEST_P(EngineReselectionLanes, MayBeLate) {
  for (const Lane lane :
       {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost, Lane::kHostCompute}) {
    SCOPED_TRACE(LaneName(lane));
    Delays delays(7);
    HarnessConfig config = Cuts()[0];
    config.chunk = 50;
    config.device_slabs = 3;
    config.poison_freed = true;
    config.placement = kv::PlacementKind::kRecent;
    config.delays = &delays;
    ReselectionDecode decode(*model_, config, tokens_);
    ASSERT_TRUE(decode.ok());
    const int least_us = lane == Lane::kCompute ? 200 : 2000;
    delays.Set(lane, /*every=*/1, least_us, 2 * least_us);
    decode.Prompt(std::ssize(golden_.prompt));
    for (int64_t step = 0; step < 12 && !HasFailure(); ++step) decode.Step();
    ASSERT_FALSE(HasFailure());
    ExpectChosen(&decode);
    EXPECT_GT(delays.slept(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineReselectionLanes, ::testing::Values("llama31"));

INSTANTIATE_TEST_SUITE_P(Models, EngineReselection, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& model) { return GoldenTestName(model.param); });

}  // namespace
}  // namespace headway::testing
