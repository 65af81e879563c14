// A decode whose heads choose salient blocks anew, beside a plain reading: moments of the keys in
// the cache, and scores of a reference's queries, in double precision. What lies in a head's memory
// is told by its bytes.
#ifndef HEADWAY_TESTS_SUPPORT_RESELECTION_DECODE_H_
#define HEADWAY_TESTS_SUPPORT_RESELECTION_DECODE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kv/policy/salient_blocks.h"
#include "support/cache_reading.h"
#include "support/grid.h"
#include "support/plain_blocks.h"
#include "support/step_harness.h"

namespace headway::testing {

// A decode under a configuration; of each step what every head attended to.
class ReselectionDecode {
 public:
  ReselectionDecode(Model& model, const HarnessConfig& config, std::span<const TokenId> tokens)
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
    if (after_step) after_step(lists);
    ++length_;
  }

  const std::vector<Lists>& lists() const { return lists_; }
  const LogitRows& rows() const { return rows_; }
  const std::vector<bool>& chose() const { return chose_; }
  size_t length() const { return static_cast<size_t>(length_); }
  // Blocks that had a place in the step before, or had none.
  int64_t stayed = 0, came = 0;
  // Hears behind a step what each head attended to.
  std::function<void(const Lists& lists)> after_step;
  StepHarness& harness() { return *h_; }
  kv::SequenceId sequence() const { return sequence_; }

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
  static constexpr int64_t kBlock = kv::SalientBlocks::kSummary.block_slots;

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

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_RESELECTION_DECODE_H_
