// What decodes attend to where heads let go of tokens that stay in host memory, against a plain
// reading: what is held is told by its bytes, what is chosen of it by moments of its keys and
// scores of a reference's queries in double precision, and the logits are those of attention to
// what is kept and to what is chosen, each token once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/demoted.h"
#include "kv/policy/demotion.h"
#include "support/cache_reading.h"
#include "support/eviction_reading.h"
#include "support/forwarding_kernels.h"
#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/plain_blocks.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using kv::EvictionMethod;
using kv::EvictionPolicy;

constexpr int64_t kSteps = 20;
constexpr int64_t kBlock = kv::DemotionPolicy::kSummary.block_slots;

// Notes what rows of a step that reads several tokens list: head by head, where these have
// something to list.
class NotingKernels : public ForwardingKernels {
 public:
  using ListsOfRows = std::vector<std::vector<int32_t>>;
  NotingKernels(std::unique_ptr<Kernels> kernels, ListsOfRows* noted)
      : ForwardingKernels(std::move(kernels)), noted_(*noted) {}

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
    for (const SelectItem& item : items) {
      if (item.rows == 1) continue;
      ASSERT_EQ(item.row_blocks(), 1);
      for (int head = 0; head < item.keys.heads; ++head) {
        noted_.push_back(ReadList(stream, item.blocks + head * item.capacity, item.counts + head));
      }
    }
  }

  static std::vector<int32_t> ReadList(Stream& stream, const int32_t* blocks,
                                       const int32_t* count_at) {
    int32_t count = 0;
    stream.Copy(reinterpret_cast<std::byte*>(&count), reinterpret_cast<const std::byte*>(count_at),
                sizeof(count));
    EXPECT_TRUE(stream.Synchronize().ok());
    std::vector<int32_t> list(static_cast<size_t>(count));
    stream.Copy(reinterpret_cast<std::byte*>(list.data()),
                reinterpret_cast<const std::byte*>(blocks), list.size() * sizeof(int32_t));
    EXPECT_TRUE(stream.Synchronize().ok());
    return list;
  }

 private:
  ListsOfRows& noted_;
};

// A decode behind a prompt of which heads have kept some; of each step what every head attended to.
class Decode {
 public:
  Decode(Reading& reading, const ModelShape& shape, const EvictionPolicy& policy,
         std::span<const TokenId> tokens)
      : reading_(reading), h_(reading.harness()), shape_(shape), policy_(policy), tokens_(tokens) {}

