// What decodes attend to before their window where heads choose anew by summaries, against a plain
// reading: moments of the keys in the cache, and scores of a reference's queries, in double
// precision. What lies in a head's memory is told by its bytes, and the logits are those of
// attention to just these keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kv/policy/salient_blocks.h"
#include "support/cache_reading.h"
#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/plain_blocks.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kSteps = 40;
constexpr int64_t kBlock = kv::SalientBlocks::kSummary.block_slots;
// A decode under a configuration; of each step what every head attended to.
class Decode {
 public:
  Decode(Model& model, const HarnessConfig& config, std::span<const TokenId> tokens)
      : model_(model),
        shape_(model.shape()),
        policy_(config.salience),
        page_slots_(config.page_slots),
        tokens_(tokens),
        rope_(RopeOf(model, std::ssize(tokens))) {
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(model, config, 2, std::ssize(tokens));
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) h_ = std::move(*made);
  }
  bool ok() const { return h_ != nullptr; }

  // Reads the prompt, of which nothing is chosen yet.
  void Prompt(int64_t length) {
    if (sequence_ < 0) sequence_ = *h_->NewSequence();
    const int64_t there = h_->store().Length(sequence_);
    const auto rest =
        tokens_.subspan(static_cast<size_t>(there), static_cast<size_t>(length - there));
    ASSERT_TRUE(h_->Append(sequence_, rest, rope_).ok());
    ASSERT_TRUE(h_->salience().Choose(sequence_, h_->executor().observed()).ok());
    length_ = length;
    made_ = -1;
  }

  // One token more; its logits are added to rows.
  void Step() {
    const int64_t before = kv::TokensBefore(policy_, length_, page_slots_);
    const StepInput input{sequence_, tokens_.subspan(static_cast<size_t>(length_), 1), &rope_,
                          LogitsMode::kAll};
    Result<std::vector<LogitRows>> step = h_->Step({&input, 1});
    ASSERT_TRUE(step.ok()) << step.status().message();
    rows_.push_back((*step)[0][0]);
    const bool chooses = made_ < 0 || length_ >= made_ + policy_.reselect || before != before_;
    if (chooses) made_ = length_;
    before_ = before;
    chose_.push_back(chooses);
    Lists& lists = lists_.emplace_back();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      lists.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head) +
                     " length " + std::to_string(length_));
        lists.back().push_back(ListOf(layer, head, chooses));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    ++length_;
  }

  const std::vector<Lists>& lists() const { return lists_; }
  const LogitRows& rows() const { return rows_; }
  const std::vector<bool>& chose() const { return chose_; }
  size_t length() const { return static_cast<size_t>(length_); }
  // Blocks that had a place in the step before, or had none.
  int64_t stayed = 0, came = 0;

  // Checks the choices of `step`, by the queries of a layer that `q` begins with.
  void CheckChoice(size_t step, int layer, const float* q, int64_t* decided) {
    const int64_t before = kv::TokensBefore(
        policy_, length_ - std::ssize(rows_) + static_cast<int64_t>(step), page_slots_);
    const int64_t blocks = before / kBlock;
    const int64_t places = kv::SalientBlocks::Places(policy_, blocks);
    // At least so many are listed.
    const int64_t listed = blocks == places ? places : CeilDiv(places, int64_t{2});
    for (int head = 0; head < shape_.kv_heads && places > 0; ++head) {
      const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
      const std::vector<Worth> worth =
          WorthOf(h_->store().format().page, static_cast<int>(kBlock), keys,
                  q + int64_t{head} * shape_.group() * shape_.head_dim, shape_.group(), blocks);
      const std::vector<bool> sure = SurelyListed(worth, listed);
      const std::vector<int64_t>& there =
          lists_[step][static_cast<size_t>(layer)][static_cast<size_t>(head)];
      for (int64_t block = 0; block < blocks; ++block) {
        if (!sure[static_cast<size_t>(block)]) continue;
        ++*decided;
        EXPECT_TRUE(std::binary_search(there.begin(), there.end(), block * kBlock))
            << "step " << step << " layer " << layer << " head " << head << " block " << block;
      }
    }
  }

 private:
  int64_t WindowOf(int layer) const {
    const std::vector<int64_t>& windows = model_.config().windows;
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }

  // What a head attended to in the step that has just ended, ascending.
  std::vector<int64_t> ListOf(int layer, int head, bool chooses) {
    std::vector<int64_t> list;
    const int64_t window = WindowOf(layer);
    int64_t first = before_;
    if (window > 0) {
      first = std::max<int64_t>(0, length_ + 1 - window);
    } else {
      AddBlocks(layer, head, chooses, &list);
    }
    for (int64_t key = first; key <= length_; ++key) list.push_back(key);
    return list;
  }

  // Tokens of the blocks in a head's places, of which none is there twice.
  void AddBlocks(int layer, int head, bool chooses, std::vector<int64_t>* list) {
    Salience::Chosen* const chosen = h_->salience().Find(sequence_, length_ + 1);
    ASSERT_NE(chosen, nullptr);
    const auto index = static_cast<size_t>(h_->salience().HeadIndex(layer, head));
    const std::span<const int32_t> blocks = chosen->blocks[index].blocks();
    EXPECT_LE(std::ssize(blocks), kv::SalientBlocks::Places(policy_, before_ / kBlock));
    const KeyRun run = h_->salience().KeysOf(*chosen, layer, head);
    ASSERT_EQ(run.pages.count, std::ssize(blocks) * kBlock);
    const Cached there = ReadRuns(*h_, h_->store().format().page, {&run, 1});
    const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
    std::vector<int32_t>& had = had_[{layer, head}];
    for (size_t place = 0; place < blocks.size(); ++place) {
      ASSERT_LT(blocks[place], before_ / kBlock);
      const bool stays = place < had.size() && had[place] == blocks[place];
      EXPECT_TRUE(chooses || stays);
      (stays ? stayed : came) += 1;
      for (int64_t slot = 0; slot < kBlock; ++slot) {
        const int64_t token = blocks[place] * kBlock + slot;
        ASSERT_EQ(there.Row(static_cast<int64_t>(place) * kBlock + slot), keys.Row(token));
        list->push_back(token);
      }
    }
    had.assign(blocks.begin(), blocks.end());
    std::sort(list->begin(), list->end());
    ASSERT_EQ(std::adjacent_find(list->begin(), list->end()), list->end());
  }

  Model& model_;
  const ModelShape shape_;
  const kv::SaliencePolicy policy_;
  const int page_slots_;
  const std::span<const TokenId> tokens_;
  const RopeFrequencies rope_;
  std::unique_ptr<StepHarness> h_;
  kv::SequenceId sequence_ = -1;
  int64_t length_ = 0;
  int64_t made_ = -1;                                        // the step that chose last
  int64_t before_ = -1;                                      // of the last step
  std::map<std::pair<int, int>, std::vector<int32_t>> had_;  // of layer and head: the last blocks
  std::vector<Lists> lists_;                                 // of each step
  std::vector<bool> chose_;                                  // the same
  LogitRows rows_;                                           // the same
};

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
  void ExpectChosen(Decode* decode) {
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
    Decode decode(*model_, Cuts()[cut], tokens_);
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
  Decode decode(*model_, config, tokens_);
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
    Decode decode(*model_, config, tokens_);
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
