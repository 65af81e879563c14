// What decodes attend to before their window, against a plain reading of HGCA's algorithms 1 and 2:
// masses in double precision from the keys in the cache and the queries of each step. What was
// chosen is told by its bytes, and the logits are those of attention to just these keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_reading.h"
#include "support/golden.h"
#include "support/golden_fixture.h"
#include "support/grid.h"
#include "support/plain_eviction.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr int64_t kSteps = 40;

// Tokens of a head from one on.
Cached Behind(const Cached& all, int64_t first) {
  Cached rest = all;
  const auto bytes = static_cast<ptrdiff_t>(first) * static_cast<ptrdiff_t>(all.row_bytes);
  rest.k.erase(rest.k.begin(), rest.k.begin() + bytes);
  rest.v.erase(rest.v.begin(), rest.v.begin() + bytes);
  return rest;
}

// One KV head of a sequence.
struct PlainHead {
  std::vector<Bounded> masses;   // [tokens], in even shares
  std::vector<int64_t> salient;  // before the window, ascending
};

// A decode under a configuration, step by step beside the plain reading.
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
    heads_.resize(static_cast<size_t>(shape_.layers * shape_.kv_heads));
  }
  bool ok() const { return h_ != nullptr; }

  // Reads the prompt and chooses.
  void Prompt(int64_t length) {
    if (sequence_ < 0) sequence_ = *h_->NewSequence();
    const int64_t there = h_->store().Length(sequence_);
    const auto rest =
        tokens_.subspan(static_cast<size_t>(there), static_cast<size_t>(length - there));
    ASSERT_TRUE(h_->Append(sequence_, rest, rope_).ok());
    ASSERT_TRUE(h_->salience().Choose(sequence_, h_->executor().observed()).ok());
    length_ = length;
    before_ = kv::TokensBefore(policy_, length, page_slots_);
    ForEachHead([&](int layer, int head, PlainHead& plain) {
      plain.salient.clear();
      const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
      const Queries queries = ReadQueries(*h_, shape_, layer);
      const auto rows = static_cast<int64_t>(queries.q.size()) / Width();
      ASSERT_EQ(rows, std::min(policy_.queries, length));
      plain.masses.assign(static_cast<size_t>(length), {});
      Add(queries, rows, Behind(keys, before_), head, before_, &plain.masses);
      std::vector<Bounded> all(static_cast<size_t>(length));
      Add(queries, rows, keys, head, 0, &all);
      std::copy_n(all.begin(), before_, plain.masses.begin());
      Check(layer, head, 0, kv::MostSalient(policy_, before_), keys, &plain);
    });
  }

  // One token more; its logits are added to rows.
  void Step() {
    Lists& lists = lists_.emplace_back();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const int64_t window = WindowOf(layer);
      lists.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        std::vector<int64_t> keys = HeadOf(layer, head).salient;
        int64_t first = before_;
        if (window > 0) first = std::max<int64_t>(0, length_ + 1 - window);
        for (int64_t key = first; key <= length_; ++key) keys.push_back(key);
        lists.back().push_back(std::move(keys));
      }
    }
    const StepInput input{sequence_, tokens_.subspan(static_cast<size_t>(length_), 1), &rope_,
                          LogitsMode::kAll};
    Result<std::vector<LogitRows>> step = h_->Step({&input, 1});
    ASSERT_TRUE(step.ok()) << step.status().message();
    rows_.push_back((*step)[0][0]);
    ++length_;
    const int64_t before = kv::TokensBefore(policy_, length_, page_slots_);
    ForEachHead([&](int layer, int head, PlainHead& plain) {
      const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
      Queries queries = ReadQueries(*h_, shape_, layer);
      queries.q.erase(queries.q.begin(), queries.q.end() - Width());  // but the last
      queries.position = length_ - 1;
      std::vector<Bounded> masses(static_cast<size_t>(length_));
      Add(queries, 1, Behind(keys, before_), head, before_, &masses);
      plain.masses.resize(static_cast<size_t>(length_));
      const bool weighed = (length_ - 1) % policy_.every == 0;
      for (size_t i = static_cast<size_t>(before_); weighed && i < masses.size(); ++i) {
        Bounded& there = plain.masses[i];
        there.value = (1 - policy_.alpha) * there.value + policy_.alpha * masses[i].value;
        there.error = (1 - policy_.alpha) * there.error + policy_.alpha * masses[i].error +
                      4 * kUnit * there.value;
      }
      const auto chosen = std::ssize(plain.salient);
      const int64_t first = std::exchange(before_, before);
      Check(layer, head, first, kv::MostSalient(policy_, before) - chosen, keys, &plain);
      before_ = first;
    });
    before_ = before;
  }

  const std::vector<Lists>& lists() const { return lists_; }
  const LogitRows& rows() const { return rows_; }
  int64_t chosen() const {
    int64_t sum = 0;
    for (const PlainHead& head : heads_) sum += std::ssize(head.salient);
    return sum;
  }
  int64_t before() const { return before_; }
  size_t length() const { return static_cast<size_t>(length_); }
  // Of choices that were open: those of all that bounds decide.
  int64_t decided = 0, open = 0;

 private:
  int64_t Width() const { return int64_t{shape_.query_heads} * shape_.head_dim; }
  int64_t WindowOf(int layer) const {
    const std::vector<int64_t>& windows = model_.config().windows;
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  PlainHead& HeadOf(int layer, int head) {
    return heads_[static_cast<size_t>(layer * shape_.kv_heads + head)];
  }
  template <typename Visit>
  void ForEachHead(const Visit& visit) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; WindowOf(layer) == 0 && head < shape_.kv_heads; ++head) {
        SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head) +
                     " length " + std::to_string(length_));
        visit(layer, head, HeadOf(layer, head));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  // The mean weights of the queries over `keys`, which begin at `first`, in even shares.
  void Add(const Queries& queries, int64_t rows, const Cached& keys, int head, int64_t first,
           std::vector<Bounded>* masses) const {
    const int group = shape_.group();
    const double share = static_cast<double>(keys.tokens()) / static_cast<double>(rows * group);
    const PageFormat& page = h_->store().format().page;
    for (int64_t row = 0; row < rows; ++row) {
      for (int g = 0; g < group; ++g) {
        const float* const q =
            queries.q.data() + row * Width() + (int64_t{head} * group + g) * shape_.head_dim;
        const std::vector<Bounded> weights =
            WeightsOf(q, keys, queries.position + row + 1 - first, page);
        for (size_t i = 0; i < weights.size(); ++i) {
          Bounded& mass = (*masses)[static_cast<size_t>(first) + i];
          mass.value += share * weights[i].value;
          mass.error += share * (weights[i].error + 4 * kUnit * weights[i].value);
        }
      }
    }
    for (Bounded& mass : *masses) {
      mass.error += static_cast<double>(rows * group + 4) * kUnit * mass.value;
    }
  }

  // What the engine has of a head: what it had, and of the tokens [first, before_) those that their
  // masses say, `most` of them.
  void Check(int layer, int head, int64_t first, int64_t most, const Cached& keys,
             PlainHead* plain) {
    Salience::Chosen* const chosen = h_->salience().Find(sequence_, length_);
    ASSERT_NE(chosen, nullptr);
    ASSERT_EQ(chosen->before, before_);
    const KeyRun run = h_->salience().KeysOf(*chosen, layer, head);
    std::vector<int64_t> list =
        PositionsOf(ReadRuns(*h_, h_->store().format().page, {&run, 1}), keys);
    ASSERT_EQ(std::ssize(list), run.pages.count);
    const auto had = std::ssize(plain->salient);
    ASSERT_GE(std::ssize(list), had);
    ASSERT_TRUE(std::equal(plain->salient.begin(), plain->salient.end(), list.begin()));
    const std::vector<int64_t> fresh(list.begin() + had, list.end());
    ASSERT_LE(std::ssize(fresh), most);
    const bool full = std::ssize(fresh) == most;
    double least = 1e30;  // of those that are chosen
    for (const int64_t key : fresh) {
      const Bounded& mass = plain->masses[static_cast<size_t>(key)];
      ASSERT_GE(key, first);
      ASSERT_LT(key, before_);
      EXPECT_GT(mass.high(), policy_.beta);
      least = std::min(least, mass.high());
    }
    for (int64_t key = first; key < before_; ++key) {
      ++open;
      const Bounded& mass = plain->masses[static_cast<size_t>(key)];
      const bool in = std::binary_search(fresh.begin(), fresh.end(), key);
      const bool above = mass.low() > policy_.beta;
      if (!in) {
        EXPECT_FALSE(above && (!full || mass.low() > least)) << "left out " << key;
      }
      decided += in ? (above ? 1 : 0) : (mass.high() <= policy_.beta || full ? 1 : 0);
    }
    plain->salient = std::move(list);
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
  int64_t before_ = 0;
  std::vector<PlainHead> heads_;  // [layers, kv_heads]
  std::vector<Lists> lists_;      // of each step
  LogitRows rows_;                // the same
};

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
  cuts[3].chunk = 5;  // fewer than queries
  cuts[3].page_slots = 8;
  cuts[3].segment_pages = 1;
  cuts[3].salience = PolicyOf(1e6, 1.0);  // none
  return cuts;
}