  // Reads the first `length` tokens.
  void Prompt(int64_t length) {
    struct Prompt prompt;
    kept_ = reading_.Evict({tokens_.begin(), tokens_.begin() + length}, &prompt);
    prompt_ = length_ = length;
    const Lists kept = reading_.Check(kept_, prompt);
    const Demoted::Held* const held = h_.demoted().Find(kept_);
    ASSERT_NE(held, nullptr);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const auto l = static_cast<size_t>(layer), at = static_cast<size_t>(head);
        heads_.push_back({kept[l][at], ReadHeld(*held, layer, head), {}, {}});
        Head& of = heads_.back();
        of.let_go = PositionsOf(of.held, prompt.heads[l][at]);
        ExpectParts(of);
      }
    }
  }

  StepInput Next(const RopeFrequencies& rope, size_t tokens = 1) const {
    return {kept_, tokens_.subspan(static_cast<size_t>(length_), tokens), &rope, LogitsMode::kAll};
  }

  // A step of that input has these logits.
  void Stepped(std::vector<float> logits) {
    rows_.push_back(std::move(logits));
    const bool chooses = made_ < 0 || length_ >= made_ + policy_.demotion.refresh;
    if (chooses) made_ = length_;
    chose_.push_back(chooses);
    const Demoted::Held* const held = h_.demoted().Find(kept_);
    ASSERT_NE(held, nullptr);
    Lists& lists = lists_.emplace_back();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      lists.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        Head& of = HeadOf(layer, head);
        const std::vector<int32_t> chosen = ChosenOf(*held, layer, head);
        ASSERT_TRUE(chooses || chosen == of.chosen.back());
        Attended(chosen, &of, &lists.back());
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    ++length_;
  }

  // A step of several tokens has these logits; its rows have listed that, layer by layer.
  void SteppedRows(LogitRows logits, const NotingKernels::ListsOfRows& listed) {
    for (std::vector<float>& row : logits) {
      rows_.push_back(std::move(row));
      chose_.push_back(false);  // by one query
      Lists& lists = lists_.emplace_back();
      auto next = listed.begin();
      for (size_t i = 0; i < heads_.size(); ++i) {
        if (i % static_cast<size_t>(shape_.kv_heads) == 0) lists.emplace_back();
        Attended(heads_[i].let_go.empty() ? std::vector<int32_t>() : *next++, &heads_[i],
                 &lists.back());
        if (::testing::Test::HasFatalFailure()) return;
      }
      ASSERT_EQ(next, listed.end());
      ++length_;
    }
    made_ = -1;
  }

  // Checks the choice of a step, by the queries of a layer that `q` begins with.
  void CheckChoice(size_t step, int layer, const float* q, int64_t* decided) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const Head& of = HeadOf(layer, head);
      const std::vector<int32_t>& chosen = of.chosen[step];
      const int64_t blocks = std::ssize(of.let_go) / kBlock;
      if (chosen.empty() || std::ssize(chosen) == blocks) continue;
      const std::vector<bool> sure = SurelyListed(
          WorthOf(h_.store().format().page, static_cast<int>(kBlock), of.held,
                  q + int64_t{head} * shape_.group() * shape_.head_dim, shape_.group(), blocks),
          std::ssize(chosen));
      for (int32_t block = 0; block < blocks; ++block) {
        if (!sure[static_cast<size_t>(block)]) continue;
        ++*decided;
        EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), block))
            << "step " << step << " layer " << layer << " head " << head << " block " << block;
      }
    }
  }

  const std::vector<Lists>& lists() const { return lists_; }
  const LogitRows& rows() const { return rows_; }
  const std::vector<bool>& chose() const { return chose_; }
  size_t length() const { return static_cast<size_t>(length_); }
  kv::SequenceId sequence() const { return kept_; }
  // Whether some head left something out in the last step.
  bool leaves_out() const {
    for (const std::vector<std::vector<int64_t>>& layer : lists_.back()) {
      for (const std::vector<int64_t>& list : layer) {
        if (std::ssize(list) < length_) return true;
      }
    }
    return false;
  }

 private:
  struct Head {
    std::vector<int64_t> kept;
    Cached held;
    std::vector<int64_t> let_go;               // their positions
    std::vector<std::vector<int32_t>> chosen;  // blocks of each step
  };
  Head& HeadOf(int layer, int head) {
    return heads_[static_cast<size_t>(layer * shape_.kv_heads + head)];
  }

  void Attended(const std::vector<int32_t>& chosen, Head* head,
                std::vector<std::vector<int64_t>>* lists) {
    const int64_t blocks = std::ssize(head->let_go) / kBlock;
    ASSERT_EQ(std::ssize(chosen), std::min(blocks, policy_.demotion.blocks()));
    head->chosen.push_back(chosen);
    lists->push_back(ListOf(*head));
  }

  // What a head keeps and what it let go of are the prompt.
  void ExpectParts(const Head& head) const {
    std::vector<int64_t> all = head.kept;
    all.insert(all.end(), head.let_go.begin(), head.let_go.end());
    std::sort(all.begin(), all.end());
    ASSERT_EQ(std::ssize(all), prompt_);
    for (int64_t i = 0; i < prompt_; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], i);
    ASSERT_EQ(std::ssize(head.let_go) % h_.store().format().page.page_slots, 0);
  }

  Cached ReadHeld(const Demoted::Held& held, int layer, int head) {
    const int64_t blocks = h_.demoted().BlocksOf(held, layer, head);
    const BlockedKeys lie = h_.demoted().KeysOf(1, blocks);
    KeyRun run;
    run.pages.k = const_cast<std::byte*>(h_.demoted().PlaceOf(held, layer, head).slab);
    run.pages.v = run.pages.k + lie.v_offset;
    run.pages.page_stride = lie.page_stride;
    run.pages.count = blocks * kBlock;
    return ReadRuns(h_, h_.store().format().page, {&run, 1});
  }

  std::vector<int32_t> ChosenOf(const Demoted::Held& held, int layer, int head) {
    const Demoted& demoted = h_.demoted();
    if (demoted.BlocksOf(held, layer, head) == 0) return {};
    return NotingKernels::ReadList(h_.compute(),
                                   demoted.ListsOf(held, layer) + head * demoted.capacity(),
                                   demoted.CountsOf(held, layer) + head);
  }

  // What a head attended to in the step at hand, ascending, each token once.
  std::vector<int64_t> ListOf(const Head& head) const {
    std::vector<int64_t> list = head.kept;
    for (const int32_t block : head.chosen.back()) {
      const auto first = head.let_go.begin() + block * kBlock;
      list.insert(list.end(), first, first + kBlock);
    }
    for (int64_t key = prompt_; key <= length_; ++key) list.push_back(key);
    std::sort(list.begin(), list.end());
    EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end());
    return list;
  }

  Reading& reading_;
  StepHarness& h_;
  const ModelShape shape_;
  const EvictionPolicy policy_;
  const std::span<const TokenId> tokens_;
  kv::SequenceId kept_ = -1;
  int64_t prompt_ = 0, length_ = 0;
  int64_t made_ = -1;         // the step that chose last
  std::vector<Head> heads_;   // [layers, kv_heads]
  std::vector<Lists> lists_;  // of each step
  std::vector<bool> chose_;   // the same
  LogitRows rows_;            // the same
};

EvictionPolicy PolicyFor(EvictionMethod method, int64_t budget, int64_t keys, int64_t refresh) {
  EvictionPolicy policy;
  policy.method = method;
  policy.budget = budget;
  policy.window = 8;
  policy.steepness = 4.0;
  if (!policy.observes()) policy.window = policy.pool = 1;
  policy.demotion = {keys, refresh};
  return policy;
}

// How caches are cut and where they lie, and how much of what is chosen how often.
std::vector<HarnessConfig> Cuts() {
  std::vector<HarnessConfig> cuts(4);
  cuts[0].chunk = 37;
  cuts[0].eviction = PolicyFor(EvictionMethod::kSnap, 48, 32, 1);
  cuts[1].chunk = 50;
  cuts[1].placement = kv::PlacementKind::kHostOnly;
  cuts[1].device_slabs = 0;
  cuts[1].poison_freed = true;
  cuts[1].eviction = PolicyFor(EvictionMethod::kAdaSnap, 60, 64, 3);
  cuts[2].chunk = 70;
  cuts[2].page_slots = 32;
  cuts[2].segment_pages = 1;
  cuts[2].group_heads = 1;
  cuts[2].poison_freed = true;
  cuts[2].eviction = PolicyFor(EvictionMethod::kPyramid, 60, 16, 1000);
  cuts[3].chunk = 300;
  cuts[3].eviction = PolicyFor(EvictionMethod::kStreaming, 40, 50, 2);
  return cuts;
}

bool HasWindows(const ModelConfig& config) {
  return std::any_of(config.windows.begin(), config.windows.end(),
                     [](int64_t window) { return window > 0; });
}

class EngineDemoted : public GoldenText {
 protected:
  EngineDemoted() : GoldenText(kSteps) {}

  void SetUp() override {
    GoldenText::SetUp();
    if (HasFatalFailure()) return;
    if (HasWindows(model_->config())) GTEST_SKIP() << "refused";
    plain_ = Load();  // which is not moved to a GPU
    ASSERT_NE(plain_, nullptr);
  }

  // The logits of a decode are those of attention to its lists, and these have what the queries of
  // that attention want most.
  void ExpectChosen(Decode* decode) {
    std::vector<std::vector<float>> queries;
    ExpectListed(*decode, &queries);
    if (HasFatalFailure()) return;
    const ModelShape& shape = model_->shape();
    const auto width = static_cast<size_t>(shape.query_heads * shape.head_dim);
    const size_t first = decode->length() - decode->lists().size();
    for (size_t step = 0; step + 1 < decode->lists().size(); ++step) {
      for (int layer = 0; decode->chose()[step] && layer < shape.layers; ++layer) {
        const float* const q = queries[static_cast<size_t>(layer)].data() + (first + step) * width;
        decode->CheckChoice(step, layer, q, &decided_);
      }
    }
  }

  void Steps(Reading& reading, Decode* decode, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      const StepInput input = decode->Next(reading.rope());
      Result<std::vector<LogitRows>> made = reading.harness().StepKept({&input, 1});
      ASSERT_TRUE(made.ok()) << made.status().message();
      decode->Stepped(std::move((*made)[0][0]));
      if (HasFailure()) return;
    }
  }

  int64_t PromptLength() const { return std::ssize(golden_.prompt); }

  std::unique_ptr<Model> plain_;
  int64_t decided_ = 0;  // of blocks: they had to be there
};

TEST_P(EngineDemoted, AttendsToWhatAPlainReadingSays) {
  bool leaves_out = false;
  for (size_t cut = 0; cut < Cuts().size(); ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    const HarnessConfig config = Cuts()[cut];
    Reading reading(*model_, *plain_, config, std::ssize(tokens_));
    ASSERT_TRUE(reading.ok());
    Decode decode(reading, model_->shape(), config.eviction, tokens_);
    decode.Prompt(PromptLength());
    ASSERT_FALSE(HasFailure());
    Steps(reading, &decode, kSteps);
    ASSERT_FALSE(HasFailure());
    leaves_out = leaves_out || decode.leaves_out();
    ExpectChosen(&decode);
  }
  EXPECT_TRUE(leaves_out);
  EXPECT_GT(decided_, 0);
}