class EngineSalience : public GoldenText {
 protected:
  EngineSalience() : GoldenText(kSteps) {}
  void ExpectListed(const Decode& decode) const {
    std::vector<std::vector<float>> queries;
    GoldenText::ExpectListed(decode, &queries);
  }
};

TEST_P(EngineSalience, AttendsToWhatAPlainReadingSays) {
  int64_t open = 0, decided = 0;
  for (size_t cut = 0; cut < Cuts().size(); ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    Decode decode(*model_, Cuts()[cut], tokens_);
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

// What was left out comes back where what is appended needs it: all of the cache is read, and each
// head chooses anew.
TEST_P(EngineSalience, ChoosesAnewBehindWhatIsAppended) {
  HarnessConfig config = Cuts()[0];
  config.salience = PolicyOf(1e-30, 0.25);
  Decode decode(*model_, config, tokens_);
  ASSERT_TRUE(decode.ok());
  const auto first = std::ssize(golden_.prompt) / 2;
  decode.Prompt(first);
  for (int64_t step = 0; step < 9 && !HasFailure(); ++step) decode.Step();
  decode.Prompt(std::ssize(golden_.prompt));
  for (int64_t step = 0; step < 9 && !HasFailure(); ++step) decode.Step();
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
    Decode decode(*model_, config, tokens_);
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