// Two sequences share steps. What one of them held goes to another, of another length.
TEST_P(EngineDemoted, SequencesHaveTheirOwn) {
  if (model_->config().rope.type == RopeType::kDynamic) GTEST_SKIP() << "lengths have their angles";
  HarnessConfig config = Cuts()[0];
  config.eviction = PolicyFor(EvictionMethod::kAdaSnap, 48, 32, 2);
  Reading reading(*model_, *plain_, config, std::ssize(tokens_));
  ASSERT_TRUE(reading.ok());
  const std::span<const TokenId> text = tokens_;
  std::vector<Decode> decodes(3, Decode(reading, model_->shape(), config.eviction, text));
  decodes[0].Prompt(PromptLength() - 30);
  Steps(reading, &decodes[0], 3);
  decodes[1].Prompt(PromptLength());
  ASSERT_FALSE(HasFailure());
  const auto together = [&](size_t a, size_t b) {
    for (int64_t step = 0; step < 5; ++step) {
      const std::vector<StepInput> inputs = {decodes[a].Next(reading.rope()),
                                             decodes[b].Next(reading.rope())};
      Result<std::vector<LogitRows>> made = reading.harness().StepKept(inputs);
      ASSERT_TRUE(made.ok()) << made.status().message();
      decodes[a].Stepped(std::move((*made)[0][0]));
      decodes[b].Stepped(std::move((*made)[1][0]));
    }
  };
  together(0, 1);
  reading.harness().evictor().Forget(decodes[0].sequence());
  reading.harness().kept_store().Drop(decodes[0].sequence());
  decodes[2].Prompt(PromptLength() - 7);
  together(1, 2);
  ASSERT_FALSE(HasFailure());
  for (Decode& decode : decodes) ExpectChosen(&decode);
}

// Rows of text that is read behind the prompt choose together, and the decode behind them anew.
TEST_P(EngineDemoted, RowsOfWhatIsAppendedChoose) {
  for (const int64_t keys : {32, 4096}) {
    HarnessConfig config = Cuts()[1];
    config.eviction = PolicyFor(EvictionMethod::kAdaSnap, 48, keys, 100);
    NotingKernels::ListsOfRows noted;
    config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<NotingKernels>(std::move(kernels), &noted);
    };
    Reading reading(*model_, *plain_, config, std::ssize(tokens_));
    ASSERT_TRUE(reading.ok());
    Decode decode(reading, model_->shape(), config.eviction, tokens_);
    decode.Prompt(PromptLength());
    Steps(reading, &decode, 2);
    ASSERT_FALSE(HasFailure());
    const StepInput input = decode.Next(reading.rope(), 9);
    Result<std::vector<LogitRows>> made = reading.harness().StepKept({&input, 1});
    ASSERT_TRUE(made.ok()) << made.status().message();
    decode.SteppedRows(std::move((*made)[0]), noted);
    Steps(reading, &decode, kSteps - 11);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(std::count(decode.chose().begin(), decode.chose().end(), true), 2);
    ExpectChosen(&decode);
  }
}

// Where a step may read all that was let go, it attends to every token.
TEST_P(EngineDemoted, IsExactWhereAllIsRead) {
  HarnessConfig config = Cuts()[1];
  config.eviction = PolicyFor(EvictionMethod::kAdaSnap, 40, 4096, 1);
  Reading reading(*model_, *plain_, config, std::ssize(tokens_));
  ASSERT_TRUE(reading.ok());
  Decode decode(reading, model_->shape(), config.eviction, tokens_);
  decode.Prompt(PromptLength());
  ASSERT_FALSE(HasFailure());
  Steps(reading, &decode, kSteps);
  ASSERT_FALSE(HasFailure());
  EXPECT_FALSE(decode.leaves_out());
  ExpectChosen(&decode);
}

class EngineDemotedLanes : public EngineDemoted {};

// Copies and kernels that come late: whoever does not wait for them takes what is not there yet, or
// what is poisoned.
TEST_P(EngineDemotedLanes, MayBeLate) {
  for (const Lane lane : {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost}) {
    SCOPED_TRACE(LaneName(lane));
    Delays delays(7);
    HarnessConfig config = Cuts()[1];
    config.delays = &delays;
    Reading reading(*model_, *plain_, config, std::ssize(tokens_));
    ASSERT_TRUE(reading.ok());
    Decode decode(reading, model_->shape(), config.eviction, tokens_);
    const int least_us = lane == Lane::kCompute ? 200 : 2000;
    delays.Set(lane, /*every=*/1, least_us, 2 * least_us);
    decode.Prompt(PromptLength());
    ASSERT_FALSE(HasFailure());
    Steps(reading, &decode, 8);
    ASSERT_FALSE(HasFailure());
    ExpectChosen(&decode);
    EXPECT_GT(delays.slept(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineDemotedLanes, ::testing::Values("llama31"));

INSTANTIATE_TEST_SUITE_P(Models, EngineDemoted, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& model) { return GoldenTestName(model.param); });

}  // namespace
}  // namespace headway::testing
